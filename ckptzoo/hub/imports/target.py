"""Where imported checkpoints go: one zoo for each architecture, and the parts that are written of each."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import Problem, SpecError, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_documents
from ckptzoo.format.writer import Writer
from ckptzoo.hub.contributions.matching import match_names, rename, without_wrappers
from ckptzoo.hub.imports.facts import Row
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import ITEMSIZE, TENSOR_NAME, Architecture, Tensor
from ckptzoo.schema.card import Card
from ckptzoo.schema.documents import canonical
from ckptzoo.schema.symmetry import Symmetry

PART_BYTES, PART_SECONDS = 2 * 2**30, 15 * 60
"""A part ends at so many bytes or so much time, at the end of a member."""
MAX_OPEN = 32
"""Zoos that are written at the same time."""
BY_ORDER = "order"
"""In place of a table of names: tensors are matched by their order, where all shapes agree."""
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")

Signature = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of each tensor, in order."""
Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Declaration:
    """What a person says about the zoos.

    Parameters
    ----------
    name
        of the zoo.
    names
        old to new names of tensors, or ``"order"``.
    forward
        a name of ``ckptzoo.archs``.
    input_shape
        of one example.
    symmetry_of
        makes the symmetry table of an architecture whose network is not in ``ckptzoo.archs``.
    license, dataset
        of the card.
    """

    name: str
    names: Mapping[str, str] | str = field(default_factory=dict[str, str])
    forward: str | None = None
    input_shape: tuple[int, ...] | None = None
    symmetry_of: Callable[[Architecture], Symmetry | None] | None = None
    license: str = ""
    dataset: str | None = None


@dataclass
class _Zoo:
    """One zoo that is written: its folder and architecture, and the writer while it is open."""

    path: Path
    arch: Architecture
    label: str
    writer: Writer | None = None
    nbytes: int = 0
    since: float = 0.0
    added: int = 0
    # of a state dict: the zoo's name of each tensor to its own
    matched: dict[Signature, dict[str, str]] = field(default_factory=dict[Signature, dict[str, str]])


