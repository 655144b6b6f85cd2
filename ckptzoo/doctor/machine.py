"""Memory, limits, the cache, and the file systems that hold it and a zoo."""

import fcntl
import mmap
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ckptzoo.checks import NETWORK_FILE_SYSTEMS, NOTE, OK, PROBLEM, Check, file_system_of
from ckptzoo.environment import cache_limit, cache_root
from ckptzoo.errors import ZooError
from ckptzoo.text import counted, size

_MEMORY = 2 * 2**30
"""Bytes of memory; with less, studies and streams of large batches may be killed."""
_OPEN_FILES = 1024
"""The usual soft limit of open files; at most 256 shards of a zoo are open at a time."""
_FREE = 2**30
"""Bytes of free disk; with less, writing to the cache soon fails."""
_PROBE_BYTES = 64 * 1024
_CGROUPS = (("memory.max", Path("/sys/fs/cgroup")), ("memory.limit_in_bytes", Path("/sys/fs/cgroup/memory")))
"""Files with the limit in versions 2 and 1 of control groups, below the group of the process or at the root."""
_UNLIMITED = 2**60
"""Version 1 has a number of this size where there is no limit."""


def checks() -> Iterator[Check]:
    """Check memory and limits."""
    yield _memory()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    detail = "no limit" if files == resource.RLIM_INFINITY else f"at most {files:,}"
    if 0 <= files < _OPEN_FILES:
        yield Check("open files", NOTE, detail, "Raise the limit: ulimit -n 4096.")
    else:
        yield Check("open files", OK, detail)
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        step = "Shards are mapped, which counts as a whole: ulimit -v unlimited."
        yield Check("address space", NOTE, f"at most {size(space)}", step)


def cache_checks() -> Iterator[Check]:
    """Check the cache of zoos on other machines."""
    from ckptzoo.remote.cache import blobs_of

    root = cache_root()
    try:
        limit = cache_limit()
    except ZooError as error:
        yield Check("cache", PROBLEM, str(error), "Correct CKPTZOO_CACHE_SIZE, or unset it.")
        return
    try:
        # what there is of the folder, which is made when it is first written to
        existing = next(path for path in (root, *root.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        used = sum(blob.nbytes for blob in blobs_of(root))
        _write_probe(existing)
    except OSError as error:
        step = "Make room, or name another folder in CKPTZOO_CACHE; until then nothing is kept."
        yield Check("cache", PROBLEM, f"{root}: cannot be written: {error.strerror or error}", step)
        return
    detail = f"{root}: {size(used)} of at most {size(limit)}, {size(free)} free on the disk"
    if free < min(_FREE, max(0, limit - used)):
        yield Check("cache", NOTE, detail, "Make room on the disk, or: ckptzoo cache prune --to SIZE.")
    else:
        yield Check("cache", OK, detail)
    yield file_system("file system of the cache", existing)


def file_system(name: str, path: Path) -> Check:
    """Return whether files can be mapped and locked where a file or folder is.

    ``name`` is the check's; ``path`` is a file, which is only read, or a folder that a file can be written to.
    """
    kind, what = file_system_of(path) or "unknown", "be read or written"
    try:
        with path.open("rb") if path.is_file() else tempfile.TemporaryFile(dir=path) as file:
            if path.is_dir():
                # an empty file cannot be mapped (mmap(2), EINVAL)
                file.write(bytes(mmap.PAGESIZE))
                file.flush()
            what = "be mapped"
            mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ).close()
            what = "be locked"
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ValueError) as error:
        return Check(name, PROBLEM, f"{kind}: files cannot {what}: {error}", "Use a disk of this machine.")
    if kind in NETWORK_FILE_SYSTEMS:
        step = "Rows read at random are slow there: copy the zoo to a disk of this machine, or stream it."
        return Check(name, NOTE, f"{kind}, on another machine; files can be mapped and locked", step)
    return Check(name, OK, f"{kind}; files can be mapped and locked")


def _memory() -> Check:
    # what the machine has, of which a control group may allow less
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup_limit()
    usable = installed if limit is None else min(limit, installed)
    detail = f"{size(installed)}, {counted(_cores(), 'core')}"
    detail += f"; this job may use {size(limit)}" if limit is not None and limit < installed else ""
    if usable < _MEMORY:
        return Check("memory", NOTE, detail, "Give the job more memory, or use smaller batches.")
    return Check("memory", OK, detail)


def _cores() -> int:
    # macOS has no sched_getaffinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cgroup_limit() -> int | None:
    """Return the least of the memory limits of this process's control group and of those above it, in bytes."""
    limits: list[int] = []
    try:
        # a line is a number, controllers and a path: 0::/user.slice (version 2), 4:memory:/docker/... (version 1)
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    for file, root in _CGROUPS:
        for _, _, path in groups:
            folder = root / path.strip("/")
            for above in (folder, *folder.parents):
                try:
                    limits.append(int((above / file).read_text()))
                except (OSError, ValueError):  # "max" where there is no limit
                    continue
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def _write_probe(folder: Path) -> None:
    """Write a small file without a name, or with one of its own, and remove it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        # file systems of other machines may report a full disk only then (fsync(2))
        os.fsync(file.fileno())
