"""Exit codes: the meaning of each, and the errors that lead to it."""

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ckptzoo.errors import (
    AbsentError,
    IntegrityError,
    MissingExtraError,
    Problem,
    RemoteError,
    SpecError,
    SymmetryError,
    ZooError,
)


@dataclass(frozen=True)
class Outcome:
    """One way for a command to end."""

    code: int
    meaning: str
    errors: tuple[type[BaseException], ...] = ()


class InterruptedCommand(Exception):
    """Ctrl-C, with what to do next."""


# 2 is the code of click's UsageError; a shell reports 130, 128 + SIGINT, for what Ctrl-C ended; 70, below, is
# EX_SOFTWARE of sysexits.h
PROBLEMS, USAGE, INTERRUPTED = 1, 2, 130

OUTCOMES = (
    Outcome(0, "it is done, and nothing wrong was found"),
    Outcome(PROBLEMS, "problems were found"),
    Outcome(USAGE, "wrong usage, or no such zoo, checkpoint, column or variant", (ZooError, AbsentError)),
    Outcome(3, "a zoo, card or file cannot be read: damaged, or not what it should be", (IntegrityError, SpecError)),
    Outcome(
        4,
        "it cannot be done: unknown symmetries, a missing extra, a full disk",
        (SymmetryError, MissingExtraError, OSError, MemoryError),
    ),
    Outcome(5, "another machine refused, or gave no usable answer", (RemoteError,)),
    Outcome(70, "a mistake in ckptzoo itself", (Exception,)),
    Outcome(INTERRUPTED, "interrupted; nothing is left half-written", (KeyboardInterrupt,)),
)

_CODES = {error: outcome.code for outcome in OUTCOMES for error in outcome.errors}


def code_of(error: BaseException) -> int:
    """Return the exit code of an error: that of the nearest of its classes that is listed."""
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)


_FACTS = {
    errno.ENOENT: ("a file or a folder", "Check the path."),
    errno.EEXIST: ("a folder, or nothing there yet", "Choose another path."),
    errno.ENOTDIR: ("a path whose folders are folders", "Choose another path."),
    errno.EISDIR: ("a file", "Name a file in it."),
    errno.ENAMETOOLONG: ("a shorter name", "Choose a shorter one."),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        ("a file or folder that you may use so", "Change its permissions, or choose another path."),
    ),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ("room on the disk", "Make room there and repeat.")),
    errno.EADDRINUSE: ("a free port", "Choose another one."),
}
"""The expectation and the advice, by the number of the system's error."""


def sentence(text: str) -> str:
    """Return a text of the parser of command lines as a sentence, with the full stop that some lack."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def named(error: Exception) -> Exception:
    """Return the error, or one about words that are no UTF-8, which neither files nor databases take."""
    if not isinstance(error, UnicodeEncodeError) or error.reason != "surrogates not allowed":
        return error
    return ZooError(Problem("command line", "text", "UTF-8", repr(error.object[:80]), "Correct it."))


def described(error: OSError | MemoryError) -> str:
    """Return the message of an error of the system, in the form of all others.

    >>> described(NotADirectoryError(errno.ENOTDIR, "Not a directory", "net.pt/zoo"))
    'net.pt/zoo: path: expected a path whose folders are folders, got Not a directory. Choose another path.'
    """
    if isinstance(error, MemoryError):
        got = str(error).rstrip(".") or "too little"
        return str(Problem("memory", "room", "enough", got, "Ask for less, such as fewer checkpoints."))
    if error.strerror is None:
        return str(error) or type(error).__name__
    location = "system" if error.filename is None else str(error.filename)
    if ": expected " in error.strerror:
        return f"{location}: {error.strerror}"
    # ckptzoo.format.durable adds what to do
    got, _, step = error.strerror.partition(". ")
    expected, otherwise = _FACTS.get(error.errno or 0, ("the system to do it", "Correct the cause and repeat."))
    return str(Problem(location, "path" if error.filename else "call", expected, got, step or otherwise))


def listed() -> str:
    """Return the table for ``ckptzoo --help``."""
    return "\n".join(f"  {outcome.code:>3}  {outcome.meaning}" for outcome in OUTCOMES)


def print_line(program: str, kind: str, text: str) -> None:
    """Print one line on the standard error."""
    from ckptzoo.text import printable

    print(f"{program}: {kind}: {printable(' '.join(text.split()))}", file=sys.stderr)


@contextmanager
def showing_warnings(program: str) -> Iterator[None]:
    """Print warnings as lines of ``program`` on the standard error."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        print_line(program, "warning", str(message))

    with warnings.catch_warnings():
        # by default Python shows a warning of one line of code only once a process
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


@contextmanager
def stopping_imports(program: str, said: str) -> Iterator[None]:
    """Let Ctrl-C end the process with the line ``said`` of ``program`` while packages are imported, and be a
    ``KeyboardInterrupt`` elsewhere.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            # an exception within the initialisation of a compiled package, such as torch, aborts the process
            if frame.f_globals.get("__name__") == "importlib._bootstrap":
                print(f"{program}: interrupted: {said}", file=sys.stderr, flush=True)
                os._exit(INTERRUPTED)
            frame = frame.f_back
        raise KeyboardInterrupt

    # Python sets signal handlers in the main thread only; a handler of somebody else's stays
    is_free = threading.current_thread() is threading.main_thread()
    if not is_free or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
