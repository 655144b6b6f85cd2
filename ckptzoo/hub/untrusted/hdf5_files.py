"""Reads HDF5 files as data: weights of Keras, and groups of arrays; the package h5py is needed.

The library itself parses the bytes, which is why it runs in the reading process alone. Everything by which a file leads
out of itself is refused: links to other files, virtual datasets, numbers in other files; filters are those that the
library brings along, and no plug-ins are looked for.
"""

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import FileForm
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.numpy_files import with_facts
from ckptzoo.hub.untrusted.rules import dtype_step
from ckptzoo.schema.architecture import ITEMSIZE

_MAX_DEPTH, _MAX_ATTRIBUTES, _MAX_ATTRIBUTE = 64, 256, 1000
_MAX_ITEMS = 64
"""Items of an attribute; more are a table."""
_KERAS_LISTS = ("layer_names", "weight_names")
"""Attributes in which Keras lists what is in a group, as arrays of fixed-length bytes."""
_FILTERS = {1, 2, 3, 6, 32000}
"""deflate, shuffle, fletcher32, scaleoffset (H5Zpublic.h) and h5py's own LZF."""
_NO_PLUGINS = "::"
"""The value of ``HDF5_PLUGIN_PRELOAD`` by which no filters are loaded from outside the library."""
_POSTERIOR = "posterior"
"""The group of draws in netCDF files of ArviZ, (chain, draw, *shape) each; others are statistics and data."""
DRAWS = "draws_along"
"""The fact that says that the first axes of all tensors count chains and their draws."""
_STEP = "Save its arrays with numpy.savez."


def read_hdf5(data: bytes, *, location: str, limits: Limits) -> Any:
    """Read a file: groups as mappings, datasets of numbers as arrays, short attributes as values.

    What the groups of Keras repeat is left out of names: ``dense.kernel`` for
    ``model_weights/dense/dense/kernel:0``. Keras 3 numbers the tensors of a layer: ``layers.dense.vars.0``.
    Raises ``IntegrityError`` where the file is damaged, leads out of itself, or declares more than the limits.
    """
    # before h5py is imported: the library reads it when it begins
    os.environ["HDF5_PLUGIN_PRELOAD"] = _NO_PLUGINS
    import h5py

    try:
        # h5py raises all these classes for damaged files
        with h5py.File(BytesIO(data), "r") as file:
            return _Tree(h5py, location, limits, len(data)).read(file)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        reject(location, "HDF5 file", "a whole one", f"{type(error).__name__}: {error}"[:300], "Fetch it again.")


