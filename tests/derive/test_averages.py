"""Averages and greedy soups against plain loops: rounding, alignment, BatchNorm, and what is refused."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.swa_utils import update_bn

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.derive import average, measured_on, soup
from ckptzoo.derive.evaluation import Evaluator
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import SymmetryError, UnknownNameError, ZooError
from ckptzoo.format.header import numpy_dtype, rounded
from tests.support.derived_zoos import weights_of, written
from tests.support.effort import examples

NAME = "mlp-4-8-3"
ARCH, TABLE = archs.architecture(NAME), archs.symmetry(NAME)
RNG = np.random.default_rng(0)
BFLOAT16 = numpy_dtype("bfloat16")


def held_out(seed: int = 0, count: int = 60) -> Labelled:
    """Inputs with the labels of one random network of ``NAME``, so that networks near it are accurate."""
    inputs = np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)
    module = archs.get(NAME)()
    module.load_state_dict({name: torch.from_numpy(array[0]) for name, array in weights_of(1, 7, arch=ARCH).items()})
    with torch.no_grad():
        return Labelled(f"made/test-{seed}", inputs, module(torch.from_numpy(inputs)).argmax(1).numpy())


def near_one(folder: Path, count: int, spread: float, *, permuted: bool = False) -> ckptzoo.Zoo:
    """Networks around that one, permuted each in its own way or not."""
    rng = np.random.default_rng(3)
    weights = {
        name: (array + spread * rng.standard_normal((count, *array.shape[1:]))).astype(np.float32)
        for name, array in weights_of(1, 7, arch=ARCH).items()
    }
    if permuted:
        elements = symmetry.GroupElement.random(TABLE, count, rng, spread=0.0)
        weights = dict(symmetry.apply(elements, weights, TABLE))
    return ckptzoo.open(written(folder, ARCH, weights, symmetry=TABLE))


def loop(zoo: ckptzoo.Zoo, labelled: Labelled, nets: dict[str, dict[str, Any]]) -> list[tuple[str, float, bool]]:
    """Algorithm 1 of arXiv 2203.05482 as it is written: id, accuracy of the mean with it, whether it stays."""
    evaluator = Evaluator(zoo.arch, labelled)

    def accuracy(ids: list[str]) -> float:
        stacks = {name: np.stack([nets[id][name] for id in ids]) for name in zoo.arch.names}
        mean = {name: stack.mean(0, np.float64).astype(np.float32)[None] for name, stack in stacks.items()}
        return float(evaluator.scores([mean])[0].accuracy[0])

    own = {id: accuracy([id]) for id in zoo.ids}
    ingredients: list[str] = []
    found: list[tuple[str, float, bool]] = []
    for id in sorted(zoo.ids, key=lambda id: -own[id]):
        before = accuracy(ingredients) if ingredients else 0.0
        together = accuracy([*ingredients, id])
        ingredients += [id] if together >= before else []
        found.append((id, together, together >= before))
    return found


@pytest.mark.parametrize(("spread", "permuted"), [(0.05, False), (0.4, False), (0.05, True)])
def test_a_soup_is_that_of_the_algorithm(tmp_path: Path, spread: float, permuted: bool) -> None:
    zoo, labelled = near_one(tmp_path / "zoo", 14, spread, permuted=permuted), held_out()
    expected = loop(zoo, labelled, {item.id: dict(item) for item in zoo})
    steps: list[tuple[int, int]] = []
    found = soup(zoo, labelled, progress=lambda done, total: steps.append((done, total)))
    assert [(item.id, item.together, item.kept) for item in found.trials] == expected
    assert found.ids == tuple(id for id, _, kept in expected if kept) and steps[-1] == (27, 27)
    assert found.accuracy == found.chosen_accuracy == max(together for _, together, kept in expected if kept)
    assert (found.set, found.chosen_on) == (labelled.set, labelled.set)
    of = zoo.take([zoo.ids.index(id) for id in found.ids])
    for name in ARCH.names:
        np.testing.assert_array_equal(found.checkpoint[name], average(of).checkpoint[name])
    # the independent ones are not connected; those around one network are
    assert len(found.ids) < 14 if permuted or spread > 0.1 else len(found.ids) > 3


def test_soups_of_permuted_networks_need_alignment(tmp_path: Path) -> None:
    zoo, labelled, other = near_one(tmp_path / "zoo", 14, 0.05, permuted=True), held_out(), held_out(1)
    plain, aligned = soup(zoo, labelled), soup(zoo, labelled, to="best", measured=other)
    assert len(aligned.ids) > len(plain.ids) and aligned.chosen_accuracy is not None
    assert aligned.chosen_accuracy >= aligned.trials[0].accuracy
    assert aligned.reference == f"checkpoint {aligned.trials[0].id} of zoo" and plain.reference is None
    assert (aligned.set, aligned.chosen_on) == ("made/test-1", "made/test-0")
    assert aligned.accuracy == measured_on(aligned.checkpoint, other)[0]


@pytest.mark.parametrize("lazy", [True, False])
def test_copies_that_are_permuted_have_their_reference_as_mean(tmp_path: Path, lazy: bool) -> None:
    one = weights_of(1, 7, arch=ARCH)
    elements = symmetry.GroupElement.random(TABLE, 5, np.random.default_rng(0), spread=0.0)
    copies = symmetry.apply(elements, {name: array.repeat(5, 0) for name, array in one.items()}, TABLE)
    zoo = ckptzoo.open(written(tmp_path / "zoo", ARCH, dict(copies), symmetry=TABLE))
    found = average(zoo.take([4, 0, 1]), to="3", labelled=None if lazy else held_out())
    assert found.ids == ("4", "0", "1") and found.reference == "checkpoint 3 of zoo"
    for name in ARCH.names:
        np.testing.assert_array_equal(found.checkpoint[name], zoo.checkpoint("3")[name])
    assert not np.array_equal(average(zoo).checkpoint["fc1.weight"], zoo[3]["fc1.weight"])
    if not lazy:
        assert found.accuracy == 1.0 and found.loss is not None


DTYPES = ("float16", "bfloat16", "float32", "float64")


def nearest(value: Fraction, dtype: np.dtype[Any]) -> float:
    """The number of a dtype that is nearest, the even one of two."""
    first = np.array([float(value)]).astype(dtype)
    bits = first.view(f"u{dtype.itemsize}").astype(np.int64)
    around = np.concatenate([bits + step for step in (-1, 0, 1)] if bits & (2**15 - 1) else [bits])
    numbers = around.astype(f"u{dtype.itemsize}").view(dtype).astype(np.float64).tolist()
    return min(
        zip(numbers, around.tolist(), strict=True), key=lambda item: (abs(Fraction(item[0]) - value), item[1] & 1)
    )[0]


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32 - 1), st.sampled_from(DTYPES[:3]))
def test_numbers_are_rounded_once(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    # near the middle between two numbers of half precision, where rounding twice goes wrong
    places = 1 + rng.integers(0, 512, 6) / 512 + rng.choice([0.0, 1e-12, -1e-12], 6)
    values = places * rng.choice([-1, 1], 6) * 2.0 ** rng.integers(-6, 7, 6)
    found = rounded(values, numpy_dtype(dtype))
    assert [float(item) for item in found] == [
        nearest(Fraction(value), numpy_dtype(dtype)) for value in values.tolist()
    ]


def test_what_has_no_number_is_kept_and_what_is_too_large_is_infinite() -> None:
    found = rounded(np.array([np.nan, np.inf, -np.inf, 1e300, -0.0, 1e-300]), BFLOAT16).astype(np.float64)
    np.testing.assert_array_equal(found, [np.nan, np.inf, -np.inf, np.inf, -0.0, 0.0])
    assert np.array(1 + 2**-8 + 2**-40).astype(ml_dtypes.bfloat16) == 1  # what is mended here
    assert rounded(np.array(1 + 2**-8 + 2**-40), BFLOAT16) == 1 + 2**-7


@settings(max_examples=examples(60, 6))
@given(st.integers(0, 2**32 - 1))
def test_a_mean_of_any_dtypes_in_any_parts(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [tuple(rng.integers(1, 4, rng.integers(0, 4)).tolist()) for _ in range(3)]
    tensors = tuple(
        ckptzoo.Tensor(f"t{at}.weight", shape, str(rng.choice(DTYPES)), aliases=("tied.weight",) if at == 1 else ())
        for at, shape in enumerate(shapes)
    )
    arch = ckptzoo.Architecture(
        "any", (*tensors, ckptzoo.Tensor("mask", (2,), "bool"), ckptzoo.Tensor("n", (), "int64"))
    )
    path, parts = tmp_path_factory.mktemp("zoo") / "zoo", rng.integers(1, 5, rng.integers(1, 4)).tolist()
    weights = {
        tensor.name: (rng.standard_normal((sum(parts), *tensor.shape)) * 3).astype(numpy_dtype(tensor.dtype))
        for tensor in arch.tensors
    }
    weights["mask"][:], weights["n"][:] = weights["mask"][0], weights["n"][0]
    start = 0
    writer = ckptzoo.create(path, arch=arch)
    for count in parts:
        rows = [{"id": f"m{at}", "extra": {"lr": 0.1, "at": at}} for at in range(start, start + count)]
        writer.add({name: array[start : start + count] for name, array in weights.items()}, rows)
        writer.commit()
        start += count
    zoo = ckptzoo.open(path)
    chosen = sorted(rng.choice(sum(parts), rng.integers(1, sum(parts) + 1), replace=False).tolist())
    found = average(zoo.take(chosen)).checkpoint
    for tensor in arch.tensors:
        array = found[tensor.name]
        assert array.dtype == numpy_dtype(tensor.dtype) and array.shape == tensor.shape
        if tensor.dtype in DTYPES[:3]:
            for place in np.ndindex(tensor.shape):
                numbers = [Fraction(float(weights[tensor.name][(row, *place)])) for row in chosen]
                exact = sum(numbers, Fraction()) / len(chosen)
                assert float(array[place]) == pytest.approx(nearest(exact, array.dtype), rel=1e-15, abs=0)
    assert found.arch["t1.weight"].aliases == ("tied.weight",)
    # one checkpoint, and copies of one, are their own mean to the bit
    same = average(zoo.take([chosen[0]] * (1 if seed % 2 else 3))).checkpoint
    for tensor in arch.tensors:
        if tensor.dtype != "float64":
            assert same[tensor.name].tobytes() == weights[tensor.name][chosen[0]].tobytes()
    extra = {"at": chosen[0], "lr": 0.1} if len(chosen) == 1 else {"lr": 0.1}
    assert ckptzoo.schema.metadata.parse_extra(found.row["extra"]) == extra


class Norms(torch.nn.Module):
    """BatchNorm, dropout, and a buffer that is no statistic."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(8, 3)
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.norm(self.first(inputs + self.shift))).relu())


