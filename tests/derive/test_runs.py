"""What a second, an interrupted, a killed or a concurrent call does, and what batches change."""

import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive, variants
from ckptzoo.errors import ZooError
from ckptzoo.format.part import PartWriter
from ckptzoo.symmetry import canonicalize
from tests.support.derived_zoos import ARCH, TABLE, files_of, fill, run, zoo_of

KILLED = """
import os, signal, sys
from ckptzoo.derive import derive, variants
variants.BATCH_ROWS = 2
kill = lambda done, total: done > 4 and os.kill(os.getpid(), signal.SIGKILL)
derive(sys.argv[1], certify="none", store=sys.argv[2], progress=kill)
"""


def names_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_a_second_call_adds_nothing_and_a_third_only_what_came_since(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path)
    before = files_of(path)
    again = derive(path)
    assert (again.checkpoints, again.already, again.parts, again.certified) == (0, 8, (), ())
    assert files_of(path) == before
    fill(path, (2,), start=2)
    more = derive(path)
    assert (more.checkpoints, more.already, len(more.parts)) == (2, 8, 1)
    assert before.items() <= files_of(path).items()
    assert ckptzoo.verify(path) == []


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_batches_change_no_byte_and_progress_counts_every_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    one = zoo_of(tmp_path / "one", (5, 3), spoil=(1,))
    two = Path(shutil.copytree(one, tmp_path / "two"))
    derive(one, certify="none")
    monkeypatch.setattr(variants, "BATCH_BYTES", rows * ARCH.nbytes)
    monkeypatch.setattr(variants, "_AT_ONCE_BYTES", rows * rows * ARCH.nbytes)
    seen: list[tuple[int, int]] = []
    derive(two, certify="none", progress=lambda done, total: seen.append((done, total)))
    steps = [*range(rows, 5, rows), 5, *range(5 + rows, 8, rows), 8]
    assert seen == [(done, 8) for done in steps]
    assert files_of(one) == files_of(two)


def test_the_variant_is_canonicalize_on_everything_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo_of(tmp_path / "zoo", (40, 1, 17))
    monkeypatch.setattr(variants, "BATCH_ROWS", 7)
    derive(path, certify="none")
    zoo = ckptzoo.open(path)
    made = canonicalize({name: np.asarray(zoo[name]) for name in ARCH.names}, TABLE, gauge="canonical")
    for name in ARCH.names:
        assert np.asarray(zoo[name, "canonical"]).tobytes() == made.weights[name].tobytes()


def test_shards_that_are_full_and_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo_of(tmp_path / "zoo", (11,))
    whole = Path(shutil.copytree(path, tmp_path / "whole"))
    init = PartWriter.__init__
    monkeypatch.setattr(PartWriter, "__init__", lambda self, *a, **k: init(self, *a, shard_bytes=4 * ARCH.nbytes, **k))
    monkeypatch.setattr(variants, "BATCH_ROWS", 3)
    derive(path, certify="none")
    shards = sorted(path.glob("derived/*/*/canonical-*.safetensors"))
    assert len(shards) == 3 and shards[0].stat().st_size == shards[1].stat().st_size > shards[2].stat().st_size
    assert ckptzoo.verify(path) == []
    monkeypatch.undo()
    derive(whole, certify="none")
    for name in ARCH.names:
        stored = (np.asarray(ckptzoo.open(folder)[name, "canonical"]) for folder in (path, whole))
        np.testing.assert_array_equal(*stored)


def test_an_interrupted_call_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo_of(tmp_path / "zoo")
    monkeypatch.setattr(variants, "BATCH_BYTES", 2 * ARCH.nbytes)
    threads = threading.active_count()

    def interrupt(done: int, total: int) -> None:
        if done > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        derive(path, certify="none", progress=interrupt)
    assert len(names_in(path / "derived/canonical")) == 1
    assert threading.active_count() == threads
    assert ckptzoo.verify(path) == []
    with pytest.raises(ZooError, match=r"ckptzoo derive .*zoo --gauge canonical"):
        ckptzoo.open(path)["fc.weight", "canonical"]
    assert derive(path, certify="none").checkpoints == 3


def test_a_write_that_fails_ends_the_call_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo_of(tmp_path / "zoo", (9,))
    before = files_of(path)
    monkeypatch.setattr(variants, "BATCH_ROWS", 1)
    add = PartWriter.add

    def full(self: PartWriter, arrays: dict, rows: list) -> None:
        if len(self.rows) == 4:
            raise OSError(28, "No space left on device")
        add(self, arrays, rows)

    monkeypatch.setattr(PartWriter, "add", full)
    with pytest.raises(OSError, match="No space"):
        derive(path, certify="none")
    assert files_of(path) == before and names_in(path / "derived/canonical") == []


@pytest.mark.slow
@pytest.mark.parametrize("store", ["weights", "element"])
@pytest.mark.sampled(2)
def test_a_killed_call_is_carried_on_to_the_same_bytes(tmp_path: Path, store: str) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 5, 4))
    undisturbed = Path(shutil.copytree(path, tmp_path / "undisturbed"))
    process = run(KILLED, str(path), store)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    left = names_in(path / "derived/canonical")
    assert sum(not name.startswith(".") for name in left) == 1
    done = derive(path, certify="none", store=store)
    assert (done.checkpoints, done.already) == (9, 3)
    derive(undisturbed, certify="none", store=store)
    assert files_of(path) == files_of(undisturbed)
    assert names_in(path / "derived/canonical") == names_in(undisturbed / "derived/canonical")
    assert ckptzoo.verify(path) == []


@pytest.mark.exhaustive
def test_two_at_once_write_every_part_once(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (2,) * 12)
    code = "import sys; from ckptzoo.derive import derive; derive(sys.argv[1], certify='none')"
    both = [run(code, str(path)) for _ in range(2)]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert ckptzoo.verify(path) == []
    assert len(names_in(path / "derived/canonical")) == 12
    assert len(ckptzoo.open(path).variant_metadata("canonical")) == 24


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_part_that_another_process_wrote_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 2))
    code = "import sys; from ckptzoo.derive import derive; derive(sys.argv[1], certify='none')"
    commit = PartWriter.commit

    def late(self: PartWriter, *args: object, **options: object) -> object:
        monkeypatch.setattr(PartWriter, "commit", commit)
        process = run(code, str(path))
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        return commit(self, *args, **options)

    monkeypatch.setattr(PartWriter, "commit", late)
    done = derive(path, certify="none")
    assert (done.checkpoints, done.parts) == (0, ()) and done.already == 5
    assert ckptzoo.verify(path) == [] and len(names_in(path / "derived/canonical")) == 2
