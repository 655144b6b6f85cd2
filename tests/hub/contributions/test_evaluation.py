"""Figures of networks on a test set, evaluations as rows state them, and symmetries of your own networks."""

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo import archs
from ckptzoo.errors import SpecError, ZooError
from ckptzoo.hub.contributions.evaluation import COLUMNS, CheckpointEvaluator, trace_symmetry
from ckptzoo.image_sets import ImageSet
from ckptzoo.image_sets.evaluation import Evaluation, evaluation_of
from ckptzoo.schema.architecture import Architecture

RNG = np.random.default_rng(0)
COLOUR = ImageSet("c", RNG.integers(0, 256, (40, 3, 32, 32), dtype=np.uint8), RNG.integers(0, 10, 40))
GREY = ImageSet("g", RNG.integers(0, 256, (30, 1, 28, 28), dtype=np.uint8), RNG.integers(0, 10, 30))
SCALED = Evaluation("c", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def weights_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy()[None] for name, value in module.state_dict().items()}


def test_figures_of_a_network_with_batchnorm() -> None:
    name = "resnet8-pad-10"
    module = archs.get(name)()
    module.train()(torch.randn(8, 3, 32, 32))
    found = CheckpointEvaluator(archs.architecture(name), archs.get(name), COLOUR, SCALED).columns(weights_of(module))
    scale = torch.tensor([SCALED.mean, SCALED.std])[:, None, :, None, None]
    seen = (torch.from_numpy(COLOUR.images).float() / 255 - scale[0]) / scale[1]
    with torch.no_grad():
        logits = module.eval()(seen).double()
    labels = torch.from_numpy(COLOUR.labels)
    chance = torch.softmax(logits, 1)
    one_hot = nn.functional.one_hot(labels, 10)
    assert set(found) == set(COLUMNS) and all(array.shape == (1,) for array in found.values())
    assert found["test_accuracy"][0] == (logits.argmax(1) == labels).double().mean()
    assert np.isclose(found["test_nll"][0], nn.functional.cross_entropy(logits, labels), rtol=1e-5)
    assert found["test_loss"] == found["test_nll"]
    assert np.isclose(found["test_brier"][0], ((chance - one_hot) ** 2).sum(1).mean(), rtol=1e-5)


def test_half_precision_and_flat_inputs() -> None:
    name = "mlp-784-5-10"
    module = archs.get(name)()
    judge = CheckpointEvaluator(archs.architecture(name), archs.get(name), GREY, Evaluation("g"))
    whole = judge.columns(weights_of(module))
    half = judge.columns({name: array.astype(np.float16) for name, array in weights_of(module).items()})
    assert np.isclose(whole["test_nll"], half["test_nll"], rtol=1e-2) and whole["test_nll"] != half["test_nll"]


def test_outputs_that_are_not_finite() -> None:
    name = "mlp-784-10"
    weights = weights_of(archs.get(name)())
    weights["fc1.bias"][:] = np.nan
    found = CheckpointEvaluator(archs.architecture(name), archs.get(name), GREY, Evaluation("g")).columns(weights)
    assert np.isnan(found["test_accuracy"][0])


def test_networks_and_images_that_do_not_fit() -> None:
    resnet, factory = archs.architecture("resnet8-pad-10"), archs.get("resnet8-pad-10")
    with pytest.raises(ZooError, match="takes them"):
        judge = CheckpointEvaluator(resnet, factory, GREY, Evaluation("g"))
        judge.columns(weights_of(factory()))
    with pytest.raises(ZooError, match="one a channel"):
        CheckpointEvaluator(resnet, factory, COLOUR, Evaluation("c", (0.1, 0.2), (1.0,)))
    with pytest.raises(SpecError, match=r"linear\.weight"):
        CheckpointEvaluator(resnet, archs.get("resnet8-pad-9"), COLOUR, SCALED)
    few = archs.architecture("mlp-784-3")
    with pytest.raises(ZooError, match="scores of labels"):
        CheckpointEvaluator(few, archs.get("mlp-784-3"), GREY, Evaluation("g")).columns(
            weights_of(archs.get("mlp-784-3")())
        )
    silent = Architecture("mine", Architecture.of(nn.Linear(784, 10).state_dict(), name="mine").tensors)
    with pytest.raises(ZooError, match=r"input_shape = \[784\], if that is it, in the table \[zoo\]"):
        CheckpointEvaluator(silent, lambda: nn.Linear(784, 10), GREY, Evaluation("g")).columns(
            weights_of(nn.Linear(784, 10))
        )
    flattened = Architecture("mine", resnet.tensors, input_shape=(int(np.prod(resnet.input_shape or ())),))
    with pytest.raises(ZooError, match=r"input_shape, \[3072\]: of a new zoo correct it in the table \[zoo\]"):
        CheckpointEvaluator(flattened, factory, COLOUR, SCALED).columns(weights_of(factory()))


def test_what_rows_say_of_their_evaluation() -> None:
    assert evaluation_of({"evaluation": SCALED.to_json()}, "other") == SCALED
    assert evaluation_of({"dataset": "mnist", "mean": 0.1, "std": 2}, None) == Evaluation("mnist", (0.1,), (2.0,))
    assert evaluation_of({"mean": 0.1, "std": 2}, "mnist") == Evaluation("mnist", (0.1,), (2.0,))
    for odd in ({}, {"mean": 0}, {"mean": 0, "std": 0}, {"mean": True, "std": 1}, {"mean": [], "std": 1}):
        assert evaluation_of(odd, "mnist") is None
    assert evaluation_of({"mean": [0] * 20, "std": 1}, "mnist") is None
    assert evaluation_of({"mean": 0, "std": 1}, None) is None


def test_symmetries_of_a_network_of_ones_own() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    arch = Architecture.of(module.state_dict(), name="own", input_shape=(6,))
    found, reason = trace_symmetry(arch, lambda: module)
    assert found is not None and [(group.n, group.scale) for group in found.groups] == [(4, "positive")]
    assert reason == ""
    none, reason = trace_symmetry(Architecture.of(module.state_dict(), name="own"), lambda: module)
    assert none is None and "input_shape in the table [zoo] of contribution.toml" in reason
    none, reason = trace_symmetry(arch, lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert none is None and "other tensors" in reason


class Drawn(nn.Module):
    """A network with an operation whose result is random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add noise to what is hidden."""
        return self.last(self.first(x) + torch.randn(4))


def test_why_no_table_was_traced_is_said_with_operation_and_line() -> None:
    arch = Architecture.of(Drawn().state_dict(), name="own", input_shape=(6,))
    none, reason = trace_symmetry(arch, Drawn)
    assert none is None and "randn" in reason and "test_evaluation.py" in reason
