"""Differences of outputs: what the equivalence check measures, that it sees what it must, and normalisations."""

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import weight_norm

from ckptzoo import archs
from ckptzoo.derive import output_differences
from ckptzoo.derive.forward import one_thread
from ckptzoo.derive.output_differences import EquivalenceChecker
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.symmetry import canonicalize
from tests.support.derived_zoos import ARCH, TABLE, WRONG, inputs_of, weights_of

INPUTS = np.random.default_rng(1).random((11, 1, 28, 28))
RESNET = "resnet8-conv-10"


def outputs_of(name: str, weights: dict[str, np.ndarray], at: int, inputs: np.ndarray) -> np.ndarray:
    """What the module computes in float64 from a state dict, the plain way."""
    model = archs.get(name)().double().eval()
    model.load_state_dict({key: torch.from_numpy(np.array(array[at])) for key, array in weights.items()})
    with torch.no_grad():
        return model(torch.from_numpy(inputs)).numpy()


@pytest.mark.parametrize("name", ["optunet", pytest.param(RESNET, marks=pytest.mark.exhaustive), "mlp-tanh-784-30-10"])
def test_the_largest_difference_of_the_outputs_over_the_largest_output(name: str) -> None:
    arch = archs.architecture(name)
    inputs = inputs_of(arch, 11)
    one, two = weights_of(5, 0, arch=arch), weights_of(5, 1, arch=arch)
    found = {
        precision: EquivalenceChecker(arch).output_differences(one, two, inputs, precision=precision)
        for precision in ("float64", "float32")
    }
    for at in range(5):
        first, second = (outputs_of(name, weights, at, inputs) for weights in (one, two))
        difference = np.abs(second - first).max() / np.abs(first).max()
        assert found["float64"][at] == pytest.approx(difference, rel=1e-11)
        assert found["float32"][at] == pytest.approx(difference, rel=1e-4)
        assert found["float32"][at] != found["float64"][at]


@pytest.mark.parametrize("outputs", [1, 10])
def test_an_output_near_zero_does_not_count_for_more_than_its_rounding(outputs: int) -> None:
    """Of a float32 rounding of the weights, whatever the number of outputs: one of them is 0 on one of the inputs."""
    arch = Architecture("linear", (Tensor("weight", (outputs, 30)), Tensor("bias", (outputs,))), None, (30,))
    rng = np.random.default_rng(outputs)
    inputs = rng.standard_normal((8, 30))
    double = {"weight": rng.standard_normal((200, outputs, 30)), "bias": np.zeros((200, outputs))}
    double["bias"][:, 0] = -(double["weight"] @ inputs[3])[:, 0] * (1 + 1e-7)
    single = {name: array.astype(np.float32) for name, array in double.items()}
    found = EquivalenceChecker(arch, nn.Linear(30, outputs)).output_differences(double, single, inputs)
    assert (found > 1e-9).all() and found.max() < 4e-7


def test_one_changed_weight_is_seen_in_its_own_checkpoint() -> None:
    one = weights_of(140, 0)
    two = {name: array.copy() for name, array in one.items()}
    two["fc.weight"][137, 4] *= 1.001
    found = EquivalenceChecker(ARCH).output_differences(one, two, INPUTS)
    assert found[137] > 1e-6
    assert (np.delete(found, 137) == 0).all()


FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "one number an input": lambda h: h[:, 0],
    "one number": lambda h: h.square().mean(),
    "a tuple": lambda h: (h, h.mean(1)),
    "a dict of several": lambda h: {"all": [h, h.sum(0)], "largest": h.argmax(1), "nothing": None},
    "inputs on the last axis": lambda h: h.mT,
    "inputs beside each other": lambda h: h @ h.mT,
    "complex numbers": lambda h: torch.fft.rfft(h),
}


