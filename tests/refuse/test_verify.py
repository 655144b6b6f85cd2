"""What must be found: every flipped byte, and every lie, each with file, what, expected, got and the next step."""

import json
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import IntegrityError, Problem, SpecError, ZooError
from ckptzoo.format import part as part_module
from ckptzoo.format import table
from ckptzoo.format import verify as verify_module
from ckptzoo.format.files import Folder
from ckptzoo.format.header import CODES, lay_out
from ckptzoo.format.part import part_digest, read_part, read_rows
from ckptzoo.schema.documents import canonical, digest_of, seal
from ckptzoo.schema.layout import part_name
from ckptzoo.schema.metadata import parse_extra
from tests.conftest import MIXED, rows_of, weights_of
from tests.support.effort import ALL


def opens(path: Path) -> bool:
    """Whether the zoo opens; the only other thing that may happen is one of our errors."""
    try:
        zoo = ckptzoo.open(path)
        zoo.variants, zoo.ids, zoo.metadata  # noqa: B018
    except (IntegrityError, SpecError):
        return False
    return True


def found(path: Path, *words: str) -> list[Problem]:
    problems = ckptzoo.verify(path)
    text = "\n".join(map(str, problems))
    assert problems and all(word in text for word in words), text
    assert all(problem.location and problem.expected and problem.got and problem.next_step for problem in problems)
    return problems


@pytest.fixture
def sound(make_zoo):
    """Two parts, a tombstone and a snapshot."""
    path, _ = make_zoo((4, 3))
    ckptzoo.retract(path, ["m00005"], reason="a test")
    ckptzoo.compact(path)
    assert ckptzoo.verify(path) == []
    return path


@given(st.data())
def test_digests_of_parts_are_those_of_one_document(data):
    """Whatever number of values is in memory at a time."""
    cells = {
        "a": st.none() | st.text(max_size=3),
        "b": st.none() | st.floats() | st.sampled_from([float("nan"), float("inf")]),
        "sha256": st.binary(min_size=2, max_size=2),
        "t": st.none() | st.datetimes(),
    }
    count = data.draw(st.integers(0, 9))
    rows = pa.table({name: data.draw(st.lists(cell, min_size=count, max_size=count)) for name, cell in cells.items()})
    rows = rows.cast(
        pa.schema([("a", pa.string()), ("b", pa.float64()), ("sha256", pa.binary()), ("t", table.TYPES["timestamp"])])
    )
    facts = {"kind": "raw", "examples": 3}
    plain = {name: [None if value is None else value for value in rows[name].to_pylist()] for name in ("a", "b")}
    plain |= {"sha256": [value.hex() for value in rows["sha256"].to_pylist()]}
    plain |= {"t": rows["t"].cast(pa.int64()).to_pylist()}
    expected = digest_of({"rows": plain, "index": plain, "facts": facts})
    with pytest.MonkeyPatch.context() as patch:
        for size, at_once in ((1, -1), (4, -1), (100, -1), (1, 10**6), (100, 10**6)):
            patch.setattr(table, "_PLAIN", size)
            patch.setattr(part_module, "_AT_ONCE_BYTES", at_once)
            assert part_digest(rows, rows, facts) == expected