def norms(folder: Path, count: int = 4) -> ckptzoo.Zoo:
    torch.manual_seed(0)
    states = []
    for number in range(count):
        module = Norms()
        state = module.state_dict()
        state["shift"].fill_(0.5)
        state["norm.num_batches_tracked"].fill_(number)
        state["norm.running_mean"].normal_()
        states.append(state)
    arch = ckptzoo.Architecture.of(states[0], name="norms", input_shape=(4,))
    stacked = {name: torch.stack([state[name] for state in states]).numpy() for name in states[0]}
    return ckptzoo.open(written(folder, arch, stacked))


def test_statistics_are_renewed_as_torch_does(tmp_path: Path) -> None:
    zoo, training = norms(tmp_path / "zoo"), RNG.standard_normal((40, 4)).astype(np.float32)
    labelled = Labelled("made/test", training, RNG.integers(0, 3, 40), training)
    found = average(zoo, labelled=labelled, module=Norms())
    again = average(zoo, labelled=labelled, module=Norms())
    expected = Norms()
    expected.load_state_dict(
        {name: torch.from_numpy(np.array(average(zoo).checkpoint[name])) for name in zoo.arch.names}
    )
    expected.drop.p = 0.0
    update_bn([torch.from_numpy(training)], expected)
    for name, tensor in expected.state_dict().items():
        np.testing.assert_allclose(found.checkpoint[name], tensor.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.checkpoint[name], again.checkpoint[name])
    assert found.statistics == "recomputed from 40 training inputs"
    with torch.no_grad():
        right = (expected.eval()(torch.from_numpy(training)).argmax(1).numpy() == labelled.targets).mean()
    assert found.accuracy == pytest.approx(right)
    plain = average(zoo, labelled=Labelled("made/test", training, labelled.targets), module=Norms())
    assert plain.statistics == average(zoo).statistics == "averaged as the weights are"
    mean = zoo["norm.running_mean"][:].mean(0, dtype=np.float64).astype(np.float32)
    np.testing.assert_array_equal(plain.checkpoint["norm.running_mean"], mean)
    assert plain.checkpoint["norm.num_batches_tracked"] == 0
    one = average(zoo.take([2]), labelled=labelled, module=Norms())
    np.testing.assert_array_equal(one.checkpoint["norm.running_mean"], zoo["norm.running_mean"][2])
    assert one.statistics is None


