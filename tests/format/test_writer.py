"""What a writer says and leaves behind where a script goes wrong."""

import errno
import itertools
import os
import tracemalloc
import warnings
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import SpecError, UnknownNameError, ZooError
from ckptzoo.format import known_names, limits, singles, table
from ckptzoo.format import part as part_module
from ckptzoo.format import writer as writer_module
from ckptzoo.schema import layout
from tests.conftest import MIXED, rows_of, weights_of
from tests.support.effort import examples


def test_a_known_name_brings_its_symmetries(tmp_path: Path) -> None:
    for name in ("optunet", "mlp-4-3-2", "gaussian-mlp-4-3-2"):
        ckptzoo.create(tmp_path / name, arch=name)
        zoo = ckptzoo.open(tmp_path / name)
        assert zoo.arch == archs.architecture(name) and zoo.symmetry == archs.symmetry(name)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"lr": 0.1}, "Facts of your own go into one column: \"extra\": {'lr': 0.1}."),
        ({"lr": 0.1, "width": 3}, "\"extra\": {'lr': 0.1, 'width': 3}."),
        ({"test_acurracy": 0.5}, "Did you mean test_accuracy? "),
        ({3: 4}, "\"extra\": {'3': 4}."),
        ({f"k{at}": at for at in range(9)}, "'k3': 3, ...}."),
    ],
)
def test_columns_that_are_not_known_go_into_extra(tmp_path: Path, columns: dict, expected: str) -> None:
    writer = ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    with pytest.raises(UnknownNameError) as caught:
        writer.add(weights_of(MIXED, 2), [row | columns for row in rows_of(2)])
    assert expected in str(caught.value) and "builder?" not in str(caught.value)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, ValueError, None])
@pytest.mark.parametrize("committed", [0, 1, 2])
@pytest.mark.parametrize("pending", [0, 2])
@pytest.mark.sampled(2)
def test_what_an_interrupted_block_leaves(
    tmp_path: Path, ending: type[BaseException] | None, committed: int, pending: int
) -> None:
    path, at, error = tmp_path / "zoo", 0, None
    try:
        with ckptzoo.create(path, arch=MIXED) as writer:
            for _ in range(committed):
                writer.add(weights_of(MIXED, 2), rows_of(2, at))
                writer.commit()
                at += 2
            if pending:
                writer.add(weights_of(MIXED, pending), rows_of(pending, at))
            if ending is not None:
                raise ending
    except (KeyboardInterrupt, ValueError) as caught:
        error = caught
    notes = " ".join(getattr(error, "__notes__", []))
    assert path.exists() == (committed > 0 or ending is None)
    assert not [left for left in tmp_path.iterdir() if left.name.startswith(".")]
    if ending is not None and not committed:
        assert "was removed: no part had been committed" in notes
        ckptzoo.create(path, arch=MIXED)  # the script can be run again
    elif ending is not None:
        assert len(ckptzoo.open(path)) == at and ckptzoo.verify(path) == []
        assert ("2 checkpoints added since the last commit" in notes and "ckptzoo.append" in notes) == bool(pending)


