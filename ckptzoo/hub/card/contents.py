"""What a zoo holds: counts and sizes, variants, tensors.

Numbers as a card shows them, and what a column of rows holds.

How good the checkpoints are, measured and claimed apart.

Histograms in plain text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from ckptzoo.format.tree import Tree, places_of
from ckptzoo.hub.card.markdown import code, fenced, folded, listed, table
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.card import Card
from ckptzoo.text import counted, size


def figure(value: float) -> str:
    """A float in four digits, an integer in full."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def between(least: float, most: float) -> str:
    """A range, or the one value that it is."""
    return figure(least) if least == most else f"{figure(least)} to {figure(most)}"


def counts(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each text stands in a column, the most frequent first; nulls are left out."""
    found = {str(item["values"].as_py()): item["counts"].as_py() for item in column.drop_null().value_counts()}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def flags(table: pa.Table, column: str, *, missing: bool = False) -> NDArray[np.bool_]:
    """(N,) a column of true and false."""
    return table[column].fill_null(missing).to_numpy().astype(np.bool_)


def sound(table: pa.Table) -> NDArray[np.bool_]:
    """(N,) the checkpoints that are finite and did not diverge, as far as is known."""
    return ~flags(table, "diverged") & flags(table, "finite", missing=True)


def mean_sd(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard deviation (divisor n - 1) from exact sums, in any order the same."""
    mean = math.fsum(values.tolist()) / len(values)
    rest = math.fsum((value - mean) ** 2 for value in values.tolist())
    return mean, math.sqrt(rest / max(1, len(values) - 1))


MOST_ROWS, LEAST_ROWS = 20, 5
WIDTH = 32
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Scale:
    """Equal bins whose edges are multiples of a round step, a number times 10 to a power.

    Parameters
    ----------
    step, power : the width of a bin is ``step * 10**power``.
    first, count : the first bin starts at ``first`` steps; so many follow one another.
    """

    step: int
    power: int
    first: int
    count: int

    def edge(self, number: int) -> float:
        """The lower edge of a bin, correctly rounded."""
        return _scaled((self.first + number) * self.step, self.power)

    @property
    def digits(self) -> int:
        """Decimals that show every edge in full."""
        return max(0, -self.power)

    @classmethod
    def of(cls, values: ArrayLike) -> "Scale":
        """Bins for figures: the more there are, the finer, and without a few that lie far out."""
        ordered = np.sort(np.asarray(values, np.float64))
        rows = next((rows for rows in range(LEAST_ROWS, MOST_ROWS) if rows**3 > 16 * len(ordered)), MOST_ROWS)
        return cls.over(*_middle(ordered), rows)

    @classmethod
    def over(cls, least: float, most: float, rows: int) -> "Scale":
        """The finest scale that covers a range with at most so many bins, two or more."""
        span = max(most - least, 1e-9 * max(abs(least), abs(most)), 1e-12)
        power = math.floor(math.log10(span / rows)) - 1
        while True:
            for step in _STEPS:
                unit = _scaled(step, power)
                first, last = math.floor(least / unit), math.ceil(most / unit)
                first -= _scaled(first * step, power) > least
                last += _scaled(last * step, power) < most
                count = max(last - first, 1)
                if count <= rows:
                    return cls(step, power, first, count)
            power += 1


def histogram(values: ArrayLike, scale: Scale | None = None, *, unit: str = "") -> str:
    """Lines of ``from - to  count  bar``, one for each bin.

    Parameters
    ----------
    values : (N,) finite figures, at least one.
    scale : the bins; by default those of these figures.
    unit : written behind the edges.

    Notes
    -----
    Where a few figures lie far from the others, the bins are those of the middle 98 %; two lines more say how many lie
    beyond the bins. The text depends on the set of values alone. ``tests/hub/card/test_histogram.py`` counts again.
    """
    found = np.sort(np.asarray(values, np.float64))
    scale = scale or Scale.of(found)
    edges = np.array([scale.edge(number) for number in range(scale.count + 1)])
    low, high = int(np.searchsorted(found, edges[0])), int(np.searchsorted(found, edges[-1], side="right"))
    inside = found[low:high]
    numbers = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, scale.count - 1)
    bins = np.bincount(numbers, minlength=scale.count).tolist()
    texts = [f"{edge:.{scale.digits}f}" for edge in edges.tolist()]
    wide = max(map(len, texts))
    rows = [(f"{a:>{wide}} - {b:>{wide}}{unit}", n) for a, b, n in zip(texts, texts[1:], bins, strict=False)]
    if low:
        rows.insert(0, (f"{'below':>{wide}}   {texts[0]:>{wide}}{unit}", low))
    if high < len(found):
        rows.append((f"{'above':>{wide}}   {texts[-1]:>{wide}}{unit}", len(found) - high))
    label, most = max(len(text) for text, _ in rows), max(number for _, number in rows)
    digits = max(len(f"{number:,}") for _, number in rows)
    return "\n".join(f"{text:>{label}}  {number:>{digits},}  {_bar(number, most)}".rstrip() for text, number in rows)


