"""Rules for sums, means and maxima over axes, and for pooling and interpolation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ckptzoo.symmetry.tracing.constraints import POSITIVE, SIGN, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import Call, Value
from ckptzoo.symmetry.tracing.rules.elementwise import maximum_or_minimum, with_new_paths
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
    reduced = _reduced(call, labels, call.argument("dim"), call.argument("keepdim"))
    if not isinstance(call.result, tuple):
        return reduced
    # The second result is the positions of the maxima, which no factor changes.
    return [reduced, replace(reduced, scale=np.full_like(reduced.scale, -1))]


def var_std_or_norm(call: Call) -> Labels:
    """``var`` (scales squared), ``std`` and ``norm`` of order 2 (positive scales)."""
    labels = call.labels_of(call.input)
    order = call.argument("p") if call.name == "norm" else call.argument("ord")
    if order not in (None, 2):
        raise call.unsupported("norms of order 2", f"order {order!r}")
    axes = _axes(call, call.argument("dim"))
    if call.name == "var" or (call.name != "std" and axes & set(labels.varying_axes)):
        # a norm over channels is the root of a sum of squares
        labels = replace(labels, power=2 * labels.power)
    else:
        call.constraints.restrict_scale(labels.scale, POSITIVE, "keeps positive factors alone")
    return _reduced(call, labels, call.argument("dim"), call.argument("keepdim"))


def pooling(rule: Callable[[Call], Labels]) -> Callable[[Call], Any]:
    """The rule for pooling over the last axes: channels there are tied, scales are as in a rule entry by entry."""

    def pool(call: Call) -> Any:
        # The number of axes is in the name, as in max_pool2d and upsample_nearest2d.
        count = int(call.name[-2])
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
    """The axes that are summed over."""
    ndim = call.input.tensor.ndim
    dims = range(ndim) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    return {int(axis) % ndim for axis in dims} if ndim else set[int]()


def _together(call: Call, path: NodeIds, axes: set[int]) -> NodeIds:
    """The histories of sums over axes, whatever the order along them."""
    for axis in axes:
        if path.shape[axis] > 1:
            lines = np.sort(np.moveaxis(path, axis, 0), axis=0)
            path = np.expand_dims(call.constraints.paths.extend("sum", *lines), axis)
    return path
