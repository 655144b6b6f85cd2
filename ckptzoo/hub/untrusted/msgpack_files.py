"""Reads msgpack files of Flax (``flax.serialization.to_bytes``) as data; the package msgpack is needed."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import FileForm
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.values import MAX_DIMENSIONS, InertError
from ckptzoo.schema.architecture import ITEMSIZE

_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
"""Codes of Flax's extension types (``_MsgpackExtType`` of flax.serialization)."""
_CHUNKED = "__msgpack_chunked_array__"
"""The key of an array that Flax cut into pieces of at most 2**30 bytes."""
_MAX_TEXT, _MAX_ITEMS = 2**20, 2**20
_STEP = "Save the parameters again with flax.serialization.to_bytes."


def read_msgpack(data: bytes, *, location: str, limits: Limits) -> Any:
    """Read a file: mappings, plain values and arrays.

    Raises ``IntegrityError`` where it is not whole, holds more than the limits, or an array is not as large as it
    declares.
    """
    import msgpack

    def array_of(code: int, content: bytes) -> Any:
        if code == _COMPLEX:
            return None
        if code not in (_ARRAY, _SCALAR):
            raise InertError("extension type", "an array or a number of Flax", str(code))
        array = _array(msgpack.unpackb(content, raw=False, strict_map_key=True, **_bounds(len(content))))
        return array if code == _ARRAY else array.reshape(-1)[0].item() if array.size == 1 else None

    try:
        # strict_map_key would refuse numbers as keys, which lists in Flax have
        root = msgpack.unpackb(data, raw=False, strict_map_key=False, ext_hook=array_of, **_bounds(len(data)))
        return _joined(root)
    except InertError as error:
        reject(location, error.what, error.expected, error.got, _STEP)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # also what is behind the end, and too deep
        reject(location, "msgpack", "a whole file of Flax", f"{type(error).__name__}: {error}"[:300], _STEP)


def _bounds(size: int) -> dict[str, int]:
    return {
        # msgpack allocates what a length declares before it reads the items
        "max_str_len": min(size, _MAX_TEXT),
        "max_bin_len": size,
        "max_ext_len": size,
        "max_array_len": min(size, _MAX_ITEMS),
        "max_map_len": min(size, _MAX_ITEMS),
    }


def _array(described: Any) -> NDArray[Any]:
    """Return the array of a shape, the name of a dtype, and bytes."""
    shape, name, content = described if isinstance(described, list) and len(described) == 3 else ((), None, b"")
    is_shape = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
    if not is_shape or not all(type(length) is int and 0 <= length < 2**62 for length in shape):
        raise InertError("array", f"a shape of at most {MAX_DIMENSIONS} axes", str(shape)[:80])
    # numpy's code of the bfloat16 of ml_dtypes, which is no dtype of its own
    name = {"V2": "bfloat16", "|V2": "bfloat16"}.get(str(name), name)
    if name not in ITEMSIZE or not isinstance(content, bytes):
        raise InertError("dtype", "one of " + ", ".join(ITEMSIZE), str(name)[:80])
    if len(content) != prod(shape) * ITEMSIZE[name]:
        raise InertError(f"array of shape {shape}", f"{prod(shape) * ITEMSIZE[name]} bytes", str(len(content)))
    return np.frombuffer(content, numpy_dtype(name)).reshape(shape)


def _joined(root: Any) -> Any:
    """Join arrays that were cut into pieces; the unpacker bounds the nesting."""
    if not isinstance(root, dict):
        return root
    if root.get(_CHUNKED) is not True:
        return {key: _joined(value) for key, value in root.items()}
    shape, pieces = (_in_order(root.get(key)) for key in ("shape", "chunks"))
    if not pieces or not all(isinstance(piece, np.ndarray) for piece in pieces):
        raise InertError("array in pieces", "its pieces", str(type(root.get("chunks")).__name__))
    whole = np.concatenate([piece.reshape(-1) for piece in pieces])
    if not all(type(length) is int and 0 <= length < 2**62 for length in shape) or prod(shape) != whole.size:
        raise InertError(f"array of shape {shape}"[:80], "as many numbers in its pieces", str(whole.size))
    return whole.reshape(shape)


def _in_order(value: Any) -> list[Any]:
    """Return a list, which Flax writes as a mapping of numbers."""
    if isinstance(value, dict):
        return [value[key] for key in sorted(value, key=lambda key: int(key) if str(key).isdecimal() else 0)]
    return list(value) if isinstance(value, list) else []


def _is_flax(head: bytes, path: str) -> bool:
    """Tells a mapping whose first key is a text."""
    if not head:
        return False
    # the format of MessagePack: map 16, map 32 or fixmap
    start = {0xDE: 3, 0xDF: 5}.get(head[0], 1 if 0x81 <= head[0] <= 0x8F else 0)
    kind = head[start : start + 1]
    if not start or not kind:
        return False
    # str 8, str 16 or fixstr, whose length is in the low 5 bits
    skip = {0xD9: 2, 0xDA: 3}.get(kind[0], 1 if 0xA1 <= kind[0] <= 0xBF else 0)
    length = kind[0] & 0x1F if skip == 1 else int.from_bytes(head[start + 1 : start + skip])
    text = head[start + skip : start + skip + min(length, 64)]
    return bool(skip and text) and text.decode("utf-8", "replace").isprintable() and b"\0" not in text


MSGPACK = FileForm(
    "msgpack",
    "a msgpack file of Flax",
    "a mapping whose first key is a text",
    _is_flax,
    read=lambda data, location, limits, strict: read_msgpack(data, location=location, limits=limits),
    package="msgpack",
    becomes="networks: nested layers, with their collections (`batch_stats`)",
    facts="scalars beside the arrays",
)
