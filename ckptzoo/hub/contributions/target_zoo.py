"""The zoo to which a contribution goes: what it contains, as checks need it, and its documents."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptzoo
from ckptzoo import archs
from ckptzoo.format.durable import naming
from ckptzoo.format.reader import Contents
from ckptzoo.hub.client import Client, RevisionListing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.symmetry import Symmetry

COMPARED_BYTES = 256 * 2**20
"""Weights of a zoo that are read at most to compare contributions with it, where it stores no fingerprints."""
MAX_DOCUMENT = 64 * 2**20
"""Bytes of one of its documents."""
CANONICAL = "canonical"
_BATCH_BYTES = 64 * 2**20

Weights = dict[str, NDArray[Any]]


class TargetZoo:
    """The content of a zoo, each fact read when it is first asked for; the weights only where they are small.

    Retracted checkpoints count, because their ids are taken.
    """

    def __init__(self, zoo: Zoo) -> None:
        self.zoo = zoo
        self._rows = zoo.contents.raw.rows

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of every checkpoint that was ever added."""
        return frozenset(self._rows["id"].to_pylist())

    @cached_property
    def units(self) -> frozenset[str]:
        """Units of work that were added."""
        return frozenset(self._rows["unit"].drop_null().to_pylist())

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the raw parts, in order."""
        return tuple(part.name for part in self.zoo.contents.raw.parts)

    @property
    def next_sequence(self) -> int:
        """The number of the next part; ZooError where there is none."""
        return layout.next_sequence(self.parts, location=f"{self.zoo.address}/{layout.PARTS}")

    @property
    def symmetry(self) -> Symmetry | None:
        """The zoo's table of symmetries, or that of its forward function; None where neither is known."""
        return symmetry_of(self.zoo.contents)

    @property
    def nbytes(self) -> int:
        return len(self.zoo) * self.zoo.arch.nbytes

    @property
    def small(self) -> bool:
        """Whether the weights are small enough to be read."""
        return self.nbytes <= COMPARED_BYTES

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Stored fingerprints of canonical forms by id; no weights are read."""
        if CANONICAL not in self.zoo.contents.derived_parts:
            return {}
        rows = self.zoo.contents.derived(CANONICAL).rows.select(["id", "fingerprint"])
        both = zip(rows["id"].to_pylist(), rows["fingerprint"].to_pylist(), strict=True)
        return {name: digest for name, digest in both if digest is not None}

    def batches(self, ids: list[str] | None = None) -> Iterator[tuple[list[str], Weights]]:
        """Yield ids and stacked weights, of all checkpoints or of these, in the order that is asked for."""
        places = {name: row for row, name in enumerate(self.zoo.ids)}
        wanted = list(places) if ids is None else [name for name in ids if name in places]
        rows = np.array([places[name] for name in wanted], np.int64)
        yield from batches(self.zoo.take(rows))


def batches(zoo: Zoo) -> Iterator[tuple[list[str], Weights]]:
    """Yield ids and stacked weights of a zoo's checkpoints, in its order, at most 64 MiB or one at a time."""
    for batch in zoo.batches(max_bytes=_BATCH_BYTES):
        yield list(batch.ids), {name: np.asarray(batch[name]) for name in zoo.arch.names}


def symmetry_of(contents: Contents) -> Symmetry | None:
    """Return the table of a zoo, or that of its forward function where it fits."""
    if contents.symmetry is not None or not archs.known(contents.architecture.forward):
        return contents.symmetry
    symmetry = archs.symmetry(contents.architecture.forward)
    symmetry.check(contents.architecture)
    return symmetry


def open_target(client: Client, repo: str, listing: RevisionListing) -> Zoo:
    """Return a zoo on a hub as it was at a commit."""
    return ckptzoo.open(f"hf://datasets/{repo}@{listing.commit}", endpoint=client.endpoint, token=client.token)


def write_documents(target: TargetZoo, folder: Path) -> Path:
    """Write a zoo's documents into a new folder."""
    files = target.zoo.contents.files
    folder.mkdir(parents=True)
    for name in (layout.ZOO, layout.ARCHITECTURE, layout.SYMMETRY):
        if files.size(name) is not None:
            data = files.read(name, max_bytes=MAX_DOCUMENT)
            with naming(folder / name):
                (folder / name).write_bytes(data)
    return folder
