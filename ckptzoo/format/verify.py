"""Everything that can be wrong with a zoo, found and reported at once."""

import contextlib
import hashlib
import io
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ckptzoo.arguments import checked
from ckptzoo.errors import IntegrityError, Problem, SpecError, ZooError
from ckptzoo.format import snapshot, table
from ckptzoo.format.checks import MAX_PROBLEMS, RowLimits, origin_problems, problems_by_part, row_limits
from ckptzoo.format.digests import check_part
from ckptzoo.format.durable import regular
from ckptzoo.format.files import DEREFERENCE, Files, Folder, leads_outside
from ckptzoo.format.header import Entry, header_length, read_header
from ckptzoo.format.landscapes import landscape_problems
from ckptzoo.format.maintenance import LISTING, belongs_to_zoo
from ckptzoo.format.packed import RUN_ROWS
from ckptzoo.format.part import Part, StoredRows, part_digest
from ckptzoo.format.predictions import input_problems
from ckptzoo.format.reader import Contents, duplicate_problems, list_trees, read_documents, read_tree
from ckptzoo.format.references import require_references
from ckptzoo.format.releases import release_problems
from ckptzoo.format.reproductions import reproduction_problems
from ckptzoo.format.splits import split_problems
from ckptzoo.format.tree import LazyTable, Tree, empty_tree, places_of, regrouped
from ckptzoo.schema import layout
from ckptzoo.schema.card import may_change
from ckptzoo.schema.documents import REFETCH, unseal
from ckptzoo.schema.explorer import START
from ckptzoo.schema.metadata import extra_problems
from ckptzoo.text import Progress

_CHUNK = 2**20
"""Bytes of a file that are read at a time, by each thread."""
_HELD_ROWS = 2**16
"""The maximum of rows of a tree that are in memory with all columns; larger parts are read again one by one."""
_CHECKED_VALUES = 2**20
"""The maximum of values of a part that are decoded together, unless one column has more."""
_BUFFERS = 4
"""Pieces of this size that a thread reads ahead of another one that hashes them."""
_SMALL_BYTES = 64 * 2**20
"""Bytes of a shard that one thread reads and hashes."""
_AHEAD = 128
"""Shards that wait for threads."""
_REFRESHED = 0.2
"""The number of seconds between calls of ``progress``."""


@checked
def verify(path: str | Path, *, deep: bool = True, progress: Progress | None = None) -> list[Problem]:
    """The problems of a zoo, up to 100 of them; an empty list is a sound zoo.

    Parameters
    ----------
    path
        the zoo's folder.
    deep
        also read every shard, recompute every digest, and name other files and links out of the folder; otherwise only
        documents, indices and rows.
    progress
        called as bytes are read.

    Notes
    -----
    A flipped byte anywhere but in the card, its pictures and the explorer is found. Deep verification reads every byte
    of the shards once and puts it into two digests (whole files and blocks), in bounded memory, on all cores. Tested in
    ``tests/refuse``.

    Examples
    --------
    >>> ckptzoo.verify("cards/mnist-optunet")
    []
    """
    return _reported(Path(path), _found(Path(path).absolute(), deep, progress, {}))


def verified_trees(root: Path) -> tuple[list[Problem], dict[str, Tree]]:
    """The problems of a zoo but for those of its shards, as ``verify`` says them, and its trees that have parts."""
    trees: dict[str, Tree] = {}
    problems = _reported(root, _found(root, False, None, trees))
    return problems, {name: tree for name, tree in trees.items() if tree.parts}


def _reported(path: Path, found: Generator[Problem]) -> list[Problem]:
    """The first of the problems, and that there are more."""
    problems = list(itertools.islice(found, MAX_PROBLEMS))
    if next(found, None) is not None:
        step = "Correct these, then verify again."
        problems.append(Problem(path.name, "problems", f"at most {MAX_PROBLEMS} in a report", "more", step))
    found.close()
    return problems


