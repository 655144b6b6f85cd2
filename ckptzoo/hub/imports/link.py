"""``link_zoo``: checkpoints of this machine become a zoo that refers to their files, which stay where they are."""

import bisect
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.references import FileLayout, Reference, TensorPlace, inode_of
from ckptzoo.format.sources import remember
from ckptzoo.format.writer import ReferenceWriter, create_referring
from ckptzoo.hub.contributions.evaluation import Factory
from ckptzoo.hub.imports.adapters import Options
from ckptzoo.hub.imports.choice import AUTO
from ckptzoo.hub.imports.facts import Row
from ckptzoo.hub.imports.mapped import MappedFile, address_of, mapped_file, open_mapped
from ckptzoo.hub.imports.report import ImportResult
from ckptzoo.hub.imports.run import Importer, bring
from ckptzoo.hub.imports.same_architecture import Tensors
from ckptzoo.hub.imports.target import Declaration, OpenZoo, TargetZoos
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import Card
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.text import Progress

_FILES = 32
"""Files that are mapped together: each keeps a descriptor open."""
_KEPT = 256
"""Headers whose tensors are kept."""


@checked
def link_zoo(
    source: str | Path,
    to: str | Path,
    *,
    adapter: str = AUTO,
    names: Mapping[str, str] | str | None = None,
    arch: str | None = None,
    module: str | Factory | Sequence[str | Factory] | None = None,
    input_shape: Sequence[int] | None = None,
    split_by: str | None = None,
    skip_bad: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    license: str | None = None,
    dataset: str | None = None,
    scaling: tuple[Sequence[float], Sequence[float]] | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> ImportResult:
    """Make a zoo of checkpoints whose weights stay in their files, which it refers to.

    Parameters
    ----------
    source
        a folder or a file on this machine.
    to
        the zoo's folder: new, or of a zoo that was made so; what it has is not looked at again.
    adapter, names, arch, module, input_shape, split_by, skip_bad, include, exclude
        as for ``import_zoo``, which gives checkpoints the same names and facts.
    license, dataset, scaling, options, progress
        as for ``import_zoo``.

    Raises
    ------
    ZooError
        As ``import_zoo``; also where a tensor does not lie in its file as a zoo has it, because it is packed, in
        another precision or order, or computed from others. The message names the file.

    Notes
    -----
    Headers are read, and no weights, so that whether these are finite is not known until ``ckptzoo.verify`` has read
    them. That the zoo may follow its references to ``source`` is recorded for this user, outside of the zoo. A file
    that changes later is an error that names it.

    Examples
    --------
    >>> done = ckptzoo.link_zoo("net.safetensors", "zoos/linked", arch="optunet", license="CC-BY-4.0")
    >>> done.added, ckptzoo.open("zoos/linked")["fc.weight"].shape
    (1, (1, 10, 10))
    """
    path = Path(source)
    return bring(
        open_mapped(path),
        to,
        target=partial(LinkedZoos, path),
        importer=_Linker,
        adapter=adapter,
        names=names,
        arch=arch,
        module=module,
        input_shape=input_shape,
        split_by=split_by,
        skip_bad=skip_bad,
        include=include,
        exclude=exclude,
        license=license,
        dataset=dataset,
        scaling=scaling,
        options=options,
        progress=progress,
    )


class _Linker(Importer):
    """Collects files as an import does, and looks at no more of their weights than it has to."""

    @property
    def most(self) -> tuple[int, float]:
        return _FILES, math.inf

    def _note_repeated(self, tensors: Any, name: str) -> None:
        """Note nothing: that two networks are one only all of their numbers tell."""


class LinkedZoos(TargetZoos):
    """The zoos that a link writes, which refer to the files in ``place``."""

    refers = True

    def __init__(self, place: Path, folder: Path, declaration: Declaration, *, by_order: bool) -> None:
        super().__init__(folder, declaration, by_order=by_order)
        self.place = place
        self._outlines = dict[bytes, tuple[list[int], list[tuple[str, int]]]]()
        self._layouts = dict[Any, FileLayout]()
        self._remembered = set[tuple[Path, str]]()

    def end(self, label: str) -> None:
        """Record where the references of the source lead, also of a zoo that had all of it."""
        self._remember(label)

    def _remember(self, label: str) -> None:
        """Record that the zoos may follow the references of a source."""
        for zoo in self._zoos:
            if (zoo.path, label) not in self._remembered:
                remember(zoo.path, {label: self.place})
                self._remembered.add((zoo.path, label))

    def _create(self, path: Path, arch: Architecture, card: Card, symmetry: Symmetry | None) -> None:
        create_referring(path, arch=arch, card=card, symmetry=symmetry)

    def _open_writer(self, zoo: OpenZoo) -> ReferenceWriter:
        return ReferenceWriter(zoo.path)

    def _write_masks(self, masks: Tensors, location: str) -> dict[str, Any]:
        got = "a pruned one, which is computed from a mask"
        raise SpecError(Problem(location, "weights", "those of the file", got, _STEP))

    def _prepared(self, arch: Architecture, tensors: Tensors, row: Row) -> list[Reference]:
        return self._references(arch, tensors, row)

    def _write(self, zoo: OpenZoo, stacked: Tensors, rows: Sequence[Row]) -> None:
        several = ({name: array[at] for name, array in stacked.items()} for at in range(len(rows)))
        self._write_several(zoo, [self._references(zoo.arch, *item) for item in zip(several, rows, strict=True)], rows)

    def _write_several(self, zoo: OpenZoo, several: Sequence[list[Reference]], rows: Sequence[Row]) -> None:
        for label in {row["source"] for row in rows}:
            self._remember(label)
        writer = self._writer(zoo)
        assert isinstance(writer, ReferenceWriter)
        writer.refer(several, rows)
        zoo.nbytes += zoo.arch.nbytes * len(rows)
        zoo.added += len(rows)

    def _references(self, arch: Architecture, tensors: Tensors, row: Row) -> list[Reference]:
        """Return where the tensors of a checkpoint are; raise ``SpecError`` for one that lies in no file as it is."""
        places = dict[int, tuple[MappedFile, list[tuple[str, int]]]]()
        empty = list[str]()
        for tensor in arch.tensors:
            array = tensors[tensor.name]
            if not tensor.nbytes:
                empty.append(tensor.name)
                continue
            file = mapped_file(array)
            if file is None or not array.flags.c_contiguous or not array.dtype.isnative:
                location = f"{self.place}: {row['extra'].get('file', row['id'])}"
                expected, got = "numbers as they lie in the file", "numbers that are packed, reordered or computed"
                raise SpecError(Problem(location, f"tensor {tensor.name!r}", expected, got, _STEP))
            _, own = places.setdefault(id(file), (file, []))
            own.append((tensor.name, address_of(array) - file.address))
        if not places:
            location = f"{self.place}: {row['id']}"
            raise SpecError(Problem(location, "tensors", "numbers in a file", "none", _STEP))
        next(iter(places.values()))[1].extend((name, 0) for name in empty)
        return [self._reference(arch, file, own, row["source"]) for file, own in places.values()]

    def _reference(self, arch: Architecture, file: MappedFile, own: list[tuple[str, int]], source: str) -> Reference:
        """Return where these tensors are in a file, with their first bytes in it."""
        start = 8 + int.from_bytes(file[:8], "little")
        header = file[:start]
        key = (header, tuple(own))
        if (layout := self._layouts.get(key)) is None:
            starts, entries = self._outline(header)
            places: list[TensorPlace] = []
            for tensor, offset in own:
                offset = max(0, offset - start)
                at = bisect.bisect_right(starts, offset) - 1
                # a tensor without elements is nowhere
                places.append(TensorPlace(tensor, entries[at][0] if arch[tensor].nbytes else "", offset))
            places.sort(key=lambda place: (place.offset, place.tensor))
            layout = FileLayout("safetensors", tuple(places))
            layout = self._layouts.setdefault(layout, layout)
            self._layouts[key] = layout
        status = file.status
        digest = hashlib.sha256(header).digest()
        return Reference(
            source, file.path, 0, start, status.st_size, inode_of(status), status.st_mtime_ns, digest, layout
        )

    def _outline(self, header: bytes) -> tuple[list[int], list[tuple[str, int]]]:
        """Return the tensors of a header that was read, by their first bytes."""
        if header not in self._outlines:
            if len(self._outlines) >= _KEPT:
                self._outlines.clear()
            described: dict[str, Any] = json.loads(header[8:])
            entries = sorted(
                (item["data_offsets"][0], name)
                for name, item in described.items()
                if name != "__metadata__" and item["data_offsets"][0] < item["data_offsets"][1]
            )
            self._outlines[header] = [first for first, _ in entries], [(name, first) for first, name in entries]
        return self._outlines[header]


_STEP = "Copy these files with ckptzoo import SOURCE --to ZOO; or leave them out with --exclude or --skip-bad."