def _middle(ordered: NDArray[np.float64]) -> tuple[float, float]:
    """The range that the bins cover: everything, or the middle where a few lie far out."""
    cut = len(ordered) // 100
    ends, core = ordered[[0, -1]].tolist(), ordered[[cut, len(ordered) - 1 - cut]].tolist()
    far = 0 < 4 * (core[1] - core[0]) < ends[1] - ends[0]
    return tuple(core if far else ends)


def _bar(number: int, most: int) -> str:
    """A bar of eighths; what is not nothing is seen."""
    eighths = max(number > 0, round(number * WIDTH * 8 / most))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _scaled(number: int, power: int) -> float:
    return float(number * 10**power) if power >= 0 else number / 10**-power


MOST = 1e9
"""Figures beyond this are not shown; a loss of such a size says only that something went wrong."""


@dataclass(frozen=True)
class Quality:
    """Two columns that say the same thing, once measured and once claimed, and how to speak of it.

    Parameters
    ----------
    times, unit : figures are shown multiplied by this, with this behind them.
    """

    measured: str
    claimed: str
    name: str
    times: int = 1
    unit: str = ""

    def value(self, number: float) -> str:
        """One figure in words."""
        return f"{self.times * number:.2f}{self.unit}" if self.unit else figure(float(number))


QUALITIES = (
    Quality("test_accuracy", "claimed_test_accuracy", "test accuracy", 100, " %"),
    Quality("test_loss", "claimed_test_loss", "test loss"),
)
"""What a card shows a histogram of: the first that is known of any checkpoint."""


def quality_of(rows: pa.Table) -> Quality | None:
    """What is known of these checkpoints, the accuracy where it is."""
    for quality in QUALITIES:
        if any(rows[name].null_count < len(rows) for name in (quality.measured, quality.claimed)):
            return quality
    return None


def mean_of(zoo: Zoo) -> tuple[str, str] | None:
    """Name and mean of what was measured at each member's last step, for the top of the card."""
    rows = zoo.last_steps().metadata
    quality = quality_of(rows)
    if quality is None:
        return None
    found = _figures(rows, quality.measured)[sound(rows)]
    found = found[~np.isnan(found)]
    return (quality.name, f"{quality.value(mean_sd(found)[0])} on average") if len(found) else None


