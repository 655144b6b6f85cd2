"""A stream stopped anywhere and resumed with other readers loses nothing and repeats nothing."""

import json
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import StateError, UnknownNameError, ZooError
from ckptzoo.loader.permutation import derive_key
from ckptzoo.loader.stream import EpochPlan, ReaderShard, Stream, is_even, rounds, row_blocks_of
from tests.conftest import MIXED
from tests.support.effort import ALL, examples

shuffles = st.sampled_from([False, True, "global"])


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 5), shuffles, st.integers(0, 99), st.data()
)
def test_an_epoch_is_a_permutation_and_any_piece_of_it_is_the_same(runs, window, shuffle, seed, data):
    row_blocks = np.cumsum([0, *runs])
    plan = EpochPlan(row_blocks, window, shuffle, seed, epoch=3)
    whole = plan.rows(np.arange(plan.count))
    assert sorted(whole.tolist()) == list(range(plan.count))
    start = data.draw(st.integers(0, plan.count))
    stop = data.draw(st.integers(start, plan.count))
    assert (EpochPlan(row_blocks, window, shuffle, seed, 3).rows(np.arange(start, stop)) == whole[start:stop]).all()
    if shuffle is True:  # rows of one window of pages come together
        page = np.searchsorted(row_blocks, whole, side="right")
        firsts = [page.tolist().index(found) for found in dict.fromkeys(page.tolist())]
        assert len(firsts) == len(runs)


