"""Files of an unfinished build: safetensors files that say whose they are, and hold a digest of all their bytes.

Their metadata has, besides what the caller stores::

    kind      "state" or "kept"
    unit      the unit's name
    number    of what is kept: its step, or its draw
    plan      the digest of the plan that the unit is one of
    seal      sha256 of the file, with 64 zeros in place of this

Files without a seal, which versions before this one wrote, count as absent: their units are trained again.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.durable import regular
from ckptzoo.text import excerpt

_UNSEALED = "0" * 64
_SEAL = re.compile(rb'"seal":"([0-9a-f]{64})"')
_READ_BYTES = 2**20
_REMOVE = "Remove it: python -m builders work, or build, then trains its unit again."


def sealed(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str]) -> bytearray:
    """Return the content of a file."""
    data = bytearray(save(dict(arrays), metadata={**facts, "seal": _UNSEALED}))
    # safetensors escapes quotes within values, so that this is in the header once
    start = data.index(f'"seal":"{_UNSEALED}"'.encode()) + len('"seal":"')
    data[start : start + len(_UNSEALED)] = hashlib.sha256(data).hexdigest().encode()
    return data


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
    _check_seal(path)
    try:
        with safe_open(path, "numpy") as file:
            # safe_open can list its keys and not be iterated over
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except SafetensorError as error:
        raise _damaged(path, "a whole safetensors file", str(error)) from error


def read_small(path: Path) -> bytes:
    """Return the bytes of a file that may be replaced by anything, such as a pipe, which would block a reader. Raises
    FileNotFoundError: there is none. Raises IntegrityError: it is no file.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            return file.read()
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


def _check_seal(path: Path) -> None:
    """Compare all bytes with the seal in the header."""
    total = hashlib.sha256()
    with open(path, "rb", opener=regular) as file:
        # safetensors: 8 bytes with the length of the header, little-endian, then the header in JSON, then the tensors
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        matched = _SEAL.search(header)
        if matched is None:
            raise _damaged(path, "a seal in its header", "none")
        total.update(length + header[: matched.start(1)] + _UNSEALED.encode() + header[matched.end(1) :])
        while data := file.read(_READ_BYTES):
            total.update(data)
    if total.hexdigest().encode() != matched[1]:
        raise _damaged(path, f"bytes with the digest {matched[1].decode()[:12]}", total.hexdigest()[:12])


def _damaged(path: Path, expected: str, got: str) -> IntegrityError:
    return IntegrityError(Problem(str(path), "saved work", expected, excerpt(got), _REMOVE))
