"""A zoo on another machine: its files for the format, its blocks for the readers."""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckptzoo.errors import AbsentError, IntegrityError, OfflineError, Problem
from ckptzoo.format import limits
from ckptzoo.format.files import folders_of
from ckptzoo.schema.layout import Span

if TYPE_CHECKING:
    from ckptzoo.format.sources import Servers
    from ckptzoo.remote import Remote  # with all that speaks to other machines

BLOCK_CACHE_BYTES = 256 * 2**20
"""Bytes of blocks kept in memory of which only some rows were read, the most recently read ones."""

SMALL_FILE_BYTES = 128 * 2**10
"""A file of at most this many bytes is fetched whole when a piece of it is asked for: it takes about one round trip."""


class RemoteFiles:
    """The files of a remote zoo, and the blocks that were read last.

    ``remote`` says where they are, pinned to a revision; ``address``, ``endpoint`` and ``token`` say how it was opened,
    so that it can be opened again; the token stays in this process. ``follow`` says from which servers the files are
    read that its parts refer to; None where they are not.
    """

    here = None

    def __init__(
        self,
        remote: "Remote",
        address: str,
        endpoint: str | None,
        token: str | None = None,
        follow: "Servers | None" = None,
    ) -> None:
        self.remote, self.address, self.endpoint, self.token = remote, address, endpoint, token
        self.follow = follow
        self._clear()

    def _clear(self) -> None:
        self._blocks = OrderedDict[bytes, memoryview]()
        self._bytes, self._lock, self._process = 0, threading.Lock(), os.getpid()
        self._small: tuple[str, bytes | None] = ("", None)

    @property
    def _guard(self) -> threading.Lock:
        """The lock of this process: in a forked one, a thread of the parent may hold the lock forever."""
        if self._process != os.getpid():
            self._clear()
        return self._lock

    def __getstate__(self) -> dict[str, Any]:
        return {"remote": self.remote, "address": self.address, "endpoint": self.endpoint, "follow": self.follow}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    @property
    def name(self) -> str:
        """The address, as ``hf://datasets/org/zoo``."""
        return self.remote.name

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {name: entry.size for name, entry in self.remote.entries.items()}

    @cached_property
    def _folders(self) -> dict[str, tuple[str, ...]]:
        return folders_of(self._sizes)

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where there is none."""
        return self._sizes.get(name)

    def listed(self, folder: str) -> tuple[str, ...]:
        """Names of the files and folders in a folder, in order."""
        return self._folders.get(folder, ())

    def read(self, name: str, *, max_bytes: int = limits.MAX_FILE) -> bytes:
        """A whole file."""
        return self.read_many([name], max_bytes=max_bytes)[0]

    def read_many(self, names: Sequence[str], *, max_bytes: int = limits.MAX_FILE) -> list[bytes]:
        """Several whole files at once."""
        try:
            return self.remote.read_many(names, max_bytes=max_bytes)
        except AbsentError as error:
            # a file that the zoo's documents name and that is missing is damage, as in a folder
            raise IntegrityError(error.problem) from error

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        """Pieces of files."""
        for span in wanted:
            if span.stop - span.start > limits.MAX_FILE:
                location, expected = f"{self.name}/{span.name}", f"at most {limits.MAX_FILE} bytes"
                step = "Do not use this zoo; tell whoever publishes it."
                raise IntegrityError(Problem(location, "size of a piece", expected, "more", step))
        whole = self._small_file(wanted[0].name) if len({span.name for span in wanted}) == 1 else None
        if whole is not None:
            pieces = [whole[span.start : span.stop] for span in wanted]
            if all(hashlib.sha256(piece).digest() == span.sha256 for piece, span in zip(pieces, wanted, strict=True)):
                return pieces
        return [bytes(data) for data in self.remote.in_order(wanted)]

    def _small_file(self, name: str) -> bytes | None:
        """A whole small file whose digest is known, the last of which is kept; None where it is damaged or not there.

        Opening reads the tail of a snapshot, and what follows its columns, each a round trip.
        """
        entry = self.remote.store.entries.get(name)
        if entry is None or entry.digest is None or entry.size > SMALL_FILE_BYTES:
            return None
        with self._guard:
            held, data = self._small
        if held != name:
            try:
                data = self.remote.read(name, max_bytes=SMALL_FILE_BYTES)
            except (IntegrityError, OfflineError):  # the pieces may be sound, or in the cache
                data = None
            with self._guard:
                self._small = (name, data)
        return data

    def blocks(self, wanted: Sequence[Span], *, keep: Iterable[int] = ()) -> Generator[tuple[int, memoryview]]:
        """Blocks with their positions in ``wanted`` as they come, those in memory first.

        ``wanted`` has each block once; ``keep`` holds the positions of the blocks that will soon be read again.
        """
        with self._guard:
            cached = [(position, self._blocks.get(span.sha256)) for position, span in enumerate(wanted)]
        for position, data in cached:
            if data is not None:
                yield position, data
        missing, positions_to_keep = [position for position, data in cached if data is None], set(keep)
        for number, data in self.remote.as_ready([wanted[position] for position in missing]):
            position = missing[number]
            if position in positions_to_keep:
                self._keep(wanted[position].sha256, data)
            yield position, data

    def prefetch(self, wanted: Iterable[Span]) -> None:
        """Fetch blocks that are read next, by as few requests as possible, and keep them in memory.

        Blocks of more than half the cache are left to the read itself.
        """
        # parts that hold equal tensors have equal digests: one fetch serves both
        spans = list({span.sha256: span for span in wanted}.values())
        if sum(span.stop - span.start for span in spans) <= BLOCK_CACHE_BYTES // 2:
            for _ in self.blocks(spans, keep=range(len(spans))):
                pass

    def _keep(self, key: bytes, data: memoryview) -> None:
        with self._guard:
            if key not in self._blocks:
                self._blocks[key] = data
                self._bytes += len(data)
            self._blocks.move_to_end(key)
            while self._bytes > BLOCK_CACHE_BYTES and len(self._blocks) > 1:
                _, dropped = self._blocks.popitem(last=False)
                self._bytes -= len(dropped)
