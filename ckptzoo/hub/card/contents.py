"""Sections of a page about a zoo's content: overview, variants, predictions, tensors, accuracies, histograms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from ckptzoo.format.digests import reference_summary
from ckptzoo.format.table import array_of, filled_with, numbers
from ckptzoo.format.tree import Tree, places_of
from ckptzoo.hub.card.markdown import code, fenced, folded, listed, table
from ckptzoo.loader.flags import flags, usable_rows
from ckptzoo.loader.selection import draws_by_method
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.card import Card
from ckptzoo.schema.documents import Document
from ckptzoo.schema.equivalence import checked_difference
from ckptzoo.schema.metadata import DIFFERENCES
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.text import counted, size

MAX_TENSORS = 24
"""Architectures with more tensors show a line for each block, and every tensor behind a fold."""
MAX_FOLDED = 400
"""The largest number of tensors behind the fold."""
MAX_VARIANTS = 32
MAX_METHODS = 32
MAX_FIGURE = 1e9
"""Values beyond this are not shown; a loss of such a size says only that something went wrong."""
MAX_BINS, MIN_BINS = 20, 5
BAR_WIDTH = 32
"""Characters of the longest bar of a histogram."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
"""0 to 7 eighths of a character (Unicode block elements, U+258F to U+2589)."""
_STEPS = (1, 2, 5)
"""The widths of bins, times a power of ten."""


def overview(zoo: Zoo, card: Card) -> str:
    """Return the table at the top."""
    rows, arch = zoo.metadata, zoo.arch
    members, steps = len(rows["member"].unique()), rows["step"].drop_null().unique().to_pylist()
    checkpoints = f"**{len(zoo):,}** of {counted(members, 'member')}"
    if len(steps) > 1:
        what = "epoch" if steps_are_epochs(rows) else "step"
        checkpoints += f", at {counted(len(steps), what)} from {format_range(min(steps), max(steps))}"
    shape = f", inputs {_shape(arch.input_shape)}" if arch.input_shape else ""
    dtypes = ", ".join(dict.fromkeys(tensor.dtype for tensor in arch.tensors if tensor.kind == "parameter"))
    facts = [("architecture", f"{code(arch.name)}: {arch.parameters:,} parameters in {dtypes or 'none'}{shape}")]
    if datasets := list(counts(rows["dataset"])) or [card.dataset] * bool(card.dataset):
        facts.append(("trained on", listed(datasets, limit=6)))
    if quality := mean_of(zoo):
        facts.append(quality)
    if note := _exceptions(zoo):
        facts.append(("note", note))
    trees = {name: StoredBytes.of(zoo.contents.derived(name)) for name in zoo.gauges}
    outputs = {name: StoredBytes.of(zoo.contents.derived(layout.predictions_name(name))) for name in zoo.predicted}
    sizes = [("raw", StoredBytes.of(zoo.contents.raw)), *trees.items(), *outputs.items()]
    total = sum(stored.weights + stored.elements for _, stored in sizes)
    without_raw = len(ids_without_raw_weights(zoo))
    as_trained = f", {size(sizes[0][1].weights)} as trained" if len(sizes) > 1 and not without_raw else ""
    size_facts = [size(total) + as_trained]
    size_facts += [f"{size(arch.nbytes)} a checkpoint"] if without_raw < len(zoo) or not len(zoo) else []
    size_facts += [_not_held(zoo)] if without_raw else []
    if (summary := reference_summary(zoo.contents)) is not None:
        size_facts = [f"{size(summary.nbytes)} as trained, in {counted(summary.files, 'file')} that the zoo refers to"]
        size_facts += [f"{size(total)} that were derived"] if total else []
    if trees:
        facts.append(("variants", listed(list(trees), limit=6)))
    if outputs:
        facts.append(("predictions", listed(list(outputs), limit=6)))
    if zoo.splits:
        facts.append(("splits", listed(list(zoo.splits), limit=6)))
    facts.append(("size", "; ".join(size_facts)))
    facts.append(("revision", f"{code(zoo.revision[:19])} in {counted(len(zoo.contents.raw.parts), 'part')}"))
    return table(("checkpoints", checkpoints), facts)


