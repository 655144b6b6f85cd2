"""A zoo as its reader sees it: metadata, selections, stacked tensors, streams, checkpoints, ensembles."""

import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.loader.checkpoint import Checkpoint, import_torch
from ckptzoo.loader.directory import Directory
from ckptzoo.loader.plan import Ragged, Share, Shuffle
from ckptzoo.loader.stacked import StackedTensor
from ckptzoo.loader.stream import Source, Stream
from ckptzoo.loader.where import Filters, expression
from ckptzoo.spec import layout
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.symmetry import Symmetry


def open(address: str | os.PathLike[str]) -> "Zoo":
    """Open a zoo: a folder on this machine.

    Parameters
    ----------
    address : the zoo's folder.

    Raises
    ------
    ZooError
        No such folder.
    IntegrityError
        It is not a zoo, or what can be seen without reading the shards is wrong.

    Notes
    -----
    Reads rows and index of every part, or of a snapshot, and no weights. Retracted checkpoints are left out, with
    a warning.
    """
    root = Path(address).absolute()
    if not root.is_dir():
        raise ZooError(
            f"{address}: a zoo: expected a folder, got {'a file' if root.exists() else 'nothing'}. "
            "Make one with ckptzoo.create or python -m builders build."
        )
    contents = read_contents(root)
    ids = contents.raw.metadata["id"]
    gone = contents.retracted.metadata["id"]
    rows = np.arange(len(ids), dtype=np.int64)
    if len(gone):
        rows = rows[~_lookup(ids, gone).is_valid().to_numpy()]
        left = f"{len(ids) - len(rows)} of {len(ids)} checkpoints retracted and left out"
        warnings.warn(f"{root.name}: {left}; zoo.retracted lists them.", UserWarning, stacklevel=2)
    return Zoo(contents, {}, rows)


