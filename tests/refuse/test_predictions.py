"""Predictions with a flipped byte, facts that make no sense, or parts that do not belong together."""

import base64
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import IntegrityError
from ckptzoo.format.part import Part, PartWriter
from ckptzoo.format.predictions import decode_targets, encode_targets
from ckptzoo.format.table import schema_of
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.metadata import KINDS
from tests.conftest import rows_of
from tests.support.effort import examples

TREE = "derived/predictions-mnist--test"
ARCH = Architecture("one", (Tensor("w", (3,)),))
FACTS: dict[str, Any] = {
    "kind": "predictions",
    "set": "mnist/test",
    "outputs": "logits",
    "examples": 3,
    "classes": 4,
    "inputs": "sha256:00",
    "targets": base64.b64encode(bytes([3, 0, 1])).decode(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two raw parts of two checkpoints, and predictions of the first."""
    writer = ckptzoo.create(tmp_path / "zoo", arch=ARCH)
    for number in range(2):
        writer.add({"w": np.zeros((2, 3), np.float32)}, rows_of(2, 2 * number, unit=f"u{number}"))
        writer.commit()
    predict(tmp_path / "zoo", 0)
    assert ckptzoo.verify(tmp_path / "zoo") == []
    return tmp_path / "zoo"


def predict(
    path: Path,
    number: int,
    *,
    tree: str = TREE,
    tensor: Tensor = Tensor("logits", (3, 4), "float16"),  # noqa: B008
    stem: str = "predictions",
    of: int | None = None,
    **facts: Any,
) -> Part:
    """Write predictions of a raw part as a stranger might."""
    raw = ckptzoo.open(path).contents.raw.parts[number if of is None else of].digest
    rows = [{"id": f"m{at:05d}", "unit": raw, "finite": True} for at in range(2 * number, 2 * number + 2)]
    told = {name: value for name, value in {**FACTS, "raw": raw, **facts}.items() if value != "absent"}
    writer = PartWriter(path / tree, sets={stem: [tensor]}, schema=schema_of(KINDS["predictions"]), facts=told)
    writer.add({stem: {tensor.name: np.zeros((2, *tensor.shape), tensor.dtype)}}, rows)
    return writer.commit(path, refuse=lambda _: None)


@pytest.mark.slow
def test_every_flipped_byte_is_found(path: Path) -> None:
    rng = random.Random(0)
    (part,) = (path / TREE).iterdir()
    for file in part.iterdir():
        data = file.read_bytes()
        for at in sorted({0, 8, len(data) - 1, *rng.sample(range(len(data)), examples(25, 4))}):
            broken = bytearray(data)
            broken[at] ^= 1 << rng.randrange(8)
            file.write_bytes(broken)
            assert ckptzoo.verify(path), f"{file.name}, byte {at}"
        file.write_bytes(data)
    assert ckptzoo.verify(path) == []


def labels(*values: int, dtype: str = "<u1") -> str:
    return base64.b64encode(np.array(values, dtype).tobytes()).decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"set": "mnist"}, "set of inputs"),
        ({"set": None}, "set of inputs"),
        ({"set": "mnist/other"}, "folder of a part of kind 'predictions'"),
        ({"outputs": "probabilities"}, "outputs: expected 'logits', got 'probabilities'"),
        ({"outputs": "absent"}, "outputs: expected 'logits', got None"),
        ({"examples": 5}, r"float16 \(5, 4\), got float16 \(3, 4\)"),
        ({"examples": 0}, "examples and classes: expected positive integers"),
        ({"examples": "3"}, "examples and classes"),
        ({"classes": True}, "examples and classes"),
        ({"classes": "absent"}, "examples and classes"),
        ({"inputs": 5}, "digests"),
        ({"targets": labels(3, 0, 4)}, "targets: expected 3 labels below 4, in base64, or null, got a label 4"),
        ({"targets": labels(3, 0)}, "got 2 bytes"),
        ({"targets": labels(3, 0, 1, dtype="<u2")}, "got more bytes than they need"),
        ({"targets": labels(3, 0, 1, dtype="<u8")}, "got 24 bytes"),
        ({"targets": labels(3, 0, 1) + "\n"}, "got no base64"),
        ({"targets": "\u00e9"}, "got no base64"),
        ({"targets": ""}, "got 0 bytes"),
        ({"targets": [3, 0, 1]}, "got a list"),
        ({"tensor": Tensor("logits", (3, 4), "float32")}, r"expected float16 \(3, 4\), got float32"),
        ({"tensor": Tensor("logits", (4, 3), "float16")}, r"got float16 \(4, 3\)"),
        ({"tensor": Tensor("outputs", (3, 4), "float16")}, "tensor 'outputs': expected no such tensor"),
        ({"stem": "raw"}, "stem of its shards: expected 'predictions', got 'raw'"),
        ({"tree": "derived/other"}, "folder of a part of kind 'predictions'"),
    ],
)
@pytest.mark.sampled(3)
def test_facts_that_make_no_sense(path: Path, how: dict[str, Any], said: str) -> None:
    shutil.rmtree(path / TREE)
    part = predict(path, 0, **how)
    found = ckptzoo.verify(path)
    assert any(re.search(said, str(problem)) for problem in found), [str(item) for item in found]
    if part.tree == TREE:
        with pytest.raises(IntegrityError):
            _ = ckptzoo.open(path).predicted


@pytest.mark.parametrize(
    "how",
    [
        {"inputs": "sha256:11"},
        {"targets": None},
        {"examples": 1, "targets": labels(3), "tensor": Tensor("logits", (1, 4), "float16")},
        {"classes": 5, "tensor": Tensor("logits", (3, 5), "float16")},
    ],
)
def test_parts_made_on_other_inputs(path: Path, how: dict[str, Any]) -> None:
    predict(path, 1, **how)
    found = ckptzoo.verify(path)
    assert found and all("Then predict it again." in str(problem) for problem in found)
    with pytest.raises(IntegrityError, match="predict it again"):
        _ = ckptzoo.open(path).predicted
    assert ckptzoo.open(path).variants == ("raw",), "weights can be read all the same"


def test_rows_of_another_part_and_rows_that_stand_twice(path: Path) -> None:
    first = predict(path, 1, of=0)
    assert ["raw part of its rows" in str(problem) for problem in ckptzoo.verify(path)] == [True]
    shutil.rmtree(path / first.path)
    predict(path, 0)
    assert any("each id once" in str(problem) for problem in ckptzoo.verify(path))


def test_a_tree_under_another_name(path: Path) -> None:
    zoo = ckptzoo.open(path)
    assert zoo.predicted == ("mnist/test",) and zoo.variants == ("raw",)
    (path / "derived" / "predictions-mnist--test").rename(path / "derived" / "predictions-a")
    assert any("folder of a part of kind" in str(problem) for problem in ckptzoo.verify(path))
    assert ckptzoo.open(path).contents.derived_parts.keys() == {"predictions-a"}


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=9))
def test_labels_survive(values: list[int]) -> None:
    found = decode_targets(encode_targets(np.array(values)), len(values), max(values) + 1)
    assert found.tolist() == values and found.dtype == np.int64
