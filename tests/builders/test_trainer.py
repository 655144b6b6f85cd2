"""What every engine must do, and what the trainer makes of it."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from builders import data, engines, losses, sources
from builders import rng as draws
from builders import sources as gaussians
from builders.data_source import DataSource, TabularData, steps
from builders.recipe import GaussianRecipe, ImageRecipe, Recipe
from builders.rng import below, philox, uniform
from builders.sources import Source
from builders.state import TrainingState, as_stored, dtype_of
from builders.tables import Table
from builders.train import available_cores, choose_engine, default_unit_size, open_trainer
from ckptzoo import archs
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure import predictions
from tests.support.effort import ALL

DIGITS = Recipe.load("digits-optunet")
FULL = data.load(DIGITS)
ENGINES = engines.usable(DIGITS)
SMALL = dataclasses.replace(DIGITS, train=150, test=40, batch=32, milestones=(1,))
"""Five steps an epoch, the last of 22 images; the rate halves after the first epoch."""
FEW = data.Data(
    "digits", FULL.train_images[:150], FULL.train_labels[:150], FULL.test_images[:40], FULL.test_labels[:40]
)
TOY = Recipe.load("toy")
assert isinstance(TOY, GaussianRecipe)
THREE = dataclasses.replace(
    TOY,
    name="three",
    architecture="mlp-tanh-2-5-4-3",
    loss="cross-entropy",
    centres=((0.0, 2.0), (-1.0, -1.0), (1.5, -0.5)),
    train=48,
    test=30,
    batch=7,
    learning_rate=0.1,
    momentum=0.8,
    weight_decay=0.01,
    milestones=(1,),
    factor=0.3,
)
"""Seven steps an epoch, the last of 6 points; tanh, three classes, momentum, decay."""
ENERGY = dataclasses.replace(Recipe.load("energy-mlp"), train=100, test=20, milestones=(1,))
"""Four steps an epoch, the last of 4 rows."""


def regression() -> Table:
    """A table like that of energy-mlp."""
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(120, 8)).astype(np.float32)
    targets = np.sin(inputs @ rng.normal(size=8)).astype(np.float32)
    return Table("energy", inputs[:100], targets[:100], inputs[100:], targets[100:])


SOURCES: dict[str, tuple[Recipe, Source]] = {
    "images": (SMALL, FEW),
    "toy": (TOY, gaussians.load_gaussians(TOY)),
    "three": (THREE, gaussians.load_gaussians(THREE)),
    "energy": (ENERGY, regression()),
}
CASES = [(kind, engine) for kind, (recipe, _) in SOURCES.items() for engine in engines.usable(recipe)]


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


TORCH_LOSSES = {
    "cross-entropy": nn.functional.cross_entropy,
    "binary-cross-entropy": lambda outputs, targets: nn.functional.binary_cross_entropy_with_logits(
        outputs.squeeze(1), targets
    ),
    "squared-error": lambda outputs, targets: nn.functional.mse_loss(outputs.squeeze(1), targets),
}


def crops(recipe: ImageRecipe, source: data.Data, key: np.ndarray, epoch: int, positions: np.ndarray) -> np.ndarray:
    """The images that a member meets, cropped one by one."""
    items, pad = draws.order(key, epoch, positions, recipe.train)[0], recipe.crop_pad
    down, right = (part[0] for part in draws.crops(key, epoch, positions, pad))
    flipped = draws.flips(key, epoch, positions)[0] & recipe.flip
    padded = np.pad(source.train_images[items], ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    cropped = [image[:, y : y + 28, x : x + 28] for image, y, x in zip(padded, down, right, strict=True)]
    mirrored = [image[..., ::-1] if flip else image for image, flip in zip(cropped, flipped, strict=True)]
    return (np.stack(mirrored) / 255 - recipe.mean) / recipe.std


def plain(recipe: Recipe, source: Source, seed: int, stop: int) -> dict[str, torch.Tensor]:
    """One member by ordinary PyTorch: a module, autograd, torch.optim.SGD."""
    dtype = dtype_of(recipe)
    model = archs.get(recipe.architecture)().to(dtype)
    start = draws.initial_weights(archs.architecture(recipe.architecture), draws.member_keys(recipe.digest, [seed]))
    model.load_state_dict({name: torch.from_numpy(array[0]) for name, array in start.items()})
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=1.0,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
    )
    key = draws.member_keys(recipe.digest, [seed])
    for step in range(stop):
        epoch, number = divmod(step, recipe.epoch_steps)
        optimiser.param_groups[0]["lr"] = recipe.learning_rate * (recipe.factor if epoch >= 1 else 1.0)
        positions = np.arange(number * recipe.batch, min((number + 1) * recipe.batch, recipe.train))
        items = draws.order(key, epoch, positions, recipe.train)[0]
        if isinstance(source, data.Data):
            inputs = crops(data.require_images(recipe), source, key, epoch, positions)
            targets = source.train_labels[items]
        else:
            inputs, targets = source.train_inputs[items], source.train_targets[items]
            targets = targets.astype(np.int64) if recipe.loss == "cross-entropy" else targets
        optimiser.zero_grad()
        answers = torch.from_numpy(targets)
        answers = answers.to(dtype) if answers.is_floating_point() else answers
        TORCH_LOSSES[recipe.loss](model(torch.from_numpy(inputs).to(dtype)), answers).backward()
        optimiser.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "flip": {"flip": True},
    "float64": {"momentum": 0.9, "nesterov": True, "precision": "float64"},
}


def varied(kind: str, variant: str) -> tuple[Recipe, Source]:
    recipe, source = SOURCES[kind]
    plain = {"momentum": 0.0, "learning_rate": 0.05, "weight_decay": 0.01}
    return dataclasses.replace(recipe, **{**plain, **VARIANTS[variant]}), source


@pytest.mark.parametrize(
    ("kind", "variant", "engine"),
    [
        (kind, variant, engine)
        for kind in SOURCES
        for variant in VARIANTS
        if kind == "images" or variant != "flip"
        for engine in engines.usable(varied(kind, variant)[0])
    ],
)
@pytest.mark.sampled(5)
def test_an_engine_takes_the_steps_of_torch_optim(kind: str, variant: str, engine: str) -> None:
    recipe, source = varied(kind, variant)
    seeds = [3, 11, 5]
    state = TrainingState.initial(recipe, seeds, "cpu")
    engines.get(engine)(sources.data_source(recipe, source, "cpu"), state, 12)
    assert state.step == 12
    for number, seed in enumerate(seeds):
        for name, expected in plain(recipe, source, seed, 12).items():
            assert state.weights[name].dtype == expected.dtype
            # kernels of float32 differ between processors; twelve steps with momentum make 5e-5 of their rounding
            tolerance = 1e-12 if variant == "float64" else 3e-4
            torch.testing.assert_close(state.weights[name][number], expected, rtol=0, atol=tolerance)


def test_engines_that_cannot_are_skipped_and_say_why() -> None:
    def variant(**keys: Any) -> Recipe:
        return dataclasses.replace(DIGITS, momentum=0.9, **keys)

    for recipe, reason in (
        (variant(flip=True), "compiled, which flips no images"),
        (variant(nesterov=True), "compiled, which takes no steps of Nesterov's"),
        (variant(precision="float64"), "compiled, which does not train in float64"),
    ):
        assert engines.usable(recipe) == ("single", "general", "optunet")
        graph = ("single-graph",) * (recipe.precision != "float64")
        assert engines.usable(recipe, "cuda") == ("single-compile", *graph, "single", "general", "optunet")
        assert choose_engine(recipe, "cpu") == "optunet"
        with pytest.raises(
            ZooError, match=f"optunet: engine: expected single or general or optunet, got {reason}. Choose"
        ):
            choose_engine(recipe, "cpu", "compiled")
    assert "compiled" in engines.usable(variant(schedule="cosine", milestones=()))
    assert choose_engine(variant(precision="bfloat16"), "cpu") == "single"
    coarse = variant(precision="tf32", flip=True)
    message = r"expected one that trains digits-optunet on cpu, got none \(.*general does not train in tf32; .*compiled"
    with pytest.raises(ZooError, match=message + " does not train in tf32 and flips no images"):
        choose_engine(coarse, "cpu")
    residual = dataclasses.replace(SMALL, architecture="resnet18-10")
    assert choose_engine(residual, "cpu") == "single"
    with pytest.raises(ZooError, match=r"resnet18-10: engine: .*general, which trains no architecture with buffers"):
        choose_engine(residual, "cpu", "general")


def test_members_in_float64_are_measured_and_stored_in_float32() -> None:
    recipe, source = varied("images", "float64")
    with open_trainer(recipe, source) as trainer:
        state = trainer.start([0, 1])
        trainer.advance(state, 7)
        found = trainer.measure(state.weights)
        stored = as_stored(state.weights)
        expected = trainer.measure(stored)
    assert {tensor.dtype for tensor in state.weights.values()} == {torch.float64}
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert found.keys() == expected.keys()
    assert all(np.array_equal(values, expected[column]) for column, values in found.items())


@pytest.mark.parametrize("engine", ENGINES[::-1])
@pytest.mark.sampled(4)
def test_a_member_is_the_same_alone_and_among_sixteen(engine: str) -> None:
    with open_trainer(DIGITS, FULL, engine=engine) as trainer:
        together, alone = trainer.start(range(16)), trainer.start([7])
        shared = list(steps(trainer.data_source, together.keys, 0, DIGITS.epoch_steps))
        single = list(steps(trainer.data_source, alone.keys, 0, DIGITS.epoch_steps))
        assert len(shared) == len(single) == DIGITS.epoch_steps
        for many, one in zip(shared, single, strict=True):
            assert torch.equal(many.corners[7], one.corners[0])
            assert torch.equal(many.labels[7], one.labels[0])
        trainer.advance(together, DIGITS.epoch_steps)
        trainer.advance(alone, DIGITS.epoch_steps)
    for name, tensor in together.weights.items():
        torch.testing.assert_close(tensor[7], alone.weights[name][0], rtol=0, atol=1e-4)
        assert not torch.allclose(tensor[7], tensor[8], atol=1e-2)


@pytest.mark.parametrize(("kind", "engine"), [case for case in CASES if case[1] in ("mlp", "compiled")])
@pytest.mark.sampled(2)
def test_the_bits_of_a_member_do_not_depend_on_its_company(kind: str, engine: str) -> None:
    recipe, source = SOURCES[kind]
    states: list[TrainingState] = []
    for seeds, threads in ((range(33), 1), (range(33), 3), ([7], 1), (range(2, 19), 1)):
        with open_trainer(recipe, source, engine=engine, threads=threads) as trainer:
            states.append(trainer.start(seeds))
            trainer.advance(states[-1], 200 if ALL else 50)
    for name, tensor in states[0].weights.items():
        assert tensor.isfinite().all()
        assert torch.equal(tensor, states[1].weights[name])
        assert torch.equal(tensor[7:8], states[2].weights[name])
        assert torch.equal(tensor[2:19], states[3].weights[name])


@pytest.mark.parametrize("kind", ["toy", "three", "energy"])
def test_rows_come_as_the_member_draws_them(kind: str) -> None:
    recipe, source = SOURCES[kind]
    data_source = sources.data_source(recipe, source, "cpu")
    assert isinstance(data_source, TabularData)
    keys = draws.member_keys(recipe.digest, [4, 9])
    made = list(data_source.batches(keys, 0, 2 * recipe.epoch_steps))
    later = list(data_source.batches(keys[1:], recipe.epoch_steps + 1, 2 * recipe.epoch_steps))
    assert [batch.rate for batch in made] == [
        recipe.rates.learning_rate_at(epoch) for epoch in (0, 1) for _ in range(recipe.epoch_steps)
    ]
    positions = np.arange(recipe.train)
    for epoch in (0, 1):
        items = draws.order(keys, epoch, positions, recipe.train)
        part = made[epoch * recipe.epoch_steps : (epoch + 1) * recipe.epoch_steps]
        assert np.array_equal(torch.cat([batch.inputs for batch in part], 1).numpy(), source.half("train")[0][items])
        assert np.array_equal(torch.cat([batch.targets for batch in part], 1).numpy(), source.half("train")[1][items])
    for all_, one in zip(made[recipe.epoch_steps + 1 :], later, strict=True):
        assert torch.equal(all_.inputs[1:], one.inputs)
        assert torch.equal(all_.targets[1:], one.targets)


@pytest.mark.parametrize(("kind", "engine"), CASES)
def test_the_way_to_a_step_does_not_matter(kind: str, engine: str) -> None:
    recipe, source = SOURCES[kind]
    recipe = dataclasses.replace(recipe, momentum=0.9, learning_rate=0.05)
    data_source, advance = sources.data_source(recipe, source, "cpu"), engines.get(engine)
    whole, pieces = TrainingState.initial(recipe, [1, 2], "cpu"), TrainingState.initial(recipe, [1, 2], "cpu")
    advance(data_source, whole, 13)
    for stop in (1, 2, 5, 9, 13):
        advance(data_source, pieces, stop)
    for name in whole.weights:
        assert torch.equal(whole.weights[name], pieces.weights[name])
        assert torch.equal(whole.momentum[name], pieces.momentum[name])


def test_engines_agree_over_an_epoch_of_digits() -> None:
    states = []
    for engine in ENGINES:
        with open_trainer(DIGITS, FULL, engine=engine) as trainer:
            states.append(trainer.start([0, 1, 2]))
            trainer.advance(states[-1], DIGITS.epoch_steps)
    for name, tensor in states[0].weights.items():
        for other in states[1:]:
            torch.testing.assert_close(tensor, other.weights[name], rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_blank_images_and_dead_channels_have_the_gradients_of_autograd(engine: str) -> None:
    """Every window of a blank image is a tie, and a channel that is never above 0 has no gradient."""
    blank = dataclasses.replace(FEW, train_images=FEW.train_images.copy())
    blank.train_images[::2] = 0
    state = TrainingState.initial(SMALL, [0], "cpu")
    state.weights["conv1.weight"][0, 0] = state.weights["conv1.weight"][0, 0].abs()
    state.weights["conv1.weight"][0, 1] = 0
    model = archs.get("optunet")()
    model.load_state_dict({name: tensor[0].clone() for name, tensor in state.weights.items()})
    data_source = DataSource.of(dataclasses.replace(SMALL, weight_decay=0.0, crop_pad=0), blank, "cpu")
    step = next(steps(data_source, state.keys, 0, 1))
    images = data_source.network_inputs(data_source.pixels.view(-1, 1, 28, 28)[step.corners[0] // 784])
    nn.functional.cross_entropy(model(images), step.labels[0]).backward()
    before = {name: tensor[0].clone() for name, tensor in state.weights.items()}
    engines.get(engine)(data_source, state, 1)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        expected = before[name] - SMALL.learning_rate * parameter.grad
        torch.testing.assert_close(state.weights[name][0], expected, rtol=0, atol=1e-6)
    assert not state.weights["conv1.weight"][0, 1].any(), "a dead channel stays dead"


def test_measures_are_those_of_each_member_alone() -> None:
    with open_trainer(SMALL, FEW) as trainer:
        state = trainer.start(range(11))
        found = trainer.measure(state.weights)
    for member in range(11):
        model = archs.get("optunet")()
        model.load_state_dict({name: tensor[member] for name, tensor in state.weights.items()})
        for half, columns in (("train", ("loss", "accuracy")), ("test", ("loss", "accuracy", "nll", "brier", "ece"))):
            images, labels = getattr(FEW, f"{half}_images"), getattr(FEW, f"{half}_labels")
            with torch.no_grad():
                logs = model(torch.from_numpy(data.inputs(SMALL, images))).double().log_softmax(-1).numpy()
            for column in columns:
                score = predictions.nll if column == "loss" else getattr(predictions, column)
                assert found[f"{half}_{column}"][member] == pytest.approx(float(score(logs, labels)), abs=1e-5)
    assert found["diverged"].tolist() == (found["train_loss"] > math.log(10)).tolist()


@pytest.mark.parametrize("kind", ["toy", "three", "energy"])
def test_measures_of_rows_are_those_of_each_member_alone(kind: str) -> None:
    recipe, source = SOURCES[kind]
    with open_trainer(recipe, source) as trainer:
        state = trainer.start(range(5))
        trainer.advance(state, 30)
        found = trainer.measure(state.weights)
    for member in range(5):
        model = archs.get(recipe.architecture)().double()
        model.load_state_dict({name: tensor[member] for name, tensor in state.weights.items()})
        for half in ("train", "test"):
            inputs, targets = (torch.from_numpy(array).double() for array in source.half(half))
            with torch.no_grad():
                outputs = model(inputs)
                right = outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
                loss = TORCH_LOSSES[recipe.loss](outputs, targets.long() if kind == "three" else targets).item()
            assert found[f"{half}_loss"][member] == pytest.approx(loss, rel=1e-4, abs=1e-6)
            if kind != "energy":
                assert found[f"{half}_accuracy"][member] == pytest.approx((right == targets).double().mean().item())
    columns = {"train_loss", "test_loss", "diverged"}
    if kind != "energy":
        columns |= {"train_accuracy", "test_accuracy", "test_nll", "test_brier", "test_ece"}
        assert np.array_equal(found["test_nll"], found["test_loss"])
    assert set(found) == columns
    bound = {"toy": math.log(2), "three": math.log(3), "energy": source.half("train")[1].astype(np.float64).var()}[kind]
    assert found["diverged"].tolist() == (found["train_loss"] > bound).tolist()


@pytest.mark.exhaustive
def test_a_thousand_of_the_toy_learn_to_separate() -> None:
    recipe, source = SOURCES["toy"]
    with open_trainer(recipe, source) as trainer:
        state = trainer.start(range(1000))
        trainer.advance(state, recipe.steps)
        found = trainer.measure(state.weights)
    assert (found["train_loss"] > 0.1).mean() < 0.01
    assert np.median(found["train_accuracy"]) == 1
    assert found["diverged"].mean() < 0.01


def test_sizes_go_by_the_bytes_of_an_input() -> None:
    assert default_unit_size(FEW, "cpu", "optunet") == 64
    sizes = [default_unit_size(SOURCES[kind][1], "cpu", "mlp") for kind in ("toy", "energy")]
    assert sizes == [64 * 784 // 2, 64 * 784 // 8]
    assert default_unit_size(FEW, "cpu", "single") == available_cores(), "as many as are trained side by side"


def test_diverged_members_are_kept_and_marked() -> None:
    wild = dataclasses.replace(SMALL, learning_rate=1e9)
    with open_trainer(wild, FEW) as trainer:
        state = trainer.start(range(4))
        trainer.advance(state, 10)
        found = trainer.measure(state.weights)
    assert len(state) == 4
    assert found["diverged"].all()
    assert not np.isfinite(found["train_loss"]).all()


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="optunet"):
        engines.get("optunett")
    with pytest.raises(ZooError, match="expected cpu or cuda, got tpu"), open_trainer(SMALL, FEW, device="tpu"):
        pass
    what = "optunet: engine: expected single or general or optunet or compiled, got mlp"
    with pytest.raises(ZooError, match=what), open_trainer(SMALL, FEW, engine="mlp"):
        pass
    with pytest.raises(UnknownNameError, match="squared-error"):
        losses.get("squared-eror")
    for wrong, what in (
        ("mlp-2-2-2", r"expected outputs \(1, 1\) from an input \(1, 2\) .*, got \(1, 2\)"),
        ("mlp-3-2-1", "got RuntimeError"),
    ):
        recipe, source = SOURCES["toy"]
        with pytest.raises(ZooError, match=what), open_trainer(dataclasses.replace(recipe, architecture=wrong), source):
            pass
    if not torch.cuda.is_available():
        with pytest.raises(ZooError, match="CUDA"), open_trainer(SMALL, FEW, device="cuda"):
            pass


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("kind", "engine"), [case for case in CASES if case[1] != "compiled"])
def test_a_gpu_trains_the_same_members(kind: str, engine: str) -> None:
    recipe, source = SOURCES[kind]
    states, drawn = [], []
    for device in ("cpu", "cuda"):
        with open_trainer(recipe, source, device=device, engine=engine) as trainer:
            states.append(trainer.start([0, 1, 2]))
            drawn.append(list(trainer.data_source.batches(states[-1].keys, 3, 13)))
            trainer.advance(states[-1], 20)
    for ours, theirs in zip(*drawn, strict=True):
        assert torch.equal(ours.targets, theirs.targets.cpu())
        torch.testing.assert_close(ours.inputs, theirs.inputs.cpu(), rtol=0, atol=1e-6)
    for name, tensor in states[0].weights.items():
        torch.testing.assert_close(tensor, states[1].weights[name].cpu(), rtol=0, atol=1e-3)
