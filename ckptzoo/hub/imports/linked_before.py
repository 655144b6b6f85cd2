"""Which files are those that a zoo refers to, after they were moved, copied, restored or changed."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from ckptzoo.errors import ZooError
from ckptzoo.format.digests import has_known_digests
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents
from ckptzoo.format.referenced_files import ReferencedFiles
from ckptzoo.format.references import inode_of
from ckptzoo.format.sources import remembered_files
from ckptzoo.hub.imports.mapped import MappedFile

_COARSE = 2 * 10**9
"""Nanoseconds by which archives make a file older: zip has times of two seconds."""


class LinkedBefore:
    """The references that a zoo has, and which files are still those that were linked."""

    def __init__(self, zoo: Path) -> None:
        self._zoo, self._contents = zoo, read_contents(Folder(zoo))
        self._references = self._contents.references
        self.sources = frozenset(self._references.sources)
        self.accepted = remembered_files(zoo)

    @cached_property
    def _ids(self) -> list[str]:
        return self._contents.raw.rows["id"].to_pylist()

    @cached_property
    def _pieces(self) -> dict[str, list[int]]:
        """The references of each checkpoint, in order."""
        found = dict[str, list[int]]()
        for piece, row in enumerate(self._references.rows.tolist()):
            found.setdefault(self._ids[row], []).append(piece)
        return found

    @cached_property
    def _labels(self) -> dict[str, dict[str, None]]:
        labels, found = self._contents.raw.rows["source"].to_pylist(), dict[str, dict[str, None]]()
        for row, (name, _) in zip(self._references.rows.tolist(), self._references.kinds, strict=True):
            found.setdefault(name, {})[labels[row] or ""] = None
        return found

    def labels(self, name: str) -> Collection[str]:
        """The sources that rows name whose files are those of a source."""
        return self._labels[name]

    def _found(self, name: str, place: Path) -> Iterator[tuple[int, os.stat_result | None]]:
        """Yield the references of a source, each with what the system says of its file in a place."""
        folder, references = place.is_dir(), self._references
        own = (references.source_of == references.sources.index(name)) & ~references.is_remote
        for piece in np.flatnonzero(own).tolist():
            path, status = references.paths[piece], None
            if folder or path == place.name:
                with suppress(OSError, ValueError):
                    status = os.lstat(place / path if folder else place)
            yield piece, status

    def _is_same(self, piece: int, status: os.stat_result) -> bool:
        place = self._references.kinds[piece][0], self._references.paths[piece]
        facts = self._references.facts[piece][2], *self.accepted.get(place, ())
        is_known = facts == (status.st_size, inode_of(status), status.st_mtime_ns)
        return is_known or self._references.is_same(piece, status)

    def is_at(self, name: str, place: Path, *, by_inode: bool = True) -> bool:
        """Whether a file of a source lies in a place as it was linked, or one of its size and time."""
        facts = self._references.facts
        return any(
            status
            and (
                self._is_same(piece, status)
                or (not by_inode and (status.st_size, status.st_mtime_ns) == (facts[piece][2], facts[piece][4]))
            )
            for piece, status in self._found(name, place)
        )

    def may_be_at(self, name: str, place: Path) -> bool:
        """Whether a place may have the files of a source, by names and sizes: all, or some with digests."""
        rows, found = self._references.rows.tolist(), list(self._found(name, place))
        like = [piece for piece, status in found if status and status.st_size == self._references.facts[piece][2]]
        if like and len(like) == len(found):
            return True
        return any(self._ids[rows[piece]] in self._contents.block_digests for piece in like)

    def is_older(self, id: str, files: Mapping[str, MappedFile]) -> bool:
        """Whether files are older than those of a checkpoint, so that they are no copies of these."""
        times = [(piece, files.get(self._references.paths[piece])) for piece in self._pieces[id]]
        return any(
            file is not None and file.status.st_mtime_ns < self._references.facts[piece][4] - _COARSE
            for piece, file in times
        )

    def compared(self, name: str, place: Path) -> tuple[bool, dict[str, tuple[int, int]], list[str]]:
        """Compare the files of a source with those in a place.

        Returns whether one is as it was linked; the inode and the time, by path, of those that have other times and
        weights with the digests that are known; and the paths of others that changed or are not there.
        """
        references, is_here, changed = self._references, False, dict[str, list[int]]()
        accepted, found = dict[str, tuple[int, int]](), list[str]()
        for piece, status in self._found(name, place):
            if status is not None and self._is_same(piece, status):
                is_here = True
                continue
            changed.setdefault(references.paths[piece], []).append(piece)
            if status is not None and status.st_size == references.facts[piece][2]:
                accepted[references.paths[piece]] = inode_of(status), status.st_mtime_ns
        if changed:
            claimed = {(name, path): facts for path, facts in accepted.items()}
            files = ReferencedFiles(references, {name: place}, str(self._zoo), accepted=claimed)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                equal = pool.map(lambda path: path in accepted and self._hold(changed[path], files), changed)
                found = [path for path, is_equal in zip(changed, equal, strict=True) if not is_equal]
            for path in found:
                accepted.pop(path, None)
        return is_here, accepted, found

    def _hold(self, pieces: Sequence[int], files: ReferencedFiles) -> bool:
        """Whether all blocks of some references have digests, and these."""
        try:
            return all(has_known_digests(self._contents, files, piece) for piece in pieces)
        except ZooError:
            return False

    def holds(self, id: str, files: Mapping[str, MappedFile], place: Path) -> bool | None:
        """Whether a checkpoint's weights are those of files in a place, by path; None where nothing recorded tells."""
        references, pieces = self._references, self._pieces[id]
        if all(any(self._is_same(piece, file.status) for file in files.values()) for piece in pieces):
            return True
        own = [(piece, files.get(references.paths[piece])) for piece in pieces]
        if any(file is not None and file.status.st_size != references.facts[piece][2] for piece, file in own):
            return False
        if id not in self._contents.block_digests or any(file is None for _, file in own):
            return None
        claimed = {
            (references.kinds[piece][0], file.path): (inode_of(file.status), file.status.st_mtime_ns)
            for piece, file in own
            if file is not None
        }
        folders = {references.kinds[piece][0]: place for piece in pieces}
        return self._hold(pieces, ReferencedFiles(references, folders, str(self._zoo), accepted=claimed))
