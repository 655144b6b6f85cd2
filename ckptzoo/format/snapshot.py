"""Snapshots: rows and index of many parts in one file, so that a zoo of many parts opens fast.

A snapshot is derived and never needed. Its name holds the number of parts it covers and the sha256 of its
bytes; a reader uses the newest valid one and reads the parts after it from their folders.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.format import table
from ckptzoo.format.part import part_of
from ckptzoo.format.tree import INDEX_SCHEMA, Tree
from ckptzoo.spec.document import REFETCH, Document, digest_of
from ckptzoo.spec.layout import SNAPSHOT_NAME, SNAPSHOTS
from ckptzoo.spec.metadata import KINDS, LEAST


class Snapshot:
    """One snapshot file, its bytes checked; trees are read when asked for."""

    def __init__(self, file: pq.ParquetFile, facts: Document, *, where: str) -> None:
        self._file, self.where = file, where
        if facts.get("version") != 1 or not isinstance(facts.get("trees"), list):
            raise IntegrityError(Problem(where, "footer", "version 1 and trees", str(facts)[:120], REFETCH))
        self._trees: dict[str, Document] = {str(item["tree"]): item for item in facts["trees"]}

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """Every tree it covers, with the names of the parts in order."""
        return {tree: tuple(part["name"] for part in item["parts"]) for tree, item in self._trees.items()}

    def tree(self, name: str) -> Tree:
        """Rows and index of one tree."""
        item = self._trees[name]
        parts = tuple(
            part_of(
                name,
                part["name"],
                {"version": 1, "digest": part["digest"], "rows": part["rows"], "facts": part["facts"]},
                where=self.where,
            )
            for part in item["parts"]
        )
        kind = item["kind"]
        metadata = self._section(item["metadata"], f"{kind}:", table.schema_of(KINDS[kind]), LEAST[kind])
        index = self._section(item["index"], "index:", INDEX_SCHEMA, len(INDEX_SCHEMA))
        if len(metadata) != sum(part.rows for part in parts):
            raise IntegrityError(
                Problem(self.where, f"rows of {name}", "those of its parts", str(len(metadata)), REFETCH)
            )
        return Tree(parts, metadata, index)

    def _section(self, group: int, prefix: str, schema: pa.Schema, least: int) -> pa.Table:
        held = set(self._file.schema_arrow.names)
        own = [name for name in schema.names if prefix + name in held]
        known = pa.schema(list(schema)[: max(least, len(own))])
        names = [prefix + name for name in known.names]
        try:
            found = self._file.read_row_group(group, columns=names, use_threads=False).select(names)
            return table.filled(found.rename_columns(known.names).cast(known), schema).combine_chunks()
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            raise IntegrityError(
                Problem(self.where, "table", "the columns of docs/format.md", str(error)[:160], REFETCH)
            ) from error


def encode(trees: dict[str, Tree]) -> bytes:
    """A snapshot's bytes: two row groups a tree, and in the footer which parts they hold."""
    fields = [pa.field(f"index:{item.name}", item.type) for item in INDEX_SCHEMA]
    for kind in sorted({str(tree.kind) for tree in trees.values()}):
        fields += [pa.field(f"{kind}:{item.name}", item.type) for item in table.schema_of(KINDS[kind])]
    schema = pa.schema(fields)
    groups: list[pa.Table] = []
    listed: list[Document] = []
    for name, tree in trees.items():
        sections = ((f"{tree.kind}:", tree.metadata), ("index:", tree.index))
        listed.append(
            {
                "tree": name,
                "kind": tree.kind,
                "metadata": len(groups),
                "index": len(groups) + 1,
                "parts": [
                    {"name": part.name, "digest": part.digest, "rows": part.rows, "facts": part.facts}
                    for part in tree.parts
                ],
            }
        )
        groups += [_widened(found, prefix, schema) for prefix, found in sections]
    return table.encode(groups, {"version": 1, "trees": listed}, sealed=False)


def _widened(found: pa.Table, prefix: str, schema: pa.Schema) -> pa.Table:
    columns = [
        found[item.name.removeprefix(prefix)] if item.name.startswith(prefix) else pa.nulls(len(found), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)


def file_name(data: bytes, parts: int) -> str:
    """``000128-<sha256>.parquet`` for a snapshot of 128 parts."""
    return f"{parts:06d}-{hashlib.sha256(data).hexdigest()}.parquet"


def listed(root: Path) -> list[str]:
    """Names of the snapshots in a zoo's folder, the one that covers most parts first."""
    folder = root / SNAPSHOTS
    if not folder.is_dir():
        return []
    return sorted((path.name for path in folder.iterdir() if SNAPSHOT_NAME.fullmatch(path.name)), reverse=True)


def read(root: Path, name: str) -> Snapshot:
    """Read one snapshot, its bytes checked against its name.

    Raises
    ------
    IntegrityError
        The bytes are not those that the name promises, or they cannot be read.
    """
    where = f"{root.name}/{SNAPSHOTS}/{name}"
    data = table.read_bytes(root / SNAPSHOTS / name, where=where)
    promised, found = name[7:71], hashlib.sha256(data).hexdigest()
    if promised != found:
        step = "Remove it and run ckptzoo compact --index."
        raise IntegrityError(Problem(where, "sha256", promised, found, step))
    file, facts = table.open_table(data, where=where)
    return Snapshot(file, facts, where=where)


def newest(root: Path, trees: dict[str, tuple[str, ...]]) -> Snapshot | None:
    """The newest valid snapshot all of whose parts are there; invalid ones are for ``verify`` to report."""
    for name in listed(root):
        try:
            found = read(root, name)
        except IntegrityError:
            continue
        if all(set(parts) <= set(trees.get(tree, ())) for tree, parts in found.parts.items()):
            return found
    return None


def revision_of(digests: Iterable[str]) -> str:
    """Digest of an ordered list of parts."""
    return digest_of(list(digests))
