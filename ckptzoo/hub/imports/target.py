"""The zoos that an import writes: one for each architecture, in parts."""

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import Problem, SpecError, ZooError
from ckptzoo.format import durable
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents, read_documents
from ckptzoo.format.references import require_kind
from ckptzoo.format.writer import Writer
from ckptzoo.hub.contributions.matching import match_names, rename
from ckptzoo.hub.imports.adapters.adapter import Picked, identifier
from ckptzoo.hub.imports.effective_weights import effective
from ckptzoo.hub.imports.facts import Row, merged
from ckptzoo.hub.imports.mapped import loaded
from ckptzoo.hub.imports.same_architecture import (
    Fit,
    Saved,
    Signature,
    Tensors,
    architecture_of,
    fit,
    in_architecture,
    is_like,
    kinds_of,
    of_one,
    signature_of,
    table_without_wrappers,
    widest,
)
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import ITEMSIZE, TENSOR_NAME, Architecture, Tensor
from ckptzoo.schema.card import Card
from ckptzoo.schema.documents import canonical
from ckptzoo.schema.metadata import MAX_ID, parse_extra
from ckptzoo.schema.symmetry import Symmetry

PART_BYTES, PART_SECONDS = 2 * 2**30, 15 * 60
"""A part ends at this many bytes or seconds, at the end of a member."""
MAX_OPEN = 32
"""The largest number of zoos that are open for writing at the same time."""
BY_ORDER = "order"
"""The value in place of a table of names that matches tensors by their order, where all shapes agree."""
_TABLE = "a file, and name it with --names"
"""The place of a table of names, for messages."""