def test_a_soup_renews_the_statistics_of_means_alone(tmp_path: Path) -> None:
    zoo, training = norms(tmp_path / "zoo"), RNG.standard_normal((40, 4)).astype(np.float32)
    labelled = Labelled("made/test", training, RNG.integers(0, 3, 40), training)
    found = soup(zoo, labelled, module=Norms())
    own = {item.id: measured_on(item, labelled, module=Norms())[0] for item in zoo}
    assert {item.id: item.accuracy for item in found.trials} == own
    for ids, together in [(found.ids, found.chosen_accuracy), ([item.id for item in found.trials[:2]], None)]:
        mean = average(zoo.take([zoo.ids.index(id) for id in ids]), labelled=labelled, module=Norms())
        assert mean.accuracy == (together if together is not None else found.trials[1].together)


def test_what_is_no_network_is_refused(tmp_path: Path, make_zoo: Any) -> None:
    zoo, labelled = near_one(tmp_path / "near", 3, 0.1), held_out()
    with pytest.raises(ZooError, match=r"^near: checkpoints to average: expected at least one, got none\."):
        average(zoo.where("id == 'x'"))
    with pytest.raises(ZooError, match=r"near: checkpoints to average"):
        soup(zoo.where("id == 'x'"), labelled)
    with pytest.raises(UnknownNameError, match="reference 'nobody'"):
        average(zoo, to="nobody")
    with pytest.raises(UnknownNameError, match="Run ckptzoo align ZOO --to barycentre"):
        average(zoo, to="barycentre")
    with pytest.raises(UnknownNameError, match="variant 'canonical'"):
        average(zoo, variant="canonical")
    mixed, weights = make_zoo()
    with pytest.raises(SymmetryError, match="symmetry table of mixed"):
        average(ckptzoo.open(mixed), to="m00001")
    counter = average(ckptzoo.open(mixed)).checkpoint["norm.num_batches_tracked"]
    assert counter == weights["norm.num_batches_tracked"][0] and len(set(weights["norm.num_batches_tracked"])) > 1
    whole = ckptzoo.Architecture("whole", (ckptzoo.Tensor("fc.weight", (2,)), ckptzoo.Tensor("fc.bits", (), "int8")))
    made = {"fc.weight": np.ones((2, 2), np.float32), "fc.bits": np.array([4, 8], np.int8)}
    with pytest.raises(ZooError, match=r"tensor 'fc.bits' of int8: expected that of '0', got another one in '1'\. Sel"):
        average(ckptzoo.open(written(tmp_path / "whole", whole, made))).checkpoint["fc.bits"]
    gaussian = archs.architecture("gaussian-mlp-4-8-2")
    made = {tensor.name: np.ones((2, *tensor.shape), np.float32) for tensor in gaussian.tensors}
    gaussians = ckptzoo.open(written(tmp_path / "gaussians", gaussian, made))
    for refused in (lambda: average(gaussians), lambda: measured_on(gaussians[0], labelled)):
        with pytest.raises(ZooError, match="expected networks, got Gaussians over their weights"):
            refused()


@pytest.mark.parametrize("to", [None, "0"])
def test_a_checkpoint_that_is_not_finite(tmp_path: Path, to: str | None) -> None:
    weights = weights_of(4, 0, arch=ARCH)
    weights["fc2.weight"][2, 0, 1] = np.inf
    zoo, labelled = ckptzoo.open(written(tmp_path / "zoo", ARCH, weights, symmetry=TABLE)), held_out()
    with pytest.raises(ZooError, match=r"of '2'|checkpoint '2': expected finite numbers"):
        average(zoo, to=to).checkpoint["fc2.weight"]
    found = soup(zoo, labelled, to=to)
    assert found.left_out == ("2",) and len(found.trials) == 3 and "2" not in found.ids
    with pytest.raises(ZooError, match="one that is finite, got none of 1"):
        soup(zoo.take([2]), labelled)
    assert len(average(zoo.where("finite == True"), to=to).ids) == 3
