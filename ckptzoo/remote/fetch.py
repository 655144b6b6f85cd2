"""Many blocks at once: in parallel, ahead of the reader, each checked before it is handed out.

From blocks that are wanted to requests: few, with little waste, in the order in which they are needed.
"""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Self

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.remote.retry import Cancelled, RetryPolicy, read_range
from ckptzoo.remote.stores import CancelToken, Store
from ckptzoo.schema.layout import Span

WASTE_SHARE = 0.02
"""Of the wanted bytes of a file: so many between them are fetched too, where that saves requests."""
WASTE_BYTES = 200_000
"""Up to so many, where a file has more than ``MOST`` requests otherwise."""
SPLIT_BYTES = 32 * 2**20
"""Requests of at least twice this are cut in two, where a file has only one."""
MOST = 2
"""Requests a file that are few: up to these long ones are cut, and down to these ``WASTE_BYTES`` are spent."""


@dataclass(frozen=True)
class RangeRequest:
    """One request.

    Parameters
    ----------
    name : the file.
    start, stop : bytes, with those between blocks that are fetched in vain.
    places : which of the wanted blocks it brings; ascending, in the file too.
    """

    name: str
    start: int
    stop: int
    places: tuple[int, ...]


def plan(wanted: Sequence[Span], places: Sequence[int], *, longest: int) -> list[RangeRequest]:
    """Requests for some of the blocks, by the first block that each brings.

    A request brings blocks of one file whose order in the file is the order in which they are wanted, so that a
    reader who takes them in order never waits behind a block that it wants later. Among such neighbours the smallest
    gaps are bridged first, while the bytes between stay within ``WASTE_SHARE`` of those wanted of the file, and then
    within ``WASTE_BYTES`` while the file has more than ``MOST`` requests. No other choice of as much waste has fewer.

    Parameters
    ----------
    wanted : blocks in the order of the reader; none overlaps another.
    places : those to fetch.
    longest : bytes up to which a long request is cut in two; a longer one could not be read from both ends at once.

    Notes
    -----
    Held by ``tests/remote/test_fetch_plan.py``. Cost: one sort.
    """
    files: dict[str, list[int]] = {}
    for place in places:
        files.setdefault(wanted[place].name, []).append(place)
    runs: list[RangeRequest] = []
    for mine in files.values():
        runs.extend(_file(wanted, sorted(mine, key=lambda place: wanted[place].start), longest))
    return sorted(runs, key=lambda run: run.places[0])


def _file(wanted: Sequence[Span], order: list[int], longest: int) -> list[RangeRequest]:
    gaps: list[tuple[int, int]] = []
    cuts = set[int]()
    for at, (before, after) in enumerate(pairwise(order), start=1):
        gap = wanted[after].start - wanted[before].stop
        if before > after or gap < 0:
            cuts.add(at)
        else:
            gaps.append((gap, at))
    share = WASTE_SHARE * sum(wanted[place].stop - wanted[place].start for place in order)
    requests, waste = len(order), 0
    for gap, at in sorted(gaps):
        most = share if requests <= MOST else max(share, WASTE_BYTES)
        if waste + gap <= most:
            requests, waste = requests - 1, waste + gap
        else:
            cuts.add(at)
    bounds = [0, *sorted(cuts), len(order)]
    pieces = [order[start:stop] for start, stop in pairwise(bounds)]
    while 0 < len(pieces) < MOST:
        halves = [half for piece in pieces for half in _halved(wanted, piece, longest)]
        if len(halves) == len(pieces):
            break
        pieces = halves
    return [
        RangeRequest(wanted[piece[0]].name, wanted[piece[0]].start, wanted[piece[-1]].stop, tuple(piece))
        for piece in pieces
    ]


def _halved(wanted: Sequence[Span], piece: list[int], longest: int) -> list[list[int]]:
    start, stop = wanted[piece[0]].start, wanted[piece[-1]].stop
    if len(piece) < 2 or not 2 * SPLIT_BYTES <= stop - start <= longest:
        return [piece]
    middle = (start + stop) // 2
    at = min(range(1, len(piece)), key=lambda at: abs(wanted[piece[at]].start - middle))
    return [piece[:at], piece[at:]]


Keep = Callable[[Span, memoryview], None]
"""Told every block that was fetched and found right, in the thread that fetched it."""


def checked(
    store: Store,
    wanted: Sequence[Span],
    run: RangeRequest,
    *,
    retry_policy: RetryPolicy,
    cancel: CancelToken,
    before: Callable[[int], None],
) -> Generator[tuple[int, memoryview]]:
    """The blocks of one request with their places, each once its digest was found right.

    A block that comes wrong is fetched once more by itself.

    Parameters
    ----------
    before : is called with a block's place before its bytes are received, and may wait.

    Raises
    ------
    IntegrityError
        A block came wrong twice.
    """
    before(run.places[0])
    source = read_range(store, run.name, run.start, run.stop, retry_policy=retry_policy, cancel=cancel)
    at, piece = run.start, memoryview(b"")
    try:
        for place in run.places:
            block = wanted[place]
            if place != run.places[0]:
                before(place)
            data = bytearray(block.stop - block.start)
            filled = 0
            while filled < len(data):
                skipped = min(len(piece), max(0, block.start - at))
                at, piece = at + skipped, piece[skipped:]
                taken = min(len(piece), len(data) - filled)
                if at >= block.start and taken:
                    data[filled : filled + taken] = piece[:taken]
                    at, piece, filled = at + taken, piece[taken:], filled + taken
                if filled < len(data) and not piece:
                    piece = memoryview(next(source))
            if hashlib.sha256(data).digest() != block.sha256:
                again = read_range(store, block.name, block.start, block.stop, retry_policy=retry_policy, cancel=cancel)
                data = bytearray().join(again)
                if (got := hashlib.sha256(data).hexdigest()) != block.sha256.hex():
                    where = f"{store.address}/{block.name}"
                    what = f"sha256 of bytes {block.start} to {block.stop}"
                    step = "Tell whoever publishes the zoo: its file is not what its index says."
                    raise IntegrityError(Problem(where, what, block.sha256.hex(), got, step))
            yield place, memoryview(data).toreadonly()
    finally:
        source.close()