@dataclass(frozen=True)
class Declaration:
    """The options of the zoos that an import writes.

    ``names`` maps old to new names of tensors, or is ``"order"``; ``forward`` is a name of ``ckptzoo.archs``;
    ``input_shape`` is that of one example; ``symmetry_of`` makes the symmetry table of an architecture whose
    network is not in ``ckptzoo.archs``; ``license`` and ``dataset`` are for the card.
    """

    name: str
    names: Mapping[str, str] | str = field(default_factory=dict[str, str])
    forward: str | None = None
    input_shape: tuple[int, ...] | None = None
    symmetry_of: Callable[[Architecture], Symmetry | None] | None = None
    license: str = ""
    dataset: str | None = None


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint to be added.

    ``saved`` has the names of the file; columns that are added are changed in ``row``; ``gaussian`` marks means with
    standard deviations; ``label`` is that of its zoo, empty where one zoo holds all of an architecture; ``arch`` is
    what its file says, None where it says none.
    """

    saved: Saved
    row: Row
    gaussian: bool = False
    label: str = ""
    arch: Architecture | None = None


@dataclass
class OpenZoo:
    """One zoo that is written: its folder and architecture, and the writer while it is open."""

    path: Path
    arch: Architecture
    label: str
    writer: Writer | None = None
    nbytes: int = 0
    since: float = 0.0
    added: int = 0


_Key = tuple[Signature, tuple[tuple[str, str], ...], str, bool]


class TargetZoos:
    """The zoos that an import writes.

    ``folder`` is a zoo, or a folder of zoos where the source holds several architectures, and may exist. With
    ``by_order`` names may differ where the order and all shapes agree.
    """

    refers = False
    """Whether the zoos refer to files."""

    def __init__(self, folder: Path, declaration: Declaration, *, by_order: bool) -> None:
        self.folder, self.declaration, self.by_order = folder, declaration, by_order
        self.notes: dict[str, int] = {}
        self.unclear: Problem | None = None
        """Why ``holds`` could not tell whether a file is that of a checkpoint."""
        table = {} if isinstance(declaration.names, str) else declaration.names
        self._table = table_without_wrappers(table)
        self._unused = set(self._table)
        self._zoos: list[OpenZoo] = []
        self._places: dict[_Key, list[tuple[OpenZoo, Fit]]] = {}
        self._finish_move()
        self.units: set[str] = set()
        self.sources: set[str] = set()
        self._sources: dict[str, set[str]] = {}
        self.ids: dict[str, str] = {}
        self._rows: dict[str, tuple[OpenZoo, str]] = {}
        for path in self._paths():
            identity, arch, _ = read_documents(Folder(path))
            require_kind(identity, str(path), references=self.refers)
            self._zoos.append(OpenZoo(path, arch, "" if path == folder else path.name))
            # with those that were retracted, which are there too
            rows = read_contents(Folder(path)).raw.rows.select(names := ["unit", "id", "member", "source"])
            columns = [rows[name].to_pylist() for name in names]
            for unit, id, member, source in zip(*columns, strict=True):
                self.sources.add(source or "")
                self.ids[id] = source or ""
                if unit is not None:
                    self.units.add(unit_of_file({"unit": unit}))
                    self._rows[unit] = self._zoos[-1], id
                for name in (id, member):
                    self._sources.setdefault(name, set()).add(source or "")
        self._older = tuple(self._zoos)

    @property
    def has_several(self) -> bool:
        """Whether the folder is one of zoos."""
        return any(zoo.path != self.folder for zoo in self._zoos)

    @property
    def zoos(self) -> dict[str, int]:
        """The zoos' folders inside the target, and the number of checkpoints added to each."""
        return {str(zoo.path.relative_to(self.folder)): zoo.added for zoo in self._zoos}

    @property
    def masks(self) -> Path:
        """The folder beside the zoos with the masks of pruned networks."""
        return self.folder.with_name(f"{self.folder.name}-masks")

    def add(
        self, checkpoints: Sequence[NewCheckpoint], refuse: Callable[[NewCheckpoint, ZooError], None] | None = None
    ) -> list[NewCheckpoint]:
        """Add checkpoints, and return those that were added.

        A new zoo has the architecture of all checkpoints that are of one. ``refuse`` is called with each that cannot be
        added; without it the first one raises: ``SpecError`` where names do not fit the zoo of this architecture.
        """
        usable: list[tuple[NewCheckpoint, Saved]] = []
        groups: dict[int, list[tuple[Any, Row]]] = {}
        added: list[NewCheckpoint] = []
        failed: tuple[NewCheckpoint, ZooError] | None = None
        for item in checkpoints:
            try:
                usable.append((item, self._effective(item)))
            except ZooError as error:
                if refuse is None:
                    failed = item, error
                    break
                refuse(item, error)
        for number, (item, saved) in enumerate(usable):
            try:
                zoo, fitted = self._place(item, saved, usable[number + 1 :])
                tensors, facts = in_architecture(saved.tensors, fitted, zoo.arch)
                prepared = self._prepared(zoo, tensors, item.row)
            except ZooError as error:
                if refuse is None:
                    failed = item, error
                    break
                refuse(item, error)
                continue
            if facts:
                item.row["extra"] = merged(item.row.get("extra", {}), facts)
            groups.setdefault(self._zoos.index(zoo), []).append((prepared, item.row))
            added.append(item)
        # a file is added whole or not at all: what the zoo has of it is not read again
        file = "" if failed is None else unit_of_file(failed[0].row)
        for number, items in groups.items():
            items = [(tensors, row) for tensors, row in items if failed is None or unit_of_file(row) != file]
            zoo = self._zoos[number]
            if items:
                self._write_several(zoo, [tensors for tensors, _ in items], [row for _, row in items])
        if failed is not None:
            raise failed[1]
        return added

    def repositories(self, source: str) -> set[str]:
        """Return the repositories of hubs that a source of the zoo comes from."""
        names: set[str] = set()
        for zoo in self._older:
            rows = read_contents(Folder(zoo.path)).raw.rows.select(["source", "extra"])
            for name, extra in zip(rows["source"].to_pylist(), rows["extra"].to_pylist(), strict=True):
                if name == source and extra is not None and "repository" in extra:
                    names.add((parse_extra(extra) or {}).get("repository", ""))
        return names - {""}

    def holds(self, picked: Picked, unit: str) -> bool | None:
        """Whether the zoo's checkpoint of a unit has these numbers; None where it has no such checkpoint."""
        if unit not in self._rows:
            return None
        zoo, id = self._rows[unit]
        notes, match = dict(self.notes), None
        item = NewCheckpoint(Saved(picked.tensors, picked.ties, picked.buffers), {"id": id}, picked.gaussian, zoo.label)
        saved = item.saved
        with suppress(ZooError):
            saved = self._effective(item)
            match = self._find(item, saved, signature_of(saved.tensors), [zoo])
        self.notes = notes
        if match is None:
            return False
        tensors, _ = in_architecture(saved.tensors, match[1], zoo.arch)
        contents = read_contents(Folder(zoo.path))
        stored = Zoo(contents, {}, np.arange(len(contents.raw.rows))).checkpoint(id)
        # by bytes, because NaN differs from itself
        return all(loaded(array).tobytes() == stored[name].tobytes() for name, array in tensors.items())

    def name_apart(self, row: Row) -> None:
        """Give a row names of its own where another source has brought its id or its member into the zoo.

        The source's name goes before both, for every checkpoint of the member, so that no member is of two sources.
        """
        source = identifier(row["source"])
        if not any(self._sources.get(row[name], set()) - {row["source"]} for name in ("id", "member")):
            return
        for name in ("id", "member", "mode"):
            if isinstance(row.get(name), str):
                row[name] = f"{source}/{row[name]}"[:MAX_ID]

    def _effective(self, item: NewCheckpoint) -> Saved:
        """Return a checkpoint with the tensors that its network computes with, under names that a zoo may have."""
        saved, row = item.saved, item.row
        changed = effective(saved.tensors, row["id"])
        if changed.computed and any(fit(saved, zoo.arch, self._table) is not None for zoo in self._older):
            return saved  # the zoo has the parts of which weights are computed
        if changed.tensors is not saved.tensors:
            facts = dict(changed.facts)
            if changed.masks:
                facts["pruning"] = self._write_masks(changed.masks, row["id"])
            for note in changed.notes:
                self._note(note)
            row["extra"] = merged(row.get("extra", {}), facts)
            names = {
                name: changed.names.get(name, name) for name in (*saved.ties, *saved.ties.values(), *saved.buffers)
            }
            ties = {names[name]: names[first] for name, first in saved.ties.items()}
            saved = Saved(
                changed.tensors,
                {name: first for name, first in ties.items() if name in changed.tensors and first in changed.tensors},
                frozenset(names[name] for name in saved.buffers) - changed.computed,
            )
        usable = usable_names(saved.tensors)
        return saved if usable is None else saved.renamed(usable)

    def _note(self, note: str) -> None:
        self.notes[note] = self.notes.get(note, 0) + 1

    def add_stacked(self, tensors: Tensors, rows: Sequence[Row], label: str) -> None:
        """Add K checkpoints as stacked tensors (K, *shape)."""
        if (usable := usable_names(tensors)) is not None:
            tensors = {usable[name]: array for name, array in tensors.items()}
        first = Saved({name: array[0] for name, array in tensors.items()})
        zoo, fitted = self._place(NewCheckpoint(first, rows[0], label=label), first, ())
        stacked = {name: tensors[own] for name, own in fitted.own_names.items() if own is not None}
        self._write(zoo, stacked, rows)

    def note_unused_names(self) -> None:
        """Note entries of the table of names that are about no file."""
        if self._unused and any(zoo.added for zoo in self._zoos):
            self._note(f"--names: no file has {', '.join(sorted(self._unused)[:4])}")

    def end_member(self) -> None:
        """Publish the parts that are large or old enough, now that a member has ended."""
        for zoo in self._zoos:
            if zoo.nbytes >= PART_BYTES or (zoo.nbytes and time.monotonic() - zoo.since >= PART_SECONDS):
                commit_zoo(zoo)

    def commit(self) -> None:
        """Publish everything that was added."""
        for zoo in self._zoos:
            commit_zoo(zoo)

    def labels_here(self) -> Sequence[str]:
        """Return the labels of rows whose files lie in the source, whatever its name is."""
        return ()

    def begin(self, label: str) -> None:
        """Do what is to be done once the source is known to have a label, and before it is brought."""

    def end(self, label: str) -> None:
        """Do what is to be done once the source of a name has been brought."""

    def discard(self) -> None:
        """Forget what was added and not published."""
        for zoo in self._zoos:
            if zoo.writer is not None:
                zoo.writer.discard()
                zoo.writer = None

    def _prepared(self, zoo: OpenZoo, tensors: Tensors, row: Row) -> Any:
        """Return what is written of a checkpoint; raise ``SpecError`` where it cannot be."""
        return tensors

    def _write_several(self, zoo: OpenZoo, several: Sequence[Any], rows: Sequence[Row]) -> None:
        """Write checkpoints that were prepared one by one."""
        self._write(zoo, {name: _stacked([tensors[name] for tensors in several]) for name in zoo.arch.names}, rows)

    def _writer(self, zoo: OpenZoo) -> Writer:
        """Return the writer of a zoo, which is opened where it is not."""
        if zoo.writer is None:
            opened = [other for other in self._zoos if other.writer is not None]
            if len(opened) >= MAX_OPEN:
                commit_zoo(min(opened, key=lambda other: other.since))
            zoo.writer, zoo.since = self._open_writer(zoo), time.monotonic()
        return zoo.writer

    def _open_writer(self, zoo: OpenZoo) -> Writer:
        return ckptzoo.append(zoo.path)

    def _create(self, path: Path, arch: Architecture, card: Card, symmetry: Symmetry | None) -> None:
        ckptzoo.create(path, arch=arch, card=card, symmetry=symmetry)

    def _write_masks(self, masks: Tensors, location: str) -> dict[str, Any]:
        return write_masks(self.masks, masks)

    def _write(self, zoo: OpenZoo, stacked: Tensors, rows: Sequence[Row]) -> None:
        self._writer(zoo).add(stacked, rows)
        zoo.nbytes += sum(array.nbytes for array in stacked.values())
        zoo.added += len(rows)

    def _place(
        self, item: NewCheckpoint, saved: Saved, later: Sequence[tuple[NewCheckpoint, Saved]]
    ) -> tuple[OpenZoo, Fit]:
        """Return the zoo of a checkpoint, and its tensors there."""
        signature = signature_of(saved.tensors)
        matches = self._places.setdefault((signature, tuple(saved.ties.items()), item.label, item.gaussian), [])
        for zoo, fitted in matches:
            if fitted.holds(saved.tensors):
                return zoo, fitted
        match = self._find(item, saved, signature)
        if match is None:
            self._new(item, saved, signature, [other for one, other in later if _may_be_one(one, item)])
            match = self._find(item, saved, signature, self._zoos[-1:])
            assert match is not None
        if match[1].note:
            self._note(match[1].note)
        matches.append(match)
        return match

    def _find(
        self, item: NewCheckpoint, saved: Saved, signature: Signature, zoos: Sequence[OpenZoo] | None = None
    ) -> tuple[OpenZoo, Fit] | None:
        """Find the zoo whose architecture a state dict has.

        Raises ``NamesError`` where shapes are those of a zoo in the same order, and names are not.
        """
        zoos = [zoo for zoo in zoos or self._zoos if not (item.label and zoo.label) or zoo.label.startswith(item.label)]
        used = set(self._table) - set(rename(tuple(saved.tensors), self._table)[1])
        for table in ({old: new for old, new in self._table.items() if old in used}, {}):
            for zoo in zoos:
                if (fitted := fit(saved, zoo.arch, table)) is not None:
                    self._unused -= set(table)
                    return zoo, fitted
            if not table:
                break
        kinds, declared = kinds_of(signature), self.declaration.forward
        for zoo in zoos:
            wanted = kinds_of([(tensor.name, tensor.shape, tensor.dtype) for tensor in zoo.arch.tensors])
            if kinds == wanted or (declared and sorted(kinds) == sorted(wanted)):
                fitted = self._by_order(saved, zoo.arch, row_id=item.row["id"])
                if fitted is not None:
                    return zoo, fitted
        return None

    def _by_order(self, saved: Saved, arch: Architecture, *, row_id: str) -> Fit | None:
        """Fit a state dict by shapes alone; None where a zoo has a lower precision."""
        pairs = list(zip(arch.tensors, saved.tensors, strict=False))
        in_order = len(arch.tensors) == len(saved.tensors) and all(
            tensor.size == saved.tensors[name].size for tensor, name in pairs
        )
        if in_order and (self.by_order or self.declaration.names == BY_ORDER):
            if not all(is_like(saved.tensors[name], tensor) for tensor, name in pairs):
                return None
            own_names = {tensor.name: name for tensor, name in pairs}
            return Fit(own_names, note="tensors were matched by their order and shapes")
        shapes = {name: array.shape for name, array in saved.tensors.items()}
        used = set(self._table) - set(rename(tuple(shapes), self._table)[1])
        table = {old: new for old, new in self._table.items() if old in used}
        match_names(shapes, arch, table, location=row_id, table=_TABLE)
        return None

    def _new(self, item: NewCheckpoint, saved: Saved, signature: Signature, later: Sequence[Saved]) -> None:
        """Make a zoo for an architecture that no other zoo has."""
        declaration, location = self.declaration, item.row["id"]
        for name, _, dtype in signature:
            if dtype not in ITEMSIZE:
                step = "Leave it out, or cast it where it was made."
                raise SpecError(Problem(location, f"dtype of {name!r}", "one of " + ", ".join(ITEMSIZE), dtype, step))
        self._unused -= set(self._table) - set(rename(tuple(saved.tensors), self._table)[1])
        several = of_one(self._renamed(saved), [self._renamed(other) for other in later])
        symmetry: Symmetry | None = None
        if declaration.forward is not None:
            forward = f"gaussian-{declaration.forward}" if item.gaussian else declaration.forward
            arch, symmetry = archs.architecture(forward), archs.symmetry(forward)
            arch = _in_precision(arch, several)
            if self._find(item, saved, signature, [OpenZoo(self.folder, arch, item.label)]) is None:
                self._refuse_misfit(saved, arch, location)
        elif item.arch is not None and self._fits(item, saved, signature, item.arch):
            arch = _in_own_precisions(item.arch, several)
            symmetry = archs.symmetry(arch.forward) if archs.known(arch.forward) else None
            if symmetry is None and declaration.symmetry_of is not None:
                symmetry = declaration.symmetry_of(arch)
        else:
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", declaration.name)
            arch = architecture_of(several, f"gaussian-{name}" if item.gaussian else name, declaration.input_shape)
            if declaration.symmetry_of is not None:
                symmetry = declaration.symmetry_of(arch)
        label = item.label or ("" if not self._zoos else _label_of(arch))
        if label and self.folder.joinpath(layout.ZOO).is_file():
            self._make_room()
        path = self.folder / label if label else self.folder
        card = Card(
            path.name if label else declaration.name, license=declaration.license, dataset=declaration.dataset or ""
        )
        self._create(path, arch, card, symmetry)
        self._zoos.append(OpenZoo(path, arch, label))

    def _fits(self, item: NewCheckpoint, saved: Saved, signature: Signature, arch: Architecture) -> bool:
        """Tell whether a checkpoint is of the architecture that its file names."""
        try:
            return self._find(item, saved, signature, [OpenZoo(self.folder, arch, item.label)]) is not None
        except ZooError:
            return False

    def _refuse_misfit(self, saved: Saved, arch: Architecture, location: str) -> NoReturn:
        """Refuse a state dict that does not fit the network that a person named."""
        shapes = {name: array.shape for name, array in saved.tensors.items()}
        _, by_new = match_names(shapes, arch, self._table, location=location, table=_TABLE)
        for tensor in arch.tensors:
            array = saved.tensors.get(by_new.get(tensor.name, ""))
            if array is not None and not is_like(array, tensor):
                expected, got = f"{tensor.shape} {tensor.dtype}", f"{array.shape} {array.dtype.name}"
                step = "Bring it to a zoo of its own architecture."
                raise SpecError(Problem(location, f"tensor {tensor.name!r}", expected, got, step))
        raise SpecError(Problem(location, "tensors", f"those of {arch.name}", "others", "Name another network."))

    def _renamed(self, saved: Saved) -> Saved:
        """Return a state dict under its names in a new zoo."""
        names, _ = rename(tuple(saved.tensors), self._table)
        return saved.renamed(names) if len(set(names.values())) == len(names) else saved

    def _paths(self) -> list[Path]:
        if (self.folder / layout.ZOO).is_file():
            return [self.folder]
        if not self.folder.is_dir():
            return []
        return sorted(path.parent for path in self.folder.glob(f"*/{layout.ZOO}"))

    def _make_room(self) -> None:
        """Turn the zoo into a folder with a zoo, for a second architecture; ``_finish_move`` ends it after a kill."""
        self.commit()
        (first,) = self._zoos
        label = _label_of(first.arch)
        beside = self._beside()
        # killed before the zoo is moved, an empty folder is left, which is removed; after that it takes the zoo's place
        beside.mkdir()
        self._moves(first.path, self.folder / label)
        self.folder.rename(beside / label)
        beside.rename(self.folder)
        first.path, first.label = self.folder / label, label
        if first in self._older:
            self._note(f"{self.folder} was a zoo and is a folder of zoos now: what it held is in {first.path}")

    def _moves(self, path: Path, to: Path) -> None:
        """Do what is to be done before a zoo is moved; called again where it was killed before."""

    def _beside(self) -> Path:
        # in the same folder, because rename(2) moves nothing from one file system to another (EXDEV)
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
    """Return the folder of one of several zoos: by the shapes and dtypes of its tensors in order."""
    kinds = [[list(tensor.shape), tensor.dtype] for tensor in arch.tensors]
    return f"arch-{sha256(canonical({'tensors': kinds})).hexdigest()[:8]}"