def test_a_new_zoo_is_kept_where_another_writer_added_to_it(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    with pytest.raises(ValueError, match="mine"), ckptzoo.create(path, arch=MIXED):
        with ckptzoo.append(path) as other:
            other.add(weights_of(MIXED, 1), rows_of(1))
        raise ValueError("mine")
    assert len(ckptzoo.open(path)) == 1
    with pytest.raises(ValueError, match="mine"), ckptzoo.create(tmp_path / "second", arch=MIXED):
        (tmp_path / "second" / "notes.txt").write_text("of the user")
        raise ValueError("mine")
    assert (tmp_path / "second" / "notes.txt").exists()


def test_a_commit_that_fails_at_the_end_of_the_block_leaves_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    with pytest.raises(SpecError, match="checkpoint ids"), ckptzoo.create(path, arch=MIXED) as writer:
        writer.add(weights_of(MIXED, 1), rows_of(1))
        with ckptzoo.append(path) as faster:
            faster.add(weights_of(MIXED, 1), rows_of(1))
    assert len(ckptzoo.open(path)) == 1


def test_a_script_that_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    ckptzoo.create(path, arch=MIXED)
    with pytest.raises(ZooError, match=r"got a zoo\. To add to it, use ckptzoo\.append.*exist_ok=True.*remove"):
        ckptzoo.create(path, arch=MIXED)
    for at in range(2):
        with ckptzoo.create(path, arch=MIXED, exist_ok=True) as writer:
            writer.add(weights_of(MIXED, 1), rows_of(1, at))
    assert len(ckptzoo.open(path)) == 2
    with pytest.raises(SpecError, match=r"architecture: expected the one to be written, got one with no 'fc1.weight'"):
        ckptzoo.create(path, arch="mlp-4-3-2", exist_ok=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "file").write_text("")
    for exist_ok in (False, True):
        with pytest.raises(ZooError, match="got one with files"):
            ckptzoo.create(tmp_path / "notes", arch=MIXED, exist_ok=exist_ok)


def test_what_differs_is_one_sentence(tmp_path: Path) -> None:
    arch = archs.architecture("mlp-4-3-2")
    writer = ckptzoo.create(tmp_path / "zoo", arch=arch)
    good = {name: array[0] for name, array in weights_of(arch, 1).items()}

    def said(**changes: np.ndarray | None) -> str:
        weights = {name: array for name, array in (good | changes).items() if array is not None}
        with pytest.raises(ZooError) as caught:
            writer.add(weights, {"id": "a"})
        assert "\n" not in str(caught.value)
        return str(caught.value)

    doubles = {name: array.astype("f8") for name, array in good.items()}
    assert "'fc1.weight' is (3, 4) float64 and not (3, 4) float32" in said(**doubles)
    assert "and 1 more. Cast them to float32." in said(**doubles)
    assert "no 'fc2.bias'; and 'fc3.bias'." in said(**{"fc2.bias": None, "fc3.bias": good["fc2.bias"]})
    assert "no 'fc2.weight', 'fc2.bias'. " in said(**{"fc2.weight": None, "fc2.bias": None})
    with pytest.raises(SpecError, match="tensor 'model': expected an array, got dict"):
        writer.add({"model": good, "epoch": 3}, {"id": "a"})


@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore:.*torch.nested", "ignore:.*quant")
def test_tensors_without_numbers_in_memory_are_named(tmp_path: Path) -> None:
    """As the first checkpoint, after another and in a training loop; views with signs to come have numbers."""
    import torch

    dense = torch.arange(12.0).reshape(3, 4)
    without = {
        "meta": dense.to("meta"),
        "sparse_coo": dense.to_sparse(),
        "qint8": torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        "float8_e5m2": dense.to(torch.float8_e5m2),
        "a Tensor": torch.nested.nested_tensor([*dense]),
        "UninitializedParameter": torch.nn.UninitializedParameter(),
    }
    arch = ckptzoo.Architecture("toy", (ckptzoo.Tensor("w", (3, 4)),))
    writer = ckptzoo.create(tmp_path / "zoo", arch=arch)
    for turn in range(2):
        for name, value in without.items():
            with pytest.raises(SpecError, match=f"tensor 'w': expected numbers in memory, got .*{name}"):
                writer.add({"w": value}, {"id": "a"})
        mirrored = torch.complex(dense, dense).conj().imag
        assert mirrored.is_neg()
        writer.add({"w": mirrored}, {"id": str(turn)})
    writer.commit()
    assert np.array_equal(ckptzoo.open(tmp_path / "zoo")["w"][:], np.stack([-dense.numpy()] * 2))
    with ckptzoo.record(tmp_path / "run", arch=arch, member="m") as recorder:
        for value in without.values():
            with pytest.raises(SpecError, match="tensor 'w': expected numbers in memory"):
                recorder.save({"w": value}, step=1)


def test_numbers_without_axes_are_numbers(tmp_path: Path) -> None:
    import torch

    arch = archs.architecture("mlp-4-3-2")
    numbers = (np.float32(0.5), np.array(0.5), torch.tensor(0.5))
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        for at, number in enumerate(numbers):
            row = {"id": f"m{at}", "test_accuracy": number, "extra": {"lr": number, "of": [number]}}
            writer.add({name: array[0] for name, array in weights_of(arch, 1).items()}, row)
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.metadata["test_accuracy"].to_pylist() == [0.5] * 3
    assert zoo.metadata["extra"].to_pylist() == ['{"lr": 0.5, "of": [0.5]}'] * 3
    with pytest.raises(SpecError, match="column 'extra': expected what JSON can hold, got a set"):
        ckptzoo.append(tmp_path / "zoo").add(weights_of(arch, 1), [{"id": "b", "extra": {"x": set()}}])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": 3}, r"column 'id': expected string \(a text\), got 3 of type int"),
        ({"seed": "x"}, r"column 'seed': expected int64 \(an integer\), got 'x' of type str"),
        ({"created": "2020"}, r"column 'created': expected timestamp \(a datetime.datetime\), got '2020' of type str"),
        ({"test_loss": [1.0]}, r"column 'test_loss': expected float64 \(a number\), got \[1.0\] of type list"),
        ({"seed": 2**70}, r"column 'seed': expected int64"),
    ],
)
def test_values_of_other_types_are_shown(tmp_path: Path, row: dict, expected: str) -> None:
    writer = ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    with pytest.raises(SpecError, match=expected):
        writer.add(weights_of(MIXED, 2), [{"id": "a"}, {"id": "b"} | row])


