"""How much of an untrusted file is read, and for how long."""

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
    """What becomes more than ``always_allowed`` bytes may not take this many times less in the file."""
    views: int = 8
    """All tensors, each written out in full, tied ones once, may take so many times what is stored of them, where that
    is more than ``always_allowed``: views may overlap, and strides of 0 show one number many times."""
    memory_bytes: int = 12 * 2**30
    """Address space of the reading process, above what its libraries take."""
    seconds: float = 600
    """Time until the reading process is killed."""
    always_allowed: int = 64 * 2**20
    """What may be unpacked or written out of any file."""
