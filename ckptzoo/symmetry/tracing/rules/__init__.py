"""Which rule belongs to which operation, by the name of the function, the method or the attribute of a tensor."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from ckptzoo.symmetry.tracing.rules import elementwise, linear, normalization, reduction, shape
from ckptzoo.symmetry.tracing.rules.elementwise import Rule

_NAMES: dict[Rule, str] = {
    elementwise.linear: "neg positive",
    elementwise.positive: "relu leaky_relu rrelu abs absolute",
    elementwise.odd: "tanh sin tan atan arctan asinh arcsinh sinh erf softsign tanhshrink softshrink hardshrink",
    elementwise.none: (
        "gelu silu mish sigmoid hardsigmoid hardswish relu6 elu selu celu softplus logsigmoid exp expm1 log log1p "
        "cos cosh"
    ),
    elementwise.dropout: "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout",
    elementwise.softmax: "softmax log_softmax softmin",
    elementwise.clipped: "hardtanh clamp clip clamp_min clamp_max",
    elementwise.thresholded: "threshold",
    elementwise.prelu: "prelu",
    elementwise.power: "pow",
    elementwise.square: "square",
    elementwise.root: "sqrt",
    elementwise.inverse_root: "rsqrt",
    elementwise.inverse: "reciprocal",
    elementwise.add: "add sub subtract iadd isub",
    elementwise.mul: "mul multiply imul",
    elementwise.div: "div divide true_divide truediv itruediv",
    elementwise.extremum: "maximum minimum fmax fmin",
    reduction.summed: "sum mean",
    reduction.largest: "amax amin max min",
    reduction.spread: "var std norm",
    reduction.pooled(elementwise.positive): (
        "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
    ),
    reduction.pooled(elementwise.linear): (
        "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d interpolate "
        "upsample"
    ),
    shape.kept: "contiguous clone data detach float double half bfloat16 to cpu type type_as",
    shape.moved: (
        "view reshape flatten unflatten ravel permute transpose swapaxes swapdims movedim moveaxis t T mT squeeze "
        "unsqueeze expand expand_as view_as reshape_as broadcast_to repeat tile repeat_interleave flip fliplr flipud "
        "roll rot90 narrow select index_select chunk split tensor_split split_with_sizes unbind pixel_shuffle "
        "pixel_unshuffle channel_shuffle"
    ),
    shape.indexed: "getitem",
    shape.joined: "cat concat concatenate stack",
    shape.padded: "pad",
    linear.linear: "linear",
    linear.matmul: "matmul mm",
    linear.convolution: "conv1d conv2d conv3d",
    linear.transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    normalization.batch_norm: "batch_norm",
    normalization.layer_norm: "layer_norm rms_norm",
    normalization.group_norm: "group_norm",
    normalization.instance_norm: "instance_norm",
}
RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
"""Rule by name."""
_FACTS = (
    "size dim ndimension numel nelement stride shape ndim dtype device layout is_cuda requires_grad is_contiguous "
    "is_floating_point get_device element_size itemsize nbytes"
)
FACTS = frozenset(_FACTS.split())
"""What is the same for all numbers of a tensor's shape."""
_FILLED = "zeros_like ones_like full_like new_zeros new_ones new_full new_tensor"
FILLED = frozenset(_FILLED.split())
"""Constants of a tensor's shape or kind."""
_KNOWN = (*RULES, *FACTS, *FILLED)


def _functions() -> Iterator[tuple[Callable[..., Any], str]]:
    for name in _KNOWN:
        for room in (torch, F, operator, torch.special):
            for spelt in (name, f"{name}_"):
                if (found := getattr(room, spelt, None)) is not None:
                    yield found, spelt


_FUNCTIONS = dict(_functions())


def name_of(target: Any) -> str | None:
    """The name of a function that is known, ending in ``_`` where it works in place; None for others."""
    try:
        return _FUNCTIONS.get(target)
    except TypeError:
        return None


def is_method(name: str) -> bool:
    """Whether a method or attribute of tensors is known."""
    return name.removesuffix("_") in _KNOWN