def origin(zoo: Zoo) -> str:
    """Return a sentence that says which zoo this one is a part of, as its parts say; empty where it is none."""
    parts = zoo.contents.raw.parts
    sources = [part.facts.get("pulled") for part in parts]
    names = [str(item["zoo"]) for item in sources if isinstance(item, dict) and isinstance(item.get("zoo"), str)]
    if not names:
        return ""
    first = "This is" if len(names) == len(parts) else f"{len(names):,} of the {len(parts):,} parts of this zoo are"
    return f"{first} a part of another zoo, {listed(list(dict.fromkeys(names)), limit=3)}."


def ids_without_raw_weights(zoo: Zoo) -> frozenset[str]:
    """Return ids of the checkpoints whose raw weights the zoo does not hold, because it was pulled without them."""
    raw = zoo.contents.raw
    ids, start, without = raw.rows["id"], 0, set[str]()
    for part in raw.parts:
        if part.facts.get("bare") is True:
            without.update(ids.slice(start, part.rows).to_pylist())
        start += part.rows
    return frozenset(without.intersection(zoo.ids)) if without else frozenset()


def _not_held(zoo: Zoo) -> str:
    """Say that raw weights are not held, and for how many checkpoints."""
    without_raw = len(ids_without_raw_weights(zoo))
    of = "" if without_raw == len(zoo) else f" of {counted(without_raw, 'checkpoint')}"
    return f"raw weights{of} are not held"


def _exceptions(zoo: Zoo) -> str:
    """Count the checkpoints that diverged, are not finite, perhaps not finite, or are retracted."""
    rows = zoo.metadata
    numbers = (
        (int(flags(rows, "diverged").sum()), "diverged"),
        (int((~flags(rows, "finite", missing=True)).sum()), "not finite"),
        (rows["finite"].null_count, "whose weights were not read yet, so that it is not known whether they are finite"),
        (len(zoo.retracted["id"].unique()), "retracted and left out when the zoo is opened"),
    )
    return ", ".join(f"{number:,} {what}" for number, what in numbers if number)


@dataclass(frozen=True)
class StoredBytes:
    """The bytes of a tree: its weights and its group elements."""

    weights: int
    elements: int

    @classmethod
    def of(cls, tree: Tree) -> "StoredBytes":
        """From the index; no shard is read."""
        index = tree.blocks.select(["file", "tensor", "nbytes"])
        whole = index.filter(index["tensor"].is_null())
        nbytes = numbers(whole["nbytes"])
        element = np.array([name.startswith(f"{layout.ELEMENT}-") for name in whole["file"].to_pylist()], dtype=bool)
        return cls(int(nbytes[~element].sum()), int(nbytes[element].sum()))


def variants(zoo: Zoo) -> str:
    """Return the table of the variants, and what its columns mean."""
    header = ("variant", "rule", "version", "checkpoints", "in the gauge", "unresolved", "size", "certificate")
    lines = [_variant(zoo, name) for name in zoo.gauges[:MAX_VARIANTS]]
    more = len(zoo.gauges) - len(lines)
    text = table(header, lines, right=range(2, 8))
    raw = (
        f"{_not_held(zoo).capitalize()} here; `raw` are those as trained."
        if ids_without_raw_weights(zoo)
        else "`raw` are the weights as trained."
    )
    note = (
        f"{raw} *Unresolved*: channels with equal keys that a bounded search could not tell "
        "apart. *Certificate*: the largest difference of the outputs from those of `raw`, over their norm."
    )
    return "\n\n".join([note, text, *([f"And {more:,} more."] if more else [])])


