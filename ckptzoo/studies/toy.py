"""What is left of the posterior of two last-layer weights once scales and permutations are removed?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import checked
from ckptzoo.console import facts
from ckptzoo.errors import Problem, SymmetryError, ZooError
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.groups import Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.studies.density_peaks import FEW, SIGMAS, Density, density
from ckptzoo.studies.shared.result import StudyResult
from ckptzoo.studies.shared.selection import BATCH_BYTES, own_table
from ckptzoo.symmetry import canonicalize
from ckptzoo.symmetry.tables import last_layer
from ckptzoo.text import Progress, counted

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LOSS = 0.1
"""Nats. Networks that separate the classes are far below it; one that separates nothing stays near ln 2 = 0.69."""
MAX_SHARES = 6
"""The number of highest shares that are printed."""
TRAINED, SCALED, ORDERED = "as trained", "scales removed", "ordered as well"


@dataclass(frozen=True, eq=False)
class ToyPanel:
    """The (M, 2) last-layer weights of all networks, without the symmetries that ``name`` says are removed."""

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
            "modes": None if self.density.heights is None else [peak.to_json() for peak in self.density.peaks],
        }


@dataclass(frozen=True, eq=False)
class Toy(StudyResult):
    """Two last-layer weights of many small networks, as trained and with symmetries removed step by step.

    Drawn as ``toy.png``. ``norm`` is the value to which the norms of the incoming weights are set; ``dropped`` counts
    the networks whose training loss is above ``loss``, ``left_out`` checkpoints that diverged or are not finite, and
    ``unmeasured`` the shown networks whose training loss is not known. The panels are: as trained, with incoming norms
    set to ``norm``, and with the smaller weight first.
    """

    file: ClassVar[str] = "toy.json"

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

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(self._facts())
        yield ""
        yield self._table()
        yield ""
        yield "first, second: 90% of the weights."
        yield "above: networks whose second weight is the larger one; 50% where exchanging neurons changes nothing."
        yield f"modes: maxima of the estimated density, {SIGMAS} standard errors above the pass to a higher one."
        if any(panel.density.heights is None for panel in self.panels):
            yield f"An estimate takes {FEW} networks that are not all alike."

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("two weights", no_wrap=True)
        for name in ("first", "second", "above", "modes"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("shares (%)", overflow="fold")
        for panel in self.panels:
            peaks, known = panel.density.peaks, panel.density.heights is not None
            weights = [f"{low:.2g} to {high:.2g}" for low, high in panel.quantiles[[0, -1]].T]
            modes = (f"{len(peaks):,}", _shares([peak.share for peak in peaks])) if known else ("-", "-")
            table.add_row(panel.name, *weights, f"{panel.above:.1%}", *modes)
        return table

    def _facts(self) -> list[tuple[str, str]]:
        total = self.members + self.dropped
        rows = [
            ("zoo", f"{self.name}: {counted(self.members, 'network')} of {self.architecture}"),
            ("weights", f"the two of {self.tensor}; incoming norms set to {self.norm:g}"),
            (
                "dropped",
                f"{self.dropped:,} of {total:,} ({self.dropped / total:.2%}): training loss above {self.loss:g}",
            ),
        ]
        if self.unmeasured:
            rows.append(("not measured", f"the training loss of {counted(self.unmeasured, 'network')} that are shown"))
        if self.left_out:
            rows.append(("left out", f"{counted(self.left_out, 'checkpoint')}, diverged or not finite"))
        return rows


@checked
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
    zoo
        what ``ckptzoo.open`` gives, or a selection of it, whose last layer reads two exchangeable neurons of positive
        scales and writes one output, such as ``mlp-2-2-1``. Each member's last step counts. Hidden neurons further from
        the output are brought to unit norm.
    norm
        of the incoming weights of the two neurons.
    loss
        networks with a training loss (``train_loss``) above it are dropped; those without a measured one stay.
    progress
        called with the bytes read and the bytes in all.

    Raises
    ------
    SymmetryError
        The zoo has no symmetry table, or its last layer is another one.
    ZooError
        No network is left, or ``norm`` is not positive.

    Notes
    -----
    One pass over the raw weights, in batches of 16 MB. Tested in ``tests/studies/test_toy.py`` (known answers) and
    ``tests/laws/test_symmetry.py`` (networks keep their function in the gauge ``unit-norm``).

    Examples
    --------
    Of a zoo made by ``python -m builders build toy --members 64 --to zoos/toy``:

    >>> from ckptzoo.studies.toy import toy
    >>> found = toy(ckptzoo.open("zoos/toy"))
    >>> [panel.name for panel in found.panels]
    ['as trained', 'scales removed', 'ordered as well']
    >>> found.panels[-1].above
    1.0
    """
    if not 0 < norm < np.inf:
        raise ZooError(Problem(zoo.name, "norm", "a positive number", repr(norm), "Leave it out for 3."))
    symmetry = own_table(zoo)
    tensor = _tensor(zoo, symmetry)
    last = zoo.last_steps()
    usable = last.take(usable_networks(last))
    # to_numpy makes NaN of a null
    losses = usable.column("train_loss").cast(pa.float64()).to_numpy()
    high = losses > loss  # False for NaN: networks without a measured loss stay
    shown = usable.take(~high)
    if not len(shown):
        expected = f"at least one that is finite, did not diverge and has a training loss of at most {loss:g}"
        got, step = f"none of {len(last)}", "Select others, or pass a larger loss."
        raise ZooError(Problem(zoo.name, "networks", expected, got, step))
    raw, scaled = (np.concatenate(parts) for parts in zip(*_pairs(shown, symmetry, tensor, progress), strict=True))
    scaled /= norm  # the gauge has unit norms; incoming weights times norm take outgoing ones over it
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
        left_out=len(last) - len(usable),
        unmeasured=int(np.isnan(losses).sum()),
        panels=(first, second, third),
    )


def _pairs(
    zoo: Zoo, symmetry: Symmetry, tensor: str, progress: Progress | None
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """(K, 2) last-layer weights as trained, and with unit incoming norms, some networks at a time."""
    names = list(dict.fromkeys(action.tensor for action in symmetry.actions))
    row_bytes = sum(zoo.arch[name].nbytes for name in names)
    done = 0
    for batch in zoo.batches(*names, max_bytes=BATCH_BYTES):
        weights = {name: np.asarray(batch[name], np.float64) for name in names}
        scaled = canonicalize(weights, symmetry, gauge="unit-norm").weights
        yield weights[tensor].reshape(-1, 2), np.asarray(scaled[tensor]).reshape(-1, 2)
        done += len(weights[tensor])
        if progress is not None:
            progress(done * row_bytes, len(zoo) * row_bytes)


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
    expected = "one output that reads two exchangeable neurons of positive scales"
    step = "Study a zoo such as the recipe toy's, of mlp-2-2-1."
    raise SymmetryError(Problem(zoo.name, "last layer", expected, got, step))


def _shares(shares: list[float]) -> str:
    return " ".join([*(f"{100 * share:.0f}" for share in shares[:MAX_SHARES]), *["..."] * (len(shares) > MAX_SHARES)])
