"""Collections: zoos of several architectures in one folder, with the rows of all of them in one table.

``collection.json`` names the zoos with their revisions, ``collection.parquet`` has every row, and the column ``zoo``
says where its checkpoint is: so a condition opens only the zoos that it needs. Both follow from the zoos and can be
made again at any time.
"""

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo.arguments import checked
from ckptzoo.errors import AbsentError, IntegrityError, Problem, RemoteError, UnknownNameError, ZooError
from ckptzoo.format import durable, table
from ckptzoo.format.files import Files, Folder
from ckptzoo.format.maintenance import LISTING
from ckptzoo.format.maintenance import encode as encode_listing
from ckptzoo.format.reader import zoo_folders
from ckptzoo.format.verify import verify
from ckptzoo.loader.filters import Filters, kept, matching
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.zoo import Zoo, files_at
from ckptzoo.loader.zoo import open as open_zoo
from ckptzoo.schema import layout
from ckptzoo.schema.documents import REFETCH, Document, seal, unseal
from ckptzoo.text import Progress, counted

_ZOO = "zoo"
"""The column that says in which zoo a row is."""
SCHEMA = pa.schema([pa.field(_ZOO, pa.string(), nullable=False), *table.METADATA_SCHEMA])


@dataclass(frozen=True)
class ZooEntry:
    """One zoo of a collection, as it was when the collection was written.

    Parameters
    ----------
    folder
        inside the collection.
    name, architecture
        its name, and the digest of its architecture.
    revision
        of the zoo.
    checkpoints
        how many it had, without those that were retracted.
    """

    folder: str
    name: str
    architecture: str
    revision: str
    checkpoints: int

    def to_json(self) -> Document:
        """As collection.json has it."""
        return dict(vars(self))


@checked
def write_collection(folder: str | os.PathLike[str]) -> tuple[ZooEntry, ...]:
    """Write ``collection.json`` and ``collection.parquet`` of the zoos in a folder; equal zoos give equal bytes.

    A ``listing.json`` names both for web servers; the zoos need those that ``ckptzoo compact`` writes.

    Parameters
    ----------
    folder
        whose folders are zoos; others in it are left alone.

    Raises
    ------
    ZooError
        No folder in it is a zoo, or the name of one cannot be in a collection.

    Notes
    -----
    Reads the rows of all zoos. Each file is replaced at once, the table first; a reader that meets a new table with the
    old document says that the collection is to be written again.

    Examples
    --------
    >>> [(entry.folder, entry.checkpoints) for entry in ckptzoo.write_collection("zoos")]
    [('draws', 8), ('few', 16), ('planted', 12), ('toy', 64)]
    """
    root = Path(folder).absolute()
    names = zoo_folders(root)
    if not names:
        step = "Name a folder whose folders are zoos, such as ckptzoo import makes of several architectures."
        raise ZooError(Problem(str(folder), "zoos", "folders with a zoo.json", "none", step))
    for name in names:
        if not layout.is_folder_name(name):
            step = "Give the folder another name."
            expected = "printable, without a slash or backslash"
            raise ZooError(Problem(str(folder), "name of a zoo's folder", expected, repr(name), step))
    zoos = {name: open_zoo(root / name) for name in names}
    files = collection_files(zoos)
    for name, data in files.items():
        durable.write_file(root / name, data)
    # for web servers that cannot list; the zoos have listings of their own
    listing = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    durable.write_file(root / LISTING, encode_listing(listing))
    return tuple(_entry(name, zoo) for name, zoo in zoos.items())


def collection_files(zoos: Mapping[str, Zoo]) -> dict[str, bytes]:
    """The table and the document of a collection, in the order in which they are written.

    ``zoos`` maps folder names to whole zoos, in order.
    """
    tables: list[pa.Table] = []
    for name, zoo in zoos.items():
        rows = zoo.metadata
        labels = pa.array([name] * len(rows), pa.string())
        columns = [labels, *(column.combine_chunks() for column in rows.columns)]
        tables.append(pa.Table.from_arrays(columns, schema=SCHEMA))
    data = table.encode(tables, {"version": layout.VERSION}, sealed=True)
    content: Document = {
        "format": layout.FORMAT,
        "version": layout.VERSION,
        "kind": "collection",
        "rows": f"sha256:{hashlib.sha256(data).hexdigest()}",
        "zoos": [_entry(name, zoo).to_json() for name, zoo in zoos.items()],
    }
    return {layout.COLLECTION_ROWS: data, layout.COLLECTION: seal(content)}


