"""Answers of a zoo depend neither on snapshots, nor on its parts, nor on what was read before, nor on the memory."""

import itertools
import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.derive.aligned import reference_of
from ckptzoo.derive.near_copies import origins
from ckptzoo.errors import IntegrityError
from ckptzoo.format import limits, packed, reader, snapshot, tree
from ckptzoo.learning import targets
from ckptzoo.loader import selection
from tests.support import derived_zoos
from tests.support.effort import examples

ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("a", (1,)),))
TEXTS = (None, "", "ä", "adam", "adam with warm-up", "a" * 300)
QUESTIONS: dict[str, Callable[[ckptzoo.Zoo], Any]] = {
    "metadata": lambda zoo: zoo.metadata.to_pylist(),
    "ids": lambda zoo: zoo.ids,
    "recipe": lambda zoo: zoo.column("recipe").to_pylist(),
    "within extra": lambda zoo: zoo.column("extra.lr").to_pylist(),
    "numbers": lambda zoo: zoo.where("test_accuracy > 0.4 and seed < 30").ids,
    "texts": lambda zoo: zoo.where("recipe == 'adam' or recipe is None").ids,
    "in extra": lambda zoo: zoo.where("extra.lr > 0.5").ids,
    "none": lambda zoo: zoo.where("license is not None").ids,
    "rows": lambda zoo: [zoo[at].row for at in (0, len(zoo) - 1, len(zoo) // 2)],
    "last steps": lambda zoo: zoo.last_steps().ids,
    "a split": lambda zoo: zoo.split("main", "train").ids,
    "some": lambda zoo: zoo[len(zoo) // 2 :].take(slice(None, None, -2)).metadata.to_pylist(),
    "some again": lambda zoo: zoo[1:].where("seed < 70 or seed is None")[1:].where("train_loss is not None").ids,
    "runs of some": lambda zoo: [row for run in zoo[2:].metadata_runs("seed", "recipe") for row in run.to_pylist()],
    "sorted": lambda zoo: zoo.sorted("-test_accuracy", "id").ids,
    "a stream": lambda zoo: [
        (batch.ids, batch["seed"].tolist(), batch["a"].tolist())
        for batch in zoo.stream(batch_size=3, shuffle="global", columns=["seed"], remainder="keep")
    ],
    "one by its id": lambda zoo: (zoo.checkpoint("m-0003").row, "m-0003" in zoo, "m-9999" in zoo),
    "runs": lambda zoo: [row for run in zoo.metadata_runs("seed", "unit") for row in run.to_pylist()],
}


def rows_of(draw: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows with missing values, equal and long texts, and members of several checkpoints."""

    def maybe(value: Any) -> Any:
        return None if draw.random() < 0.3 else value

    return [
        {
            "id": f"m-{at:04d}",
            "member": f"m-{draw.randrange(count)}",
            "seed": draw.randrange(60),
            "step": maybe(draw.randrange(4)),
            "recipe": draw.choice(TEXTS),
            "test_accuracy": maybe(draw.random()),
            "diverged": maybe(draw.random() < 0.5),
            "created": maybe(datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=at)),
            "extra": maybe(json.dumps({"lr": draw.random()})),
        }
        for at in range(count)
    ]


def made(folder: Path, rows: list[dict[str, Any]], sizes: list[int]) -> Path:
    """A zoo of these rows in parts of these sizes, with a split."""
    with ckptzoo.create(folder, arch=ARCH, card=ckptzoo.Card("zoo")) as writer:
        left = iter(enumerate(rows))
        for number, size in enumerate(sizes):
            own = list(itertools.islice(left, size))
            weights = np.array([[at] for at, _ in own], np.float32)
            writer.add({"a": weights}, [{**row, "unit": f"unit-{number}"} for _, row in own])
            writer.commit()
    ckptzoo.make_split(folder, "main", {"train": 0.5, "test": 0.5}, seed=1)
    return folder


def answers(folder: Path, order: list[str]) -> dict[str, Any]:
    zoo = ckptzoo.open(folder)
    found = {name: QUESTIONS[name](zoo) for name in order}
    for row in found["metadata"]:
        row.pop("unit")
    for row in [*found["rows"], *found["some"], found["one by its id"][0], *found["runs"]]:
        row.pop("unit")
    return found


def damage_a_column(folder: Path, draw: random.Random) -> None:
    """Change a byte of a column in the snapshot, before its tail."""
    (path,) = (folder / "snapshots").iterdir()
    data = bytearray(path.read_bytes())
    data[draw.randrange(4, len(data) - int(path.name.split("-")[1]))] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(examples(40, 1)))
def test_answers_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    rows = rows_of(draw, count := draw.randrange(20, 40))
    cuts = sorted(draw.sample(range(1, count), 4))
    sizes = [stop - start for start, stop in itertools.pairwise([0, *cuts, count])]
    many, one = made(tmp_path / "many", rows, sizes), made(tmp_path / "one", rows, [count])
    order = list(QUESTIONS)
    expected = answers(one, order)
    assert expected["ids"] == [row["id"] for row in rows]
    assert [row["recipe"] for row in expected["metadata"]] == [row["recipe"] for row in rows]
    draw.shuffle(order)
    assert answers(many, order) == expected
    for module, names in (
        (packed, ("PACKED_ROWS", "RUN_ROWS")),
        (tree, ("RUN_ROWS", "_KEPT_VALUES", "_WHOLE_ROWS", "_KEPT_BYTES")),
        (snapshot, ("RUN_ROWS", "_PIECE_ROWS", "_INDEX_ROWS", "_GROUP_BYTES")),
        (selection, ("RUN_ROWS",)),
        (limits, ("FREE_ROWS",)),
        (reader, ("_TOGETHER",)),
    ):
        for name in names:
            value = draw.randrange(20_000) if name in ("_TOGETHER", "_GROUP_BYTES") else draw.randrange(2, 14)
            monkeypatch.setattr(module, name, value)
    for folder in (many, one):
        draw.shuffle(order)
        assert answers(folder, order) == expected
        lagging = draw.random() < 0.5 and folder is many
        if lagging:  # a snapshot that the last part came behind
            last = max((folder / "parts").iterdir())
            last.rename(tmp_path / "last")
            ckptzoo.compact(folder)
            (tmp_path / "last").rename(last)
        else:
            ckptzoo.compact(folder)
        draw.shuffle(order)
        assert answers(folder, order) == expected and ckptzoo.verify(folder) == []
        assert ckptzoo.open(folder).contents.snapshot is not None
        damage_a_column(folder, draw)
        draw.shuffle(order)
        assert answers(folder, order) == expected
        assert any("snapshots/" in problem.location for problem in ckptzoo.verify(folder))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(60))
def test_damaged_rows_are_seen_when_they_are_read_and_by_verify(tmp_path: Path, seed: int) -> None:
    """A byte that flipped, is lost or was added: in any column, whichever is read."""
    draw = random.Random(seed)
    folder = made(tmp_path / "zoo", rows_of(draw, 12), [5, 4, 3])
    path = draw.choice(sorted(folder.rglob("metadata.parquet")))
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data))
    match draw.randrange(3):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            del data[at]
        case _:
            data.insert(at, draw.randrange(256))
    path.write_bytes(data)
    zoo = ckptzoo.open(folder)
    assert zoo["a"][:].shape == (12, 1)
    for name in draw.sample([name for name in QUESTIONS if name != "rows"], 3):
        with pytest.raises(IntegrityError, match=f"{path.parent.name}/metadata.parquet"):
            QUESTIONS[name](zoo)
    assert any("metadata.parquet" in problem.location for problem in ckptzoo.verify(folder, deep=False))
    with pytest.raises(IntegrityError):
        ckptzoo.compact(folder)


def test_ids_of_equal_hashes_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "zoo", rows_of(random.Random(1), 12), [5, 4, 3])
    monkeypatch.setattr(reader, "hash", lambda text: len(text), raising=False)
    assert len(ckptzoo.open(folder).ids) == 12 and ckptzoo.verify(folder) == []
    first = min((folder / "parts").iterdir())
    shutil.copytree(first, first.with_name("000004" + first.name[6:]))
    zoo = ckptzoo.open(folder)
    assert len(zoo["a"]) == 17
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"ids: expected each id once, got 5 twice, such as 'm-0000'"):
            zoo.ids  # noqa: B018
    assert {problem.what for problem in ckptzoo.verify(folder)} == {"ids", "unit 'unit-0'"}
    with pytest.raises(IntegrityError, match="each id once"):
        ckptzoo.compact(folder)
    assert not (folder / "snapshots").exists()


def source_of_ray(zoo: ckptzoo.Zoo) -> None:
    pytest.importorskip("ray.data")
    ckptzoo.ray_datasource(zoo)


FEW_COLUMNS: dict[str, tuple[Callable[[ckptzoo.Zoo], object], set[str]]] = {
    "origins": (origins, {"mode", "member", "id"}),
    "best": (lambda zoo: reference_of(zoo, "best"), {"member", "step", "test_accuracy", "finite", "id"}),
    "targets": (lambda zoo: targets(zoo, "seed"), {"seed"}),
    "ray": (source_of_ray, {"id"}),
    "variant": (lambda zoo: derive(zoo.path, certify="all"), {"finite", "id", "unit"}),
}


@pytest.mark.parametrize("name", FEW_COLUMNS)
def test_columns_that_are_not_needed_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path, read, (use, needed) = tmp_path / "zoo", set[str](), FEW_COLUMNS[name]
    with ckptzoo.create(path, arch=derived_zoos.ARCH, symmetry=derived_zoos.TABLE) as writer:
        writer.add(
            derived_zoos.weights_of(3, 0), [{"id": f"m{at}", "seed": at, "test_accuracy": 0.5} for at in range(3)]
        )
    columns = tree.LazyTable._read

    def noted(self: tree.LazyTable, names: list[str], pieces: Any) -> Any:
        if "contributor" in self.schema.names:  # rows of raw parts
            read.update(names)
        return columns(self, names, pieces)

    monkeypatch.setattr(tree.LazyTable, "_read", noted)
    use(ckptzoo.open(path))
    assert read == needed
