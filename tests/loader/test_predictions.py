"""Stored outputs are read as weights are: lazily, in the zoo's order, in selections, as streams, from a folder and from a hub."""

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("huggingface_hub")

import ckptzoo
from ckptzoo.derive import predict
from ckptzoo.errors import StateError, UnknownNameError, ZooError
from ckptzoo.loader.zoo import Zoo
from tests.support.derived_zoos import ARCH, files_of, fill, inputs_of, weights_of
from tests.support.hosted import Hosted, hosted, push
from tests.support.serving import Served, running

INPUTS = inputs_of(ARCH, 30).astype(np.float32)
TARGETS = np.arange(30) * 7 % 10
SETS = ("fashion-mnist/test", "mnist/test")

pytestmark = pytest.mark.usefixtures("isolated_clients")


def predicted_zoo(path: Path) -> Path:
    """Three parts of OptuNets, of which each member has two steps, predicted on two sets."""
    writer = ckptzoo.create(path, arch=ARCH)
    for number, count in enumerate((6, 12, 4)):
        rows = [
            {"id": f"{number}-{at}", "member": f"{number}-{at // 2}", "step": at % 2, "seed": at, "unit": f"u{number}"}
            for at in range(count)
        ]
        writer.add(weights_of(count, number), rows)
        writer.commit()
    predict(path, INPUTS, set="mnist/test", targets=TARGETS)
    predict(path, -INPUTS[:11], set="fashion-mnist/test")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return predicted_zoo(tmp_path_factory.mktemp("predicted") / "zoo")


@pytest.fixture(scope="module")
def expected(path: Path) -> np.ndarray:
    """What the shards hold, read without the loader."""
    found = [
        np.frombuffer(file.read_bytes()[4096:], "<f2").reshape(-1, 30, 10)
        for file in sorted(path.glob("derived/predictions-mnist--test/*/predictions-00.safetensors"))
    ]
    return np.concatenate(found)


def assert_outputs(zoo: Zoo, rows: np.ndarray, expected: np.ndarray) -> None:
    """Outputs of a selection, however they are read."""
    stored = zoo.predictions("mnist/test")
    assert stored.ids == zoo.ids and len(stored) == len(rows)
    assert stored.logits.shape == (len(rows), 30, 10) and stored.logits.dtype == np.float16
    np.testing.assert_array_equal(np.asarray(stored.logits), expected[rows])
    np.testing.assert_array_equal(stored.logits[1:3, 4], expected[rows][1:3, 4])
    batches = list(stored.stream(batch_size=3, remainder="keep"))
    assert [name for batch in batches for name in batch.ids] == zoo.ids
    np.testing.assert_array_equal(np.concatenate([batch["logits"] for batch in batches]), expected[rows])
    assert stored.targets is not None and stored.targets.dtype == np.int64
    np.testing.assert_array_equal(stored.targets, TARGETS)
    assert stored.finite.shape == (len(rows),) and stored.finite.all()


def selections(zoo: Zoo) -> Iterator[tuple[Zoo, np.ndarray]]:
    yield zoo, np.arange(22)
    yield zoo.take([20, 3, 3, 11]), np.array([20, 3, 3, 11])
    yield zoo.where("seed > 2 and seed < 5"), np.array([3, 4, 9, 10, 21])
    yield zoo.last_steps(), np.arange(1, 22, 2)


def test_rows_follow_the_zoo_and_its_selections(path: Path, expected: np.ndarray) -> None:
    zoo = ckptzoo.open(path)
    assert zoo.predicted == SETS and zoo.variants == ("raw",) and zoo.gauges == ()
    for chosen, rows in selections(zoo):
        assert_outputs(chosen, rows, expected)
    other = zoo.predictions("fashion-mnist/test")
    assert other.targets is None and other.logits.shape == (22, 11, 10) and other.set == "fashion-mnist/test"
    assert other.inputs != zoo.predictions("mnist/test").inputs
    assert "fashion-mnist/test: logits (22, 11, 10)" in repr(other)
    view = zoo.predictions("mnist/test").logits[8:12]
    assert not view.flags.owndata and not view.flags.writeable, "rows of one shard are a view of the file"
    assert np.asarray(zoo.take([]).predictions("mnist/test").logits).shape == (0, 30, 10)


def test_streams_shuffle_resume_and_share_as_those_of_weights_do(path: Path, expected: np.ndarray) -> None:
    zoo = ckptzoo.open(path)
    stored, positions = zoo.predictions("mnist/test"), {name: at for at, name in enumerate(zoo.ids)}
    whole = list(stored.stream(batch_size=4, shuffle=True, seed=5, remainder="keep"))
    ids = [name for batch in whole for name in batch.ids]
    assert sorted(ids) == sorted(zoo.ids) and ids != zoo.ids
    for batch in whole:
        np.testing.assert_array_equal(batch["logits"], expected[[positions[name] for name in batch.ids]])
    stream = stored.stream(batch_size=5, shuffle=True, seed=5, remainder="keep")
    stream.load_state_dict(whole[1].state)
    assert [name for batch in stream for name in batch.ids] == ids[8:]
    shares = [list(stored.stream(batch_size=3, rank=rank, world_size=2, remainder="keep")) for rank in (0, 1)]
    assert sorted(name for share in shares for batch in share for name in batch.ids) == sorted(zoo.ids)
    with pytest.raises(StateError, match="revision"):
        zoo.predictions("fashion-mnist/test").stream().load_state_dict(whole[1].state)


