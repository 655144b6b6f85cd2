"""Rules for sums, means and maxima over axes, and for pooling and interpolation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ckptzoo.symmetry.tracing.constraints import POSITIVE, Labels, constant_labels
from ckptzoo.symmetry.tracing.rules.call import Call, Value
from ckptzoo.symmetry.tracing.rules.elementwise import extremum, stepped


def summed(call: Call) -> Labels:
    """``sum``, ``mean``: every scale passes, but over channels."""
    return _reduced(call, call.labels(call.input), _dim(call), call.get(2, "keepdim", False))


def largest(call: Call) -> Any:
    """``amax``, ``amin``, ``max``, ``min`` over axes, or of two tensors: positive scales pass, but over channels."""
    if isinstance(call.get(1, "other"), Value):
        return extremum(call)
    labels = call.labels(call.input)
    call.ledger.only(labels.scale, POSITIVE, "keeps positive factors alone")
    made = _reduced(call, labels, _dim(call), call.get(2, "keepdim", False))
    if not isinstance(call.result, tuple):
        return made
    return [made, replace(made, scale=np.full_like(made.scale, -1))]


def spread(call: Call) -> Labels:
    """``var`` (scales squared), ``std`` and ``norm`` of order 2 (positive scales)."""
    labels = call.labels(call.input)
    dim, keepdim = _dim(call), call.kwargs.get("keepdim", False)
    if call.name == "norm":
        order, dim, keepdim = call.get(1, "p", 2), call.get(2, "dim"), call.get(3, "keepdim", False)
        if order not in (2, "fro"):
            raise call.refused("norms of order 2", f"order {order!r}")
    elif isinstance(dim, bool) or len(call.args) > 2:
        raise call.refused("the axes alone before keyword arguments", "others")
    if call.name == "var":
        labels = replace(labels, power=2 * labels.power)
    else:
        call.ledger.only(labels.scale, POSITIVE, "keeps positive factors alone")
    return _reduced(call, labels, dim, keepdim)


def pooled(rule: Callable[[Call], Labels]) -> Callable[[Call], Labels]:
    """Pooling over the last axes; as far as scales go, entry by entry."""

    def pool(call: Call) -> Labels:
        if isinstance(call.result, tuple):
            raise call.refused("pooling without indices", "return_indices=True")
        count = int(call.name[-2]) if call.name.endswith("d") else call.input.tensor.ndim - 2
        labels = call.labels(call.input)
        over = tuple(axis for axis in labels.varying if axis >= call.input.tensor.ndim - count)
        if over:
            call.ledger.notes.append(f"Channels that {call.ledger.here} pools together move together.")
        return rule(
            replace(call, args=(replace(call.input, labels=call.ledger.together(labels, over)), *call.args[1:]))
        )

    return pool


def _dim(call: Call) -> Any:
    return call.get(1, "dim", call.kwargs.get("axis"))


def _reduced(call: Call, labels: Labels, dim: Any, keepdim: bool) -> Labels:
    ndim = call.input.tensor.ndim
    dims = range(ndim) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
    axes = {int(axis) % ndim for axis in dims} if ndim else set[int]()
    over = tuple(axis for axis in labels.varying if axis in axes)
    if over and len(over) < len(labels.varying):
        labels = call.ledger.together(labels, over)
    elif over:
        call.ledger.forbid_scale(labels.scale, "sums over channels")
        call.ledger.sum_over(labels)
        labels = constant_labels(ndim, call.ledger.paths.of("sum", len(call.ledger.sums)))
    labels = stepped(call, labels)
    if keepdim:
        return labels
    return labels.each(lambda item: item.reshape([size for axis, size in enumerate(item.shape) if axis not in axes]))
