"""Networks of which each tensor is a ``.npy`` file of its own, put together by their folders."""

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.imports.opened import OpenedFile
from ckptzoo.hub.imports.shards import Whole
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.layer_trees import LEAF_NAMES

_ENDS = tuple(f"{mark}{word}" for mark in "._-" for word in LEAF_NAMES if len(word) > 1)


def is_tensor_name(name: str) -> bool:
    """Tells whether a file is named like a tensor of a layer; without the layer it may be one of any network.

    >>> is_tensor_name("0.bias.npy"), is_tensor_name("bias.npy"), is_tensor_name("samples.npy")
    (True, False, False)
    """
    return name.lower().removesuffix(".npy").endswith(_ENDS)


@dataclass
class ArrayFolders:
    """The arrays of a folder that is not read to its end yet; those of all together are bounded as one file is."""

    _held: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    _done: set[str] = field(default_factory=set[str])

    def add(self, file: OpenedFile) -> None:
        """Add the array of a file.

        Raises ``IntegrityError`` where the network of its folder was put together before, or the kept arrays are too
        large.
        """
        limit = Limits().file_bytes
        if file.folder in self._done:
            step = "Pack the folder again, or save its arrays with numpy.savez."
            raise IntegrityError(Problem(file.path, "place", "beside the other arrays of its folder", "later", step))
        nbytes = file.size + sum(len(data) for arrays in self._held.values() for data in arrays.values())
        if nbytes > limit:
            step = "Save them with numpy.savez."
            raise IntegrityError(Problem(file.path, "arrays in memory", f"at most {limit} bytes", str(nbytes), step))
        self._held.setdefault(file.folder, {})[file.name] = file.read(limit)

    @property
    def has_any(self) -> bool:
        """Whether the source has such a folder."""
        return bool(self._held)

    def left(self, folder: str | None) -> Iterator[Whole]:
        """Yield the networks whose folders were left, when a file of another folder comes, or none."""
        for name in [name for name in self._held if name != folder]:
            arrays = self._held.pop(name)
            self._done.add(name)
            data = _npz(arrays)
            yield Whole(
                f"{name}/*.npy".lstrip("/"),
                len(data),
                partial(list[bytes], [data]),
                [f"{name}/{item}".lstrip("/") for item in arrays],
            )


def _npz(arrays: dict[str, bytes]) -> bytes:
    """Return an archive as numpy.savez writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(arrays):
            # a ZipInfo has a fixed date, so that the same arrays give the same bytes
            archive.writestr(zipfile.ZipInfo(name), arrays[name])
    return out.getvalue()
