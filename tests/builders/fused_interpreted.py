"""The fused engine on a CPU, through Triton's interpreter.

``tests/builders/test_fused.py`` runs this file in a process of its own: ``TRITON_INTERPRET=1`` has to stand before
Triton is imported.
"""

import dataclasses

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from builders import data, engines, rng
from builders.data_source import DataSource
from builders.engines import fused
from builders.engines.fused import rng as drawn
from builders.recipe import ImageRecipe, Recipe
from builders.state import TrainingState
from ckptzoo import archs
from ckptzoo.errors import ZooError
from tests.support.effort import ALL, examples

torch.set_num_threads(1)
FULL = data.load(Recipe.load("digits-optunet"))
RECIPE = dataclasses.replace(
    data.require_images(Recipe.load("digits-optunet")), train=6, test=4, batch=4, milestones=(1,), learning_rate=0.05
)
"""Two steps an epoch, the second of two images; the rate halves after the first epoch."""
NAMES = ("conv1.weight", "conv2.weight", "fc.weight", "fc.bias")


def data_source(recipe: ImageRecipe, *, blank: bool = False) -> DataSource:
    images = FULL.train_images[: recipe.train].copy()
    if blank:
        images[::2] = 0
    few = dataclasses.replace(FULL, train_images=images, train_labels=FULL.train_labels[: recipe.train])
    return DataSource.of(recipe, few, "cpu")


@triton.jit
def draw(
    keys,
    items,
    corners,
    epoch,
    first,
    last,
    count: tl.constexpr,
    side: tl.constexpr,
    pad: tl.constexpr,
    width: tl.constexpr,
):
    key, lane = tl.load(keys), tl.arange(0, 32)
    position = tl.minimum(tl.load(first) + lane, tl.load(last)).to(tl.uint32)
    word = tl.load(epoch).to(tl.uint32)
    tl.store(items + lane, drawn.items(key, word, position, count, side).to(tl.int64))
    tl.store(corners + lane, drawn.corners(key, word, position, pad, width).to(tl.int64))


@settings(deadline=None, max_examples=examples(30, 4))
@given(
    key=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**20),
    count=st.integers(1, 3000) | st.integers(2**31 - 50, 2**31),
    pad=st.integers(0, 40),
    data=st.data(),
)
def test_order_and_crops_are_those_of_builders_draws(
    key: int, epoch: int, count: int, pad: int, data: st.DataObject
) -> None:
    first, width = data.draw(st.integers(0, count - 1)), 28 + 2 * pad
    last = min(count, first + 32) - 1
    keys = np.array([key], dtype=np.uint64)
    items, corners = torch.empty(2, 32, dtype=torch.int64)
    given = [torch.tensor([number]) for number in (epoch, first, last)]
    draw[(1,)](torch.from_numpy(keys.view(np.int64)), items, corners, *given, count, drawn.side(count), pad, width)
    positions = np.arange(first, last + 1)
    assert np.array_equal(items[: len(positions)], rng.order(keys, epoch, positions, count)[0])
    down, right = rng.crops(keys, epoch, positions, pad)
    assert np.array_equal(corners[: len(positions)], (down * width + right)[0])


@pytest.mark.exhaustive
def test_steps_are_those_of_the_general_engine_whatever_the_way_and_the_company() -> None:
    """Over the end of an epoch, with momentum and weight decay."""
    recipe = dataclasses.replace(RECIPE, momentum=0.9, weight_decay=0.01)
    images = data_source(recipe)
    ours, alone, theirs = (TrainingState.initial(recipe, seeds, "cpu") for seeds in ([3, 11], [11], [3, 11]))
    for stop in (1, 3):
        fused.advance(images, ours, stop)
        engines.get("general")(images, theirs, stop)
        assert ours.step == stop
        for name in NAMES:
            torch.testing.assert_close(ours.weights[name], theirs.weights[name], rtol=0, atol=1e-6)
            torch.testing.assert_close(ours.momentum[name], theirs.momentum[name], rtol=0, atol=1e-6)
    fused.advance(images, alone, 3)
    for name in NAMES:
        assert torch.equal(ours.weights[name][1:], alone.weights[name])
        assert torch.equal(ours.momentum[name][1:], alone.momentum[name])