def commit_zoo(zoo: OpenZoo) -> None:
    """Publish what was added to a zoo as a part."""
    if zoo.writer is not None:
        zoo.writer.commit()
    zoo.writer, zoo.nbytes = None, 0


def usable_names(names: Collection[str]) -> dict[str, str] | None:
    """Return names that a zoo may have for others: those of other libraries have slashes and tildes in them.

    >>> usable_names(["mlp/~/linear_0.w"])
    {'mlp/~/linear_0.w': 'mlp.linear_0.w'}
    """
    if all(map(TENSOR_NAME.fullmatch, names)):
        return None
    usable = {name: _usable_name(name) for name in names}
    if len(set(usable.values())) < len(usable):
        usable = {name: f"tensor_{at}" for at, name in enumerate(names)}
    return usable


def _in_precision(arch: Architecture, several: Sequence[Saved]) -> Architecture:
    """Give the floats of an architecture the widest dtype of some state dicts: networks are published in others."""
    dtypes = [array.dtype.name for saved in several for array in saved.tensors.values() if "float" in array.dtype.name]
    dtype = widest(dtypes) if dtypes else None
    if dtype is None:
        return arch
    tensors = tuple(replace(item, dtype=dtype) if "float" in item.dtype else item for item in arch.tensors)
    return Architecture(arch.name, tensors, arch.forward, arch.input_shape)


