"""Mixes: every stream whole, the same order again, and an exact resume."""

import itertools
import json
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo import learning
from ckptzoo.errors import StateError, ZooError
from tests.support.effort import ALL

ROOT = Path(__file__).parents[2]


def streams(epochs=None):
    zoo, narrow = ckptzoo.open(ROOT / "cards/mnist-optunet"), ckptzoo.open(ROOT / "cards/cifar100-resnet18-w8")
    augment = learning.Augment(scales=0.1)
    return [
        learning.stream(zoo[:50], batch_size=8, augment=augment),
        learning.stream(zoo[50:71], batch_size=4, augment=augment, seed=2),
        learning.stream(narrow[:6], batch_size=3),
    ]


def told(batches):
    return [
        (batch.stream, batch.ids, next(iter(batch.x.values())).tobytes(), json.dumps(batch.state)) for batch in batches
    ]


@pytest.mark.exhaustive
def test_every_batch_is_of_one_zoo_and_streams_go_on():
    mix = learning.mix(streams(), weights=[1, 1, 2])
    assert len(mix) == 7 + 6 + 2
    batches = [batch for _ in range(8) for batch in mix]
    assert len(batches) == 8 * 15
    counts = [sum(batch.stream == at for batch in batches) for at in range(3)]
    assert 15 < counts[0] < 45 and 15 < counts[1] < 45 and 45 < counts[2] < 75
    for at, alone in enumerate(streams()):
        own = [batch for batch in batches if batch.stream == at]
        epochs = itertools.chain.from_iterable(itertools.repeat(alone))
        assert [batch.ids for batch in own] == [batch.ids for batch in itertools.islice(epochs, len(own))]


def test_a_mix_resumes_exactly_wherever_it_was_stopped():
    mix = learning.mix(streams(), seed=5)
    whole = told([*mix, *mix])
    for stop in (1, 4, 14, 15, 16, 29) if ALL else (4, 15):
        first = learning.mix(streams(), seed=5)
        taken = []
        while len(taken) < stop:
            for batch in first:
                taken.append(batch)
                if len(taken) == stop:
                    break
        then = learning.mix(streams(), seed=5)
        then.load_state_dict(json.loads(json.dumps(taken[-1].state)))
        left = []
        while len(left) < 30 - stop:
            left += list(then)
        assert told(taken) + told(left)[: 30 - stop] == whole


def test_seeds_differ():
    orders = {tuple(batch.stream for batch in learning.mix(streams(), seed=seed)) for seed in range(5)}
    assert len(orders) == 5


def test_what_cannot_be_mixed_is_refused():
    zoo = ckptzoo.open(ROOT / "cards/mnist-optunet")
    with pytest.raises(ZooError, match="stream 1: expected one batch or more"):
        learning.mix([learning.stream(zoo[:3]), learning.stream(zoo[:0])])
    for weights in ([1], [1, 2, -1], [1, 2, float("inf")], [0, 1, 1]):
        with pytest.raises(ZooError, match="as many positive numbers"):
            learning.mix(streams(), weights=weights)
    with pytest.raises(ZooError, match="one or more streams"):
        learning.mix([])
    state = learning.mix(streams()).state_dict()
    with pytest.raises(StateError, match="seed of the saved state"):
        learning.mix(streams(), seed=1).load_state_dict(state)
    with pytest.raises(StateError, match="mix of the saved state"):
        learning.mix(streams()[:2]).load_state_dict(state)
    with pytest.raises(StateError, match="a step and a state for each stream"):
        learning.mix(streams()).load_state_dict(state | {"step": -1})