def _entry(folder: str, zoo: Zoo) -> ZooEntry:
    return ZooEntry(folder, zoo.name, zoo.contents.identity.architecture, zoo.revision, len(zoo))


@checked
def open_collection(
    address: str | os.PathLike[str], *, endpoint: str | None = None, token: str | None = None
) -> "Collection":
    """Open a collection: a folder on this machine, or of a dataset repository.

    Parameters
    ----------
    address, endpoint, token
        as in ``ckptzoo.open``.

    Raises
    ------
    IntegrityError
        It is no collection, or its files are damaged or of two writings.

    Notes
    -----
    Reads the document and the table; zoos are opened when they are asked for, at the revision that the collection
    knows: checkpoints that came since are seen once it is written again, and a warning says that there are some.

    Examples
    --------
    >>> entries = ckptzoo.write_collection("zoos")
    >>> collection = ckptzoo.open_collection("zoos")
    >>> collection
    <collection zoos: 100 checkpoints in 4 zoos>
    >>> list(collection.where("method == 'swag'").zoos)
    ['draws']
    """
    files = files_at(address, endpoint, token)
    location = f"{files.name}/{layout.COLLECTION}"
    if files.size(layout.COLLECTION) is None:
        write = f"ckptzoo collection {quote(str(files.here or 'FOLDER'))}"
        step = f"Write one with {write}; a single zoo is opened with ckptzoo.open."
        raise IntegrityError(Problem(location, "file", "a collection", "no such file", step))
    content, _ = unseal(files.read(layout.COLLECTION), location=location)
    entries = _entries(content, location)
    data = files.read(layout.COLLECTION_ROWS)
    if content.get("rows") != f"sha256:{hashlib.sha256(data).hexdigest()}":
        step = "Write the collection again with ckptzoo collection FOLDER."
        got = "another table"
        raise IntegrityError(
            Problem(f"{files.name}/{layout.COLLECTION_ROWS}", "digest", str(content["rows"]), got, step)
        )
    rows = _rows(data, entries, f"{files.name}/{layout.COLLECTION_ROWS}")
    zoos = _Zoos(os.fspath(address), files, entries, endpoint, token)
    return Collection(files.name, zoos, rows, np.arange(len(rows)))


@checked
def verify_collection(
    folder: str | os.PathLike[str], *, deep: bool = True, progress: Progress | None = None
) -> list[Problem]:
    """The problems of a collection and of its zoos, up to about 100 of each; an empty list is a sound collection.

    Of a folder of zoos of which no collection was written, those of the zoos.

    Parameters
    ----------
    folder
        the collection's.
    deep, progress
        as in ``ckptzoo.verify``, which every zoo is given to.

    Examples
    --------
    >>> entries = ckptzoo.write_collection("zoos")
    >>> ckptzoo.verify_collection("zoos")
    []
    """
    root = Path(folder).absolute()
    problems: list[Problem] = []
    zoos = zoo_folders(root)
    for name in zoos:
        found = verify(root / name, deep=deep, progress=progress)
        problems += [replace(problem, location=f"{root.name}/{problem.location}") for problem in found]
    # a folder of zoos that nobody made a collection of
    if zoos and not (root / layout.COLLECTION).exists() and not (root / layout.COLLECTION_ROWS).exists():
        return problems
    try:
        collection = open_collection(root)
    except IntegrityError as error:
        return [*problems, *error.problems]
    step, entries = "Write the collection again with ckptzoo collection FOLDER.", collection.entries
    if (listed := [entry.folder for entry in entries]) != zoos:
        problems.append(Problem(f"{root.name}/{layout.COLLECTION}", "zoos", ", ".join(zoos), ", ".join(listed), step))
    if problems:
        return problems
    for entry in entries:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*retracted", category=UserWarning)
            zoo = open_zoo(root / entry.folder)
        if zoo.revision != entry.revision:
            location = f"{root.name}/{entry.folder}"
            problems.append(Problem(location, "revision in the collection", zoo.revision, entry.revision, step))
            continue
        listed_rows = collection.where({_ZOO: entry.folder}).metadata.drop_columns([_ZOO])
        if not table.same_rows(listed_rows, zoo.metadata):
            location = f"{root.name}/{layout.COLLECTION_ROWS}"
            problems.append(Problem(location, f"rows of {entry.folder}", "those of the zoo", "others", step))
    return problems