class Zoo:
    """Many checkpoints of one architecture, as they were when the zoo was opened, or a selection of them.

    ``zoo["conv1.weight"]`` is the tensor of every checkpoint, ``(N, *shape)``, read when indexed;
    ``zoo["conv1.weight", "first-weight"]`` the same in another gauge. Selections (``where``, ``take``,
    ``last_steps``) are Zoos too and share what was read. A Zoo can be pickled and sent to another process.
    """

    def __init__(self, contents: Contents, directories: dict[str, Directory], rows: NDArray[np.int64]) -> None:
        self._contents, self._directories, self._rows = contents, directories, rows
        self._places: dict[str, NDArray[np.int64]] = {layout.RAW: rows}

    def __repr__(self) -> str:
        name, parts = self._contents.identity.name, len(self._contents.raw.parts)
        return f"<zoo {name}: {len(self):,} checkpoints of {self.arch.name}, {parts} parts>"

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def name(self) -> str:
        """The zoo's name."""
        return self._contents.identity.name

    @property
    def path(self) -> Path:
        """The zoo's folder."""
        return self._contents.root

    @property
    def arch(self) -> Architecture:
        """The tensors of a checkpoint."""
        return self._contents.architecture

    @property
    def symmetry(self) -> Symmetry | None:
        """The table of groups and axis actions, where the zoo has one."""
        return self._contents.symmetry

    @property
    def contents(self) -> Contents:
        """Everything that was read at opening: documents, parts, index."""
        return self._contents

    @property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Module name to its tensors' names."""
        return self.arch.layers

    @property
    def revision(self) -> str:
        """Digest of the ordered list of parts at opening."""
        return self._contents.revision

    @cached_property
    def metadata(self) -> pa.Table:
        """One row per checkpoint, in zoo order; the columns are those of ``ckptzoo.spec.metadata.COLUMNS``."""
        table = self._contents.raw.metadata
        return table if len(self._rows) == len(table) else table.take(pa.array(self._rows))

    @property
    def ids(self) -> list[str]:
        """The checkpoints' ids, in zoo order."""
        return self.metadata["id"].to_pylist()

    @property
    def retracted(self) -> pa.Table:
        """The tombstones: id, reason, contributor, created."""
        return self._contents.retracted.metadata

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """``raw`` and every gauge that was derived."""
        names = self._contents.derived_parts
        return (layout.RAW, *(name for name in names if self._contents.derived(name).kind == "variant"))

    def where(self, filters: Filters) -> "Zoo":
        """The checkpoints whose metadata satisfy a condition.

        Parameters
        ----------
        filters : ``[("test_accuracy", ">", 0.8), ("seed", "<", 500)]`` as pyarrow and datasets take them, a
            ``pyarrow.compute`` expression, or text such as ``"test_accuracy > 0.8 and seed < 500"``, which is parsed
            and never evaluated.

        Raises
        ------
        UnknownNameError
            No such column.
        """
        table = self.metadata
        condition = expression(filters, table.column_names)
        try:
            numbered = table.append_column("__row", pa.array(np.arange(len(table))))
            kept = numbered.filter(condition)["__row"].to_numpy()
        except pa.ArrowException as error:
            raise ZooError(f"{self.name}: where: expected a condition on the columns, got {error}.") from error
        return self.take(kept)

    def take(self, rows: Any) -> "Zoo":
        """The checkpoints at these places: a slice, integers in any order, or a mask."""
        return Zoo(self._contents, self._directories, np.atleast_1d(self._rows[rows]))

    def last_steps(self) -> "Zoo":
        """Each member's checkpoint of the last step, in zoo order."""
        table = self.metadata
        steps = table["step"].fill_null(-1).to_numpy()
        members = table["member"].combine_chunks().dictionary_encode().indices.to_numpy()
        order = np.lexsort((steps, members))
        last = order[np.flatnonzero(np.diff(members[order], append=-1))]
        return self.take(np.sort(last))

    def __getitem__(self, key: str | tuple[str, str]) -> StackedTensor:
        name, variant = (key, layout.RAW) if isinstance(key, str) else key
        directory, rows = self._placed(variant)
        stored = self._stored(name)
        return StackedTensor(directory, directory.extents(variant, stored), rows, name=name)

    def element(self, variant: str) -> dict[str, StackedTensor]:
        """The group element g of a variant, with variant = g . raw: ``{"<group>.perm": (N, n), ...}``."""
        directory, rows = self._placed(variant)
        stem = layout.ELEMENT
        return {
            name: StackedTensor(directory, directory.extents(stem, name), rows, name=name)
            for name in directory.tensors(stem)
        }

    def variant_metadata(self, variant: str) -> pa.Table:
        """A variant's own rows (ties, margins, certificates), one per checkpoint, in zoo order."""
        _, rows = self._placed(variant)
        return self._contents.derived(variant).metadata.take(pa.array(rows))

    def stream(
        self,
        *names: str,
        variant: str = layout.RAW,
        batch_size: int = 256,
        shuffle: Shuffle = False,
        seed: int = 0,
        ragged: Ragged = "error",
        rank: int = 0,
        world: int = 1,
        device: Any = None,
    ) -> Any:
        """Batches of stacked tensors, in an order that resumes exactly.

        Parameters
        ----------
        names : tensors, or layers for all their tensors; none for everything.
        variant : the gauge.
        batch_size : checkpoints a batch.
        shuffle : False; True (blocks across the zoo, then rows within a window of blocks: bounded memory and
            requests); or ``"global"``.
        ragged : what happens when the last rows make no equal shares for the ranks: ``"error"``, ``"keep"`` them
            as they come, ``"drop"`` them, or ``"pad"`` with the epoch's first rows.
        rank, world : which reader of how many this is.
        device : None for numpy; else torch tensors there, read one batch ahead (pinned, for CUDA).

        Returns
        -------
        Stream, or TorchStream where a device is given: an iterable of Batch.
        """
        source = self._source(names, variant)
        share = Share(rank, world)
        stream = Stream(source, batch_size=batch_size, shuffle=shuffle, seed=seed, ragged=ragged, share=share)
        return stream if device is None else import_torch().TorchStream(stream, device)

    def to_torch(
        self,
        *names: str,
        variant: str = layout.RAW,
        batch_size: int = 256,
        shuffle: Shuffle = False,
        seed: int = 0,
        ragged: Ragged = "error",
        rank: int | None = None,
        world: int | None = None,
    ) -> Any:
        """An IterableDataset of Batch for ``DataLoader(dataset, batch_size=None, num_workers=...)``.

        Parameters
        ----------
        names, variant, batch_size, shuffle, seed, ragged : as in ``stream``.
        rank, world : by default those of ``torch.distributed`` where it is initialised, else one rank.

        Notes
        -----
        The order of every epoch follows from seed and epoch: call ``dataset.set_epoch(n)`` before epoch n, as with a
        ``DistributedSampler``. A DataLoader with ``persistent_workers=True`` does not see such calls.
        """
        return import_torch().ZooDataset(
            self._source(names, variant),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            ragged=ragged,
            rank=rank,
            world=world,
        )

    def to_datasets(self, *names: str, variant: str = layout.RAW, shards: int = 16) -> Any:
        """A ``datasets.IterableDataset`` of ``{"id": ..., name: array}``, one example a checkpoint.

        Parameters
        ----------
        names, variant : as in ``stream``.
        shards : pieces that ``datasets`` may hand to workers or nodes.
        """
        from ckptzoo.loader.datasets import iterable

        return iterable(self._source(names, variant), shards=shards)

    def checkpoint(self, id: str, *, variant: str = layout.RAW) -> Checkpoint:
        """One checkpoint by its id.

        Raises
        ------
        UnknownNameError
            This zoo, or this selection of it, has no such checkpoint.
        """
        at = self.metadata["id"].index(id).as_py()
        if at < 0:
            for tomb in self.retracted.to_pylist():
                if tomb["id"] == id:
                    step = "Its bytes stay in the zoo."
                    raise ZooError(f"{self.name}: checkpoint {id!r}: retracted, because {tomb['reason']!r}. {step}")
            raise UnknownNameError(self.name, "checkpoint", id, self.ids)
        directory, rows = self._placed(variant)
        place = rows[at : at + 1]
        held: dict[int, Any] = {}

        def read(name: str, private: bool) -> NDArray[Any]:
            extents = directory.extents(variant, self._stored(name))
            return directory.gather(extents, place, private=held if private else None)[0, ...]

        def ahead() -> None:
            directory.will_need([directory.extents(variant, name) for name in self.arch.names], int(place[0]))

        row = self.metadata.slice(at, 1).to_pylist()[0]
        return Checkpoint(self.arch, row, variant, read, ahead)

    def ensemble(
        self, *, limit: int | None = None, variant: str = layout.RAW, steps: str = "last", device: Any = None
    ) -> dict[str, Any]:
        """Stacked torch tensors ``{name: (N, *shape)}``, as ``torch.func.functional_call`` and ``vmap`` take them.

        Parameters
        ----------
        limit : at most so many checkpoints, the first in zoo order.
        steps : ``"last"`` takes each member's last step, ``"all"`` every checkpoint.
        device : where to; None leaves them on the pages of the file.

        Notes
        -----
        Where the rows lie evenly spaced in one shard nothing is copied until it is written to, and writing never
        reaches the file or another reader.
        """
        if limit is not None and limit < 0:
            raise ZooError(f"{self.name}: limit: expected 0 or more, got {limit}. Leave it out to take all.")
        if steps not in ("last", "all"):
            raise UnknownNameError(self.name, "steps", steps, ("last", "all"))
        zoo = (self.last_steps() if steps == "last" else self).take(slice(limit))
        directory, rows = zoo._placed(variant)
        held: dict[int, Any] = {}
        torch = import_torch()
        made: dict[str, Any] = {}
        for tensor in self.arch.tensors:
            array = directory.gather(directory.extents(variant, tensor.name), rows, private=held)
            made[tensor.name] = torch.tensor_of(array)
            for alias in tensor.aliases:
                made[alias] = made[tensor.name]
        return made if device is None else {name: tensor.to(device) for name, tensor in made.items()}

    def refresh(self) -> "Zoo":
        """The zoo as it is now, parts that came since it was opened included; a selection is not carried over."""
        return open(self.path)

    def _stored(self, name: str) -> str:
        """The tensor that is stored under this name or alias."""
        for tensor in (self.arch[name],) if name in self.arch else self.arch.tensors:
            if name == tensor.name or name in tensor.aliases:
                return tensor.name
        known = [other for tensor in self.arch.tensors for other in (tensor.name, *tensor.aliases)]
        raise UnknownNameError(self.name, "tensor", name, self.arch.layers.get(name, known))

    def _named(self, name: str) -> tuple[str, ...]:
        """A tensor's name as it is stored, or the names of a layer's tensors."""
        layers = self.arch.layers
        return layers[name] if name in layers and name not in self.arch else (self._stored(name),)

    def _source(self, names: Sequence[str], variant: str) -> Source:
        directory, rows = self._placed(variant)
        wanted = [tensor for name in names for tensor in self._named(name)] or list(self.arch.names)
        extents = {name: directory.extents(variant, name) for name in wanted}
        ids = self.metadata["id"].combine_chunks()
        return Source(directory, extents, rows, ids, self.revision, self.name)

    def _placed(self, variant: str) -> tuple[Directory, NDArray[np.int64]]:
        """A variant's directory, and where this zoo's checkpoints are in it."""
        if variant != layout.RAW and variant not in self.variants:
            raise UnknownNameError(self.name, "variant", variant, self.variants)
        tree = self._contents.raw if variant == layout.RAW else self._contents.derived(variant)
        if variant not in self._directories:
            self._directories[variant] = Directory(self.path, tree, self.arch)
        if variant not in self._places:
            found = _lookup(self.metadata["id"], tree.metadata["id"])
            if found.null_count:
                raise ZooError(
                    f"{self.name}: variant {variant!r}: expected all {len(self)} checkpoints, got "
                    f"{len(self) - found.null_count}. Run ckptzoo derive {self.path.name} --gauge {variant}."
                )
            self._places[variant] = found.to_numpy().astype(np.int64)
        return self._directories[variant], self._places[variant]


def _lookup(ids: pa.ChunkedArray, known: pa.ChunkedArray) -> pa.ChunkedArray:
    """The place of each id among the known ones, null where it is not among them."""
    return pc.call_function("index_in", [ids], pc.SetLookupOptions(known.combine_chunks()))
