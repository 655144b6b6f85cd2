"""Zoos made to harm: documents and tables that are bombs, and symbolic links on either side."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.format import table
from ckptzoo.hub.pull import pull
from ckptzoo.hub.push import push
from ckptzoo.schema.documents import seal, unseal
from tests.faults.bench import Bench, put
from tests.faults.counts import COUNTS
from tests.faults.evil import REPO, Evil, running
from tests.support.hub_zoos import files_of

pytestmark = pytest.mark.usefixtures("hurried")
PART = "parts/000001-"

READ = """
import os, resource, sys, warnings
os.environ["CKPTZOO_CACHE"] = sys.argv[2]
import ckptzoo
warnings.simplefilter("ignore")
from ckptzoo.format import limits
limits.MAX_TABLE = 2**25  # of 4 GiB
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
for url in sys.argv[3:]:
    try:
        zoo = ckptzoo.open("hf://datasets/" + sys.argv[1], endpoint=url)
        zoo.metadata, zoo.where("test_accuracy > 0.5"), zoo[zoo.arch.names[0]][:2]
        print("read")
    except ckptzoo.ZooError as error:
        print(str(error).replace(chr(10), " ")[:300])
"""


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def architecture(**facts: Any) -> bytes:
    tensors = [{"name": "a", "shape": [2], "dtype": "float32", "kind": "parameter", "aliases": []}]
    return seal({"name": "tiny", "tensors": tensors, **facts})


def documents() -> dict[str, tuple[str, bytes]]:
    """Documents by what is wrong with them: a file's name and its bytes."""
    return {
        "no JSON": ("zoo.json", b"\x00" * 100),
        "as large as may be": ("zoo.json", seal({"a": "b" * 60_000_000})),
        "too large": ("zoo.json", b" " * (65 * 2**20)),
        "half a letter": ("zoo.json", b'{"a":"\\ud800"}'),
        "a key twice": ("zoo.json", b'{"a":1,"a":2}'),
        "a number beyond numbers": ("zoo.json", b'{"a":1e999}'),
        "an integer beyond integers": ("zoo.json", b'{"a":' + b"9" * 100_000 + b"}"),
        **{f"{depth} deep": ("zoo.json", nested(depth)) for depth in (300, 900, 950, 1000, 5000, 1_000_000)},
        "a shape beyond memory": (
            "architecture.json",
            architecture(
                tensors=[{"name": "a", "shape": [2**40, 2**40], "dtype": "float32", "kind": "parameter", "aliases": []}]
            ),
        ),
        "a hundred thousand tensors": (
            "architecture.json",
            architecture(
                tensors=[
                    {"name": f"t{at}", "shape": [1], "dtype": "float32", "kind": "parameter", "aliases": []}
                    for at in range(100_000)
                ]
            ),
        ),
        "no tensors": ("architecture.json", architecture(tensors=7)),
        "a tensor that leads elsewhere": (
            "architecture.json",
            architecture(
                tensors=[{"name": "../../x", "shape": [1], "dtype": "float32", "kind": "parameter", "aliases": []}]
            ),
        ),
    }


def sealed(found: pa.Table, facts: dict[str, Any]) -> bytes:
    """A table with a seal over whatever it holds."""
    return table.encode([found], facts, sealed=True)


def tables(
    files: dict[str, bytes], bomb: Callable[[pa.Table, dict[str, Any]], tuple[pa.Table, dict[str, Any]]], name: str
) -> dict[str, bytes]:
    """The files with one table of the first part changed, sealed again, and no snapshot."""
    path = next(path for path in files if path.startswith(PART) and path.endswith(name))
    file = pq.ParquetFile(pa.BufferReader(files[path]))
    facts = json.loads(file.metadata.metadata[table.KEY])
    facts.pop("seal")
    found, facts = bomb(file.read().replace_schema_metadata(None), facts)
    kept = {key: data for key, data in files.items() if not key.startswith("snapshots/")}
    return {**kept, path: sealed(found, facts)}


