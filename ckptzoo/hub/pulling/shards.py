"""Shards that are being copied: what an index says of each, and what of it lies on this disk."""

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ckptzoo.format.header import lay_out
from ckptzoo.format.part import Part
from ckptzoo.hub.pulling.meter import Meter
from ckptzoo.spec.architecture import Tensor
from ckptzoo.spec.span import Span

_PIECE = 8 * 2**20


@dataclass(frozen=True)
class Shard:
    """One shard of a part that is being copied.

    Parameters
    ----------
    name : its path from the zoo's folder.
    nbytes, sha256 : of the whole file.
    blocks : of its tensors, by offset.
    header : what precedes them where our own writer made the shard.
    """

    name: str
    nbytes: int
    sha256: bytes
    blocks: tuple[Span, ...]
    header: bytes

    @property
    def gaps(self) -> Iterator[tuple[int, int]]:
        """Bytes that belong to no block, in pieces of 8 MiB."""
        at = 0
        for start, stop in (*((block.start, block.stop) for block in self.blocks), (self.nbytes, self.nbytes)):
            yield from ((low, min(low + _PIECE, start)) for low in range(at, start, _PIECE))
            at = max(at, stop)

    @property
    def is_ours(self) -> bool:
        """Whether our own writer may have made it: nothing but a header of that length lies between the blocks."""
        return list(self.gaps) == [(0, len(self.header))]


def shards_of(part: Part, index: pa.Table) -> list[Shard]:
    """The shards of a part whose index was found sound."""
    whole: dict[str, Mapping[str, Any]] = {}
    blocks: dict[str, list[Span]] = {}
    tensors: dict[str, dict[str, Tensor]] = {}
    for row in index.to_pylist():
        file, name = row["file"], f"{part.path}/{row['file']}"
        if row["tensor"] is None:
            whole[file], blocks[file], tensors[file] = row, [], {}
        else:
            blocks[file].append(Span(name, row["offset"], row["offset"] + row["nbytes"], row["sha256"]))
            tensors[file].setdefault(row["tensor"], Tensor(row["tensor"], tuple(row["shape"][1:]), row["dtype"]))
    made: list[Shard] = []
    for file, row in whole.items():
        ordered = tuple(sorted(blocks[file], key=lambda block: block.start))
        rows, metadata = row["row_stop"] - row["row_start"], {"ckptzoo": file.rpartition("-")[0]}
        header = lay_out(list(tensors[file].values()), rows, metadata).header
        made.append(Shard(f"{part.path}/{file}", row["nbytes"], row["sha256"], ordered, header))
    return made


def lacking(shard: Shard, path: Path, meter: Meter) -> list[Span]:
    """The blocks that are not in their places; the file gets its whole size, and its room on the disk."""
    if not path.is_file() or path.stat().st_size != shard.nbytes:
        with path.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, shard.nbytes)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system cannot
                    raise
                file.truncate(shard.nbytes)
        return list(shard.blocks)
    made: list[Span] = []
    for block in shard.blocks:
        if sha256(path, block.start, block.stop) == block.sha256:
            meter.there(block.stop - block.start)
        else:
            made.append(block)
    return made


def put(path: Path, at: int, data: bytes | memoryview) -> None:
    """Write bytes at their place in a file that is there."""
    left = memoryview(data)
    with path.open("r+b", buffering=0) as file:
        while left:
            written = os.pwrite(file.fileno(), left, at)
            left, at = left[written:], at + written


def sha256(path: Path, start: int, stop: int) -> bytes:
    """The sha256 of bytes ``start`` to ``stop`` of a file, in bounded memory."""
    made = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while start < stop and (data := os.pread(file.fileno(), min(_PIECE, stop - start), start)):
            made.update(data)
            start += len(data)
    return made.digest()
