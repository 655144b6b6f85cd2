"""Weights that lie in files of others: where each tensor of each checkpoint is there.

A part refers to files by their paths in the folder of a source. Files of one program have one kind of header, so that
the offsets of all tensors are stored once, in a ``FileLayout``, and a ``Reference`` is a few numbers. Which folder a
source is on this machine stands outside the zoo (``ckptzoo.format.sources``).
"""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, SpecError
from ckptzoo.format import limits, table
from ckptzoo.format.files import Files
from ckptzoo.format.header import CODES
from ckptzoo.format.part import Part
from ckptzoo.format.shard import BLOCK_BYTES
from ckptzoo.format.tree import Tree
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import REFETCH, Document, Identity
from ckptzoo.schema.layout import REFERENCES

SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("source", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("base", pa.int64(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("inode", pa.int64(), nullable=False),
        pa.field("mtime", pa.int64(), nullable=False),
        pa.field("layout", pa.int64(), nullable=False),
        pa.field("header", pa.binary(32), nullable=False),
    ]
)
"""The columns of ``references.parquet`` (docs/format.md)."""
REMOTE = (
    pa.field("address", pa.string(), nullable=False),
    pa.field("validator", pa.string(), nullable=False),
    pa.field("digest", pa.string()),
)
"""More columns, of parts that refer to files on other machines."""
_WHOLE = pa.schema([*SCHEMA, *REMOTE])
MAX_LAYOUTS = 16 * 2**20
"""The number of bytes of layouts, as JSON, at which a part ends."""
_NUMBERS = ("base", "start", "size", "inode", "mtime")
_INODES = 2**63
"""Inodes have 64 bits without a sign; the column has one."""
_MAX_HEADER = 256 * 2**20
"""The maximum number of bytes of a file that say what is where in it."""
SAFETENSORS = "safetensors"
"""The form of files whose header is parsed again when they are read."""


class TensorPlace(NamedTuple):
    """A tensor of the zoo in a file: its name there, and its first byte, counted from the start of the numbers."""

    tensor: str
    name: str
    offset: int


@dataclass(frozen=True)
class FileLayout:
    """Where tensors are in files with one kind of header.

    ``form`` is that of the file; ``header`` are the pieces of it that say what is where, as pairs of an offset from its
    beginning and a number of bytes; None for all that is before the numbers.
    """

    form: str
    tensors: tuple[TensorPlace, ...]
    header: tuple[tuple[int, int], ...] | None = None

    @cached_property
    def nbytes(self) -> int:
        """About how many bytes it takes in ``references.parquet``."""
        # quotes, brackets, commas and an offset
        return 64 + sum(len(place.tensor) + len(place.name) + 32 for place in self.tensors)

    def to_json(self) -> Document:
        """The layout as ``references.parquet`` has it."""
        tensors = {place.tensor: [place.name, place.offset] for place in self.tensors}
        header = {} if self.header is None else {"header": [list(piece) for piece in self.header]}
        return {"form": self.form, "tensors": tensors, **header}

    @classmethod
    def from_json(cls, content: Any, *, location: str) -> "FileLayout":
        """Read a layout; raises ``IntegrityError`` where it is none."""
        match content:
            case {"form": str(form), "tensors": {} as tensors, **rest} if not set(rest) - {"header"}:
                places = [TensorPlace(name, *item) for name, item in tensors.items() if _is_place(item)]
                header = rest.get("header")
                pieces = header if isinstance(header, list) else []
                is_whole = (
                    len(places) == len(tensors) and len(pieces) == len(header or ()) and all(map(_is_span, pieces))
                )
                if is_whole and sum(count for _, count in pieces) <= _MAX_HEADER:
                    found = None if header is None else tuple((start, count) for start, count in pieces)
                    return cls(form, tuple(sorted(places, key=lambda place: (place.offset, place.tensor))), found)
        raise IntegrityError(
            Problem(location, "layout", "a form, tensors and their places", str(content)[:120], REFETCH)
        )

    def blocks(self, arch: Architecture) -> Sequence[Sequence[TensorPlace]]:
        """Tensors in runs of at most ``BLOCK_BYTES``, one at least, in the order of their bytes; each has a digest."""
        runs, nbytes = list[list[TensorPlace]](), 0
        for place in self.tensors:
            if runs and nbytes + arch[place.tensor].nbytes <= BLOCK_BYTES:
                runs[-1].append(place)
            else:
                runs.append([place])
                nbytes = 0
            nbytes += arch[place.tensor].nbytes
        return runs

    def check(self, header: bytes, arch: Architecture) -> str:
        """Say what contradicts the layout in a header of safetensors; empty where nothing does, and for other forms.

        The headers of other forms are compared by their digests alone: they were read when the file was linked.
        """
        if self.form != SAFETENSORS:
            return ""
        if int.from_bytes(header[:8], "little") != len(header) - 8:
            return "a header of another length"
        try:
            described: dict[str, Any] = json.loads(header[8:])
            for tensor, name, offset in self.tensors:
                if not (own := arch[tensor]).nbytes:
                    continue
                item = described[name]
                first, last = item["data_offsets"]
                is_inside = first <= offset and offset + own.nbytes <= last
                if item["dtype"] != CODES[own.dtype] or not is_inside:
                    return f"{name!r} elsewhere"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _is_natural(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_place(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and _is_natural(item[1])


def _is_span(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(map(_is_natural, item)) and item[1] <= _MAX_HEADER


class Reference(NamedTuple):
    """Tensors of one checkpoint in one file.

    ``source`` is the name of a source of the zoo, ``path`` the file's path there; ``base`` is the first byte of what is
    read as a file, not 0 for a member of an archive; ``start`` the first one of the numbers, from which a layout's
    offsets count; ``size``, ``inode`` and ``mtime`` (ns) are the file's when it was linked; ``header`` is the sha256 of
    the layout's pieces of it. ``remote`` says where a file on another machine is, which has no inode and no time.
    """

    source: str
    path: str
    base: int
    start: int
    size: int
    inode: int
    mtime: int
    header: bytes
    layout: FileLayout
    remote: "RemoteFile | None" = None


class RemoteFile(NamedTuple):
    """A file on another machine, as ``ckptzoo.remote`` records it: its address, its size, an ETag or a time that tell
    whether it changes, empty where the address has a commit, and a digest where the hub states one.
    """

    address: str
    size: int
    validator: str
    digest: str | None


def inode_of(status: os.stat_result) -> int:
    """The inode as references have it."""
    return status.st_ino % _INODES


def encode(rows: Sequence[Sequence[Reference]]) -> bytes:
    """The bytes of ``references.parquet``: for each checkpoint of a part its references."""
    sources, layouts, numbers = dict[str, int](), dict[FileLayout, int](), dict[int, int]()
    listed: list[list[Any]] = []
    is_remote = any(reference.remote is not None for references in rows for reference in references)
    for row, references in enumerate(rows):
        for source, *values, layout, remote in references:
            # most references share the object, whose hash takes longer than all the rest
            if (number := numbers.get(id(layout))) is None:
                number = numbers[id(layout)] = layouts.setdefault(layout, len(layouts))
            *values, header = values
            own = [row, sources.setdefault(source, len(sources)), *values, number, header]
            if is_remote:
                own += ["", "", None] if remote is None else [remote.address, remote.validator, remote.digest]
            listed.append(own)
    schema = _WHOLE if is_remote else SCHEMA
    columns = [pa.array(values, item.type) for values, item in zip(zip(*listed, strict=True), schema, strict=True)]
    made = pa.Table.from_arrays(columns, schema=schema)
    footer: Document = {"version": 1, "sources": list(sources), "layouts": [layout.to_json() for layout in layouts]}
    return table.encode([made], footer, sealed=True)


def digest_of_file(data: bytes) -> str:
    """The digest that the fact ``references`` of a part has."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def has_references(part: Part) -> bool:
    """Whether a part refers to files of others."""
    return "references" in part.facts


class References:
    """All references of a zoo, with the rows of its raw tree that they are of.

    ``files`` are the zoo's, ``tree`` its raw tree. Raises ``IntegrityError`` where they are not what the parts say, or
    leave out tensors of a checkpoint.
    """

    def __init__(self, files: Files, tree: Tree, arch: Architecture) -> None:
        self.arch, self._location = arch, f"{files.name}/{tree.parts[0].tree if tree.parts else 'parts'}"
        self.layouts, self.sources = list[FileLayout](), list[str]()
        self.count = sum(part.rows for part in tree.parts)
        self._are_remote = list[NDArray[np.bool_]]()
        tables, start = [pa.Table.from_batches([], _WHOLE)], 0
        paths = [f"{part.path}/{REFERENCES}" for part in tree.parts]
        for part, path, data in zip(tree.parts, paths, files.read_many(paths), strict=True):
            tables.append(self._read(part, data, start, f"{files.name}/{path}"))
            start += part.rows
        found = pa.concat_tables(tables)
        self._paths = found["path"]
        self._headers = found["header"]
        columns = {name: table.numbers(found[name]) for name in ("row", "source", "layout", *_NUMBERS)}
        self.rows, self.layout_of, self.source_of = columns["row"], columns["layout"], columns["source"]
        self._numbers = {name: columns[name] for name in _NUMBERS}
        self._addresses, self._validators, self._digests = (found[item.name] for item in REMOTE)
        self.is_remote = np.concatenate([np.zeros(0, np.bool_), *self._are_remote])
        local = set(self.source_of[~self.is_remote].tolist())
        if local & set(self.source_of[self.is_remote].tolist()):
            raise IntegrityError(Problem(self._location, "source", "files of one kind of place", "of both", REFETCH))
        self._places = dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]()
        for tensor in arch.names:
            self.places(tensor)

    def _read(self, part: Part, data: bytes, start: int, location: str) -> pa.Table:
        """One part's references; numbers of sources and layouts are those of the whole zoo."""
        if (digest := digest_of_file(data)) != part.facts.get("references"):
            raise IntegrityError(Problem(location, "digest", str(part.facts.get("references")), digest, REFETCH))
        table.check_seal(data, location=location)
        file, footer = table.open_table(data, location=location)
        table.check_count(file, limits.index_rows_in(len(data)), location=location)
        found = table.read_table(data, file, _WHOLE, location=location, least=len(SCHEMA))
        if len(found.schema) == len(SCHEMA):
            nothing = {
                "address": pa.repeat(pa.scalar(""), len(found)),
                "validator": pa.repeat(pa.scalar(""), len(found)),
            }
            for item in REMOTE:
                found = found.append_column(item, nothing.get(item.name, pa.nulls(len(found), pa.string())))
            self._are_remote.append(np.zeros(len(found), np.bool_))
        elif len(found.schema) == len(_WHOLE):
            self._are_remote.append(np.array(list(map(bool, found["address"].to_pylist())), np.bool_))
        else:
            raise IntegrityError(Problem(location, "columns", "those of docs/format.md", "a part of them", REFETCH))
        sources, layouts = footer.get("sources"), footer.get("layouts")
        if footer.get("version") != 1 or not isinstance(sources, list) or not isinstance(layouts, list):
            got = str(footer)[:120]
            raise IntegrityError(Problem(location, "footer", "version 1, sources and layouts", got, REFETCH))
        own = [FileLayout.from_json(item, location=location) for item in layouts]
        if unknown := [name for layout in own for name, _, _ in layout.tensors if name not in self.arch]:
            raise IntegrityError(Problem(location, "tensor", "one of the architecture", repr(unknown[0]), REFETCH))
        numbers = {name: table.numbers(found[name]) for name in ("row", "source", "layout", *_NUMBERS)}
        bounds = {"row": part.rows, "source": len(sources), "layout": len(own)}
        for name, values in numbers.items():
            if len(values) and (
                name != "mtime" and (values.min() < 0 or values.max() >= bounds.get(name, _INODES - 1))
            ):
                raise IntegrityError(Problem(location, name, f"0 to {bounds.get(name, 'any size')}", "others", REFETCH))
        headers = np.array([layout.header is None for layout in own], np.bool_)[numbers["layout"]]
        before = (numbers["start"] - numbers["base"])[headers]
        if len(before) and (before.min() < 0 or before.max() > _MAX_HEADER):
            got = f"{before.min()} to {before.max()}"
            raise IntegrityError(Problem(location, "size of a header", f"0 to {_MAX_HEADER} bytes", got, REFETCH))
        if any(map(_leads_out, found["path"].unique().to_pylist())) or not all(isinstance(one, str) for one in sources):
            raise IntegrityError(Problem(location, "path", "one inside the folder of a source", "another", REFETCH))
        known = {layout: at for at, layout in enumerate(self.layouts)}
        for layout in own:
            if known.setdefault(layout, len(known)) == len(self.layouts):
                self.layouts.append(layout)
        for name in sources:
            if name not in self.sources:
                self.sources.append(name)
        whole = {
            "row": numbers["row"] + start,
            "source": np.array([self.sources.index(name) for name in sources], np.int64)[numbers["source"]],
            "layout": np.array([known[layout] for layout in own], np.int64)[numbers["layout"]],
        }
        for name, values in whole.items():
            found = found.set_column(_WHOLE.get_field_index(name), _WHOLE.field(name), table.array_of(values))
        return found

    @cached_property
    def _offsets(self) -> list[dict[str, int]]:
        """The offset of each tensor in each layout."""
        return [{name: offset for name, _, offset in reversed(layout.tensors)} for layout in self.layouts]

    def places(self, tensor: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(N,) the reference that has a tensor of each row, and the first byte of the tensor in its file.

        Raises ``IntegrityError`` where a row has none, or two, or a file ends before.
        """
        if tensor not in self._places:
            offsets = np.full(len(self.layouts), -1, np.int64)
            for at, known in enumerate(self._offsets):
                offsets[at] = known.get(tensor, -1)
            own = offsets[self.layout_of]
            pieces = np.flatnonzero(own >= 0)
            pieces = pieces[np.argsort(self.rows[pieces], kind="stable")]
            first = self._numbers["start"][pieces] + own[pieces]
            is_whole = len(pieces) == self.count and bool((self.rows[pieces] == np.arange(self.count)).all())
            if not is_whole or bool((first + self.arch[tensor].nbytes > self._numbers["size"][pieces]).any()):
                expected = "each checkpoint's, once, within the size of its file"
                raise IntegrityError(Problem(self._location, f"references to {tensor!r}", expected, "others", REFETCH))
            self._places[tensor] = pieces, first
        return self._places[tensor]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def paths(self) -> list[str]:
        """The path of each reference in its source."""
        return self._paths.to_pylist()

    @cached_property
    def kinds(self) -> list[tuple[str, int]]:
        """The name of each reference's source, and the number of its layout."""
        return list(zip(map(self.sources.__getitem__, self.source_of.tolist()), self.layout_of.tolist(), strict=True))

    @cached_property
    def remote_files(self) -> list[RemoteFile]:
        """The file of each reference on another machine; one without address for those on this."""
        columns = (self._addresses, self._validators, self._digests)
        addresses, validators, digests = (column.to_pylist() for column in columns)
        return list(map(RemoteFile, addresses, self._numbers["size"].tolist(), validators, digests))

    @cached_property
    def headers(self) -> list[bytes]:
        """The sha256 of each reference's header."""
        return self._headers.to_pylist()

    @cached_property
    def facts(self) -> list[tuple[int, int, int, int, int]]:
        """``base``, ``start``, ``size``, ``inode`` and ``mtime`` of each reference."""
        return list(zip(*(self._numbers[name].tolist() for name in _NUMBERS), strict=True))

    def is_same(self, piece: int, status: os.stat_result) -> bool:
        """Whether a file is the one that was linked, by what the system says of it.

        A copy that keeps the time has another inode. It is taken where the time tells it from other files: archives
        set whole seconds, one for many files; and of files that were written in one tick of the clock and change
        places each has the inode of another.
        """
        _, _, size, inode, mtime = self.facts[piece]
        if status.st_size != size or status.st_mtime_ns != mtime:
            return False
        found = inode_of(status)
        return found == inode or (mtime % 10**9 != 0 and (size, found, mtime) not in self._files)

    @cached_property
    def _files(self) -> set[tuple[int, int, int]]:
        """The size, inode and time of each file."""
        return {item[2:] for item in self.facts}


def _leads_out(path: str) -> bool:
    """Whether a path is none inside a folder."""
    return path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/"))


def require_references(parts: Sequence[Part], *, wanted: bool, location: str) -> None:
    """Raise IntegrityError where parts with weights refer to files and the zoo has its own, or the other way round."""
    for part in itertools.filterfalse(lambda part: has_references(part) == wanted, parts):
        expected, got = ("references", "none") if wanted else ("no references", "some")
        raise IntegrityError(Problem(f"{location}/{part.path}", "weights", expected, got, REFETCH))


def require_kind(identity: Identity, location: str, *, references: bool) -> None:
    """Raise SpecError where weights are to go into a zoo that refers to files, or references into one that does not."""
    if identity.references == references:
        return
    expected, got = "a zoo that holds its weights", "one that refers to files of others"
    step = f"Add files to it with ckptzoo link SOURCE --to {quote(location)}, or name another folder."
    if references:
        expected, got = got, expected
        step = f"Add files to it with ckptzoo import SOURCE --to {quote(location)}, or name another folder."
    raise SpecError(Problem(location, "zoo", expected, got, step))
