"""Files in the containers that people have networks in: archives, packed files, Keras, Flax, joblib."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import h5py
import joblib
import msgpack
import numpy as np
import torch
from safetensors.numpy import save

Network = Mapping[str, np.ndarray[Any, Any]]


def torch_file(state: Network, **beside: Any) -> bytes:
    """As ``torch.save`` writes it, inside a checkpoint where there is something beside it."""
    out = io.BytesIO()
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
    torch.save({"state_dict": tensors, **beside} if beside else tensors, out)
    return out.getvalue()


def npz_file(state: Network) -> bytes:
    """As ``numpy.savez`` writes it."""
    out = io.BytesIO()
    np.savez(out, **state)
    return out.getvalue()


def hdf5_file(fill: Callable[[h5py.File], object]) -> bytes:
    """What a function writes into an HDF5 file."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return out.getvalue()


def arrays_in_hdf5(state: Network) -> bytes:
    """A dataset for each tensor."""

    def fill(file: h5py.File) -> None:
        for name, array in state.items():
            file[name] = array

    return hdf5_file(fill)


def flax_file(tree: Any) -> bytes:
    """As ``flax.serialization.to_bytes`` writes it: arrays are extensions of a shape, a dtype and bytes."""

    def extension(value: Any) -> msgpack.ExtType:
        return msgpack.ExtType(1, msgpack.packb((value.shape, value.dtype.name, value.tobytes())))

    return msgpack.packb(tree, default=extension, strict_types=True)


def joblib_file(value: Any, **how: Any) -> bytes:
    """As ``joblib.dump`` writes it."""
    out = io.BytesIO()
    joblib.dump(value, out, **how)
    return out.getvalue()


def zip_file(members: Mapping[str, bytes]) -> bytes:
    """A deflated zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def tar_file(members: Mapping[str, bytes], mode: str = "w") -> bytes:
    """A tar archive, packed as ``mode`` says."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def gguf_file(
    state: Network, *, kinds: Mapping[str, int] | None = None, alignment: int = 32, shards: int | None = None
) -> bytes:
    """As llama.cpp writes it, with two settings; ``kinds`` are numbers of types other than the arrays' own, ``shards``
    the number of files that gguf-split says there are.
    """
    numbers = {"float32": 0, "float16": 1, "float64": 28, "int8": 24, "int32": 26, "int64": 27, "bfloat16": 30}

    def text(word: str) -> bytes:
        return struct.pack("<Q", len(word.encode())) + word.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(state), 4 + (shards is not None))
    if shards is not None:
        out += text("split.count") + struct.pack("<IH", 2, shards)
    out += text("general.name") + struct.pack("<I", 8) + text("tiny")
    out += text("general.alignment") + struct.pack("<II", 4, alignment)
    out += text("tiny.rate") + struct.pack("<If", 6, 0.5)
    out += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    data = b""
    for name, array in state.items():
        kind = (kinds or {}).get(name, numbers[array.dtype.name])
        out += text(name) + struct.pack("<I", array.ndim) + struct.pack(f"<{array.ndim}Q", *array.shape[::-1])
        out += struct.pack("<IQ", kind, len(data))
        data += array.tobytes()
        data += bytes(-len(data) % alignment)
    return out + bytes(-len(out) % alignment) + data


FORMS: dict[str, Callable[[Network], bytes]] = {
    ".pt": torch_file,
    ".pth.tar": lambda state: torch_file(state, epoch=3),
    "": torch_file,
    ".model": torch_file,
    ".safetensors": lambda state: save({name: np.ascontiguousarray(array) for name, array in state.items()}),
    ".npz": npz_file,
    ".h5": arrays_in_hdf5,
    ".gguf": gguf_file,
    ".msgpack": lambda state: flax_file(dict(state)),
    ".joblib": lambda state: joblib_file(dict(state)),
    ".pkl": lambda state: joblib_file(dict(state), protocol=2),
}
"""One network as a file, by the suffix that it usually has."""
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
    ".z": zlib.compress,
}
"""Packed files, by what their tools add to the name."""
ARCHIVES: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    ".zip": zip_file,
    ".tar": tar_file,
    ".tgz": lambda members: tar_file(members, "w:gz"),
    ".tar.bz2": lambda members: tar_file(members, "w:bz2"),
    ".tar.xz": lambda members: tar_file(members, "w:xz"),
}
"""Archives, by their suffix."""