def test_batches_on_a_device_are_torch_tensors(path: Path, expected: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    batches = list(ckptzoo.open(path).predictions("mnist/test").stream(batch_size=8, remainder="keep", device="cpu"))
    assert batches[0]["logits"].dtype == torch.float16
    np.testing.assert_array_equal(torch.cat([batch["logits"] for batch in batches]).numpy(), expected)


def test_a_zoo_that_was_sent_to_another_process(path: Path, expected: np.ndarray) -> None:
    stored = copy.deepcopy(ckptzoo.open(path).predictions("mnist/test"))
    np.testing.assert_array_equal(np.asarray(stored.logits), expected)


def test_names_and_parts_that_are_not_there(tmp_path: Path) -> None:
    path = predicted_zoo(tmp_path / "zoo")
    with pytest.raises(UnknownNameError, match=r"expected one of fashion-mnist/test, mnist/test, got 'mnist/tets'"):
        ckptzoo.open(path).predictions("mnist/tets")
    fill(path, (2,), start=3)
    zoo = ckptzoo.open(path)
    step = rf"Take those that have it with zoo.having\('mnist/test'\), or run ckptzoo predict {path} mnist/test --inputs FILE"
    with pytest.raises(ZooError, match=rf"'mnist/test': expected all 24 checkpoints, got 22 \(2 without it\)\. {step}"):
        zoo.predictions("mnist/test")
    chosen = zoo.having("mnist/test", "raw")
    assert len(chosen) == 22 and len(chosen.predictions("mnist/test")) == 22
    assert len(zoo.take(slice(5)).predictions("mnist/test")) == 5
    with pytest.raises(UnknownNameError, match="variant or set 'mnist': expected one of raw, fashion-mnist/test"):
        zoo.having("mnist")
    with pytest.raises(UnknownNameError, match="expected one of raw, got 'predictions-mnist--test'"):
        zoo["conv1.weight", "predictions-mnist--test"]


@pytest.mark.slow
@pytest.mark.parametrize("compacted", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_hub_gives_the_same_as_the_folder(tmp_path: Path, compacted: bool) -> None:
    path = predicted_zoo(tmp_path / "zoo")
    near = ckptzoo.open(path)
    expected = np.asarray(near.predictions("mnist/test").logits).copy()
    if compacted:
        ckptzoo.compact(path)
        assert ckptzoo.open(path).contents.snapshot is not None
    with hosted(tmp_path / "served") as server:
        far = copy.deepcopy(open_on(server, path))
        assert far.predicted == SETS
        for chosen, rows in selections(far):
            assert_outputs(chosen, rows, expected)
        shuffled = far.predictions("mnist/test").stream(batch_size=6, shuffle=True, remainder="keep")
        assert [batch.ids for batch in shuffled] == [
            batch.ids for batch in near.predictions("mnist/test").stream(batch_size=6, shuffle=True, remainder="keep")
        ]
        grown = far.take(slice(22))
        fill(path, (1,), start=3)
        push(server, files_of(path))
        with pytest.raises(
            ZooError,
            match=r"expected all 23 checkpoints, got 22 \(1 without it\)\. Take those that have it with zoo.having\('mnist/test'\)\.$",
        ):
            far.refresh().predictions("mnist/test")
        assert len(grown.predictions("mnist/test")) == 22


def open_on(server: Hosted, path: Path) -> Zoo:
    server.api().create_repo("lab/zoo", repo_type="dataset")
    push(server, files_of(path))
    return ckptzoo.open("lab/zoo", endpoint=server.url)


def test_one_remote_checkpoint_costs_its_own_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoo"
    ckptzoo.create(path, arch=ARCH)
    fill(path, (10,))
    inputs = np.repeat(inputs_of(ARCH, 5).astype(np.float32), 1200, axis=0)
    predict(path, inputs, set="mnist/test")
    ckptzoo.compact(path)
    files = {f"/zoo/{name}": data for name, data in files_of(path).items()}
    with running(Served(files)) as served:
        monkeypatch.setenv("CKPTZOO_CACHE_SIZE", "0")
        stored = ckptzoo.open(f"{served.url}/zoo").predictions("mnist/test")
        before = served.sent
        row = stored.logits[7]
        assert row.nbytes == 120_000 and served.sent - before < 6 * 2**17
        np.testing.assert_array_equal(row, ckptzoo.open(path).predictions("mnist/test").logits[7])
