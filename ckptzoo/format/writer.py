"""Making a zoo and adding parts to it."""

import contextlib
import errno
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.arguments import checked
from ckptzoo.errors import IntegrityError, Problem, SpecError, UnknownNameError, ZooError
from ckptzoo.format import limits, table
from ckptzoo.format.checks import row_limits
from ckptzoo.format.durable import TEMPORARY, Staging, locked, naming
from ckptzoo.format.files import Folder
from ckptzoo.format.known_names import KnownNames
from ckptzoo.format.maintenance import add_snapshot
from ckptzoo.format.packed import RUN_ROWS
from ckptzoo.format.part import SHARD_BYTES, PartWriter
from ckptzoo.format.reader import list_trees, read_documents, read_tree
from ckptzoo.format.references import Reference, digest_of_file, encode, require_kind
from ckptzoo.format.singles import Singles, as_numpy, json_of, number_of, plain_row, row_bytes
from ckptzoo.format.snapshot import Snapshot, newest
from ckptzoo.format.tree import Tree
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, Tensor, architecture_difference, tensor_difference
from ckptzoo.schema.card import CARD_TOML, Card
from ckptzoo.schema.documents import Identity, parse, seal
from ckptzoo.schema.metadata import value_problems
from ckptzoo.schema.readme import first_readme
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.text import counted

SNAPSHOT_PARTS = 64
"""Where a writer had to read more parts than these one by one, it leaves a snapshot, so that the next need not."""
_FINITE_BYTES = 16 * 2**20
"""Bytes of rows that are searched together for elements that are not finite."""


@checked
def create(
    path: str | Path,
    *,
    arch: Architecture | str | Path | Any,
    card: Card | str | Path | None = None,
    symmetry: Symmetry | Any | None = None,
    exist_ok: bool = False,
) -> "Writer":
    """Make a new zoo in ``path`` and return a writer onto it.

    Parameters
    ----------
    path
        a folder that does not exist or is empty.
    arch
        a declaration, a name that ``ckptzoo.archs`` knows (which brings its symmetries), the path of an
        ``architecture.json``, an example state dict, a torch module, or what ``ckptzoo.symmetry.trace`` found (which
        brings symmetries and the shape of an input).
    card
        what a person says about the zoo, or the path of a ``card.toml``; by default only the folder's name.
    symmetry
        the table of groups and axis actions, or what ``ckptzoo.symmetry.trace`` found, where that is known.
    exist_ok
        whether a zoo may be there that has the same architecture and table; the writer then adds to it, as that of
        ``append``, and its card stays.

    Raises
    ------
    ZooError
        Something is there already; ``append`` adds to a zoo.
    SpecError
        The architecture or the card is not valid.

    Notes
    -----
    Where the writer's ``with`` block ends with an exception before any part was committed, the folder is removed.

    Examples
    --------
    >>> arch = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("fc.weight", (2, 3)),))
    >>> weights, rows = {"fc.weight": np.zeros((4, 2, 3), np.float32)}, [{"id": f"run-{n}"} for n in range(4)]
    >>> with ckptzoo.create("zoos/tiny", arch=arch) as writer:
    ...     writer.add(weights, rows)
    >>> ckptzoo.open("zoos/tiny")
    <zoo tiny: 4 checkpoints of tiny, 1 part>
    """
    root, identity, files, arch = _new_zoo(path, arch, card, symmetry, references=False)
    if identity is not None:
        return _existing(path, arch, identity, exist_ok=exist_ok)
    writer = Writer(root, arch)
    writer.created = files
    return writer


def create_referring(path: Path, *, arch: Architecture, card: Card, symmetry: Symmetry | None) -> None:
    """Make a new zoo, as ``create``, whose raw weights lie in files of others."""
    _, identity, _, arch = _new_zoo(path, arch, card, symmetry, references=True)
    if identity is not None:
        _existing(path, arch, identity, exist_ok=False)


