"""Elements and weights in torch: the bits of numpy, in the memory and on the device where the weights are."""

import subprocess
import sys
from pathlib import Path

import array_api_compat.torch
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, action, apply
from ckptzoo.symmetry import backends as elsewhere
from ckptzoo.symmetry.arrays import stack_of, to_numpy
from tests.support.effort import examples
from tests.support.symmetry_tables import Network, Weights, networks

seeds = st.integers(0, 2**32 - 1)
floats = st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
laws = settings(max_examples=examples(100), deadline=None)

TABLE = Symmetry(
    (Group("a", 3, Sym(), "positive"),),
    (
        AxisAction("w", 0, (Segment("a", 0, 1, 3),), 1, True, "out"),
        AxisAction("count", 0, (Segment("a", 0, 1, 3),), 0, False, "mean"),
        AxisAction("var", 0, (Segment("a", 0, 1, 3),), 2, False, "variance", eps=1e-5),
    ),
)
ELEMENT = GroupElement({"a": np.array([[2, 0, 1]])}, {"a": np.array([[2.0, 3.0, 4.0]])})


def tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensors(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: tensor(array) for name, array in weights.items()}


def example() -> Weights:
    return {
        "w": np.arange(6, dtype="f4").reshape(1, 3, 2),
        "count": np.array([[10, 11, 12]]),
        "var": np.ones((1, 3), "f4"),
    }


def on_a_device(patch: pytest.MonkeyPatch, size: int = 2**24) -> None:
    """Treat torch's tensors as if they were out of numpy's reach."""
    patch.setattr(action, "in_memory", lambda array: isinstance(array, np.ndarray))
    patch.setattr(elsewhere, "DEVICE_CHUNK", size)


def assert_same_bits(made: dict[str, torch.Tensor], expected: Weights) -> None:
    assert list(made) == list(expected)
    for name, array in expected.items():
        assert isinstance(made[name], torch.Tensor)
        assert made[name].numpy().dtype == array.dtype and made[name].numpy().tobytes() == array.tobytes(), name


@laws
@given(networks(nested=True), st.integers(0, 4), seeds, floats, st.booleans())
def test_torch_in_memory_has_the_bits_of_numpy(net: Network, K: int, seed: int, dtype: type, moved: bool) -> None:
    weights, g = net.weights(K, seed, dtype), net.element(K, seed + 1)
    held = g.to(torch.empty(0)) if moved else g
    assert_same_bits(apply(held, tensors(weights), net.table), apply(g, weights, net.table))


@laws
@given(networks(nested=True), st.integers(0, 4), seeds, floats, st.booleans(), st.sampled_from([1, 20, 2**24]))
def test_the_array_api_has_the_bits_of_numpy(
    net: Network, K: int, seed: int, dtype: type, moved: bool, size: int
) -> None:
    weights, g = net.weights(K, seed, dtype), net.element(K, seed + 1)
    for scale in g.scales.values():
        scale[:1] = 1
    held = g.to(torch.empty(0)) if moved else g
    with pytest.MonkeyPatch.context() as patch:
        on_a_device(patch, size)
        made = apply(held, tensors(weights), net.table)
    assert_same_bits(made, apply(g, weights, net.table))


@laws
@given(networks(nested=True), seeds)
def test_elements_in_torch_are_those_of_numpy(net: Network, seed: int) -> None:
    g, h = net.element(3, seed), net.element(3, seed + 1)
    one, two = g.to(torch.empty(0)), h.to(torch.empty(0))
    one.check(net.table)
    for made, expected in ((one.compose(two), g.compose(h)), (one.inverse(), g.inverse()), (one[1:], g[1:])):
        assert len(made) == len(expected)
        assert_same_bits(made.to_tensors(), expected.to_tensors())
    again = GroupElement.from_tensors(one.to_tensors())
    again.check(net.table)
    assert_same_bits(again.compose(again.inverse()).perms, GroupElement.identity(net.table, 3).perms)
    back = one.to(np.empty(0))
    assert all(type(held) is np.ndarray for held in (*back.perms.values(), *back.scales.values()))
    assert all(back.scales[name].tobytes() == scale.tobytes() for name, scale in g.scales.items())


