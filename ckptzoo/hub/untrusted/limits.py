"""Bounds on the size of an untrusted file and on the time of reading it."""

from dataclasses import dataclass

from ckptzoo.schema.architecture import MAX_TENSORS


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on one file; sizes in bytes, times in seconds."""

    file_bytes: int = 8 * 2**30
    """The file itself."""
    tensor_bytes: int = 8 * 2**30
    """All its tensors, each written out in full; tied ones count once."""
    tensors: int = 4 * MAX_TENSORS
    """Names in all its state dicts together."""
    states: int = 10_000
    """State dicts in it."""
    header_bytes: int = 32 * 2**20
    """The JSON header of a safetensors file."""
    pickle_bytes: int = 256 * 2**20
    """The pickle that holds the names and shapes, without the weights."""
    expansion: int = 200
    """Largest ratio of unpacked to packed bytes, where more than ``always_allowed`` bytes are unpacked."""
    views: int = 8
    """Largest ratio of all tensors, each written out in full, tied ones once, to what is stored of them, where they
    are larger than ``always_allowed``: views may overlap, and strides of 0 show one number many times.
    """
    memory_bytes: int = 12 * 2**30
    """Address space of the reading process, above what its libraries take."""
    seconds: float = 600
    """Time until the reading process is killed."""
    compared: int = 2**16
    """Bytes of a member of a mapped archive up to which its checksum is compared."""
    always_allowed: int = 64 * 2**20
    """Bytes that may be unpacked or written out of any file."""
