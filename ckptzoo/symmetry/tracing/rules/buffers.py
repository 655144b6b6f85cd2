"""Buffers of the state dict, of which every checkpoint has its own: masks, thresholds, statistics, indices.

Their numbers in the module at hand hold for no other checkpoint. So the table acts on an axis of a buffer that has one
entry for each channel, and what an operation makes of other buffers keeps the channels that it meets in place. Buffers
that are not in the state dict are constants of the module.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ckptzoo.symmetry.tracing.constraints import Constraints, Labels
from ckptzoo.symmetry.tracing.graph import is_cast
from ckptzoo.symmetry.tracing.rules.call import Call, Stored, Value, map_values

_ENTRYWISE_NAMES = (
    "neg positive relu leaky_relu abs absolute tanh sin cos erf sigmoid hardsigmoid silu softplus exp expm1 log log1p "
    "pow square sqrt rsqrt reciprocal add sub subtract rsub mul multiply div divide true_divide maximum minimum clamp "
    "clip clamp_min clamp_max gt lt ge le eq ne greater less greater_equal less_equal not_equal logical_and logical_or "
    "logical_not logical_xor bitwise_and bitwise_or bitwise_not __and__ __or__ where masked_fill clone detach alias "
    "contiguous round floor ceil sign trunc isinf isnan isfinite"
)
_ENTRYWISE = frozenset(_ENTRYWISE_NAMES.split())
"""Operators each of whose entries depends on the entries of its arguments in the same place alone."""
_MOVE_NAMES = (
    "view reshape flatten unflatten ravel permute transpose swapaxes swapdims movedim moveaxis t numpy_T mT squeeze "
    "unsqueeze expand expand_as view_as reshape_as broadcast_to repeat tile select slice narrow"
)
_MOVES = frozenset(_MOVE_NAMES.split())
"""Operators that move entries in a way that depends on shapes alone, and may leave axes as they are."""


def stored_buffer(name: str, tensor: torch.Tensor) -> Stored:
    """Return a buffer of the state dict unchanged."""
    axes = (frozenset({(name, axis)}) if size > 1 else frozenset() for axis, size in enumerate(tensor.shape))
    return Stored(frozenset({name}), tuple(axes), tensor.is_floating_point())


def computed_from_buffers(call: Call, result: torch.Tensor, values: Sequence[Value]) -> Stored | None:
    """Return the buffers in a constant that an operation makes; None where it has nothing of any."""
    own = [value.stored for value in values if value.stored is not None]
    if not own:
        return None
    names = frozenset[str]().union(*(item.names for item in own))
    if call.name in _MOVES and len(own) == len(values) == 1:
        return Stored(names, _moved_axes(call, values[0], result), own[0].plain and result.is_floating_point())
    # a function of the entries is no buffer that could be scaled, a cast still is
    if call.name in _ENTRYWISE or is_cast(call.name):
        plain = is_cast(call.name) and own[0].plain and result.is_floating_point()
        return Stored(names, _joined_axes(values, result), plain)
    return Stored(names)


def _joined_axes(values: Sequence[Value], result: torch.Tensor) -> tuple[frozenset[tuple[str, int]], ...] | None:
    found: list[set[tuple[str, int]]] = [set() for _ in result.shape]
    for value in values:
        offset = result.ndim - value.tensor.ndim
        if value.stored is not None:
            if value.stored.axes is None:
                return None
            for axis, axes in enumerate(value.stored.axes):
                found[offset + axis] |= axes
        elif value.tensor.numel() > 1 and bool((value.tensor != value.tensor.ravel()[0]).any()):
            return None  # numbers of the module itself, which stay in place
    return tuple(map(frozenset, found))


def _moved_axes(call: Call, value: Value, result: torch.Tensor) -> tuple[frozenset[tuple[str, int]], ...] | None:
    assert value.stored is not None
    if value.stored.axes is None:
        return None
    found: list[set[tuple[str, int]]] = [set() for _ in result.shape]
    for axis, axes in enumerate(value.stored.axes):
        if not axes:
            continue
        size = value.tensor.shape[axis]
        places = torch.arange(size).reshape([size if at == axis else 1 for at in range(value.tensor.ndim)])
        given = places.expand(value.tensor.shape).contiguous()
        moved = call.operator(**map_values(call.arguments, lambda item, given=given: given))
        along = [
            at for at, length in enumerate(moved.shape) if length > 1 and bool((moved != moved.narrow(at, 0, 1)).any())
        ]
        if not along:  # one position alone is taken
            continue
        line = moved.movedim(along[0], 0).reshape(moved.shape[along[0]], -1)[:, 0]
        if len(along) != 1 or not torch.equal(line, torch.arange(size)):
            return None
        found[along[0]] |= axes
    return tuple(map(frozenset, found))


def place_buffers(constraints: Constraints, stored: Stored, line: Labels, axis: int, *, exponent: int) -> bool:
    """Let the channels along an axis of a constant act on the buffers that it has there; False where it has none.

    ``line`` are labels of the channels, one-dimensional; ``exponent`` is that of their scales, which act where the
    constant is the buffer itself.
    """
    if stored.axes is None or not stored.axes[axis]:
        return False
    for name, source in sorted(stored.axes[axis]):
        constraints.place(name, source, line, exponent, "mean")
        # a buffer has one entry for each channel on this axis, and other checkpoints fill the other axes otherwise
        _fix(constraints, name, besides=source)
    return True


@contextmanager
def placed_or_fixed(constraints: Constraints, values: Sequence[Value]) -> Iterator[None]:
    """A context in which an operation uses values; buffers in them whose axes it does not place are held in place."""
    names = sorted(frozenset[str]().union(*(value.stored.names for value in values if value.stored is not None)))
    before = {name: _uses(constraints, name) for name in names}
    yield
    for name in names:
        if _uses(constraints, name) == before[name]:
            _fix(constraints, name)


def _uses(constraints: Constraints, name: str) -> int:
    axes = range(len(constraints.shapes[name]))
    return sum(constraints.placements[name, axis].uses for axis in axes if (name, axis) in constraints.placements)


def _fix(constraints: Constraints, name: str, besides: int = -1) -> None:
    for axis, size in enumerate(constraints.shapes[name]):
        if axis != besides and size > 1:
            constraints.fix_axis(name, axis, size, "mean")
