"""Files on their way to a hub: hashed, counted as they are sent, and stopped when the caller has gone."""

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.text import Progress

T = TypeVar("T")

_GROUP = 8
"""Files that are handed to Xet storage at a time, which tells nothing of its progress."""
_HASHERS = 4


class HaltedError(Exception):
    """The caller has gone; raised and caught within this room."""


class Outgoing(io.BufferedReader):
    """A file that the client library reads to send it.

    A file object in place of a path also makes the library send it by plain HTTP, which every hub understands: hubs
    other than huggingface.co have no Xet storage, and the library would ask them for it.
    """

    def __init__(self, content: Path | bytes, moved: Callable[[int], None]) -> None:
        raw: Any = io.BytesIO(content) if isinstance(content, bytes) else io.FileIO(content)
        super().__init__(raw)
        self._moved, self._reached, self.counts = moved, 0, False

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes; what is read again for another try is counted once."""
        data = super().read(size)
        more = self.tell() - self._reached
        if self.counts:
            self._reached += max(0, more)
            self._moved(max(0, more))
        return data


class Sending:
    """The files of one commit as operations of the client library, open while the context lasts.

    Parameters
    ----------
    files : where they go, and their bytes or the file that holds them.
    sha256 : what files must be, in hex.
    progress : called as bytes are sent.
    paths : hand out paths, so that the library may use Xet storage.

    Raises
    ------
    IntegrityError
        A file is not what it should be.
    """

    def __init__(
        self, files: Mapping[str, Path | bytes], sha256: Mapping[str, str], progress: Progress | None, *, paths: bool
    ) -> None:
        self._files, self._sha256, self._progress, self._paths = files, sha256, progress, paths
        self._open, self._lock = ExitStack(), threading.Lock()
        self._additions: list[Any] = []
        self._bodies: list[Outgoing] = []
        self._total, self._sent, self._halted = 0, 0, False

    def __enter__(self) -> Self:
        try:
            made = [self._body(content) for content in self._files.values()]
            self._bodies = [body for body in made if isinstance(body, Outgoing)]
            with ThreadPoolExecutor(_HASHERS, "ckptzoo-hash") as pool:
                self._additions = list(pool.map(self._addition, self._files, made))
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
        """What the library is to commit."""
        from huggingface_hub import CommitOperationDelete

        return [*self._additions, *(CommitOperationDelete(name, is_folder=False) for name in delete)]

    def groups(self) -> Iterator[list[Any]]:
        """The files in the groups in which they are uploaded: all at once where every byte is counted.

        What is in several files is in the first group once, because the library would send it from one file in
        several threads; by the second group the hub has it.
        """
        once, again = dict[bytes, Any](), list[Any]()
        for addition in self._additions:
            if once.setdefault(addition.upload_info.sha256, addition) is not addition:
                again.append(addition)
        for listed in (list(once.values()), again):
            size = _GROUP if self._paths else max(1, len(listed))
            for start in range(0, len(listed), size):
                yield listed[start : start + size]

    def interruptible(self, call: Callable[[], T]) -> T:
        """The result of an upload in another thread; an interrupt here ends it at its next bytes or request.

        Every file is sent from its start: the library leaves those that failed where they were.
        """
        from huggingface_hub import get_session

        for body in self._bodies:
            body.seek(0)
        with ExitStack() as hooked, ThreadPoolExecutor(1, "ckptzoo-push") as pool:
            hooks = get_session().event_hooks["request"]
            hooks.append(self._stop)
            hooked.callback(hooks.remove, self._stop)
            try:
                return pool.submit(call).result()
            except Exception:
                raise
            except BaseException:
                self._halted = True
                raise

    def sent(self, group: list[Any]) -> None:
        """A group is on the hub."""
        if self._paths:
            self._move(sum(addition.upload_info.size for addition in group))

    def finished(self) -> int:
        """Everything is there, sent now or before; returns the bytes that were sent now."""
        if self._progress is not None:
            self._progress(self._total, self._total)
        return self._sent

    def _body(self, content: Path | bytes) -> Any:
        return content if self._paths else self._open.enter_context(Outgoing(content, self._move))

    def _addition(self, name: str, body: Any) -> Any:
        from huggingface_hub import CommitOperationAdd

        made = CommitOperationAdd(name, body)
        expected, found = self._sha256.get(name), made.upload_info.sha256.hex()
        if expected not in (None, found):
            step = "Restore it from a copy; ckptzoo verify finds what else is wrong."
            raise IntegrityError(Problem(name, "sha256", str(expected), found, step))
        return made

    def _stop(self, _: Any = None) -> None:
        if self._halted:
            raise HaltedError

    def _move(self, count: int) -> None:
        self._stop()
        with self._lock:
            self._sent += count
            if self._progress is not None:
                self._progress(min(self._sent, self._total), self._total)
