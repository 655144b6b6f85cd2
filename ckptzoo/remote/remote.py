"""A zoo on another machine as a reader needs it: names, whole files, and blocks, through the cache."""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from ckptzoo.errors import IntegrityError, OfflineError, Problem
from ckptzoo.remote.cache import Cache, is_right
from ckptzoo.remote.fetch import AsReady, InOrder
from ckptzoo.remote.patience import Patience, received
from ckptzoo.remote.plan import plan
from ckptzoo.remote.store import Entry, Halt, Store, found
from ckptzoo.spec.span import Span

WORKERS = 8
AHEAD = 256 * 2**20


class Remote:
    """A store and its cache.

    Parameters
    ----------
    store : where the zoo is.
    cache : None reads everything from the store; right for folders of this machine.
    offline : what the cache lacks is not fetched.
    workers : requests at a time.
    ahead : bytes that are received before the reader takes them.
    """

    def __init__(
        self,
        store: Store,
        cache: Cache | None,
        *,
        offline: bool = False,
        patience: Patience | None = None,
        workers: int = WORKERS,
        ahead: int = AHEAD,
    ) -> None:
        self.store, self.cache, self.offline = store, cache, offline
        self._patience, self._workers, self._ahead = patience or Patience(), workers, ahead

    @property
    def name(self) -> str:
        """What messages call the zoo."""
        return self.store.address

    @property
    def revision(self) -> str:
        """What was pinned at opening."""
        return self.store.revision

    @property
    def entries(self) -> dict[str, Entry]:
        """Every file by name."""
        return dict(self.store.entries)

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """A whole file, checked where the store knows its digest.

        Raises
        ------
        AbsentError
            There is no such file.
        IntegrityError
            It is larger than ``max_bytes``, or came twice with another digest.
        OfflineError
            The cache lacks it, and it may not be fetched.
        """
        entry = found(self.store.entries, name, where=self.name)
        if entry.size > max_bytes:
            step = "Do not use this zoo; tell whoever publishes it."
            raise IntegrityError(Problem(f"{self.name}/{name}", "size", f"at most {max_bytes} bytes", "more", step))
        if self.cache is not None and entry.digest and (data := self.cache.read(entry.digest)) is not None:
            return data
        if self.offline:
            raise self._missing([name], entry.size)
        data = b""
        for _ in range(2):
            with closing(received(self.store, name, 0, entry.size, patience=self._patience, halt=Halt())) as pieces:
                data = b"".join(pieces)
            if not entry.digest or is_right(entry.digest, data):
                break
        else:
            step = "Open the zoo again; if that does not help, tell whoever publishes it."
            raise IntegrityError(Problem(f"{self.name}/{name}", "digest", str(entry.digest), "another, twice", step))
        if self.cache is not None and entry.digest:
            self.cache.write(entry.digest, data)
        return data

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> list[bytes]:
        """Several whole files at once, as ``read``."""
        if len(names) < 2:
            return [self.read(name, max_bytes=max_bytes) for name in names]
        with ThreadPoolExecutor(min(self._workers, len(names)), "ckptzoo-read") as pool:
            return list(pool.map(lambda name: self.read(name, max_bytes=max_bytes), names))

    def span(self, name: str, start: int, stop: int) -> bytes:
        """Bytes of a file for which there is no digest: nothing is checked, and nothing is cached.

        Notes
        -----
        For headers and footers, by callers that compare a whole file with its digest afterwards.
        """
        if self.offline:
            raise self._missing([name], stop - start)
        with closing(received(self.store, name, start, stop, patience=self._patience, halt=Halt())) as pieces:
            return b"".join(pieces)

    def in_order(self, wanted: Sequence[Span]) -> Generator[memoryview]:
        """Blocks in the order in which they are asked for, fetched ahead; closing the generator stops all requests.

        Raises
        ------
        IntegrityError
            A block came twice with another digest; none of its bytes is handed out.
        RemoteError
            The store gave none, for longer than patience lasts.
        OfflineError
            Some are not in the cache and may not be fetched; says how many, before the first is handed out.
        """
        missing = self._lacking(wanted)
        with InOrder(self.store, wanted, plan(wanted, missing, longest=self._ahead), **self._how) as fetching:
            fetched = set(missing)
            for place, block in enumerate(wanted):
                yield fetching.take(place) if place in fetched else self._cached(block)

    def as_ready(self, wanted: Sequence[Span]) -> Generator[tuple[int, memoryview]]:
        """Blocks with their places as they come, those in the cache first; else as ``in_order``.

        This is the faster way to fill an array, because every request runs at full speed.
        """
        missing = self._lacking(wanted)
        runs = sorted(plan(wanted, missing, longest=2**63), key=lambda run: run.start - run.stop)  # longest first
        with AsReady(self.store, wanted, runs, **self._how) as fetching:
            fetched = set(missing)
            for place, block in enumerate(wanted):
                if place not in fetched:
                    yield place, self._cached(block)
            for _ in missing:
                yield fetching.take()

    @property
    def _how(self) -> dict[str, Any]:
        return {"patience": self._patience, "workers": self._workers, "ahead": self._ahead, "keep": self._keep}

    def _keep(self, block: Span, data: memoryview) -> None:
        if self.cache is not None:
            self.cache.write(f"sha256:{block.sha256.hex()}", data)

    def _lacking(self, wanted: Sequence[Span]) -> list[int]:
        """Places of the blocks that are to be fetched; raises where they may not be."""
        for block in wanted:
            entry = found(self.store.entries, block.name, where=self.name)
            if not 0 <= block.start < block.stop <= entry.size:
                expected, got = f"blocks within {entry.size} bytes", f"{block.start} to {block.stop}"
                step = "Tell whoever publishes the zoo: its index does not fit its files."
                raise IntegrityError(Problem(f"{self.name}/{block.name}", "size", expected, got, step))
        cache = self.cache
        missing = [
            place
            for place, block in enumerate(wanted)
            if cache is None or not cache.holds(f"sha256:{block.sha256.hex()}")
        ]
        if missing and self.offline:
            lacking = [wanted[place] for place in missing]
            nbytes = sum(block.stop - block.start for block in lacking)
            raise self._missing(sorted({block.name for block in lacking}), nbytes, len(lacking))
        return missing

    def _cached(self, block: Span) -> memoryview:
        """A block that the cache had, fetched after all if it has gone or is not right."""
        if self.cache is not None and (data := self.cache.read(f"sha256:{block.sha256.hex()}")) is not None:
            return memoryview(data)
        if self.offline:
            raise self._missing([block.name], block.stop - block.start, 1)
        with InOrder(self.store, [block], plan([block], [0], longest=self._ahead), **self._how) as fetching:
            return fetching.take(0)

    def _missing(self, names: list[str], nbytes: int, blocks: int | None = None) -> OfflineError:
        what = f"{blocks} blocks" if blocks is not None else names[0]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} files more" if len(names) > 3 else "")
        got = f"{nbytes} bytes missing" + (f" of {shown}" if blocks is not None else "")
        step = "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to fetch them."
        return OfflineError(Problem(self.name, what, "in the cache", got, step))