def test_what_is_found_in_shards_does_not_depend_on_how_they_are_read(tmp_path, monkeypatch):
    zoo = tmp_path / "zoo"
    writer = ckptzoo.create(zoo, arch=MIXED)
    for part in range(3):
        writer.add(weights_of(MIXED, 40), rows_of(40, 40 * part))
        writer.commit()
    rng = random.Random(1)
    for path in sorted(zoo.rglob("raw-*"))[:2]:
        data = bytearray(path.read_bytes())
        for at in rng.sample(range(len(data) // 2, len(data)), 2):
            data[at] ^= 1
        path.write_bytes(data)
    expected = {str(problem) for problem in ckptzoo.verify(zoo)}
    assert len(expected) >= 4
    for chunk, small, ahead in ((7, 100, 1), (64, 2**20, 2), (1000, 3000, 128), (2**20, 0, 3)):
        monkeypatch.setattr(verify_module, "_CHUNK", chunk)
        monkeypatch.setattr(verify_module, "_SMALL_BYTES", small)
        monkeypatch.setattr(verify_module, "_BUFFERS", 1 + ahead % 4)
        monkeypatch.setattr(verify_module, "_AHEAD", ahead)
        assert {str(problem) for problem in ckptzoo.verify(zoo)} == expected


def test_a_part_is_read_once(tmp_path, monkeypatch):
    """With variants and tombstones, so that the time is that of the parts."""
    zoo = tmp_path / "zoo"
    writer = ckptzoo.create(zoo, arch=MIXED)
    for part in range(8):
        writer.add(weights_of(MIXED, 1), rows_of(1, part))
        writer.commit()
    ckptzoo.retract(zoo, ["m00005"], reason="a test")
    names, read = list[str](), table.read_bytes
    monkeypatch.setattr(
        table, "read_bytes", lambda path, **options: (names.append(str(path)), read(path, **options))[1]
    )
    assert ckptzoo.verify(zoo) == []
    tables = [name for name in names if name.endswith(".parquet")]
    assert len(tables) == 18 and len(set(tables)) == len(tables)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
def test_every_flipped_byte_is_found(sound):
    files = [
        path for path in sorted(sound.rglob("*")) if path.is_file() and path.name not in ("README.md", "card.toml")
    ]
    assert {path.name.partition("-")[0] for path in files} == {
        "zoo.json", "architecture.json", "listing.json", "metadata.parquet", "index.parquet", "raw", "000003",
    }  # fmt: skip
    rng = random.Random(0)
    for path in files:
        data = path.read_bytes()
        for at in sorted({0, 7, 8, len(data) - 1, *rng.sample(range(len(data)), 30 if ALL else 2)}):
            broken = bytearray(data)
            broken[at] ^= 1 << rng.randrange(8)
            path.write_bytes(broken)
            assert ckptzoo.verify(sound), f"{path.name}, byte {at}"
            opens(sound)
        path.write_bytes(data)
    assert ckptzoo.verify(sound) == []


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
def test_every_missing_truncated_or_longer_file_is_found(sound):
    for path in sorted(
        path for path in sound.rglob("*") if path.is_file() and path.name not in ("README.md", "card.toml")
    ):
        data = path.read_bytes()
        for broken in (None, b"", data[: len(data) // 2], data[:-1], data + b"\0"):
            path.unlink() if broken is None else path.write_bytes(broken)
            if broken is None and path.name == "listing.json":
                assert ckptzoo.verify(sound) == []  # never needed
            else:
                assert ckptzoo.verify(sound), (path.name, broken and len(broken))
            opens(sound)
            path.write_bytes(data)
    assert ckptzoo.verify(sound) == []


def test_the_card_is_free(sound):
    (sound / "README.md").write_text("Anything.")
    assert ckptzoo.verify(sound) == []


def test_a_message_says_file_what_expected_got_and_next_step(sound):
    shard = next(sound.glob("parts/000001-*/raw-00.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-3])
    size = shard.stat().st_size
    text = str(found(sound)[0])
    where = f"zoo/{shard.parent.relative_to(sound).as_posix()}/raw-00.safetensors"
    assert text.startswith(f"{where}: size: expected {size + 3} bytes, got {size} bytes. ")
    with pytest.raises(IntegrityError, match="size: expected"):
        ckptzoo.open(sound)


def test_shallow_reads_no_shard_and_deep_does(sound):
    shard = next(sound.glob("parts/000001-*/raw-00.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert ckptzoo.verify(sound, deep=False) == []
    found(sound, "sha256 of the whole file", "sha256 of rows 0 to 4 of 'flag'")


def test_progress_ends_at_everything(sound):
    seen = []
    ckptzoo.verify(sound, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0


def rebuilt(path: Path, change, *, rows=None, facts=None, name=None) -> Path:
    """Lie consistently: change a part's index, then seal, digest and name it again."""
    folder = next(path.glob("parts/000001-*"))
    part, index = read_part(Folder(path), "parts", folder.name)
    metadata = read_rows(Folder(path), part)
    listed = index.to_pylist()
    change(listed)
    index = table.table_of(listed, table.INDEX_SCHEMA, location="test")
    metadata = rows(metadata) if rows else metadata
    facts = facts or part.facts
    digest = part_digest(metadata, index, facts)
    footer = {"version": 1, "digest": digest, "rows": len(metadata), "facts": facts}
    (folder / "index.parquet").write_bytes(table.encode([index], footer, sealed=True))
    (folder / "metadata.parquet").write_bytes(table.encode([metadata], {"version": 1}, sealed=True))
    target = folder.with_name(name or part_name(1, digest))
    folder.rename(target)
    return target


def entry(listed, tensor):
    return next(row for row in listed if row["tensor"] == tensor)


LIES = {
    "a path that leaves the zoo": (lambda r: [x.update(file="../../../etc/passwd") for x in r], "name of a shard"),
    "an absolute path": (lambda r: [x.update(file="/etc/passwd") for x in r], "name of a shard"),
    "a shard that is not there": (lambda r: [x.update(file="raw-07.safetensors") for x in r], "no file"),
    "a tensor name that leaves": (lambda r: entry(r, "flag").update(tensor="../../flag"), "'../../flag'"),
    "an empty tensor name": (lambda r: entry(r, "flag").update(tensor=""), "tensor ''"),
    "an unknown tensor": (lambda r: entry(r, "flag").update(tensor="flags"), "tensor 'flags'"),
    "a missing tensor": (lambda r: r.remove(entry(r, "flag")), "tensor 'flag': expected bool (1,)"),
    "another dtype": (lambda r: entry(r, "flag").update(dtype="uint8"), "got uint8"),
    "an unknown dtype": (lambda r: entry(r, "flag").update(dtype="float4"), "float4"),
    "another shape": (lambda r: entry(r, "conv.weight").update(shape=[4, 2, 3, 2]), "(2, 3, 2)"),
    "fewer rows": (lambda r: entry(r, "flag").update(shape=[3, 1], row_stop=3, nbytes=3), "rows of 'flag'"),
    "rows past the part": (lambda r: entry(r, "flag").update(row_start=2, row_stop=6), "rows: expected within"),
    "rows that overlap": (lambda r: r.append(dict(entry(r, "flag"))), "rows of 'flag'"),
    "an offset past the end": (lambda r: entry(r, "flag").update(offset=10**6), "offset of 'flag'"),
    "a negative offset": (lambda r: entry(r, "flag").update(offset=-8), "offset of 'flag'"),
    "a huge shape": (lambda r: entry(r, "flag").update(shape=[4, 2**45]), "bytes of 'flag'"),
    "a huge shape and length": (lambda r: entry(r, "flag").update(shape=[4, 2**39], nbytes=2**41), "offset of 'flag'"),
    "a negative shape": (lambda r: entry(r, "flag").update(shape=[4, -1], nbytes=-4), "bytes of 'flag'"),
    "a huge shard": (lambda r: r[0].update(nbytes=2**50), "size: expected"),
    "two whole shards": (lambda r: r.insert(0, dict(r[0])), "entries of the whole shard"),
    "another place": (lambda r: entry(r, "flag").update(offset=entry(r, "flag")["offset"] - 1), "in the header"),
    "another block digest": (lambda r: entry(r, "flag").update(sha256=bytes(32)), "sha256 of rows"),
    "another shard digest": (lambda r: r[0].update(sha256=bytes(32)), "sha256 of the whole file"),
    "no shards at all": (lambda r: r.clear(), "shards: expected raw-00.safetensors"),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_consistent_lie_in_the_index_is_found(make_zoo, lie):
    path, _ = make_zoo((4,))
    change, word = LIES[lie]
    rebuilt(path, change)
    found(path, word)
    opens(path)


def test_rows_that_disagree_are_found(make_zoo):
    nothing = lambda listed: None  # noqa: E731
    path, _ = make_zoo((4, 3))
    rebuilt(path, nothing, rows=lambda metadata: metadata.slice(0, 3))
    found(path, "expected within 0 to 3")
    path, _ = make_zoo((4, 3), name="twice")
    second = ["m00000", "m00001", "m00004", "m00003"]
    rebuilt(
        path,
        nothing,
        rows=lambda metadata: metadata.set_column(
            0, metadata.schema.field(0), pa.array([second[0], second[1], second[2], second[3]])
        ),
    )
    found(path, "each id once, got 1 twice, such as 'm00004'")
    path, _ = make_zoo((4, 3), name="units")
    at = table.METADATA_SCHEMA.get_field_index("unit")
    field = table.METADATA_SCHEMA.field(at)
    rebuilt(path, nothing, rows=lambda metadata: metadata.set_column(at, field, pa.array(["unit-1"] * 4)))
    found(path, "unit 'unit-1': expected written once")
    assert not opens(path)


def test_metadata_of_another_part_is_found(make_zoo):
    path, _ = make_zoo((4, 4))
    one, two = sorted((path / "parts").iterdir())
    (one / "metadata.parquet").write_bytes((two / "metadata.parquet").read_bytes())
    found(path, "digest of the part")


def test_another_schema_is_found(make_zoo):
    path, _ = make_zoo((4,))
    rebuilt(path, lambda listed: None, rows=lambda metadata: metadata.drop_columns(["seed"]))
    found(path, "columns", "no column 'seed'")
    assert not opens(path)


def test_names_digests_versions_and_kinds(make_zoo):
    path, _ = make_zoo((4,), name="a")
    rebuilt(path, lambda listed: None, name="000001-00000000")
    found(path, "name of the part")
    path, _ = make_zoo((4,), name="b")
    rebuilt(path, lambda listed: None, facts={"kind": "unheard"})
    found(path, "kind", "Upgrade ckptzoo")
    path, _ = make_zoo((4,), name="c")
    (path / "zoo.json").write_bytes(seal({"format": "ckptzoo", "version": 3, "name": "c"}))
    found(path, "format version: expected 1 or 2, got 3. Upgrade ckptzoo")
    (path / "zoo.json").write_bytes(seal({"format": "parquet"}))
    found(path, "This is not a zoo")
    path, _ = make_zoo((4,), name="d")
    (path / "architecture.json").write_bytes(seal(MIXED.to_json() | {"name": "other"}))
    found(path, "digest named in zoo.json")


def test_a_broken_raw_part_is_not_held_against_what_was_derived(make_zoo):
    path, _ = make_zoo((4, 3))
    ckptzoo.retract(path, ["m00005"], reason="a test")
    metadata = next(path.glob("parts/000002-*/metadata.parquet"))
    metadata.write_bytes(metadata.read_bytes()[:-1])
    problems = found(path, "000002", "seal")
    assert not any("retracted" in problem.location for problem in problems)


def test_a_derived_part_in_another_folder_is_found(tmp_path):
    shutil.copytree(Path(__file__).parents[1] / "golden" / "v1", tmp_path / "zoo")
    shutil.rmtree(tmp_path / "zoo" / "snapshots")
    (tmp_path / "zoo/derived/first-weight").rename(tmp_path / "zoo/derived/first-wait")
    found(tmp_path / "zoo", "folder of a part of kind 'variant': expected derived/first-weight, got derived/first-wait")


def test_strays_are_found_and_hidden_files_left_alone(sound):
    (sound / ".cache").mkdir()
    (sound / "parts" / ".tmp").write_text("")
    assert ckptzoo.verify(sound) == []
    part = next((sound / "parts").glob("000001-*"))
    shutil.copy(part / "raw-00.safetensors", part / "raw-01.safetensors")
    (part / "notes.txt").write_text("")
    (sound / "parts" / "latest").mkdir()
    (sound / "snapshots" / "old.parquet").write_text("")
    (sound / "derived" / "Bad Name").mkdir()
    assert len(found(sound, "raw-01", "notes.txt", "latest", "old.parquet", "Bad Name")) == 5


def test_other_files_of_the_folder_are_named_and_not_listed(sound):
    listed = (ckptzoo.compact(sound), (sound / "listing.json").read_bytes())[1]
    (sound / "weights.pt").write_bytes(b"not of the zoo")
    (sound / "notes").mkdir()
    (sound / "notes" / "figures.txt").write_text("")
    os.mkfifo(sound / "pipe")
    (sound / "pictures").mkdir()
    os.mkfifo(sound / "pictures" / "pipe.png")
    (sound / ".env").write_text("hidden")
    found(sound, "'notes'", "'pipe'", "'weights.pt'")
    assert len(ckptzoo.verify(sound)) == 3
    ckptzoo.compact(sound)
    assert (sound / "listing.json").read_bytes() == listed


def test_links_out_of_the_folder_are_named(sound, tmp_path):
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "key").write_text("secret")
    (sound / "README.md").unlink(missing_ok=True)
    (sound / "README.md").symlink_to(secret / "key")
    (sound / "pictures").symlink_to(secret)
    shard = next((sound / "parts").glob("000001-*")) / "raw-00.safetensors"
    shard.rename(secret / "shard")
    shard.symlink_to(secret / "shard")
    found(
        sound, f"README.md: file: expected one in the zoo's folder, got a link to {secret / 'key'}", "cp --dereference"
    )
    assert len(ckptzoo.verify(sound)) == 3
    ckptzoo.compact(sound)
    listed = json.loads((sound / "listing.json").read_bytes())["files"]
    assert not any("README" in name or "pictures" in name or str(shard.relative_to(sound)) == name for name in listed)


def test_the_links_of_a_hub_cache_are_sound(sound, tmp_path):
    """As huggingface_hub keeps them: snapshots/<commit>/<file> leads to blobs/<digest>."""
    repository = tmp_path / "datasets--lab--zoo"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "0123abc"
    for number, file in enumerate(sorted(path for path in sound.rglob("*") if path.is_file())):
        blob = repository / "blobs" / f"{number:040x}"
        file.rename(blob)
        link = snapshot / file.relative_to(sound)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    assert ckptzoo.verify(snapshot) == []


def test_a_snapshot_that_lies_is_found_and_one_that_is_broken_is_not_used(sound):
    name = next((sound / "snapshots").iterdir()).name
    lying = sound / "snapshots" / name
    part = next((sound / "parts").glob("000002-*"))
    shutil.rmtree(part)
    found(sound, "parts that are there")
    with pytest.warns(UserWarning, match="retracted"):
        assert len(ckptzoo.open(sound)) == 4  # the part is gone, so the snapshot is not used
    lying.write_bytes(lying.read_bytes()[:-1])
    found(sound, "Remove it and run ckptzoo compact ZOO --index.")


HEADERS = {
    "duplicate keys": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', "twice"),
    "an overlap": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}', "an overlap"),
    "a hole": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[5,7]}}', "a hole"),
    "data that ends early": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', "the end of the file"),
    "a size that does not fit": (b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}}', "16 from its shape"),
    "an unknown field": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}}', "the fields dtype"),
    "an unknown dtype": (b'{"a":{"dtype":"Q8","shape":[4],"data_offsets":[0,4]}}', "Q8"),
    "a name that leaves": (b'{"../../a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', "'../../a'"),
    "an empty name": (b'{"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', "an empty name"),
    "negative numbers": (b'{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,-4]}}', "shape of 'a'"),
    "booleans": (b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[false,true]}}', "shape of 'a'"),
    "an overflow": (b'{"a":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,4]}}', "shape of 'a'"),
    "deep nesting": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "RecursionError"),
    "a list": (b"[1]", "an object, got list"),
    "NaN": (b'{"a":NaN}', "NaN"),
    "no JSON": (b"\xff\xfe", "UnicodeDecodeError"),
    "odd metadata": (b'{"__metadata__":{"a":1},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', "an object of strings"),
}  # fmt: skip


@pytest.mark.parametrize("lie", HEADERS)
def test_a_header_that_lies_is_found(make_zoo, lie):
    text, word = HEADERS[lie]
    path, _ = make_zoo((4,))
    shard = next(path.glob("parts/*/raw-00.safetensors"))
    shard.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    found(path, word)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 50])
