"""Losses: what training minimises, what is measured of a network that was trained with it, and when it diverged."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from builders.recipe import CROSS_ENTROPY
from ckptzoo.errors import UnknownNameError
from ckptzoo.measure import predictions

Columns = dict[str, NDArray[Any]]


class MemberOutputs(NamedTuple):
    """Outputs of M networks on N examples, and the targets.

    Parameters
    ----------
    outputs : (M, N, K) float64.
    targets : (N,).
    """

    outputs: NDArray[np.float64]
    targets: NDArray[Any]


class Loss(Protocol):
    """What a recipe may name as its loss."""

    def outputs(self, targets: NDArray[Any]) -> int:
        """How many outputs a network needs for these training targets (N,)."""
        ...

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean over a batch, differentiable: outputs (B, K) and targets (B,) of one network to a scalar."""
        ...

    def output_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The gradient of ``mean`` with respect to the outputs, of many networks: (M, B, K) and (M, B) to (M, B, K).

        Exponentials are rounded from double precision: in single precision their last bit depends on where in memory
        a number is.
        """
        ...

    def columns(self, train: MemberOutputs, test: MemberOutputs) -> Columns:
        """Every column of the metadata that makes sense for it, ``{column: (M,)}``."""
        ...


class CrossEntropy:
    r"""Mean cross-entropy of K logits z: :math:`-\log \mathrm{softmax}(z)_y`, in nats; y is a label from 0.

    A network has diverged where its training loss is not finite or above :math:`\log K`, that of equal probabilities.
    """

    def outputs(self, targets: NDArray[Any]) -> int:
        """One a label."""
        return int(targets.max()) + 1

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``Loss``."""
        return functional.cross_entropy(outputs, targets.long())

    def output_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        r"""See ``Loss``: :math:`(\mathrm{softmax}(z)_k - [k = y]) / B`."""
        probabilities = torch.softmax(outputs.double(), -1)
        index = targets.long()[..., None]
        # each row has one label, so that no two additions meet and the order of a GPU does not matter
        probabilities.scatter_add_(
            -1, index, probabilities.new_full((1,) * probabilities.ndim, -1.0).expand(index.shape)
        )
        return (probabilities / targets.shape[-1]).to(outputs.dtype)

    def columns(self, train: MemberOutputs, test: MemberOutputs) -> Columns:
        """See ``Loss``."""
        logs = [torch.log_softmax(torch.from_numpy(half.outputs), -1).numpy() for half in (train, test)]
        return _classifier_columns(logs, [half.targets.astype(np.int64) for half in (train, test)])


class BinaryCrossEntropy:
    r"""Mean cross-entropy of one logit z: :math:`\log(1 + e^z) - y z`, in nats; y is 0 or 1.

    It is the cross-entropy of the two logits 0 and z, and measured as such. A network has diverged where its training
    loss is not finite or above :math:`\log 2`, that of equal probabilities.
    """

    def outputs(self, targets: NDArray[Any]) -> int:
        """One."""
        return 1

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``Loss``."""
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.to(outputs.dtype))

    def output_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        r"""See ``Loss``: :math:`(1 / (1 + e^{-z}) - y) / B`."""
        return ((torch.sigmoid(outputs.double()) - targets[..., None]) / targets.shape[-1]).to(outputs.dtype)

    def columns(self, train: MemberOutputs, test: MemberOutputs) -> Columns:
        """See ``Loss``."""
        logits = [torch.from_numpy(half.outputs) for half in (train, test)]
        logs = [torch.cat([functional.logsigmoid(-z), functional.logsigmoid(z)], -1).numpy() for z in logits]
        return _classifier_columns(logs, [half.targets.astype(np.int64) for half in (train, test)])


class SquaredError:
    r"""Mean squared error of one output f: :math:`(f - y)^2`.

    A network has diverged where its training loss is not finite or above the variance of the training targets, the loss
    of always predicting their mean. No likelihood is fitted, so that nothing but the two losses is measured.
    """

    def outputs(self, targets: NDArray[Any]) -> int:
        """One."""
        return 1

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``Loss``."""
        return functional.mse_loss(outputs[:, 0], targets.to(outputs.dtype))

    def output_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``Loss``: ``2 (f - y) / B``."""
        return (outputs - targets[..., None]) * (2 / targets.shape[-1])

    def columns(self, train: MemberOutputs, test: MemberOutputs) -> Columns:
        """See ``Loss``."""
        with np.errstate(over="ignore", invalid="ignore"):
            loss, other = (np.square(half.outputs[..., 0] - half.targets).mean(-1) for half in (train, test))
        return {"train_loss": loss, "test_loss": other, "diverged": ~(loss <= train.targets.astype(np.float64).var())}


LOSSES: Mapping[str, Loss] = {
    CROSS_ENTROPY: CrossEntropy(),
    "binary-cross-entropy": BinaryCrossEntropy(),
    "squared-error": SquaredError(),
}


def get(name: str) -> Loss:
    """A loss by name.

    Raises
    ------
    UnknownNameError
        No such loss.
    """
    if name not in LOSSES:
        raise UnknownNameError("builders", "loss", name, tuple(LOSSES))
    return LOSSES[name]


def _classifier_columns(logs: list[NDArray[np.float64]], labels: list[NDArray[np.int64]]) -> Columns:
    """The columns of a classifier, from log-probabilities (M, N, C) of the two halves."""
    train, test = logs
    loss, test_nll = predictions.nll(train, labels[0]), predictions.nll(test, labels[1])
    return {
        "train_loss": loss,
        "train_accuracy": predictions.accuracy(train, labels[0]),
        "test_loss": test_nll,
        "test_accuracy": predictions.accuracy(test, labels[1]),
        "test_nll": test_nll,
        "test_brier": predictions.brier(test, labels[1]),
        "test_ece": predictions.ece(test, labels[1]),
        "diverged": ~(loss <= math.log(train.shape[-1])),
    }
