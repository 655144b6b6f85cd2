"""Shuts a process in before it reads a stranger's file: limits, no network, few system calls, no writing.

Three walls, one behind the other. The kernel's limits bound memory, time and the bytes written. A network namespace
without devices and a filter on system calls each cut off the network; one of them is enough, both are put up where the
machine allows it. An audit hook of the interpreter refuses what Python code would try; alone it is no wall.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ckptzoo.hub.intake.filters import install
from ckptzoo.hub.intake.found import Limits
from ckptzoo.hub.intake.handing import REPORT

_NEW_NET, _NEW_USER, _NEW_IPC = 0x40000000, 0x10000000, 0x08000000
_DEATH_SIGNAL, _DUMPABLE, _NO_NEW_PRIVS = 1, 4, 38
_FILES = 16
_REFUSED = (
    "socket.",
    "subprocess.",
    "os.",
    "ctypes.",
    "shutil.",
    "pty.",
    "webbrowser.",
    "ftplib.",
    "urllib.",
    "fcntl.",
)


def leave_network() -> str | None:
    """Move this process, which must have one thread, to a network without devices; the reason where it cannot be."""
    if sys.platform != "linux":
        return f"no network namespaces on {sys.platform}"
    libc = ctypes.CDLL(None, use_errno=True)
    before = _network()
    for flags in (_NEW_USER | _NEW_NET | _NEW_IPC, _NEW_NET):
        if libc.unshare(flags) == 0 and _network() != before:
            return None
    return os.strerror(ctypes.get_errno())


def _network() -> str:
    try:
        return str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return ""


def bound(limits: Limits) -> None:
    """The kernel's limits on this process; it dies with the one that started it, and leaves no core."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if _has_proc() else 0
    written = limits.tensor_bytes + REPORT
    for kind, most, spare in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_AS, taken + limits.memory_bytes, 0),
        (resource.RLIMIT_FSIZE, written, 0),
        (resource.RLIMIT_NPROC, 0, 0),
        (resource.RLIMIT_NOFILE, _FILES, 0),
        (resource.RLIMIT_CPU, max(1, limits.cpu_seconds), 5),
    ):
        hard = resource.getrlimit(kind)[1]
        top = most + spare if hard == resource.RLIM_INFINITY else min(most + spare, hard)
        resource.setrlimit(kind, (min(most, top), top))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DEATH_SIGNAL, 9, 0, 0, 0)
        libc.prctl(_DUMPABLE, 0, 0, 0, 0)
        libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)


def _has_proc() -> bool:
    return Path("/proc/self/statm").exists()


def forbid() -> None:
    """Refuse, inside the interpreter, sockets, processes, foreign code and every opening of a file by name."""

    def refuse(event: str, arguments: Sequence[Any]) -> None:
        if event.startswith(_REFUSED) or (event == "open" and not isinstance(arguments[0], int)):
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(refuse)


def confine(limits: Limits, *, filtered: bool) -> None:
    """All of it, in the order in which it can be done; ``leave_network`` comes before, in the process that forks.

    Parameters
    ----------
    filtered : whether ``probe`` found the filter to hold; it must then hold here too.

    Raises
    ------
    OSError
        It does not.
    """
    bound(limits)
    if (reason := install()) is not None and filtered:
        raise OSError(reason)
    forbid()


def probe(limits: Limits) -> tuple[str | None, str | None]:
    """Try the filter and the limits in a process that ends at once: why each is not in force, or None.

    Notes
    -----
    The filter counts as in force when a socket, a file and a process are refused after it was put on, not when the
    kernel says so.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            bound(limits)
            limited = b""
        except (OSError, ValueError) as error:
            limited = f"{type(error).__name__}: {error}".encode()[:200]
        reason = install()
        libc = ctypes.CDLL(None, use_errno=True)
        if reason is None:
            tried = [libc.socket(2, 1, 0), libc.socket(1, 1, 0), libc.open(b"/dev/null", 0), libc.fork()]
            if tried[3] == 0:
                os._exit(0)
            reason = "" if all(one == -1 for one in tried) else "calls that were to be refused were not"
        os.write(writing, limited + b"\n" + (reason or "").encode()[:200] + b"\n")
        os._exit(0)
    os.close(writing)
    told = b""
    while piece := os.read(reading, 1024):
        told += piece
    os.close(reading)
    os.waitpid(child, 0)
    limited, _, rest = told.decode(errors="replace").partition("\n")
    reason = rest.removesuffix("\n") if rest.endswith("\n") else "the filter ended the process"
    return reason or None, limited or None
