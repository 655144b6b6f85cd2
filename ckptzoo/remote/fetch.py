"""Many blocks at once: in parallel, ahead of the reader, each checked before it is handed out."""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any, Self

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.remote.patience import HaltedError, Patience, received
from ckptzoo.remote.plan import Run
from ckptzoo.remote.store import Halt, Store
from ckptzoo.spec.span import Span

Keep = Callable[[Span, memoryview], None]
"""Told every block that was fetched and found right, in the thread that fetched it."""


def checked(
    store: Store, wanted: Sequence[Span], run: Run, *, patience: Patience, halt: Halt, before: Callable[[int], None]
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
    source = received(store, run.name, run.start, run.stop, patience=patience, halt=halt)
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
                again = received(store, block.name, block.start, block.stop, patience=patience, halt=halt)
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
        runs: Sequence[Run],
        *,
        patience: Patience,
        workers: int,
        ahead: int,
        keep: Keep,
    ) -> None:
        self._store, self._wanted, self._runs = store, wanted, list(runs)
        self._patience, self._workers, self._ahead, self._keep = patience, workers, ahead, keep
        self._halt, self._turn = Halt(), threading.Condition()
        self._ready: dict[int, memoryview] = {}
        self._started: set[int] = set()
        self._next = self._running = self._taken = 0
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        with self._turn:
            self._fill()
        return self

    def __exit__(self, *args: object) -> None:
        self._halt()
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
        while self._next < len(self._runs) and self._running < self._workers and not self._halt.called:
            self._start(self._next)
            self._next += 1

    def _start(self, number: int) -> None:
        if number not in self._started:
            self._started.add(number)
            self._running += 1
            threading.Thread(target=self._run, args=(self._runs[number],), name="ckptzoo-fetch", daemon=True).start()

    def _run(self, run: Run) -> None:
        try:
            blocks = checked(
                self._store, self._wanted, run, patience=self._patience, halt=self._halt, before=self._before
            )
            with closing(blocks):  # also where a block cannot be kept
                for place, block in blocks:
                    self._keep(self._wanted[place], block)
                    with self._turn:
                        self._ready[place] = block
                        self._turn.notify_all()
        except HaltedError:
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
            while not (self._halt.called or self._admitted(place)):
                self._turn.wait()
        if self._halt.called:
            raise HaltedError


class InOrder(Fetching):
    """Blocks for a reader who takes them in the order of their places.

    A block is received when it ends within ``ahead`` bytes of what was taken, counted in the reader's order, or when
    the reader waits for it; then its request is started whatever else runs. So memory is bounded by ``ahead`` and one
    block, and no block that the reader waits for stands behind one that waits for the reader.
    """

    def __init__(self, store: Store, wanted: Sequence[Span], runs: Sequence[Run], **how: Any) -> None:
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

    def __init__(self, store: Store, wanted: Sequence[Span], runs: Sequence[Run], **how: Any) -> None:
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
