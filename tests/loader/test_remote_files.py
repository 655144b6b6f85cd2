"""Zoos on a hub, behind a web server and behind fsspec: the same as on this machine, and no more bytes than needed."""

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import AbsentError, IntegrityError, OfflineError, ZooError
from ckptzoo.format import table
from ckptzoo.format.part import PartWriter, rows_a_shard
from ckptzoo.format.shard import block_rows
from ckptzoo.schema import layout
from ckptzoo.server.limits import ServerLimits
from tests.support.effort import ALL
from tests.support.hosted import Hosted, hosted
from tests.support.hub_zoos import ARCH, files_of, grown, weights_of, zoo_of
from tests.support.server_layers import FaultPlan
from tests.support.serving import Served, running

pytest.importorskip("starlette")
pytest.importorskip("huggingface_hub")

pytestmark = [
    pytest.mark.usefixtures("isolated_clients"),
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    with hosted(tmp_path / "served", limits=ServerLimits()) as found:
        yield found


def upload(server: Hosted, path: Path, repo: str = "lab/zoo") -> str:
    """Everything of a folder in one commit, as any client would."""
    server.api().create_repo(repo, repo_type="dataset", exist_ok=True)
    return server.api().upload_folder(folder_path=path, repo_id=repo, repo_type="dataset").oid


def clear_cache(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


class Traffic:
    """Requests and bytes that the server has seen since this was made."""

    def __init__(self, server: Hosted) -> None:
        self._ledger = server.request_log
        self._from = len(self._ledger.entries)

    @property
    def entries(self) -> list[Any]:
        return self._ledger.entries[self._from :]

    @property
    def requests(self) -> int:
        return len(self.entries)

    @property
    def sent(self) -> int:
        return sum(entry.sent for entry in self.entries)


def sharded(path: Path, shards: int, rows: int) -> Path:
    """A zoo of one part whose rows are in several shards."""
    zoo_of(path, ())
    writer = PartWriter(
        path / layout.PARTS,
        sets={layout.RAW: ARCH.tensors},
        schema=table.METADATA_SCHEMA,
        facts={"kind": "raw"},
        shard_bytes=rows * ARCH.nbytes,
    )
    for number in range(shards):
        listed = [{"id": f"s{number}-{at}", "member": f"s{number}-{at}", "finite": True} for at in range(rows)]
        writer.add({layout.RAW: weights_of(rows, number)}, listed)
    writer.commit(path, refuse=lambda _: None)
    return path


@pytest.mark.slow
def test_a_zoo_on_a_hub_is_the_same_as_its_folder(server, tmp_path):
    path = zoo_of(tmp_path / "zoo", (5, 3, 4))
    ckptzoo.derive.derive(path, certify="none")
    ckptzoo.derive.derive(path, gauge="unit-norm", store="element", certify="none")
    ckptzoo.retract(path, ["m1-1"], reason="a test")
    ckptzoo.compact(path)
    grown(path, (2,), start=3)
    upload(server, path)
    with pytest.warns(UserWarning, match=r"1 of 14 checkpoints retracted"):
        near, far = ckptzoo.open(path), ckptzoo.open("lab/zoo", endpoint=server.url)
    assert far.ids == near.ids and far.revision == near.revision and far.metadata.equals(near.metadata)
    assert far.variants == near.variants and far.retracted.equals(near.retracted)
    assert far.address.startswith("hf://datasets/lab/zoo") and near.address == str(path)
    some = [11, 0, 7, 7, 3]
    for name in ARCH.names:
        assert np.asarray(far[name]).tobytes() == np.asarray(near[name]).tobytes()
        assert far[name][some].tobytes() == near[name][some].tobytes()
        assert far[name][::2].tobytes() == near[name][::2].tobytes()
        assert [piece.tobytes() for view in far[name].views() for piece in view] == [
            piece.tobytes() for piece in np.asarray(near[name])
        ]
    chosen = "test_accuracy > 0.91 and seed < 4"
    assert far.where(chosen).ids == near.where(chosen).ids
    with pytest.raises(ZooError, match="expected all 13 checkpoints"):
        far["conv1.weight", "canonical"]
    near, far = near.take(slice(11)), far.take(slice(11))
    for variant in ("canonical", "unit-norm"):
        for name in ARCH.names:
            assert far[name, variant][some[1:]].tobytes() == near[name, variant][some[1:]].tobytes()
        for name, stack in near.group_element(variant).items():
            assert np.asarray(far.group_element(variant)[name]).tobytes() == np.asarray(stack).tobytes()
        assert far.variant_metadata(variant).equals(near.variant_metadata(variant))
    with pytest.raises(ZooError, match=r"expected a folder on this machine.*ckptzoo pull \S+ -o FOLDER"):
        _ = far.path


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_streams_ensembles_and_checkpoints_are_the_same(server, tmp_path, shuffle):
    path = zoo_of(tmp_path / "zoo", (40, 30))
    upload(server, path)
    near, far = ckptzoo.open(path), ckptzoo.open("lab/zoo", endpoint=server.url)
    far = copy.deepcopy(far)  # as it arrives in another process
    for a, b in zip(
        near.stream("conv1", columns=["seed"], batch_size=9, shuffle=shuffle, seed=3, remainder="keep"),
        far.stream("conv1", columns=["seed"], batch_size=9, shuffle=shuffle, seed=3, remainder="keep"),
        strict=True,
    ):
        assert a.ids == b.ids and a.state == b.state and np.array_equal(a["seed"], b["seed"], equal_nan=True)
        assert all(a[name].tobytes() == b[name].tobytes() for name in a.tensors)
    assert {name: array.tobytes() for name, array in near.checkpoint("m1-7").items()} == {
        name: array.tobytes() for name, array in far.checkpoint("m1-7").items()
    }
    for name, tensor in far.ensemble(limit=3).items():
        assert tensor.numpy().tobytes() == near.ensemble(limit=3)[name].numpy().tobytes()
        tensor += 1
    assert far["conv1.weight"][0].tobytes() == near["conv1.weight"][0].tobytes()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_variant_of_which_some_parts_are_computed_is_the_same(server, tmp_path):
    path = zoo_of(tmp_path / "zoo", (6, 4))
    ckptzoo.derive.derive(path, certify="none")
    grown(path, (5,), start=2)
    ckptzoo.derive.derive(path, store="element", certify="none")
    upload(server, path)
    near, far = ckptzoo.open(path), ckptzoo.open("lab/zoo", endpoint=server.url)
    assert "computed" in repr(far["fc.weight", "canonical"]) and "and" in repr(far["fc.weight", "canonical"])
    options = {"variant": "canonical", "batch_size": 4, "shuffle": "global"}
    for a, b in zip(near.stream(**options), far.stream(**options), strict=True):
        assert (a.ids, a.state) == (b.ids, b.state)
        assert all(a[name].tobytes() == b[name].tobytes() for name in a.tensors)
    for id in (near.ids[0], near.ids[-1]):
        found = far.checkpoint(id, variant="canonical")
        assert all(
            array.tobytes() == found[name].tobytes() for name, array in near.checkpoint(id, variant="canonical").items()
        )


def test_a_stream_that_is_broken_off_leaves_nothing_running(server, tmp_path):
    upload(server, zoo_of(tmp_path / "zoo", (40,)))
    far = ckptzoo.open("lab/zoo", endpoint=server.url)
    stream = far.stream("conv1", batch_size=4)
    for batch in stream:
        assert len(batch) == 4
        break
    assert [len(batch) for batch in stream] == [4] * 10


@pytest.mark.slow
def test_opening_one_part_and_many(server, tmp_path):
    """At most 200 kB and 6 requests, with a snapshot; rows are read by columns."""
    for name, parts in (("one", (64,)), ("many", (64,) * (128 if ALL else 8))):
        path = zoo_of(tmp_path / name, parts)
        ckptzoo.compact(path)
        upload(server, path, f"lab/{name}")
        clear_cache(tmp_path)
        count = Traffic(server)
        zoo = ckptzoo.open(f"lab/{name}", endpoint=server.url)
        assert count.requests <= 6 and count.sent <= 200_000, (count.requests, count.sent)
        assert len(zoo) == sum(parts)
        count, whole = Traffic(server), ckptzoo.open(path).metadata
        chosen = zoo.where("test_accuracy > 0.95")
        assert count.requests <= 4
        if name == "many":
            assert count.sent < 30_000  # ids and accuracies of up to 8,192 rows
        assert chosen.ids == ckptzoo.open(path).where("test_accuracy > 0.95").ids
        assert zoo.metadata.equals(whole)


@pytest.mark.slow
def test_a_layer_costs_its_blocks_and_two_requests_a_shard(server, tmp_path):
    shards = 16 if ALL else 4
    path = sharded(tmp_path / "zoo", shards, 4_000)
    ckptzoo.compact(path)
    upload(server, path)
    near = ckptzoo.open(path)
    assert len(list(path.glob("parts/*/raw-*.safetensors"))) == shards
    for name in ARCH.names:
        clear_cache(tmp_path)
        count = Traffic(server)
        zoo = ckptzoo.open("lab/zoo", endpoint=server.url)
        opening, layer = count.sent, Traffic(server)
        found = np.asarray(zoo[name])
        assert found.tobytes() == np.asarray(near[name]).tobytes()
        assert opening + layer.sent <= 1.02 * found.nbytes + 200_000
        assert layer.sent - found.nbytes <= 0.02 * found.nbytes + 40_000  # the blocks' digests come with the first
        ranges = [entry for entry in layer.entries if entry.operation == "blob" and entry.range is not None]
        assert len(ranges) <= 2 * shards + 1
        assert layer.requests <= 2 * len(ranges)  # each with at most one answer that says where the bytes are
        again = Traffic(server)
        assert np.asarray(ckptzoo.open("lab/zoo", endpoint=server.url)[name]).tobytes() == found.tobytes()
        assert all(entry.operation in ("info", "resolve") for entry in again.entries), again.entries  # the cache has it


@pytest.mark.slow
@pytest.mark.exhaustive
def test_one_checkpoint_of_a_resnet_costs_little_more_than_its_size(server, tmp_path):
    """Blocks are so small that a row of a full shard costs at most 1.2 times its bytes; and so it is when it is read."""
    arch = archs.architecture("resnet18-100")
    rows = rows_a_shard(arch.tensors)
    first = (next(stop - start for start, stop in block_rows(rows, tensor.nbytes)) for tensor in arch.tensors)
    cost = sum(count * tensor.nbytes for count, tensor in zip(first, arch.tensors, strict=True))
    assert cost <= 1.2 * arch.nbytes

    rng = np.random.default_rng(0)
    writer = ckptzoo.create(tmp_path / "zoo", arch=arch)
    weights = {t.name: rng.integers(0, 99, (3, *t.shape)).astype(t.dtype) for t in arch.tensors}
    writer.add(weights, [{"id": f"r{at}"} for at in range(3)])
    writer.commit()
    upload(server, tmp_path / "zoo")
    zoo = ckptzoo.open("lab/zoo", endpoint=server.url)
    count = Traffic(server)
    found = dict(zoo.checkpoint("r1"))
    assert all(np.array_equal(found[name], weights[name][1]) for name in arch.names)
    assert count.sent <= 1.2 * arch.nbytes
    assert count.requests < len(arch.tensors) / 2


def test_offline_the_cache_serves_and_names_what_is_missing(server, tmp_path, monkeypatch):
    path = zoo_of(tmp_path / "zoo", (30,))
    ckptzoo.compact(path)
    upload(server, path)
    seen = np.asarray(ckptzoo.open("lab/zoo", endpoint=server.url)["conv1.weight"])
    monkeypatch.setenv("CKPTZOO_OFFLINE", "1")
    count = Traffic(server)
    zoo = ckptzoo.open("lab/zoo", endpoint=server.url)
    assert np.asarray(zoo["conv1.weight"]).tobytes() == seen.tobytes()
    with pytest.raises(OfflineError, match=r"1 blocks: expected in the cache.*raw-00.safetensors.*CKPTZOO_OFFLINE"):
        np.asarray(zoo["fc.weight"])
    assert count.requests == 0
    with pytest.raises(OfflineError, match="neither: lab/other"):
        ckptzoo.open("lab/other", endpoint=server.url)


def test_a_revision_is_pinned_and_refresh_follows(server, tmp_path):
    path = zoo_of(tmp_path / "zoo", (3,))
    first = upload(server, path)
    zoo = ckptzoo.open("lab/zoo", endpoint=server.url)
    grown(path, (2,), start=1)
    upload(server, path)
    assert len(zoo) == 3 and np.asarray(zoo["fc.weight"]).shape[0] == 3
    assert len(zoo.refresh()) == 5
    assert len(ckptzoo.open(f"hf://datasets/lab/zoo@{first}", endpoint=server.url)) == 3


def test_static_servers_and_fsspec(tmp_path):
    path = zoo_of(tmp_path / "zoo", (5, 4))
    ckptzoo.compact(path)
    near = ckptzoo.open(path)
    files = {f"/some/zoo/{name}": data for name, data in files_of(path).items()}
    with running(Served(files)) as served:
        for address in (f"{served.url}/some/zoo", f"file://{path}"):
            far = ckptzoo.open(address)
            assert np.asarray(far["conv1.weight"]).tobytes() == np.asarray(near["conv1.weight"]).tobytes()
            assert far.where("seed > 2").ids == near.where("seed > 2").ids
            assert far.refresh().revision == near.revision


def test_neither_a_folder_nor_a_repository(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AbsentError, match=r"neither: lab/none \(nothing\); hf://datasets/lab/none"):
        ckptzoo.open("lab/none", endpoint=server.url)


@pytest.mark.parametrize("address", ["lab/zoo", "hf://datasets/lab/zoo"])
def test_a_wrong_token_is_named(server, tmp_path, monkeypatch, address):
    upload(server, zoo_of(tmp_path / "zoo", (3,)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AbsentError, match=r"Invalid credentials.* Check the name, the revision and HF_TOKEN"):
        ckptzoo.open(address, endpoint=server.url, token="hf_wrong")


def test_wrong_bytes_are_never_handed_out(server, tmp_path):
    path = zoo_of(tmp_path / "zoo", (30,))
    upload(server, path)
    zoo = ckptzoo.open("lab/zoo", endpoint=server.url)
    server.faults.plan = FaultPlan(rate=1.0, kinds=("wrong",), operations=("blob",))
    with pytest.raises(IntegrityError, match=r"raw-00\.safetensors.*Tell whoever"):
        np.asarray(zoo["conv1.weight"])
    server.faults.plan = FaultPlan()
    assert np.asarray(zoo["conv1.weight"]).tobytes() == np.asarray(ckptzoo.open(path)["conv1.weight"]).tobytes()


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.sampled(2)
def test_a_state_continues_at_its_revision_of_a_zoo_that_grew(server: Hosted, tmp_path: Path, indexed: bool) -> None:
    path = zoo_of(tmp_path / "zoo", (4, 3))
    upload(server, path)

    def stream(zoo: ckptzoo.Zoo) -> Any:
        return zoo.stream("conv1", batch_size=2, shuffle="global", seed=3, remainder="keep")

    before = list(stream(ckptzoo.open("lab/zoo", endpoint=server.url)))
    grown(path, (2,), start=7)
    if indexed:
        ckptzoo.compact(path)
    upload(server, path)
    state = before[1].state
    earlier = ckptzoo.open("lab/zoo", endpoint=server.url, revision=state["revision"])
    assert (len(earlier), len(earlier.refresh()), len(copy.deepcopy(earlier))) == (7, 9, 7)
    resumed = stream(earlier)
    resumed.load_state_dict(state)
    after = list(resumed)
    assert [batch.ids for batch in after] == [batch.ids for batch in before[2:]]
    for old, new in zip(before[2:], after, strict=True):
        np.testing.assert_array_equal(old["conv1.weight"], new["conv1.weight"])
    with pytest.raises(ZooError, match=r"The nearest is sha256:.* of the first . parts"):
        ckptzoo.open("lab/zoo", endpoint=server.url, revision="sha256:0")


@pytest.mark.parametrize("damaged", [False, True])
def test_a_small_snapshot_is_fetched_once_and_damage_in_it_is_seen_by_column(tmp_path, monkeypatch, damaged):
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    path = zoo_of(tmp_path / "zoo", (5, 3))
    ckptzoo.compact(path)
    near = ckptzoo.open(path)
    (snapshot,) = (path / layout.SNAPSHOTS).iterdir()
    files = {f"/zoo/{file.relative_to(path)}": file.read_bytes() for file in path.rglob("*") if file.is_file()}
    name = f"/zoo/{snapshot.relative_to(path)}"
    if damaged:  # in a column before the tail, which the listing's digest tells too
        files[name] = files[name][:40] + bytes([files[name][40] ^ 1]) + files[name][41:]
    with running(Served(files)) as served:
        far = ckptzoo.open(f"{served.url}/zoo")
        assert far.ids == near.ids and far.where("seed == 1").ids == near.where("seed == 1").ids
        asked = [item for item in served.seen if item.path.startswith(name)]
        assert len(asked) == 1 or damaged
        for own in near:
            its = far.checkpoint(own.id)
            assert all(its[tensor].tobytes() == own[tensor].tobytes() for tensor in own)
        # a block that is one row is handed out as it is, and nobody can write to it
        assert not any(its[tensor].flags.writeable and its[tensor].size > 2**16 for tensor in its)
        assert far.metadata.equals(near.metadata)
        asked = [item for item in served.seen if item.path.startswith(name)]
        assert len(asked) == 1 or damaged