class Fetching(ABC):
    """Requests in threads of their own, and the blocks that they brought until the reader takes them.

    Leaving its ``with`` block stops everything that still runs.

    Parameters
    ----------
    wanted : blocks in the order of the reader.
    runs : requests for some or all of them; at most ``workers`` run at a time, in this order.
    ahead : bytes that are received before the reader takes them.
    keep : is told every block that came.
    """

    def __init__(
        self,
        store: Store,
        wanted: Sequence[Span],
        runs: Sequence[RangeRequest],
        *,
        retry_policy: RetryPolicy,
        workers: int,
        ahead: int,
        keep: Keep,
    ) -> None:
        self._store, self._wanted, self._runs = store, wanted, list(runs)
        self._retry_policy, self._workers, self._ahead, self._keep = retry_policy, workers, ahead, keep
        self._cancel, self._turn = CancelToken(), threading.Condition()
        self._ready: dict[int, memoryview] = {}
        self._started: set[int] = set()
        self._next = self._running = self._taken = 0
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        with self._turn:
            self._fill()
        return self

    def __exit__(self, *args: object) -> None:
        self._cancel()
        with self._turn:
            self._turn.notify_all()

    @abstractmethod
    def _admitted(self, place: int) -> bool:
        """Whether a block may be received now; the lock is held."""

    def _wait(self, there: Callable[[], bool]) -> None:
        """Until it is there or something went wrong, which is raised; the lock is held."""
        self._turn.notify_all()
        while not there():
            if self._failure is not None:
                raise self._failure
            self._turn.wait()

    def _pop(self, place: int) -> memoryview:
        block = self._ready.pop(place)
        self._taken += len(block)
        self._turn.notify_all()
        return block

    def _fill(self) -> None:
        """Start requests while there are workers for them; the lock is held."""
        while self._next < len(self._runs) and self._running < self._workers and not self._cancel.called:
            self._start(self._next)
            self._next += 1

    def _start(self, number: int) -> None:
        if number not in self._started:
            self._started.add(number)
            self._running += 1
            threading.Thread(target=self._run, args=(self._runs[number],), name="ckptzoo-fetch", daemon=True).start()

    def _run(self, run: RangeRequest) -> None:
        try:
            blocks = checked(
                self._store,
                self._wanted,
                run,
                retry_policy=self._retry_policy,
                cancel=self._cancel,
                before=self._before,
            )
            with closing(blocks):  # also where a block cannot be kept
                for place, block in blocks:
                    self._keep(self._wanted[place], block)
                    with self._turn:
                        self._ready[place] = block
                        self._turn.notify_all()
        except Cancelled:
            pass
        except BaseException as error:
            with self._turn:
                self._failure = self._failure or error
                self._turn.notify_all()
        finally:
            with self._turn:
                self._running -= 1
                self._fill()

    def _before(self, place: int) -> None:
        with self._turn:
            while not (self._cancel.called or self._admitted(place)):
                self._turn.wait()
        if self._cancel.called:
            raise Cancelled


class InOrder(Fetching):
    """Blocks for a reader who takes them in the order of their places.

    A block is received when it ends within ``ahead`` bytes of what was taken, counted in the reader's order, or when
    the reader waits for it; then its request is started whatever else runs. So memory is bounded by ``ahead`` and one
    block, and no block that the reader waits for stands behind one that waits for the reader.
    """

    def __init__(self, store: Store, wanted: Sequence[Span], runs: Sequence[RangeRequest], **how: Any) -> None:
        super().__init__(store, wanted, runs, **how)
        self._owner = {place: number for number, run in enumerate(runs) for place in run.places}
        places = sorted(self._owner)
        sizes = (wanted[place].stop - wanted[place].start for place in places)
        self._ends = dict(zip(places, accumulate(sizes), strict=True))
        self._awaited = -1

    def take(self, place: int) -> memoryview:
        """One block, waited for; raises what went wrong in any request."""
        with self._turn:
            self._awaited = place
            self._start(self._owner[place])
            self._wait(lambda: place in self._ready)
            return self._pop(place)

    def _admitted(self, place: int) -> bool:
        return place == self._awaited or self._ends[place] - self._taken <= self._ahead


class AsReady(Fetching):
    """Blocks for a reader who takes whatever has come; at most ``ahead`` bytes, or one block, are on their way."""

    def __init__(self, store: Store, wanted: Sequence[Span], runs: Sequence[RangeRequest], **how: Any) -> None:
        super().__init__(store, wanted, runs, **how)
        self._asked = 0

    def take(self) -> tuple[int, memoryview]:
        """The next block that has come, with its place; raises what went wrong in any request."""
        with self._turn:
            self._wait(lambda: bool(self._ready))
            place = next(iter(self._ready))
            return place, self._pop(place)

    def _admitted(self, place: int) -> bool:
        size = self._wanted[place].stop - self._wanted[place].start
        if self._asked > self._taken and self._asked + size - self._taken > self._ahead:
            return False
        self._asked += size
        return True
