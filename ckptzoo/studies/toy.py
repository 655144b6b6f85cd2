"""What is left of the posterior of two last-layer weights once scales and permutations are removed?

Two weights of every network of a zoo, and their density.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table

from ckptzoo.console import facts
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.symmetry import Sym, Symmetry
from ckptzoo.studies.hills import FEW, SIGMAS, Density, density
from ckptzoo.studies.inventory import sound
from ckptzoo.studies.shared.report import need_matplotlib, write
from ckptzoo.studies.shared.weights import BATCH_BYTES, own_table
from ckptzoo.symmetry import canonicalize
from ckptzoo.symmetry.tables import last_layer
from ckptzoo.text import Progress, counted

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class ToyPanel:
    """The two last-layer weights of all networks, with some of the symmetries removed.

    Parameters
    ----------
    name : which are removed.
    points : (M, 2).
    density : of the points, with its hills.
    """

    name: str
    points: NDArray[np.float64]
    density: Density

    @property
    def above(self) -> float:
        """Fraction of networks whose second weight is the larger one; 1/2 where the neurons are exchangeable."""
        first, second = self.points.T
        return float((second > first).mean() + 0.5 * (second == first).mean())

    @property
    def quantiles(self) -> NDArray[np.float64]:
        """(5, 2) both weights at ``QUANTILES``."""
        return np.quantile(self.points, QUANTILES, axis=0)

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, without the points and the density."""
        return {
            "name": self.name,
            "quantiles": {str(share): pair for share, pair in zip(QUANTILES, self.quantiles.tolist(), strict=True)},
            "above_diagonal": self.above,
            "kernel": None if self.density.heights is None else list(self.density.widths),
            "inside": self.density.inside,
            "modes": None if self.density.heights is None else [hill.to_json() for hill in self.density.hills],
        }


LOSS = 0.1
"""Nats. Two separable classes are told apart far below it; a network that tells nothing stays near ln 2 = 0.69."""
MOST = 6
"""So many of the highest shares are printed."""
TRAINED, SCALED, ORDERED = "as trained", "scales removed", "ordered as well"