def test_an_element_moves_by_a_copy_and_stays_where_it_is() -> None:
    g = GroupElement.identity(TABLE, 2)
    g.perms["a"].flags.writeable = False
    moved = g.to(torch.empty(0))
    moved.scales["a"][:] = 5
    assert (g.scales["a"] == 1).all() and moved.to(torch.empty(0)).scales["a"] is moved.scales["a"]


def test_results_are_torch_without_gradients_and_weights_are_left_alone() -> None:
    weights = tensors(example())
    weights["w"].requires_grad_()
    for on_device in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if on_device:
                on_a_device(patch)
            made = apply(ELEMENT, weights, TABLE)
        assert made["w"].tolist() == [[[8, 10], [0, 3], [8, 12]]] and not made["w"].requires_grad
        assert made["count"].tolist() == [[12, 10, 11]] and made["count"].dtype == torch.int64
        assert weights["w"].tolist() == [[[0, 1], [2, 3], [4, 5]]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_of_torch_become_float32(dtype: torch.dtype) -> None:
    weights = {**tensors(example()), "w": torch.tensor([[[1.5], [2.5], [3.5]]], dtype=dtype)}
    made = apply(ELEMENT, weights, TABLE)["w"]
    assert made.dtype == torch.float32 and made.ravel().tolist() == [7, 4.5, 10]


def test_numpy_and_torch_may_stand_side_by_side() -> None:
    weights = example()
    mixed = {**weights, "w": tensor(weights["w"])}
    made = apply(ELEMENT, mixed, TABLE)
    assert isinstance(made["w"], torch.Tensor) and type(made["var"]) is np.ndarray


def test_stack_of_gives_numpy_in_the_same_memory() -> None:
    weights = {**tensors(example()), "brain": torch.tensor([[1.5]], dtype=torch.bfloat16)}
    arrays, K = stack_of(weights, TABLE)
    weights["w"][:] = 7
    assert K == 1 and (arrays["w"] == 7).all()
    assert arrays["brain"].dtype == ml_dtypes.bfloat16 and arrays["brain"].tolist() == [[1.5]]


@pytest.mark.parametrize("on_device", [False, True])
def test_the_result_goes_into_tensors_that_are_given(on_device: bool) -> None:
    weights = tensors(example())
    out = {name: torch.full_like(value, 99) for name, value in weights.items()}
    with pytest.MonkeyPatch.context() as patch:
        if on_device:
            on_a_device(patch)
        made = apply(ELEMENT, weights, TABLE, out=out)
    assert all(made[name] is out[name] for name in weights)
    assert_same_bits(out, apply(ELEMENT, example(), TABLE))


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ({"w": np.empty((1, 3, 2), "f4")}, "float32 of torch on cpu, got .* float32 of numpy on cpu"),
        ({"w": torch.empty(1, 3, 2, device="meta")}, "of torch on cpu, got .* of torch on meta"),
        ({"w": torch.empty(1, 3, 2, dtype=torch.float64)}, "float32 of torch on cpu, got .* float64 of torch"),
        ({"w": torch.empty(1, 2, 3).swapaxes(1, 2)}, "a contiguous array"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_the_reason(out, says: str) -> None:
    with pytest.raises(SymmetryError, match=f"tensor 'w': expected .*{says}"):
        apply(ELEMENT, tensors(example()), TABLE, out=out)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"w": torch.zeros(1, 2, 2)}, "at least 3 positions on axis 0 of a checkpoint, got shape \\(2, 2\\)"),
        ({"w": torch.zeros(2, 3, 2)}, "one number of checkpoints K in every tensor, got \\[\\(1,\\), \\(2,\\)\\]"),
        ({"w": torch.zeros(())}, "leading axes"),
    ],
)
def test_torch_weights_that_do_not_fit_are_refused_with_the_reason(change, says: str) -> None:
    with pytest.raises(SymmetryError, match=says):
        apply(ELEMENT, {**tensors(example()), **change}, TABLE)


