"""What is read from afar: the same checkpoints as a zoo, as safetensors files and as a zarr store, each on a server."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import zarr
from safetensors.torch import save_file
from zarr.errors import ZarrUserWarning

import ckptzoo
from benchmarks.layers_weights import Weights
from benchmarks.peers.zarr_store import chunk_rows
from ckptzoo import archs
from ckptzoo.format import table
from ckptzoo.format.part import part_digest
from ckptzoo.schema import layout

ARCH = "resnet18-100"
ZOO, FILES = "lab/zoo", "lab/files"
BRANCH = "many"
MANY = f"{ZOO}@{BRANCH}"
STORE = "store.zarr"


@dataclass(frozen=True)
class Piece:
    """Bytes ``start`` to ``stop`` of a file of a repository."""

    repo: str
    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Material:
    """What lies on the servers, and where its bytes are.

    Parameters
    ----------
    weights
        the checkpoints of all repositories; the branch ``many`` holds them ``times`` over, under other ids.
    layers
        of ``lab/zoo``, for each tensor a run of bytes in every shard.
    files
        of ``lab/files``, for each checkpoint its tensors' bytes.
    """

    weights: Weights
    times: int
    layers: dict[str, tuple[Piece, ...]]
    files: tuple[Piece, ...]


def identity(member: int, turn: int = 0) -> str:
    """The id of a member, where content is repeated in its turn."""
    return f"m{turn:03d}-{member:05d}"


@contextmanager
def hub(root: Path) -> Iterator[tuple[int, str]]:
    """``ckptzoo serve`` on a folder: its port, and a token that may write."""
    command = [sys.executable, "-m", "ckptzoo", "serve"]
    made = subprocess.run(
        [*command, "token", "--root", str(root), "--user", "lab", "--write"], check=True, capture_output=True, text=True
    )
    with subprocess.Popen([*command, "--root", str(root), "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().rpartition(" ")[2].strip()
            yield urlsplit(url).port or 0, made.stdout.strip()
        finally:
            server.terminate()


@contextmanager
def static(folder: Path) -> Iterator[int]:
    """A plain web server on a folder: its port."""
    command = [sys.executable, str(Path(__file__).with_name("remote_static.py")), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        yield int(server.stdout.readline())
        server.stdin.close()


def publish(folder: Path, url: str, token: str, *, members: int, times: int) -> Iterator[str | Material]:
    """Write everything below a folder and bring it to the hub over HTTP, saying what comes next; at last what is there.

    Files that the hub has taken are removed; what stays is the zarr store.
    """
    from huggingface_hub import HfApi

    api = HfApi(endpoint=url, token=token)
    weights = Weights(archs.architecture(ARCH), members, seed=0)
    yield "a zoo"
    zoo, many, files = folder / "zoo", folder / "many", folder / "files"
    with ckptzoo.create(zoo, arch=weights.arch, symmetry=archs.symmetry(ARCH)) as writer:
        for member in range(members):
            writer.add(weights.member(member), {"id": identity(member), "seed": member})
    (part,) = (zoo / layout.PARTS).iterdir()
    layers = {tensor.name: _runs(part, tensor.name) for tensor in weights.arch.tensors}
    yield "the zoo, pushed"
    ckptzoo.compact(zoo)  # as ckptzoo push does
    api.create_repo(ZOO, repo_type="dataset")
    api.upload_folder(repo_id=ZOO, folder_path=zoo, repo_type="dataset")
    yield "a zoo with repeated content"
    _repeat(part, many, times)
    api.create_branch(ZOO, repo_type="dataset", branch=BRANCH)
    _commit(url, token, many)
    shutil.rmtree(many)
    shutil.rmtree(zoo)
    yield "a safetensors file a checkpoint, pushed"
    files.mkdir()
    for member in range(members):
        state = {name: torch.from_numpy(array) for name, array in weights.member(member).items()}
        save_file(state, files / _file(member))
    sizes = [(files / _file(member)).stat().st_size for member in range(members)]
    api.create_repo(FILES, repo_type="dataset")
    api.upload_folder(repo_id=FILES, folder_path=files, repo_type="dataset")
    shutil.rmtree(files)
    yield "a zarr store"
    _write_zarr(folder / STORE, weights)
    rests = [Piece(FILES, _file(member), size - weights.arch.nbytes, size) for member, size in enumerate(sizes)]
    yield Material(weights, times, layers, tuple(rests))


def _file(member: int) -> str:
    return f"{member:05d}.safetensors"


def _runs(part: Path, name: str) -> tuple[Piece, ...]:
    """Where a tensor lies: its blocks follow one another, so that every shard has one run."""
    runs: dict[str, tuple[int, int]] = {}
    for row in pq.read_table(part / layout.INDEX).to_pylist():
        if row["tensor"] == name:
            path = f"{layout.PARTS}/{part.name}/{row['file']}"
            start, stop = row["offset"], row["offset"] + row["nbytes"]
            before = runs.get(path, (start, stop))
            runs[path] = min(before[0], start), max(before[1], stop)
    return tuple(Piece(ZOO, path, *run) for path, run in sorted(runs.items()))


def _repeat(part: Path, many: Path, times: int) -> None:
    """A zoo whose parts hold the shards of another one's under other ids, with a snapshot; shards are linked."""
    index, metadata = (pq.read_table(part / name) for name in (layout.INDEX, layout.METADATA))
    footer = json.loads(pq.read_metadata(part / layout.INDEX).metadata[table.KEY])
    index, metadata = index.replace_schema_metadata(None), metadata.replace_schema_metadata(None)
    shutil.copytree(part.parents[1], many, ignore=shutil.ignore_patterns(layout.PARTS))
    for turn in range(times):
        ids = [identity(member, turn + 1) for member in range(len(metadata))]
        rows = [{**row, "id": id, "member": id} for id, row in zip(ids, metadata.to_pylist(), strict=True)]
        repeated = pa.Table.from_pylist(rows, schema=metadata.schema)
        digest = part_digest(repeated, index, footer["facts"])
        folder = many / layout.PARTS / layout.part_name(turn + 1, digest)
        folder.mkdir(parents=True)
        facts = {"version": 1, "digest": digest, "rows": len(repeated), "facts": footer["facts"]}
        (folder / layout.METADATA).write_bytes(table.encode([repeated], {"version": 1}, sealed=True))
        (folder / layout.INDEX).write_bytes(table.encode([index], facts, sealed=True))
        for shard in part.glob("*.safetensors"):
            os.link(shard, folder / shard.name)
    ckptzoo.compact(many)


