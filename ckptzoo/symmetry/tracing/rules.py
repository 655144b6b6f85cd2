"""Which rule belongs to which operation, by the name of the function, the method or the attribute of a tensor."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from ckptzoo.symmetry.tracing import arithmetic, layers, movement, norms, pointwise, reductions
from ckptzoo.symmetry.tracing.pointwise import Rule

_NAMES: dict[Rule, str] = {
    pointwise.linear: "neg positive",
    pointwise.positive: "relu leaky_relu rrelu abs absolute",
    pointwise.odd: "tanh sin tan atan arctan asinh arcsinh sinh erf softsign tanhshrink softshrink hardshrink",
    pointwise.none: (
        "gelu silu mish sigmoid hardsigmoid hardswish relu6 elu selu celu softplus logsigmoid exp expm1 log log1p "
        "cos cosh"
    ),
    pointwise.dropout: "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout",
    pointwise.softmax: "softmax log_softmax softmin",
    pointwise.clipped: "hardtanh clamp clip clamp_min clamp_max",
    pointwise.thresholded: "threshold",
    pointwise.prelu: "prelu",
    pointwise.power: "pow",
    pointwise.square: "square",
    pointwise.root: "sqrt",
    pointwise.inverse_root: "rsqrt",
    pointwise.inverse: "reciprocal",
    arithmetic.add: "add sub subtract iadd isub",
    arithmetic.mul: "mul multiply imul",
    arithmetic.div: "div divide true_divide truediv itruediv",
    arithmetic.extremum: "maximum minimum fmax fmin",
    reductions.summed: "sum mean",
    reductions.largest: "amax amin max min",
    reductions.spread: "var std norm",
    reductions.pooled(pointwise.positive): (
        "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
    ),
    reductions.pooled(pointwise.linear): (
        "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d interpolate "
        "upsample"
    ),
    movement.kept: "contiguous clone data detach float double half bfloat16 to cpu type type_as",
    movement.moved: (
        "view reshape flatten unflatten ravel permute transpose swapaxes swapdims movedim moveaxis t T mT squeeze "
        "unsqueeze expand expand_as view_as reshape_as broadcast_to repeat tile repeat_interleave flip fliplr flipud "
        "roll rot90 narrow select index_select chunk split tensor_split split_with_sizes unbind pixel_shuffle "
        "pixel_unshuffle channel_shuffle"
    ),
    movement.indexed: "getitem",
    movement.joined: "cat concat concatenate stack",
    movement.padded: "pad",
    layers.linear: "linear",
    layers.matmul: "matmul mm",
    layers.convolution: "conv1d conv2d conv3d",
    layers.transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    norms.batch_norm: "batch_norm",
    norms.layer_norm: "layer_norm rms_norm",
    norms.group_norm: "group_norm",
    norms.instance_norm: "instance_norm",
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
