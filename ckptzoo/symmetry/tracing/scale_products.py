"""Products of two values with scales of their own, such as gated units with ReLU: which of them a table can express.

The result of such a product has a scale of its own while the module is traced, so that all constraints of later
operations are known before it is decided on. Where the two factors may be anything that they may be apart, each axis
with such results has the scale of the value and, beside it, that of the gate. Where the product itself may not be
scaled the factors have inverse scales; where it is tied to what a table cannot express, one factor alone keeps its
scale, or none.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ckptzoo.symmetry.tracing.constraints import NONZERO, POSITIVE, SIGN, AxisPlacement, Constraints, ScaleProduct
from ckptzoo.symmetry.tracing.union_find import NodeIds

_APART = "multiplies two values that are scaled apart"


def multiply_scales(constraints: Constraints, first: NodeIds, second: NodeIds) -> NodeIds:
    """Return the scales of products of two values (one-dimensional) that are both scaled."""
    gates = [bool(constraints.keeps_positive(scale).all()) for scale in (first, second)]
    values = [bool(constraints.any_sign(scale).all()) for scale in (first, second)]
    # A gate such as a ReLU has positive scales; what it multiplies may be any number.
    keeps = next((number for number in (0, 1) if values[number] and gates[1 - number]), -1)
    pairs = np.stack([constraints.scales.find(first), constraints.scales.find(second)], axis=1)
    _, index = np.unique(pairs, axis=0, return_inverse=True)
    made = constraints.scales.new(int(index.max()) + 1)[index.ravel()]
    for kind, keeping in ((POSITIVE, constraints.keeps_positive), (SIGN, constraints.keeps_sign)):
        constraints.restrict_scale(made[keeping(first) & keeping(second)], kind, "multiplies values that do")
    apart = not constraints.written_together(first, second)
    value = keeps if keeps >= 0 else int(values == [False, True])
    product = ScaleProduct(constraints.operation, made, first, second, keeps, value, apart)
    constraints.products_of_scales.append(product)
    return made


def settle_products(constraints: Constraints) -> None:
    """Put both factors of the products that stay on the axes that hold these, and give up the others."""
    products, count = list(constraints.products_of_scales), -1
    while count != len(products):
        count = len(products)
        # The last one first: a product of products is given up before those that it multiplies.
        for product in reversed(tuple(products)):
            constraints.operation = product.operation
            positive = constraints.scales.marks(product.scale, POSITIVE) >= 0
            for factor in (product.first, product.second):
                constraints.restrict_scale(factor[positive], POSITIVE, "is multiplied and keeps positive factors alone")
            if not _may_stay(constraints, product, products):
                products.remove(product)
                _give_up(constraints, product, products)
    for product in products:
        constraints.operation = product.operation
        for factor in (product.first, product.second):
            constraints.restrict_scale(factor, NONZERO, "is multiplied by a value that is scaled")
    factors = _factors(constraints, products)
    for place in constraints.placements.values():
        if (found := _placed(constraints, place, factors)) is not None:
            place.scale, place.gate = found


def _factors(constraints: Constraints, products: Sequence[ScaleProduct]) -> NodeIds:
    """Return the roots (m, 3) of products' scales, of their values and of their gates, each row once and in order."""
    columns = [(item.scale, *item.value_and_gate) for item in products]
    joined = np.concatenate([np.stack(item, axis=1) for item in columns] or [np.empty((0, 3), np.int64)])
    return np.unique(constraints.scales.find(joined), axis=0)


def _placed(constraints: Constraints, place: AxisPlacement, factors: NodeIds) -> tuple[NodeIds, NodeIds] | None:
    """Return the scales of values and of gates at the positions of an axis; None where it holds no product.

    A group is either among the values or among the gates of an axis: where a gate is there beside its product, the two
    change their roles. Raises ``ValueError`` where there is no such choice.
    """
    roots = constraints.scales.find(place.scale)
    held = np.isin(roots, factors[:, 0])
    if not held.any():
        return None
    found = factors[np.minimum(np.searchsorted(factors[:, 0], roots), len(factors) - 1)]
    for value in (1, 2):
        scale, gate = np.where(held, found[:, value], place.scale), np.where(held, found[:, 3 - value], -1)
        if not place.exponent:  # permuted alone
            gate = np.full_like(gate, -1)
        if not np.isin(constraints.scales.find(scale), gate[held & (gate >= 0)]).any():
            return scale, gate
    raise ValueError(f"axis {place.axis} of {place.tensor!r} holds a value, its gate and their product")


