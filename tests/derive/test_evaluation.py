"""Losses and accuracies of stacks of networks, on lines between them too, against torch network by network."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from ckptzoo import archs
from ckptzoo.derive.evaluation import Evaluator, along_lines, combined, standard_noise
from ckptzoo.derive.forward import Forward, StackedForward
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import ZooError
from ckptzoo.measure.barriers import barriers
from ckptzoo.schema.architecture import Architecture
from tests.support.derived_zoos import weights_of

RNG = np.random.default_rng(0)
POINTS = np.linspace(0, 1, 5)


def labelled(arch: Architecture, count: int, classes: int) -> Labelled:
    assert arch.input_shape is not None
    inputs = RNG.standard_normal((count, *arch.input_shape)).astype(np.float32)
    return Labelled("made/test", inputs, RNG.integers(0, classes, count))


def exact(name: str, weights: Mapping[str, Any], inputs: np.ndarray, *, train: bool = False) -> torch.Tensor:
    """(B, C) float64 outputs of one network."""
    module = archs.get(name)().double()
    state = {key: torch.from_numpy(np.asarray(value)) for key, value in weights.items()}
    module.load_state_dict(
        {key: value.double() if value.is_floating_point() else value for key, value in state.items()}
    )
    with torch.no_grad():
        return module.train(train)(torch.from_numpy(inputs).double())


@pytest.mark.parametrize(("name", "classes"), [("mlp-6-9-9-3", 3), ("optunet", 10)])
def test_lines_are_those_of_a_loop(name: str, classes: int) -> None:
    """Every loss and accuracy is that of the network between, computed alone in float64; so are stacks of other sizes."""
    arch = archs.architecture(name)
    first, second = weights_of(3, 1, arch=arch), weights_of(3, 2, arch=arch)
    given = labelled(arch, 50, classes)
    inputs, targets = given.inputs, given.targets
    evaluator = Evaluator(arch, given)
    scores = along_lines(evaluator, first, second, POINTS)
    for pair, place in np.ndindex(3, 5):
        t = POINTS[place]
        between = {key: (1 - t) * first[key][pair] + t * second[key][pair] for key in first}
        outputs = exact(name, between, inputs)
        assert scores.loss[pair, place] == pytest.approx(
            float(cross_entropy(outputs, torch.from_numpy(targets))), rel=1e-5
        )
        right = (outputs.argmax(1).numpy() == targets).mean()
        assert scores.accuracy[pair, place] == pytest.approx(right, abs=0.021), "one example may be a tie"
    one = along_lines(evaluator, *({key: value[2:] for key, value in item.items()} for item in (first, second)), POINTS)
    np.testing.assert_array_equal(one.loss, scores.loss[2:])


def test_a_convex_loss_has_no_barrier() -> None:
    """Cross-entropy is convex in the weights of a linear model."""
    arch = archs.architecture("mlp-5-3")
    given = labelled(arch, 40, 3)
    scores = along_lines(Evaluator(arch, given), weights_of(4, 1, arch=arch), weights_of(4, 2, arch=arch), POINTS)
    assert (barriers(scores.loss, POINTS).height <= 1e-6).all()


def test_gaussians_average_likelihoods_of_the_same_draws() -> None:
    name = "mlp-4-5-3"
    base, arch = archs.architecture(name), archs.architecture(f"gaussian-{name}")
    first, second = (
        {
            key: np.abs(value) / 5 if key.endswith("_std") else value
            for key, value in weights_of(2, seed, arch=arch).items()
        }
        for seed in (1, 2)
    )
    given = labelled(base, 30, 3)
    inputs, targets = given.inputs, given.targets
    noise = standard_noise(base, 7, 3)
    scores = along_lines(Evaluator(base, given), first, second, POINTS, noise)
    for pair, place in np.ndindex(2, 5):
        t = POINTS[place]
        between = {key: (1 - t) * first[key][pair] + t * second[key][pair] for key in first}
        likelihoods = [
            exact(
                name, {key: between[key] + between[f"{key}_std"] * noise[key][draw] for key in base.names}, inputs
            ).softmax(1)
            for draw in range(7)
        ]
        mean = torch.stack(likelihoods).mean(0)[torch.arange(30), torch.from_numpy(targets)]
        assert scores.loss[pair, place] == pytest.approx(-float(mean.log().mean()), rel=1e-5)


@pytest.mark.exhaustive
def test_statistics_of_batch_norm_are_those_of_each_network() -> None:
    """Between networks the outputs are those in training mode on the inputs that the statistics are from."""
    name = "resnet20-pad-10"
    arch = archs.architecture(name)
    first, second = weights_of(1, 1, arch=arch), weights_of(1, 2, arch=arch)
    given = labelled(arch, 24, 10)
    inputs, targets = given.inputs, given.targets
    evaluator = Evaluator(arch, Labelled("made/test", inputs, targets, inputs))
    scores = along_lines(evaluator, first, second, [0.0, 0.5, 1.0])
    half = {key: ((first[key] + second[key]) / 2)[0] for key in first}
    outputs = exact(name, half, inputs, train=True)
    # running variances have the divisor n - 1
    assert scores.loss[0, 1] == pytest.approx(float(cross_entropy(outputs, torch.from_numpy(targets))), rel=2e-3)
    kept = along_lines(Evaluator(arch, given), first, second, [0.0, 0.5, 1.0])
    assert abs(kept.loss[0, 1] - scores.loss[0, 1]) > 0.01 * scores.loss[0, 1]


def test_means_of_several_networks() -> None:
    arch = archs.architecture("mlp-4-5-3")
    corners = {key: value.reshape(2, 3, *value.shape[1:]) for key, value in weights_of(6, 1, arch=arch).items()}
    given = labelled(arch, 20, 3)
    evaluator = Evaluator(arch, given)
    shares = np.concatenate([np.full((2, 1, 3), 1 / 3), np.broadcast_to(np.eye(3), (2, 3, 3))], 1)
    scores = combined(evaluator, corners, shares)
    assert scores.loss.shape == (2, 4)
    alone = list(evaluator.scores([{key: value[1] for key, value in corners.items()}]))
    np.testing.assert_allclose(scores.loss[1, 1:], alone[0].loss, rtol=1e-6)


@pytest.mark.parametrize(
    "targets", [np.array([0, 1, 3]), np.array([0, 1]), np.array([0.0, 1.0, 2.0]), np.array([-1, 0, 1])]
)
def test_labels_that_do_not_fit_are_refused(targets: np.ndarray) -> None:
    with pytest.raises(ZooError, match="labels: expected 3 integers from 0 to 2"):
        Evaluator(archs.architecture("mlp-4-5-3"), Labelled("made/test", np.zeros((3, 4)), targets))


def test_gradients_are_as_they_were_where_iterators_alternate() -> None:
    arch = archs.architecture("mlp-4-5-3")
    inputs = np.zeros((3, 4), np.float32)
    networks = [StackedForward(Forward(arch), arch, inputs).outputs(weights_of(1, seed, arch=arch)) for seed in (1, 2)]
    for _ in zip(*networks, strict=True):
        assert torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_networks_without_a_forward_function_need_a_module() -> None:
    tensors = archs.architecture("mlp-4-5-3").tensors
    with pytest.raises(ZooError, match="--module"):
        Evaluator(Architecture("own", tensors, input_shape=(4,)), labelled(archs.architecture("mlp-4-5-3"), 3, 3))


def test_inputs_and_modules_that_do_not_fit_are_refused() -> None:
    arch = archs.architecture("mlp-4-5-3")
    with pytest.raises(ZooError, match=r"outputs for inputs \(2, 5,?\): expected .*\. Pass (inputs|a module)"):
        Forward(arch).features((5,))
    with pytest.raises(
        ZooError, match=r"'fc1.weight' of the module: expected \(5, 4\), got \(6, 4\), and 2 more differ\. Name"
    ):
        Forward(arch, archs.get("mlp-4-6-3")())
    with pytest.raises(
        ZooError, match=r"'fc1.weight' of the module: expected \(5, 4\), got none, and 3 more differ\. Name"
    ):
        Forward(arch, torch.nn.Linear(4, 3))


def test_networks_that_are_not_finite_have_no_loss() -> None:
    arch = archs.architecture("mlp-4-5-3")
    weights = weights_of(2, 1, arch=arch)
    weights["fc2.bias"][0] = np.nan
    given = labelled(arch, 9, 3)
    (scores,) = Evaluator(arch, given).scores([weights])
    assert np.isnan(scores.loss[0]) and np.isfinite(scores.loss[1])
