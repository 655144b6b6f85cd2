"""Many blocks at once: ``plan`` makes few requests of them, ``InOrder`` and ``AsReady`` run those in parallel.

Blocks are received ahead of the reader, and each is checked before it is handed out.
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
"""How many bytes between wanted ones are fetched to save requests, as a share of the bytes wanted of the file."""
WASTE_BYTES = 200_000
"""Or this many bytes, if those are more, while a file has more than ``FEW_REQUESTS``."""
SPLIT_BYTES = 32 * 2**20
"""A request of at least twice this is split in two, if it is the only one of its file."""
FEW_REQUESTS = 2
"""Requests to one file: a long one is split until there are as many, and ``WASTE_BYTES`` are spent on no fewer.

How many run at once is ``WORKERS`` of ``remote.py``.
"""


@dataclass(frozen=True)
class RangeRequest:
    """One request for bytes of a file, those between blocks included.

    ``places`` are the indices of its blocks in the list of wanted ones; ascending, and so are their offsets.
    """

    name: str
    start: int
    stop: int
    places: tuple[int, ...]


def plan(wanted: Sequence[Span], places: Sequence[int], *, split_limit: int) -> list[RangeRequest]:
    """Return requests for some of the blocks, sorted by the first block that each brings.

    A request brings blocks of one file whose order in the file is the order in which they are wanted, so that a
    reader who takes them in order never waits behind a block that it wants later. Among such neighbours the smallest
    gaps are bridged first, while the bytes between them stay within ``WASTE_SHARE`` of those wanted of the file, and
    then within ``WASTE_BYTES`` while the file has more than ``FEW_REQUESTS``. No other choice with as much waste needs
    fewer requests.

    Tested in ``tests/remote/test_fetch_plan.py``. Cost: one sort.

    ``wanted`` is in the order of the reader; no block overlaps another. ``places`` are the blocks to fetch. No request
    of more than ``split_limit`` bytes is split, because its halves could not both be received ahead of the reader.
    """
    files: dict[str, list[int]] = {}
    for place in places:
        files.setdefault(wanted[place].name, []).append(place)
    requests: list[RangeRequest] = []
    for in_file in files.values():
        # the order in a file decides which blocks one range can bring
        requests.extend(_plan_file(wanted, sorted(in_file, key=lambda place: wanted[place].start), split_limit))
    return sorted(requests, key=lambda request: request.places[0])


def _plan_file(wanted: Sequence[Span], order: list[int], split_limit: int) -> list[RangeRequest]:
    """Return requests to one file for the blocks at these places, which are in the order of their offsets."""
    gaps: list[tuple[int, int]] = []
    cuts = set[int]()
    for index, (before, after) in enumerate(pairwise(order), start=1):
        gap = wanted[after].start - wanted[before].stop
        if before > after or gap < 0:
            cuts.add(index)
        else:
            gaps.append((gap, index))
    share = WASTE_SHARE * sum(wanted[place].stop - wanted[place].start for place in order)
    requests, waste = len(order), 0
    for gap, index in sorted(gaps):
        limit = share if requests <= FEW_REQUESTS else max(share, WASTE_BYTES)
        if waste + gap <= limit:
            requests, waste = requests - 1, waste + gap
        else:
            cuts.add(index)
    bounds = [0, *sorted(cuts), len(order)]
    pieces = [order[start:stop] for start, stop in pairwise(bounds)]
    while 0 < len(pieces) < FEW_REQUESTS:
        halves = [half for piece in pieces for half in _halved(wanted, piece, split_limit)]
        if len(halves) == len(pieces):
            break
        pieces = halves
    return [
        RangeRequest(wanted[piece[0]].name, wanted[piece[0]].start, wanted[piece[-1]].stop, tuple(piece))
        for piece in pieces
    ]


def _halved(wanted: Sequence[Span], piece: list[int], split_limit: int) -> list[list[int]]:
    """Return the places of one request, split at the block nearest to its middle if it is to be split."""
    start, stop = wanted[piece[0]].start, wanted[piece[-1]].stop
    if len(piece) < 2 or not 2 * SPLIT_BYTES <= stop - start <= split_limit:
        return [piece]
    middle = (start + stop) // 2
    index = min(range(1, len(piece)), key=lambda index: abs(wanted[piece[index]].start - middle))
    return [piece[:index], piece[index:]]


Keep = Callable[[Span, memoryview], None]
"""Called with every block that was fetched and has its digest, in the thread that fetched it."""


def fetch_checked(
    store: Store,
    wanted: Sequence[Span],
    request: RangeRequest,
    *,
    retry_policy: RetryPolicy,
    cancel: CancelToken,
    before: Callable[[int], None],
    needs_digest: bool = True,
) -> Generator[tuple[int, memoryview]]:
    """Yield the blocks of one request with their places, each after its digest was compared. A block with a wrong
    digest is fetched once more by itself. ``before`` is called with a block's place before its bytes are received, and
    may wait. Without ``needs_digest`` a block may have an empty one, which nothing is compared with.

    Raises IntegrityError: a block came twice with a wrong digest.
    """
    before(request.places[0])
    source = read_range(store, request.name, request.start, request.stop, retry_policy=retry_policy, cancel=cancel)
    position, piece = request.start, memoryview(b"")  # what was received and not yet used, and where it begins
    try:
        for place in request.places:
            block = wanted[place]
            if place != request.places[0]:
                before(place)
            data = bytearray(block.stop - block.start)
            filled = 0
            while filled < len(data):
                skipped = min(len(piece), max(0, block.start - position))
                position, piece = position + skipped, piece[skipped:]
                used = min(len(piece), len(data) - filled)
                if position >= block.start and used:
                    data[filled : filled + used] = piece[:used]
                    position, piece, filled = position + used, piece[used:], filled + used
                if filled < len(data) and not piece:
                    piece = memoryview(next(source))
            if (needs_digest or block.sha256) and hashlib.sha256(data).digest() != block.sha256:
                # its bytes may have been damaged on the way; a second time they are wrong at their source
                second = read_range(
                    store, block.name, block.start, block.stop, retry_policy=retry_policy, cancel=cancel
                )
                data = bytearray().join(second)
                if (got := hashlib.sha256(data).hexdigest()) != block.sha256.hex():
                    location = f"{store.address}/{block.name}"
                    what = f"sha256 of bytes {block.start} to {block.stop}"
                    step = "Tell whoever publishes the zoo: its file is not what its index says."
                    raise IntegrityError(Problem(location, what, block.sha256.hex(), got, step))
            yield place, memoryview(data).toreadonly()
    finally:
        source.close()


class Fetching(ABC):
    """Requests in threads of their own, and the blocks that they brought, until the reader takes them.

    Leaving its ``with`` block stops everything that still runs. ``requests`` cover some or all of the ``wanted``
    blocks, which are in the order of the reader; at most ``workers`` run at a time, in this order. ``ahead`` bytes are
    received before the reader takes them. ``keep`` is called with every received block; ``needs_digest`` is that of
    ``fetch_checked``.
    """

    def __init__(
        self,
        store: Store,
        wanted: Sequence[Span],
        requests: Sequence[RangeRequest],
        *,
        retry_policy: RetryPolicy,
        workers: int,
        ahead: int,
        keep: Keep,
        needs_digest: bool = True,
    ) -> None:
        self._store, self._wanted, self._requests = store, wanted, list(requests)
        self._retry_policy, self._workers, self._ahead, self._keep = retry_policy, workers, ahead, keep
        self._needs_digest = needs_digest
        self._cancel, self._changed = CancelToken(), threading.Condition()
        self._ready: dict[int, memoryview] = {}
        self._started: set[int] = set()
        self._next = self._running = 0  # the request to start next, and how many run
        self._taken = 0  # bytes that the reader has
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        with self._changed:
            self._start_requests()
        return self

    def __exit__(self, *args: object) -> None:
        self._cancel()
        with self._changed:
            self._changed.notify_all()

    @abstractmethod
    def _may_receive(self, place: int) -> bool:
        """Return whether a block may be received now; the lock is held."""

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; raises the error of any request. The lock is held."""
        self._changed.notify_all()
        while not condition():
            if self._failure is not None:
                raise self._failure
            self._changed.wait()

    def _pop(self, place: int) -> memoryview:
        block = self._ready.pop(place)
        self._taken += len(block)
        self._changed.notify_all()
        return block

    def _start_requests(self) -> None:
        """Start requests while there are workers for them; the lock is held."""
        while self._running < self._workers and (request := self._following()) is not None:
            self._start_thread(request)

    def _start(self, number: int) -> None:
        """Start one request, whatever else runs; the lock is held."""
        if number not in self._started:
            self._started.add(number)
            self._start_thread(self._requests[number])

    def _start_thread(self, request: RangeRequest) -> None:
        self._running += 1
        # daemon: a thread that waits for a server must not keep the process from ending
        threading.Thread(target=self._run, args=(request,), name="ckptzoo-fetch", daemon=True).start()

    def _following(self) -> RangeRequest | None:
        """Return the next request that nobody has started, or None; the lock is held."""
        while self._next < len(self._requests) and not self._cancel.called:
            self._next += 1
            if self._next - 1 not in self._started:
                self._started.add(self._next - 1)
                return self._requests[self._next - 1]
        return None

    def _run(self, request: RangeRequest | None) -> None:
        """Make one request after the other, in a thread."""
        while request is not None:
            self._fetch(request)
            with self._changed:
                # more run than there are workers where the reader has waited for some
                request = self._following() if self._running <= self._workers else None
                self._running -= request is None

    def _fetch(self, request: RangeRequest) -> None:
        try:
            blocks = fetch_checked(
                self._store,
                self._wanted,
                request,
                retry_policy=self._retry_policy,
                cancel=self._cancel,
                before=self._before,
                needs_digest=self._needs_digest,
            )
            with closing(blocks):  # its connection too, where self._keep raises
                for place, block in blocks:
                    self._keep(self._wanted[place], block)
                    with self._changed:
                        self._ready[place] = block
                        self._changed.notify_all()
        except Cancelled:
            pass  # the reader has left
        except BaseException as error:  # whatever a store, the cache or keep raised: the reader is in another thread
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _before(self, place: int) -> None:
        with self._changed:
            while not (self._cancel.called or self._may_receive(place)):
                self._changed.wait()
        if self._cancel.called:
            raise Cancelled


