"""The files of one commit to a hub (``Sending``): hashed, counted as they are sent, stopped by an interrupt."""

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.remote.retry import Cancelled
from ckptzoo.text import Progress

T = TypeVar("T")

_GROUP = 8
"""Files that are given to Xet storage at a time: it reports no progress, so progress moves by such groups."""
_HASHERS = 4
"""Threads; hashlib releases the interpreter's lock."""


class Outgoing(io.BufferedReader):
    """A file that the client library reads to send it.

    A file object in place of a path also makes the library send it by plain HTTP, which every hub understands: hubs
    other than huggingface.co have no Xet storage, and the library would ask them for it.
    """

    def __init__(self, content: Path | bytes, on_read: Callable[[int], None]) -> None:
        # CommitOperationAdd takes file objects that are an io.BufferedIOBase alone
        raw: Any = io.BytesIO(content) if isinstance(content, bytes) else io.FileIO(content)
        super().__init__(raw)
        self._on_read, self._furthest, self.counts = on_read, 0, False  # the library also reads it to hash it

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes; those that are read again for another attempt are counted once."""
        data = super().read(size)
        new = max(0, self.tell() - self._furthest)
        if self.counts:
            self._furthest += new
            self._on_read(new)
        return data


class Sending:
    """The files of one commit as operations of the client library, open while the context lasts.

    ``files`` are by their names in the repository, as bytes or as the file that holds them; ``sha256`` are digests that
    files must have, in hex, else ``IntegrityError``; ``progress`` is called as bytes are sent; with ``by_path`` the
    library gets paths in place of file objects, so that it may use Xet storage.
    """

    def __init__(
        self, files: Mapping[str, Path | bytes], sha256: Mapping[str, str], progress: Progress | None, *, by_path: bool
    ) -> None:
        self._files, self._sha256, self._progress, self._by_path = files, sha256, progress, by_path
        self._open, self._lock = ExitStack(), threading.Lock()
        self._additions: list[Any] = []
        self._bodies: list[Outgoing] = []
        self._total, self._sent, self._cancelled = 0, 0, False

    def __enter__(self) -> Self:
        try:
            bodies = [self._body(content) for content in self._files.values()]
            self._bodies = [body for body in bodies if isinstance(body, Outgoing)]
            with ThreadPoolExecutor(_HASHERS, "ckptzoo-hash") as pool:
                self._additions = list(pool.map(self._addition, self._files, bodies))
        # an interrupt too: the files that are open are closed
        except BaseException:
            self._open.close()
            raise
        self._total = sum(addition.upload_info.size for addition in self._additions)
        for body in self._bodies:
            body.counts = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def operations(self, delete: Iterable[str] = ()) -> list[Any]:
        """Return the operations that the library commits."""
        from huggingface_hub import CommitOperationDelete

        return [*self._additions, *(CommitOperationDelete(name, is_folder=False) for name in delete)]

    def groups(self) -> Iterator[list[Any]]:
        """Yield the files in the groups in which they are uploaded: all at once where every byte is counted.

        Content that several files share is in the first group once, because the library would read one of the file
        objects in several threads; when the second group is sent, the hub has it.
        """
        first, repeated = dict[bytes, Any](), list[Any]()
        for addition in self._additions:
            if first.setdefault(addition.upload_info.sha256, addition) is not addition:
                repeated.append(addition)
        for additions in (list(first.values()), repeated):
            size = _GROUP if self._by_path else max(1, len(additions))
            for start in range(0, len(additions), size):
                yield additions[start : start + size]

    def interruptible(self, call: Callable[[], T]) -> T:
        """Return the result of an upload in another thread; an interrupt in this one ends it at its next bytes or
        request.

        Files are rewound first: after a failure the library leaves them where it stopped reading.
        """
        from huggingface_hub import get_session

        for body in self._bodies:
            body.seek(0)
        with ExitStack() as hooked, ThreadPoolExecutor(1, "ckptzoo-push") as pool:
            hooks = get_session().event_hooks["request"]
            hooks.append(self._check_cancelled)
            hooked.callback(hooks.remove, self._check_cancelled)
            try:
                return pool.submit(call).result()
            except Exception:
                raise
            except BaseException:  # KeyboardInterrupt, which is raised in the main thread only
                self._cancelled = True
                raise

    def sent(self, group: list[Any]) -> None:
        """Record that a group is on the hub."""
        if self._by_path:
            self._add_sent(sum(addition.upload_info.size for addition in group))

    def finished(self) -> int:
        """Report full progress, because all files are on the hub; return the bytes that were sent for it."""
        if self._progress is not None:
            self._progress(self._total, self._total)
        return self._sent

    def _body(self, content: Path | bytes) -> Any:
        return content if self._by_path else self._open.enter_context(Outgoing(content, self._add_sent))

    def _addition(self, name: str, body: Any) -> Any:
        from huggingface_hub import CommitOperationAdd

        addition = CommitOperationAdd(name, body)  # which reads the file and hashes it
        expected, got = self._sha256.get(name), addition.upload_info.sha256.hex()
        if expected not in (None, got):
            step = "Restore it from a copy; ckptzoo verify finds what else is wrong."
            raise IntegrityError(Problem(name, "sha256", str(expected), got, step))
        return addition

    def _check_cancelled(self, _: Any = None) -> None:
        if self._cancelled:
            raise Cancelled

    def _add_sent(self, count: int) -> None:
        self._check_cancelled()
        with self._lock:
            self._sent += count
            if self._progress is not None:
                self._progress(min(self._sent, self._total), self._total)