def _found(root: Path, deep: bool, progress: Progress | None, trees: dict[str, Tree]) -> Generator[Problem]:
    """Yield what is wrong with a zoo; ``trees`` is filled with those that can be read."""
    files = Folder(root)
    try:
        identity, arch, symmetry = read_documents(files)
    except (IntegrityError, SpecError) as error:
        yield from error.problems
        return
    yield from _strays(root)
    limits = row_limits(arch, symmetry)
    read: list[tuple[Part, pa.Table]] = []
    sound: list[tuple[Part, pa.Table]] = []
    for tree, names in list_trees(files).items():
        readable = yield from _readable(files, tree, names, limits)
        trees[tree] = readable
        index = readable.index.drop_columns(["part"])
        by_part = problems_by_part(files, arch, symmetry, readable)
        for part, (rows, part_problems) in zip(readable.parts, by_part, strict=True):
            yield from part_problems
            read.append((part, index.slice(rows.start, rows.stop - rows.start)))
            if not part_problems:
                sound.append(read[-1])
    raw = trees.get(layout.PARTS, empty_tree())
    derived = [path for path in trees if path != layout.PARTS]
    yield from duplicate_problems(files, raw)
    yield from _extras(files, raw)
    for tree in trees.values():
        yield from input_problems(files, tree)
    yield from _unlisted(files, read)
    yield from _unrelated(files, raw, trees)
    yield from _snapshots(files, trees, limits.blocks, deep=deep)
    yield from _listing(files)
    yield from split_problems(files, identity, raw)
    tombstones = trees.get(f"{layout.DERIVED}/{layout.RETRACTED}", empty_tree(layout.RETRACTED))
    yield from release_problems(files, identity, raw, tombstones)
    yield from reproduction_problems(files, identity, raw)
    yield from landscape_problems(files, identity, raw)
    contents = Contents(
        files,
        identity,
        arch,
        symmetry,
        raw=raw,
        retracted=tombstones,
        derived_parts={_derived_name(path): tuple(part.name for part in trees[path].parts) for path in derived},
        snapshot=None,
        _trees={_derived_name(path): trees[path] for path in derived},
    )
    yield from _failed_checks(contents)
    yield from _references(contents, deep, progress)
    if deep:
        yield from _foreign(root)
        yield from _digests(files, sound, trees)
        yield from _headers(root, read)
        yield from _shards(root, sound, progress)


def _references(contents: Contents, deep: bool, progress: Progress | None) -> Iterator[Problem]:
    """Yield what is wrong with references, and with the files that they name where these are to be read."""
    wanted = contents.identity.references
    try:
        require_references(contents.raw.parts, wanted=wanted, location=contents.files.name)
        if not wanted:
            return
        _ = contents.references
        if deep:
            contents.referenced_files.require_followed()
    except ZooError as error:
        yield from error.problems
        return
    done, total = itertools.count(1), len(contents.raw.rows)

    def was_read() -> None:
        if progress is not None:
            progress(next(done) * contents.architecture.nbytes, total * contents.architecture.nbytes)

    for number in range(len(contents.raw.parts) if deep else 0):
        yield from check_part(contents, number, was_read=was_read).problems


def _derived_name(path: str) -> str:
    return path.removeprefix(f"{layout.DERIVED}/")


def _failed_checks(contents: Contents) -> Iterator[Problem]:
    """Variants that are other functions than the raw weights, by the equivalence checks that are stored."""
    for name in contents.variants:
        if (failed := contents.failed_checks(name)).ids:
            yield failed.problem(contents.files.name, name)


