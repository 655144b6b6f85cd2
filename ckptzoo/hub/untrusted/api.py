"""Reads strangers' checkpoint files."""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ckptzoo.errors import ZooError
from ckptzoo.hub.untrusted.formats import HEAD, SUFFIXES, kind_of
from ckptzoo.hub.untrusted.limits import Fact, Limits, Read, StateDict, reject, shown
from ckptzoo.hub.untrusted.protocol import read_result
from ckptzoo.hub.untrusted.safetensors import read_flat
from ckptzoo.hub.untrusted.supervisor import Supervisor

_TEXT = 1000
_STEP = "Give the path of a checkpoint file."


def read(path: str | os.PathLike[str], *, limits: Limits | None = None) -> list[StateDict]:
    """The state dicts in one stranger's file.

    Parameters
    ----------
    path : a .safetensors, .pt, .pth, .th, .bin, .ckpt or .npz file.

    Raises
    ------
    IntegrityError
        The file is refused; the message names what is wrong with it.
    MissingExtraError
        It is a file of torch.save, and torch is not installed.

    Notes
    -----
    safetensors files are parsed here; all others in a confined process that is started for them, which takes as long as
    importing numpy or torch. For several files use ``read_all``.
    """
    (made,) = read_all([path], limits=limits)
    if made.error is not None:
        raise made.error
    return list(made.found)


def read_all(paths: Iterable[str | os.PathLike[str]], *, limits: Limits | None = None) -> Iterator[Read]:
    """The state dicts in many strangers' files, in order; a file that is refused does not keep the others.

    Each file is read in a confined process of its own; the process that starts them loads torch once.

    Notes
    -----
    One file is in memory at a time, besides what the caller keeps. Held by tests/hub/untrusted/test_real.py.
    """
    files = [Path(path) for path in paths]
    limits = limits or Limits()
    with_torch = any(SUFFIXES.get(path.suffix.lower()) == "torch" for path in files)
    with Supervisor(with_torch=with_torch) as keeper:
        for path in files:
            try:
                made = Read(path, tuple(_read(path, keeper, limits)))
            except ZooError as error:
                made = Read(path, error=error)
            yield made


def _read(path: Path, keeper: Supervisor, limits: Limits) -> list[StateDict]:
    where, name = shown(path, 1000), shown(path.name)
    descriptor = _opened(path, where)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            reject(where, "file", "a file", _what(before.st_mode), _STEP)
        if before.st_size > limits.file_bytes:
            reject(where, "size", f"at most {limits.file_bytes} bytes", f"{before.st_size} bytes", "Split the file.")
        kind = kind_of(path.name, os.pread(descriptor, HEAD, 0), location=where)
        if kind == "safetensors":
            made = [_flat(descriptor, where, name, limits)]
        else:
            report, tensors = keeper.read(kind, descriptor, location=where, limits=limits)
            with tensors:
                states, arrays = read_result(report, tensors, location=where, limits=limits)
            made = []
            for state in states:
                first: dict[int, str] = {}
                aliases = {
                    key: first[at]
                    for key, at in zip(state.names, state.at, strict=True)
                    if first.setdefault(at, key) != key
                }
                named = {key: arrays[at] for key, at in zip(state.names, state.at, strict=True)}
                source = f"{name}#{state.key}" if state.key else name
                made.append(StateDict(source, named, aliases, state.facts, state.left_out, keeper.guards))
        after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            reject(
                where, "file", "the same bytes all the time", "a file that changed while it was read", "Read it again."
            )
        return made
    finally:
        os.close(descriptor)


def _opened(path: Path, location: str) -> int:
    """A descriptor for reading; a pipe or a device does not hold it up."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        reject(location, "file", "a file that can be read", reason or type(error).__name__, _STEP)


def _what(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _flat(descriptor: int, location: str, name: str, limits: Limits) -> StateDict:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        arrays, metadata = read_flat(
            file,
            location=location,
            header_bytes=limits.header_bytes,
            tensor_bytes=limits.tensor_bytes,
            tensors=limits.tensors,
        )
    if not arrays:
        reject(location, "content", "a state dict: names and tensors", "no tensors", "Save model.state_dict().")
    facts: dict[str, Fact] = {}
    left: list[str] = []
    for key, text in list(metadata.items())[:256]:
        if key.isprintable() and text.isprintable() and len(text) <= _TEXT and len(key) <= _TEXT:
            facts[key] = text
        else:
            left.append(shown(f"{key}: a text of {len(text)} characters"))
    if len(metadata) > 256:
        left.append(f"metadata: {len(metadata) - 256} more texts")
    return StateDict(name, {key: np.asarray(array) for key, array in arrays.items()}, {}, facts, tuple(left))
