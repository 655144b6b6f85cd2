"""The engine that trains one member at a time: bits of a plain PyTorch loop, resumption, buffers, divergence."""

import copy
import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from builders import data, engines, rng, sources
from builders.data_source import Feed
from builders.engines import single
from builders.recipe import Recipe
from builders.state import STOPPED, Tensors, TrainingState, dtype_of
from builders.train import largest_result, open_trainer
from ckptzoo import archs
from ckptzoo.errors import ZooError
from ckptzoo.image_sets import lookup
from tests.support import image_set_files as made
from tests.support.effort import ALL

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
ON_A_GPU = ("single", "single-graph", "single-compile")
COLOUR = dataclasses.replace(
    Recipe.load("cifar100-resnet18"),
    name="colour",
    architecture="resnet18-2-5",
    train=22,
    test=6,
    batch=8,
    epochs=3,
    milestones=(1,),
    ood=None,
)
"""Three steps an epoch, the last of 6 images; crops, flips, Nesterov, decay, a rate that falls."""


@cache
def images() -> data.Data:
    numbers = np.random.default_rng(3)
    pixels = numbers.integers(0, 256, (28, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(28, dtype=np.int64) % 5
    return data.Data("colour", pixels[:22], labels[:22], pixels[22:], labels[22:])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain_loop(
    recipe: Recipe, feed: Feed, seed: int, stop: int, memory_format: torch.memory_format = torch.contiguous_format
) -> Tensors:
    """What a PyTorch user writes, on the batches of a member."""
    state = TrainingState.initial(recipe, [seed], "cpu")
    module = archs.get(recipe.architecture)()
    module.load_state_dict({name: tensor[0] for name, tensor in state.weights.items()})
    module = module.to(dtype_of(recipe)).to(memory_format=memory_format).train()
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
    )
    for batch in feed.batches(state.keys, 0, stop):
        for group in optimizer.param_groups:
            group["lr"] = batch.rate
        inputs = batch.inputs[0].contiguous(memory_format=memory_format)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            loss = nn.functional.cross_entropy(module(inputs), batch.targets[0])
        loss.backward()
        optimizer.step()
    return module.state_dict()


def assert_same_bits(found: Tensors, expected: Tensors, member: int = 0) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name][member], tensor), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "float64"},
        {"precision": "bfloat16"},
        {"nesterov": False},
        {"nesterov": False, "momentum": 0.0, "weight_decay": 0.0},
    ],
    ids=["nesterov", "float64", "bfloat16", "momentum", "plain"],
)
@pytest.mark.sampled(3)
def test_weights_have_the_bits_of_a_plain_loop_over_modules(changes: dict[str, object]) -> None:
    recipe = dataclasses.replace(COLOUR, **changes)
    feed = sources.data_source(recipe, images(), "cpu")
    state = TrainingState.initial(recipe, [4, 9], "cpu")
    engines.get("single")(feed, state, 7)
    assert state.step == 7
    assert state.weights["bn1.num_batches_tracked"].tolist() == [7, 7]
    for member, seed in enumerate((4, 9)):
        assert_same_bits(state.weights, plain_loop(recipe, feed, seed, 7), member)


