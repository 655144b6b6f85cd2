"""What every engine must do, and what the trainer makes of it."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from builders import data, draws, engines
from builders.material import Material, steps
from builders.philox import below, philox, uniform
from builders.recipe import Recipe
from builders.state import State
from builders.train import trainer
from ckptzoo import archs
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure import uncertainty

DIGITS = Recipe.load("digits-optunet")
FULL = data.load(DIGITS)
ENGINES = engines.names()
SMALL = dataclasses.replace(DIGITS, train=150, test=40, batch=32, milestones=(1,))
"""Five steps an epoch, the last of 22 images; the rate halves after the first epoch."""
FEW = data.Data(
    "digits", FULL.train_images[:150], FULL.train_labels[:150], FULL.test_images[:40], FULL.test_labels[:40]
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_philox_gives_the_known_answers() -> None:
    ones = 0xFFFFFFFF
    pi = ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822)
    for (counter, key), answer in (
        (((0, 0, 0, 0), 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (((ones, ones, ones, ones), 2**64 - 1), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (pi, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ):
        assert tuple(int(word[0]) for word in philox(counter, key)) == answer
        tensor = torch.from_numpy(np.array([key], dtype=np.uint64).view(np.int64))
        assert tuple(int(word[0]) for word in philox(counter, tensor)) == answer


def test_numbers_made_from_words_cover_their_range() -> None:
    words = np.array([0, 2**31, 2**32 - 1])
    assert below(words, 9).tolist() == [0, 4, 8]
    low, middle, high = uniform(words)
    assert 0 < low == 1 - high < 1e-6
    assert abs(middle - 0.5) < 1e-6


def test_draws_are_functions_of_key_epoch_and_position() -> None:
    keys = draws.member_keys(DIGITS.digest, range(16))
    assert len(set(keys.tolist())) == 16
    assert keys[7] == draws.member_keys(DIGITS.digest, [7])[0]
    assert keys[7] != draws.member_keys(SMALL.digest, [7])[0]
    positions = np.arange(1437)
    order = draws.order(keys, 3, positions, 1437)
    down, right = draws.crops(keys, 3, positions, 2)
    assert np.array_equal(np.sort(order, axis=1), np.tile(positions, (16, 1)))
    assert set(down.ravel()) == set(right.ravel()) == {0, 1, 2, 3, 4}
    some = np.array([5, 1000, 77])
    assert np.array_equal(draws.order(keys[7:8], 3, some, 1437)[0], order[7, some])
    assert np.array_equal(np.stack(draws.crops(keys[7:8], 3, some, 2))[:, 0], np.stack([down, right])[:, 7, some])
    lanes, places = torch.from_numpy(keys.view(np.int64)), torch.from_numpy(positions)
    assert np.array_equal(draws.order(lanes, 3, places, 1437).numpy(), order)
    assert np.array_equal(torch.stack(draws.crops(lanes, 3, places, 2)).numpy(), np.stack([down, right]))
    assert (draws.order(keys, 4, positions, 1437) == order).mean() < 0.01
    counts = np.bincount((down * 5 + right).ravel(), minlength=25)
    assert abs(((counts - counts.mean()) ** 2).sum() / counts.mean() - 24) < 5 * math.sqrt(48)


def test_initial_weights_are_pytorchs_distribution() -> None:
    arch = archs.architecture("optunet")
    made = draws.initial_weights(arch, draws.member_keys("sha256:" + 64 * "0", range(400)))
    for tensor in arch.tensors:
        values = made[tensor.name]
        bound = {"conv1.weight": 1 / 4, "conv2.weight": 1 / 5}.get(tensor.name, 1 / math.sqrt(10))
        assert values.shape == (400, *tensor.shape)
        assert values.dtype == np.float32
        assert 0.97 * bound < np.abs(values).max() <= bound
        deviation = 5 * bound / math.sqrt(values.size)
        assert abs(values.mean()) < deviation
        assert abs(values.var() - bound**2 / 3) < bound * deviation
        assert len(np.unique(values)) > 0.9 * values.size


def plain(recipe: Recipe, source: data.Data, seed: int, stop: int) -> dict[str, torch.Tensor]:
    """One member by ordinary PyTorch: a module, autograd, torch.optim.SGD, images cropped one by one."""
    model = archs.get(recipe.architecture)()
    start = draws.initial_weights(archs.architecture(recipe.architecture), draws.member_keys(recipe.digest, [seed]))
    model.load_state_dict({name: torch.from_numpy(array[0]) for name, array in start.items()})
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    key, pad = draws.member_keys(recipe.digest, [seed]), recipe.crop_pad
    for step in range(stop):
        epoch, number = divmod(step, recipe.epoch_steps)
        optimiser.param_groups[0]["lr"] = recipe.learning_rate * (recipe.factor if epoch >= 1 else 1.0)
        positions = np.arange(number * recipe.batch, min((number + 1) * recipe.batch, recipe.train))
        items = draws.order(key, epoch, positions, recipe.train)[0]
        down, right = (part[0] for part in draws.crops(key, epoch, positions, pad))
        padded = np.pad(source.train_images[items], ((0, 0), (pad, pad), (pad, pad)))
        cropped = np.stack([image[y : y + 28, x : x + 28] for image, y, x in zip(padded, down, right, strict=True)])
        inputs = torch.from_numpy(data.inputs(recipe, cropped))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), torch.from_numpy(source.train_labels[items])).backward()
        optimiser.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_engine_takes_the_steps_of_torch_optim(engine: str, momentum: float) -> None:
    recipe = dataclasses.replace(SMALL, momentum=momentum, learning_rate=0.05, weight_decay=0.01)
    seeds = [3, 11, 5]
    state = State.initial(recipe, seeds, "cpu")
    engines.get(engine)(Material.of(recipe, FEW, "cpu"), state, 12)
    assert state.step == 12
    for number, seed in enumerate(seeds):
        for name, expected in plain(recipe, FEW, seed, 12).items():
            torch.testing.assert_close(state.weights[name][number], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_member_is_the_same_alone_and_among_sixteen(engine: str) -> None:
    with trainer(DIGITS, FULL, engine=engine) as crew:
        together, alone = crew.start(range(16)), crew.start([7])
        shared = list(steps(crew.material, together.keys, 0, DIGITS.epoch_steps))
        single = list(steps(crew.material, alone.keys, 0, DIGITS.epoch_steps))
        assert len(shared) == len(single) == DIGITS.epoch_steps
        for many, one in zip(shared, single, strict=True):
            assert torch.equal(many.corners[7], one.corners[0])
            assert torch.equal(many.labels[7], one.labels[0])
        crew.advance(together, DIGITS.epoch_steps)
        crew.advance(alone, DIGITS.epoch_steps)
    for name, tensor in together.weights.items():
        torch.testing.assert_close(tensor[7], alone.weights[name][0], rtol=0, atol=1e-4)
        assert not torch.allclose(tensor[7], tensor[8], atol=1e-2)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_way_to_a_step_does_not_matter(engine: str) -> None:
    material = Material.of(dataclasses.replace(SMALL, momentum=0.9), FEW, "cpu")
    recipe, advance = material.recipe, engines.get(engine)
    whole, pieces = State.initial(recipe, [1, 2], "cpu"), State.initial(recipe, [1, 2], "cpu")
    advance(material, whole, 13)
    for stop in (1, 2, 5, 9, 13):
        advance(material, pieces, stop)
    for name in whole.weights:
        assert torch.equal(whole.weights[name], pieces.weights[name])
        assert torch.equal(whole.momentum[name], pieces.momentum[name])


def test_engines_agree_over_an_epoch_of_digits() -> None:
    states = []
    for engine in ENGINES:
        with trainer(DIGITS, FULL, engine=engine) as crew:
            states.append(crew.start([0, 1, 2]))
            crew.advance(states[-1], DIGITS.epoch_steps)
    for name, tensor in states[0].weights.items():
        torch.testing.assert_close(tensor, states[1].weights[name], rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_blank_images_and_dead_channels_have_the_gradients_of_autograd(engine: str) -> None:
    """Every window of a blank image is a tie, and a channel that is never above 0 has no gradient."""
    blank = dataclasses.replace(FEW, train_images=FEW.train_images.copy())
    blank.train_images[::2] = 0
    state = State.initial(SMALL, [0], "cpu")
    state.weights["conv1.weight"][0, 0] = state.weights["conv1.weight"][0, 0].abs()
    state.weights["conv1.weight"][0, 1] = 0
    model = archs.get("optunet")()
    model.load_state_dict({name: tensor[0].clone() for name, tensor in state.weights.items()})
    material = Material.of(dataclasses.replace(SMALL, weight_decay=0.0, crop_pad=0), blank, "cpu")
    step = next(steps(material, state.keys, 0, 1))
    images = material.seen(material.pixels.view(-1, 1, 28, 28)[step.corners[0] // 784])
    nn.functional.cross_entropy(model(images), step.labels[0]).backward()
    before = {name: tensor[0].clone() for name, tensor in state.weights.items()}
    engines.get(engine)(material, state, 1)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        expected = before[name] - SMALL.learning_rate * parameter.grad
        torch.testing.assert_close(state.weights[name][0], expected, rtol=0, atol=1e-6)
    assert not state.weights["conv1.weight"][0, 1].any(), "a dead channel stays dead"


def test_measures_are_those_of_each_member_alone() -> None:
    with trainer(SMALL, FEW) as crew:
        state = crew.start(range(11))
        found = crew.measure(state.weights)
    for member in range(11):
        model = archs.get("optunet")()
        model.load_state_dict({name: tensor[member] for name, tensor in state.weights.items()})
        for half, columns in (("train", ("loss", "accuracy")), ("test", ("loss", "accuracy", "nll", "brier", "ece"))):
            images, labels = getattr(FEW, f"{half}_images"), getattr(FEW, f"{half}_labels")
            with torch.no_grad():
                logs = model(torch.from_numpy(data.inputs(SMALL, images))).double().log_softmax(-1).numpy()
            for column in columns:
                score = uncertainty.nll if column == "loss" else getattr(uncertainty, column)
                assert found[f"{half}_{column}"][member] == pytest.approx(float(score(logs, labels)), abs=1e-5)
    assert found["diverged"].tolist() == (found["train_loss"] > math.log(10)).tolist()


def test_diverged_members_are_kept_and_marked() -> None:
    wild = dataclasses.replace(SMALL, learning_rate=1e9)
    with trainer(wild, FEW) as crew:
        state = crew.start(range(4))
        crew.advance(state, 10)
        found = crew.measure(state.weights)
    assert len(state) == 4
    assert found["diverged"].all()
    assert not np.isfinite(found["train_loss"]).all()


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="optunet"):
        engines.get("optunett")
    with pytest.raises(ZooError, match="expected cpu or cuda, got tpu"), trainer(SMALL, FEW, device="tpu"):
        pass
    if not torch.cuda.is_available():
        with pytest.raises(ZooError, match="CUDA"), trainer(SMALL, FEW, device="cuda"):
            pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gpu_trains_the_same_members(engine: str) -> None:
    states, drawn = [], []
    for device in ("cpu", "cuda"):
        with trainer(DIGITS, FULL, device=device, engine=engine) as crew:
            states.append(crew.start([0, 1, 2]))
            drawn.append([step.corners.cpu() for step in steps(crew.material, states[-1].keys, 40, 50)])
            crew.advance(states[-1], 20)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*drawn, strict=True))
    for name, tensor in states[0].weights.items():
        torch.testing.assert_close(tensor, states[1].weights[name].cpu(), rtol=0, atol=1e-3)