class Target:
    """The zoos that an import writes.

    Parameters
    ----------
    folder
        a zoo, or a folder of zoos where the source holds several architectures; may be there already.
    by_order
        whether the adapter says that names may differ where the order and all shapes agree.
    """

    def __init__(self, folder: Path, declaration: Declaration, *, by_order: bool) -> None:
        self.folder, self.declaration, self.by_order = folder, declaration, by_order
        self.notes: dict[str, int] = {}
        self._zoos: list[_Zoo] = []
        self._places: dict[tuple[Signature, str, bool], _Zoo] = {}
        self._finish_move()
        self.units: set[str] = set()
        for path in self._paths():
            _, arch, _ = read_documents(Folder(path))
            self._zoos.append(_Zoo(path, arch, "" if path == folder else path.name))
            units = ckptzoo.open(path).contents.raw.rows["unit"].to_pylist()
            self.units.update(unit.partition("/")[0] for unit in units if unit is not None)

    @property
    def has_several(self) -> bool:
        """Whether the folder is one of zoos."""
        return any(zoo.path != self.folder for zoo in self._zoos)

    @property
    def zoos(self) -> dict[str, int]:
        """The zoos' folders inside the target, and how many checkpoints were added to each."""
        return {str(zoo.path.relative_to(self.folder)): zoo.added for zoo in self._zoos}

    def add(self, checkpoints: Sequence[tuple[Tensors, Row, bool, str]]) -> None:
        """Add checkpoints: tensors by their own names, a row, whether they are Gaussians, and the label of their zoo.

        Raises
        ------
        SpecError
            Names do not fit those of the zoo of this architecture.
        """
        groups: dict[int, list[tuple[Signature, Tensors, Row]]] = {}
        for named, row, gaussian, label in checkpoints:
            tensors = with_usable_names(named)
            signature = signature_of(tensors)
            zoo = self._place(signature, row["id"], label, gaussian=gaussian)
            groups.setdefault(self._zoos.index(zoo), []).append((signature, tensors, row))
        for number, items in groups.items():
            zoo = self._zoos[number]
            stacked = {
                tensor.name: _stacked([tensors[zoo.matched[signature][tensor.name]] for signature, tensors, _ in items])
                for tensor in zoo.arch.tensors
            }
            self._write(zoo, stacked, [row for _, _, row in items])

    def add_stacked(self, tensors: Tensors, rows: Sequence[Row], label: str) -> None:
        """Add K checkpoints whose tensors (K, *shape) are stacked already."""
        tensors = with_usable_names(tensors)
        signature = tuple((name, tuple(array.shape[1:]), array.dtype.name) for name, array in tensors.items())
        zoo = self._place(signature, rows[0]["id"], label, gaussian=False)
        self._write(zoo, {name: tensors[own] for name, own in zoo.matched[signature].items()}, rows)

    def end_member(self) -> None:
        """Publish the parts that are large or old enough, now that a member has ended."""
        for zoo in self._zoos:
            if zoo.nbytes >= PART_BYTES or (zoo.nbytes and time.monotonic() - zoo.since >= PART_SECONDS):
                _commit(zoo)

    def commit(self) -> None:
        """Publish everything that was added."""
        for zoo in self._zoos:
            _commit(zoo)

    def discard(self) -> None:
        """Forget what was added and not published."""
        for zoo in self._zoos:
            if zoo.writer is not None:
                zoo.writer.discard()
                zoo.writer = None

    def _write(self, zoo: _Zoo, stacked: Tensors, rows: Sequence[Row]) -> None:
        if zoo.writer is None:
            opened = [other for other in self._zoos if other.writer is not None]
            if len(opened) >= MAX_OPEN:
                _commit(min(opened, key=lambda other: other.since))
            zoo.writer, zoo.since = ckptzoo.append(zoo.path), time.monotonic()
        zoo.writer.add(stacked, rows)
        zoo.nbytes += sum(array.nbytes for array in stacked.values())
        zoo.added += len(rows)

    def _place(self, signature: Signature, location: str, label: str, *, gaussian: bool) -> _Zoo:
        key = (signature, label, gaussian)
        if key not in self._places:
            self._places[key] = self._find(signature, location, label) or self._new(
                signature, location, label, gaussian=gaussian
            )
        return self._places[key]

    def _find(self, signature: Signature, location: str, label: str) -> _Zoo | None:
        """The zoo whose architecture a state dict has."""
        kinds = [(shape, dtype) for _, shape, dtype in signature]
        names = {name: (shape, dtype) for name, shape, dtype in signature}
        for zoo in self._zoos:
            if label and zoo.label and not zoo.label.startswith(f"{label}"):
                continue
            wanted = [(tensor.shape, tensor.dtype) for tensor in zoo.arch.tensors]
            same_names = {tensor.name: (tensor.shape, tensor.dtype) for tensor in zoo.arch.tensors} == names
            if same_names or kinds == wanted or (self.declaration.forward and sorted(kinds) == sorted(wanted)):
                zoo.matched[signature] = self._match(signature, zoo.arch, location)
                return zoo
        return None

    def _match(self, signature: Signature, arch: Architecture, location: str) -> dict[str, str]:
        """The zoo's name of each tensor to that of a state dict."""
        shapes = {name: shape for name, shape, _ in signature}
        table = self.declaration.names
        in_order = [shape for _, shape, _ in signature] == [tensor.shape for tensor in arch.tensors]
        try:
            note, own_names = match_names(shapes, arch, {} if isinstance(table, str) else table, location=location)
        except SpecError:
            if not in_order or not (self.by_order or table == BY_ORDER):
                raise
            note = "tensors were matched by their order and shapes"
            own_names = {tensor.name: name for tensor, (name, _, _) in zip(arch.tensors, signature, strict=True)}
        if note:
            self.notes[note] = self.notes.get(note, 0) + 1
        kinds = {name: (shape, dtype) for name, shape, dtype in signature}
        for tensor in arch.tensors:
            if kinds[own_names[tensor.name]] != (tensor.shape, tensor.dtype):
                shape, dtype = kinds[own_names[tensor.name]]
                step = "Bring it to a zoo of its own architecture."
                expected, got = f"{tensor.shape} {tensor.dtype}", f"{shape} {dtype}"
                raise SpecError(Problem(location, f"tensor {tensor.name!r}", expected, got, step))
        return {tensor.name: own_names[tensor.name] for tensor in arch.tensors}

    def _new(self, signature: Signature, location: str, label: str, *, gaussian: bool) -> _Zoo:
        """A zoo for an architecture that none of the others has."""
        declaration = self.declaration
        for name, _, dtype in signature:
            if dtype not in ITEMSIZE:
                step = "Leave it out, or cast it where it was made."
                raise SpecError(Problem(location, f"dtype of {name!r}", "one of " + ", ".join(ITEMSIZE), dtype, step))
        symmetry: Symmetry | None = None
        if declaration.forward is not None:
            forward = f"gaussian-{declaration.forward}" if gaussian else declaration.forward
            arch, symmetry = archs.architecture(forward), archs.symmetry(forward)
            dtypes = {dtype for _, _, dtype in signature}
            if len(dtypes) == 1:  # published in another precision
                (dtype,) = dtypes
                tensors = tuple(Tensor(item.name, item.shape, dtype, item.kind, item.aliases) for item in arch.tensors)
                arch = Architecture(arch.name, tensors, arch.forward, arch.input_shape)
        else:
            arch = self._unnamed(signature, gaussian=gaussian)
            if declaration.symmetry_of is not None:
                symmetry = declaration.symmetry_of(arch)
        matched = self._match(signature, arch, location)
        label = label or ("" if not self._zoos else _label_of(arch))
        if label and self.folder.joinpath(layout.ZOO).is_file():
            self._make_room()
        path = self.folder / label if label else self.folder
        card = Card(
            path.name if label else declaration.name, license=declaration.license, dataset=declaration.dataset or ""
        )
        ckptzoo.create(path, arch=arch, card=card, symmetry=symmetry)
        zoo = _Zoo(path, arch, label, matched={signature: matched})
        self._zoos.append(zoo)
        return zoo

    def _unnamed(self, signature: Signature, *, gaussian: bool) -> Architecture:
        """The architecture of a first state dict, with the names that it has after renaming."""
        table = self.declaration.names
        names, _ = rename(tuple(name for name, _, _ in signature), {} if isinstance(table, str) else table)
        plain = {old: without_wrappers(new) for old, new in names.items()}
        if len(set(plain.values())) < len(plain):
            plain = names
        tensors = tuple(
            Tensor(plain[name], shape, dtype, "buffer" if name.rpartition(".")[2] in _BUFFERS else "parameter")
            for name, shape, dtype in signature
        )
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.declaration.name)
        return Architecture(f"gaussian-{name}" if gaussian else name, tensors, None, self.declaration.input_shape)

    def _paths(self) -> list[Path]:
        if (self.folder / layout.ZOO).is_file():
            return [self.folder]
        if not self.folder.is_dir():
            return []
        return sorted(path.parent for path in self.folder.glob(f"*/{layout.ZOO}"))

    def _make_room(self) -> None:
        """Turn the zoo into a folder with a zoo: a second architecture has come. ``_finish_move`` ends it if killed."""
        self.commit()
        (first,) = self._zoos
        label = _label_of(first.arch)
        beside = self._beside()
        beside.mkdir()
        self.folder.rename(beside / label)
        beside.rename(self.folder)
        first.path, first.label = self.folder / label, label

    def _beside(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}.several")

    def _finish_move(self) -> None:
        beside = self._beside()
        if not beside.is_dir():
            return
        if any(beside.iterdir()):
            beside.rename(self.folder)
        else:
            beside.rmdir()


