"""Splits by member: nobody is in two parts, nobody moves, and what is damaged or of another zoo is refused."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import IntegrityError, SpecError, UnknownNameError, ZooError
from ckptzoo.format.splits import COLUMNS, members_of, part_numbers, shared_members
from ckptzoo.schema.documents import seal, unseal
from ckptzoo.schema.split import HashSplit, ListSplit, decode, encode
from tests.support.effort import ALL, examples

ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("w", (2,)),))
THREE = {"train": 0.7, "val": 0.15, "test": 0.15}
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


def row(id: str, member: str | None = None, mode: str | None = None) -> dict[str, Any]:
    return {"id": id, "member": member or id, "method": "swag" if mode else None, "mode": mode}


def zoo_of(path: Path, rows: Sequence[dict[str, Any]], *, name: str = "tiny") -> Path:
    with ckptzoo.create(path, arch=ARCH, card=ckptzoo.Card(name)) as writer:
        writer.add({"w": np.zeros((len(rows), 2), np.float32)}, rows)
    return path


def steps(members: int, count: int = 3, first: int = 0) -> list[dict[str, Any]]:
    return [row(f"m{member}-{step}", f"m{member}") for member in range(first, first + members) for step in range(count)]


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.table({name: pa.array([item[name] for item in rows], pa.string()) for name in COLUMNS})


@st.composite
def splits(draw: st.DrawFn) -> HashSplit:
    weights = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    fractions = {f"part-{at}": weight / sum(weights) for at, weight in enumerate(weights)}
    return HashSplit("main", "sha256:0", draw(st.integers(0, 2**63 - 1)), fractions)


@given(
    split=splits(),
    rows=st.lists(st.tuples(TEXTS, st.none() | TEXTS, st.none() | TEXTS), min_size=1, max_size=40),
    more=st.lists(st.tuples(TEXTS, st.none() | TEXTS, st.none() | TEXTS), max_size=20),
)
def test_no_member_is_in_two_parts_and_a_growing_zoo_moves_nobody(
    split: HashSplit, rows: list[Any], more: list[Any]
) -> None:
    before, after = (table([dict(zip(COLUMNS, item, strict=True)) for item in items]) for items in (rows, rows + more))
    numbers = part_numbers(split, after)
    assert (numbers >= 0).all() and (numbers < len(split.parts)).all() and shared_members(split, after) == []
    assert np.array_equal(numbers[: len(rows)], part_numbers(split, before))
    parts: dict[str, set[int]] = {}
    for member, number in zip(members_of(after).to_pylist(), numbers.tolist(), strict=True):
        parts.setdefault(member, set()).add(number)
    assert all(len(found) == 1 for found in parts.values())


@given(split=splits())
def test_a_document_says_all_of_a_split_by_hashes(split: HashSplit) -> None:
    assert decode(encode(split), location="here") == split and encode(split) == encode(
        decode(encode(split), location="")
    )


@given(st.dictionaries(st.sampled_from(["train", "val", "test"]), st.sets(TEXTS, max_size=5), min_size=1))
def test_a_document_says_all_of_a_list(lists: dict[str, set[str]]) -> None:
    taken: set[str] = set()
    sorted_lists: dict[str, tuple[str, ...]] = {}
    for part, items in lists.items():
        sorted_lists[part] = tuple(sorted(items - taken))
        taken |= items
    split = ListSplit("paper", "sha256:0", "member", sorted_lists, shared_members=True)
    assert decode(encode(split), location="here") == split


def test_parts_are_as_large_as_they_should_be() -> None:
    split = HashSplit("main", "sha256:0", 3, THREE)
    rows = table([row(f"m{at}") for at in range(20_000)])
    counts = np.bincount(part_numbers(split, rows)) / 20_000
    # five standard deviations of a binomial share
    assert np.allclose(counts, list(THREE.values()), atol=5 * np.sqrt(0.25 / 20_000))


def test_the_rule_is_the_one_that_the_format_describes() -> None:
    import hashlib

    split = HashSplit("main", "sha256:0", 7, {"a": 0.5, "b": 0.25, "c": 0.25})
    for member in ("x", "y", "\N{GREEK SMALL LETTER PI}", "m-12"):
        place = int.from_bytes(hashlib.sha256(f"7\n{member}".encode()).digest()[:8], "big") / 2**64
        assert split.part_of(member) == ("a" if place < 0.5 else "b" if place < 0.75 else "c")


def test_the_same_arguments_give_the_same_bytes_and_others_are_refused(tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path / "zoo", steps(20))
    ckptzoo.make_split(zoo, "main", THREE, seed=5)
    first = (zoo / "splits" / "main.json").read_bytes()
    ckptzoo.make_split(zoo, "main", THREE, seed=5)
    other = zoo_of(tmp_path / "other", steps(3))
    ckptzoo.make_split(other, "main", THREE, seed=5)
    assert (zoo / "splits" / "main.json").read_bytes() == first == (other / "splits" / "main.json").read_bytes()
    with pytest.raises(ZooError, match=r"main\.json: split: expected this one.*got another one\. Choose another name"):
        ckptzoo.make_split(zoo, "main", THREE, seed=6)
    assert (zoo / "splits" / "main.json").read_bytes() == first


def test_a_zoo_is_read_by_its_parts(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", [*steps(12), *(row(f"d{at}", mode=f"mode-{at % 4}") for at in range(20))])
    ckptzoo.make_split(path, "main", {"train": 0.5, "test": 0.5}, seed=1)
    zoo = ckptzoo.open(path)
    assert zoo.splits == ("main",) and ckptzoo.verify(path) == []
    train, test = (zoo.split("main", part) for part in ("train", "test"))
    assert len(train) and len(test) and sorted(train.ids + test.ids) == sorted(zoo.ids)
    for column in ("member", "mode"):
        own, others = (set(part.column(column).to_pylist()) - {None} for part in (train, test))
        assert not own & others
    assert zoo.where("mode is None").split("main", "train").ids == [id for id in train.ids if id.startswith("m")]
    with ckptzoo.append(path) as writer:
        more = steps(12, first=12)
        writer.add({"w": np.zeros((len(more), 2), np.float32)}, more)
    grown = ckptzoo.open(path)
    assert set(train.ids) < set(grown.split("main", "train").ids)
    assert not set(train.ids) & set(grown.split("main", "test").ids)
    with pytest.raises(UnknownNameError, match=r"split 'mian'.*Did you mean main"):
        zoo.split("mian", "train")
    with pytest.raises(UnknownNameError, match=r"part of split 'main' 'tarin'.*Did you mean train"):
        zoo.split("main", "tarin")


def test_lists(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", steps(4))
    ckptzoo.write_split(path, "finals", {"train": ["m2-2", "m0-2"], "test": ["m1-2"]})
    ckptzoo.write_split(path, "members", {"train": ["m0", "m3"], "test": ["m1"]}, by="member")
    zoo = ckptzoo.open(path)
    assert zoo.split("finals", "train").ids == ["m0-2", "m2-2"] and zoo.split("finals", "test").ids == ["m1-2"]
    assert zoo.split("members", "train").ids == [f"m{at}-{step}" for at in (0, 3) for step in range(3)]
    assert zoo[:4].split("members", "test").ids == ["m1-0"] and ckptzoo.verify(path) == []
    cut = {"train": ["m0-0"], "test": ["m0-1"]}
    with pytest.raises(ZooError, match=r"members: expected each in one part, got 1 in several, such as 'm0'.*allow"):
        ckptzoo.write_split(path, "cut", cut)
    ckptzoo.write_split(path, "cut", cut, allow_shared_members=True)
    assert ckptzoo.verify(path) == [] and json.loads((path / "splits" / "cut.json").read_text())["shared_members"]


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({"train": ["m0-0", "m0-0"]}, {}, r"id: expected each once, got 'm0-0' twice, in 'train'"),
        ({"train": ["m0-0"], "test": ["m0-0"]}, {}, r"'m0-0' twice, in 'train' and in 'test'"),
        ({"train": ["m0-0", "m9-0"]}, {}, r"ids: expected ids of this zoo, got 1 others, such as 'm9-0'"),
        ({"train": ["m0-0"]}, {"by": "member"}, r"members: expected members of this zoo, got 1 others"),
        ({"train": []}, {}, r"part 'train': expected one id or more, got none"),
        ({}, {}, r"parts: expected one or more, got none"),
        ({"Train": ["m0-0"]}, {}, r"name of a part: expected as train or fold-3, got 'Train'"),
        ({"train": ["m0-0"]}, {"by": "seed"}, r"by: expected 'id' or 'member', got 'seed'"),
    ],
)
def test_wrong_lists_are_refused(
    tmp_path: Path, parts: dict[str, list[str]], options: dict[str, Any], message: str
) -> None:
    path = zoo_of(tmp_path / "zoo", steps(2))
    with pytest.raises(ZooError, match=message):
        ckptzoo.write_split(path, "main", parts, **options)
    assert not (path / "splits").exists()


@pytest.mark.parametrize(
    ("name", "fractions", "seed", "message"),
    [
        ("main", {"train": 0.7, "test": 0.2}, 0, r"sum of the fractions: expected 1, got 0\.9"),
        ("main", {"train": 1.5, "test": -0.5}, 0, r"fractions: expected numbers above 0"),
        ("main", {"train": float("nan")}, 0, r"fractions: expected numbers above 0"),
        ("../x", THREE, 0, r"name of a split"), ("main", {"a/b": 1.0}, 0, r"name of a part"),
        ("main", THREE, -1, r"seed: expected an integer from 0 on"),
    ],
)  # fmt: skip
def test_wrong_rules_are_refused(
    tmp_path: Path, name: str, fractions: dict[str, float], seed: int, message: str
) -> None:
    path = zoo_of(tmp_path / "zoo", steps(2))
    with pytest.raises(SpecError, match=message):
        ckptzoo.make_split(path, name, fractions, seed=seed)
    assert not (path / "splits").exists()


def test_the_split_of_another_zoo_is_refused(tmp_path: Path) -> None:
    one, two = (zoo_of(tmp_path / name, steps(3), name=name) for name in ("one", "two"))
    ckptzoo.make_split(one, "main")
    shutil.copytree(one / "splits", two / "splits")
    with pytest.raises(IntegrityError, match=r"two/splits/main\.json: digest of the zoo.*split of another zoo"):
        ckptzoo.open(two).split("main", "train")
    assert [problem.what for problem in ckptzoo.verify(two)] == ["digest of the zoo"]
    shutil.copy(one / "splits" / "main.json", one / "splits" / "copy.json")
    with pytest.raises(IntegrityError, match=r"copy\.json: name: expected copy, got main"):
        ckptzoo.open(one).split("copy", "train")


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", steps(3))
    ckptzoo.write_split(path, "main", {"train": ["m0"], "test": ["m1"]}, by="member")
    file = path / "splits" / "main.json"
    data = file.read_bytes()
    for at in range(0, len(data), 1 if ALL else 7):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(IntegrityError):
            ckptzoo.open(path).split("main", "train")
    file.write_bytes(data[:-10])
    assert ckptzoo.verify(path, deep=False)[0].location.endswith("splits/main.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "collection"}, "format and kind"), ({"version": 2}, "format version.*Upgrade"),
        ({"by": "chance"}, "name, zoo, by"), ({"parts": {}}, "parts: expected one or more"), ({"parts": [3]}, "part:"),
        ({"parts": [{"name": "a", "items": "xy"}]}, "items"), ({"parts": [{"name": "a", "items": [1]}]}, "items"),
        ({"parts": [{"name": "a", "items": []}, {"name": "a", "items": []}]}, "each once"), ({"more": 1}, "fields"),
        ({"shared_members": 1}, "shared_members"), ({"by": "hash"}, "part: expected name and fraction"),
        ({"parts": [{"name": "a", "items": ["x", "x"]}]}, "'x' twice"), ({"name": 3}, "name, zoo, by"),
        ({"parts": [{"name": ["a"], "items": []}]}, "name of a part"),
    ],
)  # fmt: skip
def test_documents_that_are_none_are_refused(change: dict[str, Any], message: str) -> None:
    content, _ = unseal(encode(ListSplit("main", "sha256:0", "id", {"train": ("a",)})), location="x")
    with pytest.raises(IntegrityError, match=message):
        decode(seal({**content, **change}), location="zoo/splits/main.json")


@pytest.mark.parametrize("change", [{"seed": "0"}, {"seed": True}, {"parts": [{"name": "a", "fraction": "1"}]}])
def test_rules_that_are_none_are_refused(change: dict[str, Any]) -> None:
    content, _ = unseal(encode(HashSplit("main", "sha256:0", 0, {"train": 1.0})), location="x")
    with pytest.raises(IntegrityError, match="expected"):
        decode(seal({**content, **change}), location="zoo/splits/main.json")


def test_verify_names_what_a_split_has_wrong(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", steps(3))
    ckptzoo.make_split(path, "main")
    content, _ = unseal((path / "splits" / "main.json").read_bytes(), location="x")
    listed = ListSplit("bad", content["zoo"], "id", {"train": ("m0-0", "gone"), "test": ("m0-1",)})
    (path / "splits" / "bad.json").write_bytes(encode(listed))
    (path / "splits" / "notes.txt").write_text("x")
    (path / "splits" / ".hidden").write_text("x")
    found = {(problem.location, problem.what) for problem in ckptzoo.verify(path)}
    assert found == {("zoo/splits/bad.json", "ids"), ("zoo/splits/bad.json", "members"), ("zoo/splits", "a split")}


KILLED = """
import os, signal, sys
from pathlib import Path
import ckptzoo
kill_at = sys.argv[2]
replace, real = Path.replace, os.fsync
def replaced(self, target):
    if kill_at == "before": os.kill(os.getpid(), signal.SIGKILL)
    replace(self, target)
    os.kill(os.getpid(), signal.SIGKILL)
Path.replace = replaced
ckptzoo.make_split(sys.argv[1], "main")
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_leaves_a_whole_split_or_none(tmp_path: Path, moment: str) -> None:
    path = zoo_of(tmp_path / "zoo", steps(3))
    ended = subprocess.run([sys.executable, "-c", KILLED, path, moment], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert ckptzoo.verify(path) == [] and ckptzoo.open(path).splits == (("main",) if moment == "after" else ())
    ckptzoo.make_split(path, "main")
    assert ckptzoo.open(path).splits == ("main",)


@settings(max_examples=examples(20))
@given(st.data())
def test_lists_of_whole_members_share_none(data: st.DataObject) -> None:
    rows = table(steps(6, 2))
    owners = data.draw(st.lists(st.integers(0, 2), min_size=6, max_size=6))
    lists = {f"p{part}": tuple(f"m{at}" for at, own in enumerate(owners) if own == part) for part in range(3)}
    split = ListSplit("x", "sha256:0", "member", lists)
    assert shared_members(split, rows) == [] and part_numbers(split, rows).tolist() == np.repeat(owners, 2).tolist()
