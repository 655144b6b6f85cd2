"""Everything that can be wrong with a zoo, found and reported at once."""

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pyarrow as pa

from ckptzoo.errors import IntegrityError, Problem, SpecError
from ckptzoo.format import snapshot
from ckptzoo.format.geometry import geometry_problems
from ckptzoo.format.header import header_length, read_header
from ckptzoo.format.part import Part, part_digest
from ckptzoo.format.reader import list_trees, read_documents, read_tree, repeated
from ckptzoo.format.tree import Tree, empty_tree
from ckptzoo.spec import layout
from ckptzoo.spec.document import REFETCH

_CHUNK = 8 * 2**20

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


def verify(path: str | Path, *, deep: bool = True, progress: Progress | None = None) -> list[Problem]:
    """Every problem found in a zoo; an empty list is a sound zoo.

    Parameters
    ----------
    path : the zoo's folder.
    deep : also read every shard and recompute every digest; otherwise only what opening reads.
    progress : called as bytes are read.

    Notes
    -----
    A flipped byte anywhere but in the card is found. Deep verification reads every byte of the shards twice
    (whole files and blocks), in bounded memory, on all cores. ``tests/refuse`` holds what must be found.
    """
    root = Path(path).absolute()
    try:
        _, arch, _ = read_documents(root)
    except (IntegrityError, SpecError) as error:
        return list(error.problems)
    problems = list(_strays(root))
    trees: dict[str, Tree] = {}
    sound: list[tuple[Tree, Part, pa.Table]] = []
    for tree, names in list_trees(root).items():
        found = _readable(root, tree, names, problems)
        trees[tree] = found
        for number, part in enumerate(found.parts):
            index = found.index.filter(pa.array(found.index["part"].to_numpy() == number))
            single = Tree((part,), found.metadata, index.set_column(9, "part", pa.array([0] * len(index), pa.int32())))
            wrong = geometry_problems(root, arch, single)
            problems += wrong
            if not wrong:
                sound.append((found, part, index.drop_columns(["part"])))
    raw = trees.get(layout.PARTS, empty_tree())
    problems += repeated(root, raw)
    problems += _strangers(root, raw, trees)
    problems += _snapshots(root, trees, deep=deep)
    if deep:
        problems += _digests(root, sound)
        problems += _shards(root, sound, progress)
    return problems


def _readable(root: Path, tree: str, names: tuple[str, ...], problems: list[Problem]) -> Tree:
    """The tree of those parts that can be read; the others' problems are noted."""
    good: list[str] = []
    for name in names:
        try:
            read_tree(root, tree, (name,), None)
        except IntegrityError as error:
            problems += error.problems
        else:
            good.append(name)
    try:
        return read_tree(root, tree, tuple(good), None)
    except IntegrityError as error:
        problems += error.problems
        return empty_tree()


def _strays(root: Path) -> Iterator[Problem]:
    """Files and folders inside the zoo's own folders that are no part of it; hidden ones are left alone."""
    step = "Remove it."
    files = (layout.METADATA, layout.INDEX)
    derived = root / layout.DERIVED
    folders = [root / layout.PARTS, *(sorted(derived.iterdir()) if derived.is_dir() else [])]
    for tree in folders:
        where = f"{root.name}/{tree.relative_to(root).as_posix()}"
        if tree.parent == derived and not tree.name.startswith(".") and not layout.DERIVED_NAME.fullmatch(tree.name):
            yield Problem(where, "name", "small letters, digits and hyphens", repr(tree.name), step)
        for path in sorted(tree.iterdir()) if tree.is_dir() else []:
            if path.name.startswith("."):
                continue
            if not layout.PART_NAME.fullmatch(path.name) or not path.is_dir():
                yield Problem(where, "a part", "<6 digits>-<8 hex>", repr(path.name), step)
                continue
            for file in sorted(path.iterdir()):
                if file.name not in files and not layout.SHARD_NAME.fullmatch(file.name):
                    yield Problem(f"{where}/{path.name}", "a file", "metadata, index or shard", repr(file.name), step)
    snapshots = root / layout.SNAPSHOTS
    for path in sorted(snapshots.iterdir()) if snapshots.is_dir() else []:
        if not path.name.startswith(".") and not layout.SNAPSHOT_NAME.fullmatch(path.name):
            where = f"{root.name}/{layout.SNAPSHOTS}"
            yield Problem(where, "a snapshot", "<6 digits>-<sha256>.parquet", repr(path.name), step)


def _strangers(root: Path, raw: Tree, trees: dict[str, Tree]) -> Iterator[Problem]:
    """Derived rows of checkpoints that the zoo lacks or that were derived twice, and shards no index names."""
    ids = set(raw.metadata["id"].to_pylist())
    for tree, found in trees.items():
        for number, part in enumerate(found.parts):
            index = found.index.filter(pa.array(found.index["part"].to_numpy() == number))
            named = set(index["file"].to_pylist())
            folder = root / part.path
            for file in sorted(path.name for path in folder.iterdir() if layout.SHARD_NAME.fullmatch(path.name)):
                if file not in named:
                    yield Problem(
                        f"{root.name}/{part.path}/{file}",
                        "shard",
                        "one that the index names",
                        "a stray",
                        "Remove it.",
                    )
        if tree == layout.PARTS or not found.parts:
            continue
        own = found.metadata["id"].combine_chunks()
        where = f"{root.name}/{tree}"
        unknown = [name for name in own.to_pylist() if name not in ids]
        if len(unknown):
            got = f"{len(unknown)} others, such as {unknown[0]!r}"
            yield Problem(where, "ids", "checkpoints of this zoo", got, "Remove the part.")
        if tree != f"{layout.DERIVED}/{layout.RETRACTED}" and len(own.unique()) != len(own):
            yield Problem(where, "ids", "each id once", "some twice", "Remove the part that came later.")


