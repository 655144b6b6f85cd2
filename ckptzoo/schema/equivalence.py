"""By how much the outputs of a variant may differ from those of the raw weights: what rounding explains."""

from ckptzoo.schema.architecture import Architecture

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-23, "bfloat16": 2.0**-23}
"""The machine epsilon of the dtype in which a variant has a tensor, by that of the raw one: halves become float32."""
_MOST = 0.03
"""Above this a variant is another function, however deep it is."""


def largest_allowed(arch: Architecture, precision: str) -> float:
    """The largest difference of outputs, over the largest output, that a right variant may have.

    ``sqrt(epsilon) * (1 + layers)``, at most 0.03: half of the digits, and as much again for every layer. Epsilon is
    the largest of the dtypes in which the variant is stored and of the precision of the check, and layers are the
    tensors of two axes or more.

    Rounding the weights of one layer changes its outputs by about epsilon, and the layers behind may add to that or
    multiply it. Measured on right variants (canonical, checked in float64): 4.7e-7 at most in 3,818 trained networks of
    3 and 21 layers in float32 and float16; 6.5e-7 in random MLPs with tanh and ReLU of 2 to 64 layers, ResNets of 2 to
    48 and transformers of 1 to 12 blocks, in float16, bfloat16 and float32, and 1e-14 in float64; checked in float32
    5e-6. Networks that double each difference from layer to layer, MLPs with tanh and 64 layers of weights twice as
    large as those that keep a signal, have 1e-11 in float64 and 1.6e-2 in float32, of which 2.2e-2 are allowed.
    Variants made with a wrong table have 0.4 to 2.8.

    ``arch`` is the raw weights' architecture; ``precision`` is the outputs' dtype, ``"float64"`` or ``"float32"``.

    Examples
    --------
    >>> from ckptzoo import archs
    >>> largest_allowed(archs.architecture("optunet"), "float64")
    0.0013810679320049757
    """
    stored = [_EPSILON[tensor.dtype] for tensor in arch.tensors if tensor.dtype in _EPSILON]
    layers = sum(sum(size > 1 for size in tensor.shape) > 1 for tensor in arch.tensors)
    return min(_MOST, max(*stored, _EPSILON.get(precision, 0.0)) ** 0.5 * (1 + layers))


def checked_difference(largest: float, checked: int, checkpoints: int) -> str:
    """The largest difference as a text, with the number of checkpoints that were checked where that is not all.

    Examples
    --------
    >>> checked_difference(3.6e-8, 6, 10), checked_difference(3.6e-8, 10, 10)
    ('3.6e-08 (6 of 10 checked)', '3.6e-08')
    """
    return f"{largest:.1e}" + (f" ({checked:,} of {checkpoints:,} checked)" if checked < checkpoints else "")
