"""A pull that leaves no tensor and no checkpoint out: every part is the same bytes as afar.

Parts as they are afar, byte by byte, each checked before it appears.

Shards that are being copied: what an index says of each, and what of it lies on this disk.
"""

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

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import snapshot, table
from ckptzoo.format.checks import geometry_problems
from ckptzoo.format.durable import locked, sync, write_file
from ckptzoo.format.files import Files, Folder
from ckptzoo.format.header import lay_out
from ckptzoo.format.maintenance import LISTING
from ckptzoo.format.part import Part, decode_index, decode_rows, filled_rows, part_digest
from ckptzoo.format.reader import list_trees, read_documents
from ckptzoo.format.tree import INDEX_SCHEMA, LazyTable, Tree
from ckptzoo.hub.pull.destination import (
    BlockCache,
    Destination,
    PulledParts,
    explain_disk_full,
    locked_destination,
    need_room,
    publish,
)
from ckptzoo.hub.pull.page import read_cards, read_some, replace, write_cards
from ckptzoo.hub.pull.selection import Meter, PullSelection
from ckptzoo.loader.remote_files import RemoteFiles
from ckptzoo.remote import Remote
from ckptzoo.remote.stores import decode
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Tensor
from ckptzoo.schema.card import may_change
from ckptzoo.schema.documents import digest_of
from ckptzoo.schema.layout import INDEX, METADATA, SHARD_NAME, Span
from ckptzoo.text import Progress

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


GROUP_BYTES = 256 * 2**20
GROUP_PARTS = 64
"""Parts are fetched together up to so many bytes and so many parts, so that small ones do not cost a wait each."""
_STEP = "Repeat the pull; if that does not help, tell whoever publishes the zoo."


def groups(remote: Remote, paths: Iterable[str]) -> Iterator[list[str]]:
    """Parts, by their paths, in the groups in which they are fetched."""
    group: list[str] = []
    total = 0
    for path in paths:
        nbytes = nbytes_of(remote, [path])
        if group and (total + nbytes > GROUP_BYTES or len(group) == GROUP_PARTS):
            yield group
            group, total = [], 0
        group.append(path)
        total += nbytes
    if group:
        yield group


def nbytes_of(remote: Remote, paths: Iterable[str]) -> int:
    """Bytes of the shards of these parts."""
    wanted = set(paths)
    return sum(
        entry.size
        for name, entry in remote.entries.items()
        if name.rpartition("/")[0] in wanted and SHARD_NAME.fullmatch(name.rpartition("/")[2])
    )


class Copier:
    """Fetches parts into a folder, where pieces of them may lie.

    Parameters
    ----------
    remote, blocks : where from.
    files : the same zoo, as the format reads it.
    root : gets ``<tree>/<name>/...``; what is there and right is not fetched again.
    meter : is told what has come to its place, and what was there.

    Raises
    ------
    IntegrityError
        The zoo's documents are not right.
    """

    def __init__(self, remote: Remote, blocks: BlockCache, files: Files, root: Path, meter: Meter) -> None:
        self._remote, self._blocks, self._files, self._root, self._meter = remote, blocks, files, root, meter
        _, self._arch, self._symmetry = read_documents(files)

    def fetch(self, paths: Sequence[str]) -> list[tuple[Part, pa.Table]]:
        """Fetch parts, ``<tree>/<name>``; returns each with its rows.

        Raises
        ------
        IntegrityError
            What came is not what the part's index says, or the index is not sound.
        """
        names = [f"{path}/{file}" for path in paths for file in (INDEX, METADATA)]
        data = dict(zip(names, self._files.read_many(names), strict=True))
        found: list[tuple[Part, pa.Table]] = []
        shards: list[Shard] = []
        for path in paths:
            part, rows, index = self._sound(path, data[f"{path}/{INDEX}"], data[f"{path}/{METADATA}"])
            shards += shards_of(part, index)
            found.append((part, rows))
        for name, content in data.items():
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
            (self._root / name).write_bytes(content)
        self._fill(shards)
        return found

    def _sound(self, path: str, index: bytes, metadata: bytes) -> tuple[Part, pa.Table, pa.Table]:
        """A part, its rows and its index, when both tables and the sizes of its shards agree."""
        tree, _, name = path.rpartition("/")
        where = f"{self._files.name}/{path}"
        part, listed = decode_index(index, tree, name, location=f"{where}/{INDEX}")
        rows = decode_rows(metadata, part, location=f"{where}/{METADATA}")
        if (digest := part_digest(rows, listed, part.facts)) != part.digest:
            raise IntegrityError(Problem(where, "digest of the part", part.digest, digest, _STEP))
        zeros = pa.repeat(pa.scalar(0, pa.int32()), len(listed))
        blocks = LazyTable.of(listed.append_column(INDEX_SCHEMA.field("part"), zeros))
        single = Tree((part,), LazyTable.of(filled_rows(rows, part, location=where)), blocks)
        if problems := geometry_problems(self._files, self._arch, self._symmetry, single):
            raise IntegrityError(problems)
        return part, rows, listed

    def _fill(self, shards: Sequence[Shard]) -> None:
        """Bring shards into their places: blocks as they come, then what lies between; then the whole is checked."""
        with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
            try:
                wanted: list[Span] = []
                for some in pool.map(lambda shard: lacking(shard, self._root / shard.name, self._meter), shards):
                    wanted += some
                with closing(self._remote.as_ready(wanted)) as coming:
                    for place, data in coming:
                        put(self._root / wanted[place].name, wanted[place].start, data)
                        self._meter.moved(len(data))
                if problems := [problem for problem in pool.map(self._settle, shards) if problem is not None]:
                    raise IntegrityError(problems)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _settle(self, shard: Shard) -> Problem | None:
        """Check a shard whose blocks are there, with the header of our own writer, else with what is fetched."""
        path, gaps = self._root / shard.name, list(shard.gaps)
        if shard.is_ours:
            put(path, 0, shard.header)
        found = sha256(path, 0, shard.nbytes)
        for _ in range(2):
            if found != shard.sha256:
                for start, stop in gaps:
                    data = self._remote.span(shard.name, start, stop)
                    self._blocks.count(len(data))
                    put(path, start, data)
                found = sha256(path, 0, shard.nbytes)
        self._meter.moved(sum(stop - start for start, stop in gaps))
        if found == shard.sha256:
            return None
        path.unlink()
        where = f"{self._files.name}/{shard.name}"
        return Problem(where, "sha256 of the whole file", shard.sha256.hex(), found.hex(), _STEP)


