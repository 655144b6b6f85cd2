"""Parts as they are afar, byte by byte, each checked before it appears."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format.files import Files
from ckptzoo.format.geometry import geometry_problems
from ckptzoo.format.part import Part, decode_index, decode_rows, filled_rows, part_digest
from ckptzoo.format.reader import read_documents
from ckptzoo.format.tree import INDEX_SCHEMA, Rows, Tree
from ckptzoo.hub.pulling.blocks import Blocks
from ckptzoo.hub.pulling.meter import Meter
from ckptzoo.hub.pulling.shards import Shard, lacking, put, sha256, shards_of
from ckptzoo.remote import Remote
from ckptzoo.spec.layout import INDEX, METADATA, SHARD_NAME
from ckptzoo.spec.span import Span

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

    def __init__(self, remote: Remote, blocks: Blocks, files: Files, root: Path, meter: Meter) -> None:
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
        part, listed = decode_index(index, tree, name, where=f"{where}/{INDEX}")
        rows = decode_rows(metadata, part, where=f"{where}/{METADATA}")
        if (digest := part_digest(rows, listed, part.facts)) != part.digest:
            raise IntegrityError(Problem(where, "digest of the part", part.digest, digest, _STEP))
        zeros = pa.repeat(pa.scalar(0, pa.int32()), len(listed))
        blocks = Rows.of(listed.append_column(INDEX_SCHEMA.field("part"), zeros))
        single = Tree((part,), Rows.of(filled_rows(rows, part, where=where)), blocks)
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
