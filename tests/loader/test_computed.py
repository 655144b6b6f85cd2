"""A variant that stores only its group elements reads as one that stores its weights, bit for bit."""

import os
import shutil
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.format.shard import ShardMap
from ckptzoo.loader import computed
from ckptzoo.loader.computed import table_of_tensor
from ckptzoo.loader.shard_index import ShardIndex
from ckptzoo.schema.groups import Sym
from ckptzoo.symmetry import apply
from tests.support.derived_parts import ARCH, TABLE, elements_of, raw_of, write_raw, write_variant
from tests.support.effort import examples

PARTS = (7, 1, 9, 4)
COUNT = sum(PARTS)
UNGAUGED = (2, 16)
HOW = {
    "computed": {"bare": (True,) * 4},
    "mixed": {"bare": (False, True, False, True)},
    "another order": {"bare": (True, False, True, True), "order": (2, 0, 3, 1)},
    "short shards": {"bare": (True, False, True, True), "rows_a_shard": 2},
}


@pytest.fixture(scope="module")
def zoos(tmp_path_factory):
    """The same zoo with its variant stored and in other ways, and with a raw part that is not finite."""
    folder = tmp_path_factory.mktemp("computed")
    weights = raw_of(COUNT)
    for row in UNGAUGED:
        weights["conv.weight"][row, 0, 1] = np.nan
        weights["norm.bias"][row] = np.inf
    write_raw(folder / "raw", PARTS, weights, rows_a_shard=3)
    made = {}
    for name, how in {"stored": {"bare": (False,) * 4}, **HOW}.items():
        shutil.copytree(folder / "raw", folder / name)
        write_variant(folder / name, elements_of(COUNT, ungauged=UNGAUGED), ungauged=UNGAUGED, **how)
        assert ckptzoo.verify(folder / name) == []
        made[name] = ckptzoo.open(folder / name)
    return made


@pytest.fixture(params=HOW)
def pair(request, zoos):
    return zoos["stored"], zoos[request.param]


def same(one, other):
    """Equal bits, shape and dtype."""
    one, other = np.asarray(one), np.asarray(other)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert one.tobytes() == other.tobytes()


@pytest.mark.slow
def test_what_the_zoo_says_of_the_variant(pair):
    stored, other = pair
    assert other.variants == ("raw", "made")
    for name in (*ARCH.names, "tied.weight"):
        one, two = stored[name, "made"], other[name, "made"]
        assert (two.shape, two.dtype, two.nbytes, two.size) == (one.shape, one.dtype, one.nbytes, one.size)
        assert "computed from" in repr(two) and "computed" not in repr(one)
    assert other["fc.weight", "made"].dtype == np.float32 and other["norm.running_mean", "made"].dtype == np.float64
    assert other["fc.order", "made"].dtype == np.int32 and other["norm.num_batches_tracked", "made"].ndim == 1
    assert other.variant_metadata("made")["id"].to_pylist() == other.ids
    for name, element in stored.group_element("made").items():
        same(element, other.group_element("made")[name])


@pytest.mark.parametrize("name", [*ARCH.names, "tied.weight"])
@pytest.mark.sampled(2)
def test_the_variant_is_g_applied_to_raw(zoos, name):
    raw = {tensor: np.asarray(zoos["computed"][tensor]) for tensor in ARCH.names}
    expected = apply(elements_of(COUNT, ungauged=UNGAUGED), raw, TABLE)["fc.weight" if "tied" in name else name]
    same(zoos["computed"][name, "made"], expected)
    same(zoos["stored"][name, "made"], expected)


@pytest.mark.parametrize(
    "key",
    [
        0, -1, 16, slice(None), slice(3, 11), slice(None, None, -1), slice(None, None, 3), slice(5, 5), slice(7, 8),
        [20, 3, 3, 8], np.arange(COUNT) % 3 == 1, np.array([], int), ..., (slice(2, 19), 0), (4, 1), ([9, 2], ..., 0),
        (slice(None), None), ([5, 12], [0, 1]), ([9, 2, 2], slice(None), 1), (slice(0, 0), 1),
    ],
)  # fmt: skip
@pytest.mark.sampled(2)
def test_every_index_reads_the_same(pair, key):
    stored, other = pair
    for name in ("conv.weight", "fc.weight", "grouped.weight", "head.weight", "free.scale"):
        same(stored[name, "made"][key], other[name, "made"][key])


