"""``export``: one checkpoint to a file or a folder, which appears whole or not at all, written tensor by tensor."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import checked
from ckptzoo.derive.averages import Averaged
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.checks import variant_dtype
from ckptzoo.format.durable import Staging, check_replaceable, naming, restore
from ckptzoo.format.header import CODES
from ckptzoo.hub.exports.page import config, metadata, readme
from ckptzoo.loader.checkpoint import Checkpoint, import_torch
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import ITEMSIZE, Architecture, Tensor
from ckptzoo.schema.documents import Document
from ckptzoo.text import Progress, counted, counter

INDEX = "model.safetensors.index.json"
"""The file that says which tensor is in which shard."""
MAX_SHARD_SIZE = 5 * 10**9
"""Bytes of a file in a folder, as in huggingface_hub."""
FILES = (".safetensors", ".pt")
"""Suffixes of the files that are written; other names are folders."""
_OTHER_FILES = (*FILES, ".pth", ".th", ".bin", ".ckpt", ".npz")
"""Suffixes of checkpoint files, which are no folders."""


@checked
def export(
    network: Checkpoint | Averaged,
    to: str | os.PathLike[str],
    *,
    zoo: Zoo,
    facts: Mapping[str, Document] | None = None,
    max_shard_size: int = MAX_SHARD_SIZE,
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Write one checkpoint for other programs: a file, or a folder as the Hugging Face hub has them.

    A ``.safetensors`` file has the checkpoint's row as metadata; a ``.pt`` file is what torch saves of a state dict. A
    folder has ``model.safetensors``, or shards of it with ``model.safetensors.index.json``, ``config.json`` with the
    architecture and the row, and a ``README.md`` that says where the checkpoint comes from, its licence, and how it is
    loaded. Tied tensors are written under all of their names.

    Parameters
    ----------
    network
        a checkpoint of the zoo, or what ``ckptzoo.derive.average`` or ``soup`` made, with which is recorded what went
        in.
    to
        the file or the folder; the folder around it must exist. A file is replaced.
    zoo
        where it is from.
    facts
        further documents that are recorded beside the row, by name.
    max_shard_size
        of a folder's files of weights, in bytes; a tensor that is larger has a file of its own.
    force
        replace a folder that is not empty, with everything in it.
    progress
        called with the bytes that are written.

    Returns
    -------
    tuple[Path, ...]
        The file; or the folder's files.

    Raises
    ------
    ZooError
        The folder is not empty, or must not be replaced: a zoo, a repository, or one with the working folder in it; or
        the name is that of a file of another format.
    MissingExtraError
        A ``.pt`` file is to be written and torch is not installed.
    OSError
        The disk is full, or cannot be written.

    Notes
    -----
    Equal checkpoints give equal bytes. A folder is written beside its place and renamed, or exchanged with the one that
    is there, in one step; what a call that was killed has left is cleared by the next one that writes into the same
    folder. Memory for one tensor, and for a ``.pt`` file for all. Tested in tests/hub/exports.

    Examples
    --------
    >>> from ckptzoo.hub import export
    >>> zoo = ckptzoo.open("zoos/few")
    >>> [path.name for path in export(zoo[3], "exported", zoo=zoo)]
    ['README.md', 'config.json', 'model.safetensors']
    """
    target = Path(to)
    check_target(target, zoo=zoo, force=force)
    suffix = target.suffix if target.suffix in FILES else ""
    if max_shard_size < 1:
        raise ZooError(Problem("export", "size of a shard", "1 byte or more", str(max_shard_size), "Correct it."))
    recorded = dict(facts or {})
    checkpoint = network
    if isinstance(network, Averaged):
        checkpoint, recorded["average"] = network.checkpoint, network.to_json()
    assert isinstance(checkpoint, Checkpoint)
    arch = checkpoint.arch
    if checkpoint.variant != layout.RAW:
        tensors = (replace(tensor, dtype=variant_dtype(tensor.dtype)) for tensor in arch.tensors)
        arch = replace(arch, tensors=tuple(tensors))
    # a link stays one, and what it leads to is replaced
    real = Path(os.path.realpath(target))
    total = sum(tensor.nbytes for tensor in _names_of(arch).values())
    job = _CheckpointExport(checkpoint, arch, zoo, recorded, counter(total, progress))
    with naming(target):
        staging = Staging(real.parent)
        try:
            if suffix:
                job.write_file(staging.path / real.name, suffix)
                staging.move(real.name, real)
                return (target,)
            names = job.write_folder(staging.path, max_shard_size)
            staging.replace(real)
        except BaseException:
            staging.discard()
            raise
    return tuple(target / name for name in names)