def _may_stay(constraints: Constraints, product: ScaleProduct, products: Sequence[ScaleProduct]) -> bool:
    """Whether a table can express the product: its scale may be the factors' product, whatever they are, everywhere."""
    scales = constraints.scales
    root, first, second = (scales.find(item) for item in (product.scale, product.first, product.second))
    if not all(constraints.can_scale(item).all() for item in (root, first, second)) or (first == second).any():
        return False
    signs = [bool(constraints.keeps_sign(item).any()) for item in (root, first, second)]
    if signs[0] and not all(constraints.keeps_sign(item).all() for item in (first, second)):
        return False
    made = np.concatenate([scales.find(item.scale) for item in products])
    if np.isin(np.concatenate([first, second]), made).any():  # a product of products, or tied to one of its factors
        return False
    factors, inverse = _factors(constraints, products), _inverse(constraints)
    own = factors[np.isin(factors[:, 0], root)]
    pairs = np.unique(np.column_stack([own[:, 0], np.sort(own[:, 1:], axis=1)]), axis=0)
    if len(pairs) > len(np.unique(root)) or np.isin(own, inverse).any():  # products of other factors, or inverses
        return False
    return _on_plain_axes(constraints, root, factors, inverse) and _are_placed(constraints, first, second)


def _inverse(constraints: Constraints) -> NodeIds:
    """Return the roots of scales whose inverses act somewhere."""
    placed = [place.scale for place in constraints.placements.values()]
    nodes = np.concatenate([*placed, *(item.scale for item in constraints.products_of_scales)])
    return np.unique(constraints.scales.find(nodes[constraints.scales.signs(nodes) < 0]))


def _holding(constraints: Constraints, roots: NodeIds) -> Iterator[tuple[AxisPlacement, NDArray[np.bool_]]]:
    """Yield the axes with some of these scales, and where."""
    for place in constraints.placements.values():
        held = np.isin(constraints.scales.find(place.scale), roots)
        if held.any():
            yield place, held


def _on_plain_axes(constraints: Constraints, roots: NodeIds, factors: NodeIds, inverse: NodeIds) -> bool:
    """Whether an action with gates can express every axis that holds such a product."""
    blocked = {axis for blocks in constraints.blocks for axis in blocks.axes}
    absorbed = [place.signs for place in constraints.placements.values() if place.signs is not None]
    if any(np.isin(constraints.scales.find(signs), roots).any() for signs in absorbed):
        return False
    for place, held in _holding(constraints, roots):
        plain = place.exponent in (1, -1, 0) and place.blocks == 1 and place.signs is None and not place.absolute
        if not plain or (place.tensor, place.axis) in blocked or (place.channel[held] < 0).any():
            return False
        try:
            _placed(constraints, place, factors)
        except ValueError:
            return False
        if np.isin(constraints.scales.find(place.scale), inverse).any():
            return False
    return True


def _are_placed(constraints: Constraints, *factors: NodeIds) -> bool:
    """Whether some axis has each of the factors' scales alone."""
    placed = [constraints.scales.find(place.scale) for place in constraints.placements.values()]
    return bool(placed) and all(np.isin(item, np.concatenate(placed)).all() for item in factors)


def _give_up(constraints: Constraints, product: ScaleProduct, others: Sequence[ScaleProduct]) -> None:
    """Leave one factor its scale, which the product has too, or none; where one is another product, that."""
    constraints.operation = product.operation
    factors = product.first, product.second
    if not constraints.can_scale(product.scale).any() and all(constraints.can_scale(item).all() for item in factors):
        constraints.tie_inverse_scales(*factors, "multiplies values whose product cannot be scaled")
        return
    alive = [bool(constraints.can_scale(item).any()) for item in factors]
    made = constraints.scales.find(np.concatenate([np.empty(0, np.int64), *(item.scale for item in others)]))
    nested = [bool(np.isin(constraints.scales.find(item), made).any()) for item in factors]
    keeps = product.keeps
    for only in (nested if keeps < 0 else (), alive):
        keeps = only.index(True) if sum(only) == 1 else keeps
    for number, factor in enumerate(factors):
        if number != keeps:
            constraints.forbid_scale(factor, _APART)
    if keeps < 0:
        constraints.forbid_scale(product.scale, _APART)
        return
    constraints.tie_scales(factors[keeps], product.scale, _APART)
    if product.apart:
        constraints.restrict_scale(factors[keeps], NONZERO, "multiplies values by a gate")
