"""Columns of many parts: what they unpack to is bounded, and processes and threads share them."""

import multiprocessing
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ckptzoo
from ckptzoo.errors import IntegrityError
from ckptzoo.format import limits, tree
from ckptzoo.format.tree import LazyTable, regrouped

SCHEMA = pa.schema([("id", pa.string()), ("seed", pa.int64())])


def repeated(rows: int, text: str, *, file_bytes: int) -> LazyTable:
    """A table in which one text is in every row, in pieces."""

    def read(names: Sequence[str]) -> tuple[pa.Table]:
        texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows // 4, np.int32)), pa.array([text]))
        seeds = pa.array(np.arange(rows // 4))
        return (pa.table({"id": texts, "seed": seeds}).select(list(names)),)

    return LazyTable(SCHEMA, [(rows // 4, read)] * 4, location="zoo/parts", file_bytes=file_bytes)


def test_rows_are_not_unpacked_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for, whole columns or rows; fewer are given."""
    monkeypatch.setattr(limits, "MAX_TABLE", 2**23)
    rows, most = 2**19, 2**23 + limits.MAX_RATIO
    large = repeated(rows, "a" * 1000, file_bytes=1)
    every = np.arange(rows)
    before = pa.total_allocated_bytes()
    for ask in (
        lambda: large.select(["id"]),
        lambda: large.take(["id", "seed"], every),
        lambda: large.take(["id"], every[:10_000]),
        lambda: large.take(["id"], np.zeros(10_000, np.int64)),
    ):
        with pytest.raises(IntegrityError, match=f"zoo/parts: size in memory of the columns: .*{most}"):
            ask()
    few = large.take(["id", "seed"], every[-1:1000:-700])
    assert few["seed"].to_pylist() == (every % (rows // 4))[-1:1000:-700].tolist()
    count = 0
    for start, run in large.runs(["id"]):
        assert run.nbytes <= 2**23 and start == count
        count += len(run)
    assert count == rows
    assert pa.total_allocated_bytes() - before < 64 * 2**20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_reads_while_a_thread_held_the_lock(make_zoo: Callable[..., tuple[Path, object]]) -> None:
    """As a data loader forks workers while a thread reads ahead."""
    path, _ = make_zoo((3, 2))
    rows = ckptzoo.open(path).contents.raw.rows
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with rows._lock:  # pyright: ignore[reportPrivateUsage]
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    worker = multiprocessing.get_context("fork").Process(target=rows.take, args=(["id"], np.array([0])))
    worker.start()
    worker.join(10)
    code = worker.exitcode
    worker.kill()
    done.set()
    thread.join()
    assert code == 0


def test_rows_of_a_table_that_is_not_kept_come_from_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is read once, whichever rows of it are asked for."""
    read = list[int]()

    def part(number: int) -> tree.Read:
        def columns(names: Sequence[str]) -> tuple[pa.Table]:
            read.append(number)
            ids = [f"{number}-{at}-" + "a" * 40 for at in range(3)]
            return (pa.table({"id": ids, "seed": [number] * 3}).select(list(names)),)

        return columns

    table = LazyTable(SCHEMA, [(3, part(number)) for number in range(4)])
    monkeypatch.setattr(tree, "_KEPT_BYTES", 300)
    for _ in range(3):
        assert [table.row(at)["id"][:3] for at in range(12)] == [f"{at // 3}-{at % 3}" for at in range(12)]
    assert len(read) <= 4 + 4 * 3


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_were_handed_out_are_not_held_while_the_next_are_read(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Neither by runs nor by groups of rows of other sizes, except the rest of a piece that is not handed out yet."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, 12).tolist()
    alive, most = list[weakref.ref[Any]](), 0

    def piece(size: int) -> tree.Read:
        def read(names: Sequence[str]) -> Iterator[pa.Table]:
            nonlocal most
            most = max(most, sum(ref() is not None for ref in alive))
            seeds = np.arange(size)
            alive.append(weakref.ref(seeds))
            yield pa.table({"seed": seeds})

        return read

    monkeypatch.setattr(tree, "_KEPT_VALUES", 0)
    rows = LazyTable(SCHEMA, [(size, piece(size)) for size in sizes])
    assert list(map(len, map(itemgetter(1), rows.runs(["seed"])))) == sizes and most == 0
    assert list(map(len, regrouped(map(itemgetter(1), rows.runs(["seed"])), sizes))) == sizes and most == 0
    cuts = np.diff([0, *sorted(rng.choice(sum(sizes), 6)), sum(sizes)]).tolist()
    assert list(map(len, regrouped(map(itemgetter(1), rows.runs(["seed"])), cuts))) == cuts
    assert most <= max(cuts)
