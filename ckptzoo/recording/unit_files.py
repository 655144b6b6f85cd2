"""Files of unfinished work: safetensors files that say whose they are, and hold a digest of all their bytes.

Their metadata has, besides what the caller stores::

    kind      "state" or "kept"
    unit      the unit's name
    number    of what is kept: its step, or its draw
    plan      the digest of the plan that the unit is one of, or of the zoo that it was recorded for
    seal      a digest of the file, with 64 zeros in place of this

The seal is the sha256 of the sums of all pages: of 4,096 bytes each, the last one filled up with zeros, as 512 numbers
of 64 bits, little-endian, added modulo 2**64. It finds damage, such as flipped bits and pages that are zero, torn or
exchanged, for a twentieth of the time of a sha256 of all bytes, which every byte gets when it enters a zoo. Versions
before this one wrote that sha256 as the seal; such files are read, too. Those without a seal count as absent.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.durable import regular
from ckptzoo.format.header import CODES, PAGE, numpy_dtype
from ckptzoo.text import excerpt

_UNSEALED = "0" * 64
_SEAL = re.compile(rb'"seal":"([0-9a-f]{64})"')
_READ_BYTES = 2**20
_REMOVE = "Remove it: python -m builders work, or build, then trains its unit again; what was recorded is lost."


class UnitBuffer:
    """Memory for the tensors of a unit's files, in the order of a file, which is filled again for each of them.

    ``views`` has an array for each tensor, to be filled before ``file``.
    """

    def __init__(self, tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        # larger elements first, so that none is misaligned
        order = sorted(tensors, key=lambda name: -tensors[name][0].itemsize)
        sizes = {name: tensors[name][0].itemsize * int(np.prod(tensors[name][1], dtype=np.int64)) for name in order}
        self._nbytes = sum(sizes.values())
        # what fills up the last page stays zero and is not written
        self._body = np.zeros(-(-self._nbytes // PAGE) * PAGE, np.uint8)
        self.views: dict[str, NDArray[Any]] = {}
        self._described: dict[str, Any] = {}
        start = 0
        for name in order:
            (dtype, shape), stop = tensors[name], start + sizes[name]
            self.views[name] = self._body[start:stop].view(dtype).reshape(shape)
            self._described[name] = {
                "dtype": CODES[dtype.name],
                "shape": list(shape),
                "data_offsets": [start, stop],
            }
            start = stop

    def file(self, facts: Mapping[str, str]) -> tuple[bytes, memoryview]:
        """Return the pieces of a file with what ``views`` hold and these facts; the second is memory of the buffer."""
        described = {"__metadata__": {**facts, "seal": _UNSEALED}, **self._described}
        # quotes within values are escaped, so that the seal is in the header once
        text = json.dumps(described, separators=(",", ":")).encode()
        # spaces behind the JSON are part of the header's length, as the safetensors format allows
        length = -(-(8 + len(text)) // PAGE) * PAGE - 8
        header = bytearray(length.to_bytes(8, "little") + text.ljust(length))
        sums = hashlib.sha256(_page_sums(np.frombuffer(header, np.uint8)))
        sums.update(_page_sums(self._body))
        start = header.index(f'"seal":"{_UNSEALED}"'.encode()) + len('"seal":"')
        # an array over a bytearray forbids to resize it, not to change it
        header[start : start + len(_UNSEALED)] = sums.hexdigest().encode()
        return bytes(header), self._body[: self._nbytes].data


def sealed(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str]) -> tuple[bytes, memoryview]:
    """Return the pieces of a file with these tensors and facts."""
    buffer = UnitBuffer({name: (array.dtype, array.shape) for name, array in arrays.items()})
    for name, array in arrays.items():
        buffer.views[name][...] = array
    return buffer.file(facts)


def read_facts(path: Path, expected: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the metadata of a file, without a look at its tensors; None where there is none with a seal. Raises
    IntegrityError: it is no file, is damaged, or belongs to another unit, step or plan than ``expected``.
    """
    if not _is_there(path):
        return None
    try:
        with safe_open(path, "numpy") as file:
            facts: Mapping[str, str] = file.metadata() or {}
    except FileNotFoundError:  # another process has removed it at this moment
        return None
    except SafetensorError as error:
        raise _damaged(path, "a whole safetensors file", str(error)) from error
    # before the other facts: files of older versions have none of them
    if "seal" not in facts:
        return None
    for name, value in expected.items():
        if facts.get(name) != value:
            raise _damaged(path, f"{name} {value}", repr(facts.get(name)))
    return facts


