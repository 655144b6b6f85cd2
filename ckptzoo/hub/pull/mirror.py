"""A pull that leaves nothing out but variants: parts are copied byte for byte, each checked before it appears."""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format import limits, snapshot
from ckptzoo.format.checks import geometry_problems, require_bytes, row_limits
from ckptzoo.format.durable import locked, sync, write_file
from ckptzoo.format.files import Files, Folder
from ckptzoo.format.header import lay_out
from ckptzoo.format.landscapes import read_landscapes
from ckptzoo.format.maintenance import LISTING
from ckptzoo.format.part import Part, decode_index, decode_rows, filled_rows, part_digest
from ckptzoo.format.reader import list_trees, read_documents
from ckptzoo.format.references import digest_of_file
from ckptzoo.format.releases import read_releases
from ckptzoo.format.reproductions import read_reproductions
from ckptzoo.format.sources import forget, remembered, remembered_servers
from ckptzoo.format.tree import INDEX_SCHEMA, LazyTable, Tree
from ckptzoo.hub.pull.destination import (
    BlockCache,
    Destination,
    PulledParts,
    explain_disk_full,
    locked_destination,
    move_into_zoo,
    require_disk_space,
)
from ckptzoo.hub.pull.page import read_card_files, read_existing, write_card_files, write_if_changed
from ckptzoo.hub.pull.selection import ProgressMeter, PullSelection, refuse_local_references
from ckptzoo.hub.pull.splits import read_splits, write_landscapes, write_marks, write_releases, write_splits
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.remote import Remote
from ckptzoo.remote.stores import decode
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.card import may_change
from ckptzoo.schema.documents import digest_of
from ckptzoo.schema.layout import INDEX, METADATA, REFERENCES, SHARD_NAME, Span
from ckptzoo.text import Progress

FETCH_BYTES = 256 * 2**20
FETCH_PARTS = 64
"""Parts are fetched together up to these limits, so that small ones do not cost a round trip each."""
_CHUNK_BYTES = 8 * 2**20
"""Bytes that are hashed, or fetched outside of blocks, at a time."""
_STAT_BLOCK = 512
"""The unit of ``os.stat_result.st_blocks`` in bytes, whatever the file system's block size."""
_ROWS_ALONE = tuple(f"{layout.DERIVED}/{name}" for name in layout.ROWS_ALONE)
_STEP = "Repeat the pull; if that does not help, tell whoever publishes the zoo."


def mirror(
    files: RemoteFiles, selection: PullSelection, root: Path, progress: Progress | None
) -> tuple[list[str], int, int]:
    """Copy what the folder lacks; return the parts that came, how many were there, and the bytes fetched."""
    identity, _, _ = read_documents(files)
    refuse_local_references(identity, files)
    trees = list_trees(files)
    known = [name.partition("/")[2] for name in trees if name not in (layout.PARTS, *_ROWS_ALONE)]
    named = {name: layout.set_name(name) for name in known}
    gauges = selection.gauges([name for name in known if named[name] is None], location=files.name)
    sets = selection.sets([inputs for inputs in named.values() if inputs is not None], location=files.name)
    derived = (*gauges, *map(layout.predictions_name, sets))
    wanted_trees = [layout.PARTS, *_ROWS_ALONE, *(f"{layout.DERIVED}/{name}" for name in derived)]
    documents, card_files = read_existing(files, layout.DOCUMENTS), read_card_files(files)
    splits, releases = read_splits(files, identity), read_releases(files, identity)
    marks, figures = read_reproductions(files, identity), read_landscapes(files, identity)
    listing = read_existing(files, (LISTING,)) if selection.is_everything else {}
    stored_selection = {**selection.to_json(), "zoo": digest_of(identity.to_json())}
    partial = not selection.is_everything
    with locked_destination(root, documents[layout.ZOO], stored_selection, partial=partial) as destination:
        remote = files.remote
        # Blocks go straight to their places in the staged shards, which is where an interrupted pull finds them.
        remote.cache = blocks = BlockCache(destination.blocks, remote.cache, keeps=False)
        if identity.references and not (root / layout.ZOO).exists():
            # what was linked into a zoo that was here before says nothing of the one that comes
            forget(root)
        # in the order of DOCUMENTS: from the last one on the folder is a zoo
        for name, data in documents.items():
            if not (root / name).exists():
                write_file(root / name, data)
        pulled = PulledParts(root)
        already = pulled.paths()
        available = [f"{tree}/{name}" for tree in wanted_trees for name in trees.get(tree, ())]
        paths = [path for path in available if path not in already]
        if identity.references and any(path.startswith(f"{layout.PARTS}/") for path in paths):
            _refuse_linked(root)
        write_splits(root, splits, identity)
        total = shard_bytes(remote, paths)
        needed = max(0, total - _allocated_bytes(destination.staged_parts))
        require_disk_space(root, needed)
        with explain_disk_full(root, needed):
            copier = PartCopier(remote, blocks, files, destination.staged_parts, ProgressMeter(total, progress))
            for group in grouped(remote, paths):
                for part, rows in copier.fetch(group):
                    with locked(root):
                        pulled.add(part.tree, rows)
                        move_into_zoo(destination.staged_parts / part.path, root / part.path)
            if selection.is_everything:
                _copy_snapshot(files, destination)
            write_releases(root, releases)  # behind the parts, of which the folder now has those that they name
            write_marks(root, marks)
            write_landscapes(root, figures)
            write_card_files(files, card_files, root, selection, checkpoints=pulled.count(layout.PARTS))
            if selection.is_everything:
                _copy_listing(listing.get(LISTING, b""), root)
        destination.remove_temporary()
    return paths, len(available) - len(paths), blocks.fetched


