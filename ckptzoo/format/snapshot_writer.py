"""Writing snapshots."""

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq

from ckptzoo.format import table
from ckptzoo.format.snapshot import INDEX, outside
from ckptzoo.format.tree import DIGEST, INDEX_SCHEMA, Tree
from ckptzoo.spec.document import Document
from ckptzoo.spec.layout import PARTS, SNAPSHOTS
from ckptzoo.spec.metadata import KINDS


def encode(trees: dict[str, Tree]) -> tuple[str, bytes]:
    """A snapshot of all parts of some trees: its path in the zoo, and its bytes.

    There are two row groups a tree; the raw index comes last, its digests before its other columns. The path is
    ``snapshots/000128-20817-<sha256>.parquet`` for 128 parts where the tail has 20,817 bytes and that digest.
    """
    kinds = sorted({str(tree.kind) for tree in trees.values()})
    fields = [pa.field(f"{kind}:{item.name}", item.type) for kind in kinds for item in table.schema_of(KINDS[kind])]
    index = sorted(INDEX_SCHEMA, key=lambda item: item.name != DIGEST)
    schema = pa.schema([*fields, *(pa.field(INDEX + item.name, item.type) for item in index)])
    groups: list[tuple[str, pa.Table]] = []
    listed: list[Document] = []
    for name in sorted(trees, key=lambda name: (name == PARTS, name)):
        tree = trees[name]
        parts = [
            {"name": part.name, "digest": part.digest, "rows": part.rows, "facts": part.facts} for part in tree.parts
        ]
        here = {"metadata": len(groups), "index": len(groups) + 1}
        listed.append({"tree": name, "kind": tree.kind, "parts": parts, **here})
        groups += [(f"{tree.kind}:", tree.metadata), (INDEX, tree.index)]
    wide = [_widened(found, prefix, schema) for prefix, found in groups]
    draft = table.encode(wide, {}, sealed=False)
    # what the footer says of the columns does not move them, so they are written twice and lie where they lay
    chunks, rest, cut = _described(draft, [prefix for prefix, _ in groups], first=INDEX + index[1].name)
    data = table.encode(wide, {"version": 2, "trees": listed, "chunks": chunks, "rest": rest}, sealed=False)
    count = sum(len(tree.parts) for tree in trees.values())
    return f"{SNAPSHOTS}/{count:06d}-{len(data) - cut}-{hashlib.sha256(data[cut:]).hexdigest()}.parquet", data


def _described(draft: bytes, prefixes: list[str], *, first: str) -> tuple[dict[str, Document], str, int]:
    """Place and digest of every column before the tail, the digest of all between them, and where the tail starts."""
    metadata = pq.read_metadata(pa.BufferReader(draft))
    chunks: dict[str, Document] = {}
    cuts = [0]
    for group, prefix in enumerate(prefixes):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            name = column.path_in_schema.partition(".")[0]
            start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
            if group == len(prefixes) - 1 and name == first:
                return chunks, hashlib.sha256(outside(draft, [*cuts, start])).hexdigest(), start
            if name.startswith(prefix):
                stop = start + column.total_compressed_size
                chunks.setdefault(str(group), {})[name] = [
                    start,
                    stop - start,
                    hashlib.sha256(draft[start:stop]).hexdigest(),
                ]
                cuts += [start, stop]
    raise AssertionError(first)


def _widened(found: pa.Table, prefix: str, schema: pa.Schema) -> pa.Table:
    columns = [
        found[item.name.removeprefix(prefix)] if item.name.startswith(prefix) else pa.nulls(len(found), item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)
