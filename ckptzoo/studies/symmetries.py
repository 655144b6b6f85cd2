"""How much of a zoo is symmetry? Counts, how well the gauge is defined, and how far raw checkpoints are from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo.arguments import checked
from ckptzoo.console import columns, facts
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.documents import Document, json_value
from ckptzoo.studies.gauge_distance import LayerDistance, OrderDistance, Scaling, gauge_distance
from ckptzoo.studies.shared.result import Spread, StudyResult, counts_json, permutations_text
from ckptzoo.studies.shared.selection import table_of
from ckptzoo.symmetry.counts import GROUP_COLUMNS, Counts, count
from ckptzoo.text import Progress, counted, printable


@dataclass(frozen=True)
class GaugeCounts:
    """The occurrences of something in the checkpoints in the gauge; None where it was not looked for. ``checkpoints``
    is the number of checkpoints that have it, ``total`` its occurrences in all of them.
    """

    checkpoints: int
    total: int


@dataclass(frozen=True, eq=False)
class Symmetries(StudyResult, named={"left_out": "left", "scalings": "scales"}):
    """The symmetries of a zoo's networks, and the effect of one gauge on them.

    Drawn as ``margins.png``, ``scales.png`` and ``transpositions.png``, without those for which there is nothing to
    show. ``gauged`` checkpoints are in the gauge, and all figures are theirs; ``left_out`` ones were left as they were,
    not finite or not representable in it. ``ties`` are pairs of neighbouring channels with equal keys; ``unresolved``
    counts checkpoints with ties, signs or scales that nothing determines; ``dead`` channels are those that nothing
    writes; ``clamped`` filters could not be brought to unit norm. ``margins`` are (M,) smallest gaps between
    neighbouring keys, of the checkpoints where channels were ordered; ``closest`` is the checkpoint with the smallest
    above 0, and that margin. ``moves``, ``scalings`` and ``distances`` say how far raw checkpoints are from the
    variant.
    """

    file: ClassVar[str] = "symmetries.json"

    name: str
    variant: str
    architecture: str
    parameters: int
    checkpoints: int
    counts: Counts
    gauged: int
    left_out: int
    ties: GaugeCounts
    unresolved: GaugeCounts | None
    dead: GaugeCounts
    clamped: GaugeCounts | None
    margins: NDArray[np.float64]
    closest: tuple[str, float] | None
    moves: tuple[OrderDistance, ...]
    scalings: tuple[Scaling, ...]
    distances: tuple[LayerDistance, ...]

    def to_json(self) -> Document:
        """Every figure by name, without the margins themselves."""
        closest = None if self.closest is None else dict(zip(("id", "margin"), self.closest, strict=True))
        margins = json_value(Spread.of(self.margins))
        return {**super().to_json(), "counts": counts_json(self.counts), "margins": margins, "closest": closest}

    def _lines(self) -> Iterator[RenderableType]:
        yield facts(self._facts())
        tables = {
            "Symmetries by group of channels": self._groups(),
            "From the raw order to the gauge's: mean ± standard deviation over checkpoints (random orders; tau 0)": (
                self._moves()
            ),
            "Scales from raw to the gauge: quantiles over channels and checkpoints": self._scalings(),
            f"||{self.variant} - raw|| / ||raw||, over checkpoints": self._distances(),
        }
        for title, table in tables.items():
            if table.row_count:
                yield f"\n{title}"
                yield table

    def _facts(self) -> list[tuple[str, str]]:
        counts = self.counts
        scales = {"training mode": counts.scaling_train, "evaluation mode": counts.scaling_eval}
        if counts.scaling_without_eps not in scales.values():
            # the eps of a normalisation, added to the variance, breaks some of the scales
            scales["training mode with eps = 0"] = counts.scaling_without_eps
        alike = len(set(scales.values())) == 1
        freedom = [f"{self._share(number)}{'' if alike else f' in {mode}'}" for mode, number in scales.items()]
        rows = [
            ("zoo", f"{self.name}: {counted(self.checkpoints, 'checkpoint')} of {self.architecture}"),
            ("permutations", permutations_text(counts)),
            ("parameters", f"{self.parameters:,}"),
        ]
        if any(scales.values()):
            rows.append(("scales", freedom[0] if alike else ", ".join(freedom)))
        if counts.signs:
            rows.append(("signs", f"2^{counts.signs}"))
        if counts.softmax:
            # softmax stays the same where one number is added to all logits
            rows.append(("softmax shift", self._share(counts.softmax)))
        left_out = f"; {self.left_out:,} left as they were" if self.left_out else ""
        rows.append(("gauge", f"{self.variant}: {counted(self.gauged, 'checkpoint')} in it{left_out}"))
        rows.append(("ties", _count_text(self.ties, "pair")))
        if self.unresolved is not None and self.ties.checkpoints:
            rows.append(("unresolved ties", f"{counted(self.unresolved.checkpoints, 'checkpoint')}"))
        rows.append(("dead channels", _count_text(self.dead, "channel")))
        if self.clamped is not None:
            rows.append(("clamped filters", _count_text(self.clamped, "filter")))
        if len(self.margins):
            low, middle, high = np.quantile(self.margins, [0.05, 0.5, 0.95])
            rows.append(("margins", f"median {middle:.2g}, 90% within {low:.2g} to {high:.2g}, ties count as 0"))
        if self.closest is not None:
            rows.append(("smallest above 0", f"{self.closest[1]:.2g} in {self.closest[0]}"))
        return rows

    def _share(self, number: int) -> str:
        return f"{counted(number, 'dimension')} ({number / self.parameters:.2%})"

    def _groups(self) -> Table:
        table = columns(*GROUP_COLUMNS)
        for item in self.counts.groups:
            table.add_row(*map(printable, item.shown))
        return table

    def _moves(self) -> Table:
        table = columns("order", "n", "not in place", "transpositions", "tau")
        for item in self.moves:
            table.add_row(
                printable(item.label),
                f"{item.n:,}",
                f"{item.moved.mean:.1%} ({item.random_moved:.1%})",
                f"{item.transpositions.mean:.2f} ± {item.transpositions.sd:.2f} ({item.random_transpositions:.2f})",
                f"{item.tau.mean:+.3f} ± {item.tau.sd:.3f}",
            )
        return table

    def _scalings(self) -> Table:
        table = columns("group", "n", "median |ln|", "5%", "25%", "50%", "75%", "95%", "turned")
        for item in self.scalings:
            shares = ["-"] * 5 if item.quantiles is None else [f"{value:.3g}" for value in item.quantiles]
            size = "-" if item.size is None else f"{item.size:.3f}"
            turned = "-" if item.flipped is None else f"{item.flipped:.1%}"
            table.add_row(printable(item.group), f"{item.n:,}", size, *shares, turned)
        return table

    def _distances(self) -> Table:
        table = columns("layer", "mean", "sd", "least", "most")
        for item in self.distances:
            spread = item.relative
            values = (spread.mean, spread.sd, spread.least, spread.most) if spread is not None else ()
            table.add_row(printable(item.layer), *([f"{value:.3f}" for value in values] or ["-"] * 4))
        return table


@checked
def symmetries(zoo: Zoo, variant: str = "canonical", *, progress: Progress | None = None) -> Symmetries:
    """Study the symmetries of a zoo, or of a selection of one, by what a gauge did to it.

    Raw orders come from the initialisation, which draws all channels alike: the permutations to the gauge are as far
    from the identity as random ones, ``n - H_n`` transpositions and tau 0 on average, unless something put the
    channels in order.

    Parameters
    ----------
    zoo
        what ``ckptzoo.open`` gives, or a selection of it.
    variant
        a variant that was derived.
    progress
        called with the bytes read and the bytes in all.

    Raises
    ------
    SymmetryError
        The zoo has no symmetry table.
    ZooError
        There is no checkpoint, or the variant is missing or lacks some of them.

    Notes
    -----
    Reads the group elements once, and all weights raw and derived, in batches of a few copies of 16 MB; the margins
    and a few figures a checkpoint are held besides. Tested in ``tests/studies/test_symmetries.py``.

    Examples
    --------
    >>> from ckptzoo.studies.symmetries import symmetries
    >>> found = symmetries(ckptzoo.open("cards/mnist-optunet"))
    >>> found.counts.permutations, found.gauged
    (28800, 8192)
    >>> [(move.label, round(move.transpositions.mean, 2)) for move in found.moves]
    [('blocks of conv1 and conv2', 0.5), ('conv2 within its 2 blocks', 2.72)]
    """
    symmetry = table_of(zoo, variant)
    rows = zoo.variant_metadata(variant)
    inside = rows["gauged"].to_numpy()
    gauged, gauged_rows = zoo.take(inside), rows.filter(pa.array(inside))
    margins = gauged_rows["margin"].to_numpy().astype(np.float64)
    ordered = np.isfinite(margins)  # NaN where no channel was ordered
    # margins of 0 are ties, which are counted apart
    above = np.where(ordered & (margins > 0), margins, np.inf)
    closest = int(above.argmin()) if np.isfinite(above).any() else None
    moves, scalings, distances = gauge_distance(gauged, variant, symmetry, progress) if len(gauged) else ((), (), ())
    return Symmetries(
        name=zoo.name,
        variant=variant,
        architecture=zoo.arch.name,
        parameters=zoo.arch.parameters,
        checkpoints=len(zoo),
        counts=count(symmetry),
        gauged=len(gauged),
        left_out=len(zoo) - len(gauged),
        ties=_count(gauged_rows, "ties") or GaugeCounts(0, 0),
        unresolved=_count(gauged_rows, "unresolved"),
        dead=_count(gauged_rows, "dead") or GaugeCounts(0, 0),
        clamped=_count(gauged_rows, "clamped"),
        margins=margins[ordered],
        closest=None if closest is None else (gauged.ids[closest], float(margins[closest])),
        moves=moves,
        scalings=scalings,
        distances=distances,
    )


def _count(rows: pa.Table, column: str) -> GaugeCounts | None:
    """Count the rows with a nonzero number or flag in a column, and their sum; None where it is not measured."""
    if column not in rows.column_names or rows[column].null_count == len(rows):
        return None
    values = rows[column].drop_null().to_numpy().astype(np.int64)
    return GaugeCounts(int((values > 0).sum()), int(values.sum()))


def _count_text(counts: GaugeCounts, what: str) -> str:
    if not counts.total:
        return "none"
    return f"{counted(counts.total, what)} in {counted(counts.checkpoints, 'checkpoint')}"
