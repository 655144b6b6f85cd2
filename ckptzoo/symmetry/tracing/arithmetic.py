"""Rules for two operands, entry by entry: sums, products, quotients, and the larger or smaller of two."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ckptzoo.symmetry.tracing.forest import Atoms
from ckptzoo.symmetry.tracing.labels import Labels, still
from ckptzoo.symmetry.tracing.ledger import POSITIVE
from ckptzoo.symmetry.tracing.parameters import ADD, DIV, MAX, MUL, with_parameter
from ckptzoo.symmetry.tracing.values import CONSTANT, PARAMETER, Call, Value


def add(call: Call) -> Labels:
    """``a + b``, ``a - b``: both sides are scaled alike."""
    return _combine(call, ADD)


def mul(call: Call) -> Labels:
    """``a * b``: one side is scaled, or both are alike."""
    return _combine(call, MUL)


def div(call: Call) -> Labels:
    """``a / b``: one side is scaled, or both are alike."""
    return _combine(call, DIV)


def extremum(call: Call) -> Labels:
    """``max(a, b)``, ``min(a, b)``: both sides are scaled alike, by positive numbers."""
    return _combine(call, MAX)


def _combine(call: Call, how: str) -> Labels:
    one, two = (_operand(call, call.get(at, name)) for at, name in enumerate(("input", "other")))
    made = _labels(call, one, two, how)
    befores = (value.labels.aligned(call.result.ndim).path for value in (one, two))
    return replace(made, path=call.ledger.paths.step(call.history, *befores))


def _operand(call: Call, item: Any) -> Value:
    if isinstance(item, Value):
        return item
    if isinstance(item, (bool, int, float)):
        return Value(torch.tensor(item, dtype=torch.float64), still(0), CONSTANT)
    raise call.refused("tensors or numbers", type(item).__name__)


def _labels(call: Call, one: Value, two: Value, how: str) -> Labels:
    """Channels and scales of the result."""
    if CONSTANT in (one.origin, two.origin):
        turned = one.origin == CONSTANT
        return _with_constant(call, *((two, one) if turned else (one, two)), how, turned=turned)
    if one.bare != two.bare:
        return with_parameter(call, *((two, one) if one.bare else (one, two)), how, turned=one.bare)
    return _with_other(call, one, two, how)


def _with_constant(call: Call, value: Value, constant: Value, how: str, *, turned: bool) -> Labels:
    """Beside numbers that no symmetry may change."""
    ledger, ndim, numbers = call.ledger, call.result.ndim, constant.tensor
    labels = call.labels(value).aligned(ndim)
    numbers = numbers.reshape((1,) * (ndim - numbers.ndim) + tuple(numbers.shape))
    along = [axis for axis in labels.varying if numbers.shape[axis] > 1]
    if any(bool((numbers != numbers.narrow(axis, 0, 1)).any()) for axis in along):
        ledger.hold(labels.channel, "meets constants that are not the same for all channels")
    zero = not bool(numbers.any())
    if how == MAX and zero:
        ledger.only(labels.scale, POSITIVE, "cuts at zero")
    elif how == MAX or (how == ADD and not zero):
        ledger.kill(labels.scale, "adds a constant" if how == ADD else "cuts at a constant")
    return replace(labels, power=-labels.power) if how == DIV and turned else labels


def _with_other(call: Call, one: Value, two: Value, how: str) -> Labels:
    """Beside values with labels of their own."""
    ndim = call.result.ndim
    first, second = (call.labels(value).aligned(ndim) for value in (one, two))
    sizes = [(1,) * (ndim - value.tensor.ndim) + tuple(value.tensor.shape) for value in (one, two)]
    for many, single, size in ((first, second, sizes[1]), (second, first, sizes[0])):
        if any(size[axis] == 1 for axis in many.varying) and not single.free:
            return _beside_one(call, many, single, how)
    channel = _joined(call, (first, second), sizes)
    return replace(_scaled(call, first, second, how, (one.origin, two.origin)), channel=channel)


def _beside_one(call: Call, many: Labels, single: Labels, how: str) -> Labels:
    """Several channels, each beside the same one."""
    if single.varying:
        raise call.refused("channels on one axis at most", "channels on two axes")
    call.ledger.sum_over(single)
    call.ledger.kill(single.scale, "puts one channel beside several others")
    if how in (ADD, MAX):
        call.ledger.kill(many.scale, "puts one channel beside several others")
    return many


def _joined(call: Call, sides: tuple[Labels, Labels], sizes: list[tuple[int, ...]]) -> Atoms:
    """Channels that meet move together; those that meet values without channels stay, if these differ along them."""
    one, two = np.broadcast_arrays(sides[0].channel, sides[1].channel)
    both = (one >= 0) & (two >= 0)
    call.ledger.channels.unite(one[both], two[both])
    for mine, its, labels, size in ((one, two, sides[0], sizes[1]), (two, one, sides[1], sizes[0])):
        if any(size[axis] > 1 for axis in labels.varying):
            call.ledger.hold(mine[its < 0], "joins channels with values that stay in place")
    return np.where(one >= 0, one, two)


def _scaled(call: Call, first: Labels, second: Labels, how: str, origins: tuple[str, str]) -> Labels:
    """The first labels with the result's scales and power."""
    ledger = call.ledger
    one, two = np.broadcast_arrays(first.scale, second.scale)
    alive = ledger.alive(one), ledger.alive(two)
    both = alive[0] & alive[1]
    if how in (ADD, MAX):
        if both.any() and first.power != second.power:
            ledger.kill(one[both], "joins values with powers of values")
        scale = ledger.join(one, two, "joins values that are scaled with others that cannot be")
        if how == MAX:
            ledger.only(scale, POSITIVE, "takes the larger of two")
        return replace(first, scale=scale, power=first.power if alive[0].any() else second.power)
    its = second.power if how == MUL else -second.power
    if both.any() and (alive[0] == alive[1]).all() and _same(call, one[both], two[both]):
        power = first.power + its
        return replace(first, scale=np.where(both & (power != 0), one, -1), power=power or 1.0)
    if both.any() and PARAMETER in origins and origins[0] != origins[1]:
        ledger.kill(two if origins[1] == PARAMETER else one, "multiplies values that are scaled by a parameter")
    elif both.any():
        for scale in (one[both], two[both]):
            ledger.kill(scale, "multiplies two values that are scaled apart")
    alive = ledger.alive(one), ledger.alive(two)
    if alive[0].any() and alive[1].any() and first.power != its:
        ledger.kill(two, "multiplies by powers of values")
    scale = np.where(alive[0], one, np.where(alive[1], two, -1))
    return replace(first, scale=scale, power=first.power if alive[0].any() else its)


def _same(call: Call, one: Atoms, two: Atoms) -> bool:
    return bool((call.ledger.scales.find(one) == call.ledger.scales.find(two)).all())
