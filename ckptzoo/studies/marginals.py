"""How are the weights of each layer distributed, with symmetries and without?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import Seed, checked
from ckptzoo.console import columns
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import usable_rows
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.documents import Document
from ckptzoo.studies.equal_marginals import LEAST, LEVEL, RESOLVED, PairTests, compare_pairs, position_pairs
from ckptzoo.studies.principal_components import LayerComponents, bytes_to_read, layer_components
from ckptzoo.studies.shared.result import StudyResult
from ckptzoo.studies.shared.selection import parameter_names, parameters_by_layer, table_of, thinned
from ckptzoo.studies.shared.value_histograms import TensorHistogram, histograms
from ckptzoo.symmetry.counts import orbits
from ckptzoo.text import Progress, counted, counter, printable

MAX_ROWS = 24
"""Tables of more tensors or layers are thinned out evenly."""


@dataclass(frozen=True, eq=False)
class Marginal:
    """How the weights of one tensor are distributed.

    ``histogram`` has all its weights, raw and in the variant; ``orbits`` counts the orbits of its positions under the
    permutations of the symmetry table; ``within`` has pairs of positions of one orbit, equal before symmetries are
    removed as far as training treats channels alike, and ``across`` pairs of different orbits, about which symmetry
    says nothing.
    """

    histogram: TensorHistogram
    orbits: int
    within: PairTests
    across: PairTests

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the densities and the p-values."""
        histogram = self.histogram
        return {
            "tensor": histogram.tensor,
            "shape": list(histogram.shape),
            "mean": histogram.mean,
            "sd": histogram.sd,
            "orbits": self.orbits,
            "within": self.within.to_json(),
            "across": self.across.to_json(),
        }


@dataclass(frozen=True, eq=False)
class Marginals(StudyResult, derived=("within", "across")):
    """The marginals of a zoo's weights, raw and in a variant.

    Drawn as ``marginals.png``, ``pvalues.png`` and ``components.png``, the latter two where there is something to show.
    ``members`` counts the checkpoints that were studied: each member's last step, finite, not diverged and in the
    gauge; ``tensors`` are the floating-point parameters, in the architecture's order; ``layers`` are the principal
    components of each layer's parameters.
    """

    file: ClassVar[str] = "marginals.json"

    name: str
    variant: str
    architecture: str
    members: int
    left_out: int
    tensors: tuple[Marginal, ...]
    layers: tuple[LayerComponents, ...]

    @property
    def within(self) -> PairTests:
        """The pairs within one orbit of all tensors together."""
        return PairTests.join([item.within for item in self.tensors])

    @property
    def across(self) -> PairTests:
        """The pairs across orbits of all tensors together."""
        return PairTests.join([item.across for item in self.tensors])

    def to_json(self) -> Document:
        """Every figure by name, without the densities and the p-values."""
        return {**super().to_json(), "level": LEVEL}

    def _lines(self) -> Iterator[RenderableType]:
        left_out = f"; {self.left_out:,} left out" if self.left_out else ""
        members = f"{counted(self.members, 'member')} of {printable(self.architecture)}{left_out}"
        yield f"zoo: {printable(self.name)}: {members}"
        yield f"gauge: {printable(self.variant)}"
        for kind, title in (("within", "Within one orbit"), ("across", "Across orbits")):
            if getattr(self, kind).pairs:
                yield ""
                yield f"{title}: p below {LEVEL} ({100 * LEVEL:g}% at most where equal), and median p"
                yield from self._tests(kind)
        yield ""
        yield from self._conclusions()
        if self.members > 1:
            yield ""
            yield "Principal components: share of the first, and how many hold 90%"
            yield from self._components()

    def _tests(self, kind: str) -> Iterator[RenderableType]:
        table = self._table("tensor", "orbits", "positions", "pairs", second="median")
        rows = [item for item in self.tensors if getattr(item, kind).pairs]
        shown, left_out = thinned(rows, MAX_ROWS)
        for item in shown:
            size = int(np.prod(item.histogram.shape, dtype=np.int64))
            first = [printable(item.histogram.tensor), f"{item.orbits:,}", f"{size:,}"]
            table.add_row(*first, *_cells(getattr(item, kind), self._variants()))
        if len(rows) > 1:
            table.add_row("all", "", "", *_cells(getattr(self, kind), self._variants()))
        yield table
        if left_out:
            yield f"and {counted(left_out, 'more tensor')}"

    def _components(self) -> Iterator[RenderableType]:
        table = self._table("layer", "parameters", "members", second="90%")
        shown, left_out = thinned(self.layers, MAX_ROWS)
        for item in shown:
            cells: list[str] = []
            for variant in self._variants():
                components = item.components[variant]
                needed = components.needed(0.9)
                cells += ["-", "-"] if needed is None else [f"{components.ratios[0]:.1%}", f"{needed:,}"]
            table.add_row(printable(item.layer), f"{item.parameters:,}", f"{item.members:,}", *cells)
        yield table
        if left_out:
            yield f"and {counted(left_out, 'more layer')}"

    def _table(self, *names: str, second: str) -> Table:
        """An empty table with two columns a variant behind these, under the names of the variant and ``second``."""
        table = columns(*names)
        for variant in self._variants():
            table.add_column(printable(variant), justify="right", no_wrap=True)
            table.add_column(second, justify="right", no_wrap=True)
        return table

    def _conclusions(self) -> Iterator[str]:
        if self.members < LEAST:
            yield f"Too few members to compare marginals: expected {LEAST} or more, got {self.members}."
        elif not self.within.pairs:
            yield "No two positions share an orbit: the permutations say nothing about these marginals."
        else:
            for variant in self._variants():
                p = self.within.uniform(variant)
                assert p is not None  # there are pairs
                if p >= LEVEL and self.members < RESOLVED:
                    took = f"not resolved with {self.members} members (p = {p:.2g})"
                    small = f"{took}; equal marginals take {RESOLVED} or more"
                else:
                    more = "no more" if p >= LEVEL else "more"
                    small = f"{more} small p-values than equal marginals give (p = {p:.2g})"
                yield f"Within orbits, {printable(variant)}: {small}."

    def _variants(self) -> tuple[str, str]:
        return layout.RAW, self.variant


