"""Losses: the objective of training, the measured columns of a network trained with it, and the condition of
divergence.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from builders.recipe import CROSS_ENTROPY
from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.measure import predictions

Columns = dict[str, NDArray[Any]]


class MemberOutputs(NamedTuple):
    """The outputs (M, N, K) float64 of M networks on N examples, and the targets (N,)."""

    outputs: NDArray[np.float64]
    targets: NDArray[Any]


class Likelihood(NamedTuple):
    """The likelihood of the targets that a loss stands for.

    ``log`` is the logarithm of the likelihood of all targets, maximised over the variance of the noise where there is
    one. The summed loss and its derivatives times ``scale`` are those of the negative log-likelihood.
    """

    log: float
    scale: float


class Loss(Protocol):
    """A loss that a recipe may name."""

    def outputs(self, targets: NDArray[Any]) -> int:
        """Return how many outputs a network needs for these training targets (N,)."""
        ...

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over a batch, differentiable: outputs (B, K) and targets (B,) of one network to a scalar."""
        ...

    def output_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the gradient of ``mean`` with respect to the outputs, of many networks: (M, B, K) and (M, B) to (M, B,
        K).

        Exponentials are rounded from double precision: in single precision their last bit depends on where in memory
        a number is.
        """
        ...

    def hessian_root(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return S with S S^T the Hessian of one example's loss with respect to its outputs: (..., K) to (..., K, R),
        float64. It must not depend on the target, so that it is the Fisher information of the outputs up to a factor.
        """
        ...

    def likelihood(self, mean: float, count: int) -> Likelihood:
        """Return the likelihood of ``count`` targets with this mean loss."""
        ...

    def columns(self, train: MemberOutputs, test: MemberOutputs) -> Columns:
        """Return every column of the metadata that is defined for the loss, ``{column: (M,)}``."""
        ...


class CrossEntropy:
    r"""Mean cross-entropy of K logits z: :math:`-\log \mathrm{softmax}(z)_y`, in nats; y is a label from 0.

    A network has diverged where its training loss is not finite or above :math:`\log K`, that of equal probabilities.
    """

    def outputs(self, targets: NDArray[Any]) -> int:
        return int(targets.max()) + 1

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets.long())

    def output_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        r"""Return the gradient :math:`(\mathrm{softmax}(z)_k - [k = y]) / B`."""
        probabilities = torch.softmax(outputs.double(), -1)
        index = targets.long()[..., None]
        # each row has one label, so that no two additions meet and the order of a GPU does not matter
        probabilities.scatter_add_(
            -1, index, probabilities.new_full((1,) * probabilities.ndim, -1.0).expand(index.shape)
        )
        return (probabilities / targets.shape[-1]).to(outputs.dtype)

    def hessian_root(self, outputs: torch.Tensor) -> torch.Tensor:
        r"""Return the root :math:`S_{kl} = \sqrt{p_k} [k = l] - p_k \sqrt{p_l}` of diag(p) - p p^T; R = K."""
        probabilities = torch.softmax(outputs.double(), -1)
        roots = probabilities.sqrt()
        # S S^T = diag(p) - 2 p p^T + p p^T sum(p), and the sum is 1
        return torch.diag_embed(roots) - probabilities[..., :, None] * roots[..., None, :]

    def likelihood(self, mean: float, count: int) -> Likelihood:
        """Return the likelihood, of which the loss is the negative logarithm."""
        return Likelihood(-count * mean, 1.0)

    def columns(self, train: MemberOutputs, test: MemberOutputs) -> Columns:
        logs = [torch.log_softmax(torch.from_numpy(half.outputs), -1).numpy() for half in (train, test)]
        return _classifier_columns(logs, [half.targets.astype(np.int64) for half in (train, test)])