_RETRACTED = f"{layout.DERIVED}/{layout.RETRACTED}"


def mirror(
    files: RemoteFiles, asked: PullSelection, root: Path, progress: Progress | None
) -> tuple[list[str], int, int]:
    """Copy what the folder lacks; returns the parts that came, how many were there, and the bytes fetched."""
    identity, _, _ = read_documents(files)
    trees = list_trees(files)
    known = [name.partition("/")[2] for name in trees if name not in (layout.PARTS, _RETRACTED)]
    gauges = asked.gauges(known, location=files.name)
    wanted = [layout.PARTS, _RETRACTED, *(f"{layout.DERIVED}/{gauge}" for gauge in gauges)]
    documents, cards = read_some(files, layout.DOCUMENTS), read_cards(files)
    listing = read_some(files, (LISTING,)) if asked.everything else {}
    selection = {**asked.to_json(), "zoo": digest_of(identity.to_json())}
    with locked_destination(root, documents[layout.ZOO], selection, partial=not asked.everything) as place:
        remote = files.remote
        remote.cache = blocks = BlockCache(place.blocks, remote.cache, keeps=False)
        for name, data in documents.items():
            if not (root / name).exists():
                write_file(root / name, data)
        held = PulledParts(root)
        there = held.parts()
        afar = [f"{tree}/{name}" for tree in wanted for name in trees.get(tree, ())]
        paths = [path for path in afar if path not in there]
        total = nbytes_of(remote, paths)
        needed = max(0, total - _allocated(place.parts))
        need_room(root, needed)
        with explain_disk_full(root, needed):
            copier = Copier(remote, blocks, files, place.parts, Meter(total, progress))
            for group in groups(remote, paths):
                for part, rows in copier.fetch(group):
                    with locked(root):
                        held.add(part.tree, rows.select(["id"]).to_pylist())
                        publish(place.parts / part.path, root / part.path)
            if asked.everything:
                _copy_snapshot(files, place)
            write_cards(files, cards, root, asked, of=held.count(layout.PARTS))
            if asked.everything:
                _copy_listing(listing.get(LISTING, b""), root)
        place.finish()
    return paths, len(afar) - len(paths), blocks.fetched


def _copy_snapshot(files: RemoteFiles, place: Destination) -> None:
    """The newest snapshot that is sound, in place of those that cover no more."""
    for name in snapshot.listed(files):
        path = f"{layout.SNAPSHOTS}/{name}"
        target, staged = place.root / path, place.parts / path
        if not target.is_file():
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(files.read(path, max_bytes=table.MAX_FILE))
            try:
                snapshot.Snapshot(Folder(place.parts), name).check()
            except IntegrityError:
                continue
            target.parent.mkdir(exist_ok=True)
            sync(staged)
            staged.replace(target)
            sync(target.parent)
        for other in snapshot.listed(Folder(place.root)):
            if other != name and other[:6] <= name[:6]:
                (target.parent / other).unlink(missing_ok=True)
        return


def _copy_listing(afar: bytes, root: Path) -> None:
    """The listing for web servers, unless it names files that are not there; an older one that does is removed."""
    path = root / LISTING
    for data in (afar, path.read_bytes() if path.is_file() else b""):
        try:
            named, _ = decode(data, location=LISTING)
        except IntegrityError:
            continue
        sizes = {name: entry.size for name, entry in named.items() if not may_change(name)}
        if all((root / name).is_file() and (root / name).stat().st_size == size for name, size in sizes.items()):
            replace(path, data)
            return
    path.unlink(missing_ok=True)


def _allocated(root: Path) -> int:
    """Bytes on the disk that unfinished parts have taken already."""
    return sum(path.stat().st_blocks * 512 for path in _files(root))


def _files(root: Path) -> Iterable[Path]:
    return (Path(folder) / name for folder, _, names in os.walk(root) for name in names)