def _readable(files: Files, tree: str, names: tuple[str, ...], limits: RowLimits) -> Generator[Problem, None, Tree]:
    """The tree of those parts that can be read; the others' problems are noted."""
    with contextlib.suppress(IntegrityError):
        whole = read_tree(files, tree, names, None, limits=limits)
        # every column is read, and so checked
        columns = whole.rows.schema.names
        step = max(1, _CHECKED_VALUES // max([1, *(part.rows for part in whole.parts)]))
        for start in range(0, len(columns), step):
            for _ in whole.rows.runs(columns[start : start + step]):
                pass
        return whole
    # one by one, to name all that are damaged
    readable: list[str] = []
    for name in names:
        try:
            read_tree(files, tree, (name,), None, limits=limits).rows.table()
        except IntegrityError as error:
            yield from error.problems
        else:
            readable.append(name)
    try:
        return read_tree(files, tree, tuple(readable), None, limits=limits)
    except IntegrityError as error:
        yield from error.problems
        return empty_tree()


def _extras(files: Files, raw: Tree) -> Iterator[Problem]:
    """Parts with rows whose ``extra`` is no JSON object that every reader can use."""
    runs = map(itemgetter(1), raw.rows.runs(["extra"]))
    for part, own in zip(raw.parts, regrouped(runs, [part.rows for part in raw.parts]), strict=False):
        texts = own["extra"].unique().to_pylist()
        yield from extra_problems(texts, location=f"{files.name}/{part.path}/{layout.METADATA}")


def _foreign(root: Path) -> Iterator[Problem]:
    """Files beside the zoo's own folders that are no part of it, and links out of the folder; not hidden ones."""
    for path in sorted(root.iterdir()):
        trees = (layout.PARTS, layout.DERIVED, layout.SNAPSHOTS, layout.PICTURES, layout.PAGES, layout.SPLITS)
        trees = (*trees, layout.RELEASES, layout.REPRODUCED, layout.LANDSCAPE)
        known = path.name in trees if path.is_dir() else belongs_to_zoo(path.name)
        if not known and not path.name.startswith("."):
            advice = "Move it out of the zoo's folder, or let its name begin with a dot."
            yield Problem(root.name, "a file or folder", "those that docs/format.md names", repr(path.name), advice)
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder, name) for name in sorted([*folders, *names]) if not name.startswith(".")):
            if path.is_symlink() and (target := leads_outside(path, root)) is not None:
                location = f"{root.name}/{path.relative_to(root).as_posix()}"
                yield Problem(location, "file", "one in the zoo's folder", f"a link to {target}", DEREFERENCE)