def test_an_oversized_length_is_refused_before_anything_is_allocated(make_zoo, length):
    path, _ = make_zoo((4,))
    shard = next(path.glob("parts/*/raw-00.safetensors"))
    shard.write_bytes(length.to_bytes(8, "little") + b"{}")
    found(path, "header length")


def test_documents_are_bounded_and_canonical(make_zoo):
    path, _ = make_zoo((4,))
    zoo = path / "zoo.json"
    data = zoo.read_bytes()
    content = json.loads(data)
    for broken, word in (
        (json.dumps(content, indent=1).encode(), "canonical JSON"),
        (data.replace(b'"name"', b'"name":"x","name"', 1), "'name' twice"),
        (b"[" * 100_000, "an object"),
        (b"", "an object"),
        (canonical({**content, "name": "other"}) + b"\n", "digest of the content"),
        (b"{" + b" " * (65 * 2**20) + b"}", "size"),
    ):
        zoo.write_bytes(broken)
        found(path, word)
        assert not opens(path)


def test_a_document_made_of_wrong_types_is_refused(make_zoo):
    path, _ = make_zoo((1,))
    good = MIXED.to_json()
    first = good["tensors"][0]
    for broken in (
        {**good, "tensors": "none"},
        {**good, "tensors": [{**first, "shape": [2**60, 2**60]}]},
        {**good, "tensors": [{**first, "shape": [1.5]}]},
        {**good, "tensors": [{**first, "shape": None}]},
        {**good, "tensors": [{**first, "name": "../x"}]},
        {**good, "tensors": [{**first, "dtype": "float128"}]},
        {**good, "tensors": [{**first, "dtype": ["float32"]}]},
        {**good, "tensors": [first, first]},
        {**good, "tensors": []},
        {**good, "input_shape": ["a"]},
        {"name": "x"},
    ):
        identity = {"format": "ckptzoo", "version": 1, "name": "z", "architecture": digest_of(broken), "symmetry": None}
        (path / "architecture.json").write_bytes(seal(broken))
        (path / "zoo.json").write_bytes(seal(identity))
        assert ckptzoo.verify(path)
        with pytest.raises((SpecError, IntegrityError)):
            ckptzoo.open(path)