def _commit(url: str, token: str, folder: Path) -> None:
    """Put a folder in place of what is on the branch; its shards are there already, under the digests of the index."""
    (index, *_) = folder.glob(f"{layout.PARTS}/*/{layout.INDEX}")
    oids = {row["file"]: row["sha256"].hex() for row in pq.read_table(index).to_pylist() if row["tensor"] is None}
    lines: list[dict[str, Any]] = [{"key": "header", "value": {"summary": "Repeat"}}]
    lines.append({"key": "deletedFolder", "value": {"path": layout.PARTS}})
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name in oids:
            facts = {"path": name, "algo": "sha256", "oid": oids[path.name], "size": path.stat().st_size}
            lines.append({"key": "lfsFile", "value": facts})
        else:
            content = {"path": name, "content": b64encode(path.read_bytes()).decode(), "encoding": "base64"}
            lines.append({"key": "file", "value": content})
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
    with urlopen(Request(f"{url}/api/datasets/{ZOO}/commit/{BRANCH}", body, headers)) as answer:
        answer.read()


def _write_zarr(folder: Path, weights: Weights) -> None:
    """An array a tensor, a file for every chunk of whole checkpoints up to 4 MiB, consolidated metadata."""
    group = zarr.create_group(folder, zarr_format=3)
    for tensor in weights.arch.tensors:
        array = group.create_array(
            tensor.name,
            shape=(weights.members, *tensor.shape),
            dtype=tensor.dtype,
            chunks=(chunk_rows(weights.members, tensor.nbytes), *tensor.shape),
            compressors=None,
        )
        array[:] = np.stack([weights.tensor(tensor.name, member) for member in range(weights.members)])
    with warnings.catch_warnings(action="ignore", category=ZarrUserWarning):
        zarr.consolidate_metadata(group.store)  # it warns that version 3 does not specify this yet