def _strays(root: Path) -> Iterator[Problem]:
    """Files and folders inside the zoo's own folders that are no part of it; hidden ones are left alone."""
    step = "Remove it."
    files = (layout.METADATA, layout.INDEX, layout.REFERENCES)
    derived = root / layout.DERIVED
    folders = [root / layout.PARTS, *(sorted(derived.iterdir()) if derived.is_dir() else [])]
    for tree in folders:
        location = f"{root.name}/{tree.relative_to(root).as_posix()}"
        if tree.parent == derived and not tree.name.startswith(".") and not layout.DERIVED_NAME.fullmatch(tree.name):
            yield Problem(location, "name", "small letters, digits and hyphens", repr(tree.name), step)
        for path in sorted(tree.iterdir()) if tree.is_dir() else []:
            if path.name.startswith("."):
                continue
            if not layout.PART_NAME.fullmatch(path.name) or not path.is_dir():
                # such as the part that came behind the number 999999: readers do not see it, and it may be sealed
                renamed = "Keep it: it may be a part that was renamed. Give it 6 digits and the first 8 of its digest."
                advice = renamed if (path / layout.INDEX).exists() else step
                yield Problem(location, "a part", "<6 digits>-<8 hex>", repr(path.name), advice)
                continue
            for file in sorted(path.iterdir()):
                if file.name not in files and not layout.SHARD_NAME.fullmatch(file.name):
                    expected = "metadata, index or shard"
                    yield Problem(f"{location}/{path.name}", "a file", expected, repr(file.name), step)
    pages = root / layout.PAGES
    for path in sorted(pages.iterdir()) if pages.is_dir() else []:
        name = f"{layout.PAGES}/{path.name}"
        if path.name.startswith("."):
            continue
        if name != layout.EXPLORER or not path.is_file():
            yield Problem(f"{root.name}/{layout.PAGES}", "a page", "explorer.html", repr(path.name), step)
        elif not _begins(path, START.encode()):
            advice = "Make it again with ckptzoo page ZOO --in-place."
            yield Problem(f"{root.name}/{name}", "file", "a page of HTML", "something else", advice)
    splits = root / layout.SPLITS
    for path in sorted(splits.iterdir()) if splits.is_dir() else []:
        if not path.name.startswith(".") and not layout.SPLIT_FILE.fullmatch(path.name):
            yield Problem(f"{root.name}/{layout.SPLITS}", "a split", "<name>.json", repr(path.name), step)
    releases = root / layout.RELEASES
    for path in sorted(releases.iterdir()) if releases.is_dir() else []:
        if not path.name.startswith(".") and not layout.release_names([path.name]):
            yield Problem(f"{root.name}/{layout.RELEASES}", "a release", "<name>.json", repr(path.name), step)
    marks = root / layout.REPRODUCED
    for path in sorted(marks.iterdir()) if marks.is_dir() else []:
        if not path.name.startswith(".") and not layout.REPRODUCTION_FILE.fullmatch(path.name):
            yield Problem(f"{root.name}/{layout.REPRODUCED}", "a mark", "<16 hex>.json", repr(path.name), step)
    figures = root / layout.LANDSCAPE
    for path in sorted(figures.iterdir()) if figures.is_dir() else []:
        if not path.name.startswith(".") and not layout.LANDSCAPE_FILE.fullmatch(path.name):
            yield Problem(f"{root.name}/{layout.LANDSCAPE}", "figures", "<16 hex>.parquet", repr(path.name), step)
    snapshots = root / layout.SNAPSHOTS
    for path in sorted(snapshots.iterdir()) if snapshots.is_dir() else []:
        if not path.name.startswith(".") and not layout.SNAPSHOT_NAME.fullmatch(path.name):
            location = f"{root.name}/{layout.SNAPSHOTS}"
            yield Problem(location, "a snapshot", "<6 digits>-<sha256>.parquet", repr(path.name), step)