def test_not_a_zoo(tmp_path):
    with pytest.raises(ZooError, match="got nothing"):
        ckptzoo.open(tmp_path / "none")
    with pytest.raises(IntegrityError, match=r"zoo\.json: expected a file, got none; this is not a zoo"):
        ckptzoo.open(tmp_path)
    assert ckptzoo.verify(tmp_path / "none")


def test_two_shards_are_told_apart(tmp_path):
    """Swapping two shards of one part, whole files with sound headers, is found."""
    from ckptzoo.format.writer import Writer

    ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    with Writer(tmp_path / "zoo", MIXED, shard_bytes=3 * MIXED.nbytes) as writer:
        writer.add(weights_of(MIXED, 6), rows_of(6))
    part = next((tmp_path / "zoo" / "parts").iterdir())
    one, two = (part / f"raw-0{number}.safetensors" for number in range(2))
    one.rename(part / "held")
    two.rename(one)
    (part / "held").rename(two)
    found(tmp_path / "zoo", "sha256")


def test_blocks_that_do_not_stand_behind_their_shard_are_found(tmp_path):
    """A reader takes the shard of a block from the order of the rows."""
    from ckptzoo.format.writer import Writer

    ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    with Writer(tmp_path / "zoo", MIXED, shard_bytes=3 * MIXED.nbytes) as writer:
        writer.add(weights_of(MIXED, 6), rows_of(6))
    rebuilt(tmp_path / "zoo", lambda listed: listed.append(listed.pop(1)))
    found(tmp_path / "zoo", "order of the rows of", "expected behind the row of their shard")
    assert not opens(tmp_path / "zoo")