def _entries(content: Document, location: str) -> dict[str, ZooEntry]:
    if (content.get("format"), content.get("kind")) != (layout.FORMAT, "collection"):
        got = f"{content.get('format')!r}, {content.get('kind')!r}"
        raise IntegrityError(Problem(location, "format and kind", f"{layout.FORMAT!r}, 'collection'", got, REFETCH))
    if content.get("version") != layout.VERSION:
        step, got = "Upgrade ckptzoo to read it.", repr(content.get("version"))
        raise IntegrityError(Problem(location, "format version", str(layout.VERSION), got, step))
    listed = content.get("zoos")
    found: dict[str, ZooEntry] = {}
    for item in listed if isinstance(listed, list) else []:
        types = {"folder": str, "name": str, "architecture": str, "revision": str, "checkpoints": int}
        if not isinstance(item, dict) or {key: type(value) for key, value in item.items()} != types:
            raise IntegrityError(Problem(location, "zoo", ", ".join(types), str(item)[:160], REFETCH))
        folder = item["folder"]
        if not layout.is_folder_name(folder) or folder in found:
            raise IntegrityError(
                Problem(location, "folder", "names of folders, each once", repr(folder)[:160], REFETCH)
            )
        found[folder] = ZooEntry(**item)
    if not found:
        raise IntegrityError(Problem(location, "zoos", "one or more", str(listed)[:160], REFETCH))
    return found


def holds_zoos(folder: Path) -> bool:
    """Whether a folder of this machine is a collection or has folders that are zoos, and is not a zoo."""
    if (folder / layout.ZOO).exists():
        return False
    return (folder / layout.COLLECTION).exists() or bool(zoo_folders(folder))


def _rows(data: bytes, entries: Mapping[str, ZooEntry], location: str) -> pa.Table:
    table.check_seal(data, location=location)
    file, _ = table.open_table(data, location=location)
    expected = {entry.folder: entry.checkpoints for entry in entries.values() if entry.checkpoints}
    table.check_count(file, sum(expected.values()), location=location)
    rows = table.filled(table.read_table(data, file, SCHEMA, location=location, least=32), SCHEMA)
    counts = rows[_ZOO].value_counts().to_pylist()
    if {item["values"]: item["counts"] for item in counts} != expected:
        raise IntegrityError(
            Problem(location, "rows", "as many of each zoo as collection.json says", "others", REFETCH)
        )
    return rows


class _Zoos(Mapping[str, Zoo]):
    """The zoos by their folders, opened when they are first asked for."""

    def __init__(
        self, address: str, files: Files, entries: Mapping[str, ZooEntry], endpoint: str | None, token: str | None
    ) -> None:
        self._address, self.files, self.entries = address, files, entries
        self._endpoint, self._token = endpoint, token
        self.opened: dict[str, Zoo] = {}

    def __getitem__(self, folder: str) -> Zoo:
        if folder not in self.opened:
            self.opened[folder] = self._open(folder)
        return self.opened[folder]

    def address_of(self, folder: str) -> str | os.PathLike[str]:
        """Where a zoo is."""
        if folder not in self.entries:
            raise UnknownNameError(self.files.name, "zoo", folder, tuple(self.entries))
        return _address_of(folder, self.files, self._address)

    def _open(self, folder: str) -> Zoo:
        """A zoo as the collection records it; one that has changed since is reported."""
        address = self.address_of(folder)
        how = {"endpoint": self._endpoint, "token": self._token}
        location, revision = f"{self.files.name}/{folder}", self.entries[folder].revision
        step = "Write the collection again with ckptzoo collection FOLDER."
        try:
            zoo = open_zoo(address, **how)
            if zoo.revision == revision:
                return zoo
            zoo = open_zoo(address, revision=revision, **how)
        except ZooError as error:
            if isinstance(error, RemoteError) and not isinstance(error, AbsentError):
                raise  # the zoo may be as it was
            problem = error.problems[0] if error.problems else None
            got = problem.got if problem else str(error)
            raise IntegrityError(Problem(location, "zoo", f"revision {revision}", got, step)) from error
        note = f"{location}: the zoo has changed since the collection was written, and is as it was then. {step}"
        warnings.warn(note, UserWarning, stacklevel=4)
        return zoo

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _address_of(folder: str, files: Files, address: str) -> str | os.PathLike[str]:
    """Where a zoo of a collection is; in a repository at the commit that the collection was read at."""
    if isinstance(files, Folder):
        return files.here / folder
    from ckptzoo.remote.address import HubAddress, candidates  # with all that speaks to other machines

    place = candidates(address)[-1]  # a folder of the same name would have been opened
    if isinstance(files, RemoteFiles) and isinstance(place, HubAddress):
        inside = f"{place.folder}/{folder}" if place.folder else folder
        return str(replace(place, revision=files.remote.revision, folder=inside))
    return f"{str(place).rstrip('/')}/{folder}"