@pytest.mark.exhaustive
def test_wide_networks_have_the_bits_of_a_plain_loop_in_the_channels_last_format() -> None:
    recipe = dataclasses.replace(COLOUR, architecture="resnet18-16-5")
    feed = sources.data_source(recipe, images(), "cpu")
    state = TrainingState.initial(recipe, [4], "cpu")
    engines.get("single")(feed, state, 4)
    expected = plain_loop(recipe, feed, 4, 4, torch.channels_last)
    assert_same_bits(state.weights, expected)
    other = plain_loop(recipe, feed, 4, 4)
    assert any(not torch.equal(other[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("architecture", "device", "expected"),
    [
        ("resnet18-16-5", "cpu", torch.channels_last),
        ("resnet18-8-5", "cpu", torch.contiguous_format),
        ("resnet18-24-5", "cpu", torch.contiguous_format),
        ("resnet18-4-5", "cuda", torch.channels_last),
        ("resnet8-pad-5", "cpu", torch.channels_last),
        ("mlp-2-3", "cpu", torch.channels_last),
    ],
)
def test_the_format_avoids_a_kernel_that_writes_beyond_its_memory(
    architecture: str, device: str, expected: torch.memory_format
) -> None:
    assert single.memory_format_of(archs.get(architecture)(), torch.device(device)) == expected


@pytest.mark.exhaustive
def test_members_are_the_same_alone_in_any_unit_with_any_stops_on_any_number_of_threads() -> None:
    with open_trainer(COLOUR, images(), engine="single", threads=1) as trainer:
        undisturbed = trainer.start([4, 9, 2])
        trainer.advance(undisturbed, 8)
    with open_trainer(COLOUR, images(), engine="single", threads=2) as trainer:
        others, alone = trainer.start([9, 4]), trainer.start([2])
        for stop in (1, 3, 4, 8):
            trainer.advance(others, stop)
            trainer.advance(alone, stop)
    for member, (state, place) in enumerate([(others, 1), (others, 0), (alone, 0)]):
        for kind in ("weights", "momentum"):
            expected = {name: tensor[member] for name, tensor in getattr(undisturbed, kind).items()}
            assert_same_bits(getattr(state, kind), expected, place)


def test_it_is_chosen_for_architectures_with_buffers_and_for_no_others() -> None:
    assert engines.fastest(COLOUR) == "single"
    digits = Recipe.load("digits-optunet")
    assert "single" in engines.usable(digits) and engines.fastest(digits) != "single"
    assert {"single", "single-graph", "single-compile"} <= set(engines.usable(COLOUR, "cuda"))
    assert engines.fastest(COLOUR, "cuda") == "single"
    for precision in ("tf32", "bfloat16"):
        assert engines.fastest(dataclasses.replace(COLOUR, precision=precision), "cuda") == "single"
    with pytest.raises(ZooError, match="single has no tf32 on cpu"):
        engines.fastest(dataclasses.replace(COLOUR, precision="tf32"))
    exact = dataclasses.replace(COLOUR, precision="float64")
    assert "single-graph" not in engines.usable(exact, "cuda"), "its rate has single precision"


def test_a_member_that_is_not_finite_stops_at_the_end_of_its_epoch_and_is_kept() -> None:
    wild = dataclasses.replace(COLOUR, learning_rate=1e12, momentum=0.0, nesterov=False)
    tame = COLOUR
    with open_trainer(wild, images(), engine="single", threads=1) as trainer:
        state, paused = trainer.start([4, 9]), trainer.start([4, 9])
        trainer.advance(state, 3)
        at_the_end = {name: tensor.clone() for name, tensor in state.weights.items()}
        trainer.advance(state, 9)
        for stop in (2, 4, 5, 9):
            trainer.advance(paused, stop)
        found = trainer.measure(state.weights)
    assert state.step == 9 and state.extra[STOPPED].all() and found["diverged"].all()
    for other in (at_the_end, paused.weights):
        for name, tensor in state.weights.items():
            assert torch.equal(tensor.nan_to_num(7.0), other[name].nan_to_num(7.0)), name
    with open_trainer(tame, images(), engine="single") as trainer:
        state = trainer.start([4])
        trainer.advance(state, 9)
    assert not state.extra[STOPPED].any()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_gradients_at_any_weights_are_those_of_autograd(precision: str) -> None:
    recipe = dataclasses.replace(COLOUR, precision=precision, dropout=0.5)
    feed = sources.data_source(recipe, images(), "cpu")
    state = TrainingState.initial(recipe, [4, 9], "cpu")
    before = copy.deepcopy(state.weights)
    parameters = {tensor.name for tensor in recipe.arch.tensors if tensor.kind != "buffer"}
    batches = list(feed.batches(state.keys, 1, 4))
    count = 0
    for number, step in enumerate(engines.gradient_steps("single")(feed, state.keys, 1, 4)):
        found, count = step.gradient(state.weights), count + 1
        assert set(found) == parameters
        for member in range(2):
            module = archs.get(recipe.architecture)().to(dtype_of(recipe)).train()
            module.load_state_dict({name: tensor[member] for name, tensor in before.items()})
            batch = batches[number]
            assert batch.scales is not None
            hidden: list[torch.Tensor] = []
            module.fc.register_forward_pre_hook(lambda _, inputs, hidden=hidden: hidden.append(inputs[0]))
            module(batch.inputs[member])
            logits = module.fc(hidden[0] * batch.scales[member])
            nn.functional.cross_entropy(logits, batch.targets[member]).backward()
            tolerance = 1e-12 if precision == "float64" else 2e-5
            for name, parameter in module.named_parameters():
                torch.testing.assert_close(found[name][member], parameter.grad, rtol=tolerance, atol=tolerance)
    assert count == 3
    for name, tensor in before.items():
        assert torch.equal(tensor, state.weights[name]), "gradients leave weights and buffers as they are"


def test_crops_have_the_bits_of_indices_into_padded_images() -> None:
    recipe = dataclasses.replace(COLOUR, batch=22)
    raw, _ = images().half("train")
    feed = sources.data_source(recipe, images(), "cpu")
    keys = rng.member_keys(recipe.digest, [4, 9])
    (batch,) = feed.batches(keys, 0, 1)
    positions = np.arange(22)
    items = rng.order(keys, 0, positions, 22)
    down, right = rng.crops(keys, 0, positions, 4)
    flips = rng.flips(keys, 0, positions)
    assert flips.any() and not flips.all()
    padded = np.pad(raw, ((0, 0), (0, 0), (4, 4), (4, 4)))
    for member in range(2):
        for place in range(22):
            y, x = down[member, place], right[member, place]
            crop = padded[items[member, place], :, y : y + 32, x : x + 32]
            crop = crop[..., ::-1] if flips[member, place] else crop
            expected = feed.network_inputs(torch.from_numpy(np.ascontiguousarray(crop)))
            assert torch.equal(batch.inputs[member, place], expected)


def test_measured_losses_are_those_of_the_module_in_evaluation() -> None:
    with open_trainer(COLOUR, images(), engine="single") as trainer:
        state = trainer.start([4, 9, 2])
        trainer.advance(state, 4)
        found = trainer.measure(state.weights)
        raw, labels = images().half("test")
        inputs = trainer.data_source.network_inputs(torch.from_numpy(raw))
    for member in range(3):
        module = archs.get(COLOUR.architecture)().eval()
        module.load_state_dict({name: tensor[member] for name, tensor in state.weights.items()})
        with torch.no_grad():
            loss = nn.functional.cross_entropy(module(inputs).double(), torch.from_numpy(labels))
        assert found["test_loss"][member] == pytest.approx(float(loss), rel=1e-5)


def test_the_largest_result_is_found_without_computing_it() -> None:
    assert largest_result("resnet18-100", (3, 32, 32)) == 64 * 32 * 32 * 4
    assert largest_result("resnet18-100", (3, 64, 64)) == 64 * 64 * 64 * 4
    assert largest_result("mlp-4-30-3", (4,)) == 120


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16", "float64"])
@pytest.mark.parametrize("engine", ON_A_GPU)
def test_on_a_gpu_the_same_bits_come_again_whatever_the_streams(engine: str, precision: str) -> None:
    recipe = dataclasses.replace(COLOUR, precision=precision, architecture="resnet18-8-5")
    if engine not in engines.usable(recipe, "cuda"):
        pytest.skip(f"{engine} does not train in {precision}")
    found: list[TrainingState] = []
    for threads in (1, 3):
        with open_trainer(recipe, images(), device="cuda", engine=engine, threads=threads) as trainer:
            state = trainer.start([4, 9, 2])
            for stop in (2, 7):
                trainer.advance(state, stop)
            found.append(state)
    for kind in ("weights", "momentum"):
        first, second = (getattr(state, kind) for state in found)
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert found[0].weights["bn1.num_batches_tracked"].tolist() == [7, 7, 7]


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("engine", ON_A_GPU)
def test_on_a_gpu_steps_are_those_of_the_cpu_to_rounding(engine: str) -> None:
    precision, tolerance = ("float32", 1e-3) if engine == "single-graph" else ("float64", 1e-8)
    recipe = dataclasses.replace(COLOUR, precision=precision, dropout=0.5)
    states = []
    for device, name in (("cpu", "single"), ("cuda", engine)):
        with open_trainer(recipe, images(), device=device, engine=name) as trainer:
            state = trainer.start([4, 9])
            trainer.advance(state, 5)
            states.append(state)
    for name, tensor in states[0].weights.items():
        torch.testing.assert_close(states[1].weights[name].cpu(), tensor, rtol=tolerance, atol=tolerance)


def test_a_network_is_made_once_and_used_again() -> None:
    feed = sources.data_source(COLOUR, images(), "cpu")
    with (
        single.borrowed(feed, single.ModuleAndOptimizer) as first,
        single.borrowed(feed, single.ModuleAndOptimizer) as second,
    ):
        assert first is not second
    with single.borrowed(feed, single.ModuleAndOptimizer) as again:
        assert again in (first, second)


@pytest.mark.parametrize(
    "name", ["cifar10-resnet18", pytest.param("tinyimagenet-resnet18", marks=pytest.mark.exhaustive)]
)
def test_published_recipes_take_steps_on_images_in_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    if name.startswith("cifar10"):
        known = made.small("cifar10")
        made.write_binary(tmp_path / "cifar-10-batches-bin", 10, made.cifar_arrays(10))
    else:
        known = made.write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    recipe = Recipe.load(name)
    monkeypatch.setitem(lookup.KNOWN, recipe.dataset, known)  # type: ignore[arg-type]
    classes = known.classes if name.startswith("tiny") else 10
    counts = {"train": known.counts["train"], "test": known.counts["test"]}
    for width in ("", "8-") if ALL else ("8-",):
        small = dataclasses.replace(recipe, architecture=f"resnet18-{width}{classes}", batch=4, **counts)
        source = sources.load(small, tmp_path)
        with open_trainer(small, source) as trainer:
            state = trainer.start([0])
            before = state.weights["fc.weight"].clone()
            trainer.advance(state, 2)
            found = trainer.measure(state.weights)
        assert not torch.equal(before, state.weights["fc.weight"])
        assert np.isfinite(found["train_loss"]).all()