class Formed(nn.Module):
    """A layer of numbers or of indices, behind another form of weights, with outputs in some form."""

    def __init__(self, form: Callable[[torch.Tensor], Any], first: nn.Module) -> None:
        super().__init__()
        self.form, self.first, self.last = form, first, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(self.last(self.first(x).tanh()))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("first", ["numbers", "indices", "weight_norm"])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_any_form_and_inputs_that_are_indices(form: str, first: str) -> None:
    torch.manual_seed(0)
    layers = {"numbers": nn.Linear(5, 4), "indices": nn.Embedding(7, 4), "weight_norm": weight_norm(nn.Linear(5, 4))}
    module = Formed(FORMS[form], layers[first])
    inputs = np.arange(11) % 7 if first == "indices" else np.random.default_rng(0).standard_normal((11, 5))
    state = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    one = {name: np.stack([value] * 3) for name, value in state.items()}
    two = {name: value.copy() for name, value in one.items()}
    two["last.weight"][1] *= 1.5
    found = EquivalenceChecker(Architecture.of(state, name="formed"), module).output_differences(one, two, inputs)
    assert found[0] == found[2] == 0 and found[1] > 1e-3


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda h: "nothing", "formed: outputs: expected tensors, got str. Return tensors"),
        (
            lambda h: nn.functional.linear(h, torch.ones(2, 3)),
            r"inputs of shape \(2, 5\), as float64: .*attribute is to be",
        ),
        (lambda h: h @ h, r"expected inputs that the network takes, got RuntimeError: .*2x3"),
    ],
)
def test_what_the_network_does_not_compute_is_refused(form: Callable[[torch.Tensor], Any], message: str) -> None:
    module = Formed(form, nn.Linear(5, 4))
    state = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    one = {name: value[None] for name, value in state.items()}
    checker = EquivalenceChecker(Architecture.of(state, name="formed"), module)
    for inputs in (np.ones((2, 5)), np.full((2, 5), 0.5)):
        with pytest.raises(ZooError, match=message):
            checker.output_differences(one, one, inputs)


@pytest.mark.parametrize("buffer", ["bn1.running_mean", "bn1.running_var", "layer2.0.bn1.bias"])
def test_a_changed_buffer_is_seen(buffer: str) -> None:
    arch = archs.architecture(RESNET)
    one = weights_of(2, 0, arch=arch)
    two = {name: array.copy() for name, array in one.items()}
    two[buffer][1] += 0.1
    two["bn1.num_batches_tracked"][0] += 1
    found = EquivalenceChecker(arch).output_differences(
        one, two, INPUTS[:, :, :4, :4].repeat(3, axis=1), precision="float32"
    )
    assert found[0] == 0 and found[1] > 1e-5


def test_a_gauge_changes_nothing_but_one_rounding() -> None:
    one = weights_of(8, 0)
    double = {name: array.astype(np.float64) for name, array in one.items()}
    checker = EquivalenceChecker(ARCH)
    assert (
        checker.output_differences(double, canonicalize(double, TABLE, gauge="canonical").weights, INPUTS).max() < 1e-13
    )
    assert 0 < checker.output_differences(one, canonicalize(one, TABLE, gauge="canonical").weights, INPUTS).max() < 2e-6


def test_outputs_that_are_zero_tiny_or_not_finite() -> None:
    one = {name: np.zeros_like(array) for name, array in weights_of(5, 0).items()}
    one["fc.bias"][3:] = 1e-37
    two = {name: array.copy() for name, array in one.items()}
    two["fc.bias"][1] = 1
    two["fc.bias"][2] = np.nan
    two["fc.bias"][4] *= 2
    found = EquivalenceChecker(ARCH).output_differences(one, two, INPUTS)
    assert found[:4].tolist() == [0, np.inf, np.inf, 0] and found[4] == pytest.approx(1)
    assert np.isnan(EquivalenceChecker(ARCH).output_differences(two, one, INPUTS)[2])
    double = {name: array.astype(np.float64) for name, array in one.items()}
    double["fc.bias"][3:] = 1e-200
    other = {**double, "fc.bias": double["fc.bias"] * 3}
    assert EquivalenceChecker(ARCH).output_differences(double, other, INPUTS)[3] == pytest.approx(2)