class Collection:
    """Zoos of several architectures, or the checkpoints of them that satisfy a condition.

    ``collection.zoos[folder]`` is a Zoo of the checkpoints that are selected, opened when it is asked for; iteration
    gives these zoos, and ``len`` counts checkpoints.

    Parameters
    ----------
    name
        what messages call it.
    zoos
        opens a zoo by its folder.
    rows
        the table of all rows.
    chosen
        positions of the rows that are selected.
    """

    def __init__(self, name: str, zoos: _Zoos, rows: pa.Table, chosen: NDArray[np.int64]) -> None:
        self.name, self._zoos, self._rows, self._chosen = name, zoos, rows, chosen

    def __repr__(self) -> str:
        return f"<collection {self.name}: {counted(len(self), 'checkpoint')} in {counted(len(self.zoos), 'zoo')}>"

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[Zoo]:
        return iter(self.zoos.values())

    @property
    def files(self) -> Files:
        """Its files, at the commit that it was read at."""
        return self._zoos.files

    @property
    def entries(self) -> tuple[ZooEntry, ...]:
        """Every zoo of the collection, selected from or not."""
        return tuple(self._zoos.entries.values())

    def address_of(self, folder: str) -> str | os.PathLike[str]:
        """Where a zoo of the collection is, as ``ckptzoo.open`` takes it; in a repository at the collection's commit.

        Parameters
        ----------
        folder
            as in ``entries``, and in the column ``zoo``.

        Raises
        ------
        UnknownNameError
            The collection has no such zoo.
        """
        return self._zoos.address_of(folder)

    @property
    def metadata(self) -> pa.Table:
        """One row a checkpoint, by zoo; the first column, ``zoo``, is the zoo's folder."""
        return self._rows.take(table.array_of(self._chosen))

    @property
    def zoos(self) -> "Mapping[str, Zoo]":
        """The zoos in which checkpoints are selected, by their folders; each is opened when it is asked for."""
        return _Selected(self._zoos, self.metadata)

    def where(self, filters: Filters) -> "Collection":
        """The checkpoints whose metadata satisfy a condition, as ``Zoo.where`` takes it; no zoo is opened.

        Parameters
        ----------
        filters
            as ``Zoo.where`` takes them; the column ``zoo`` is the folder.

        Examples
        --------
        >>> entries = ckptzoo.write_collection("zoos")
        >>> ckptzoo.open_collection("zoos").where("zoo == 'few' and test_accuracy > 0.88").zoos
        {'few': 11}
        """
        positions = kept(filters, len(self))
        if positions is None:
            positions = matching(filters, self.metadata, location=self.name)
        return Collection(self.name, self._zoos, self._rows, self._chosen[positions])


class _Selected(Mapping[str, Zoo]):
    """The zoos of some rows, each with the checkpoints of these rows."""

    def __init__(self, zoos: _Zoos, metadata: pa.Table) -> None:
        self._zoos = zoos
        encoded = metadata[_ZOO].combine_chunks().dictionary_encode()
        folders, indices = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        self._ids = {
            folder: metadata["id"].take(table.array_of(np.flatnonzero(indices == at)))
            for at, folder in enumerate(folders)
        }

    def __getitem__(self, folder: str) -> Zoo:
        zoo = self._zoos[folder]
        ids = self._ids.get(folder)
        if ids is None or len(ids) == len(zoo):
            return zoo if ids is not None else zoo[:0]
        return zoo.where({"id": ids})

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return repr({folder: len(ids) for folder, ids in self._ids.items()})