def test_what_is_no_index_is_refused(pair):
    for key, kind in ((COUNT, IndexError), ([0, 99], IndexError), ((0, 9), IndexError)):
        with pytest.raises(kind):
            pair[1]["conv.weight", "made"][key]
    with pytest.raises(ValueError, match="a view"):
        np.array(pair[1]["conv.weight", "made"], copy=False)


def test_rows_come_in_order_piece_by_piece(pair, monkeypatch):
    stored, other = pair
    for step in (1, 2, 5, 1000):
        monkeypatch.setattr(computed, "PIECE_BYTES", step * ARCH["conv.weight"].nbytes)
        views = list(other["conv.weight", "made"].views())
        same(np.concatenate(views), stored["conv.weight", "made"])
        same(list(other["conv.weight", "made"]), stored["conv.weight", "made"])
        for rows in (slice(None), np.random.default_rng(step).permutation(COUNT), slice(1, 15, 2)):
            same(other["conv.weight", "made"][rows], stored["conv.weight", "made"][rows])
            same(other["conv.weight", "made"][rows, 2], stored["conv.weight", "made"][rows, 2])


def test_pieces_are_bounded(zoos, monkeypatch):
    seen = []
    monkeypatch.setattr(computed, "PIECE_BYTES", 5 * ARCH["conv.weight"].nbytes)
    monkeypatch.setattr(
        computed, "apply", lambda element, weights, table: seen.append(len(element)) or apply(element, weights, table)
    )
    np.asarray(zoos["computed"]["conv.weight", "made"])
    assert seen == [5, 5, 5, 5, 1]


def test_only_the_tensor_and_the_groups_that_act_on_it_are_read(zoos, monkeypatch):
    seen, opened = set(), []
    locations, mapped = ShardIndex.locations, ShardMap.__init__
    monkeypatch.setattr(ShardIndex, "locations", lambda self, *key: seen.add(key) or locations(self, *key))
    monkeypatch.setattr(
        ShardMap, "__init__", lambda self, path, **size: opened.append(path) or mapped(self, path, **size)
    )
    for name, groups in {
        "fc.weight": ("norm.perm", "norm.scale", "fc.perm", "fc.scale"),
        "grouped.weight": ("blocks.perm", "blocks.scale", "grouped.perm"),
        "norm.running_var": ("conv.perm", "conv.scale"),
        "free.weight": (),
    }.items():
        seen.clear()
        opened.clear()
        zoo = ckptzoo.open(zoos["computed"].path)
        zoo[name, "made"][8:10]
        assert seen == {("raw", name), *(("g", group) for group in groups)}
        assert {path.rpartition("/")[2] for path in opened} == (
            {"raw-00.safetensors", "g-00.safetensors"} if groups else {"raw-00.safetensors"}
        )


def test_the_table_of_one_tensor():
    table = table_of_tensor("fc.weight", TABLE)
    assert [group.id for group in table.groups] == ["norm", "fc"] and table["norm"].perm == Sym()
    assert table.actions == TABLE.actions_on("fc.weight")
    assert table_of_tensor("free.weight", TABLE).groups == ()


def test_selections_meet_their_own_rows(pair):
    stored, other = pair
    for rows in ([6, 1, 20, 12], slice(8, 3, -1), np.random.default_rng(0).permutation(COUNT)):
        one, two = stored.take(rows), other.take(rows)
        assert one.ids == two.ids == [stored.ids[row] for row in np.arange(COUNT)[rows]]
        assert two.variant_metadata("made")["id"].to_pylist() == two.ids
        same(one["fc.weight", "made"], two["fc.weight", "made"])
        same(one["fc.weight", "made"][1:3], two["fc.weight", "made"][1:3])
    one, two = stored.where("seed >= 5 and seed < 18"), other.where("seed >= 5 and seed < 18")
    same(one["blocks.weight", "made"], two["blocks.weight", "made"])