def _in_own_precisions(arch: Architecture, several: Sequence[Saved]) -> Architecture:
    """Give each float tensor of an exported architecture the widest dtype that it has in some state dicts."""

    def dtype(tensor: Tensor) -> str:
        own = [saved.tensors[tensor.name].dtype.name for saved in several if tensor.name in saved.tensors]
        return (widest(own) if own and "float" in tensor.dtype else None) or tensor.dtype

    tensors = tuple(replace(tensor, dtype=dtype(tensor)) for tensor in arch.tensors)
    return Architecture(arch.name, tensors, arch.forward, arch.input_shape)


def _may_be_one(one: NewCheckpoint, other: NewCheckpoint) -> bool:
    return (one.label, one.gaussian) == (other.label, other.gaussian)


def _usable_name(name: str) -> str:
    words = [re.sub(r"[^A-Za-z0-9_:+\-]+", "_", word).strip("_") for word in re.split(r"[./]", name)]
    return ".".join(word for word in words if word) or "tensor"


def write_masks(folder: Path, masks: Tensors) -> dict[str, Any]:
    """Write the masks of a pruned network into a file that is named by their digest; return that and the sparsity."""
    stored = {name: mask != 0 for name, mask in masks.items()}
    if not all(bool((mask == stored[name]).all()) for name, mask in masks.items()):
        stored = {name: np.asarray(mask, np.float32) for name, mask in masks.items()}  # weights of connections
    content = save({name: np.ascontiguousarray(mask) for name, mask in stored.items()})
    digest = sha256(content).hexdigest()
    path = folder / f"{digest[:32]}.safetensors"
    # its name is a digest of the bytes, so that a file that is there holds them
    if not path.is_file():
        folder.mkdir(exist_ok=True)
        durable.write_file(path, content)
    count = sum(mask.size for mask in masks.values())
    kept = sum(int(np.count_nonzero(mask)) for mask in masks.values())
    return {"masks": f"{folder.name}/{path.name}", "digest": f"sha256:{digest}", "sparsity": 1 - kept / count}


def unit_of_file(row: Row) -> str:
    """Return the unit of the file that a row comes from; its networks have it followed by a key."""
    return row["unit"].partition("/")[0]


@lru_cache(maxsize=4096)
def unit_of(source: str, member: str, step: int | None) -> str:
    """Return the unit of a file's rows: the same for the same file in another archive of the same name."""
    # no path holds NUL, so that no other three texts are joined to the same one
    text = "\0".join((source, member, "" if step is None else str(step)))
    return f"import-{sha256(text.encode()).hexdigest()[:32]}"


def check_folder(folder: Path) -> None:
    """Refuse a folder that is neither empty nor holds zoos, by ``ZooError``."""
    if not folder.exists() or (folder / layout.ZOO).is_file():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not any(folder.glob(f"*/{layout.ZOO}"))):
        step = "Name a folder that is new or empty, or a zoo."
        raise ZooError(Problem(str(folder), "zoo", "no folder, an empty one or a zoo", "one with other files", step))