def test_the_digest_of_a_part_takes_bounded_memory() -> None:
    metadata = pa.table({"id": [f"run-{at:06d}" for at in range(40_000)], "unit": ["u" * 60] * 40_000})
    tracemalloc.start()
    try:
        part_module.part_digest(metadata, table.INDEX_SCHEMA.empty_table(), {"kind": "raw"})
        assert tracemalloc.get_traced_memory()[1] < 3 * 2**20
    finally:
        tracemalloc.stop()


def covered_by_snapshots(zoo: Path) -> int:
    return max((int(file.name[:6]) for file in zoo.glob("snapshots/*")), default=0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(4)
def test_a_commit_reads_few_parts_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """By the same writer and by others, with snapshots and listings made and removed in between."""
    rng, path = np.random.default_rng(seed), tmp_path / "zoo"
    monkeypatch.setattr(writer_module, "SNAPSHOT_PARTS", 4)
    names, read = list[str](), table.read_bytes
    monkeypatch.setattr(table, "read_bytes", lambda path, **other: (names.append(str(path)), read(path, **other))[1])
    writers = [ckptzoo.create(path, arch=MIXED)]
    for count in range(16):
        kind = rng.choice(["same", "new", "new", "new", "compact", "removed"])
        names.clear()
        covered = covered_by_snapshots(path)
        if kind == "new":
            writers.append(ckptzoo.append(path))
        elif kind == "compact" and count:
            ckptzoo.compact(path)
        elif kind == "removed":
            for file in path.glob("snapshots/*"):
                file.unlink()
            (path / "listing.json").unlink(missing_ok=True)
        writer = writers[int(rng.integers(len(writers)))] if kind == "same" else writers[-1]
        writer.add(weights_of(MIXED, 1), [{"id": f"m{count}", "unit": f"u{count}"}])
        writer.commit()
        if kind == "new":
            read_alone = len([name for name in names if name.endswith("metadata.parquet")])
            # the parts that no snapshot covered, and where these were many the new one for the snapshot
            assert read_alone <= (count - covered if count - covered <= 4 else 2 * (count - covered) + 1)
            assert covered_by_snapshots(path) == (covered if count - covered <= 4 else count + 1)
        for row in ({"id": f"m{rng.integers(count + 1)}"}, {"id": "x", "unit": f"u{rng.integers(count + 1)}"}):
            with pytest.raises(SpecError, match="there already"):
                writer.add(weights_of(MIXED, 1), [row])
    assert ckptzoo.open(path).ids == [f"m{count}" for count in range(16)]
    assert [problem for problem in ckptzoo.verify(path) if "listing" not in problem.location] == []


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sampled(4)
def test_ids_and_units_are_known_by_more_than_their_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random writers, batches and single checkpoints, with few hashes, so that most names share theirs with others."""
    rng, path = np.random.default_rng(seed), tmp_path / "zoo"
    monkeypatch.setattr(known_names, "hash", lambda name: (len(name) - 3) * 2**61, raising=False)
    monkeypatch.setattr(known_names, "_RECENT", int(rng.integers(4)))
    held = {column: set[str]() for column in ("id", "unit")}
    pending = {column: set[str]() for column in held}
    writer = ckptzoo.create(path, arch=MIXED)
    for _ in range(60):
        kind = rng.choice(["single", "batch", "batch", "commit", "other", "compact"])
        if kind in ("single", "batch"):
            count = 1 if kind == "single" else int(rng.integers(1, 5))
            ids = [f"{'m' * rng.integers(1, 4)}{rng.integers(40)}" for _ in range(count)]
            unit = None if rng.random() < 0.3 else f"u{rng.integers(30)}"
            rows = [{"id": name, "unit": unit} for name in ids]
            weights = weights_of(MIXED, count)
            single = {name: array[0] for name, array in weights.items()}
            is_twice = len(set(ids)) < count or not pending["id"].isdisjoint(ids)
            if is_twice or not held["id"].isdisjoint(ids) or unit in held["unit"]:
                with pytest.raises(SpecError, match="twice" if is_twice else "there already"):
                    writer.add(*((single, rows[0]) if kind == "single" else (weights, rows)))
            else:
                writer.add(*((single, rows[0]) if kind == "single" else (weights, rows)))
                pending["id"].update(ids)
                pending["unit"].update([unit] * (unit is not None))
        elif kind == "compact":
            ckptzoo.compact(path)
        else:
            writer.commit()
            for column, names in pending.items():
                held[column] |= names
                names.clear()
            writer = writer if kind == "commit" else ckptzoo.append(path)
    writer.commit()
    assert sorted(ckptzoo.open(path).ids) == sorted(held["id"] | pending["id"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(3)
def test_a_part_does_not_depend_on_how_many_rows_came_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(part_module, "_AT_A_TIME", 3)
    monkeypatch.setattr(part_module, "_SPOOLED", 7)
    rng, count = np.random.default_rng(seed), 45
    weights, rows = weights_of(MIXED, count), rows_of(count)
    contents = set[tuple[bytes, ...]]()
    for trial in range(4):
        path = tmp_path / f"zoo{trial}"
        with ckptzoo.create(path, arch=MIXED) as writer:
            cuts = [0, *sorted(rng.integers(0, count, rng.integers(0, 9)).tolist()), count]
            for start, stop in itertools.pairwise(cuts):
                writer.add({name: array[start:stop] for name, array in weights.items()}, rows[start:stop])
        contents.add(tuple(file.read_bytes() for file in sorted(path.glob("parts/*/*"))))
        assert len(list(path.glob("parts/*/*"))) == 3 and ckptzoo.verify(path) == []
    assert len(contents) == 1
    monkeypatch.undo()
    with ckptzoo.create(tmp_path / "whole", arch=MIXED) as writer:
        writer.add(weights, rows)
    assert {path.name for path in tmp_path.glob("*/parts/*")} == {path.name for path in tmp_path.glob("whole/parts/*")}


def random_row(rng: np.random.Generator, at: int) -> dict[str, Any]:
    """A row of some columns, of values that tables have as they are and of others that stand for them."""
    number, zone = float(rng.random()), timezone(timedelta(hours=2))
    choices: dict[str, list[Any]] = {
        "seed": [at, np.int64(at), None, -(2**63)],
        "test_accuracy": [number, np.float32(number), float("nan"), 1, None],
        "test_loss": [number, 2**40, np.array(number)],
        "recipe": ["sgd", "\u00e9t\u00e9", None],
        "member": [f"net-{at}", None],
        "created": [datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2), datetime(2026, 1, 2, tzinfo=zone)],
        "extra": [{"lr": np.float64(number)}, '{"a": 1}', None],
        "finite": [False, "of the user"],
    }
    names = rng.permutation(list(choices))[: rng.integers(len(choices) + 1)].tolist()
    return {"id": f"m{at:05d}"} | {name: choices[name][rng.integers(len(choices[name]))] for name in names}


WRONG: tuple[dict[Any, Any], ...] = (
    {"seed": "x"}, {"seed": 2**63}, {"seed": 0.5}, {"test_loss": 2**60}, {"id": 3}, {"id": "a b"}, {"id": "m00000"}, {"unknown": 1},
    {"test_accuracy": 1.5}, {"extra": {"x": set()}}, {"extra": "[]"}, {"draw": 1}, {"recipe": "\ud800"}, {3: 4},
)  # fmt: skip


@pytest.mark.parametrize("seed", range(examples(40, 4)))
def test_checkpoints_that_come_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Bytes are those of one call with all of them; what is wrong is said at once, and nothing of it is added."""
    rng, count = np.random.default_rng(seed), 30
    monkeypatch.setattr(singles, "_WAITING_ROWS", int(rng.choice([0, 1, 4, 2**11])))
    weights, rows = weights_of(MIXED, count, seed), [random_row(rng, at) for at in range(count)]
    weights["norm.running_var"][rng.random(count) < 0.2] = np.nan
    with ckptzoo.create(tmp_path / "whole", arch=MIXED) as writer:
        writer.add(weights, rows)
    writer, other, at = ckptzoo.create(tmp_path / "single", arch=MIXED), ckptzoo.append(tmp_path / "whole"), 0
    with writer:
        while at < count:
            size = int(rng.choice([1, 1, 1, 3]))
            own = {name: array[at : at + size].copy() for name, array in weights.items()}
            single = {name: array[0] for name, array in own.items()}
            if at and rng.random() < 0.3:
                wrong = {"id": "new"} | WRONG[rng.integers(len(WRONG))]
                bad = single if rng.random() < 0.8 else single | {"flag": single["flag"][:0]}
                with pytest.raises(ZooError) as caught:
                    writer.add(bad, wrong)
                with pytest.raises(ZooError) as expected:
                    other.add({name: array[np.newaxis] for name, array in bad.items()}, [wrong])
                if bad is single and wrong["id"] != "m00000":
                    assert str(caught.value).removeprefix("single") == str(expected.value).removeprefix("whole")
            if size == 1:
                if rng.random() < 0.2:
                    single["tied.weight"] = single["brain.weight"]
                writer.add(single, rows[at])
                for array in own.values():
                    array[...] = 0  # the caller may use its arrays again
            else:
                writer.add(own, rows[at : at + size])
            at += size
    parts = [sorted(tmp_path.glob(f"{name}/parts/*/*")) for name in ("whole", "single")]
    assert [path.name for path in parts[0]] == [path.name for path in parts[1]]
    assert all(one.read_bytes() == two.read_bytes() for one, two in zip(*parts, strict=True))
    assert ckptzoo.verify(tmp_path / "single") == []


def test_a_snapshot_that_cannot_be_written_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_PARTS", 1)
    writer = ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    for count in range(4):
        writer.add(weights_of(MIXED, 1), rows_of(1, count))
        writer.commit()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer_module, "add_snapshot", full)
    with ckptzoo.append(tmp_path / "zoo") as another:
        another.add(weights_of(MIXED, 1), rows_of(1, 4))
    assert len(ckptzoo.open(tmp_path / "zoo")) == 5


