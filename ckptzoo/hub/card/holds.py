"""What a zoo holds: counts and sizes, variants, tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from ckptzoo.format.tree import Tree, places_of
from ckptzoo.hub.card.accuracy import mean_of
from ckptzoo.hub.card.figures import between, counts, flags
from ckptzoo.hub.card.markdown import code, folded, listed, table
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec import layout
from ckptzoo.spec.architecture import Architecture, Tensor
from ckptzoo.spec.card import Card
from ckptzoo.words import counted, size

MAX_TENSORS = 24
"""Architectures with more tensors show a line for each block, and every tensor behind a fold."""
MAX_FOLDED = 400
MAX_VARIANTS = 32
_CERTIFICATES = ("certificate_random", "certificate_real")


@dataclass(frozen=True)
class Stored:
    """The bytes of a tree: its weights and its group elements."""

    weights: int
    elements: int

    @classmethod
    def of(cls, tree: Tree) -> "Stored":
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
    trees = {name: Stored.of(zoo.contents.derived(name)) for name in zoo.gauges}
    outputs = {name: Stored.of(zoo.contents.derived(layout.predictions_name(name))) for name in zoo.predicted}
    sizes = [("raw", Stored.of(zoo.contents.raw)), *trees.items(), *outputs.items()]
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
        lines.append((code(name), *(f"{number:,}" for number in numbers), labels, size(Stored.of(tree).weights)))
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
    stored = Stored.of(tree)
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
