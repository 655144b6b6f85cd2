"""Reads files of ``torch.save`` in the reading process: scanned first, then loaded with ``weights_only=True``."""

from io import BytesIO
from typing import IO, Any
from zipfile import ZipInfo

from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import FORMAT_NAMES, LEGACY_MAGIC, CheckedArchive
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.pickle_scan import PickleScan, scan_pickle

_CHUNK_BYTES = 2**22
_PREFACE_PICKLES = 3
"""Pickles before the object's in the format before torch 1.6: a magic number, a version, facts about the machine."""


def load_torch(file: IO[bytes], archive: CheckedArchive | None, *, location: str, limits: Limits) -> Any:
    """The object in a file of torch.save; ``members`` is None for the format before torch 1.6.

    Raises
    ------
    IntegrityError
        What ``scan_pickle`` refuses; tensors whose numbers are not all in the file; anything else that torch refuses.
    """
    import torch

    if archive is None:
        _scan_legacy(file, location=location, limits=limits)
    elif archive.file_format == "torch":
        _scan_zip(archive, location=location, limits=limits)
    else:
        reject(
            location,
            "format",
            f"{FORMAT_NAMES['torch']}, as its suffix says",
            FORMAT_NAMES["npz"],
            "Rename it to end in .npz.",
        )
    file.seek(0)
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    except MemoryError:
        raise
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, KeyError, EOFError and others
        lines = str(error).replace("Weights only load failed.", "").strip().splitlines()
        reject(location, "file of torch.save", "what torch can load", f"{type(error).__name__}: {(lines or [''])[0]}")


def _scan_zip(archive: CheckedArchive, *, location: str, limits: Limits) -> None:
    """Scan the pickle, and compare what it declares with the archive's members and their checksums."""
    info = archive.infos[f"{archive.folder}data.pkl"]
    if info.file_size > limits.pickle_bytes:
        reject(location, "data.pkl", f"at most {limits.pickle_bytes} bytes", f"{info.file_size} bytes")
    try:
        data = archive.archive.read(info)
    except Exception as error:  # BadZipFile, zlib.error, EOFError
        reject(location, "data.pkl", "bytes as they were packed", f"{type(error).__name__}: {error}")
    scan = _scan_object(BytesIO(data), location=location, limits=limits)
    for key, storage in scan.storages.items():
        member = archive.infos.get(f"{archive.folder}data/{key}")
        if member is None or member.file_size != storage.nbytes:
            got = "no such member" if member is None else f"{member.file_size} bytes"
            reject(location, f"storage {key!r}", f"{storage.nbytes} bytes in the archive", got)
        _verify_checksum(archive, member, location=location)


def _verify_checksum(archive: CheckedArchive, member: ZipInfo, *, location: str) -> None:
    """Compare a member's bytes with its checksum, which torch does not do."""
    try:
        with archive.archive.open(member) as stream:
            while stream.read(_CHUNK_BYTES):
                pass
    except Exception as error:  # BadZipFile, zlib.error, EOFError
        reject(location, "numbers", "bytes as they were packed", f"{type(error).__name__}: {error}")


def _scan_legacy(file: IO[bytes], *, location: str, limits: Limits) -> None:
    """Scan the pickles of the old format, and compare what they declare with the bytes behind them."""
    size = file.seek(0, 2)
    file.seek(0)
    magic = file.read(len(LEGACY_MAGIC))
    if magic != LEGACY_MAGIC:
        reject(location, "file of torch.save", "torch's magic number", "other bytes")
    file.seek(0)
    for _ in range(_PREFACE_PICKLES):
        scan_pickle(file, location=location, limits=limits)
    scan = _scan_object(file, location=location, limits=limits)
    scan_pickle(file, location=location, limits=limits)
    # Behind the pickles each storage has its number of elements, in 8 bytes, and its numbers.
    available, needed = size - file.tell(), sum(storage.nbytes + 8 for storage in scan.storages.values())
    if available < needed:
        reject(location, "numbers", f"{needed} bytes behind the pickles", f"{available} bytes")


def _scan_object(stream: IO[bytes], *, location: str, limits: Limits) -> PickleScan:
    scan = scan_pickle(stream, location=location, limits=limits)
    if sum(storage.nbytes for storage in scan.storages.values()) > limits.tensor_bytes:
        reject(location, "storages", f"at most {limits.tensor_bytes} bytes", "more")
    return scan


def dense_dtype(tensor: Any, name: str, *, location: str) -> str:
    """The dtype of a dense tensor, as zoos name it.

    Raises
    ------
    IntegrityError
        The tensor is not a plain array of numbers in memory, or has a dtype that a zoo cannot hold.
    """
    import torch

    from ckptzoo.schema.architecture import ITEMSIZE

    step = "Save dense tensors: x.dequantize(), x.to_dense(), x.real, x.data.clone()."
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        reject(location, f"tensor {name!r}", "a plain tensor", type(tensor).__name__, step)
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
        reject(location, f"tensor {name!r}", "a dense tensor with its numbers", kind, step)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEMSIZE:
        reject(location, f"dtype of {name!r}", "one of " + ", ".join(ITEMSIZE), dtype, step)
    return dtype
