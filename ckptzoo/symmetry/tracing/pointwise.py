"""Rules for operations on one tensor, entry by entry: which scales pass through them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ckptzoo.symmetry.tracing.labels import Labels
from ckptzoo.symmetry.tracing.ledger import POSITIVE, SIGN
from ckptzoo.symmetry.tracing.values import Call, tensors

Rule = Callable[[Call], Any]


def linear(call: Call) -> Labels:
    """Every scale passes: ``f(s x) = s f(x)``."""
    return stepped(call, call.labels(call.input))


def positive(call: Call) -> Labels:
    """Positive scales pass: ReLU, absolute values, maxima."""
    labels = call.labels(call.input)
    call.ledger.only(labels.scale, POSITIVE, "keeps positive factors alone")
    return stepped(call, labels)


def odd(call: Call) -> Labels:
    """Signs pass: ``f(-x) = -f(x)``, such as tanh."""
    labels = call.labels(call.input)
    if labels.power % 2 == 0:
        return none(call)
    call.ledger.only(labels.scale, SIGN, "keeps signs alone")
    return stepped(call, replace(labels, power=1.0))


def none(call: Call) -> Labels:
    """No scale passes: GELU, SiLU, sigmoid, softplus."""
    labels = call.labels(call.input)
    call.ledger.kill(labels.scale, "is neither homogeneous nor odd")
    return stepped(call, labels)


def power(call: Call) -> Labels:
    """``x ** n`` for a number n: scales to the power n."""
    exponent = call.get(1, "exponent")
    if not isinstance(exponent, (int, float)):
        raise call.refused("a number as the exponent", type(exponent).__name__)
    return raised(call, exponent)


def raised(call: Call, exponent: float) -> Labels:
    """The labels of the input to a power."""
    labels = call.labels(call.input)
    if exponent == 0:
        call.ledger.kill(labels.scale, "makes ones of everything")
    elif exponent % 1:
        call.ledger.only(labels.scale, POSITIVE, "takes roots")
    return stepped(call, replace(labels, power=labels.power * exponent or 1.0))


def square(call: Call) -> Labels:
    """``x ** 2``."""
    return raised(call, 2)


def root(call: Call) -> Labels:
    """``x ** 0.5``."""
    return raised(call, 0.5)


def inverse_root(call: Call) -> Labels:
    """``x ** -0.5``."""
    return raised(call, -0.5)


def inverse(call: Call) -> Labels:
    """``1 / x``."""
    return raised(call, -1)


def clipped(call: Call) -> Labels:
    """``clamp``, ``hardtanh``: positive scales where it cuts at zero alone, signs where it cuts alike on both sides."""
    if call.name == "hardtanh":
        low, high = call.get(1, "min_val", -1.0), call.get(2, "max_val", 1.0)
    elif call.name == "clamp_max":
        low, high = None, call.get(1, "max")
    else:
        low, high = call.get(1, "min"), call.get(2, "max")
    if {low, high} <= {None, 0}:
        return positive(call)
    alike = isinstance(low, (int, float)) and isinstance(high, (int, float)) and low == -high
    return odd(call) if alike else none(call)


def thresholded(call: Call) -> Labels:
    """``threshold``: ReLU where both numbers are 0."""
    zeros = (call.get(1, "threshold"), call.get(2, "value")) == (0, 0)
    return positive(call) if zeros else none(call)


def dropout(call: Call) -> Labels:
    """Dropout in evaluation mode, which changes nothing."""
    if call.get(2, "training", True) and call.get(1, "p", 0.5):
        raise call.refused("dropout with training=self.training, which is off in evaluation mode", "training=True")
    return linear(call)


def softmax(call: Call) -> Labels:
    """Softmax and log-softmax: no scale passes; over channels, all are treated alike."""
    axis = call.get(1, "dim")
    if not isinstance(axis, int):
        raise call.refused("softmax along an axis that is named", f"dim={axis}")
    labels = none(call)
    if axis % call.result.ndim in labels.varying:
        call.ledger.sum_over(labels)
    return labels


def prelu(call: Call) -> Labels:
    """PReLU: positive scales pass; slopes are permuted with the channels that they belong to."""
    labels, weight = positive(call), call.tensor(1, "weight")
    if weight is not None and weight.long:
        axis = min(1, call.result.ndim - 1)
        if labels.varying not in ((), (axis,)):
            raise call.refused(f"channels on axis {axis}", f"channels on axis {labels.varying[0]}")
        call.ledger.place(weight.name, 0, labels.line(axis, weight.tensor.shape[0]), 0, "gain")
    return labels


def stepped(call: Call, labels: Labels) -> Labels:
    """One step further along the paths of all arguments."""
    paths = [value.labels.path for value in tensors((call.args, call.kwargs))]
    others = (int(path.ravel()[0]) for path in paths if path.size == 1)
    return replace(labels, path=call.ledger.paths.step((call.history, *others), labels.path))
