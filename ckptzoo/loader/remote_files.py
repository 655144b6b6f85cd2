"""A zoo on another machine: its files for the format, its blocks for the stacks."""

import os
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from typing import Any

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import table
from ckptzoo.format.files import folders_of
from ckptzoo.remote import AbsentError, Remote
from ckptzoo.schema.layout import Span

HELD_BYTES = 256 * 2**20
"""Blocks of which only some rows were read are held in memory up to so many bytes, those read last."""


class RemoteFiles:
    """The files of a remote zoo, and the blocks that were read last.

    Parameters
    ----------
    remote : where they are, pinned to a revision.
    address, endpoint, token : how it was opened, so that it can be opened anew; the token stays in this process.
    """

    here = None

    def __init__(self, remote: Remote, address: str, endpoint: str | None, token: str | None = None) -> None:
        self.remote, self.address, self.endpoint, self.token = remote, address, endpoint, token
        self._begin()

    def _begin(self) -> None:
        self._held = OrderedDict[bytes, memoryview]()
        self._bytes, self._lock, self._process = 0, threading.Lock(), os.getpid()

    @property
    def _guard(self) -> threading.Lock:
        """The lock of this process: one that was forked may have found the other's taken, for ever."""
        if self._process != os.getpid():
            self._begin()
        return self._lock

    def __getstate__(self) -> dict[str, Any]:
        return {"remote": self.remote, "address": self.address, "endpoint": self.endpoint}

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

    def read(self, name: str, *, max_bytes: int = table.MAX_FILE) -> bytes:
        """A whole file."""
        return self.read_many([name], max_bytes=max_bytes)[0]

    def read_many(self, names: Sequence[str], *, max_bytes: int = table.MAX_FILE) -> list[bytes]:
        """Several whole files at once."""
        try:
            return self.remote.read_many(names, max_bytes=max_bytes)
        except AbsentError as error:
            raise IntegrityError(error.problem) from error

    def spans(self, wanted: Sequence[Span]) -> list[bytes]:
        """Pieces of files."""
        for span in wanted:
            if span.stop - span.start > table.MAX_FILE:
                where, expected = f"{self.name}/{span.name}", f"at most {table.MAX_FILE} bytes"
                step = "Do not use this zoo; tell whoever publishes it."
                raise IntegrityError(Problem(where, "size of a piece", expected, "more", step))
        return [bytes(data) for data in self.remote.in_order(wanted)]

    def blocks(self, wanted: Sequence[Span], *, hold: Iterable[int] = ()) -> Generator[tuple[int, memoryview]]:
        """Blocks with their places in ``wanted`` as they come, those in memory first.

        Parameters
        ----------
        wanted : each once.
        hold : places of the blocks that will soon be read again.
        """
        with self._guard:
            ready = [(place, self._held.get(span.sha256)) for place, span in enumerate(wanted)]
        for place, data in ready:
            if data is not None:
                yield place, data
        lacking, held = [place for place, data in ready if data is None], set(hold)
        for number, data in self.remote.as_ready([wanted[place] for place in lacking]):
            place = lacking[number]
            if place in held:
                self._hold(wanted[place].sha256, data)
            yield place, data

    def prefetch(self, wanted: Iterable[Span]) -> None:
        """Fetch blocks that are read next, by as few requests as possible, and hold them in memory."""
        spans = list({span.sha256: span for span in wanted}.values())
        if sum(span.stop - span.start for span in spans) <= HELD_BYTES // 2:
            for _ in self.blocks(spans, hold=range(len(spans))):
                pass

    def _hold(self, key: bytes, data: memoryview) -> None:
        with self._guard:
            if key not in self._held:
                self._held[key] = data
                self._bytes += len(data)
            self._held.move_to_end(key)
            while self._bytes > HELD_BYTES and len(self._held) > 1:
                _, gone = self._held.popitem(last=False)
                self._bytes -= len(gone)