def _begins(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start


def _unlisted(files: Folder, read: list[tuple[Part, pa.Table]]) -> Iterator[Problem]:
    """Shards that no index names."""
    for part, index in read:
        named = set(index["file"].unique().to_pylist())
        folder = files.here / part.path
        for file in sorted(path.name for path in folder.iterdir() if layout.SHARD_NAME.fullmatch(path.name)):
            if file not in named:
                location = f"{files.name}/{part.path}/{file}"
                yield Problem(location, "shard", "one that the index names", "another", "Remove it.")


def _unrelated(files: Folder, raw: Tree, trees: dict[str, Tree]) -> Iterator[Problem]:
    """Derived rows of checkpoints that the zoo lacks or that were derived twice."""
    for name, tree in trees.items():
        if name == layout.PARTS or not tree.parts or len(raw.parts) < len(list_trees(files)[layout.PARTS]):
            continue  # where a raw part cannot be read, its checkpoints would seem to be missing
        own, location = tree.rows["id"], f"{files.name}/{name}"
        places = places_of(own, raw.rows["id"])
        unknown = np.flatnonzero(places < 0)
        if len(unknown):
            got = f"{len(unknown)} others, such as {own[int(unknown[0])].as_py()!r}"
            yield Problem(location, "ids", "checkpoints of this zoo", got, layout.SET_ASIDE)
        if tree.kind not in layout.ROWS_ALONE:
            known, others = np.sort(places[places >= 0]), own.take(table.array_of(unknown))
            if (known[1:] == known[:-1]).any() or len(others.unique()) < len(others):
                yield Problem(location, "ids", "each id once", "some twice", layout.SET_ASIDE)
        if tree.kind in ("variant", layout.PREDICTIONS):
            yield from origin_problems(files, raw, tree, places)


def _snapshots(files: Folder, trees: dict[str, Tree], limit: int, *, deep: bool) -> Iterator[Problem]:
    step = "Remove it and run ckptzoo compact ZOO --index."
    for name in snapshot.listed(files):
        location = f"{files.name}/{layout.SNAPSHOTS}/{name}"
        try:
            opened = snapshot.Snapshot(files, name)
            if deep:
                opened.check()
            for tree, parts in opened.parts.items():
                names = tuple(part.name for part in trees.get(tree, empty_tree()).parts)
                missing = [part for part in parts if part not in names]
                if missing:
                    got = f"{missing[0]}, which is gone"
                    lost = f"Restore {tree}/{missing[0]} from a copy. Only if it was meant to go, remove the snapshot."
                    yield Problem(location, f"parts of {tree}", "parts that are there", got, lost)
                elif deep and parts == names[: len(parts)]:
                    copied, actual = opened.tree(tree, blocks_a_row=limit), trees[tree]
                    index = actual.index.filter(table.array_of(actual.index["part"].to_numpy() < len(parts)))
                    same = copied.parts == actual.parts[: len(parts)] and copied.index.equals(index)
                    if not same or not _same_rows(copied.rows, actual.rows):
                        yield Problem(location, f"rows of {tree}", "those of its parts", "others", step)
        except IntegrityError as error:
            yield from error.problems


def _same_rows(copied: LazyTable, actual: LazyTable) -> bool:
    """Whether the first rows of a table are those of another one, some at a time."""
    counts = [min(RUN_ROWS, len(copied) - start) for start in range(0, len(copied), RUN_ROWS)]
    names = copied.schema.names
    step = max(1, _CHECKED_VALUES // max([1, *counts]))

    def are_same(columns: list[str]) -> bool:
        pairs = [regrouped(map(itemgetter(1), rows.runs(columns)), counts) for rows in (copied, actual)]
        return all(table.same_rows(one, other) for one, other in zip(*pairs, strict=True))

    return all(are_same(names[start : start + step]) for start in range(0, len(names), step))


def _listing(files: Folder) -> Iterator[Problem]:
    """Files of another size than listing.json has, where there is one; it need not name all."""
    if files.size(LISTING) is None:
        return
    location, step = f"{files.name}/{LISTING}", "Run ckptzoo compact ZOO."
    try:
        content, _ = unseal(files.read(LISTING), location=location)
        named: dict[str, Any] = content["files"]
        for name, facts in named.items():
            if not may_change(name) and files.size(name) != facts[0]:
                got = str(files.size(name) or "no such file")
                yield Problem(location, f"size of {name[:200]!r}", str(facts[0]), got, step)
    except (IntegrityError, KeyError, TypeError, AttributeError, IndexError) as error:
        yield Problem(location, "listing", "what docs/format.md says", str(error)[:200], step)


def _digests(files: Folder, sound: list[tuple[Part, pa.Table]], trees: dict[str, Tree]) -> Iterator[Problem]:
    """Yield parts with another digest than that of their rows, index and facts."""
    held: dict[str, pa.Table] = {}
    for tree in trees.values():
        if len(tree.rows) <= _HELD_ROWS:
            rows, start = tree.metadata, 0
            for part in tree.parts:
                held[part.path], start = rows.slice(start, part.rows), start + part.rows
    for part, index in sound:
        rows = held.get(part.path)
        if rows is not None and part_digest(rows, index, part.facts) == part.digest:
            continue
        try:
            # the digest covers the columns that the file has, which may be fewer
            digest = part_digest(StoredRows(files, part), index, part.facts)
        except IntegrityError as error:
            yield from error.problems
            continue
        if digest != part.digest:
            yield Problem(f"{files.name}/{part.path}", "digest of the part", part.digest, digest, REFETCH)


def _headers(root: Path, read: list[tuple[Part, pa.Table]]) -> Iterator[Problem]:
    """Every shard's own header: sound in itself, and what the index says."""
    for part, index in read:
        promised: dict[str, dict[str, list[Any]]] = {}
        for row in index.to_pylist():
            tensors = promised.setdefault(row["file"], {})
            if row["tensor"] is not None:
                first = [row["dtype"], 0, (row["shape"] or [])[1:], row["offset"]]
                tensor = tensors.setdefault(row["tensor"], first)
                tensor[1] += row["row_stop"] - row["row_start"]
                # an index may list the blocks of a tensor in any order
                tensor[3] = min(tensor[3], row["offset"])
        for file, tensors in promised.items():
            path = root / part.path / file
            if not layout.SHARD_NAME.fullmatch(file) or not path.is_file():
                continue
            location = f"{root.name}/{part.path}/{file}"
            try:
                stored = {
                    entry.name: [entry.dtype, *entry.shape[:1], list(entry.shape[1:]), entry.offset]
                    for entry in _header(path, location)
                }
            except IntegrityError as error:
                yield from error.problems
                continue
            for name in sorted({*tensors, *stored}):
                if tensors.get(name) != stored.get(name):
                    expected, got = (str(side.get(name, "no such tensor")) for side in (tensors, stored))
                    yield Problem(location, f"tensor {name!r} in the header", expected, got, REFETCH)


def _header(path: Path, location: str) -> tuple[Entry, ...]:
    try:
        with open(path, "rb", opener=regular) as file:
            size = os.fstat(file.fileno()).st_size
            length = header_length(file.read(8), file_size=size, location=location)
            return read_header(file.read(length), file_size=size, location=location)
    except OSError as error:
        raise IntegrityError(Problem(location, "file", "a readable file", error.strerror or "none", REFETCH)) from error


def _shards(root: Path, sound: list[tuple[Part, pa.Table]], progress: Progress | None) -> Iterator[Problem]:
    """Yield what the sha256 of every shard and of every block says."""
    total = sum(row["nbytes"] for _, index in sound for row in _whole_shards(index))
    tasks = ((part, rows) for part, index in sound for rows in _by_shard(index))
    done, read = 0, deque[_Count]()
    waiting: deque[Future[list[Problem]]] = deque()
    # hashlib lets go of the interpreter while it works, so that threads use every core
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            while True:
                for part, rows in itertools.islice(tasks, _AHEAD - len(waiting)):
                    read.append(_Count())
                    waiting.append(pool.submit(_digest_problems, root, part, rows, read[-1]))
                if not waiting:
                    break
                with contextlib.suppress(TimeoutError):
                    yield from waiting[0].result(_REFRESHED)
                    waiting.popleft()
                    done += read.popleft().nbytes
                if progress is not None:
                    progress(done + sum(each.nbytes for each in read) if waiting else total, total)
        # Ctrl-C, or enough problems: leaving the pool would wait for every shard that is still to be read
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@dataclass
class _Count:
    """How many bytes a thread has read."""

    nbytes: int = 0


def _by_shard(index: pa.Table) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each shard in a part's index."""
    columns = ["file", "tensor", "row_start", "row_stop", "offset", "nbytes", "sha256"]
    for _, listed in itertools.groupby(index.select(columns).to_pylist(), key=lambda row: row["file"]):
        yield list(listed)


def _whole_shards(index: pa.Table) -> list[dict[str, Any]]:
    """The rows of whole shards in an index."""
    return index.filter(index["tensor"].is_null()).to_pylist()


def damaged(root: Path, part: Part, index: pa.Table) -> list[Problem]:
    """Return the problems of the bytes of a part's shards, by the sha256 of each; every byte is read."""
    return [problem for row in _whole_shards(index) for problem in _digest_problems(root, part, [row], _Count())]


def _digest_problems(root: Path, part: Part, rows: list[dict[str, Any]], count: _Count) -> list[Problem]:
    """Return the problems of the digests of a whole shard and of its blocks, which is read once, in bounded memory."""
    location = f"{root.name}/{part.path}/{rows[0]['file']}"
    whole = _HashedPieces(row for row in rows if row["tensor"] is None)
    blocks = _HashedPieces(sorted((row for row in rows if row["tensor"] is not None), key=lambda row: row["offset"]))
    nbytes = max(row["offset"] + row["nbytes"] for row in rows)
    try:
        with open(root / part.path / rows[0]["file"], "rb", buffering=0, opener=regular) as file:
            if nbytes > _SMALL_BYTES and blocks.left:
                # a second thread hashes the blocks: one alone would be busy with a large shard for long
                with ThreadPoolExecutor(1) as beside:
                    _read_through(file, nbytes, count, whole.take, partial(beside.submit, blocks.take))
            else:
                _read_through(file, nbytes, count, whole.take, blocks.take)
    except OSError as error:
        return [Problem(location, "file", "a readable file", error.strerror or "none", REFETCH)]
    problems: list[Problem] = []
    found = {id(row): digest for row, digest in itertools.chain(whole.digests(), blocks.digests())}
    for row in rows:
        if (digest := found[id(row)]) != row["sha256"]:
            named = f"rows {row['row_start']} to {row['row_stop']} of {row['tensor']!r}"
            what = f"sha256 of {named if row['tensor'] else 'the whole file'}"
            problems.append(Problem(location, what, row["sha256"].hex(), digest.hex(), REFETCH))
    return problems


def _read_through(file: io.FileIO, nbytes: int, count: _Count, *takers: Callable[[memoryview, int], Any]) -> None:
    """Read the first bytes of a file and hand them to takers in order; one that returns a future needs them for longer.

    Memory is used again: fresh memory for each piece would cost as much as reading.
    """
    free = deque[memoryview]()
    used: deque[tuple[memoryview, list[Future[Any]]]] = deque()
    at = 0
    while at < nbytes:
        if len(used) == _BUFFERS:
            buffer, futures = used.popleft()
            for future in futures:
                future.result()
            free.append(buffer)
        buffer = free.pop() if free else memoryview(bytearray(min(_CHUNK, nbytes)))
        size = file.readinto(buffer[: nbytes - at]) or 0
        if not size:
            break
        taken = [taker(buffer[:size], at) for taker in reversed(takers)]
        at, count.nbytes = at + size, count.nbytes + size
        if futures := [each for each in taken if isinstance(each, Future)]:
            used.append((buffer, futures))
        else:
            free.append(buffer)
    for _, futures in used:
        for future in futures:
            future.result()


class _HashedPieces:
    """Pieces of a file in the order of their offsets, whose digests are made as its bytes come in order."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.left = deque(rows)
        self._begun: list[tuple[dict[str, Any], Any]] = []
        self._done: list[tuple[dict[str, Any], bytes]] = []

    def take(self, data: memoryview, start: int) -> None:
        """Take the bytes of the file from ``start`` on."""
        stop, begun = start + len(data), list[tuple[dict[str, Any], Any]]()
        while self.left and self.left[0]["offset"] < stop:
            self._begun.append((self.left.popleft(), hashlib.sha256()))
        for row, digest in self._begun:
            end = row["offset"] + row["nbytes"]
            digest.update(data[max(row["offset"], start) - start : max(0, min(end, stop) - start)])
            if end > stop:
                begun.append((row, digest))
            else:
                self._done.append((row, digest.digest()))
        self._begun = begun

    def digests(self) -> list[tuple[dict[str, Any], bytes]]:
        """Every row with the digest of its bytes, of those that the file has."""
        begun = [(row, digest.digest()) for row, digest in self._begun]
        return [*self._done, *begun, *((row, hashlib.sha256().digest()) for row in self.left)]