class InOrder(Fetching):
    """Blocks for a reader who takes them in the order of their places.

    A block is received when it ends within ``ahead`` bytes of what was taken, counted in the reader's order, or when
    the reader waits for it; then its request is started whatever else runs. So memory is limited to ``ahead`` and one
    block, and a block that the reader waits for is never behind one that waits for the reader.
    """

    def __init__(self, store: Store, wanted: Sequence[Span], requests: Sequence[RangeRequest], **options: Any) -> None:
        super().__init__(store, wanted, requests, **options)
        self._request_of = {place: number for number, request in enumerate(requests) for place in request.places}
        places = sorted(self._request_of)
        sizes = (wanted[place].stop - wanted[place].start for place in places)
        self._end_of = dict(zip(places, accumulate(sizes), strict=True))
        self._awaited = -1  # the place that the reader waits for

    def take(self, place: int) -> memoryview:
        """Wait for one block and return it; raises the error of any request."""
        with self._changed:
            self._awaited = place
            self._start(self._request_of[place])
            self._wait_until(lambda: place in self._ready)
            return self._pop(place)

    def _may_receive(self, place: int) -> bool:
        return place == self._awaited or self._end_of[place] - self._taken <= self._ahead


class AsReady(Fetching):
    """Blocks for a reader who takes whatever has come; at most ``ahead`` bytes, or one block, are held for it."""

    def __init__(self, store: Store, wanted: Sequence[Span], requests: Sequence[RangeRequest], **options: Any) -> None:
        super().__init__(store, wanted, requests, **options)
        self._admitted = 0  # bytes that were received or may be

    def take(self) -> tuple[int, memoryview]:
        """Return the next block that has come, with its place; raises the error of any request."""
        with self._changed:
            self._wait_until(lambda: bool(self._ready))
            place = next(iter(self._ready))
            return place, self._pop(place)

    def _may_receive(self, place: int) -> bool:
        size = self._wanted[place].stop - self._wanted[place].start
        if self._admitted > self._taken and self._admitted + size - self._taken > self._ahead:
            return False
        self._admitted += size
        return True