def accuracy(zoo: Zoo) -> str:
    """Spread and histogram of each member's last step; empty where nothing is known."""
    rows = zoo.last_steps().metadata
    quality = quality_of(rows)
    if quality is None:
        return ""
    good = sound(rows)
    measured, claimed = (_figures(rows, name) for name in (quality.measured, quality.claimed))
    known = np.concatenate([values[good & ~np.isnan(values)] for values in (measured, claimed)])
    scale, text = Scale.of(known * quality.times) if len(known) else None, list[str]()
    for values, source in ((measured, "Measured"), (claimed, "Claimed by contributors, not measured")):
        found = values[good & ~np.isnan(values)]
        if len(found):
            text += [
                f"**{source}** for {_spread(found, quality)}",
                fenced(histogram(found * quality.times, scale, unit=quality.unit)),
            ]
    both = good & ~np.isnan(measured) & ~np.isnan(claimed)
    if both.any():
        gap = measured[both] - claimed[both]
        ends = " to ".join(f"{value:+.4f}" for value in (float(gap.min()), float(gap.max())))
        text.append(f"Measured less claimed, where both are known ({int(both.sum()):,}): {ends}.")
    notes = [f"Each member's last step ({counted(len(rows), 'checkpoint')})."] if len(rows) < len(zoo) else []
    if not good.all():
        notes.append(f"{int((~good).sum()):,} that diverged or are not finite are left out.")
    unknown = int((good & np.isnan(measured) & np.isnan(claimed)).sum())
    if unknown:
        notes.append(f"Of {unknown:,} nothing is known.")
    return "\n\n".join([*text, *([" ".join(notes)] if notes else [])])


def _figures(rows: pa.Table, name: str) -> NDArray[np.float64]:
    """(N,) a column, NaN where nothing is known or no sense can be made of it."""
    found = rows[name].fill_null(float("nan")).to_numpy().astype(np.float64)
    return np.where(np.abs(found) <= MOST, found, np.nan)


def _spread(found: NDArray[np.float64], quality: Quality) -> str:
    mean, sd = mean_sd(found)
    number = counted(len(found), "checkpoint")
    if len(found) == 1:
        return f"{number}: {quality.value(mean)}."
    ends = f"{quality.value(float(found.min()))} to {quality.value(float(found.max()))}"
    return f"{number}: {quality.name} {quality.value(mean)} on average, standard deviation {quality.value(sd)}, {ends}."


MAX_TENSORS = 24
"""Architectures with more tensors show a line for each block, and every tensor behind a fold."""
MAX_FOLDED = 400
MAX_VARIANTS = 32
_CERTIFICATES = ("certificate_random", "certificate_real")


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
        nbytes = whole["nbytes"].to_numpy()
        element = np.array([name.startswith(f"{layout.ELEMENT}-") for name in whole["file"].to_pylist()], dtype=bool)
        return cls(int(nbytes[~element].sum()), int(nbytes[element].sum()))


def glance(zoo: Zoo, card: Card) -> str:
    """The table at the top."""
    rows, arch = zoo.metadata, zoo.arch
    members, steps = len(rows["member"].unique()), rows["step"].drop_null().unique().to_pylist()
    held = f"**{len(zoo):,}** of {counted(members, 'member')}"
    if len(steps) > 1:
        held += f", at {counted(len(steps), 'step')} from {between(min(steps), max(steps))}"
    shape = f", inputs {_shape(arch.input_shape)}" if arch.input_shape else ""
    dtypes = ", ".join(dict.fromkeys(tensor.dtype for tensor in arch.tensors if tensor.kind == "parameter"))
    facts = [("architecture", f"{code(arch.name)}: {arch.parameters:,} parameters in {dtypes or 'none'}{shape}")]
    if datasets := list(counts(rows["dataset"])) or [card.dataset] * bool(card.dataset):
        facts.append(("trained on", listed(datasets, most=6)))
    if quality := mean_of(zoo):
        facts.append(quality)
    if left := _left(zoo):
        facts.append(("note", left))
    trees = {name: StoredBytes.of(zoo.contents.derived(name)) for name in zoo.gauges}
    outputs = {name: StoredBytes.of(zoo.contents.derived(layout.predictions_name(name))) for name in zoo.predicted}
    sizes = [("raw", StoredBytes.of(zoo.contents.raw)), *trees.items(), *outputs.items()]
    total = sum(stored.weights + stored.elements for _, stored in sizes)
    lacking = len(bare(zoo))
    more = f", {size(sizes[0][1].weights)} as trained" if len(sizes) > 1 and not lacking else ""
    told = [size(total) + more]
    told += [f"{size(arch.nbytes)} a checkpoint"] if lacking < len(zoo) or not len(zoo) else []
    told += [_not_held(zoo)] if lacking else []
    if trees:
        facts.append(("variants", listed(list(trees), most=6)))
    if outputs:
        facts.append(("predictions", listed(list(outputs), most=6)))
    facts.append(("size", "; ".join(told)))
    facts.append(("revision", f"{code(zoo.revision[:19])} in {counted(len(zoo.contents.raw.parts), 'part')}"))
    return table(("checkpoints", held), facts)


