"""Digests of weights that lie in files of others: made when all of their bytes are read, and compared from then on.

When files are linked their weights are not read, so that the first reading trusts them: what it finds is recorded as
rows of ``derived/digests``. Everything that stores something derived of the weights reads and compares them first.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.checks import MAX_PROBLEMS
from ckptzoo.format.maintenance import add_rows
from ckptzoo.format.reader import Contents
from ckptzoo.format.referenced_files import ReferencedFiles
from ckptzoo.schema import layout
from ckptzoo.text import size

_STEP = "Restore the bytes that were there, or link what is there now into a new zoo."
_WAITING = 32
"""Threads that read files on other machines."""
_AT_ONCE = 256
"""Checkpoints that wait for threads."""


@dataclass(frozen=True)
class ReferenceSummary:
    """The checkpoints, files and blocks that a zoo refers to; ``unchecked`` blocks were never read and compared."""

    checkpoints: int
    files: int
    nbytes: int
    blocks: int
    unchecked: int

    def __str__(self) -> str:
        of = f"{self.files:,} files" if self.files != 1 else "one file"
        checked = f"{self.unchecked:,} of {self.blocks:,} blocks have no digest yet" if self.unchecked else ""
        return (
            f"{size(self.nbytes)} of weights in {of} of others; {checked or f'all {self.blocks:,} blocks have digests'}"
        )


@dataclass(frozen=True)
class CheckedPart:
    """The problems of a part's weights, and ``finite`` (K,) whether all numbers of each checkpoint are."""

    problems: list[Problem]
    finite: NDArray[np.bool_]


def reference_summary(contents: Contents) -> ReferenceSummary | None:
    """Count what a zoo refers to; None for one that holds its weights. No file is opened."""
    if not contents.identity.references:
        return None
    references = contents.references
    blocks = np.array([len(item.blocks(contents.architecture)) for item in references.layouts], np.int64)
    of_rows = np.bincount(references.rows, blocks[references.layout_of], len(contents.raw.rows)).astype(np.int64)
    places: Iterable[Any] = zip(references.source_of.tolist(), references.paths, strict=True)
    if references.is_remote.any():
        places = zip(places, (file.address for file in references.remote_files), strict=True)
    files = len(set(places))
    known = contents.block_digests
    checked = 0
    for start, run in contents.raw.rows.runs(["id"]):
        own = of_rows[start : start + len(run)].tolist()
        checked += sum(count for name, count in zip(run["id"].to_pylist(), own, strict=True) if name in known)
    total = int(of_rows.sum())
    count = len(contents.raw.rows)
    return ReferenceSummary(count, files, count * contents.architecture.nbytes, total, total - checked)


def check_part(
    contents: Contents,
    number: int,
    rows: NDArray[np.int64] | None = None,
    tensors: Collection[str] = (),
    *,
    was_read: Callable[[], None] | None = None,
) -> CheckedPart:
    """Read all weights of a raw part, compare those with a digest, and record the digests of the others.

    ``number`` is the part's among the raw ones. A folder that cannot be written gets no digests. With ``rows`` only
    blocks of these rows of the part are read, that hold one of ``tensors`` and have a digest. ``was_read`` is called
    after each checkpoint.
    """
    part = contents.raw.parts[number]
    start = sum(before.rows for before in contents.raw.parts[:number])
    places = np.arange(part.rows) if rows is None else rows
    ids = contents.raw.rows.take(["id"], start + places)["id"].to_pylist()
    known, problems, new = contents.block_digests, list[Problem](), list[dict[str, Any]]()
    finite = np.zeros(len(places), np.bool_)
    if rows is not None:
        with_digest = [at for at, name in enumerate(ids) if name in known]
        places, ids = places[with_digest], [ids[at] for at in with_digest]
    now, wanted = datetime.now(UTC), None if rows is None else frozenset(tensors)
    for at, (found, error) in enumerate(_read(contents, start + places, wanted)):
        if error is not None:
            problems += error.problems
        elif (before := known.get(ids[at])) is None:
            digests, finite[at] = "".join(item.digest.hex() for item in found), all(item.finite for item in found)
            new.append({"id": ids[at], "unit": part.digest, "created": now, "blocks": digests, "finite": finite[at]})
        else:
            finite[at] = all(item.finite for item in found)
            problems += _differences(contents, ids[at], before, found)
        del problems[MAX_PROBLEMS:]
        if was_read is not None:
            was_read()
    if new and contents.files.here is not None:
        with suppress(OSError):
            add_rows(contents.root, layout.DIGESTS, new, {})
    return CheckedPart(problems, finite)


def has_known_digests(contents: Contents, files: ReferencedFiles, piece: int) -> bool:
    """Read the blocks of a reference by ``files``; whether all have the digests that are known of their checkpoint."""
    references, row = contents.references, int(contents.references.rows[piece])
    (name,) = contents.raw.rows.take(["id"], np.array([row]))["id"].to_pylist()
    if (known := contents.block_digests.get(name)) is None:
        return False
    layouts = {
        at: references.layouts[references.kinds[at][1]] for at in np.flatnonzero(references.rows == row).tolist()
    }
    before = sum(len(item.blocks(contents.architecture)) for at, item in layouts.items() if at < piece)
    blocks = layouts[piece].blocks(contents.architecture)
    found = "".join(digest.hex() for digest, _ in files.blocks(piece, blocks))
    return found == known[64 * before :][: 64 * len(blocks)]


class _FoundBlock(NamedTuple):
    """A block of a checkpoint: the reference that has it, its number, its digest, and whether it is finite."""

    piece: int
    number: int
    digest: bytes
    finite: bool


def _differences(contents: Contents, name: str, before: str, found: Sequence[_FoundBlock]) -> Iterator[Problem]:
    """Yield the first block of a checkpoint that has another digest than it had."""
    for block in found:
        digest, known = block.digest.hex(), before[64 * block.number :][:64]
        if digest != known:
            what = f"sha256 of block {block.number} of the weights of {name!r}"
            yield Problem(contents.referenced_files.location(block.piece), what, known, digest, _STEP)
            return


def _read(
    contents: Contents, rows: NDArray[np.int64], tensors: Collection[str] | None
) -> Iterator[tuple[list[_FoundBlock], ZooError | None]]:
    """Yield the blocks of some rows of the raw tree, or the error, in order; those with some tensors, or all."""
    references, files = contents.references, contents.referenced_files
    order = np.argsort(references.rows, kind="stable")
    of_rows = references.rows[order]
    first, behind = of_rows.searchsorted(rows, side="left"), of_rows.searchsorted(rows, side="right")

    def read(at: int) -> tuple[list[_FoundBlock], ZooError | None]:
        found, before = list[_FoundBlock](), 0
        try:
            for piece in order[first[at] : behind[at]].tolist():
                blocks = references.layouts[references.kinds[piece][1]].blocks(contents.architecture)
                wanted = [
                    number
                    for number, block in enumerate(blocks)
                    if tensors is None or any(place.tensor in tensors for place in block)
                ]
                read = files.blocks(piece, [blocks[number] for number in wanted])
                found += [_FoundBlock(piece, before + number, *item) for number, item in zip(wanted, read, strict=True)]
                before += len(blocks)
        except ZooError as error:
            return found, error
        return found, None

    # hashlib and preadv let go of the interpreter while they work; other machines are waited for
    with ThreadPoolExecutor(_WAITING if references.is_remote.any() else os.cpu_count()) as pool:
        for begin in range(0, len(rows), _AT_ONCE):
            yield from pool.map(read, range(begin, min(begin + _AT_ONCE, len(rows))))
