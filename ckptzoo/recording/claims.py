"""Claims: files by which processes on any machines that share a folder agree on who does which unit of work.

A claim saves work and decides nothing: two processes may do one piece, where one was taken for dead, and the first
to rename its result has made it. So claims need no lock of the file system, which some cluster file systems do not
have (Lustre without ``flock``: ENOSYS) and some only pretend to (NFS with ``local_lock``).

::

    <name>.claim-000001      who works on it: host, process, how far. Made by link(2), so one process makes it
    <name>.claim-000002      who took it over, when the first had sent no heartbeat for some time

The highest number counts, and who takes over removes those below. A holder writes into its file now and then; the time
of that is compared with the time of a file that was just written to the same folder, both by the clock of the file
system, so that clocks that differ between machines do not matter.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptzoo.errors import IntegrityError
from ckptzoo.format.durable import TEMPORARY
from ckptzoo.recording.unit_files import read_small

HEARTBEAT_SECONDS = 15.0
"""Seconds between two heartbeats of a holder."""
STALE_SECONDS = 180.0
"""Seconds without a heartbeat before others take over: several times what a busy file server may delay a write."""
_OLD_SECONDS = 3600.0
"""No file takes longer to be written."""
_NAME = re.compile(r"(?P<name>.+)\.claim-(?P<number>\d{6})")
# Bytes of a claim's file that are parsed: a file that another program wrote may be longer.
_MAX_CONTENT = 4096


@dataclass(frozen=True)
class Holder:
    """The holder of a claim.

    ``progress`` counts optimiser steps; ``age`` is the seconds since the last heartbeat, by the clock of the file
    system; ``alive`` tells whether the claim counts: the heartbeat is recent, and the process is not known to have
    ended; ``here`` whether it is a process of this machine, which is known to be alive or not.
    """

    host: str
    process: int
    progress: int
    age: float
    alive: bool
    here: bool = False


class Claim:
    """A claim that this process holds.

    ``lost`` tells whether another process has taken over, checked with every heartbeat; ``taken_over`` whether it was
    taken over from a holder that ended without giving it up. ``progress`` counts optimiser steps taken, and is written
    with the next heartbeat.
    """

    def __init__(self, claims: "Claims", path: Path, token: str) -> None:
        self.lost, self.progress = False, 0
        self.taken_over = not path.name.endswith("000001")
        self._claims, self._path, self._token = claims, path, token

    @property
    def is_there(self) -> bool:
        """Whether the file is this claim's, and not another's of the same number, made after it was taken over."""
        try:
            return _parsed(read_small(self._path, _MAX_CONTENT)).get("token") == self._token
        except (OSError, IntegrityError):
            return False

    def beat(self) -> None:
        """Send a heartbeat, and note whether another process took over."""
        name = _claimed(self._path)
        try:
            self.lost = self._claims.newest(name) != self._path or not self.is_there
        except OSError:  # somebody has removed the folder, or a file server does not answer: nobody has taken over
            return
        # a claim that was lost may be another's file by now, which is not written to
        if not self.lost:
            # the file is closed at once: NFS sends writes when a file is closed
            with contextlib.suppress(OSError), self._path.open("r+b") as file:
                file.write(_content(self.progress, self._token))


class Claims:
    """The claims of a folder that all processes share; ``heartbeat`` and ``stale`` are seconds."""

    def __init__(self, folder: Path, *, heartbeat: float = HEARTBEAT_SECONDS, stale: float = STALE_SECONDS) -> None:
        self._folder, self._heartbeat, self._stale = folder, heartbeat, stale

    @contextmanager
    def held(self, name: str) -> Iterator[Claim | None]:
        """Claim a piece of work until the end of the block; None where another process holds it."""
        token = secrets.token_hex(8)
        path = self._take(name, token)
        if path is None:
            yield None
            return
        claim, ended, process = Claim(self, path, token), threading.Event(), os.getpid()
        thread = threading.Thread(target=self._beat, args=(claim, ended), name=f"claim {name}", daemon=True)
        thread.start()
        try:
            yield claim
        finally:
            # a fork that ends must not give up what its parent holds
            if os.getpid() == process:
                ended.set()
                thread.join()
                if claim.is_there:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def holder(self, name: str) -> Holder | None:
        """Return the holder of a claim; None where there is none, or it is given up at this moment."""
        path = self.newest(name)
        return None if path is None else self._holder(path, self._now())

    def holders(self) -> dict[str, Holder]:
        """Return the holders of all claims of the folder, by name."""
        newest: dict[str, int] = {}
        for match in self._listed():
            newest[match["name"]] = max(newest.get(match["name"], 0), int(match["number"]))
        now = self._now()
        holders = {name: self._holder(self._path(name, number), now) for name, number in newest.items()}
        return {name: holder for name, holder in holders.items() if holder is not None}

    def newest(self, name: str) -> Path | None:
        """Return the file of a claim that counts."""
        numbers = [int(match["number"]) for match in self._listed() if match["name"] == name]
        return self._path(name, max(numbers)) if numbers else None

    def _take(self, name: str, token: str = "") -> Path | None:
        newest = self.newest(name)
        number = 1
        if newest is not None:
            holder = self._holder(newest, self._now())
            if holder is not None and holder.alive:
                return None
            # of several who find the claim stale all try the same number, and one makes it
            number = int(newest.name[-6:]) + 1
        path = self._path(name, number)
        if not self._make(path, token):
            return None
        for match in self._listed():
            if match["name"] == name and int(match["number"]) < number:
                self._path(name, int(match["number"])).unlink(missing_ok=True)
        return path

    def _make(self, path: Path, token: str) -> bool:
        """Make the file of a claim; return False where another process was faster."""
        temporary = self._folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            temporary.write_bytes(_content(0, token))
            # link(2): of those who try, one makes the name; a process killed here leaves no claim without a holder
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        except OSError as error:
            # link(2) fails so where a file system has no hard links, as FAT, or allows no second one (EMLINK)
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            return _make_exclusively(path, token)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _beat(self, claim: Claim, ended: threading.Event) -> None:
        while not ended.wait(self._heartbeat) and not claim.lost:
            claim.beat()

    def _holder(self, path: Path, now: float) -> Holder | None:
        try:
            heard, data = path.stat().st_mtime, read_small(path, _MAX_CONTENT)
        except FileNotFoundError:
            return None
        content = _parsed(data)
        age = now - heard
        # a heartbeat from the future comes from a clock that was wrong then, and would count for ever
        alive = abs(age) < self._stale and not _has_ended(content)
        host, process, progress = (content.get(key) for key in ("host", "process", "progress"))
        return Holder(
            host if isinstance(host, str) else "unknown",
            process if isinstance(process, int) else 0,
            progress if isinstance(progress, int) else 0,
            age,
            alive,
            content.get("space") == _process_space() != "",
        )

    def _now(self) -> float:
        """Return the time of the file system's clock."""
        path = self._folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            path.write_bytes(b"")
            return path.stat().st_mtime
        except OSError:  # a folder that cannot be written to is looked at by status all the same
            return time.time()
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def _listed(self) -> Iterator["re.Match[str]"]:
        for path in self._folder.iterdir():
            if (match := _NAME.fullmatch(path.name)) is not None:
                yield match

    def _path(self, name: str, number: int) -> Path:
        return self._folder / f"{name}.claim-{number:06d}"