def _variant(zoo: Zoo, name: str) -> Sequence[str]:
    tree = zoo.contents.derived(name)
    rows = zoo.contents.columns(tree, ("gauged", "unresolved", *DIFFERENCES))
    rows = rows.take(array_of(np.flatnonzero(places_of(tree.rows["id"], zoo.column("id")) >= 0)))
    versions = sorted({str(part.facts.get("version")) for part in tree.parts})
    stored = StoredBytes.of(tree)
    nbytes = size(stored.weights + stored.elements)
    nbytes += "" if stored.weights else ", computed when read"
    return (
        code(name),
        _rule(name, versions, tree.parts[0].facts, zoo.symmetry),
        ", ".join(item if item.isdecimal() else code(item) for item in versions),
        f"{len(rows):,}",
        f"{int(flags(rows, 'gauged').sum()):,}",
        f"{int(flags(rows, 'unresolved').sum()):,}",
        nbytes,
        _largest_difference(rows),
    )


def _rule(name: str, versions: Sequence[str], facts: Document, symmetry: Symmetry | None) -> str:
    """Return the gauge's rule, where ckptzoo has this version of it; for an aligned variant the reference."""
    if name.startswith(layout.ALIGNED):
        how = "by activations " if facts.get("method") == "activations" else ""
        moved = "permuted and rescaled" if facts.get("fitted") else "permuted"
        return f"{moved} {how}to be closest to {code(str(facts.get('source')))}"
    from ckptzoo.symmetry.gauges import GAUGES, gauge_of  # a page without variants needs no gauges

    gauge = GAUGES.get(name)
    if gauge is not None and symmetry is not None:
        gauge = gauge_of(gauge.name, symmetry)
    return gauge.rule if gauge is not None and versions == [str(gauge.version)] else ""


def _largest_difference(rows: pa.Table) -> str:
    """The largest difference, with the number of checkpoints that were checked where that is not all."""
    values = np.concatenate([numbers(rows[name].drop_null()) for name in DIFFERENCES]).astype(np.float64)
    checked = int(np.logical_or.reduce([filled_with(rows[name].is_valid(), False) for name in DIFFERENCES]).sum())
    return checked_difference(float(values.max()), checked, len(rows)) if len(values) else "none"


def predictions(zoo: Zoo) -> str:
    """Return the table of the stored outputs, a line for each set of inputs."""
    lines: list[Sequence[str]] = []
    for name in zoo.predicted:
        tree = zoo.contents.derived(layout.predictions_name(name))
        facts = tree.parts[0].facts
        labels = "no" if facts["targets"] is None else "yes"
        numbers = (len(tree.rows), facts["examples"], facts["classes"])
        lines.append((code(name), *(f"{number:,}" for number in numbers), labels, size(StoredBytes.of(tree).weights)))
    header = ("set", "checkpoints", "examples", "outputs", "labels", "size")
    note = f'Outputs in float16, before any softmax: `zoo.predictions("{zoo.predicted[0]}").logits`.'
    return f"{note}\n\n{table(header, lines, right=range(1, 6))}"


def draws(rows: pa.Table) -> str:
    """Return the table of the draws from approximate posteriors, a line for each method; empty where there are none."""
    methods = draws_by_method(rows)
    if not methods:
        return ""
    lines = [
        (code(item.method), f"{item.modes:,}" if item.modes else "not stated", f"{item.draws:,}")
        for item in methods[:MAX_METHODS]
    ]
    condition = f"method == {methods[0].method!r} and draw < 10"
    note = f"Draws from approximate posteriors: {code(f'zoo.where({condition!r})')} gives the first of each mode."
    independent = len(rows) - sum(item.draws for item in methods)
    note += f" {counted(independent, 'checkpoint')} of independent runs besides." if independent else ""
    more = [f"And {len(methods) - MAX_METHODS:,} more."] if len(methods) > MAX_METHODS else []
    return "\n\n".join([note, table(("method", "modes", "draws"), lines, right=(1, 2)), *more])