@pytest.mark.slow
def test_checkpoints_and_ensembles(pair):
    stored, other = pair
    for name in other.ids:
        one, two = stored.checkpoint(name, variant="made"), other.checkpoint(name, variant="made")
        assert two.row == one.row and two.variant == "made" and list(one) == list(two)
        for tensor in (*ARCH.names, "tied.weight"):
            same(one[tensor], two[tensor])
        states = one.state_dict(), two.state_dict()
        assert list(states[0]) == list(states[1])
        for tensor in states[0]:
            same(states[0][tensor].numpy(), states[1][tensor].numpy())
        states[1]["conv.weight"].zero_()
        same(one["conv.weight"], two["conv.weight"])
    for options in ({}, {"limit": 5}, {"limit": 9, "device": "cpu"}):
        one, two = stored.ensemble(variant="made", **options), other.ensemble(variant="made", **options)
        for tensor, value in one.items():
            same(value.numpy(), two[tensor].numpy())
        two["conv.weight"].zero_()
    assert np.nan_to_num(other["conv.weight", "made"]).any() and np.nan_to_num(other["conv.weight"]).any()


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_streams_have_the_same_batches_and_states(zoos, shuffle):
    options = {"variant": "made", "batch_size": 4, "shuffle": shuffle, "seed": 3}
    for other in ("computed", "mixed"):
        one, two = (zoos[name].stream("conv", "fc", "free.weight", **options) for name in ("stored", other))
        for epoch in range(2):
            for a, b in zip(one, two, strict=True):
                assert (a.ids, a.state) == (b.ids, b.state)
                for tensor in a.tensors:
                    same(a[tensor], b[tensor])
            assert one.state_dict() == two.state_dict() and two.state_dict()["epoch"] == epoch + 1
        state = next(iter(one)).state
        two.load_state_dict(state)
        one.load_state_dict(state)
        assert [batch.ids for batch in one] == [batch.ids for batch in two]