def test_the_limit_of_parts_is_said_before_it_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MANY_PARTS", 2)
    writer = ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count in range(5):
            writer.add(weights_of(MIXED, 1), rows_of(1, count))
            writer.commit()
            assert len(caught) == (count >= 2)
    expected = "zoo/parts: parts: expected at most 10,000, the entries of a folder on a hub, got 3. Write a zoo of few"
    assert str(caught[0].message).startswith(expected) and "--merge-parts --to NEWZOO" in str(caught[0].message)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    for path in (tmp_path / "shut" / "zoo", tmp_path / "shut" / "zoos" / "zoo"):
        with pytest.raises(PermissionError, match=r"Permission denied\. Choose a folder that you may write to"):
            ckptzoo.create(path, arch=MIXED)


def test_folders_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Choose a path whose folders are folders") as caught:
        ckptzoo.create(tmp_path / "file" / "zoo", arch=MIXED)
    assert caught.value.filename == str(tmp_path / "file")
    # nobody, root included, makes folders in /proc
    with pytest.raises(OSError, match="/proc/zoo") as caught:
        ckptzoo.create("/proc/zoo", arch=MIXED)
    assert caught.value.filename == "/proc/zoo"


def test_what_readers_would_refuse_is_refused_before_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any limit of a part's tables: nothing is published, what was added is kept, and smaller parts can be read."""
    arch = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("a", (1,)),))
    rng = np.random.default_rng(3)

    def rows(start: int, count: int) -> list[dict]:
        return [{"id": f"m{at}", "extra": {"x": rng.bytes(400).hex()}} for at in range(start, start + count)]

    writer = ckptzoo.create(tmp_path / "zoo", arch=arch)
    for name, value in (("MAX_FILE", 20_000), ("table_in", lambda nbytes: 40_000)):
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, value)
            before = ckptzoo.open(tmp_path / "zoo").ids
            writer.add({"a": np.zeros((60, 1), np.float32)}, rows(len(before), 60))
            with pytest.raises(SpecError, match=r"metadata.parquet: size.*: expected .* Commit fewer checkpoints"):
                writer.commit()
            assert ckptzoo.open(tmp_path / "zoo").ids == before
            writer.discard()
            for start in range(len(before), len(before) + 60, 20):
                writer.add({"a": np.zeros((20, 1), np.float32)}, rows(start, 20))
                writer.commit()
            assert len(ckptzoo.open(tmp_path / "zoo").metadata) == len(before) + 60
            assert ckptzoo.verify(tmp_path / "zoo") == []
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_TABLE", 60_000)
        writer.add({"a": np.zeros((40, 1), np.float32)}, rows(1000, 40))
        with pytest.raises(SpecError, match=r"rows: size of the table: expected at most 60000 .* writer.commit\(\)"):
            writer.add({"a": np.zeros((40, 1), np.float32)}, rows(2000, 40))
        writer.commit()
    assert len(ckptzoo.open(tmp_path / "zoo").ids) == 160
    for start in range(3000, 3004):
        writer.add({"a": np.zeros((1, 1), np.float32)}, rows(start, 1))
        writer.commit()
    monkeypatch.setattr(limits, "MAX_FILE", sum(path.stat().st_size for path in tmp_path.rglob("index.parquet")))
    writer.add({"a": np.zeros((1, 1), np.float32)}, rows(4000, 1))
    with pytest.raises(SpecError, match="size of all indices"):
        writer.commit()
    assert len(ckptzoo.open(tmp_path / "zoo").ids) == 164