def tensors(arch: Architecture) -> str:
    """Return every tensor of a checkpoint; large architectures by block, with the tensors behind a fold."""
    lines = [_tensor(item) for item in arch.tensors[:MAX_FOLDED]]
    has_notes = any(line[-1] for line in lines)
    header = ("tensor", "shape", "dtype", "note")
    listing = table(header, lines) if has_notes else table(header[:3], [line[:3] for line in lines])
    if len(arch.tensors) <= MAX_TENSORS:
        return listing
    blocks = [(name, list(members)) for name, members in groupby(arch.tensors, _block)]
    if len(blocks) > MAX_TENSORS:
        further = [tensor for _, members in blocks[MAX_TENSORS - 1 :] for tensor in members]
        blocks = [*blocks[: MAX_TENSORS - 1], ("further", further)]
    lines = [
        (code(name), f"{len(members):,}", f"{_parameters(members):,}", size(sum(item.nbytes for item in members)))
        for name, members in blocks
    ]
    text = table(("block", "tensors", "parameters", "bytes"), lines, right=(1, 2, 3))
    shown = f"All {len(arch.tensors):,} tensors"
    if len(arch.tensors) > MAX_FOLDED:
        shown = f"The first {MAX_FOLDED} of {len(arch.tensors):,} tensors"
    return f"{text}\n\n{folded(shown, listing)}"


def _tensor(tensor: Tensor) -> Sequence[str]:
    notes = [tensor.kind] if tensor.kind != "parameter" else []
    notes += [f"also {listed(tensor.aliases, limit=4)}"] if tensor.aliases else []
    return code(tensor.name), _shape(tensor.shape), tensor.dtype, ", ".join(notes)


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) if shape else "scalar"


def _block(tensor: Tensor) -> str:
    return tensor.name.partition(".")[0]


def _parameters(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.size for tensor in tensors if tensor.kind == "parameter")


def accuracy(zoo: Zoo) -> str:
    """Draw spread and histogram of each member's last step; empty where nothing is known."""
    rows = zoo.last_steps().metadata
    quality = quality_of(rows)
    if quality is None:
        return ""
    good = usable_rows(rows)
    measured, claimed = (_figures(rows, name) for name in (quality.measured, quality.claimed))
    names = zoo.contents.stated(quality.measured)
    stated = np.array([name in names for name in rows["id"].to_pylist()], bool)
    known = np.concatenate([values[good & ~np.isnan(values)] for values in (measured, claimed)])
    scale, text = RoundBins.of(known * quality.times) if len(known) else None, list[str]()
    for column, chosen, source in (
        (measured, ~stated, "Measured"),
        (measured, stated, "Stated by contributors, not measured again"),
        (claimed, np.isnan(measured), "Claimed by contributors, not measured"),
        (claimed, ~np.isnan(measured), "Claimed by contributors, and measured or stated above"),
    ):
        values = column[good & chosen & ~np.isnan(column)]
        if len(values):
            text += [
                f"**{source}** for {_spread(values, quality)}",
                fenced(histogram(values * quality.times, scale, unit=quality.unit)),
            ]
    both = good & ~np.isnan(measured) & ~np.isnan(claimed)
    if both.any():
        gap = measured[both] - claimed[both]
        ends = " to ".join(f"{value:+.4f}" for value in (float(gap.min()), float(gap.max())))
        text.append(
            f"Measured{' or stated' if stated[both].any() else ''} less claimed, where both are known "
            f"({int(both.sum()):,}): {ends}."
        )
    notes = [f"Each member's last step ({counted(len(rows), 'checkpoint')})."] if len(rows) < len(zoo) else []
    if not good.all():
        notes.append(f"{int((~good).sum()):,} that diverged or are not finite are left out.")
    unknown = int((good & np.isnan(measured) & np.isnan(claimed)).sum())
    if unknown:
        notes.append(f"Of {unknown:,} nothing is known.")
    return "\n\n".join([*text, *([" ".join(notes)] if notes else [])])


@dataclass(frozen=True)
class QualityColumns:
    """Two columns for the same quality, one measured and one claimed; the page shows values multiplied by ``times``,
    with ``unit`` behind them.
    """

    measured: str
    claimed: str
    name: str
    times: int = 1
    unit: str = ""

    def value(self, number: float) -> str:
        return f"{self.times * number:.2f}{self.unit}" if self.unit else format_number(float(number))


