"""Rules for sums, means and maxima over axes, and for pooling and interpolation."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ckptzoo.symmetry.tracing.constraints import POSITIVE, SIGN, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import Call, Value
from ckptzoo.symmetry.tracing.rules.elementwise import MUL, combined, maximum_or_minimum, with_new_paths
from ckptzoo.symmetry.tracing.union_find import NodeIds


def sum_or_mean(call: Call) -> Labels:
    """``sum``, ``mean``: every scale passes, but over channels."""
    return _reduced(call, call.labels_of(call.input), call.argument("dim"), call.argument("keepdim"))


def max_or_min(call: Call) -> Any:
    """``amax``, ``amin``, ``max``, ``min`` over axes, or of two tensors: positive scales pass, but over channels."""
    if isinstance(call.argument("other"), Value):
        return maximum_or_minimum(call)
    labels = call.labels_of(call.input)
    call.constraints.restrict_scale(labels.scale, POSITIVE, "keeps positive factors alone")
    if not isinstance(call.result, tuple):
        return _reduced(call, labels, call.argument("dim"), call.argument("keepdim"))
    if call.name == "aminmax":
        return [_reduced(call, labels, call.argument("dim"), call.argument("keepdim"))] * 2
    return _with_positions(call, labels, lambda: _reduced(call, labels, call.argument("dim"), call.argument("keepdim")))


def position(call: Call) -> Labels:
    """``argmax``, ``argmin``, ``argsort``: positive scales end here; over channels, these stay in place."""
    labels = call.labels_of(call.input)
    if (held := _held(call, labels, call.argument("dim"), "numbers channels by their order")) is not None:
        return held
    call.constraints.restrict_scale(labels.scale, POSITIVE, "keeps positive factors alone")
    keepdim = call.name == "argsort" or call.argument("keepdim")
    return replace(_without_scale(_reduced(call, labels, call.argument("dim"), keepdim)), power=1.0)


def ordered(call: Call) -> Any:
    """``sort``, ``topk``, medians and other quantiles: as maxima."""
    labels, dim = call.labels_of(call.input), call.argument("dim")
    # torch promises no order of unsorted results, so that it cannot be said where channels are
    if call.argument("sorted") is False and _over(call, labels, dim):
        raise call.unsupported("sorted=True over channels", "sorted=False")
    call.constraints.restrict_scale(labels.scale, POSITIVE, "keeps positive factors alone")
    keepdim = call.name in ("sort", "topk") or call.argument("keepdim")

    def of_values() -> Labels:
        reduced = _reduced(call, labels, dim, keepdim)
        several = call.result.ndim - reduced.channel.ndim if isinstance(call.result, torch.Tensor) else 0
        return reduced.with_ndim(reduced.channel.ndim + several)  # the first axis of several quantiles

    return _with_positions(call, labels, of_values) if isinstance(call.result, tuple) else of_values()


def cumulative(call: Call) -> Any:
    """Sums, products and maxima of all that comes before; channels along that axis stay in place."""
    labels, why = call.labels_of(call.input), "takes channels in their order"
    held = _held(call, labels, call.argument("dim"), why)
    if held is None:
        if call.name in ("cummax", "cummin"):
            call.constraints.restrict_scale(labels.scale, POSITIVE, "keeps positive factors alone")
        elif call.name != "cumsum":
            call.constraints.forbid_scale(labels.scale, "is not homogeneous")
        held = with_new_paths(call, labels)
    return [held, replace(_without_scale(held), power=1.0)] if isinstance(call.result, tuple) else held


def without_scale(call: Call) -> Labels:
    """``logsumexp``, products, ``all``, ``any`` over axes: no scale passes, and channels are treated alike."""
    labels = call.labels_of(call.input)
    call.constraints.forbid_scale(labels.scale, "is not homogeneous")
    return _reduced(call, labels, call.argument("dim"), call.argument("keepdim"))


def var_std_or_norm(call: Call) -> Any:
    """``var`` (scales squared), ``std`` and norms (positive scales), and ``var_mean``, ``std_mean``."""
    labels, mean = call.labels_of(call.input), call.labels_of(call.input)
    order = call.argument("p") if call.name == "norm" else call.argument("ord")
    over_channels = _axes(call, call.argument("dim")) & set(labels.varying_axes)
    is_norm = call.name not in ("var", "var_mean", "std", "std_mean")
    if call.name in ("var", "var_mean") or (is_norm and order in (None, 2) and over_channels):
        # a norm of order 2 over channels is the root of a sum of squares
        labels = replace(labels, power=2 * labels.power)
    else:
        call.constraints.restrict_scale(labels.scale, POSITIVE, "keeps positive factors alone")
    reduced = _reduced(call, labels, call.argument("dim"), call.argument("keepdim"))
    if order == 0:  # how many are not zero
        reduced = replace(_without_scale(reduced), power=1.0)
    if not isinstance(call.result, tuple):
        return reduced
    return [reduced, _reduced(call, mean, call.argument("dim"), call.argument("keepdim"))]


def pooling(rule: Callable[[Call], Labels]) -> Callable[[Call], Any]:
    """The rule for pooling over the last axes: channels there are tied, scales are as in a rule entry by entry."""

    def pool(call: Call) -> Any:
        # The number of axes is in the name, as in max_pool2d and _upsample_bilinear2d_aa.
        count = int(re.findall(r"(\d)d", call.name)[-1])
        labels = call.labels_of(call.input)
        over = tuple(axis for axis in labels.varying_axes if axis >= call.input.tensor.ndim - count)
        if over:
            call.constraints.notes.append(f"Channels that {call.constraints.operation} pools together move together.")
        pooled = rule(call.with_input(replace(call.input, labels=call.constraints.tie_along(labels, over))))
        # A second result is the positions of the maxima, which no factor changes.
        return (
            [pooled, replace(pooled, scale=np.full_like(pooled.scale, -1))]
            if isinstance(call.result, tuple)
            else pooled
        )

    return pool


def _reduced(call: Call, labels: Labels, dim: Any, keepdim: bool) -> Labels:
    ndim, axes = call.input.tensor.ndim, _axes(call, dim)
    over = tuple(axis for axis in labels.varying_axes if axis in axes)
    # a sum over experts is the same in any order of theirs
    if axes & set(labels.expert_axes):
        labels = replace(labels, experts=None, path=_together(call, labels.path, axes - set(over)))
    if squares := over and labels.power % 2 == 0 and call.name not in ("var", "std"):
        # As in a norm over the channels, of all or of each head: signs of channels do not matter.
        call.constraints.restrict_scale(labels.scale, SIGN, "sums squares over channels")
        call.constraints.mark_normed(labels.channel, "sums squares over channels")
    if squares and len(over) < len(labels.varying_axes):
        call.constraints.record_sum(labels)
        labels = call.constraints.heads_of(labels, over, call.module_name or call.name)
    elif over and len(over) < len(labels.varying_axes):
        labels = call.constraints.tie_along(labels, over)
    elif over:
        if not squares:
            call.constraints.forbid_scale(labels.scale, "sums over channels")
        call.constraints.record_sum(labels)
        labels = constant_labels(ndim, call.constraints.paths.id_of("sum", len(call.constraints.sums)))
    labels = with_new_paths(call, labels)
    if keepdim:
        return labels
    return labels.map(lambda item: item.reshape([size for axis, size in enumerate(item.shape) if axis not in axes]))


def _axes(call: Call, dim: Any) -> set[int]:
    """Return the axes that are summed over."""
    ndim = call.input.tensor.ndim
    dims = range(ndim) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    return {int(axis) % ndim for axis in dims} if ndim else set[int]()


def unpool(call: Call) -> Labels:
    """``max_unpool``: values at the places that they are from, and zeros."""
    return combined(call, call.input, call.argument("indices"), MUL)


def sample(call: Call) -> Labels:
    """``grid_sample``: sums of values in space, weighed by where the grid says; it depends on no channels."""
    value, grid = call.input, call.argument("grid")
    if not grid.stays:
        raise call.unsupported("a grid that no symmetry changes", "one computed from channels")
    labels = call.labels_of(value)
    return with_new_paths(call, call.constraints.tie_along(labels, tuple(at for at in labels.varying_axes if at > 1)))


def _over(call: Call, labels: Labels, dim: Any) -> bool:
    """Whether channels or experts vary along the axis of an operation, or along any where it has none of its own."""
    ndim = call.input.tensor.ndim
    dims = range(ndim) if dim is None else [int(dim) % max(1, ndim)]
    return any(axis in dims for axis in (*labels.varying_axes, *labels.expert_axes))


def _held(call: Call, labels: Labels, dim: Any, why: str) -> Labels | None:
    """Keep channels in place where an operation takes them in their order, and return its labels; None otherwise."""
    if not _over(call, labels, dim):
        return None
    call.constraints.fix(labels.channel, why)
    call.constraints.forbid_scale(labels.scale, why)
    if labels.experts is not None:
        call.constraints.fix(labels.experts, why)
    result = call.result[0] if isinstance(call.result, tuple) else call.result
    paths = tuple(labels.path.ravel().tolist())
    return constant_labels(result.ndim, call.constraints.paths.id_of(call.description, *paths))


def _with_positions(call: Call, labels: Labels, values: Callable[[], Labels]) -> list[Labels]:
    """Return labels of values and of their positions; positions that are used keep channels along them in place."""
    held = _held(call, labels, call.argument("dim"), "numbers channels by their order") if 1 in call.used else None
    if held is not None:
        return [held, held]
    made = values()
    return [made, replace(_without_scale(made), power=1.0)]


def _without_scale(labels: Labels) -> Labels:
    return replace(labels, scale=np.full_like(labels.scale, -1), modulus=False)


def _together(call: Call, path: NodeIds, axes: set[int]) -> NodeIds:
    """Return the histories of sums over axes, whatever the order along them."""
    for axis in axes:
        if path.shape[axis] > 1:
            lines = np.sort(np.moveaxis(path, axis, 0), axis=0)
            path = np.expand_dims(call.constraints.paths.extend("sum", *lines), axis)
    return path