def test_threads_may_share_a_checker_and_do_not_change_its_figures() -> None:
    arch = archs.architecture(RESNET)
    checker, inputs = EquivalenceChecker(arch), INPUTS[:2, :, :8, :8].repeat(3, axis=1)
    pairs = [(weights_of(3, seed, arch=arch), weights_of(3, seed + 50, arch=arch)) for seed in range(6)]
    with one_thread():
        alone = [checker.output_differences(*pair, inputs) for pair in pairs]
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda pair: checker.output_differences(*pair, inputs), pairs))
        assert torch.get_num_threads() == 1
    np.testing.assert_array_equal(alone, together)


def test_the_random_state_and_the_threads_of_torch_stay_as_they_were() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with one_thread():
        EquivalenceChecker(ARCH).output_differences(weights_of(1, 0), weights_of(1, 1), INPUTS)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads


class _Tied(nn.Module):
    """Two linear layers that share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(inputs))


@pytest.mark.parametrize("stack", [1, 4])
def test_tied_tensors_stand_under_all_their_names(monkeypatch: pytest.MonkeyPatch, stack: int) -> None:
    monkeypatch.setattr(archs, "get", lambda name: _Tied)
    monkeypatch.setattr(output_differences, "_STACK", stack)
    arch = Architecture("tied", (Tensor("a.weight", (3, 3), aliases=("b.weight",)),), "tied", (3,))
    rng = np.random.default_rng(0)
    one, two = ({"a.weight": rng.standard_normal((4, 3, 3))} for _ in range(2))
    inputs = rng.standard_normal((5, 3))
    made = [np.einsum("bi,kji,klj->kbl", inputs, found["a.weight"], found["a.weight"]) for found in (one, two)]
    expected = np.abs(made[1] - made[0]).max(axis=(1, 2)) / np.abs(made[0]).max(axis=(1, 2))
    np.testing.assert_allclose(EquivalenceChecker(arch).output_differences(one, two, inputs), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["optunet", RESNET, "resnet8-pad-10", "mlp-tanh-784-20-10"])
def test_right_tables_pass_also_with_variances_near_zero(name: str) -> None:
    arch, table = archs.architecture(name), archs.symmetry(name)
    weights = weights_of(2, 0, arch=arch)
    for key in weights:
        if key.endswith("running_var"):
            weights[key][1] *= 1e-7
    inputs = inputs_of(arch, 2)
    EquivalenceChecker(arch).check_table(table, weights, inputs)


def test_wrong_tables_are_refused() -> None:
    checker, weights = EquivalenceChecker(ARCH), weights_of(4, 0)
    forgotten = replace(TABLE, actions=(*TABLE.actions[:3], replace(TABLE.actions[3], exponent=0)))
    for wrong in (WRONG, forgotten):
        with pytest.raises(SymmetryError, match="random group elements"):
            checker.check_table(wrong, weights, INPUTS)
    arch, table = archs.architecture(RESNET), archs.symmetry(RESNET)
    naive = replace(table, actions=tuple(replace(action, eps=0.0) for action in table.actions))
    with pytest.raises(SymmetryError, match="random group elements"):
        EquivalenceChecker(arch).check_table(
            naive, weights_of(1, 0, arch=arch), INPUTS[:2, :, :8, :8].repeat(3, axis=1)
        )


def test_a_checkpoint_whose_own_outputs_are_not_finite_does_not_judge_the_table() -> None:
    weights = weights_of(2, 0)
    weights["fc.weight"][0] = np.nan
    assert EquivalenceChecker(ARCH).check_table(TABLE, weights, INPUTS)
    weights["fc.weight"][1] = np.nan
    assert not EquivalenceChecker(ARCH).check_table(TABLE, weights, INPUTS)


@pytest.mark.exhaustive
def test_memory_is_that_of_one_large_network() -> None:
    arch = archs.architecture("mlp-784-1500-10")
    weights, checker = weights_of(12, 0, arch=arch), EquivalenceChecker(arch)
    inputs = inputs_of(arch, 8)
    checker.output_differences(weights, weights, inputs)
    tracemalloc.start()
    try:
        checker.output_differences(weights, weights, inputs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 2 * arch.nbytes
