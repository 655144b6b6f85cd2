"""Making a zoo and adding parts to it."""

import errno
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SpecError, UnknownNameError, ZooError
from ckptzoo.format import table
from ckptzoo.format.checks import row_limits
from ckptzoo.format.durable import Staging, naming
from ckptzoo.format.files import Folder
from ckptzoo.format.header import numpy_dtype
from ckptzoo.format.part import SHARD_BYTES, Arrays, PartWriter
from ckptzoo.format.reader import list_trees, read_documents, read_tree
from ckptzoo.format.snapshot import newest
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import CARD_TOML, Card
from ckptzoo.schema.documents import Identity, parse, seal
from ckptzoo.schema.metadata import value_problems
from ckptzoo.schema.readme import first_readme
from ckptzoo.schema.symmetry import Symmetry

_FINITE_BYTES = 16 * 2**20
"""Bytes of rows that are looked at together for elements that are not finite."""


def create(
    path: str | Path,
    *,
    arch: Architecture | str | Path | Any,
    card: Card | str | Path | None = None,
    symmetry: Symmetry | None = None,
) -> "Writer":
    """Make a new zoo in ``path`` and return a writer onto it.

    Parameters
    ----------
    path
        a folder that does not exist or is empty.
    arch
        a declaration, the path of an ``architecture.json``, an example state dict, or a torch module.
    card
        what a person says about the zoo, or the path of a ``card.toml``; by default only the folder's name.
    symmetry
        the table of groups and axis actions, where it is known.

    Raises
    ------
    ZooError
        Something is there already; ``append`` adds to a zoo.
    SpecError
        The architecture or the card is not valid.

    Examples
    --------
    >>> arch = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("fc.weight", (2, 3)),))
    >>> weights, rows = {"fc.weight": np.zeros((4, 2, 3), np.float32)}, [{"id": f"run-{n}"} for n in range(4)]
    >>> with ckptzoo.create("zoos/tiny", arch=arch) as writer:
    ...     writer.add(weights, rows)
    >>> ckptzoo.open("zoos/tiny")
    <zoo tiny: 4 checkpoints of tiny, 1 part>
    """
    root = Path(path).absolute()
    step = f"Use ckptzoo.append({str(path)!r}) to add to a zoo."
    occupied = ZooError(Problem(str(path), "a new zoo", "no folder or an empty one", "one with files", step))
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise occupied
    if not isinstance(card, Card):
        card = Card(root.name) if card is None else Card.from_toml(card)
    if isinstance(arch, str | Path):
        content = parse(table.read_bytes(Path(arch), location=str(arch)), location=str(arch))
        arch = Architecture.from_json({k: v for k, v in content.items() if k != "digest"}, location=str(arch))
    elif not isinstance(arch, Architecture):
        arch = Architecture.of(arch if isinstance(arch, Mapping) else arch.state_dict(), name=card.name)
    if symmetry is not None:
        symmetry.check(arch)
    identity = Identity(card.name, arch.digest, None if symmetry is None else symmetry.digest)
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
                (staging.path / name).write_bytes(data)
            staging.publish(root)
    except BaseException as error:  # KeyboardInterrupt too: no half-made zoo stays
        staging.discard()
        # another process has made one meanwhile
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise occupied from None
        raise
    return Writer(root, arch)


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
    _, arch, _ = read_documents(Folder(root))
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
        self._taken: dict[str, set[str]] = {"id": set(), "unit": set()}
        self._seen_parts: set[str] = set()
        self._ended = False

    def add(self, weights: Mapping[str, Any] | Any, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> None:
        """Add checkpoints, in memory bounded by what is passed in.

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
        weights = weights if isinstance(weights, Mapping) else weights.state_dict()
        stacked = self._checked(weights, len(listed), single=isinstance(rows, Mapping))
        finite = np.ones(len(listed), dtype=bool)
        for array in stacked.values():
            if array.dtype.kind not in "iub":
                finite &= _finite(array)
        for row, is_finite in zip(listed, finite.tolist(), strict=True):
            if isinstance(extra := row.get("extra"), Mapping):
                row["extra"] = json.dumps(extra, sort_keys=True)
            if row.get("member") is None and isinstance(row.get("id"), str):
                row["member"] = row["id"]
            row["finite"] = is_finite
        table.table_of(listed, table.METADATA_SCHEMA, location=f"{self.path.name}: rows")
        if problems := list(value_problems(listed, location=f"{self.path.name}: rows")):
            raise SpecError(problems)
        ids = [str(row["id"]) for row in listed]
        if len(set(ids)) != len(ids) or not self._pending.isdisjoint(ids):
            twice = next(name for number, name in enumerate(ids) if name in self._pending or name in ids[:number])
            step = "Give every checkpoint its own."
            raise SpecError(Problem(self.path.name, "id", "each id once", f"{twice!r} twice", step))
        if self._part is None:
            self._read_new_parts()
        self._require_new(listed)
        if self._part is None:
            self._part = PartWriter(
                self.path / layout.PARTS,
                sets={layout.RAW: self.arch.tensors},
                schema=table.METADATA_SCHEMA,
                facts={"kind": "raw"},
                shard_bytes=self._shard_bytes,
            )
        self._part.add({layout.RAW: stacked}, listed)
        self._pending.update(ids)

    def commit(self) -> str | None:
        """Publish what was added as one part and return its name; None when nothing was added.

        Raises
        ------
        SpecError
            A checkpoint's id or a unit is in the zoo already; nothing is published, and what was added is kept.
        """
        if self._part is None:
            return None
        part = self._part.commit(self.path, refuse=self._require_new_now)
        self._part, self._pending = None, set()
        return part.name

    def discard(self) -> None:
        """Forget what was added since the last commit."""
        if self._part is not None:
            self._part.discard()
        self._part, self._pending = None, set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if kind is not None:
            self.discard()
            return
        try:
            self.commit()
        except BaseException:  # KeyboardInterrupt too: nothing of the part stays
            self.discard()
            raise

    def _require_new_now(self, rows: list[dict[str, Any]]) -> None:
        self._read_new_parts()
        self._require_new(rows)

    def _require_new(self, rows: list[dict[str, Any]]) -> None:
        """Raise where the zoo has some of the ids or units, as far as its parts were read."""
        problems: list[Problem] = []
        for column, what in (("id", "checkpoint"), ("unit", "unit")):
            taken = sorted({str(row[column]) for row in rows if row.get(column) in self._taken[column]})
            if taken:
                got = f"{len(taken)} there already, such as {taken[0]!r}"
                step = "Leave out what the zoo has; other weights (of another engine) go to another zoo."
                problems.append(Problem(self.path.name, f"{what} ids", "new ones", got, step))
        if problems:
            raise SpecError(problems)

    def _read_new_parts(self) -> None:
        """Learn the ids and units of parts that came since the last call; parts never change."""
        files = Folder(self.path)
        trees = list_trees(files)
        new = tuple(name for name in trees[layout.PARTS] if name not in self._seen_parts)
        # a snapshot covers the first parts, so it helps only where none was read yet
        known = None if self._seen_parts else newest(files, trees)
        tree = read_tree(files, layout.PARTS, new, known, limits=row_limits(self.arch, None))
        for column, taken in self._taken.items():
            taken.update(name for name in tree.rows[column].to_pylist() if name is not None)
        self._seen_parts.update(new)

    def _checked(self, weights: Arrays, count: int, *, single: bool) -> dict[str, NDArray[Any]]:
        location = f"{self.path.name}: weights"
        problems: list[Problem] = []
        stacked: dict[str, NDArray[Any]] = {}
        known = {alias for tensor in self.arch.tensors for alias in (tensor.name, *tensor.aliases)}
        for name in weights:
            if name not in known:
                raise UnknownNameError(location, "tensor", name, self.arch.names)
        lead = () if single else (count,)
        for tensor in self.arch.tensors:
            expected = f"{(*lead, *tensor.shape)} {tensor.dtype}"
            if tensor.name not in weights:
                problems.append(Problem(location, f"tensor {tensor.name!r}", expected, "none", "Add it."))
                continue
            array = as_numpy(weights[tensor.name])
            if array.shape != (*lead, *tensor.shape) or array.dtype != numpy_dtype(tensor.dtype):
                got = f"{array.shape} {array.dtype}"
                step = "Reshape or cast it, or declare another architecture."
                problems.append(Problem(location, f"tensor {tensor.name!r}", expected, got, step))
                continue
            for alias in tensor.aliases:
                if alias in weights and as_numpy(weights[alias]).tobytes() != array.tobytes():
                    step = "Declare an architecture in which they are not tied."
                    expected = f"the values of {tensor.name!r}, which it is tied to"
                    problems.append(Problem(location, f"tensor {alias!r}", expected, "others", step))
            stacked[tensor.name] = array[np.newaxis] if single else array
        if problems:
            raise SpecError(problems)
        return stacked


def as_numpy(value: Any) -> NDArray[Any]:
    """A numpy array over the memory of a numpy array or a torch tensor on the CPU; bfloat16 through ml_dtypes."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # whose numpy() raises; torch is imported where there is such a tensor
            return value.contiguous().view(sys.modules["torch"].int16).numpy().view(numpy_dtype("bfloat16"))
        return value.numpy()
    return np.asarray(value)


def _finite(array: NDArray[Any]) -> NDArray[np.bool_]:
    """For each row whether all its elements are finite; a few rows at a time keep the memory bounded."""
    flat = array.reshape(len(array), -1)
    step = max(1, _FINITE_BYTES // max(1, flat[:1].nbytes))
    pieces = [np.isfinite(flat[start : start + step]).all(axis=1) for start in range(0, len(flat), step)]
    return np.concatenate(pieces).astype(np.bool_)