def bare(zoo: Zoo) -> frozenset[str]:
    """Ids of the checkpoints whose raw weights the zoo does not hold, as of what was pulled without them."""
    raw = zoo.contents.raw
    ids, at, found = raw.rows["id"], 0, set[str]()
    for part in raw.parts:
        if part.facts.get("bare") is True:
            found.update(ids.slice(at, part.rows).to_pylist())
        at += part.rows
    return frozenset(found.intersection(zoo.ids)) if found else frozenset()


def origin(zoo: Zoo) -> str:
    """A sentence that says which zoo this one is a part of, as its parts say; empty for others."""
    parts = zoo.contents.raw.parts
    told = [part.facts.get("pulled") for part in parts]
    names = [str(item["zoo"]) for item in told if isinstance(item, dict) and isinstance(item.get("zoo"), str)]
    if not names:
        return ""
    first = "This is" if len(names) == len(parts) else f"{len(names):,} of the {len(parts):,} parts of this zoo are"
    return f"{first} a part of another zoo, {listed(list(dict.fromkeys(names)), most=3)}, taken by `ckptzoo pull`."


def variants(zoo: Zoo) -> str:
    """What was derived, a line for each variant."""
    header = ("variant", "rule", "version", "checkpoints", "in the gauge", "unresolved", "size", "certificate")
    lines = [_variant(zoo, name) for name in zoo.gauges[:MAX_VARIANTS]]
    more = len(zoo.gauges) - len(lines)
    text = table(header, lines, right=range(2, 8))
    held = (
        f"{_not_held(zoo).capitalize()} here; `raw` are those as trained."
        if bare(zoo)
        else "`raw` are the weights as trained."
    )
    note = (
        f"{held} *Unresolved*: channels with equal keys that a bounded search could not tell "
        "apart. *Certificate*: the largest difference of the outputs from those of `raw`, over their norm."
    )
    return "\n\n".join([note, text, *([f"And {more:,} more."] if more else [])])


def predictions(zoo: Zoo) -> str:
    """The outputs that are stored, a line for each set of inputs."""
    lines: list[Sequence[str]] = []
    for name in zoo.predicted:
        tree = zoo.contents.derived(layout.predictions_name(name))
        told = tree.parts[0].facts
        labels = "no" if told["targets"] is None else "yes"
        numbers = (len(tree.rows), told["examples"], told["classes"])
        lines.append((code(name), *(f"{number:,}" for number in numbers), labels, size(StoredBytes.of(tree).weights)))
    header = ("set", "checkpoints", "examples", "outputs", "labels", "size")
    note = f'Outputs in float16, before any softmax: `zoo.predictions("{zoo.predicted[0]}").logits`.'
    return f"{note}\n\n{table(header, lines, right=range(1, 6))}"