def _snapshots(root: Path, trees: dict[str, Tree], *, deep: bool) -> Iterator[Problem]:
    step = "Remove it and run ckptzoo compact --index."
    for name in snapshot.listed(root):
        where = f"{root.name}/{layout.SNAPSHOTS}/{name}"
        try:
            found = snapshot.read(root, name)
            for tree, parts in found.parts.items():
                held = {part.name: part for part in trees.get(tree, empty_tree()).parts}
                missing = [part for part in parts if part not in held]
                if missing:
                    yield Problem(where, f"parts of {tree}", "parts that are there", missing[0], step)
                elif deep and parts == tuple(held)[: len(parts)]:
                    own, theirs = found.tree(tree), trees[tree]
                    rows = sum(part.rows for part in own.parts)
                    index = theirs.index.filter(pa.array(theirs.index["part"].to_numpy() < len(parts)))
                    same = own.parts == theirs.parts[: len(parts)] and own.index.equals(index)
                    if not same or not own.metadata.equals(theirs.metadata.slice(0, rows)):
                        yield Problem(where, f"rows of {tree}", "those of its parts", "others", step)
        except IntegrityError as error:
            yield from error.problems


def _digests(root: Path, sound: list[tuple[Tree, Part, pa.Table]]) -> Iterator[Problem]:
    for tree, part, index in sound:
        at = sum(other.rows for other in tree.parts[: tree.parts.index(part)])
        found = part_digest(tree.metadata.slice(at, part.rows), index, part.facts)
        if found != part.digest:
            yield Problem(f"{root.name}/{part.path}", "digest of the part", part.digest, found, REFETCH)


def _shards(root: Path, sound: list[tuple[Tree, Part, pa.Table]], progress: Progress | None) -> list[Problem]:
    tasks: list[tuple[Callable[[], list[Problem]], int]] = []
    for _, part, index in sound:
        rows = index.to_pylist()
        for file in dict.fromkeys(row["file"] for row in rows):
            path, own = root / part.path / file, [row for row in rows if row["file"] == file]
            where = f"{root.name}/{part.path}/{file}"
            tasks.append((lambda path=path, own=own, where=where: _header(path, own, where), 0))
            for row in own:
                tasks.append((lambda path=path, row=row, where=where: _bytes(path, row, where), row["nbytes"]))
    total, done = sum(size for _, size in tasks), 0
    problems: dict[int, list[Problem]] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(task): (number, size) for number, (task, size) in enumerate(tasks)}
        for future in as_completed(running):
            number, size = running[future]
            problems[number] = future.result()
            done += size
            if progress is not None and size:
                progress(done, total)
    return [problem for number in sorted(problems) for problem in problems[number]]


def _header(path: Path, rows: list[dict[str, object]], where: str) -> list[Problem]:
    """The shard's own header against the index."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = header_length(file.read(8), file_size=size, where=where)
            entries = read_header(file.read(length), file_size=size, where=where)
    except IntegrityError as error:
        return list(error.problems)
    except OSError as error:
        return [Problem(where, "file", "a readable file", error.strerror or "none", REFETCH)]
    promised: dict[str, list[object]] = {}
    for row in rows:
        if (name := row["tensor"]) is not None:
            known = promised.setdefault(str(name), [row["dtype"], 0, row["shape"][1:], row["offset"]])  # type: ignore[index]
            known[1] += row["row_stop"] - row["row_start"]  # type: ignore[operator]
    found = {
        entry.name: [entry.dtype, entry.shape[0] if entry.shape else 0, list(entry.shape[1:]), entry.offset]
        for entry in entries
    }
    return [
        Problem(
            where,
            f"tensor {name!r} in the header",
            str(promised.get(name, "none")),
            str(found.get(name, "none")),
            REFETCH,
        )
        for name in sorted({*promised, *found})
        if promised.get(name) != found.get(name)
    ]


def _bytes(path: Path, row: dict[str, object], where: str) -> list[Problem]:
    """One block's or one whole shard's digest, in bounded memory."""
    digest = hashlib.sha256()
    offset, left = int(row["offset"]), int(row["nbytes"])  # type: ignore[call-overload]
    try:
        with path.open("rb", buffering=0) as file:
            while left:
                data = os.pread(file.fileno(), min(_CHUNK, left), offset)
                if not data:
                    break
                digest.update(data)
                offset, left = offset + len(data), left - len(data)
    except OSError as error:
        return [Problem(where, "file", "a readable file", error.strerror or "none", REFETCH)]
    expected = bytes(row["sha256"])  # type: ignore[call-overload]
    if digest.digest() == expected:
        return []
    span = f"rows {row['row_start']} to {row['row_stop']} of {row['tensor']!r}" if row["tensor"] else "the whole file"
    return [Problem(where, f"sha256 of {span}", expected.hex(), digest.hexdigest(), REFETCH)]