@checked
def marginals(zoo: Zoo, variant: str = "canonical", *, seed: Seed = 0, progress: Progress | None = None) -> Marginals:
    """Compare the marginals of a zoo's weights before and after symmetries are removed.

    Permutations that leave the networks' functions alone make the weights at two positions of one orbit equal in
    distribution, if nothing in training tells the channels apart; a gauge that orders the channels ends that. The
    orbits are those of ``ckptzoo.symmetry.counts``: the weights from one input to every hidden neuron, say, and not
    all weights of a layer. After arXiv 2310.08287, figure 9.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it. Of every member the last step is taken; those that diverged,
        are not finite or not in the gauge are left out.
    variant
        a derived variant.
    seed
        draws pairs of positions, the halves of the members for each pair, and the members for wide layers.
    progress
        called with the bytes read and the bytes in all.

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

    Examples
    --------
    >>> from ckptzoo.studies.marginals import marginals
    >>> found = marginals(ckptzoo.open("cards/mnist-optunet").where("seed < 256"))
    >>> found.members, [item.orbits for item in found.tensors]
    (256, [16, 25, 10, 10])
    """
    symmetry = table_of(zoo, variant)
    last = zoo.last_steps()
    usable = last.take(usable_rows(last) & last.variant_metadata(variant)["gauged"].to_numpy())
    names = parameter_names(zoo.arch)
    if not names:
        expected, got = "at least one", "no floating-point parameter"
        raise ZooError(Problem(zoo.name, "tensors", expected, got, "Select others."))
    if not len(usable):
        expected = "at least one that is finite, did not diverge and is in the gauge"
        raise ZooError(Problem(zoo.name, "members", expected, f"none of {len(last)}", "Select others."))
    variants = layout.RAW, variant
    layers = parameters_by_layer(zoo.arch)
    # the histograms read everything once; the components again, of layers of many parameters some members only
    once = sum(usable[name, kind].nbytes for name in names for kind in variants)
    total = once + sum(bytes_to_read(usable, tensors, variants) for tensors in layers.values())
    read = counter(total, progress, done=once)
    results: list[Marginal] = []
    reading = None if progress is None else lambda nbytes, _: progress(nbytes, total)
    for index, histogram in enumerate(histograms(usable, names, variants, reading)):
        # a generator for each tensor, so that its pairs do not depend on how many were drawn before
        rng = np.random.default_rng([seed, index])
        labels = orbits(symmetry, histogram.tensor, histogram.shape).ravel()
        tensors = {kind: usable[histogram.tensor, kind] for kind in variants}
        within, across = (compare_pairs(tensors, pairs, rng) for pairs in position_pairs(labels, rng))
        results.append(Marginal(histogram, int(labels.max()) + 1, within, across))
    return Marginals(
        name=zoo.name,
        variant=variant,
        architecture=zoo.arch.name,
        members=len(usable),
        left_out=len(last) - len(usable),
        tensors=tuple(results),
        layers=tuple(
            layer_components(usable, layer, tensors, variants, seed=seed, read=read)
            for layer, tensors in layers.items()
        ),
    )


def _cells(tests: PairTests, variants: Sequence[str]) -> list[str]:
    cells = [f"{tests.pairs:,}"]
    for variant in variants:
        cells += [f"{tests.share(variant):.1%}", f"{tests.median(variant):.2g}"]
    return cells