def read(path: Path, expected: Mapping[str, str]) -> tuple[dict[str, NDArray[Any]], Mapping[str, str]] | None:
    """Return tensors and metadata of a file, all of whose bytes were compared with its seal; see ``read_facts``."""
    facts = read_facts(path, expected)
    if facts is None:
        return None
    try:
        _check_seal(path)
    except FileNotFoundError:  # another process has removed it at this moment
        return None
    # safetensors finds bfloat16 where ml_dtypes is imported
    numpy_dtype("bfloat16")
    try:
        with safe_open(path, "numpy") as file:
            # safe_open can list its keys and not be iterated over
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except FileNotFoundError:  # another process has removed it at this moment
        return None
    except SafetensorError as error:
        raise _damaged(path, "a whole safetensors file", str(error)) from error
    except (TypeError, AttributeError) as error:  # of dtypes that numpy does not have
        raise _damaged(path, "tensors of known dtypes", str(error)) from error


def read_small(path: Path, limit: int = -1) -> bytes:
    """Return the bytes of a file, at most ``limit`` where that is not negative. Raises FileNotFoundError: it is absent.
    Raises IntegrityError: it is no file, but a pipe, which would block a reader, or something else.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            return file.read(limit)
    except OSError as error:
        # a pipe or a folder; a device; a socket
        if error.errno in (errno.EINVAL, errno.EISDIR, errno.ENXIO):
            problem = Problem(str(path), "file", "a regular file", os.strerror(error.errno), "Remove it.")
            raise IntegrityError(problem) from error
        raise


def _is_there(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise _damaged(path, "a file", "a link" if stat.S_ISLNK(mode) else "a folder, a pipe or a device")
    return True


def _page_sums(data: NDArray[np.uint8]) -> memoryview:
    """The sums of whole pages."""
    return np.add.reduce(data.view("<u8").reshape(-1, PAGE // 8), axis=1).data


def _check_seal(path: Path) -> None:
    """Compare all bytes with the seal in the header."""
    with open(path, "rb", opener=regular) as file:
        # safetensors: 8 bytes with the length of the header, little-endian, then the header in JSON, then the tensors
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        matched = _SEAL.search(header)
        if matched is None:
            raise _damaged(path, "a seal in its header", "none")
        head = length + header[: matched.start(1)] + _UNSEALED.encode() + header[matched.end(1) :]
        sums, whole = hashlib.sha256(), hashlib.sha256()
        for pages in _pages([head], file):
            sums.update(_page_sums(pages))
        if sums.hexdigest().encode() == matched[1]:
            return
        # of an earlier version
        file.seek(len(head))
        whole.update(head)
        while data := file.read(_READ_BYTES):
            whole.update(data)
    if whole.hexdigest().encode() != matched[1]:
        raise _damaged(path, f"bytes with the digest {matched[1].decode()[:12]}", sums.hexdigest()[:12])


def _pages(first: Sequence[bytes], file: BinaryIO) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of ``first`` and of the rest of a file as whole pages; zeros fill up the last one."""
    held = b"".join(first)
    while data := file.read(_READ_BYTES):
        held += data
        whole = len(held) // PAGE * PAGE
        yield np.frombuffer(held, np.uint8, whole)
        held = held[whole:]
    yield np.frombuffer(held.ljust(-(-len(held) // PAGE) * PAGE, b"\0"), np.uint8)


def _damaged(path: Path, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(str(path), "saved work", expected, excerpt(got), _REMOVE))