def test_pages_are_those_of_a_stored_variant(zoos, monkeypatch):
    monkeypatch.setattr("ckptzoo.format.part.SHARD_BYTES", 1)
    for stored, other in (("stored", "computed"), ("stored", "mixed")):
        one, two = (zoos[name].source((), "made").readers for name in (stored, other))
        for name in ARCH.names:
            assert one[name].row_blocks.tolist() == two[name].row_blocks.tolist()
    monkeypatch.setattr(computed, "BLOCK_BYTES", 3 * 24 * 4)
    assert zoos["computed"].source((), "made").readers["conv.weight"].row_blocks.tolist() == [
        0,
        3,
        6,
        7,
        8,
        11,
        14,
        17,
        20,
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.sampled(3)
def test_torch_and_datasets_read_the_same(pair):
    from torch.utils.data import DataLoader

    other = pair[1]
    options = {"variant": "made", "batch_size": 5, "shuffle": "global", "seed": 1}
    datasets = [zoo.to_torch("conv", "head", **options) for zoo in pair]
    loaders = [
        DataLoader(datasets[0], batch_size=None),
        DataLoader(datasets[1], batch_size=None, num_workers=2, multiprocessing_context="fork"),
        other.stream("conv", "head", **options, device="cpu"),
    ]
    for batches in zip(*loaders, strict=True):
        for batch in batches[1:]:
            assert batch.ids == batches[0].ids
            for tensor in batch.tensors:
                same(batch[tensor].numpy(), batches[0][tensor].numpy())
    one, two = (list(zoo.to_datasets("fc.weight", variant="made", shards=3)) for zoo in pair)
    assert [item["id"] for item in two] == other.ids
    same([item["fc.weight"] for item in one], [item["fc.weight"] for item in two])


def test_zoos_and_streams_go_to_other_processes(pair):
    stored, other = pair
    again = ForkingPickler.loads(ForkingPickler.dumps(other.take([5, 0, 20])))
    same(again["fc.weight", "made"], stored["fc.weight", "made"][[5, 0, 20]])
    stream = ForkingPickler.loads(ForkingPickler.dumps(other.stream("fc", variant="made", batch_size=8)))
    same(next(iter(stream))["fc.weight"], stored["fc.weight", "made"][:8])


def test_a_variant_of_which_parts_are_missing_is_refused(zoos, tmp_path):
    shutil.copytree(zoos["computed"].path, tmp_path / "zoo")
    shutil.rmtree(sorted((tmp_path / "zoo/derived/made").iterdir())[1])
    zoo = ckptzoo.open(tmp_path / "zoo")
    with pytest.raises(
        ZooError,
        match=r"variant 'made': expected all 21 checkpoints, got 20 \(1 without it\)\. Take those that have it with zoo.having\('made'\), or run ckptzoo derive .*zoo",
    ):
        zoo["conv.weight", "made"]
    some = zoo.take(slice(8, None))
    same(some["conv.weight", "made"], zoos["stored"]["conv.weight", "made"][8:])


def test_retracted_checkpoints_and_snapshots(zoos, tmp_path):
    shutil.copytree(zoos["mixed"].path, tmp_path / "zoo")
    ckptzoo.retract(tmp_path / "zoo", ["m00000", "m00009"], reason="a test")
    ckptzoo.compact(tmp_path / "zoo")
    assert ckptzoo.verify(tmp_path / "zoo") == []
    with pytest.warns(UserWarning, match="retracted"):
        zoo = ckptzoo.open(tmp_path / "zoo")
    left = [at for at in range(COUNT) if at not in (0, 9)]
    assert zoo.contents.snapshot is not None and len(zoo) == COUNT - 2
    for name in ARCH.names:
        same(zoo[name, "made"], np.asarray(zoos["stored"][name, "made"])[left])


@pytest.mark.slow
@settings(max_examples=examples(25, 4), deadline=None)
@given(data=st.data())
def test_any_parts_shards_and_rows(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any") / "zoo"
    parts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    count, seed = sum(parts), data.draw(st.integers(0, 99))
    ungauged = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    weights, element = raw_of(count, seed), elements_of(count, ungauged=tuple(ungauged), seed=seed)
    write_raw(folder, parts, weights, rows_a_shard=data.draw(st.integers(1, 4)))
    write_variant(
        folder,
        element,
        bare=data.draw(st.lists(st.booleans(), min_size=len(parts), max_size=len(parts))),
        order=data.draw(st.permutations(range(len(parts)))),
        ungauged=tuple(ungauged),
        rows_a_shard=data.draw(st.integers(1, 4)),
    )
    assert ckptzoo.verify(folder) == []
    zoo, expected = ckptzoo.open(folder), apply(element, weights, TABLE)
    rows = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=8)), dtype=int)
    for name in ARCH.names:
        same(zoo[name, "made"], expected[name])
        same(zoo[name, "made"][rows], expected[name][rows])
        same(np.concatenate(list(zoo[name, "made"].views())), expected[name])
    batch = next(iter(zoo.stream(variant="made", batch_size=count, shuffle=True, seed=seed)))
    places = [zoo.ids.index(name) for name in batch.ids]
    same(batch["fc.weight"], expected["fc.weight"][places])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_reading_raw_needs_no_symmetry(zoos):
    code = (
        "import sys, ckptzoo\n"
        "zoo = ckptzoo.open(sys.argv[1])\n"
        "zoo['conv.weight'][:], zoo.variants, dict(zoo.checkpoint('m00001')), list(zoo.stream())\n"
        "assert 'ckptzoo.symmetry' not in sys.modules\n"
        "zoo['conv.weight', 'made'][:1]\n"
        "assert 'ckptzoo.symmetry' in sys.modules and 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(ckptzoo.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code, str(zoos["computed"].path)], env=environment, check=True)