def _new_zoo(
    path: str | Path, arch: Any, card: Card | str | Path | None, symmetry: Any, *, references: bool
) -> tuple[Path, Identity | None, dict[str, bytes], Architecture]:
    """Write a new zoo; return its folder, its files and its architecture, and its identity if something was there."""
    root = Path(path).absolute()
    if not isinstance(card, Card):
        card = Card(root.name) if card is None else Card.from_toml(card)
    arch, symmetry = _declared(arch, card.name, symmetry)
    if symmetry is not None:
        symmetry.check(arch)
    identity = Identity(card.name, arch.digest, None if symmetry is None else symmetry.digest, references)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        return root, identity, {}, arch
    with naming(root):
        staging = Staging(root.parent)
    try:
        files = {layout.ZOO: seal(identity.to_json()), layout.ARCHITECTURE: seal(arch.to_json())}
        if symmetry is not None:
            files[layout.SYMMETRY] = seal(symmetry.to_json())
        files[CARD_TOML] = card.to_toml().encode()
        files[layout.README] = first_readme(card, arch).encode()
        with naming(root):
            for name, data in files.items():
                if len(data) > limits.MAX_DOCUMENT:
                    got, step = f"{len(data)} bytes", "Declare fewer tensors or groups."
                    expected = f"at most {limits.MAX_DOCUMENT} bytes"
                    raise SpecError(Problem(str(path), f"size of {name}", expected, got, step))
                (staging.path / name).write_bytes(data)
            staging.publish(root)
    except BaseException as error:  # KeyboardInterrupt too: no half-made zoo stays
        staging.discard()
        # another process has made one meanwhile
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST) and root.is_dir():
            return root, identity, {}, arch
        raise
    return root, None, files, arch


def _declared(arch: Any, name: str, symmetry: Any) -> tuple[Architecture, Symmetry | None]:
    """The architecture in any of the forms that ``create`` takes, and its table where that is known."""
    # what trace found holds both; the package symmetry is none that this one imports
    symmetry = getattr(symmetry, "symmetry", symmetry)
    if isinstance(getattr(arch, "architecture", None), Architecture):
        arch, symmetry = arch.architecture, symmetry or arch.symmetry
    if not isinstance(symmetry, Symmetry | None):
        step = "Pass ckptzoo.symmetry.trace(module, inputs), or leave it out."
        raise SpecError(Problem("create", "symmetry", "a table of symmetries", type(symmetry).__name__, step))
    if isinstance(arch, Architecture):
        return arch, symmetry
    if isinstance(arch, str) and archs.known(arch):
        return archs.architecture(arch), symmetry or archs.symmetry(arch)
    if isinstance(arch, str | os.PathLike):
        place = Path(arch)
        # a name without a suffix or a folder is meant for a network that is known
        if isinstance(arch, str) and not place.exists() and place.name == arch and not place.suffix:
            raise UnknownNameError("ckptzoo.archs", "architecture", arch, archs.names())
        content = parse(table.read_bytes(place, location=str(arch)), location=str(arch))
        content = {key: value for key, value in content.items() if key != "digest"}
        return Architecture.from_json(content, location=str(arch)), symmetry
    return Architecture.of(as_state_dict(arch, "create", "arch"), name=name), symmetry


def _existing(path: str | Path, arch: Architecture, identity: Identity, *, exist_ok: bool) -> "Writer":
    """A writer onto the zoo that is there already, where that is wanted and it is of the same architecture."""
    root = Path(path).absolute()
    try:
        there, held, _ = read_documents(Folder(root))
    except IntegrityError:
        step = "Name another folder, or move away what is there."
        raise ZooError(Problem(str(path), "a new zoo", "no folder or an empty one", "one with files", step)) from None
    if not exist_ok:
        step = (
            f"To add to it, use ckptzoo.append({str(path)!r}) or create(..., exist_ok=True); "
            "to make it again, remove the folder first."
        )
        raise ZooError(Problem(str(path), "a new zoo", "no folder or an empty one", "a zoo", step))
    if held.tensors != arch.tensors:
        got = f"one with {architecture_difference(arch, held) or 'other aliases or buffers'}"
        raise SpecError(Problem(str(path), "architecture", "the one to be written", got, "Name another folder."))
    require_kind(there, str(path), references=identity.references)
    if identity.symmetry not in (None, there.symmetry):
        step = "Pass the table of the zoo, or name another folder."
        raise SpecError(Problem(str(path), "table of symmetries", "that of the zoo", "another", step))
    return Writer(root, held)