def test_without_momentum_and_decay_they_are_those_of_both_other_engines() -> None:
    """Past a batch that is not full, and a change of the rate.

    By default it is one step of two images, one of them blank, and a channel is dead.
    """
    recipe = dataclasses.replace(RECIPE, weight_decay=0.0, train=6 if ALL else 2)
    images, stop = data_source(recipe, blank=not ALL), recipe.epoch_steps + 1 if ALL else 1
    states = [TrainingState.initial(recipe, [5], "cpu") for _ in range(3)]
    if not ALL:
        dead_channel(*states)
    for name, state in zip(("general", "optunet"), states, strict=False):
        engines.get(name)(images, state, stop)
    fused.advance(images, states[2], stop)
    for name in NAMES:
        torch.testing.assert_close(states[2].weights[name], states[0].weights[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(states[2].weights[name], states[1].weights[name], rtol=0, atol=1e-6)
    assert ALL or not states[2].weights["conv1.weight"][0, 1].any(), "a dead channel stays dead"


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1, 33])
def test_the_gradient_is_that_of_double_precision(size: int) -> None:
    """A step so large that what it leaves of the weights is the gradient; 33 images take 64 lanes."""
    rate = 2.0**24
    recipe = dataclasses.replace(RECIPE, train=40, batch=size, weight_decay=0.0, learning_rate=rate)
    images = data_source(recipe)
    state = TrainingState.initial(recipe, [2], "cpu")
    for tensor in state.weights.values():
        tensor.mul_(2)
    batch = next(images.batches(state.keys, 0, 1))
    weights = {name: tensor[0].double().requires_grad_() for name, tensor in state.weights.items()}
    outputs = torch.func.functional_call(archs.get("optunet")().double(), weights, (batch.inputs[0].double(),))
    nn.functional.cross_entropy(outputs, batch.targets[0]).backward()
    fused.advance(images, state, 1)
    for name, weight in weights.items():
        assert weight.grad is not None
        found = (weight.detach() - state.weights[name][0].double()) / rate
        assert (found - weight.grad).abs().max() < 2e-6 * max(1, weight.grad.abs().max().item())


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_weight_that_is_no_number_spreads_as_in_the_general_engine() -> None:
    images = data_source(RECIPE)
    ours, theirs = (
        TrainingState.initial(RECIPE, [0, 1, 2, 3], "cpu"),
        TrainingState.initial(RECIPE, [0, 1, 2, 3], "cpu"),
    )
    for state in (ours, theirs):
        for member, (name, value) in enumerate(zip(NAMES, (np.nan, np.inf, 3e38, -np.inf), strict=True)):
            state.weights[name][member].view(-1)[-1] = value
    fused.advance(images, ours, 1)
    engines.get("general")(images, theirs, 1)
    for name in NAMES:
        assert torch.equal(ours.weights[name].isnan(), theirs.weights[name].isnan())
        assert torch.equal(ours.weights[name].isinf(), theirs.weights[name].isinf())


def dead_channel(*states: TrainingState) -> None:
    """Let the first convolution's second channel answer 0 to everything."""
    for state in states:
        state.weights["conv1.weight"][0, 0].abs_()
        state.weights["conv1.weight"][0, 1] = 0


@pytest.mark.exhaustive  # by default the steps above have both
def test_blank_images_and_dead_channels_have_the_gradients_of_autograd() -> None:
    """Every window of a blank image is a tie, and a channel that is never above 0 has no gradient."""
    recipe = dataclasses.replace(RECIPE, crop_pad=0, weight_decay=0.0)
    images = data_source(recipe, blank=True)
    ours, theirs = TrainingState.initial(recipe, [0], "cpu"), TrainingState.initial(recipe, [0], "cpu")
    dead_channel(ours, theirs)
    fused.advance(images, ours, 1)
    engines.get("general")(images, theirs, 1)
    for name in NAMES:
        torch.testing.assert_close(ours.weights[name], theirs.weights[name], rtol=0, atol=1e-6)
    assert not ours.weights["conv1.weight"][0, 1].any(), "a dead channel stays dead"


def test_what_it_cannot_train_is_refused() -> None:
    state, images = TrainingState.initial(RECIPE, [0], "cpu"), data_source(RECIPE)
    with pytest.raises(ZooError, match="expected 28x28 pixels on cuda, got 27x28 on cpu"):
        fused.advance(dataclasses.replace(images, height=images.height - 1), state, 1)
    large = dataclasses.replace(images, recipe=dataclasses.replace(RECIPE, batch=257))
    with pytest.raises(ZooError, match="batch: expected 1 to 256 images, got 257"):
        fused.advance(large, state, 1)