@checked
def check_target(to: str | os.PathLike[str], *, zoo: Zoo, force: bool = False) -> None:
    """Refuse what ``export`` would refuse to write to, before anything is computed.

    Parameters and errors are those of ``export``.
    """
    target = Path(to)
    is_file = target.suffix in FILES
    if not is_file and target.name.lower().endswith(_OTHER_FILES):
        expected = f"a folder, or a file that ends in {' or '.join(FILES)}"
        raise ZooError(Problem("export", "output", expected, str(target), "Choose another name."))
    real = Path(os.path.realpath(target))
    if not real.parent.is_dir():
        step = "Make it first."
        raise ZooError(Problem(str(target), "folder around it", "an existing folder to write to", "none", step))
    if is_file:
        check_replaceable(real)
    else:
        restore(real)
        _check_folder(target, real, zoo, force=force)


class _CheckpointExport:
    """One checkpoint that is written."""

    def __init__(
        self, checkpoint: Checkpoint, arch: Architecture, zoo: Zoo, facts: Document, advance: Callable[[int], None]
    ) -> None:
        self._checkpoint, self._arch, self._zoo = checkpoint, arch, zoo
        self._facts, self._advance = facts, advance

    def write_file(self, path: Path, suffix: str) -> None:
        """Write a single file."""
        if suffix == ".pt":
            torch = import_torch().torch
            # into an open file: to a path, torch would write the file's name into the file
            with path.open("xb") as file:
                torch.save(self._checkpoint.state_dict(), file)
            return
        self._write(path, list(_names_of(self._arch)), metadata(self._checkpoint, self._zoo.name, self._facts))

    def write_folder(self, folder: Path, max_shard_size: int) -> list[str]:
        """Write all files of a folder; return their names."""
        shards = shards_of(self._arch, max_shard_size)
        # shards have the metadata that huggingface_hub gives them; the row is in config.json
        described = metadata(self._checkpoint, self._zoo.name, self._facts) if len(shards) == 1 else {"format": "pt"}
        for file, names in shards.items():
            self._write(folder / file, names, described)
        texts = {
            "config.json": config(self._checkpoint, self._arch, self._zoo, self._facts),
            layout.README: readme(self._checkpoint, self._arch, self._zoo, self._facts),
        }
        if len(shards) > 1:
            texts[INDEX] = _index_of(self._arch, shards)
        for name, data in texts.items():
            (folder / name).write_bytes(data)
        return sorted([*shards, *texts])

    def _write(self, path: Path, names: list[str], described: Mapping[str, str]) -> None:
        _write_safetensors(path, self._arch, self._checkpoint.__getitem__, described, names, self._advance)