class _Tree:
    """Reads the groups of a file, each of them once."""

    def __init__(self, h5py: Any, location: str, limits: Limits, size: int) -> None:
        self.h5py, self.location, self.limits, self.size = h5py, location, limits, size
        self.count = self.nbytes = 0
        self.seen: set[Any] = set()

    def read(self, file: Any) -> Any:
        """Read the whole tree; only the layers of what Keras writes."""
        root = self.group(file, "", 0)
        if isinstance(layers := root.get("model_weights"), dict):  # a whole model, with the state of its optimiser
            return {**{key: value for key, value in root.items() if key != "model_weights"}, **_without_repeats(layers)}
        if isinstance(draws := root.get(_POSTERIOR), dict):
            others = sorted(name for name, item in root.items() if isinstance(item, dict) and name != _POSTERIOR)
            known = {"other_groups": ", ".join(others)[:_MAX_ATTRIBUTE]}
            arrays = [item for item in draws.values() if isinstance(item, np.ndarray)]
            if len({array.shape[:2] for array in arrays}) == 1 and arrays[0].ndim >= 2:
                known[DRAWS] = "chain, draw"
            return {**draws, **known}
        return _without_repeats(root) if "layer_names" in file.attrs else root

    def group(self, group: Any, path: str, depth: int, order: Sequence[str] = ()) -> dict[str, Any]:
        """Return the items of a group: first those that Keras lists, here or in a group around it, in its order."""
        identity = self.identity(group)
        if depth > _MAX_DEPTH or identity in self.seen:
            got = "a group inside itself" if identity in self.seen else "more"
            reject(self.location, f"group {path!r}", f"at most {_MAX_DEPTH} groups within one another", got, _STEP)
        self.seen.add(identity)
        order = self.listed(group) or order
        made: dict[str, Any] = dict(self.attributes(group))
        there = dict.fromkeys(group)
        first = [name for name in dict.fromkeys(text.partition("/")[0] for text in order) if name in there]
        for name in dict.fromkeys([*first, *there]):
            self.count += 1
            if self.count > self.limits.tensors:
                reject(self.location, "HDF5 file", f"at most {self.limits.tensors} objects", "more", _STEP)
            inside = [text.removeprefix(f"{name}/") for text in order if text.startswith(f"{name}/")]
            item = self.item(group, name, f"{path}/{name}", depth, inside)
            if item is not None:
                made[name] = item
        return with_facts(made)

    def identity(self, item: Any) -> Any:
        """Return a key that is equal for an object reached by two links."""
        # the file's number and the address in it, as of two hard links to one group
        info = self.h5py.h5o.get_info(item.id)
        return info.fileno, info.addr

    def listed(self, group: Any) -> list[str]:
        """Return the paths below a group that Keras lists in an attribute, in the order of the network."""
        for key in _KERAS_LISTS:
            names = group.attrs.get(key, ()) if key in group.attrs else ()
            if len(names) and len(names) <= self.limits.tensors:
                return [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names]
        return []

    def item(self, group: Any, name: str, path: str, depth: int, order: Sequence[str]) -> Any:
        """Return a group as a mapping, a dataset as an array; None for what holds no numbers."""
        # as a link: to get the object would open the file that an external link names
        link = group.get(name, getlink=True)
        if not isinstance(link, self.h5py.HardLink):
            kind = "a link to another file" if isinstance(link, self.h5py.ExternalLink) else "a soft link"
            reject(self.location, f"link {path!r}", "an object of the file itself", kind, _STEP)
        item = group[name]
        if isinstance(item, self.h5py.Group):
            return self.group(item, path, depth + 1, order)
        return self.array(item, path) if isinstance(item, self.h5py.Dataset) else None

    def array(self, dataset: Any, path: str) -> NDArray[Any] | None:
        """Return the numbers of a dataset; None for texts, references and the axes of netCDF."""
        what = f"dataset {path!r}"
        if dataset.is_virtual or dataset.external:
            reject(self.location, what, "numbers in the file itself", "numbers in other files", _STEP)
        name, shape = dataset.dtype.name, dataset.shape
        # the axes of netCDF are arrays too, of the positions along them
        if shape is None or not _may_hold_numbers(self.h5py, dataset.dtype):
            return None
        if dataset.attrs.get("CLASS") == b"DIMENSION_SCALE":
            return None
        if name not in ITEMSIZE:
            got = {"V": "structured", "O": "rows of several lengths"}.get(dataset.dtype.kind, str(name))
            reject(self.location, f"dtype of {path!r}", "one of " + ", ".join(ITEMSIZE), got, dtype_step(got, _STEP))
        settings = dataset.id.get_create_plist()
        filters = [settings.get_filter(at)[0] for at in range(settings.get_nfilters())]
        if unknown := [number for number in filters if number not in _FILTERS]:
            reject(self.location, f"filters of {path!r}", "those of HDF5 itself", f"number {unknown[0]}", _STEP)
        self.nbytes += prod(shape) * dataset.dtype.itemsize
        # what was never written takes no space in the file, and reads as zeros
        most = min(self.limits.tensor_bytes, max(self.limits.always_allowed, self.limits.expansion * self.size))
        chunk = prod(dataset.chunks or ()) * dataset.dtype.itemsize
        if max(self.nbytes, chunk) > most:
            got = f"{max(self.nbytes, chunk)} bytes with {path!r}"
            reject(self.location, "HDF5 file", f"at most {most} bytes of numbers in {self.size}", got, _STEP)
        return np.asarray(dataset[()]).astype(dataset.dtype.newbyteorder("="), copy=False)

    def attributes(self, group: Any) -> Iterator[tuple[str, Any]]:
        """Yield what is noted about a group as its attributes: texts, numbers, tuples of texts; of numbers the text."""
        for name in list(group.attrs)[:_MAX_ATTRIBUTES]:
            if name in _KERAS_LISTS:
                continue
            attribute = self.h5py.h5a.open(group.id, name.encode())
            shape = attribute.shape
            # h5py takes the size 0 of an attribute without items for a fault
            if shape is None or len(shape) > 1 or not 0 < prod(shape) <= _MAX_ITEMS:
                continue
            if attribute.get_storage_size() > _MAX_ATTRIBUTE:
                continue
            items = [_plain(item) for item in np.atleast_1d(group.attrs[name]).tolist()]
            if not all(isinstance(item, str | bool | int | float) for item in items):
                continue
            # MATLAB and Julia write a number as an array of one
            value = items[0] if len(items) == 1 else items
            if isinstance(value, list):
                # numbers in a list beside arrays would be taken for a tensor of the network
                value = tuple(value) if all(isinstance(item, str) for item in value) else str(value)
            if len(str(value)) <= _MAX_ATTRIBUTE:
                yield name, value


def _plain(item: Any) -> Any:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item


def _may_hold_numbers(h5py: Any, dtype: Any) -> bool:
    """Tells whether a dataset of a dtype has numbers: texts and references have none, records and rows may."""
    rows = h5py.check_vlen_dtype(dtype)
    return rows not in (str, bytes) and h5py.check_ref_dtype(dtype) is None and dtype.kind not in "SUmM"


def _without_repeats(tree: dict[str, Any]) -> dict[str, Any]:
    """Groups of Keras without those that repeat the name of the layer around them, and without ``:0`` in names."""
    made: dict[str, Any] = {}
    for name, value in tree.items():
        inner = value
        if isinstance(value, dict):
            inner = value[name] if list(value) == [name] and isinstance(value[name], dict) else value
            inner = _without_repeats(inner)
        made[name.removesuffix(":0")] = inner
    return made


HDF5 = FileForm(
    "hdf5",
    "an HDF5 file",
    "`89` `HDF`",
    lambda head, path: head.startswith(b"\x89HDF\r\n\x1a\n"),
    read=lambda data, location, limits, strict: read_hdf5(data, location=location, limits=limits),
    package="h5py",
    becomes="one network: layers of Keras (`.h5`, `.weights.h5`, inside `.keras`), arrays by name, groups as layers; "
    "draws of ArviZ (netCDF), a network each",
    facts="short attributes",
)
