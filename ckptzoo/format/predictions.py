"""The required contents of parts of predictions: the outputs of checkpoints on one set of inputs, and the labels."""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem
from ckptzoo.format.files import Files
from ckptzoo.format.part import Part
from ckptzoo.format.tree import Tree
from ckptzoo.schema.documents import REFETCH, Document
from ckptzoo.schema.layout import INDEX, PREDICTIONS, SET_ASIDE, SET_NAME

LOGITS = "logits"
"""The tensor of a part: (K, examples, classes)."""
DTYPE = "float16"
"""The dtype of stored outputs."""
SHARED = ("set", "outputs", "examples", "classes", "inputs", "targets")
"""Facts in which all parts of a tree agree."""
_WIDTHS = (1, 2, 4)
"""Bytes of one encoded label."""

Kinds = Mapping[tuple[str, str], tuple[str, tuple[int, ...]]]
"""By stem and name the dtype and the shape of a tensor in one checkpoint."""


def encode_targets(targets: NDArray[np.integer]) -> str:
    """Labels as base64 of unsigned integers, little-endian, of the fewest bytes (1, 2 or 4) that hold them all."""
    width = next(width for width in _WIDTHS if int(targets.max(initial=0)) < 256**width)
    return base64.b64encode(targets.astype(f"<u{width}").tobytes()).decode()


def decode_targets(text: object, examples: int, classes: int) -> NDArray[np.int64]:
    """(N,) labels from their base64.

    Raises ``ValueError`` if it is not what ``encode_targets`` makes of this number of labels of this number of classes.
    """
    if not isinstance(text, str):
        raise ValueError(f"a {type(text).__name__}")
    try:
        data = base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("no base64") from error
    width = len(data) // examples
    if width not in _WIDTHS or len(data) != examples * width:
        raise ValueError(f"{len(data)} bytes")
    targets = np.frombuffer(data, f"<u{width}").astype(np.int64)
    if int(targets.max()) >= classes:
        raise ValueError(f"a label {int(targets.max())}")
    if encode_targets(targets) != text:  # one encoding for every list of labels, so that equal facts are equal text
        raise ValueError("more bytes than they need")
    return targets


def targets_of(facts: Document) -> NDArray[np.int64] | None:
    """(N,) the labels that a part's facts hold; None where they have none."""
    text = facts["targets"]
    return None if text is None else decode_targets(text, facts["examples"], facts["classes"])


def prediction_problems(location: str, part: Part, stems: Iterable[str], kinds: Kinds) -> Iterator[Problem]:
    """Yield the problems of one part of predictions: of its facts, and of the tensor that they promise.

    ``location`` is the part; ``stems`` and ``kinds`` are its shards' stems and contents.
    """
    facts = part.facts
    index = f"{location}/{INDEX}"
    name, outputs, digest = facts.get("set"), facts.get("outputs"), facts.get("inputs")
    examples, classes = facts.get("examples"), facts.get("classes")
    if not isinstance(name, str) or not SET_NAME.fullmatch(name):
        yield Problem(index, "set of inputs", "<data set>/<split>", repr(name)[:80], REFETCH)
    if outputs != LOGITS:
        yield Problem(index, "outputs", repr(LOGITS), repr(outputs)[:80], "Upgrade ckptzoo to read them.")
    if not isinstance(digest, str) or not isinstance(facts.get("raw"), str):
        yield Problem(index, "digests", "those of the inputs and of the raw part", repr(digest)[:80], REFETCH)
    if type(examples) is not int or type(classes) is not int or examples < 1 or classes < 1:
        got = repr((examples, classes))[:80]
        yield Problem(index, "examples and classes", "positive integers", got, REFETCH)
        return
    if (targets := facts.get("targets")) is not None:
        try:
            decode_targets(targets, examples, classes)
        except ValueError as error:
            expected = f"{examples} labels below {classes}, in base64, or null"
            yield Problem(index, "targets", expected, str(error), REFETCH)
    for stem in sorted(set(stems) - {PREDICTIONS}):
        yield Problem(index, "stem of its shards", repr(PREDICTIONS), repr(stem), REFETCH)
    expected = {(PREDICTIONS, LOGITS): (DTYPE, (examples, classes))} if part.rows else {}
    for key in sorted({*expected, *kinds}):
        if expected.get(key) != kinds.get(key):
            wanted, got = (
                "no such tensor" if side.get(key) is None else "{} {}".format(*side[key]) for side in (expected, kinds)
            )
            yield Problem(f"{location}/{key[0]}-*.safetensors", f"tensor {key[1]!r}", wanted, got, REFETCH)


def input_problems(files: Files, tree: Tree) -> Iterator[Problem]:
    """Parts of predictions that were not made on the same inputs as the first of their tree."""
    if tree.kind != PREDICTIONS:
        return
    first = tree.parts[0].facts
    for part in tree.parts[1:]:
        for fact in SHARED:
            if (got := part.facts.get(fact)) != first.get(fact):
                location, step = f"{files.name}/{part.path}/{INDEX}", f"{SET_ASIDE} Then predict it again."
                yield Problem(location, fact, repr(first.get(fact))[:80], repr(got)[:80], step)
