"""Files and folders that appear whole or not at all, and the lock that a zoo's writers share."""

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ckptzoo.errors import Problem, ZooError

TEMPORARY = ".ckptzoo-tmp-"
"""How the names of unfinished files and folders begin; a name that begins with a dot is no part of a zoo."""

_SET_ASIDE = ".ckptzoo-before-"
"""The prefix of the name of a folder that is being replaced, where the system cannot exchange two at once."""
_EXCHANGE, _WORKING_FOLDER = 2, -100
"""``RENAME_EXCHANGE`` and ``AT_FDCWD`` of renameat2(2)."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk and a used-up quota."""
_MAKE_ROOM = "Make room there, or choose a folder on another disk, and repeat."
_WRITABLE = "Choose a folder that you may write to, or change its permissions."
_FOLDER = "Choose a path whose folders are folders."
_STEPS = {
    **dict.fromkeys(DISK_FULL, _MAKE_ROOM),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _WRITABLE),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), _FOLDER),
}
"""The next steps by error number."""


def regular(path: str, flags: int) -> int:
    """An opener for ``open`` that refuses what is not a regular file, such as a pipe, which would block a reader."""
    # O_NONBLOCK changes nothing for regular files; opening a pipe for reading would wait for a writer without it
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give errors of writing to ``path`` its name, which write and fsync leave out, and say what to do about some.

    Files under temporary names are removed after an error, so that the name is that of what was to be there.
    """
    try:
        yield
    except OSError as error:
        step, name = _STEPS.get(error.errno or 0), error.filename
        if name is not None and TEMPORARY not in str(name):
            # a folder above that cannot be made or written is the one to look at
            path = path if error.errno in DISK_FULL else Path(str(name))
        if error.errno is None or (error.filename is not None and step is None and TEMPORARY not in str(name)):
            raise
        text = os.strerror(error.errno)
        raise OSError(error.errno, f"{text}. {step}" if step else text, str(path)) from error


def sync(path: Path) -> None:
    """Flush a file or folder to the disk; that of a folder makes the names in it durable."""
    # Linux flushes a file through any descriptor, and opens folders for reading only
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_replaceable(path: Path) -> None:
    """Refuse what a renamed file must not take the place of: folders, devices such as /dev/null, pipes, sockets.

    Raises ``ZooError`` if the path is such a thing.
    """
    # a user who may write there would lose the device for the whole machine; /dev/stdout is a link to a file at times
    if (path.exists() and not path.is_file()) or path.parent.resolve() == Path("/dev"):
        got = "a folder" if path.is_dir() else "a device or a pipe"
        raise ZooError(Problem(str(path), "output", "a file, or nothing there yet", got, "Name another file."))


def write_file(path: Path, *pieces: bytes | bytearray | memoryview) -> None:
    """Write a file atomically: a temporary file beside it, flush, rename, flush the folder.

    Raises ``ZooError`` if there is no such folder, or the path is that of a folder, a device or a pipe, and
    ``OSError``, whose ``filename`` is the path, if the disk is full or cannot be written.
    """
    if not path.parent.is_dir():
        raise ZooError(Problem(str(path.parent), "folder", f"one to write {path.name} to", "none", "Make it first."))
    check_replaceable(path)
    with naming(path), temporary_file(path.parent) as (temporary, file):
        file.writelines(pieces)
        publish_file(file, temporary, path)


@contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield the path of a new file under a temporary name and the file, locked while the process that writes it lives.

    It is removed at the end, unless ``publish_file`` gave it another name.
    """
    while True:
        temporary = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        with temporary.open("x+b") as file:
            try:
                # where a file system has no locks, nobody can get one to sweep the file either
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
                if not temporary.exists():
                    continue  # another process swept it before it was locked
                yield temporary, file
            finally:
                temporary.unlink(missing_ok=True)
        return


def publish_file(file: BinaryIO, temporary: Path, target: Path) -> None:
    """Flush a file of ``temporary_file`` and put it in the place of ``target``."""
    file.flush()
    os.fsync(file.fileno())
    # rename(2) replaces a file in one step, within one file system
    temporary.replace(target)
    sync(target.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, and make their names durable; one that is there is left."""
    missing = list(itertools.takewhile(lambda each: not each.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync(each.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's advisory lock; the kernel releases it with the process, however that ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # of the open file and not of the process (flock(2)), so that threads exclude one another too
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Staging:
    """A folder under construction beside its final place, locked while the process that makes it lives."""

    def __init__(self, parent: Path) -> None:
        make_folder(parent)
        with locked(parent):
            sweep(parent)
            self.path = parent / f"{TEMPORARY}{secrets.token_hex(8)}"
            self.path.mkdir()
            self._lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def publish(self, target: Path) -> None:
        """Flush and rename to ``target``, which must not exist (an empty folder may)."""
        for path in self.path.iterdir():
            sync(path)
        sync(self.path)
        # rename(2) refuses a target that is a folder with files
        self.path.rename(target)
        sync(target.parent)
        os.close(self._lock)

    def replace(self, target: Path) -> None:
        """Flush and put in the place of ``target``, a folder with files or none; what was there is removed.

        At every moment one of both folders is whole. Where two folders cannot be exchanged in one step, the older one
        may be under another name after a crash; ``restore`` brings it back.
        """
        if not target.exists():
            self.publish(target)
            return
        for path in self.path.iterdir():
            sync(path)
        sync(self.path)
        if not _exchange(self.path, target):
            aside = target.with_name(f"{_SET_ASIDE}{target.name}")
            target.rename(aside)
            self.path.rename(target)
            sync(target.parent)
            shutil.rmtree(aside, ignore_errors=True)
            os.close(self._lock)
            return
        sync(target.parent)
        self.discard()

    def move(self, name: str, target: Path) -> None:
        """Flush a file of the folder and put it in the place of ``target``; the folder is removed."""
        check_replaceable(target)
        sync(self.path / name)
        # rename(2) replaces a file in one step
        (self.path / name).replace(target)
        sync(target.parent)
        self.discard()

    def discard(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def restore(target: Path) -> None:
    """Restore a folder that a process set aside before it died without replacing it."""
    aside = target.with_name(f"{_SET_ASIDE}{target.name}")
    with locked(target.parent):
        if aside.exists() and target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        elif aside.exists():
            aside.rename(target)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:  # macOS, and C libraries before 2018
        return False
    if rename(_WORKING_FOLDER, os.fsencode(first), _WORKING_FOLDER, os.fsencode(second), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # of file systems, and of older kernels
        return False
    raise OSError(number, os.strerror(number), str(second))


def sweep(parent: Path) -> None:
    """Remove the unfinished files and folders that dead processes left in ``parent``; live ones hold their locks."""
    # by name first: a folder may have thousands of parts
    for left in [parent / name for name in os.listdir(parent) if name.startswith(TEMPORARY)]:  # noqa: PTH208
        try:
            # opening a pipe would wait for a writer without O_NONBLOCK
            descriptor = os.open(left, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, of another user, or a link
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        except OSError:  # a live process holds the lock, or the folder is of another user
            continue
        finally:
            os.close(descriptor)