def test_codes_are_those_of_safetensors():
    layout = lay_out(MIXED.tensors, 1, {})
    named = json.loads(layout.header[8:])
    assert {tensor.name: CODES[tensor.dtype] for tensor in MIXED.tensors} == {
        name: item["dtype"] for name, item in named.items() if name != "__metadata__"
    }


ODD_EXTRAS = [
    "",
    "{",
    "[]",
    "3",
    '{"a": NaN}',
    '{"a": -Infinity}',
    '{"a": 1e999}',
    '{"a": [18446744073709551616]}',
    '{"a": ' + "9" * 4000 + "}",
    '{"a": ' + "9" * 5000 + "}",
    '{"a": "\\ud800"}',
    '{"\\udc00\\ud800": 1}',
    '{"a": ' + "[" * 32 + "]" * 32 + "}",
    '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"a": "' + "x" * 2**20 + '"}',
]


@pytest.mark.parametrize("text", ODD_EXTRAS, ids=lambda text: text[:24])
@pytest.mark.sampled(3)
def test_an_extra_that_readers_could_not_use(make_zoo, monkeypatch, text):
    """Writers refuse it, ``verify`` names it, and the zoo opens."""
    path, _ = make_zoo((4, 3))
    assert parse_extra(text) is None
    expected = (
        "at most 1,048,576 characters of JSON" if len(text) > 2**20 else "JSON objects of finite numbers and texts"
    )
    with ckptzoo.append(path) as writer:
        with pytest.raises(SpecError, match=f"column 'extra': expected {expected}"):
            writer.add(weights_of(MIXED, 1), rows_of(1, 7, extra=text))
        monkeypatch.setattr("ckptzoo.format.writer.value_problems", lambda rows, *, location: ())
        writer.add(weights_of(MIXED, 2), [*rows_of(1, 7, extra=text), *rows_of(1, 8, extra='{"fine": 1}')])
    (problem,) = found(path, "000003-", f"metadata.parquet: column 'extra': expected {expected}")
    assert len(str(problem)) < 400 and len(ckptzoo.open(path)) == 9


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    ),
    st.booleans(),
)
def test_objects_of_json_are_read_as_they_are(value, ascii_only):
    deep = {"a": json.loads("[" * 31 + "]" * 31)}
    assert parse_extra(json.dumps(deep)) == deep
    assert parse_extra(json.dumps({"value": value}, ensure_ascii=ascii_only)) == {"value": value}
    assert parse_extra(None) is parse_extra(5) is None