def repeated(count: int) -> Callable[[pa.Table, dict[str, Any]], tuple[pa.Table, dict[str, Any]]]:
    """The first row so many times: a few kilobytes, because equal values are packed by their number."""

    def made(found: pa.Table, facts: dict[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
        row = found.slice(0, 1)
        piece = pa.concat_tables([row] * 1000).combine_chunks()
        return pa.concat_tables([piece] * (count // 1000)), {**facts, "rows": count}

    return made


def heavy(data: bytes) -> bytes:
    """A table with one long text in every row, stored once."""
    file = pq.ParquetFile(pa.BufferReader(data))
    found, count = file.read(), 20_000
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["x" * 100_000]))
    row = pa.concat_tables([found.slice(0, 1)] * count).combine_chunks()
    made = row.set_column(row.schema.get_field_index("source"), "source", text)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, made.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(made.replace_schema_metadata(None))
        writer.add_key_value_metadata({"ckptzoo": json.dumps({"version": 1, "seal": "0" * 64}, separators=(",", ":"))})
    data = sink.getvalue().to_pybytes()
    at = data.rfind(b'"seal":"') + 8
    return data[:at] + hashlib.sha256(data).hexdigest().encode() + data[at + 64 :]


def with_documents(files: dict[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    """The files with another document, which zoo.json names if it can be unsealed."""
    kept = {**files, name: data}
    if name == "architecture.json":
        old, new = (unseal(one, location=name)[1] for one in (files[name], data))
        identity, _ = unseal(files["zoo.json"], location="zoo.json")
        kept["zoo.json"] = seal({key: new if value == old else value for key, value in identity.items()})
    return kept


TREES: dict[str, Any] = {
    "none": None,
    "a number": 7,
    "numbers": [7],
    "nothing of a tree": [{}],
    "a tree alone": [{"tree": "parts"}],
    "no parts": [{"tree": "parts", "kind": "raw", "metadata": 0, "index": 1}],
    "parts that are none": [{"tree": "parts", "kind": "raw", "metadata": 0, "index": 1, "parts": 7}],
    "parts of numbers": [{"tree": "parts", "kind": "raw", "metadata": 0, "index": 1, "parts": [7]}],
    "parts without names": [{"tree": "parts", "kind": "raw", "metadata": 0, "index": 1, "parts": [{}]}],
    "names of numbers": [{"tree": "parts", "kind": "raw", "metadata": 0, "index": 1, "parts": [{"name": 7}]}],
    "names alone": [{"tree": "parts", "kind": "raw", "metadata": 0, "index": 1, "parts": [{"name": "{part}"}]}],
    "a kind of lists": [{"tree": "parts", "kind": ["raw"], "metadata": 0, "index": 1, "parts": []}],
    "a kind that nobody knows": [{"tree": "parts", "kind": "other", "metadata": 0, "index": 1, "parts": []}],
    "groups elsewhere": [{"tree": "parts", "kind": "raw", "metadata": 99, "index": -7, "parts": []}],
    "groups of letters": [{"tree": "parts", "kind": "raw", "metadata": "a", "index": None, "parts": []}],
    "trees elsewhere": [{"tree": "../../x", "kind": "raw", "metadata": 0, "index": 1, "parts": []}],
    "the same twice": [{"tree": "parts", "kind": "raw", "metadata": 0, "index": 1, "parts": []}] * 2,
}


def forged(files: dict[str, bytes], trees: Any) -> dict[str, bytes]:
    """The files with a snapshot that says something else of its trees, all of it in the tail, which its name covers."""
    path = next(name for name in files if name.startswith("snapshots/"))
    part = next(name.split("/")[1] for name in files if name.startswith(PART))
    file = pq.ParquetFile(pa.BufferReader(files[path]))
    groups = [file.read_row_group(at).replace_schema_metadata(None) for at in range(file.num_row_groups)]
    said = json.loads(json.dumps(trees).replace("{part}", part))
    data = table.encode(groups, {"version": 2, "trees": said, "chunks": {}, "rest": ""}, sealed=False)
    name = f"snapshots/000002-{len(data)}-{hashlib.sha256(data).hexdigest()}.parquet"
    return {**{key: value for key, value in files.items() if key != path}, name: data}


@pytest.mark.exhaustive
def test_documents_and_tables_that_are_bombs(tiny: Path, tmp_path: Path) -> None:
    """All in one process with 3 GiB of memory, from a hub of each one's own."""
    files = files_of(tiny)
    zoos = {name: with_documents(files, path, data) for name, (path, data) in documents().items()}
    for name in ("metadata.parquet", "index.parquet"):
        zoos[f"{name} of many rows"] = tables(files, repeated(1_000_000), name)
        zoos[f"{name} of 2^40 rows in its footer"] = tables(
            files, lambda found, facts: (found, {**facts, "rows": 2**40}), name
        )
    path = next(path for path in files if path.startswith(PART) and path.endswith("metadata.parquet"))
    kept = {name: data for name, data in files.items() if not name.startswith("snapshots/")}
    zoos["a text in every row"] = {**kept, path: heavy(files[path])}
    footers = {f"trees: {name}": forged(files, trees) for name, trees in TREES.items()}
    zoos |= footers
    with ExitStack() as hubs:
        urls = [hubs.enter_context(running(Evil(held))).url for held in zoos.values()]
        command = [sys.executable, "-c", READ, REPO, str(tmp_path / "cache"), *urls]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=Path.cwd())
    told = dict(zip(zoos, done.stdout.splitlines(), strict=False))
    COUNTS.inputs["documents and tables"] += len(told)
    assert done.returncode == 0, (list(zoos)[len(told)], done.stderr[-2000:])
    fine = {"metadata.parquet of 2^40 rows in its footer", *footers}  # told or not used; read from the parts then
    assert {name: said for name, said in told.items() if "expected" not in said and name not in fine} == {}
    assert "malloc" not in done.stdout


SECRET = b"a secret of this machine" * 50


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file and a folder that are nobody's business."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_bytes(SECRET)
    return tmp_path / "private"


def shard_of(zoo: Path) -> Path:
    return next(iter(sorted(zoo.glob("parts/*/*.safetensors"))))


def outside(path: Path, secret: Path) -> None:
    """A file or folder goes elsewhere, and a link to it takes its place."""
    elsewhere = secret / path.name
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


LINKS: dict[str, Callable[[Path, Path], None]] = {
    "a shard": lambda zoo, secret: outside(shard_of(zoo), secret),
    "a part": lambda zoo, secret: outside(shard_of(zoo).parent, secret),
    "all parts": lambda zoo, secret: outside(zoo / "parts", secret),
    "rows": lambda zoo, secret: outside(shard_of(zoo).with_name("metadata.parquet"), secret),
    "a document": lambda zoo, secret: outside(zoo / "architecture.json", secret),
    "a secret for a card": lambda zoo, secret: linked(zoo / "README.md", secret / "key"),
    "a secret for card.toml": lambda zoo, secret: linked(zoo / "card.toml", secret / "key"),
    "a secret for a shard": lambda zoo, secret: linked(shard_of(zoo), secret / "key"),
    "a secret among the shards": lambda zoo, secret: linked(
        shard_of(zoo).with_name("raw-99.safetensors"), secret / "key"
    ),
    "a device for a shard": lambda zoo, secret: linked(shard_of(zoo), Path("/dev/zero")),
    "itself": lambda zoo, secret: linked(shard_of(zoo), shard_of(zoo)),
}


def linked(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("link", LINKS)
def test_links_in_a_zoo_that_is_pushed(bench: Bench, tiny: Path, tmp_path: Path, secret: Path, link: str) -> None:
    """Nothing is uploaded that does not lie in the zoo's folder."""
    zoo, repo = Path(shutil.copytree(tiny, tmp_path / "zoo")), bench.repo()
    LINKS[link](zoo, secret)
    since = len(bench.server.request_log.entries)
    COUNTS.inputs["links in what is pushed"] += 1
    with pytest.raises(ZooError, match=r"expected .*, got .*\. \w+"):
        push(zoo, repo, endpoint=bench.server.url, token=bench.server.tokens["write"])
    sent = [item for item in bench.server.request_log.entries[since:] if item.operation in ("upload", "part", "commit")]
    assert sent == []


@pytest.mark.parametrize("what", ["zoo.json", "README.md", "architecture.json", ".ckptzoo-pull", "parts"])
def test_links_where_a_zoo_is_pulled_to(bench: Bench, tiny: Path, tmp_path: Path, secret: Path, what: str) -> None:
    """What a link leads to is left as it is, or the pull is refused."""
    repo, target = bench.repo(), tmp_path / "zoo"
    put(bench.server, repo, files_of(tiny))
    target.mkdir()
    if what in (".ckptzoo-pull", "parts"):
        (target / what).symlink_to(secret)
        (secret / "parts").mkdir()
        (secret / "parts" / "mine").write_bytes(SECRET)
    else:
        (target / what).symlink_to(secret / "key")
    COUNTS.inputs["links in what is pulled to"] += 1
    try:
        pull(repo, target, endpoint=bench.server.url)
    except (ZooError, OSError) as error:
        assert "expected" in str(error)
    assert (secret / "key").read_bytes() == SECRET
    assert what not in (".ckptzoo-pull", "parts") or (secret / "parts" / "mine").read_bytes() == SECRET
    assert not [path for path in secret.rglob("*") if path.is_file() and path.name not in ("key", "mine")]


def test_links_in_the_cache(bench: Bench, tiny: Path, tmp_path: Path, secret: Path) -> None:
    """Bytes under a digest are those of the digest, and what a link leads to is left as it is."""
    repo = bench.repo()
    put(bench.server, repo, files_of(tiny))
    near = ckptzoo.open(tiny)
    for _ in range(2):
        far = ckptzoo.open(repo, endpoint=bench.server.url)
        assert np.asarray(far["fc.weight"]).tobytes() == np.asarray(near["fc.weight"]).tobytes()
        blobs = list(Path(os.environ["CKPTZOO_CACHE"]).glob("*/blobs/*/*"))
        assert blobs
        for blob in blobs:
            linked(blob, secret / "key")
    COUNTS.inputs["links in the cache"] += len(blobs)
    assert (secret / "key").read_bytes() == SECRET