QUALITIES = (
    QualityColumns("test_accuracy", "claimed_test_accuracy", "test accuracy", 100, " %"),
    QualityColumns("test_loss", "claimed_test_loss", "test loss"),
)
"""Qualities with a histogram on the page, which shows the first that is known of any checkpoint."""


def quality_of(rows: pa.Table) -> QualityColumns | None:
    """Return the first of ``QUALITIES`` that is known of any of these checkpoints."""
    for quality in QUALITIES:
        if any(rows[name].null_count < len(rows) for name in (quality.measured, quality.claimed)):
            return quality
    return None


def mean_of(zoo: Zoo) -> tuple[str, str] | None:
    """Return name and mean of what was measured at each member's last step, for the top of the page."""
    rows = zoo.last_steps().metadata
    quality = quality_of(rows)
    if quality is None:
        return None
    values = _figures(rows, quality.measured)[usable_rows(rows)]
    values = values[~np.isnan(values)]
    return (quality.name, f"{quality.value(mean_sd(values)[0])} on average") if len(values) else None


def _figures(rows: pa.Table, name: str) -> NDArray[np.float64]:
    """Return a column (N,), NaN where nothing is known or the value is beyond ``MAX_FIGURE``."""
    values = filled_with(rows[name], float("nan")).astype(np.float64)
    return np.where(np.abs(values) <= MAX_FIGURE, values, np.nan)


def _spread(values: NDArray[np.float64], quality: QualityColumns) -> str:
    mean, sd = mean_sd(values)
    number = counted(len(values), "checkpoint")
    if len(values) == 1:
        return f"{number}: {quality.value(mean)}."
    ends = f"{quality.value(float(values.min()))} to {quality.value(float(values.max()))}"
    return f"{number}: {quality.name} {quality.value(mean)} on average, standard deviation {quality.value(sd)}, {ends}."


@dataclass(frozen=True)
class RoundBins:
    """Equal bins whose edges are multiples of a round step: the width is ``step * 10**power``, and the first bin starts
    at ``first`` steps.
    """

    step: int
    power: int
    first: int
    count: int

    def edge(self, number: int) -> float:
        """Return the lower edge of a bin, correctly rounded."""
        return _scaled((self.first + number) * self.step, self.power)

    @property
    def digits(self) -> int:
        """The number of decimals that show every edge in full."""
        return max(0, -self.power)

    @classmethod
    def of(cls, values: ArrayLike) -> "RoundBins":
        """Choose bins for values: the more values, the finer; a few outliers are not covered."""
        ordered = np.sort(np.asarray(values, np.float64))
        # About 2.5 n^(1/3) bins; Rice's rule, 2 n^(1/3), has the same growth.
        bins = next((bins for bins in range(MIN_BINS, MAX_BINS) if bins**3 > 16 * len(ordered)), MAX_BINS)
        return cls.over(*_middle(ordered), bins)

    @classmethod
    def over(cls, low: float, high: float, bins: int) -> "RoundBins":
        """Return the finest scale that covers a range with at most ``bins`` bins, two or more."""
        # A range of one value gets a width that float64 can resolve there.
        span = max(high - low, 1e-9 * max(abs(low), abs(high)), 1e-12)
        power = math.floor(math.log10(span / bins)) - 1
        while True:
            for step in _STEPS:
                unit = _scaled(step, power)
                first, last = math.floor(low / unit), math.ceil(high / unit)
                # The division rounds, so an edge may be on the wrong side of the range by one step.
                first -= _scaled(first * step, power) > low
                last += _scaled(last * step, power) < high
                count = max(last - first, 1)
                if count <= bins:
                    return cls(step, power, first, count)
            power += 1


