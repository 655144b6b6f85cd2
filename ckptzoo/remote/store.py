"""What every place that holds a zoo must be able to do: say which files it has, and hand out ranges of them."""

import contextlib
import re
import socket
import threading
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ckptzoo.errors import AbsentError, IntegrityError, Problem

_BAD = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]|(^|/)(\.{0,2}|[^/]{256,})(/|$)")
"""Control characters, halves of letters, backslashes, and path segments that are empty, ``.``, ``..`` or too long."""
MAX_NAME = 1024


@dataclass(frozen=True)
class Entry:
    """One file of a zoo.

    Parameters
    ----------
    name : its path from the zoo's folder, with slashes.
    size : bytes.
    digest : ``sha256:<hex>`` of its bytes, ``git:<hex>`` (sha1 of git's blob), or None where the store does not know.
    """

    name: str
    size: int
    digest: str | None = None


class Halt:
    """Tells transfers to stop: no new request, no further wait, and sockets that are being read are shut down."""

    def __init__(self) -> None:
        self._event, self._lock, self._sockets = threading.Event(), threading.Lock(), set[socket.socket]()

    def __call__(self) -> None:
        """Stop everything that was given this."""
        self._event.set()
        with self._lock:
            for connected in self._sockets:
                _shut(connected)

    @property
    def called(self) -> bool:
        """Whether it has been called."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but not longer than until it is called; returns whether it was."""
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def watching(self, connected: socket.socket | None) -> Generator[None]:
        """Shut this socket down when it is called; None is not watched."""
        if connected is None:
            yield
            return
        with self._lock:
            self._sockets.add(connected)
        if self.called:
            _shut(connected)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(connected)


def _shut(connected: socket.socket) -> None:
    """End both directions below any encryption, which wakes whoever reads."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class Store(Protocol):
    """A zoo somewhere, at one revision. Stores can be pickled, used by many threads, and hold no secrets."""

    @property
    def address(self) -> str:
        """The zoo, without revision: what messages name and what the cache is filed under."""
        ...

    @property
    def revision(self) -> str:
        """What the listing was pinned to: a commit, or a digest of the listing."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Every file by name."""
        ...

    def get(self, name: str, start: int, stop: int, halt: Halt) -> Generator[bytes]:
        """Bytes ``start`` to ``stop`` of a file in pieces as they arrive, by one request (and what it redirects to).

        Raises
        ------
        TransientError
            It broke off, or the server is busy; pieces that were yielded are right as far as the transport can tell.
        AbsentError
            There is no such file.
        RemoteError
            Anything that another try will not mend.
        """
        ...


def listed(entries: Iterable[Entry], *, where: str) -> dict[str, Entry]:
    """Entries by name, in order of the names.

    Raises
    ------
    IntegrityError
        A name that is no relative file name (``../x``, ``/x``, control characters), twice the same, or a bad size.
    """
    made: dict[str, Entry] = {}
    problems: list[Problem] = []
    step = "Do not use this zoo; tell whoever publishes it."
    for entry in entries:
        if len(entry.name) > MAX_NAME or _BAD.search(entry.name) or entry.name in made:
            shown = repr(entry.name[:80])
            problems.append(Problem(where, "listing", "relative names of files, each once", shown, step))
        elif entry.size < 0:
            problems.append(Problem(where, f"size of {entry.name}", "0 or more", str(entry.size), step))
        made[entry.name] = entry
    if problems:
        raise IntegrityError(problems[:20])
    return dict(sorted(made.items()))


def found(entries: Mapping[str, Entry], name: str, *, where: str) -> Entry:
    """The entry of a file; raises AbsentError where there is none."""
    try:
        return entries[name]
    except KeyError:
        step = "Check the name, and the revision."
        raise AbsentError(Problem(where, name, "a file", "none of that name", step)) from None