def _refuse_linked(root: Path) -> None:
    """Raise ``ZooError`` where sources were linked into a folder: references that come are those of somebody else, and
    would be followed wherever a source has the name of one that the user linked.
    """
    if known := sorted({*remembered(root), *remembered_servers(root)}):
        expected, got = "one into which nothing was linked", f"one with the linked source {known[0]!r}"
        step = "Pull into another folder; open that with follow=True, or a folder, where you trust its references."
        raise ZooError(Problem(str(root), "a folder to pull references into", expected, got, step))


def grouped(remote: Remote, paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield parts, by their paths, in the groups in which they are fetched."""
    group: list[str] = []
    total = 0
    for path in paths:
        tables = (remote.entries.get(f"{path}/{name}") for name in (INDEX, METADATA))
        nbytes = shard_bytes(remote, [path]) + sum(entry.size for entry in tables if entry is not None)
        if group and (total + nbytes > FETCH_BYTES or len(group) == FETCH_PARTS):
            yield group
            group, total = [], 0
        group.append(path)
        total += nbytes
    if group:
        yield group


def shard_bytes(remote: Remote, paths: Iterable[str]) -> int:
    """Return bytes of the shards of these parts."""
    folders = set(paths)
    return sum(
        entry.size
        for name, entry in remote.entries.items()
        if name.rpartition("/")[0] in folders and SHARD_NAME.fullmatch(name.rpartition("/")[2])
    )


def _allocated_bytes(root: Path) -> int:
    """Return bytes on the disk that unfinished parts take already."""
    paths = (Path(folder) / name for folder, _, names in os.walk(root) for name in names)
    return sum(path.stat().st_blocks * _STAT_BLOCK for path in paths)


def _copy_snapshot(files: RemoteFiles, destination: Destination) -> None:
    """Copy the newest snapshot that is sound, in place of those that cover no more."""
    for name in snapshot.listed(files):
        path = f"{layout.SNAPSHOTS}/{name}"
        target, staged = destination.root / path, destination.staged_parts / path
        if not target.is_file():
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(files.read(path, max_bytes=limits.MAX_FILE))
            try:
                snapshot.Snapshot(Folder(destination.staged_parts), name).check()
            except IntegrityError:
                continue
            target.parent.mkdir(exist_ok=True)
            sync(staged)
            staged.replace(target)
            sync(target.parent)
        for other in snapshot.listed(Folder(destination.root)):
            if other != name and other[:6] <= name[:6]:  # the first six characters count the parts that it covers
                (target.parent / other).unlink(missing_ok=True)
        return


def _copy_listing(listing: bytes, root: Path) -> None:
    """Copy the listing for web servers, unless it names files that are not here; remove an older one that does."""
    path = root / LISTING
    for data in (listing, path.read_bytes() if path.is_file() else b""):
        try:
            entries, _ = decode(data, location=LISTING)
        except IntegrityError:
            continue
        sizes = {name: entry.size for name, entry in entries.items() if not may_change(name)}
        if all((root / name).is_file() and (root / name).stat().st_size == size for name, size in sizes.items()):
            write_if_changed(path, data)
            return
    path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Shard:
    """One shard of a part that is being copied, by its path from the zoo's folder.

    ``nbytes`` and ``sha256`` are of the whole file; ``blocks`` are those of its tensors, by offset; ``header`` has the
    bytes before them where our own writer made the shard.
    """

    name: str
    nbytes: int
    sha256: bytes
    blocks: tuple[Span, ...]
    header: bytes

    @property
    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield bytes that belong to no block, in pieces of at most 8 MiB."""
        position = 0
        for start, stop in (*((block.start, block.stop) for block in self.blocks), (self.nbytes, self.nbytes)):
            yield from ((low, min(low + _CHUNK_BYTES, start)) for low in range(position, start, _CHUNK_BYTES))
            position = max(position, stop)

    @property
    def is_ours(self) -> bool:
        """Whether our own writer may have made it: there is nothing but a header of that length outside the blocks."""
        return list(self.gaps) == [(0, len(self.header))]


def shards_of(part: Part, index: pa.Table) -> list[Shard]:
    """Return the shards of a part whose index was found sound."""
    file_rows: dict[str, Mapping[str, Any]] = {}
    blocks: dict[str, list[Span]] = {}
    tensors: dict[str, dict[str, Tensor]] = {}
    # an index may list the blocks of a shard in any order; a header of ours follows the bytes
    for row in sorted(index.to_pylist(), key=lambda row: (row["file"], row["tensor"] is not None, row["offset"])):
        file, name = row["file"], f"{part.path}/{row['file']}"
        if row["tensor"] is None:
            file_rows[file], blocks[file], tensors[file] = row, [], {}
        else:
            blocks[file].append(Span(name, row["offset"], row["offset"] + row["nbytes"], row["sha256"]))
            tensors[file].setdefault(row["tensor"], Tensor(row["tensor"], tuple(row["shape"][1:]), row["dtype"]))
    shards: list[Shard] = []
    for file, row in file_rows.items():
        rows, metadata = row["row_stop"] - row["row_start"], {"ckptzoo": file.rpartition("-")[0]}
        header = lay_out(list(tensors[file].values()), rows, metadata).header
        shards.append(Shard(f"{part.path}/{file}", row["nbytes"], row["sha256"], tuple(blocks[file]), header))
    return shards


class PartCopier:
    """Copies parts into a folder, which may hold pieces of them from an earlier call.

    ``files`` is the zoo of ``remote`` as the format reads it. ``root`` gets ``<tree>/<name>/...``; existing blocks with
    the right digest are not fetched again. ``meter`` counts what was put in place, and what existed. Raises
    ``IntegrityError`` where the zoo's documents are not right.
    """

    def __init__(self, remote: Remote, blocks: BlockCache, files: Files, root: Path, meter: ProgressMeter) -> None:
        self._remote, self._blocks, self._files, self._root, self._meter = remote, blocks, files, root, meter
        self._identity, self._arch, self._symmetry = read_documents(files)

    def fetch(self, paths: Sequence[str]) -> list[tuple[Part, pa.Table]]:
        """Fetch parts, ``<tree>/<name>``; return each with its rows.

        Raises ``IntegrityError`` where the bytes are not those that the part's index says, or the index is not sound.
        """
        raw = (INDEX, METADATA, REFERENCES) if self._identity.references else (INDEX, METADATA)
        files = {path: raw if path.startswith(f"{layout.PARTS}/") else (INDEX, METADATA) for path in paths}
        names = [f"{path}/{file}" for path in paths for file in files[path]]
        tables = dict(zip(names, self._files.read_many(names), strict=True))
        parts: list[tuple[Part, pa.Table]] = []
        shards: list[Shard] = []
        for path in paths:
            part, rows, index = self._decode(path, tables[f"{path}/{INDEX}"], tables[f"{path}/{METADATA}"])
            references = tables.get(f"{path}/{REFERENCES}")
            if references is not None and (digest := digest_of_file(references)) != part.facts.get("references"):
                location = f"{self._files.name}/{path}/{REFERENCES}"
                raise IntegrityError(Problem(location, "digest", str(part.facts.get("references")), digest, _STEP))
            shards += shards_of(part, index)
            parts.append((part, rows))
        for name, data in tables.items():
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
            (self._root / name).write_bytes(data)
        self._fill(shards)
        return parts

    def _decode(self, path: str, index_bytes: bytes, metadata: bytes) -> tuple[Part, pa.Table, pa.Table]:
        """Return a part, its rows and its index, where both tables and the sizes of its shards agree."""
        tree, _, name = path.rpartition("/")
        location = f"{self._files.name}/{path}"
        limits = row_limits(self._arch, self._symmetry)
        part, index = decode_index(index_bytes, tree, name, location=f"{location}/{INDEX}", blocks_a_row=limits.blocks)
        require_bytes(self._files, part, index, limits.nbytes)
        rows = decode_rows(metadata, part, location=f"{location}/{METADATA}")
        if (digest := part_digest(rows, index, part.facts)) != part.digest:
            raise IntegrityError(Problem(location, "digest of the part", part.digest, digest, _STEP))
        part_numbers = pa.repeat(pa.scalar(0, pa.int32()), len(index))  # the only part of a tree of one
        blocks = LazyTable.of(index.append_column(INDEX_SCHEMA.field("part"), part_numbers))
        single = Tree((part,), LazyTable.of(filled_rows(rows, part, location=location)), blocks)
        if problems := geometry_problems(self._files, self._arch, self._symmetry, single):
            raise IntegrityError(problems)
        return part, rows, index

    def _fill(self, shards: Sequence[Shard]) -> None:
        """Put the blocks in their places as they come, then what is between them; then check every whole file."""
        # hashlib releases the interpreter's lock while it hashes
        with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
            try:
                missing: list[Span] = []
                for blocks in pool.map(
                    lambda shard: missing_blocks(shard, self._root / shard.name, self._meter), shards
                ):
                    missing += blocks
                with closing(self._remote.as_ready(missing)) as fetched:
                    for position, data in fetched:
                        write_at(self._root / missing[position].name, missing[position].start, data)
                        self._meter.add(len(data))
                if problems := [problem for problem in pool.map(self._finish, shards) if problem is not None]:
                    raise IntegrityError(problems)
            # an interrupt too: leaving the pool waits for what is queued, unless it is cancelled
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _finish(self, shard: Shard) -> Problem | None:
        """Check a shard whose blocks are there, completed with our own writer's header, else with what is fetched."""
        path, gaps = self._root / shard.name, list(shard.gaps)
        if shard.is_ours:
            write_at(path, 0, shard.header)
        digest = sha256_of(path, 0, shard.nbytes)
        # Bytes outside of blocks have no digest of their own, so a wrong one shows only here; fetch them once more.
        for _ in range(2):
            if digest != shard.sha256:
                for start, stop in gaps:
                    data = self._remote.span(shard.name, start, stop)
                    self._blocks.count(len(data))
                    write_at(path, start, data)
                digest = sha256_of(path, 0, shard.nbytes)
        self._meter.add(sum(stop - start for start, stop in gaps))
        if digest == shard.sha256:
            return None
        # all of it may be wrong: the next call begins the shard again
        path.unlink()
        location = f"{self._files.name}/{shard.name}"
        return Problem(location, "sha256 of the whole file", shard.sha256.hex(), digest.hex(), _STEP)


def missing_blocks(shard: Shard, path: Path, meter: ProgressMeter) -> list[Span]:
    """Return the blocks that are not in their places; the file gets its whole size, and its space on the disk."""
    if not path.is_file() or path.stat().st_size != shard.nbytes:
        with path.open("wb") as file:
            try:
                # takes the space now, so that a full disk shows before anything is fetched
                os.posix_fallocate(file.fileno(), 0, shard.nbytes)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system cannot reserve space
                    raise
                file.truncate(shard.nbytes)
        return list(shard.blocks)
    missing: list[Span] = []
    for block in shard.blocks:
        if sha256_of(path, block.start, block.stop) == block.sha256:
            meter.reduce_total(block.stop - block.start)
        else:
            missing.append(block)
    return missing


def write_at(path: Path, position: int, data: bytes | memoryview) -> None:
    """Write bytes at a position of a file that exists."""
    remaining = memoryview(data)
    with path.open("r+b", buffering=0) as file:
        while remaining:
            written = os.pwrite(file.fileno(), remaining, position)  # may write less than it was given
            remaining, position = remaining[written:], position + written


def sha256_of(path: Path, start: int, stop: int) -> bytes:
    """Return the sha256 of bytes ``start`` to ``stop`` of a file, in bounded memory."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while start < stop and (data := os.pread(file.fileno(), min(_CHUNK_BYTES, stop - start), start)):
            digest.update(data)
            start += len(data)
    return digest.digest()