def histogram(values: ArrayLike, scale: RoundBins | None = None, *, unit: str = "") -> str:
    """Draw lines of ``from - to  count  bar``, one for each bin of (N,) finite values, at least one.

    ``scale`` are by default the bins of these values; ``unit`` is written behind the edges. Where a few values are far
    from the others, the bins are those of the middle 98 %; two lines more say how many are beyond the bins. The text
    does not depend on the order of the values.

    >>> print(histogram([81, 82, 83, 84, 91]))
    80 - 85  4  ████████████████████████████████
    85 - 90  0
    90 - 95  1  ████████
    """
    ordered = np.sort(np.asarray(values, np.float64))
    scale = scale or RoundBins.of(ordered)
    edges = np.array([scale.edge(number) for number in range(scale.count + 1)])
    low, high = int(np.searchsorted(ordered, edges[0])), int(np.searchsorted(ordered, edges[-1], side="right"))
    inside = ordered[low:high]
    # A value on an edge belongs to the bin above it, but for the last edge, which belongs to the last bin.
    numbers = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, scale.count - 1)
    bins = np.bincount(numbers, minlength=scale.count).tolist()
    texts = [f"{edge:.{scale.digits}f}" for edge in edges.tolist()]
    width = max(map(len, texts))
    rows = [(f"{a:>{width}} - {b:>{width}}{unit}", n) for a, b, n in zip(texts, texts[1:], bins, strict=False)]
    if low:
        rows.insert(0, (f"{'below':>{width}}   {texts[0]:>{width}}{unit}", low))
    if high < len(ordered):
        rows.append((f"{'above':>{width}}   {texts[-1]:>{width}}{unit}", len(ordered) - high))
    label_width, largest = max(len(text) for text, _ in rows), max(number for _, number in rows)
    digits = max(len(f"{number:,}") for _, number in rows)
    return "\n".join(
        f"{text:>{label_width}}  {number:>{digits},}  {_bar(number, largest)}".rstrip() for text, number in rows
    )


def _middle(ordered: NDArray[np.float64]) -> tuple[float, float]:
    """Return the range of the bins: everything, or the middle 98 % where that is less than a quarter of it."""
    cut = len(ordered) // 100
    ends, middle = ordered[[0, -1]].tolist(), ordered[[cut, len(ordered) - 1 - cut]].tolist()
    has_outliers = 0 < 4 * (middle[1] - middle[0]) < ends[1] - ends[0]
    return tuple(middle if has_outliers else ends)


def _bar(number: int, largest: int) -> str:
    """Return a bar of eighths of a character; one eighth at least, unless the number is 0."""
    eighths = max(number > 0, round(number * BAR_WIDTH * 8 / largest))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _scaled(number: int, power: int) -> float:
    """Return ``number * 10**power``, correctly rounded: one operation on two integers."""
    return float(number * 10**power) if power >= 0 else number / 10**-power


def format_number(value: float) -> str:
    """Return a float in four digits, an integer in full."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def format_range(low: float, high: float) -> str:
    """Return a range, or the one value that it is.

    >>> format_range(1, 2048), format_range(0.5, 0.5)
    ('1 to 2,048', '0.5')
    """
    return format_number(low) if low == high else f"{format_number(low)} to {format_number(high)}"


def counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Count each text in a column, the most frequent first; nulls are left out."""
    # Arrow counts in the order in which texts come, which is that of the rows
    numbers = {str(item["values"].as_py()): item["counts"].as_py() for item in column.drop_null().value_counts()}
    return dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0])))


def steps_are_epochs(rows: pa.Table) -> bool:
    """Whether steps are the numbers of epochs, as of files that are called by them: every step is its row's epoch."""
    steps, epochs = (filled_with(rows[name], -1).astype(np.float64) for name in ("step", "epoch"))
    return bool((steps == epochs).all() and (steps > 0).any())


def mean_sd(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard deviation (divisor n - 1) from exact sums, independent of the order of the values."""
    mean = math.fsum(values.tolist()) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values.tolist())
    return mean, math.sqrt(squares / max(1, len(values) - 1))
