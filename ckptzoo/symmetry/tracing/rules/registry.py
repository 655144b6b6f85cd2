"""Which operation has which rule: by the name of the function, or of the method or attribute of a tensor."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from ckptzoo.symmetry.tracing.rules import elementwise, linear, normalization, reduction, shape
from ckptzoo.symmetry.tracing.rules.elementwise import Rule

# Each rule with the names of its operations, those that end in an underscore for work in place left out.
_NAMES: dict[Rule, str] = {
    elementwise.homogeneous: "neg positive",
    elementwise.positively_homogeneous: "relu leaky_relu rrelu abs absolute",
    elementwise.odd: "tanh sin tan atan arctan asinh arcsinh sinh erf softsign tanhshrink softshrink hardshrink",
    elementwise.not_homogeneous: (
        "gelu silu mish sigmoid hardsigmoid hardswish relu6 elu selu celu softplus logsigmoid exp expm1 log log1p "
        "cos cosh"
    ),
    elementwise.dropout: "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout",
    elementwise.softmax: "softmax log_softmax softmin",
    elementwise.clamp: "hardtanh clamp clip clamp_min clamp_max",
    elementwise.threshold: "threshold",
    elementwise.prelu: "prelu",
    elementwise.pow_: "pow",
    elementwise.square: "square",
    elementwise.sqrt: "sqrt",
    elementwise.rsqrt: "rsqrt",
    elementwise.reciprocal: "reciprocal",
    elementwise.add: "add sub subtract iadd isub",
    elementwise.mul: "mul multiply imul",
    elementwise.div: "div divide true_divide truediv itruediv",
    elementwise.maximum_or_minimum: "maximum minimum fmax fmin",
    reduction.sum_or_mean: "sum mean",
    reduction.max_or_min: "amax amin max min",
    reduction.var_std_or_norm: "var std norm",
    reduction.pooling(elementwise.positively_homogeneous): (
        "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
    ),
    reduction.pooling(elementwise.homogeneous): (
        "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d interpolate "
        "upsample"
    ),
    shape.copy_or_cast: "contiguous clone data detach float double half bfloat16 to cpu type type_as",
    shape.rearrange: (
        "view reshape flatten unflatten ravel permute transpose swapaxes swapdims movedim moveaxis t T mT squeeze "
        "unsqueeze expand expand_as view_as reshape_as broadcast_to repeat tile repeat_interleave flip fliplr flipud "
        "roll rot90 narrow select index_select chunk split tensor_split split_with_sizes unbind pixel_shuffle "
        "pixel_unshuffle channel_shuffle"
    ),
    shape.getitem: "getitem",
    shape.concatenate: "cat concat concatenate stack",
    shape.pad: "pad",
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
"""The rule of every operation, by the operation's name."""
_FACT_NAMES = (
    "size dim ndimension numel nelement stride shape ndim dtype device layout is_cuda requires_grad is_contiguous "
    "is_floating_point get_device element_size itemsize nbytes"
)
SHAPE_FACTS = frozenset(_FACT_NAMES.split())
"""Attributes that depend on a tensor's shape and kind only, not on its numbers: plain values in the trace."""
_FILL_NAMES = "zeros_like ones_like full_like new_zeros new_ones new_full new_tensor"
FILLS = frozenset(_FILL_NAMES.split())
"""Functions whose result has a tensor's shape or kind and none of its numbers: constants in the trace."""
_KNOWN = (*RULES, *SHAPE_FACTS, *FILLS)


def _functions() -> Iterator[tuple[Callable[..., Any], str]]:
    for name in _KNOWN:
        for namespace in (torch, F, operator, torch.special):
            # torch ends the names of operations in place with an underscore.
            for variant in (name, f"{name}_"):
                if (function := getattr(namespace, variant, None)) is not None:
                    yield function, variant


_FUNCTIONS = dict(_functions())


def name_of(target: Any) -> str | None:
    """The name of a function that is known, ending in ``_`` where it works in place; None for others."""
    try:
        return _FUNCTIONS.get(target)
    except TypeError:  # what is not hashable is no function
        return None


def is_method(name: str) -> bool:
    """Whether a method or attribute of tensors is known."""
    return name.removesuffix("_") in _KNOWN