def _stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.stack(arrays) if len(arrays) > 1 else arrays[0][None]  # a large file comes alone: not copied


def _label_of(arch: Architecture) -> str:
    """The folder of one of several zoos: by the shapes and dtypes of its tensors in order."""
    kinds = [[list(tensor.shape), tensor.dtype] for tensor in arch.tensors]
    return f"arch-{sha256(canonical({'tensors': kinds})).hexdigest()[:8]}"


def _commit(zoo: _Zoo) -> None:
    if zoo.writer is not None:
        zoo.writer.commit()
    zoo.writer, zoo.nbytes = None, 0


def with_usable_names(tensors: Tensors) -> Tensors:
    """Tensors under names that a zoo may have: those of other libraries have slashes and tildes in them.

    >>> list(with_usable_names({"mlp/~/linear_0.w": np.ones(1)}))
    ['mlp.linear_0.w']
    """
    if all(map(TENSOR_NAME.fullmatch, tensors)):
        return tensors
    usable = {_usable_name(name): array for name, array in tensors.items()}
    return (
        usable if len(usable) == len(tensors) else {f"tensor_{at}": array for at, array in enumerate(tensors.values())}
    )


def _usable_name(name: str) -> str:
    words = [re.sub(r"[^A-Za-z0-9_:+\-]+", "_", word).strip("_") for word in re.split(r"[./]", name)]
    return ".".join(word for word in words if word) or "tensor"


def signature_of(tensors: Tensors) -> Signature:
    """Name, shape and dtype of each tensor, in order."""
    return tuple((name, array.shape, _dtype_name(array.dtype)) for name, array in tensors.items())


@lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """numpy puts a dtype's name together whenever it is asked for."""
    return dtype.name


def unit_of(source: str, member: str, step: int | None) -> str:
    """The unit of a file's rows: that of the same file in another archive of the same name is the same."""
    text = "\0".join((source, member, "" if step is None else str(step)))
    return f"import-{sha256(text.encode()).hexdigest()[:32]}"


def check_folder(folder: Path) -> None:
    """Refuse a folder that is neither empty nor holds zoos.

    Raises
    ------
    ZooError
        It has other files.
    """
    if not folder.exists() or (folder / layout.ZOO).is_file():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not any(folder.glob(f"*/{layout.ZOO}"))):
        step = "Name a folder that is new or empty, or a zoo."
        raise ZooError(Problem(str(folder), "zoo", "no folder, an empty one or a zoo", "one with other files", step))
