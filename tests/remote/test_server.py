"""A zoo on the project's own server is read back: numbers of requests, bytes, and every fault."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import ckptzoo
from ckptzoo.errors import IntegrityError, RemoteError
from ckptzoo.format import table
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.referenced import RemoteReferences
from ckptzoo.remote.remote import Remote, open_remote
from ckptzoo.remote.retry import RetryPolicy
from ckptzoo.schema import layout
from ckptzoo.schema.layout import Span
from ckptzoo.server.limits import ServerLimits
from tests.conftest import rows_of, weights_of
from tests.support.effort import ALL
from tests.support.hosted import Hosted, hosted
from tests.support.server_layers import FAULT_KINDS, FaultPlan

ARCH = ckptzoo.Architecture(
    "two-layers",
    (
        ckptzoo.Tensor("fc1.weight", (128, 64)),
        ckptzoo.Tensor("fc1.bias", (128,)),
        ckptzoo.Tensor("fc2.weight", (10, 128)),
        ckptzoo.Tensor("fc2.bias", (10,)),
    ),
)
PARTS, ROWS = 16, 8
LAYER = ("fc1.weight", "fc1.bias")


def made(root: Path, parts: int, rows: int) -> Path:
    weights = weights_of(ARCH, parts * rows)
    writer = ckptzoo.create(root, arch=ARCH)
    for part in range(parts):
        at = part * rows
        mine = {name: values[at : at + rows] for name, values in weights.items()}
        writer.add(mine, rows_of(rows, at, unit=f"unit-{part}"))
        writer.commit()
    return root


def push(server: Hosted, folder: Path, repo: str) -> None:
    server.api().create_repo(repo, repo_type="dataset")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the client library's own
        server.api().upload_folder(folder_path=folder, repo_id=repo, repo_type="dataset")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A server with ``lab/zoo`` of 16 shards."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patched, hosted(folder / "hub", limits=ServerLimits()) as found:
        patched.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        patched.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
        push(found, made(folder / "zoo", PARTS, ROWS), "lab/zoo")
        yield found


def opened(server: Hosted, name: str = "lab/zoo", **fields: float) -> Remote:
    retry_policy = RetryPolicy(
        **{"deadline": 3.0, "connection_deadline": 0.3, "first_pause": 0.01, "max_server_wait": 3.0, **fields}
    )
    return open_remote(f"hf://datasets/{name}", endpoint=server.url, retry_policy=retry_policy)


def blocks_of(remote: Remote, names: tuple[str, ...], parts: int = PARTS) -> list[Span]:
    """The blocks of some tensors in the shards of the first parts, from their indices."""
    made: list[Span] = []
    indices = [name for name in remote.entries if name.endswith(layout.INDEX)]
    for name in indices[:parts]:
        file, _ = table.open_table(remote.read(name, max_bytes=2**20), location=name)
        for row in file.read(use_threads=False).to_pylist():
            if row["tensor"] in names:
                path = f"{name.removesuffix(layout.INDEX)}{row['file']}"
                made.append(Span(path, row["offset"], row["offset"] + row["nbytes"], row["sha256"]))
    return made


def weights_in(remote: Remote, wanted: list[Span]) -> np.ndarray:
    weights = [block for block in wanted if block.stop - block.start == ROWS * 128 * 64 * 4]
    return np.concatenate([np.frombuffer(data, np.float32) for data in remote.in_order(weights)]).reshape(-1, 128, 64)


TRUTH = weights_of(ARCH, PARTS * ROWS)["fc1.weight"]


@pytest.mark.slow
def test_a_layer_of_16_shards_costs_its_bytes_and_two_requests_a_shard(server: Hosted) -> None:
    remote = opened(server)
    wanted = blocks_of(remote, LAYER)
    assert len(wanted) == 2 * PARTS
    entries = server.request_log.entries
    before = len(entries)
    got = dict(remote.as_ready(wanted))
    need = sum(block.stop - block.start for block in wanted)
    assert sum(len(data) for data in got.values()) == need
    mine = entries[before:]
    blobs = [entry for entry in mine if entry.operation == "blob"]
    assert len(blobs) <= 2 * PARTS
    assert sum(entry.operation == "resolve" for entry in mine) == PARTS  # once a shard; the next layer needs none
    assert sum(entry.sent for entry in blobs) <= 1.02 * need
    before = len(entries)
    assert np.array_equal(weights_in(remote, wanted), TRUTH)
    assert len(entries) == before  # from the cache
    list(remote.in_order(blocks_of(remote, ("fc2.weight",))))
    assert not [entry for entry in entries[before:] if entry.operation == "resolve" and "safetensors" in entry.path]


@pytest.mark.slow
def test_a_layer_by_reference_costs_as_much(server: Hosted) -> None:
    """The same bytes through the addresses of the shards, by who knows no digests of blocks."""
    wanted = [block for block in blocks_of(opened(server), LAYER) if block.stop - block.start > ROWS * 512]
    with RemoteReferences("linked", endpoint=server.url) as files:
        found = files.repository(HubAddress("lab/zoo"))
        commit = found[0].address.partition("@")[2].partition("/")[0]
        files.add(found)
        names = {block.name: str(HubAddress("lab/zoo", commit, block.name)) for block in wanted}
        before = len(server.request_log.entries)
        got = files.in_order([Span(names[block.name], block.start, block.stop, b"") for block in wanted])
        weights = np.concatenate([np.frombuffer(data, np.float32) for data in got]).reshape(-1, 128, 64)
    assert np.array_equal(weights, TRUTH)
    mine = server.request_log.entries[before:]
    assert [entry.operation for entry in mine].count("resolve") == PARTS and len(mine) == 2 * PARTS
    assert sum(entry.sent for entry in mine if entry.operation == "blob") == TRUTH.nbytes


@pytest.mark.slow
def test_what_a_reader_of_many_parts_opens_with_is_six_requests(server: Hosted, tmp_path: Path) -> None:
    ckptzoo.compact(made(tmp_path / "many", 128 if ALL else 8, 2))
    push(server, tmp_path / "many", "lab/many")
    before = len(server.request_log.entries)
    remote = opened(server, "lab/many")
    snapshot = next(name for name in remote.entries if name.startswith(layout.SNAPSHOTS))
    for name in (layout.ZOO, layout.ARCHITECTURE, snapshot):
        remote.read(name, max_bytes=2**22)
    mine = server.request_log.entries[before:]
    assert len(mine) <= 6
    assert sum(entry.sent for entry in mine) <= 200_000, [(entry.path, entry.sent) for entry in mine]


@contextlib.contextmanager
def planned(server: Hosted, **how: object) -> Iterator[None]:
    before = server.faults.plan
    server.faults.plan = FaultPlan(**how)  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        server.faults.plan = before


KIND = sorted(kind for kind in FAULT_KINDS if kind not in ("lost", "conflict"))


@pytest.mark.slow
@pytest.mark.exhaustive  # by default tests/faults/test_matrix.py has it, operations "open" and "stream"
@pytest.mark.parametrize("kind", KIND)
def test_faults_now_and_then_cost_no_byte(server: Hosted, kind: str) -> None:
    before = len(server.faults.injected)
    with planned(server, seed=1, rate=0.25, kinds=(kind,), wait=0.1):
        try:
            remote = opened(server)
            assert np.array_equal(weights_in(remote, blocks_of(remote, LAYER)), TRUTH)
        except (IntegrityError, RemoteError) as error:
            # wrong twice, or no answer to the question five times in a row: said, and nothing handed out
            assert kind in ("wrong", "short", "whole", "expired"), error
    assert len(server.faults.injected) > before


@pytest.mark.slow
@pytest.mark.parametrize("kind", KIND)
@pytest.mark.sampled(2)
def test_faults_always_end_in_an_error_in_time(server: Hosted, kind: str) -> None:
    remote = opened(server, deadline=0.3, min_bytes_per_second=10**8, connection_deadline=0.2, max_server_wait=0.0)
    wanted = blocks_of(remote, LAYER, 4)
    with planned(
        server, rate=1.0, kinds=(kind,), operations=("blob", "resolve"), wait=30 if kind == "trickle" else 0.3
    ):
        if kind == "stale":  # what a server says of the bytes matters less than the bytes
            assert np.array_equal(weights_in(remote, wanted), TRUTH[: 4 * ROWS])
        else:
            with pytest.raises((RemoteError, IntegrityError)) as caught:
                weights_in(remote, wanted)
            assert "expected" in str(caught.value) and "lab/zoo" in str(caught.value)
