"""Marks of reproduction of the first version stay readable, and are written with the same bytes."""

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq

import ckptzoo
from ckptzoo.schema.reproduction import decode, encode

GOLDEN = Path(__file__).parent / "v1-reproduced"


def test_the_golden_marks_say_the_same() -> None:
    assert ckptzoo.verify(GOLDEN) == []
    first, second = ckptzoo.open(GOLDEN).reproduced
    assert (first.by, sorted(first.ids), second.by, second.ids) == ("Ada Example", ["m0", "m3"], "Blåhaj", ("m1",))
    assert first.on == {"processor": "one of 2026", "engine": "golden"} and second.on == {}
    assert first.created.isoformat() == "2026-11-26T10:09:17.534985+00:00"


def test_they_are_written_with_the_same_bytes_again() -> None:
    for path in (GOLDEN / "reproduced").iterdir():
        mark = decode(path.read_bytes(), location=path.name)
        assert encode(mark) == path.read_bytes() and mark.file == f"reproduced/{path.name}"


def test_a_reader_written_from_the_page_alone() -> None:
    """docs/format.md, without ckptzoo."""
    ids: dict[str, set[str]] = {}
    for part in (GOLDEN / "parts").iterdir():
        digest = json.loads(pq.read_metadata(part / "index.parquet").metadata[b"ckptzoo"])["digest"]
        ids[digest] = set(pq.read_table(part / "metadata.parquet")["id"].to_pylist())
    zoo = json.loads((GOLDEN / "zoo.json").read_bytes())["digest"]
    for path in (GOLDEN / "reproduced").iterdir():
        content = json.loads(path.read_bytes())
        digest = content.pop("digest")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest() and path.stem == digest[7:23]
        assert (content["format"], content["version"], content["kind"]) == ("ckptzoo", 1, "reproduction")
        assert content["zoo"] == zoo
        assert all(set(names) <= ids[part] for part, names in content["checkpoints"].items())
