"""How are the weights of each layer distributed, with symmetries and without?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group

from ckptzoo.console import columns
from ckptzoo.errors import ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.studies.exchange import LEAST, LEVEL, Compared, compare, pairs_of
from ckptzoo.studies.inventory import sound
from ckptzoo.studies.shared.density import Histogram, histograms
from ckptzoo.studies.shared.report import need_matplotlib, write
from ckptzoo.studies.shared.weights import parameter_names, table_of, thinned
from ckptzoo.studies.variation import Variation, bytes_to_read, variation
from ckptzoo.symmetry.counts import orbits
from ckptzoo.text import Progress, counted, printable

MAX_ROWS = 24
"""Tables of more tensors or layers are thinned out evenly."""


@dataclass(frozen=True, eq=False)
class Marginal:
    """How the weights of one tensor are distributed.

    Parameters
    ----------
    histogram : of all its weights, raw and in the variant.
    orbits : of its positions under the permutations of the symmetry table.
    within : pairs of positions of one orbit, equal before symmetries are removed as far as training treats channels
        alike.
    across : pairs of positions of different orbits, about which symmetry says nothing.
    """

    histogram: Histogram
    orbits: int
    within: Compared
    across: Compared

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the densities and the p-values."""
        held = self.histogram
        return {
            "tensor": held.tensor,
            "shape": list(held.shape),
            "mean": held.mean,
            "sd": held.sd,
            "orbits": self.orbits,
            "within": self.within.to_json(),
            "across": self.across.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Marginals:
    """The marginals of a zoo's weights, raw and in a variant.

    Parameters
    ----------
    members : the checkpoints that were studied: each member's last step, finite, not diverged and in the gauge.
    left_out : members whose last step is not.
    tensors : the floating-point parameters, in the architecture's order.
    layers : the principal components of each layer's parameters.
    """

    name: str
    variant: str
    architecture: str
    members: int
    left_out: int
    tensors: tuple[Marginal, ...]
    layers: tuple[Variation, ...]

    @property
    def within(self) -> Compared:
        """The pairs within one orbit of all tensors together."""
        return Compared.join([item.within for item in self.tensors])

    @property
    def across(self) -> Compared:
        """The pairs across orbits of all tensors together."""
        return Compared.join([item.across for item in self.tensors])

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the densities and the p-values."""
        return {
            "name": self.name,
            "variant": self.variant,
            "architecture": self.architecture,
            "members": self.members,
            "left_out": self.left_out,
            "level": LEVEL,
            "within": self.within.to_json(),
            "across": self.across.to_json(),
            "tensors": [item.to_json() for item in self.tensors],
            "layers": [item.to_json() for item in self.layers],
        }

    def print(self, console: Console | None = None) -> None:
        """Print tables of tests and of components on a rich console, by default the standard output."""
        left = f"; {self.left_out:,} left out" if self.left_out else ""
        lines: list[Any] = [
            f"zoo: {printable(self.name)}: {counted(self.members, 'member')} of {printable(self.architecture)}{left}",
            f"gauge: {printable(self.variant)}",
        ]
        for kind, title in (("within", "Within one orbit"), ("across", "Across orbits")):
            if getattr(self, kind).pairs:
                lines += ["", f"{title}: p below {LEVEL} ({100 * LEVEL:g} % at most where equal), and median p"]
                lines += self._tests(kind)
        lines += ["", *self._words()]
        if self.members > 1:
            lines += ["", "Principal components: share of the first, and how many hold 90 %"]
            lines += self._components()
        (console or Console()).print(Group(*lines), markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write ``marginals.png``, ``pvalues.png``, ``components.png`` and ``marginals.json``.

        A picture for which there is nothing to show is left out. Equal results give equal bytes at equal versions of
        matplotlib.

        Parameters
        ----------
        folder : made where it is missing; files of these names are replaced.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        """
        need_matplotlib()
        from ckptzoo.studies.plots import marginals as pictures

        title = f"{self.name}, {self.variant}"
        figures: dict[str, Any] = {
            "marginals.png": pictures.densities(self.name, self.members, [item.histogram for item in self.tensors])
        }
        kinds = {
            "within one orbit": [item.within for item in self.tensors if item.within.pairs],
            "across orbits": [item.across for item in self.tensors if item.across.pairs],
        }
        if kinds := {kind: items for kind, items in kinds.items() if items}:
            figures["pvalues.png"] = pictures.p_values(title, self.members, kinds)
        if varying := [item for item in self.layers if any(found.total > 0 for found in item.components.values())]:
            figures["components.png"] = pictures.components(title, self.members, varying)
        return write(folder, figures, "marginals.json", self.to_json())

    def _tests(self, kind: str) -> list[Any]:
        table = columns("tensor", "orbits", "positions", "pairs")
        variants = self._variants()
        for variant in variants:
            table.add_column(printable(variant), justify="right", no_wrap=True)
            table.add_column("median", justify="right", no_wrap=True)
        rows = [item for item in self.tensors if getattr(item, kind).pairs]
        shown, _ = thinned(rows, MAX_ROWS)
        for item in shown:
            size = int(np.prod(item.histogram.shape, dtype=np.int64))
            first = [printable(item.histogram.tensor), f"{item.orbits:,}", f"{size:,}"]
            table.add_row(*first, *_figures(getattr(item, kind), variants))
        if len(rows) > 1:
            table.add_row("all", "", "", *_figures(getattr(self, kind), variants))
        return [table, *_more(len(rows) - len(shown), "tensor")]

    def _components(self) -> list[Any]:
        table = columns("layer", "parameters", "members")
        variants = self._variants()
        for variant in variants:
            table.add_column(printable(variant), justify="right", no_wrap=True)
            table.add_column("90 %", justify="right", no_wrap=True)
        shown, _ = thinned(self.layers, MAX_ROWS)
        for item in shown:
            figures: list[str] = []
            for variant in variants:
                found = item.components[variant]
                needed = found.needed(0.9)
                figures += ["-", "-"] if needed is None else [f"{found.ratios[0]:.1%}", f"{needed:,}"]
            table.add_row(printable(item.layer), f"{item.parameters:,}", f"{item.members:,}", *figures)
        return [table, *_more(len(self.layers) - len(shown), "layer")]

    def _words(self) -> list[str]:
        if self.members < LEAST:
            return [f"Too few members to compare marginals: expected {LEAST} or more, got {self.members}."]
        if not self.within.pairs:
            return ["No two positions share an orbit: the permutations say nothing about these marginals."]
        lines: list[str] = []
        for variant in self._variants():
            p = self.within.uniform(variant)
            assert p is not None
            how = "no more" if p >= LEVEL else "more"
            said = f"{how} small p-values than equal marginals give (p = {p:.2g})"
            lines.append(f"Within orbits, {printable(variant)}: {said}.")
        return lines

    def _variants(self) -> tuple[str, str]:
        return layout.RAW, self.variant


def marginals(zoo: Zoo, variant: str = "canonical", *, seed: int = 0, progress: Progress | None = None) -> Marginals:
    """Compare the marginals of a zoo's weights before and after symmetries are removed.

    Permutations that leave the networks' functions alone make the weights at two positions of one orbit equal in
    distribution, if nothing in training tells the channels apart; a gauge that orders the channels ends that. The
    orbits are those of ``ckptzoo.symmetry.counts``: the weights from one input to every hidden neuron, say, and not
    all weights of a layer. After arXiv 2310.08287, figure 9.

    Parameters
    ----------
    zoo : what ``ckptzoo.open`` gives, or a selection of it. Of every member the last step is taken; those that
        diverged, are not finite or not in the gauge are left out.
    variant : a derived variant.
    seed : draws pairs of positions, the halves of the members for each pair, and the members for wide layers.
    progress : called with the bytes read and the bytes in all.

    Raises
    ------
    SymmetryError
        The zoo has no symmetry table.
    ZooError
        No member or no tensor is left, or the variant is missing or lacks checkpoints.
    MissingExtraError
        scipy is not installed.

    Notes
    -----
    At most 200 pairs a tensor within orbits and as many across, no position twice, by Kolmogorov and Smirnov's test on
    two random halves of the members; only these positions are read for it. Densities and components read all
    floating-point parameters twice, raw and derived, in batches of bounded memory; buffers such as running statistics
    are left out. The p-value of the p-values takes pairs for independent, which they are as far as the weights of one
    network are.
    """
    table = table_of(zoo, variant)
    last = zoo.last_steps()
    good = last.take(sound(last.metadata) & last.variant_metadata(variant)["gauged"].to_numpy())
    names = parameter_names(zoo.arch)
    if not len(good) or not names:
        what, got = ("members", f"none of {len(last)}") if names else ("tensors", "no floating-point parameter")
        expected = "one that is finite, did not diverge and is in the gauge" if names else "one"
        raise ZooError(f"{zoo.name}: {what}: expected at least {expected}, got {got}. Select others.")
    variants = layout.RAW, variant
    layers = {layer: [name for name in held if name in names] for layer, held in zoo.layers.items()}
    layers = {layer: held for layer, held in layers.items() if held}
    once = sum(good[name, kind].nbytes for name in names for kind in variants)
    total = once + sum(bytes_to_read(good, held, variants) for held in layers.values())
    done = once

    def read(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    drawn = histograms(good, names, variants, None if progress is None else lambda at, _: progress(at, total))
    made: list[Marginal] = []
    for at, histogram in enumerate(drawn):
        rng = np.random.default_rng([seed, at])
        labels = orbits(table, histogram.tensor, histogram.shape).ravel()
        tensors = {kind: good[histogram.tensor, kind] for kind in variants}
        within, across = (compare(tensors, pairs, rng) for pairs in pairs_of(labels, rng))
        made.append(Marginal(histogram, int(labels.max()) + 1, within, across))
    return Marginals(
        name=zoo.name,
        variant=variant,
        architecture=zoo.arch.name,
        members=len(good),
        left_out=len(last) - len(good),
        tensors=tuple(made),
        layers=tuple(variation(good, layer, held, variants, seed=seed, read=read) for layer, held in layers.items()),
    )


def _figures(found: Compared, variants: Sequence[str]) -> list[str]:
    figures = [f"{found.pairs:,}"]
    for variant in variants:
        figures += [f"{found.share(variant):.1%}", f"{found.median(variant):.2g}"]
    return figures


def _more(number: int, noun: str) -> list[str]:
    return [f"and {counted(number, f'more {noun}')}"] if number else []