@dataclass(frozen=True, eq=False)
class Toy:
    """Two last-layer weights of many small networks, as trained and with symmetries removed step by step.

    Parameters
    ----------
    tensor : the last layer's weights.
    norm : what the norms of the incoming weights are set to.
    loss : networks whose training loss is above it are dropped.
    members : networks that are shown.
    dropped : their training loss is above ``loss``.
    left_out : checkpoints that diverged or are not finite.
    unmeasured : shown networks whose training loss is not known.
    panels : as trained; incoming norms set to ``norm``; and the smaller weight first.
    """

    name: str
    architecture: str
    tensor: str
    norm: float
    loss: float
    members: int
    dropped: int
    left_out: int
    unmeasured: int
    panels: tuple[ToyPanel, ToyPanel, ToyPanel]

    def to_json(self) -> dict[str, Any]:
        """Every figure by name."""
        names = ("name", "architecture", "tensor", "norm", "loss", "members", "dropped", "left_out", "unmeasured")
        return {**{name: getattr(self, name) for name in names}, "panels": [panel.to_json() for panel in self.panels]}

    def print(self, console: Console | None = None) -> None:
        """Print facts and a table of the panels on a rich console, by default the standard output."""
        told = facts(self._facts())
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("two weights", no_wrap=True)
        for name in ("first", "second", "above", "modes"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("shares (%)", overflow="fold")
        for panel in self.panels:
            hills, known = panel.density.hills, panel.density.heights is not None
            weights = [f"{low:.2g} to {high:.2g}" for low, high in panel.quantiles[[0, -1]].T]
            modes = (f"{len(hills):,}", _shares([hill.share for hill in hills])) if known else ("-", "-")
            table.add_row(panel.name, *weights, f"{panel.above:.1%}", *modes)
        words = [
            "",
            "first, second: 90 % of the weights.",
            "above: networks whose second weight is the larger one; 50 % where exchanging neurons changes nothing.",
            f"modes: maxima of the estimated density, {SIGMAS} standard errors above the pass to a higher one.",
        ]
        if any(panel.density.heights is None for panel in self.panels):
            words.append(f"An estimate takes {FEW} networks that are not all alike.")
        (console or Console()).print(Group(told, "", table, *words), markup=False, highlight=False)

    def plot(self, folder: str | Path) -> list[Path]:
        """Write ``toy.png`` and ``toy.json``.

        Equal results give equal bytes at equal versions of matplotlib.

        Parameters
        ----------
        folder : made where it is missing; files of these names are replaced.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        """
        need_matplotlib()
        from ckptzoo.studies.plots import toy as pictures

        figure = pictures.panels(self.name, self.members, self.tensor, self.norm, self.panels)
        return write(folder, {"toy.png": figure}, "toy.json", self.to_json())

    def _facts(self) -> list[tuple[str, str]]:
        whole = self.members + self.dropped
        rows = [
            ("zoo", f"{self.name}: {counted(self.members, 'network')} of {self.architecture}"),
            ("weights", f"the two of {self.tensor}; incoming norms set to {self.norm:g}"),
            (
                "dropped",
                f"{self.dropped:,} of {whole:,} ({self.dropped / whole:.2%}): training loss above {self.loss:g}",
            ),
        ]
        if self.unmeasured:
            rows.append(("not measured", f"the training loss of {counted(self.unmeasured, 'network')} that are shown"))
        if self.left_out:
            rows.append(("left out", f"{counted(self.left_out, 'checkpoint')}, diverged or not finite"))
        return rows


def toy(zoo: Zoo, *, norm: float = 3.0, loss: float = LOSS, progress: Progress | None = None) -> Toy:
    r"""Remove the symmetries of networks with two last-layer weights, step by step.

    After arXiv 2310.08287, figure 1. A hidden neuron with incoming weights u, bias b and outgoing weight w computes
    the same with

    .. math:: (u, b, w) \to (u / s,\; b / s,\; s w), \qquad s = \|u\| / \text{norm},

    which sets its incoming norm, and two hidden neurons may be exchanged. So the weights as trained are two numbers
    whose joint density is symmetric about the diagonal; dividing out the scales leaves that symmetry, and putting the
    smaller weight first folds one half onto the other.

    Parameters
    ----------
    zoo : what ``ckptzoo.open`` gives, or a selection of it, whose last layer reads two exchangeable neurons of positive
        scales and writes one output, such as ``mlp-2-2-1``. Each member's last step counts. Hidden neurons further from
        the output are brought to unit norm.
    norm : of the incoming weights of the two neurons.
    loss : networks with a training loss (``train_loss``) above it are dropped; those without a measured one stay.
    progress : called with the bytes read and the bytes in all.

    Raises
    ------
    SymmetryError
        The zoo has no symmetry table, or its last layer is another one.
    ZooError
        No network is left, or ``norm`` is not positive.

    Notes
    -----
    One pass over the raw weights, in batches of 16 MB. The law that networks keep their function is that of the gauge
    ``unit-norm`` (``tests/laws/test_symmetry.py``); known answers: ``tests/studies/test_toy.py``.
    """
    if not 0 < norm < np.inf:
        raise ZooError(f"{zoo.name}: norm: expected a positive number, got {norm!r}. Leave it out for 3.")
    symmetry = own_table(zoo)
    tensor = _tensor(zoo, symmetry)
    last = zoo.last_steps()
    good = last.take(sound(last.metadata))
    losses = good.metadata["train_loss"].cast(pa.float64()).to_numpy()
    high = losses > loss
    shown = good.take(~high)
    if not len(shown):
        raise ZooError(
            f"{zoo.name}: networks: expected at least one that is finite, did not diverge and has a training loss of "
            f"at most {loss:g}, got none of {len(last)}. Select others, or pass a larger loss."
        )
    raw, scaled = (np.concatenate(parts) for parts in zip(*_pairs(shown, symmetry, tensor, progress), strict=True))
    scaled /= norm
    panels = [(TRAINED, raw), (SCALED, scaled), (ORDERED, np.sort(scaled, axis=1))]
    first, second, third = (ToyPanel(name, points, density(points)) for name, points in panels)
    return Toy(
        name=zoo.name,
        architecture=zoo.arch.name,
        tensor=tensor,
        norm=float(norm),
        loss=float(loss),
        members=len(shown),
        dropped=int(high.sum()),
        left_out=len(last) - len(good),
        unmeasured=int(np.isnan(losses).sum()),
        panels=(first, second, third),
    )


def _pairs(
    zoo: Zoo, symmetry: Symmetry, tensor: str, progress: Progress | None
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """(K, 2) last-layer weights as trained, and with unit incoming norms, some networks at a time."""
    names = list(dict.fromkeys(action.tensor for action in symmetry.actions))
    each = sum(zoo.arch[name].nbytes for name in names)
    done = 0
    for batch in zoo.stream(*names, batch_size=max(1, BATCH_BYTES // each)):
        weights = {name: np.asarray(batch[name], np.float64) for name in names}
        made = canonicalize(weights, symmetry, gauge="unit-norm")
        yield weights[tensor].reshape(-1, 2), np.asarray(made.weights[tensor]).reshape(-1, 2)
        done += len(weights[tensor])
        if progress is not None:
            progress(done * each, len(zoo) * each)


def _tensor(zoo: Zoo, symmetry: Symmetry) -> str:
    """The tensor of the last layer, whose two weights read two exchangeable neurons with scales."""
    action = last_layer(symmetry)
    got = "none that the table knows"
    if action is not None:
        group = symmetry[action.segments[0].group]
        got = f"{action.tensor} of shape {zoo.arch[action.tensor].shape}"
        fits = zoo.arch[action.tensor].size == 2 and group.n == 2 and action.axis == 1
        if fits and group.scale == "positive" and isinstance(group.perm, Sym):
            return action.tensor
        if fits:
            kind = type(group.perm).__name__.lower()
            got += f" that reads neurons with scales {group.scale!r} and permutations {kind!r}"
    raise SymmetryError(
        f"{zoo.name}: last layer: expected one output that reads two exchangeable neurons of positive scales, "
        f"got {got}. Study a zoo such as the recipe toy's, of mlp-2-2-1."
    )


def _shares(shares: list[float]) -> str:
    return " ".join([*(f"{100 * share:.0f}" for share in shares[:MOST]), *["..."] * (len(shares) > MOST)])
