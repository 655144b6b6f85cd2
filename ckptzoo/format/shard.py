"""One shard: filled checkpoint by checkpoint in bounded memory, mapped without copies."""

import ctypes
import hashlib
import mmap
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.header import lay_out, numpy_dtype
from ckptzoo.schema.architecture import Tensor

BLOCK_BYTES = 2**19
"""Bytes of a block, which has as many whole rows as fit and at least one."""
_COPY = 8 * 2**20
"""Bytes that are moved at a time where a shard is compacted."""
_ADVICE = 2**20
"""Bytes of a read-ahead request; the kernel truncates a longer one."""
_LOOKED_AT = 2**17
"""Requests of fewer bytes take less time than to ask whether the bytes are in memory already."""
_STEP = "Fetch the shard again."
try:
    _LIBC = ctypes.CDLL(None)
except OSError:  # a Python that is linked statically
    _LIBC = None


@dataclass(frozen=True)
class Block:
    """A run of rows of one tensor in one shard; rows count from the part's first."""

    file: str
    tensor: str | None
    row_start: int
    row_stop: int
    offset: int
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None
    sha256: bytes


class ShardWriter:
    """Fills a file of a fixed capacity with pwrite, and closes the gaps when fewer rows came.

    The file is sparse: unused capacity takes no space. Rows may come in any number of calls, in order.
    """

    def __init__(self, path: Path, tensors: Sequence[Tensor], *, capacity: int, stem: str) -> None:
        self.path, self.capacity, self.rows = path, capacity, 0
        self._tensors, self._metadata = tuple(tensors), {"ckptzoo": stem}
        self._layout = lay_out(self._tensors, capacity, self._metadata)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.ftruncate(self._file, self._layout.nbytes)

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return self.capacity - self.rows

    def write(self, arrays: Mapping[str, NDArray[Any]], count: int) -> None:
        """Append ``count`` rows; ``arrays[name]`` has shape ``(count, *shape)`` and the tensor's dtype."""
        for entry in self._layout.entries:
            data = np.ascontiguousarray(arrays[entry.name])
            offset = entry.offset + self.rows * (entry.nbytes // self.capacity)
            _pwrite(self._file, data.reshape(-1).view(np.uint8).data, offset)
        self.rows += count

    def finish(self, *, first_row: int) -> list[Block]:
        """Write the header, flush, and return the index rows: the shard itself, then its blocks."""
        final = lay_out(self._tensors, self.rows, self._metadata)
        if self.rows < self.capacity:
            for old, new in zip(self._layout.entries, final.entries, strict=True):
                _move(self._file, old.offset, new.offset, new.nbytes)
            os.ftruncate(self._file, final.nbytes)
        _pwrite(self._file, memoryview(final.header), 0)
        blocks: list[tuple[str, str, tuple[int, ...], int, int, int, int]] = []
        for entry in final.entries:
            row = entry.nbytes // self.rows
            for start, stop in block_rows(self.rows, row):
                shape = (stop - start, *entry.shape[1:])
                offset, nbytes = entry.offset + start * row, (stop - start) * row
                blocks.append((entry.name, entry.dtype, shape, start, stop, offset, nbytes))
        with (
            mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
            ThreadPoolExecutor(1 + max(2, os.cpu_count() or 1)) as pool,
        ):
            # in threads: hashlib and fsync let go of the interpreter while they work
            flushed = pool.submit(os.fsync, self._file)
            whole = pool.submit(_sha256, view, 0, final.nbytes)
            digests = list(pool.map(lambda block: _sha256(view, block[5], block[6]), blocks))
            shard_digest = whole.result()
            flushed.result()
        os.close(self._file)
        name = self.path.name
        return [
            Block(name, None, first_row, first_row + self.rows, 0, final.nbytes, None, None, shard_digest),
            *(
                Block(name, tensor, first_row + start, first_row + stop, offset, nbytes, dtype, shape, digest)
                for (tensor, dtype, shape, start, stop, offset, nbytes), digest in zip(blocks, digests, strict=True)
            ),
        ]

    def close(self) -> None:
        """Abandon the file without finishing it."""
        os.close(self._file)


def block_rows(rows: int, row_bytes: int) -> list[tuple[int, int]]:
    """Split ``rows`` rows into runs of at most ``BLOCK_BYTES`` bytes, one row at least."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


class ShardMap:
    """A shard mapped copy-on-write: arrays are views, and writing to one never reaches the file."""

    def __init__(self, path: str | Path, *, nbytes: int) -> None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is refused by its size below
        except OSError as error:
            expected, got = f"{nbytes} readable bytes", error.strerror or "none"
            raise IntegrityError(Problem(str(path), "file", expected, got, _STEP)) from error
        try:
            # reading a map behind the end of its file would kill the process by SIGBUS
            size = os.fstat(file).st_size
            if size != nbytes:
                raise IntegrityError(Problem(str(path), "size", f"{nbytes} bytes", f"{size} bytes", _STEP))
            # copy-on-write: torch, writing in place to a tensor on a read-only map, would kill the process
            self._map = mmap.mmap(file, nbytes, access=mmap.ACCESS_COPY)
        finally:
            os.close(file)  # the map keeps the file open by itself
        self._path = path

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A writable view of the private map; the file itself stays as it is."""
        return np.frombuffer(self._map, numpy_dtype(dtype), prod(shape), offset).reshape(shape)

    def will_need(self, offset: int, nbytes: int) -> None:
        """Ask the kernel to read these bytes ahead, in steps because it cuts a long request short.

        Steps whose middle is in memory are left out: to look for every page takes a fifth of the time of reading them.
        """
        stop = offset + nbytes
        # madvise(2) wants an address that is a multiple of the page size
        for start in range(offset // mmap.PAGESIZE * mmap.PAGESIZE, stop, _ADVICE):
            size = min(_ADVICE, stop - start)
            if size < _LOOKED_AT or not self._is_cached(start + size // 2):
                self._map.madvise(mmap.MADV_WILLNEED, start, size)

    def _is_cached(self, position: int) -> bool:
        """Whether the page of a byte is known to be in memory."""
        if not self._address:
            return False
        flag = ctypes.c_ubyte()
        page = self._address + position // mmap.PAGESIZE * mmap.PAGESIZE
        failed = _LIBC is None or _LIBC.mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.byref(flag))
        return not failed and bool(flag.value & 1)

    @cached_property
    def _address(self) -> int:
        """The address of the map, 0 where the kernel does not say what is in memory."""
        # of a file that the process may not write to, Linux says that all of it is there
        if not hasattr(_LIBC, "mincore") or not os.access(self._path, os.W_OK):
            return 0
        return np.frombuffer(self._map, np.uint8, 1).ctypes.data


def _sha256(view: memoryview, offset: int, nbytes: int) -> bytes:
    return hashlib.sha256(view[offset : offset + nbytes]).digest()


def _pwrite(file: int, data: memoryview, offset: int) -> None:
    while data:  # one call of Linux writes at most 2**31 - 4096 bytes, and may write fewer than it was given
        written = os.pwrite(file, data[: 2**30], offset)
        data, offset = data[written:], offset + written


def _move(file: int, source: int, target: int, nbytes: int) -> None:
    """Move bytes towards the start of the file, front to back, so that overlaps are safe."""
    done = 0
    while source != target and done < nbytes:
        data = os.pread(file, min(_COPY, nbytes - done), source + done)
        _pwrite(file, memoryview(data), target + done)
        done += len(data)
