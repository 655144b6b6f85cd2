"""The page cache: emptied of a store's files before a cold read, and asked whether it really is."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)


def files_of(folder: Path) -> list[Path]:
    """Every file under a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def evict(files: Iterable[Path]) -> None:
    """Flush the files and drop their pages from the page cache; pages that a process has mapped stay."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident(files: Iterable[Path]) -> float:
    """The share of the files' pages that the page cache holds, by mincore(2)."""
    held = total = 0
    for path in files:
        size = path.stat().st_size
        if not size:
            continue
        pages = -(-size // mmap.PAGESIZE)
        flags = (ctypes.c_ubyte * pages)()
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
            view = np.frombuffer(mapped, np.uint8)
            address, length = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size)
            if _LIBC.mincore(address, length, flags):
                raise OSError(ctypes.get_errno(), f"mincore: {path.name}")
            del view
        held += int(np.count_nonzero(np.ctypeslib.as_array(flags) & 1))
        total += pages
    return held / total if total else 0.0