def sweep_old(folder: Path) -> None:
    """Remove temporary files of killed processes; others may be at work in the folder, so only old ones."""
    for left in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _OLD_SECONDS:
                left.unlink()


def _make_exclusively(path: Path, token: str) -> bool:
    """Make the file of a claim on a file system without hard links."""
    try:
        # O_EXCL: of those who try, one makes the file, on NFS too (version 3 and later)
        with path.open("xb") as file:
            file.write(_content(0, token))
    except FileExistsError:
        return False
    return True


def _claimed(path: Path) -> str:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return match["name"]


def _content(progress: int, token: str) -> bytes:
    """Return the content of a claim's file, in a fixed number of bytes, so that a later write replaces all of it."""
    own = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "started": _started(os.getpid()),
        "space": _process_space(),
        "progress": progress,
        "token": token,
    }
    return json.dumps(own).encode()[:511].ljust(511) + b"\n"


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):  # it is being written, or is none of ours
        return {}
    return content if isinstance(content, dict) else {}


def _process_space() -> str:
    """Return a name of this boot of this machine and its process numbers, which containers have of their own."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux
        return ""


def _has_ended(content: dict[str, Any]) -> bool:
    """Return whether a holder on this machine is known to have ended; of others nothing is known."""
    process, space = content.get("process"), content.get("space")
    if not isinstance(process, int) or process <= 0 or not space or space != _process_space():
        return False
    try:
        # signal 0 sends nothing and only asks for the process (kill(2))
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it is another user's, or no number of a process
        pass
    started = _started(process)
    # another start: the number was given to another process since
    return started is not None and started != content.get("started")


def _started(process: int) -> int | None:
    """Return when a process of this machine started, in clock ticks since boot; 0 where it ended, None where that is
    hidden.

    A number is given to another process later, and a process that was killed keeps its number until its parent asks
    how it ended (state Z), which some parents never do.
    """
    try:
        # proc(5): number (name) state ..., with the start as field 22; the name may hold blanks and brackets
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # not Linux, or another user's under hidepid
        return None
    # counted from the state, field 3: field 22 is the 19th behind it
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
