"""OptuNet's declaration, and the outputs of many at once, against its module."""

import numpy as np
import pytest
import torch

from ckptzoo import archs
from ckptzoo.archs.optunet import stacked_outputs
from ckptzoo.errors import UnknownNameError, ZooError
from tests.support.effort import examples


def test_optunet_has_392_parameters() -> None:
    declared = archs.architecture("optunet")
    assert declared.parameters == 392
    assert [tensor.size for tensor in declared.tensors] == [32, 250, 100, 10]


def test_the_forward_is_the_documented_chain_of_layers() -> None:
    torch.manual_seed(0)
    model = archs.get("optunet")()
    chain = torch.nn.Sequential(
        model.conv1,
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 3),
        model.conv2,
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        model.fc,
    )
    images = torch.randn(5, 1, 28, 28)
    torch.testing.assert_close(model(images), chain(images))
    assert model(images).shape == (5, 10)


def stack(members: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    declared = archs.architecture("optunet").tensors
    return {t.name: scale * torch.randn(members, *t.shape, generator=generator, dtype=dtype) for t in declared}


def images_of(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(9), dtype=dtype)


def by_module(weights: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Outputs (K, B, 10) of the module, member by member."""
    model = archs.get("optunet")().to(images.dtype)
    rows: list[torch.Tensor] = []
    for member in range(len(weights["fc.bias"])):
        model.load_state_dict({name: value[member] for name, value in weights.items()})
        with torch.no_grad():
            rows.append(model(images))
    return torch.stack(rows)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize(("members", "count"), [(1, 1), (32, 64), (35, 70)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.sampled(2)
def test_stacked_outputs_are_those_of_the_module(
    dtype: torch.dtype, bound: float, members: int, count: int, scale: float
) -> None:
    weights, images = stack(members, dtype, scale=scale), images_of(count, dtype)
    weights["conv1.weight"][0, 1] = 0
    expected = by_module(weights, images)
    found = stacked_outputs(weights, images)
    assert found.shape == (members, count, 10) and found.dtype == dtype
    assert ((found - expected).abs().amax((1, 2)) <= bound * expected.abs().amax((1, 2))).all()


@pytest.mark.parametrize("seed", range(examples(20)))
def test_stacked_outputs_hold_what_is_not_finite_where_the_module_does(seed: int) -> None:
    """Infinities, NaN and numbers near the end of float32 in random places of weights and images."""
    rng = np.random.default_rng(seed)
    weights, images = stack(18, torch.float32, seed), images_of(66, torch.float32)
    for value in (*weights.values(), images):
        flat = value.view(-1)
        places = torch.from_numpy(rng.choice(len(flat), 4, replace=False))
        flat[places] = torch.from_numpy(rng.choice([np.inf, -np.inf, np.nan, 1e30], 4).astype(np.float32))
    expected, found = by_module(weights, images), stacked_outputs(weights, images)
    finite = expected.isfinite()
    assert not finite.all() and finite.any()
    assert torch.equal(found.nan_to_num(1, 2, 3)[~finite], expected.nan_to_num(1, 2, 3)[~finite])
    size = torch.where(finite, expected, 0).abs().amax((1, 2), keepdim=True).expand_as(expected)
    assert ((found - expected).abs() <= 2e-6 * size)[finite].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_members_outputs_do_not_depend_on_the_others(dtype: torch.dtype) -> None:
    weights, images = stack(150, dtype), images_of(70, dtype)
    found = stacked_outputs(weights, images)
    order = torch.from_numpy(np.random.default_rng(0).permutation(150))
    moved = stacked_outputs({name: value[order] for name, value in weights.items()}, images)
    assert torch.equal(moved, found[order])
    for rows in (slice(0, 1), slice(7, 8), slice(3, 40), slice(130, 150)):
        assert torch.equal(stacked_outputs({name: value[rows] for name, value in weights.items()}, images), found[rows])
    assert torch.equal(stacked_outputs(weights, images[:64]), found[:, :64]), "nor on a block of images behind"


def test_stacked_outputs_of_weights_that_are_trained_or_shown_no_images() -> None:
    weights = {name: value.requires_grad_() for name, value in stack(2, torch.float32).items()}
    assert not stacked_outputs(weights, images_of(3, torch.float32)).requires_grad
    assert stacked_outputs(weights, images_of(0, torch.float32)).shape == (2, 0, 10)
    none = {name: value[:0] for name, value in weights.items()}
    assert stacked_outputs(none, images_of(3, torch.float32)).shape == (0, 3, 10)
    with torch.inference_mode():
        weights["conv1.weight"][1] = torch.nan
        assert stacked_outputs(weights, images_of(3, torch.float32))[1].isnan().all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"images": torch.zeros(3, 1, 32, 32)}, r"images: expected torch.float32 \(3, 1, 28, 28\) on cpu"),
        ({"images": torch.zeros(3, 784)}, "images"),
        ({"images": torch.zeros(3, 1, 28, 28).half()}, "images: expected torch.float32"),
        ({"images": torch.zeros(3, 1, 28, 28).double()}, "conv1.weight: expected torch.float64"),
        ({"fc.bias": torch.zeros(3, 10)}, r"fc.bias: expected torch.float32 \(2, 10\) on cpu, got"),
        ({"conv2.weight": torch.zeros(2, 10, 2, 5, 5)}, "conv2.weight"),
    ],
)
def test_stacked_outputs_refuse_what_does_not_fit(changed: dict[str, torch.Tensor], said: str) -> None:
    given = {**stack(2, torch.float32), "images": images_of(3, torch.float32), **changed}
    with pytest.raises(ZooError, match=said):
        stacked_outputs(given, given.pop("images"))
    with pytest.raises(ZooError, match=r"optunet: tensors: expected conv1.weight, .* got no fc.bias, fc.weight"):
        stacked_outputs({name: given[name] for name in ("conv1.weight", "conv2.weight")}, images_of(3, torch.float32))


def test_only_inputs_of_the_declared_shape_have_a_stacked_function() -> None:
    assert archs.stacked("optunet", (1, 28, 28)) is stacked_outputs
    assert archs.stacked("optunet", (1, 32, 32)) is None
    assert archs.stacked("mlp-784-10", (784,)) is None
    with pytest.raises(UnknownNameError):
        archs.stacked("optunett", (1, 28, 28))