class BinaryCrossEntropy:
    r"""Mean cross-entropy of one logit z: :math:`\log(1 + e^z) - y z`, in nats; y is 0 or 1.

    It is the cross-entropy of the two logits 0 and z, and measured as such. A network has diverged where its training
    loss is not finite or above :math:`\log 2`, that of equal probabilities.
    """

    def outputs(self, targets: NDArray[Any]) -> int:
        return 1

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.to(outputs.dtype))

    def output_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        r"""Return the gradient :math:`(1 / (1 + e^{-z}) - y) / B`."""
        return ((torch.sigmoid(outputs.double()) - targets[..., None]) / targets.shape[-1]).to(outputs.dtype)

    def hessian_root(self, outputs: torch.Tensor) -> torch.Tensor:
        r"""Return the root :math:`\sqrt{p (1 - p)}`, R = 1."""
        logits = outputs.double()
        # 1 - p as sigmoid(-z): the difference would be 0 for z above 37
        return (torch.sigmoid(logits) * torch.sigmoid(-logits)).sqrt()[..., None]

    def likelihood(self, mean: float, count: int) -> Likelihood:
        """Return the likelihood, of which the loss is the negative logarithm."""
        return Likelihood(-count * mean, 1.0)

    def columns(self, train: MemberOutputs, test: MemberOutputs) -> Columns:
        logits = [torch.from_numpy(half.outputs) for half in (train, test)]
        # log of a sigmoid that underflows would be -inf
        logs = [torch.cat([functional.logsigmoid(-z), functional.logsigmoid(z)], -1).numpy() for z in logits]
        return _classifier_columns(logs, [half.targets.astype(np.int64) for half in (train, test)])


class SquaredError:
    r"""Mean squared error of one output f: :math:`(f - y)^2`.

    A network has diverged where its training loss is not finite or above the variance of the training targets, the loss
    of always predicting their mean. No likelihood is fitted, so that nothing but the two losses is measured.
    """

    def outputs(self, targets: NDArray[Any]) -> int:
        return 1

    def mean(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(outputs[:, 0], targets.to(outputs.dtype))

    def output_gradient(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the gradient ``2 (f - y) / B``."""
        return (outputs - targets[..., None]) * (2 / targets.shape[-1])

    def hessian_root(self, outputs: torch.Tensor) -> torch.Tensor:
        r"""Return the root :math:`\sqrt 2`, R = 1."""
        return torch.full_like(outputs, math.sqrt(2), dtype=torch.float64)[..., None]

    def likelihood(self, mean: float, count: int) -> Likelihood:
        r"""Return the likelihood of :math:`y = f + \epsilon` with normal noise of variance :math:`s^2`.

        The negative log-likelihood is :math:`(f - y)^2 / (2 s^2) + \log(2 \pi s^2) / 2`, so that the loss as it is
        would mean noise of variance 1/2, whatever the unit of the targets. The variance taken is that of the greatest
        likelihood, the mean squared error of training: too small where the network fits the noise.

        Raises ZooError: the mean is not above 0: without errors no variance is the likeliest.
        """
        if not 0 < mean < math.inf:
            step = "Use a network whose training errors are finite and not all 0."
            raise ZooError(Problem("squared error", "mean of training", "finite and above 0", str(mean), step))
        return Likelihood(-count / 2 * (math.log(2 * math.pi * mean) + 1), 1 / (2 * mean))

    def columns(self, train: MemberOutputs, test: MemberOutputs) -> Columns:
        with np.errstate(over="ignore", invalid="ignore"):
            # a diverged network has infinite outputs, which is a finding and no warning
            loss, other = (np.square(half.outputs[..., 0] - half.targets).mean(-1) for half in (train, test))
        # not a > comparison: that of a NaN is false
        return {"train_loss": loss, "test_loss": other, "diverged": ~(loss <= train.targets.astype(np.float64).var())}


LOSSES: Mapping[str, Loss] = {
    CROSS_ENTROPY: CrossEntropy(),
    "binary-cross-entropy": BinaryCrossEntropy(),
    "squared-error": SquaredError(),
}


def get(name: str) -> Loss:
    """Return a loss by name; raises UnknownNameError."""
    if name not in LOSSES:
        raise UnknownNameError("builders", "loss", name, tuple(LOSSES))
    return LOSSES[name]


def _classifier_columns(logs: list[NDArray[np.float64]], labels: list[NDArray[np.int64]]) -> Columns:
    """Return the columns of a classifier, from log-probabilities (M, N, C) of the two halves."""
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
        # not a > comparison: that of a NaN is false
        "diverged": ~(loss <= math.log(train.shape[-1])),
    }
