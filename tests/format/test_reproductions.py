"""Marks of reproduction: they stay with their checkpoints whatever comes later, and damaged ones are named."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import IntegrityError, SpecError, ZooError
from ckptzoo.format import reproductions
from ckptzoo.format.reproductions import add_reproduction
from ckptzoo.schema.documents import seal, unseal
from tests.support.effort import examples

pytestmark = pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("w", (2,)),))


def add(path: Path, count: int) -> None:
    start = len(ckptzoo.open(path).contents.raw.rows)
    with ckptzoo.append(path) as writer:
        rows = [{"id": f"m{number}"} for number in range(start, start + count)]
        writer.add({"w": np.full((count, 2), start, np.float32)}, rows)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    ckptzoo.create(tmp_path / "zoo", arch=ARCH, card=ckptzoo.Card("tiny"))
    add(tmp_path / "zoo", 2)
    return tmp_path / "zoo"


@settings(max_examples=examples(60, 2))
@given(data=st.data())
def test_whatever_comes_later_marks_name_the_same(tmp_path_factory: Any, data: st.DataObject) -> None:
    zoo = tmp_path_factory.mktemp("marked") / "zoo"
    ckptzoo.create(zoo, arch=ARCH, card=ckptzoo.Card("tiny"))
    add(zoo, 2)
    said: list[tuple[str, set[str]]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        step = data.draw(st.sampled_from(["add", "retract", "mark", "mark", "compact", "pull"]))
        ids = ckptzoo.open(zoo).ids
        if step == "add":
            add(zoo, data.draw(st.integers(1, 2)))
        elif step == "retract" and len(ids) > 1:
            ckptzoo.retract(zoo, [data.draw(st.sampled_from(ids))], reason="a test")
        elif step == "mark":
            names = data.draw(st.sets(st.sampled_from(ids), max_size=4))
            by = data.draw(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=9))
            if add_reproduction(zoo, names, by=by, on={"engine": "any"}) is not None:
                said.append((by, names))
        elif step == "pull":
            again = zoo.with_name(f"{zoo.name}-again")
            ckptzoo.pull(zoo, again)
            zoo = again
        else:
            ckptzoo.compact(zoo)
        assert sorted((mark.by, sorted(mark.ids)) for mark in ckptzoo.open(zoo).reproduced) == sorted(
            (by, sorted(names)) for by, names in said
        )
        assert ckptzoo.verify(zoo) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.update(zoo="sha256:0"), "digest of the zoo"),
        (lambda content: content.update(version=2), "format version: expected 1, got 2. Upgrade"),
        (lambda content: content.update(kind="release"), "format and kind"),
        (lambda content: content.pop("by"), "fields"),
        (lambda content: content.update(by=1), "by: expected a text"),
        (lambda content: content.update(by=" "), "name: expected the name of who"),
        (lambda content: content.update(created="yesterday"), "created: expected a time"),
        (lambda content: content.update(on={"cpu": 1}), "on: expected texts by name"),
        (lambda content: content.update(checkpoints={"sha256:1": []}), "checkpoints: expected lists"),
        (lambda content: content.update(checkpoints={"sha256:1": ["m0", "m0"]}), "checkpoints: expected lists"),
        (lambda content: content.update(checkpoints={"sha256:1": ["m0"]}), "part: expected one of this zoo"),
        (
            lambda content: content.update(checkpoints={next(iter(content["checkpoints"])): ["x"]}),
            "expected those in it",
        ),
    ],
)
def test_a_wrong_mark_is_named(zoo: Path, change: Any, said: str) -> None:
    mark = add_reproduction(zoo, ["m0"], by="Ada", on={})
    assert mark is not None
    path = zoo / mark.file
    content, _ = unseal(path.read_bytes(), location="here")
    change(content)
    path.unlink()
    data = seal(content)
    name = f"reproduced/{unseal(data, location='here')[1][7:23]}.json"
    (zoo / name).write_bytes(data)
    (problem,) = ckptzoo.verify(zoo)
    assert said in str(problem) and name in str(problem)


def test_a_flipped_byte_another_name_and_strangers_are_named(zoo: Path) -> None:
    mark = add_reproduction(zoo, ["m0"], by="Ada", on={})
    assert mark is not None
    path, data = zoo / mark.file, (zoo / mark.file).read_bytes()
    path.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    assert len(ckptzoo.verify(zoo)) == 1
    with pytest.raises(IntegrityError):
        _ = ckptzoo.open(zoo).reproduced
    path.unlink()
    path.with_name("0" * 16 + ".json").write_bytes(data)
    assert "name: expected reproduced/" in str(ckptzoo.verify(zoo)[0])
    path.with_name("0" * 16 + ".json").rename(path)
    (zoo / "reproduced" / "notes.txt").write_text("mine")
    assert "a mark: expected <16 hex>.json, got 'notes.txt'" in str(ckptzoo.verify(zoo)[0])


def test_names_ids_and_numbers_are_bounded(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for by in ("", " ", "a\nb", "x" * 201, "\ud800"):
        with pytest.raises(SpecError, match="Give another name"):
            add_reproduction(zoo, ["m0"], by=by, on={})
    with pytest.raises(ZooError, match="checkpoints: expected those of the zoo, got 'gone'"):
        add_reproduction(zoo, ["gone"], by="Ada", on={})
    assert not (zoo / "reproduced").exists() and add_reproduction(zoo, [], by="Ada", on={}) is None
    mark = add_reproduction(zoo, ["m0"], by="Ada", on={})
    assert mark is not None
    nbytes = (zoo / mark.file).stat().st_size
    with monkeypatch.context() as patched:
        patched.setattr(reproductions, "MAX_TOTAL", 2 * nbytes - 1)
        with pytest.raises(ZooError, match=f"bytes of marks: expected at most {2 * nbytes - 1}, got {2 * nbytes}"):
            add_reproduction(zoo, ["m1"], by="Ada", on={})
        assert len(ckptzoo.open(zoo).reproduced) == 1 and ckptzoo.verify(zoo) == []
        patched.setattr(reproductions, "MAX_TOTAL", nbytes - 1)
        said = f"reproduced: bytes of marks: expected at most {nbytes - 1}, got {nbytes}"
        with pytest.raises(IntegrityError, match=said):
            _ = ckptzoo.open(zoo).reproduced
        (problem,) = ckptzoo.verify(zoo)
        assert said in str(problem)
        with pytest.raises(IntegrityError, match=said):
            ckptzoo.pull(zoo, zoo.with_name("pulled"))
    monkeypatch.setattr(reproductions, "MAX_MARKS", 1)
    with pytest.raises(ZooError, match="marks: expected fewer than 1"):
        add_reproduction(zoo, ["m1"], by="Ada", on={})


def test_a_part_of_a_zoo_and_a_merged_one_have_no_marks(zoo: Path, tmp_path: Path) -> None:
    add(zoo, 2)
    add_reproduction(zoo, ["m0"], by="Ada", on={})
    ckptzoo.pull(zoo, tmp_path / "cut", where="id == 'm0'")
    ckptzoo.merge_parts(zoo, tmp_path / "merged")
    for path in (tmp_path / "cut", tmp_path / "merged"):
        assert ckptzoo.open(path).reproduced == () and ckptzoo.verify(path) == []
    shutil.rmtree(zoo / "reproduced")
    assert ckptzoo.open(zoo).reproduced == ()