def test_shuffling_shuffles_and_depends_on_seed_and_epoch():
    row_blocks = np.arange(0, 2001, 100)
    orders = [
        tuple(EpochPlan(row_blocks, 3, shuffle, seed, epoch).rows(np.arange(2000)).tolist())
        for shuffle in (True, "global")
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == 8
    for order in orders:
        assert abs(np.corrcoef(order, np.arange(2000))[0, 1]) < 0.5
    assert derive_key(1, 2) != derive_key(2, 1)


@settings(max_examples=examples(300), deadline=None)
@given(
    count=st.integers(0, 200),
    start=st.integers(0, 200),
    batch=st.integers(1, 40),
    world=st.integers(1, 5),
    workers=st.integers(1, 4),
    remainder=st.sampled_from(["error", "keep", "drop", "pad"]),
)
def test_readers_together_read_every_position_once_in_order(count, start, batch, world, workers, remainder):
    start = min(start, count)
    left = count - start
    if remainder == "error" and not is_even(left, batch, world):
        remainder = "keep"
    shares = [
        [
            found
            for turn in range(-(-left // batch) + 1)
            for found in rounds(count, start, batch, ReaderShard(rank, world, turn % workers, workers), remainder)[
                turn // workers : turn // workers + 1
            ]
        ]
        for rank in range(world)
    ]  # each rank's batches as a DataLoader collects them: worker after worker
    turns = max(map(len, shares))
    order = [
        position
        for turn in range(turns)
        for share in shares
        for first, size, _ in share[turn : turn + 1]
        for position in range(first, first + size)
    ]
    if remainder == "drop":
        assert order == list(range(start, start + left // (batch * world) * batch * world))
    elif remainder == "pad":
        assert order[:left] == list(range(start, count)) and len(order) - left < world
    else:
        assert order == list(range(start, count))
    if remainder != "keep":
        assert len({sum(size for _, size, _ in share) for share in shares}) == 1


@pytest.fixture
def zoo(make_zoo):
    return ckptzoo.open(make_zoo((9, 17, 5, 30, 2))[0])


def ids_of(batches):
    return [name for batch in batches for name in batch.ids]


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_stopped_at_every_position_and_resumed_with_another_batch_size(zoo, shuffle):
    def stream(batch_size):
        return zoo.stream("conv", "half.weight", batch_size=batch_size, shuffle=shuffle, seed=5)

    whole = stream(4)
    epochs = [ids_of(whole), ids_of(whole)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(zoo.ids)
    assert (epochs[0] == epochs[1]) == (shuffle is False)
    for number, batch in enumerate(stream(1)):
        state = json.loads(json.dumps(batch.state))
        resumed = stream(7)
        resumed.load_state_dict(state)
        assert ids_of(resumed) == (epochs[0][number + 1 :] or epochs[1])


def test_the_arrays_are_the_rows_of_the_ids(zoo, make_zoo):
    full = {name: np.asarray(zoo[name]) for name in zoo.arch.names}
    place = {name: at for at, name in enumerate(zoo.ids)}
    for batch in zoo.stream(batch_size=8, shuffle=True, seed=1):
        rows = [place[name] for name in batch.ids]
        for name in zoo.arch.names:
            assert batch[name].tobytes() == full[name][rows].tobytes()


def test_states_move_with_the_consumer(zoo):
    stream = zoo.stream("flag", batch_size=10, shuffle=True)
    start = stream.state_dict()
    iterator = iter(stream)
    first = next(iterator)
    assert stream.state_dict() == first.state != start
    assert next(iter(stream)).ids == first.ids  # broken off: the next iteration starts where it did
    for batch in stream:
        assert batch.ids == first.ids
        break
    assert next(iter(stream)).ids == first.ids
    assert len(ids_of(stream)) == 63 and stream.state_dict()["epoch"] == 1
    stream.set_epoch(0)
    assert stream.state_dict() == start
    assert len(stream) == 7


def test_a_state_of_another_stream_is_refused(zoo, make_zoo):
    state = zoo.stream("flag", seed=1).state_dict()
    for other in (
        zoo.stream("conv"),
        zoo.stream("flag", shuffle=True),
        zoo.take(slice(5)).stream("flag"),
        ckptzoo.open(make_zoo((5,), name="other")[0]).stream("flag"),
    ):
        with pytest.raises(StateError, match="of the saved state: expected sha256"):
            other.load_state_dict(state)
    for broken in ({"position": 63}, {"position": -1}, {"position": "1"}, {"epoch": None}, {"seed": 1.5}):
        with pytest.raises(StateError, match="saved state"):
            zoo.stream("flag").load_state_dict(state | broken)


def test_unequal_shares_are_an_error_unless_said(zoo):
    with pytest.raises(ZooError, match="remainder='keep', 'drop' or 'pad'"):
        list(zoo.stream("flag", batch_size=4, world_size=2))
    assert len(ids_of(zoo.stream("flag", batch_size=4, world_size=2, remainder="pad"))) == 32
    for options, message in (
        ({"rank": 2, "world_size": 2}, "rank: expected an integer from 0 to 1, got 2"),
        ({"world_size": 0}, "world_size: expected an integer from 1, got 0"),
        ({"batch_size": 2.5}, "batch_size: expected an integer, got float 2.5"),
    ):
        with pytest.raises(ZooError, match=message):
            zoo.stream("flag", **options)
    with pytest.raises(ZooError, match="shuffle: expected one of"):
        zoo.stream("flag", shuffle="blocks")
    with pytest.raises(UnknownNameError, match="Did you mean flag"):
        zoo.stream("flg")


def test_an_empty_zoo_streams_nothing(tmp_path):
    ckptzoo.create(tmp_path / "zoo", arch=MIXED)
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert list(zoo.stream("flag", shuffle=True)) == [] and zoo["flag"][:].shape == (0, 1)
    assert list(zoo.stream(shuffle="global", remainder="pad")) == []


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.sampled(2)
def test_dataloader_workers_keep_the_order_and_resume_exactly(zoo, context):
    from torch.utils.data import DataLoader

    def loader(dataset, workers):
        method = context if workers else None
        return DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method)

    expected = ids_of(zoo.stream("conv", batch_size=4, shuffle=True, seed=2))
    for workers in (0, 1, 3) if context == "fork" else (2 if ALL else 1,):
        dataset = zoo.to_torch("conv", batch_size=4, shuffle=True, seed=2)
        batches = list(loader(dataset, workers))
        assert ids_of(batches) == expected
        assert batches[0]["conv.weight"].shape == (4, 3, 2, 2)
        dataset.load_state_dict(batches[5].state)
        others = 2 - workers // 2 if context == "fork" or ALL else 0  # each that is spawned imports torch
        assert ids_of(loader(dataset, others)) == expected[24:]
        dataset.set_epoch(1)
        assert sorted(ids_of(loader(dataset, 0))) == sorted(expected)


RANKS = """
import json, os, sys
import torch.distributed as dist, ckptzoo
from torch.utils.data import DataLoader
# one process imports torch, and the ranks of every run, each a line, are its children
while line := sys.stdin.readline():
    world, remainder, state, workers = json.loads(line)
    children = []
    for rank in range(world):
        children.append(os.fork())
        if children[-1] == 0:
            break
    else:
        if any([os.waitpid(child, 0)[1] for child in children]):
            sys.exit(1)
        continue
    break
else:
    sys.exit()
dist.init_process_group("gloo", init_method=f"{sys.argv[2]}-{world}", rank=rank, world_size=world)
zoo = ckptzoo.open(sys.argv[1])
dataset = zoo.to_torch("conv", batch_size=4, shuffle=True, seed=2, remainder=remainder)
if state is not None:
    dataset.load_state_dict(state)
loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None)
seen = [(list(batch.ids), batch.state) for batch in loader]
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, seen)
if dist.get_rank() == 0:
    print("RESULT" + json.dumps(gathered), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.exhaustive
def test_real_ranks_share_the_zoo_and_resume_with_another_number(zoo, tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    command = [sys.executable, str(program), str(zoo.path), f"file://{tmp_path}/rendezvous"]
    expected = ids_of(zoo.stream("conv", batch_size=4, shuffle=True, seed=2))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:

        def ranks(*run: Any) -> list[list[tuple[list[str], dict]]]:
            print(json.dumps(run), file=running.stdin, flush=True)
            line = next((line for line in running.stdout if "RESULT" in line), "")
            return json.loads(line.partition("RESULT")[2])

        two = ranks(2, "keep", None, 2)
        merged = [name for turn in range(8) for rank in two for ids, _ in rank[turn : turn + 1] for name in ids]
        assert merged == expected
        three = ranks(3, "pad", two[0][2][1], 0)  # behind the third round: 24 rows
        running.stdin.close()
    merged = [name for turn in range(9) for rank in three for ids, _ in rank[turn : turn + 1] for name in ids]
    assert merged[:39] == expected[24:]
    assert len({sum(len(ids) for ids, _ in rank) for rank in three}) == 1
    assert running.returncode == 0


def test_a_zoo_and_its_streams_go_to_other_processes(zoo):
    again = ForkingPickler.loads(ForkingPickler.dumps(zoo.where("seed > 3")))
    assert again.ids == zoo.where("seed > 3").ids
    assert np.asarray(again["half.weight"]).tobytes() == np.asarray(zoo.where("seed > 3")["half.weight"]).tobytes()


def test_torch_batches_are_prefetched_and_own_their_memory(zoo):
    import torch

    stream = zoo.stream("conv", batch_size=10, shuffle=True, seed=1, device="cpu")
    assert len(stream) == 7
    seen = []
    for batch in stream:
        assert stream.state_dict() == batch.state
        assert isinstance(batch["conv.weight"], torch.Tensor)
        batch["conv.weight"].zero_()
        seen += batch.ids
    assert seen == ids_of(zoo.stream("conv", batch_size=10, shuffle=True, seed=1))
    assert all(np.abs(np.asarray(view)).sum() > 0 for view in zoo["conv.weight"])
    assert sorted(ids_of(stream)) == sorted(seen) and stream.state_dict()["epoch"] == 2


def test_datasets_iterable(zoo):
    examples = zoo.to_datasets("conv", "flag", shards=5)
    assert examples.num_shards == 5
    read = list(examples)
    assert [example["id"] for example in read] == zoo.ids
    assert np.asarray(read[7]["conv.weight"], "f4").tobytes() == zoo["conv.weight"][7].tobytes()


def test_blocks_of_rows_are_the_pages():
    assert row_blocks_of(np.array([0, 1, 2, 5, 9, 3]), np.array([0, 4, 8])).tolist() == [0, 3, 4, 5, 6]


def test_a_stream_uses_no_memory_of_its_own(zoo):
    batch = next(iter(Stream(zoo.source(("conv",), "raw"), batch_size=5)))
    assert not batch["conv.weight"].flags.owndata and not batch["conv.weight"].flags.writeable