def tensors(arch: Architecture) -> str:
    """Every tensor of a checkpoint; large architectures by block, with the tensors behind a fold."""
    lines = [_tensor(item) for item in arch.tensors[:MAX_FOLDED]]
    noted = any(line[-1] for line in lines)
    header = ("tensor", "shape", "dtype", "note")
    listing = table(header, lines) if noted else table(header[:3], [line[:3] for line in lines])
    if len(arch.tensors) <= MAX_TENSORS:
        return listing
    blocks = [(name, list(found)) for name, found in groupby(arch.tensors, _block)]
    if len(blocks) > MAX_TENSORS:
        blocks = [*blocks[: MAX_TENSORS - 1], ("further", [t for _, found in blocks[MAX_TENSORS - 1 :] for t in found])]
    lines = [
        (code(name), f"{len(found):,}", f"{_parameters(found):,}", size(sum(item.nbytes for item in found)))
        for name, found in blocks
    ]
    text = table(("block", "tensors", "parameters", "bytes"), lines, right=(1, 2, 3))
    shown = f"All {len(arch.tensors):,} tensors"
    if len(arch.tensors) > MAX_FOLDED:
        shown = f"The first {MAX_FOLDED} of {len(arch.tensors):,} tensors"
    return f"{text}\n\n{folded(shown, listing)}"


def _not_held(zoo: Zoo) -> str:
    """That raw weights are not held, and of how many."""
    lacking = len(bare(zoo))
    of = "" if lacking == len(zoo) else f" of {counted(lacking, 'checkpoint')}"
    return f"raw weights{of} are not held"


def _left(zoo: Zoo) -> str:
    """Checkpoints that a user should know of."""
    rows = zoo.metadata
    numbers = (
        (int(flags(rows, "diverged").sum()), "diverged"),
        (int((~flags(rows, "finite", missing=True)).sum()), "not finite"),
        (len(zoo.retracted["id"].unique()), "retracted and left out when the zoo is opened"),
    )
    return ", ".join(f"{number:,} {what}" for number, what in numbers if number)


def _variant(zoo: Zoo, name: str) -> Sequence[str]:
    tree = zoo.contents.derived(name)
    rows = tree.rows.select(("gauged", "unresolved", *_CERTIFICATES))
    rows = rows.filter(pa.array(places_of(tree.rows["id"], zoo.metadata["id"]) >= 0))
    versions = sorted({str(part.facts.get("version")) for part in tree.parts})
    stored = StoredBytes.of(tree)
    nbytes = size(stored.weights + stored.elements)
    nbytes += "" if stored.weights else ", computed when read"
    return (
        code(name),
        _rule(name, versions),
        ", ".join(item if item.isdecimal() else code(item) for item in versions),
        f"{len(rows):,}",
        f"{int(flags(rows, 'gauged').sum()):,}",
        f"{int(flags(rows, 'unresolved').sum()):,}",
        nbytes,
        _certificate(rows),
    )


def _rule(name: str, versions: Sequence[str]) -> str:
    """The gauge's rule in words, where this is the version that is known here."""
    from ckptzoo.symmetry.gauges import GAUGES

    found = GAUGES.get(name)
    return found.rule if found is not None and versions == [str(found.version)] else ""


def _certificate(rows: pa.Table) -> str:
    values = np.concatenate([rows[name].drop_null().to_numpy() for name in _CERTIFICATES]).astype(np.float64)
    return f"{values.max():.1e}" if len(values) else "none"


def _tensor(tensor: Tensor) -> Sequence[str]:
    notes = [tensor.kind] if tensor.kind != "parameter" else []
    notes += [f"also {listed(tensor.aliases, most=4)}"] if tensor.aliases else []
    return code(tensor.name), _shape(tensor.shape), tensor.dtype, ", ".join(notes)


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) if shape else "scalar"


def _block(tensor: Tensor) -> str:
    return tensor.name.partition(".")[0]


def _parameters(found: Sequence[Tensor]) -> int:
    return sum(tensor.size for tensor in found if tensor.kind == "parameter")