def _check_folder(target: Path, real: Path, zoo: Zoo, *, force: bool) -> None:
    """Refuse files, folders that are not empty, and folders whose loss nobody intends, by ``ZooError``."""
    if not real.exists():
        return
    if not real.is_dir():
        raise ZooError(Problem(str(target), "output", "a folder or none", "a file", "Choose another name."))
    names = sorted(path.name for path in real.iterdir())
    if not names:
        return
    if not force:
        got = f"one with {counted(len(names), 'name')}, such as {names[0][:80]!r}"
        step = "Give --force to replace the folder with everything in it, or choose another name."
        raise ZooError(Problem(str(target), "folder", "an empty one or none", got, step))
    kept: dict[str, Any] = {
        "a zoo": any((real / name).exists() for name in (layout.ZOO, layout.COLLECTION)),
        "a repository of git": (real / ".git").exists(),
        "one with the working folder in it": Path.cwd().is_relative_to(real),
        "one with your home in it": Path.home().is_relative_to(real),
        "one with the zoo in it": zoo.contents.files.here is not None
        and Path(os.path.realpath(zoo.contents.files.here)).is_relative_to(real),
    }
    for what, is_so in kept.items():
        if is_so:
            raise ZooError(Problem(str(target), "folder to replace", "one of an export", what, "Choose another name."))


def _names_of(arch: Architecture) -> dict[str, Tensor]:
    """Map every name of a state dict to the tensor that it has; tied tensors have several, one after the other."""
    return {name: tensor for tensor in arch.tensors for name in (tensor.name, *tensor.aliases)}


def shards_of(arch: Architecture, max_shard_size: int) -> dict[str, list[str]]:
    """File names to the names of the tensors in them, as huggingface_hub's ``save_torch_state_dict`` cuts.

    Tensors come in the order of the state dict, and a file ends before one that would make it larger than
    ``max_shard_size``; a tensor that is larger by itself has a file of its own. Names of one tied tensor stay together.
    """
    shards: list[list[str]] = []
    current: list[str] = []
    size = 0
    for tensor in arch.tensors:
        names = [tensor.name, *tensor.aliases]
        nbytes = tensor.nbytes * len(names)
        if nbytes > max_shard_size:
            shards.append(names)
            continue
        if size + nbytes > max_shard_size:
            shards.append(current)
            current, size = [], 0
        current += names
        size += nbytes
    if current:
        shards.append(current)
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    # the names by which huggingface_hub's load_torch_model finds shards
    return {f"model-{number:05d}-of-{len(shards):05d}.safetensors": names for number, names in enumerate(shards, 1)}


def _index_of(arch: Architecture, shards: Mapping[str, Sequence[str]]) -> bytes:
    """Return the content of ``model.safetensors.index.json``."""
    named = _names_of(arch)
    total = sum(tensor.nbytes for tensor in named.values())
    weight_map = {name: file for file, names in shards.items() for name in names}
    document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return (json.dumps(document, indent=2) + "\n").encode()


def _write_safetensors(
    path: Path,
    arch: Architecture,
    read: Callable[[str], NDArray[Any]],
    metadata: Mapping[str, str],
    names: Sequence[str],
    advance: Callable[[int], None],
) -> None:
    """Write some tensors of a checkpoint to a new file: the same bytes for the same checkpoint.

    Larger elements come first, so that nothing is misaligned. ``arch`` has the dtypes in which ``read`` gives
    each tensor; one is in memory at a time. ``metadata`` is that of the file; ``names`` are those of the state
    dict, several for tied tensors. ``advance`` is called with the bytes of every tensor.
    """
    named = _names_of(arch)
    order = sorted(names, key=lambda name: -ITEMSIZE[named[name].dtype])
    described: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    start = 0
    for name in order:
        tensor = named[name]
        stop = start + tensor.nbytes
        described[name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(described, separators=(",", ":")).encode()
    # a safetensors file is the length of its header in 8 bytes, the header, padded with spaces so that the tensors
    # behind it are aligned, and the tensors
    length = -(-len(text) // 8) * 8
    with path.open("xb") as file:
        file.write(length.to_bytes(8, "little") + text.ljust(length))
        for name in order:
            array = np.ascontiguousarray(read(named[name].name))
            file.write(array.reshape(-1).view(np.uint8).data)
            advance(array.nbytes)
