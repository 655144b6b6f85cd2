"""The weights of one checkpoint as safetensors files, written tensor by tensor."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import CODES
from ckptzoo.schema.architecture import ITEMSIZE, Architecture, Tensor

INDEX = "model.safetensors.index.json"
"""The file that says which tensor is in which shard."""


def names_of(arch: Architecture) -> dict[str, Tensor]:
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


def index_of(arch: Architecture, shards: Mapping[str, Sequence[str]]) -> bytes:
    """Return the content of ``model.safetensors.index.json``."""
    named = names_of(arch)
    total = sum(tensor.nbytes for tensor in named.values())
    weight_map = {name: file for file, names in shards.items() for name in names}
    document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return (json.dumps(document, indent=2) + "\n").encode()


def write_safetensors(
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
    named = names_of(arch)
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
