"""The checkpoints of a zoo for an audit: rows, read a tensor at a time."""

import os
from collections.abc import Sequence

import ckptzoo
from ckptzoo.hub.audits.steps import Layout, Piece, PublishedStep, digest_of
from ckptzoo.loader.references import ReferenceReader
from ckptzoo.loader.zoo import Zoo


def steps_of_zoo(
    address: str | os.PathLike[str], *, everything: bool, endpoint: str | None, token: str | None
) -> list[PublishedStep]:
    """Return the steps of a zoo's members."""
    zoo = ckptzoo.open(address, endpoint=endpoint, token=token)
    ids, members, steps, methods, modes = (
        zoo.column(name).to_pylist() for name in ("id", "member", "step", "method", "mode")
    )
    layout: Layout = tuple(sorted((item.name, item.dtype, item.shape) for item in zoo.arch.tensors))
    reader = ZooReader(zoo, everything=everything)
    found: list[PublishedStep] = []
    for row, name in enumerate(ids):
        # draws of a posterior are no steps, and several may be equal
        is_draw = methods[row] is not None
        run = (modes[row] or methods[row]) if is_draw else (members[row] or name)
        found.append(PublishedStep(run, None if is_draw else steps[row], name, layout, reader))
        reader.rows[name] = row
    return found


class ZooReader:
    """Reads numbers of a zoo's rows, each tensor once for all of them; of files that it refers to the first alone."""

    def __init__(self, zoo: Zoo, *, everything: bool) -> None:
        self._zoo, self.rows = zoo, dict[str, int]()
        self._source = zoo.source(())
        first = next(iter(self._source.readers.values()), None)
        is_elsewhere = zoo.contents.files.here is None or (isinstance(first, ReferenceReader) and first.is_remote)
        self.reads_all = everything or not is_elsewhere

    def read(self, steps: Sequence[PublishedStep], pieces: Sequence[Piece]) -> None:
        rows = [self.rows[step.where] for step in steps]
        for name, count in pieces:
            reader = self._source.readers[name]
            if isinstance(reader, ReferenceReader):
                values = reader.heads(self._source.rows[rows], count)
            else:
                values = reader.gather(self._source.rows[rows]).reshape(len(rows), -1)[:, :count]
            for step, row in zip(steps, values, strict=True):
                step.values[Piece(name, count)] = row

    def read_all(self, step: PublishedStep) -> None:
        checkpoint = self._zoo.checkpoint(step.where)
        step.digest, step.nonfinite = digest_of((name, checkpoint[name]) for name in sorted(self._zoo.arch.names))