@pytest.mark.parametrize(
    ("element", "says"),
    [
        (GroupElement({"a": torch.tensor([[0.0, 1, 2]])}, {"a": torch.ones(1, 3).double()}), r"\(1, 3\) integers, got"),
        (GroupElement({"a": torch.tensor([[0, 1, 1]])}, {"a": torch.ones(1, 3).double()}), "each of 0 to 2 once"),
        (GroupElement({"a": torch.tensor([[0, 1, 2]])}, {"a": torch.ones(1, 3)}), "float64, got .* float32"),
        (GroupElement({"a": torch.tensor([[0, 1, 2]])}, {"a": -torch.ones(1, 3).double()}), "positive finite"),
        (GroupElement({"a": torch.tensor([[0, 1, 2]])}, {"a": torch.ones(1, 3).bfloat16()}), "got .* bfloat16"),
    ],
)
def test_what_is_no_element_in_torch_is_refused_with_the_reason(element: GroupElement, says: str) -> None:
    with pytest.raises(SymmetryError, match=says):
        apply(element, tensors(example()), TABLE)


def test_a_device_without_float64_is_refused_only_where_scales_are_needed(monkeypatch) -> None:
    """As Apple's mps is; the array API's own inspection says so."""
    on_a_device(monkeypatch)
    info = array_api_compat.torch.__array_namespace_info__
    monkeypatch.setattr(info, "dtypes", lambda self, *, device, kind: {"float32": torch.float32})
    with pytest.raises(
        SymmetryError, match=r"scales on device 'cpu': expected a device that has float64, got one of fl"
    ):
        apply(ELEMENT, tensors(example()), TABLE)
    table = Symmetry((Group("a", 3, Sym(), "none"),), (AxisAction("w", 0, (Segment("a", 0, 1, 3),), 1, True, "out"),))
    made = apply(GroupElement(ELEMENT.perms, {}), {"w": torch.arange(3)[None]}, table)
    assert made["w"].tolist() == [[2, 0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("blocked", [False, True])
def test_numpy_alone_needs_no_torch(blocked: bool) -> None:
    program = (
        "import sys, numpy as np\n"
        f"if {blocked}: sys.modules['torch'] = None\n"
        "from ckptzoo import archs\n"
        "from ckptzoo.symmetry import GroupElement, apply\n"
        "table, arch = archs.symmetry('optunet'), archs.architecture('optunet')\n"
        "g = GroupElement.random(table, 2, np.random.default_rng(0))\n"
        "g = GroupElement.from_tensors(g.compose(g.inverse()).to_tensors())\n"
        "apply(g, {tensor.name: np.ones((2, *tensor.shape)).tolist() for tensor in arch.tensors}, table)\n"
        "assert sys.modules.get('torch') is None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@settings(max_examples=examples(50), deadline=None)
@given(networks(nested=True), st.integers(0, 4), seeds, floats, st.booleans())
def test_cuda_has_the_bits_of_numpy(net: Network, K: int, seed: int, dtype: type, moved: bool) -> None:
    weights, g = net.weights(K, seed, dtype), net.element(K, seed + 1)
    held = g.to(torch.empty(0, device="cuda")) if moved else g
    on_device = {name: value.cuda() for name, value in tensors(weights).items()}
    made = apply(held, on_device, net.table)
    assert all(value.device == on_device[name].device for name, value in made.items())
    assert_same_bits({name: value.cpu() for name, value in made.items()}, apply(g, weights, net.table))
    inverse = held.inverse()
    assert all(to_numpy(inverse.perms[name]).tobytes() == perm.tobytes() for name, perm in g.inverse().perms.items())
