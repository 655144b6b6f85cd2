"""One variant of a zoo: its rows, and a reader for each of its tensors, stored or computed."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.checks import origin_problems, variant_dtype
from ckptzoo.format.part import rows_a_shard
from ckptzoo.format.reader import Contents
from ckptzoo.format.tree import places_of
from ckptzoo.loader.readers import ConcatReader, MmapReader, RemoteReader, TensorReader
from ckptzoo.loader.references import ReferenceReader
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.loader.shard_index import ShardIndex
from ckptzoo.schema import layout
from ckptzoo.schema.layout import Span


class Variant:
    """The weights of a zoo in one gauge, or as trained.

    Parts without shards of the gauge itself hold only group elements; their weights are computed from the raw ones.
    ``name`` is ``raw`` or a gauge's; ``raw`` holds the raw weights; None where this variant is ``raw``. Raises
    ``IntegrityError`` if the variant's parts do not fit the zoo.
    """

    def __init__(self, contents: Contents, name: str, raw: "Variant | None") -> None:
        self.name, self.tree = name, contents.raw if raw is None else contents.derived(name)
        self._contents, self._raw = contents, raw
        self._index = ShardIndex(contents.files, self.tree, contents.architecture)
        self._bounds = np.cumsum([0, *(part.rows for part in self.tree.parts)], dtype=np.int64)
        self._refers = raw is None and contents.identity.references
        self._bare = np.zeros(len(self.tree.parts), np.bool_) if self._refers else self._index.parts_without(name)
        self._readers: dict[str, TensorReader] = {}
        computed = raw is not None and bool(self._bare.any())
        if computed and (problems := list(origin_problems(contents.files, contents.raw, self.tree))):
            raise IntegrityError(problems)

    def reader(self, tensor: str) -> TensorReader:
        """A tensor of every row."""
        if tensor not in self._readers:
            self._readers[tensor] = self._new_reader(tensor)
        return self._readers[tensor]

    def group_element(self) -> dict[str, TensorReader]:
        """The group element of every row: ``<group>.perm`` and ``<group>.scale``."""
        names = self._index.tensors(layout.ELEMENT)
        return {name: self._stored(layout.ELEMENT, name) for name in names}

    def will_need(self, row: int) -> None:
        """Ask for one checkpoint to be read ahead: by the kernel, or in few requests."""
        files = self._contents.files
        if self._refers:
            readers = (self.reader(name) for name in self._contents.architecture.names)
            self._contents.referenced_files.prefetch(
                place for reader in readers if isinstance(reader, ReferenceReader) for place in reader.places([row])
            )
        elif isinstance(files, RemoteFiles):
            readers = (self.reader(name) for name in self._contents.architecture.names)
            self.prefetch(span for reader in readers for span in reader.required_blocks(np.array([row])))
        elif self._raw is None or not self._bare[self._bounds.searchsorted(row, side="right") - 1]:
            self._index.will_need(self.name, row)
        else:
            self._index.will_need(layout.ELEMENT, row)
            self._raw.will_need(int(self._origins[row]))

    @property
    def reads_elsewhere(self) -> bool:
        """Whether weights are read from another machine: the zoo is there, or files that it refers to."""
        computed = self._raw is not None and self._contents.identity.references and bool(self._bare.any())
        refers = (self._refers or computed) and bool(self._contents.references.is_remote.any())
        return refers or isinstance(self._contents.files, RemoteFiles)

    def prefetch(self, wanted: Iterable[Span]) -> None:
        """Fetch blocks of the zoo that are read next, and bytes of files that it refers to, by their addresses."""
        spans, files = list(wanted), self._contents.files
        if isinstance(files, RemoteFiles):
            files.prefetch(span for span in spans if "://" not in span.name)
        if elsewhere := [span for span in spans if "://" in span.name]:
            self._contents.referenced_files.prefetch_spans(elsewhere)

    def _new_reader(self, tensor: str) -> TensorReader:
        if self._raw is None and self._bare.any():
            # a zoo that was pulled with its variants alone
            variants = ", ".join(self._contents.variants)
            step = f"Read a variant ({variants}), or pull the zoo with --variant raw, too, into another folder."
            raise ZooError(Problem(self._contents.files.name, "raw weights", "some", "none in some parts", step))
        if self._refers:
            return ReferenceReader(self._contents.referenced_files, self.tree, tensor)
        if not self._bare.any():
            return self._stored(self.name, tensor)
        computed = self._computed(tensor)
        if self._bare.all():
            return computed
        return ConcatReader((self._stored(self.name, tensor), computed), self._bounds, self._bare.astype(np.int64))

    def _stored(self, stem: str, tensor: str) -> TensorReader:
        files, locations = self._contents.files, self._index.locations(stem, tensor)
        if isinstance(files, RemoteFiles):
            return RemoteReader(self._index, locations, files)
        return MmapReader(self._index, locations)

    def _computed(self, tensor: str) -> TensorReader:
        from ckptzoo.loader.computed import ComputedReader  # with all of ckptzoo.symmetry, which nobody else here needs

        raw, symmetry = self._raw, self._contents.symmetry
        assert raw is not None and symmetry is not None
        declared = self._contents.architecture[tensor]
        element = partial(self._stored, layout.ELEMENT)
        return ComputedReader.of(declared, symmetry, raw.reader(tensor), self._origins, element, self._shards)

    @cached_property
    def _origins(self) -> NDArray[np.int64]:
        """(N,) for each row its row of the raw tree, -1 where there is none."""
        return places_of(self.tree.rows["id"], self._contents.ids)

    @cached_property
    def _shards(self) -> NDArray[np.int64]:
        """(S, 2) first and last row, exclusive, of the shards in which the computed rows would be stored."""
        tensors = [replace(item, dtype=variant_dtype(item.dtype)) for item in self._contents.architecture.tensors]
        step = rows_a_shard(tensors)
        parts = zip(self._bounds[:-1][self._bare].tolist(), self._bounds[1:][self._bare].tolist(), strict=True)
        shards = [(first, min(first + step, stop)) for start, stop in parts for first in range(start, stop, step)]
        return np.array(shards, dtype=np.int64)