@checked
def append(path: str | Path) -> "Writer":
    """A writer onto an existing zoo.

    Parameters
    ----------
    path
        the zoo's folder.

    Raises
    ------
    IntegrityError
        ``path`` is not a zoo, or not a readable one.

    Examples
    --------
    >>> net = ckptzoo.open("cards/mnist-optunet")[2047]
    >>> with ckptzoo.append("zoos/few") as writer:
    ...     writer.add(net, {"id": "one-more", "seed": 2047})
    >>> len(ckptzoo.open("zoos/few"))
    17
    """
    root = Path(path).absolute()
    identity, arch, _ = read_documents(Folder(root))
    require_kind(identity, str(path), references=False)
    return Writer(root, arch)


class Writer:
    """Adds checkpoints to a zoo; each ``commit`` publishes one part, whole or not at all.

    Used as a context manager it commits on a clean exit and discards what was not committed on an exception.

    Parameters
    ----------
    root
        the zoo's folder.
    arch
        its architecture.
    shard_bytes
        target size of a shard.
    """

    def __init__(self, root: Path, arch: Architecture, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.path, self.arch, self._shard_bytes = root, arch, shard_bytes
        self._part: PartWriter | None = None
        self._pending: set[str] = set()
        self._rows_bytes = 0
        self._singles = Singles(arch)
        self._taken = {"id": KnownNames(), "unit": KnownNames()}
        self._seen_parts: set[str] = set()
        self._read_alone = 0
        """The number of parts that no snapshot covered, so that each was read."""
        self._warned = False
        self._index_bytes = 0
        self._ended = False
        self.created: dict[str, bytes] | None = None
        """The files that ``create`` wrote, where this writer's zoo has no more than these."""

    @checked
    def add(self, weights: Mapping[str, Any] | Any, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> None:
        """Add checkpoints, in memory bounded by what is passed in; some MiB of those that come one by one are kept.

        Parameters
        ----------
        weights
            stacked tensors ``{name: (K, *shape)}`` with a sequence of K ``rows``, or one state dict ``{name: shape}``
            (or torch module) with one row. numpy arrays or torch tensors of the architecture's dtypes.
        rows
            values of the columns in ``ckptzoo.schema.metadata.COLUMNS``; ``id`` is required, ``member`` is the id where
            it is not given, ``extra`` may be a dict, and ``finite`` is measured here.

        Raises
        ------
        SpecError
            Tensors are missing or have another shape or dtype; rows lack ids or repeat one, also one
            that the zoo has.
        ZooError
            The writer's ``with`` block has ended.
        """
        if self._ended:
            step = f"Use ckptzoo.append({str(self.path)!r})."
            raise ZooError(Problem(self.path.name, "writer", "one in use", "one whose with block has ended", step))
        listed = [dict(rows)] if isinstance(rows, Mapping) else [dict(row) for row in rows]
        if not listed:
            return
        weights = as_state_dict(weights, self.path.name, "weights")
        if isinstance(rows, Mapping) and self._is_taken(weights, rows):
            return
        stacked = self._checked(weights, len(listed), single=isinstance(rows, Mapping))
        self._add({layout.RAW: stacked}, listed)

    def _add(self, arrays: Mapping[str, Mapping[str, Any]], listed: list[dict[str, Any]]) -> None:
        """Check the rows of checkpoints, and add them with their shards' arrays."""
        for row in listed:
            row.update({name: number_of(value) for name, value in row.items()})
            if "extra" in row:
                row["extra"] = json_of(row["extra"], location=f"{self.path.name}: rows")
            if row.get("member") is None and isinstance(row.get("id"), str):
                row["member"] = row["id"]
        # of weights that lie in files of others it is not known
        if layout.RAW in arrays:
            _measure_finite(arrays[layout.RAW], listed)
        checked_rows = table.table_of(listed, table.METADATA_SCHEMA, location=f"{self.path.name}: rows")
        rows_bytes = self._rows_bytes + checked_rows.nbytes
        if rows_bytes > limits.MAX_TABLE:
            step = "Add fewer at a time, and commit what was added with writer.commit() before."
            expected, got = f"at most {limits.MAX_TABLE} bytes in a part", f"{rows_bytes} bytes"
            raise SpecError(Problem(f"{self.path.name}: rows", "size of the table", expected, got, step))
        if problems := list(value_problems(listed, location=f"{self.path.name}: rows")):
            raise SpecError(problems)
        ids = [str(row["id"]) for row in listed]
        if len(set(ids)) != len(ids) or not self._pending.isdisjoint(ids):
            twice = next(name for number, name in enumerate(ids) if name in self._pending or name in ids[:number])
            step = "Give every checkpoint its own."
            raise SpecError(Problem(self.path.name, "id", "each id once", f"{twice!r} twice", step))
        if self._part is None:
            self._read_new_parts()
        self._require_new({column: [row.get(column) for row in listed] for column in self._taken})
        if self._part is None:
            self._part = PartWriter(
                self.path / layout.PARTS,
                sets=self._sets,
                schema=table.METADATA_SCHEMA,
                facts={"kind": "raw"},
                shard_bytes=self._shard_bytes,
            )
        self._write_singles(self._part)
        self._write(self._part, arrays, listed)
        self._pending.update(ids)
        self._rows_bytes = rows_bytes

    def _is_taken(self, weights: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Put a checkpoint beside others, to be written together; nothing is done where it may not be in order."""
        if self._part is None or self._singles.is_full:
            return False
        plain = plain_row(row, location=f"{self.path.name}: rows")
        if plain is None or plain["id"] in self._pending:
            return False
        if any(taken.likely([plain.get(column)]) for column, taken in self._taken.items()):
            return False
        rows_bytes = self._rows_bytes + row_bytes(plain)
        if rows_bytes > limits.MAX_TABLE or not self._singles.take(weights, plain):
            return False
        self._pending.add(plain["id"])
        self._rows_bytes = rows_bytes
        if self._singles.is_full:
            self._write_singles(self._part)
        return True

    def _write_singles(self, part: PartWriter) -> None:
        """Write the checkpoints that came one by one into the part."""
        stacked, rows = self._singles.taken()
        if rows:
            _measure_finite(stacked, rows)
            self._write(part, {layout.RAW: stacked}, rows)

    def _write(self, part: PartWriter, arrays: Mapping[str, Mapping[str, Any]], rows: list[dict[str, Any]]) -> None:
        """Write checkpoints into the part; where that fails the part is given up, as some of it may be written."""
        try:
            part.add(arrays, rows)
        except BaseException as error:
            self._ended = True
            self._abandon(error)
            raise

    def check(self, weights: Mapping[str, Any] | Any, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tensors (1, *shape) and the row of one checkpoint as ``add`` takes them; nothing is added.

        Parameters
        ----------
        weights, row
            as for ``add`` with one checkpoint.

        Raises
        ------
        SpecError
            They do not fit the architecture or the columns.
        """
        stacked = self._checked(as_state_dict(weights, self.path.name, "weights"), 1, single=True)
        return stacked, self.check_row(row)

    def check_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row as ``add`` takes it; nothing is added.

        Parameters
        ----------
        row
            as for ``add``.

        Raises
        ------
        SpecError
            It does not fit the columns.
        """
        location, plain = f"{self.path.name}: rows", {name: number_of(value) for name, value in row.items()}
        if "extra" in plain:
            plain["extra"] = json_of(plain["extra"], location=location)
        table.table_of([plain], table.METADATA_SCHEMA, location=location)
        if problems := list(value_problems([plain], location=location)):
            raise SpecError(problems)
        return plain

    def commit(self) -> str | None:
        """Publish what was added as one part and return its name; None when nothing was added.

        Raises
        ------
        SpecError
            A checkpoint's id or a unit is in the zoo already, or the part has more than readers take (docs/format.md);
            nothing is published, and what was added is kept.
        """
        if self._part is None:
            return None
        self._write_singles(self._part)
        self._complete(self._part)
        part = self._part.commit(self.path, refuse=self._require_new_now)
        # parts never change, and this one holds what was checked
        self._seen_parts.add(part.name)
        self._take(self._part.rows)
        self._index_bytes += self._part.index_bytes
        self._part, self._pending, self._rows_bytes, self.created = None, set(), 0, None
        self._singles = Singles(self.arch)
        if self._read_alone > SNAPSHOT_PARTS:
            self._read_alone = 0
            # the part is published: a zoo without a snapshot, where the disk is full, is as good as before
            with contextlib.suppress(OSError, ZooError):
                add_snapshot(self.path)
        location = f"{self.path.name}/{layout.PARTS}"
        problem = layout.folder_problem(location, len(self._seen_parts), layout.MANY_PARTS)
        if problem is not None and not self._warned:
            self._warned = True
            warnings.warn(str(problem), UserWarning, stacklevel=2)
        return part.name

    @property
    def _sets(self) -> dict[str, Sequence[Tensor]]:
        """The tensors of a part's shards."""
        return {layout.RAW: self.arch.tensors}

    def _complete(self, part: PartWriter) -> None:
        """Add what else a part has before it is published."""

    def discard(self) -> None:
        """Forget what was added since the last commit."""
        if self._part is not None:
            self._part.discard()
        self._part, self._pending, self._rows_bytes, self._singles = None, set(), 0, Singles(self.arch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if error is not None:
            self._abandon(error)
            return
        try:
            self.commit()
        except BaseException as error:  # KeyboardInterrupt too: nothing of the part stays
            self._abandon(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        """Discard what was not committed, and the folder of a new zoo without parts; the exception's notes say so."""
        lost = len(self._pending)
        self.discard()
        if self.created is not None and _remove(self.path, self.created):
            error.add_note(f"{self.path} was removed: no part had been committed. Correct the script and run it again.")
        elif lost:
            kept = "the parts that were committed stay" if self.path.exists() else "nothing is there"
            error.add_note(
                f"{counted(lost, 'checkpoint')} added since the last commit of {self.path} went lost; {kept}. "
                f"Go on with ckptzoo.append({str(self.path)!r}); zoo.ids lists what it has."
            )

    def _require_new_now(self, rows: pa.Table) -> None:
        self._read_new_parts()
        for start in range(0, len(rows), RUN_ROWS):
            run = rows.slice(start, RUN_ROWS)
            self._require_new({column: run[column].to_pylist() for column in self._taken})
        nbytes = self._index_bytes + (0 if self._part is None else self._part.index_bytes)
        if nbytes > limits.MAX_FILE:
            step, location = "Write what is to come into another zoo.", f"{self.path.name}/{layout.PARTS}"
            expected = f"at most {limits.MAX_FILE} bytes"
            raise SpecError(Problem(location, "size of all indices", expected, str(nbytes), step))

    def _require_new(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Raise where the zoo has some of the ids or units, as far as its parts were read."""
        likely = {column: known.likely(columns[column]) for column, known in self._taken.items()}
        taken = self._in_parts(likely) if any(likely.values()) else likely
        problems: list[Problem] = []
        for column, what in (("id", "checkpoint"), ("unit", "unit")):
            if taken[column]:
                got = f"{len(taken[column])} there already, such as {min(taken[column])!r}"
                step = "Leave out what the zoo has; other weights (of another engine) go to another zoo."
                problems.append(Problem(self.path.name, f"{what} ids", "new ones", got, step))
        if problems:
            raise SpecError(problems)

    def _in_parts(self, names: Mapping[str, set[str]]) -> dict[str, set[str]]:
        """Those of some names of each column that rows of the parts have: hashes alone do not tell."""
        files, found = Folder(self.path), {column: set[str]() for column in names}
        parts = self._listed() & self._seen_parts
        for _, run in self._tree(parts, newest(files, list_trees(files))).rows.runs(list(names)):
            for column, asked in names.items():
                found[column] |= asked.intersection(run[column].drop_null().to_pylist())
        return found

    def _read_new_parts(self) -> None:
        """Learn the ids and units of parts that came since the last call; parts never change."""
        new = self._listed() - self._seen_parts
        if not new:
            return
        files = Folder(self.path)
        # a snapshot covers the first parts, so it helps only where none was read yet
        known = None if self._seen_parts else newest(files, list_trees(files))
        tree = self._tree(new, known)
        for _, run in tree.rows.runs(list(self._taken)):
            self._take(run)
        self._seen_parts |= new
        self._read_alone += len(new) - (0 if known is None else len(known.parts.get(layout.PARTS, ())))
        self._index_bytes += sum(files.size(f"{part.path}/{layout.INDEX}") or 0 for part in tree.parts)

    def _tree(self, parts: Iterable[str], known: Snapshot | None) -> Tree:
        names = tuple(sorted(parts))
        return read_tree(Folder(self.path), layout.PARTS, names, known, limits=row_limits(self.arch, None))

    def _listed(self) -> set[str]:
        """The names of the parts that are there."""
        return {name for name in Folder(self.path).listed(layout.PARTS) if layout.PART_NAME.fullmatch(name)}

    def _take(self, rows: pa.Table) -> None:
        """Remember the ids and units of rows."""
        for column, taken in self._taken.items():
            for start in range(0, len(rows), RUN_ROWS):
                taken.add(rows[column].slice(start, RUN_ROWS).drop_null().to_pylist())

    def _checked(self, weights: Mapping[str, Any], count: int, *, single: bool) -> dict[str, NDArray[Any]]:
        location = f"{self.path.name}: weights"
        lead = () if single else (count,)
        expected = {tensor.name: f"{(*lead, *tensor.shape)} {tensor.dtype}" for tensor in self.arch.tensors}
        aliases = {alias for tensor in self.arch.tensors for alias in tensor.aliases}
        arrays = {name: _as_numpy(weights[name], location, name) for name in weights}
        got = {name: f"{array.shape} {array.dtype}" for name, array in arrays.items() if name not in aliases}
        if list(unknown := [name for name in got if name not in expected]) and len(got) > len(expected):
            raise UnknownNameError(location, "tensor", unknown[0], self.arch.names)
        wrong = [name for name in expected if got.get(name) != expected[name]]
        if unknown or len(wrong) > 1:
            casts = not unknown and all(_shape(got.get(name)) == _shape(expected[name]) for name in wrong)
            dtypes = " or ".join(sorted({self.arch[name].dtype for name in wrong}))
            step = f"Cast them to {dtypes}." if casts else "Write networks of one architecture, each zoo another."
            what = f"those of {self.arch.name!r}"
            raise SpecError(Problem(location, "tensors", what, tensor_difference(expected, got), step))
        if wrong:
            step = "Reshape or cast it, or declare another architecture." if wrong[0] in got else "Add it."
            found = got.get(wrong[0], "none")
            raise SpecError(Problem(location, f"tensor {wrong[0]!r}", expected[wrong[0]], found, step))
        for tensor in self.arch.tensors:
            for alias in tensor.aliases:
                if alias in arrays and arrays[alias].tobytes() != arrays[tensor.name].tobytes():
                    step = "Declare an architecture in which they are not tied."
                    tied = f"the values of {tensor.name!r}, which it is tied to"
                    raise SpecError(Problem(location, f"tensor {alias!r}", tied, "others", step))
        return {name: arrays[name][np.newaxis] if single else arrays[name] for name in expected}


class ReferenceWriter(Writer):
    """Adds checkpoints whose weights lie in files of others to a zoo of such checkpoints.

    Raises ``SpecError`` if the zoo has weights of its own.
    """

    def __init__(self, root: Path) -> None:
        identity, arch, _ = read_documents(Folder(root))
        require_kind(identity, str(root), references=True)
        super().__init__(root, arch)
        self._references: list[Sequence[Reference]] = []

    def refer(self, references: Sequence[Sequence[Reference]], rows: Sequence[Mapping[str, Any]]) -> None:
        """Add checkpoints, each with its references; whether they are finite is not known.

        Raises ``SpecError`` as ``add`` does for rows.
        """
        self._add({}, [{**row, "finite": None} for row in rows])
        self._references += references

    def discard(self) -> None:
        """Forget what was added since the last commit."""
        super().discard()
        self._references = []

    @property
    def _sets(self) -> dict[str, Sequence[Tensor]]:
        return {}

    def _complete(self, part: PartWriter) -> None:
        data = encode(self._references)
        part.attach(layout.REFERENCES, data, "references", digest_of_file(data))

    def commit(self) -> str | None:
        """Publish what was added as one part, as ``Writer.commit``."""
        name = super().commit()
        self._references = []
        return name


def _shape(spec: str | None) -> str:
    """The shape of a tensor, of its shape and dtype."""
    return (spec or "").rpartition(" ")[0]


def _as_numpy(value: Any, location: str, name: str) -> NDArray[Any]:
    """A tensor as an array; anything else is named in an error."""
    # some tensors of torch raise errors where they are asked for their shape
    if isinstance(value, Mapping) or not (
        hasattr(value, "detach") or (hasattr(value, "shape") and hasattr(value, "dtype"))
    ):
        step = "Pass the state dict itself, model.state_dict()."
        raise SpecError(Problem(location, f"tensor {name!r}", "an array", type(value).__name__, step))
    try:
        return as_numpy(value)
    except TypeError as error:
        step = "Load its numbers, or pass it dense: to_dense(), dequantize(), to(torch.float32)."
        raise SpecError(Problem(location, f"tensor {name!r}", "numbers in memory", str(error), step)) from error


def as_state_dict(weights: Any, location: str, what: str) -> Mapping[str, Any]:
    """Tensors by name, of a torch module or as they are."""
    if isinstance(weights, type):
        step = f"Make a network of it: {weights.__name__}(...)."
        raise SpecError(
            Problem(location, what, "a state dict or a torch module", f"the class {weights.__name__}", step)
        )
    if not isinstance(weights, Mapping) and callable(method := getattr(weights, "state_dict", None)):
        weights = method()
    if not isinstance(weights, Mapping):
        step = "Pass model.state_dict() or the model."
        raise SpecError(Problem(location, what, "a state dict or a torch module", type(weights).__name__, step))
    return weights


def _remove(root: Path, files: Mapping[str, bytes]) -> bool:
    """Remove a zoo with nothing but these files as they were written, in one step; returns whether it was."""
    aside = root.with_name(f"{TEMPORARY}{os.urandom(8).hex()}")
    try:
        # a part is published under this lock, after which the folder has more than these files
        with locked(root):
            kept = {path.name: path for path in root.iterdir()}
            tree = kept.pop(layout.PARTS, None)
            if tree is not None and any(tree.iterdir()):
                return False
            if {name: path.read_bytes() for name, path in kept.items()} != dict(files):
                return False
            root.rename(aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _measure_finite(stacked: Mapping[str, NDArray[Any]], rows: Sequence[dict[str, Any]]) -> None:
    """Set the column ``finite`` of rows by their weights."""
    for row, is_finite in zip(rows, finite_rows(stacked.values(), len(rows)).tolist(), strict=True):
        row["finite"] = is_finite


def finite_rows(stacked: Iterable[NDArray[Any]], count: int) -> NDArray[np.bool_]:
    """For each of ``count`` checkpoints whether all elements of its tensors are finite, which are stacked."""
    finite = np.ones(count, dtype=bool)
    for array in stacked:
        if array.dtype.kind not in "iub":
            finite &= _finite(array)
    return finite


def _finite(array: NDArray[Any]) -> NDArray[np.bool_]:
    """For each row whether all its elements are finite; a few rows at a time keep the memory bounded."""
    flat = array.reshape(len(array), -1)
    step = max(1, _FINITE_BYTES // max(1, flat[:1].nbytes))
    pieces = [np.isfinite(flat[start : start + step]).all(axis=1) for start in range(0, len(flat), step)]
    return np.concatenate(pieces).astype(np.bool_)
