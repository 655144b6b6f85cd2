"""Matching by activations: channels that respond alike to the same inputs are put in the same places."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.alignment.blocks import assign_jointly
from ckptzoo.symmetry.alignment.joint_groups import JointGroups, joint_groups_of, put
from ckptzoo.symmetry.alignment.signatures import count_ties
from ckptzoo.symmetry.arrays import as_array, to_numpy
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.registry import permutations_of

Products = Mapping[str, Any]
"""Group id to (K, n, n): ``sum_x a_i(x) b_j(x)`` of channel i of A and channel j of B on the same examples."""
_PIECE_BYTES = 256 * 2**20
"""Bytes of gains that are in memory at a time, at least those of one network."""


def match_activations(
    products: Products, symmetry: Symmetry, K: int
) -> tuple[GroupElement, NDArray[np.bool_], NDArray[np.int64]]:
    r"""Return permutations by which the activations of K networks correlate most with those of a reference.

    For every symmetric group one assignment on the products :math:`C_{ij} = \sum_x a_i(x) b_j(x)`, (K, n, n) or, where
    K is 1, (n, n) (activation matching: Ainsworth et al., arXiv 2209.04836, section 3.1); for wreath groups within and
    among blocks. Groups that are ``Like`` another add their products to its, where they are given.

    The second item, (K,) bool, is False for networks whose products are not finite; they keep the identity. The third
    counts channels (K,) whose products are those of another one of their group, as of channels that are 0 on all
    examples. Raises ``SymmetryError`` where a group that permutations move has no products, or their shape does not
    fit.
    """
    given = {name: _stacked(name, array, symmetry, K) for name, array in products.items()}
    require_activations(symmetry, given)
    usable, ties = np.ones(K, bool), np.zeros(K, np.int64)
    for array in given.values():
        usable &= np.isfinite(array).all(axis=(1, 2))
    element = GroupElement.identity(symmetry, K)
    rows = np.flatnonzero(usable)
    for joint in _joint_groups(symmetry):
        nbytes = sum(8 * group.n**2 for group in joint.groups)
        step = max(1, _PIECE_BYTES // nbytes)
        for some in (rows[start : start + step] for start in range(0, len(rows), step)):
            gains = {group.id: _gains(group.id, given, symmetry, some) for group in joint.groups}
            found, _, _ = assign_jointly(joint, gains, (), None)
            ties[some] += count_ties(joint, {name: _keys(gain) for name, gain in gains.items()})
            put(element, found, some, symmetry)
    return element, usable, ties


def require_activations(symmetry: Symmetry, groups: Collection[str]) -> None:
    """Raise ``SymmetryError`` for groups without products, whose permutations nothing then determines."""
    present = {symmetry.leader(name).id for name in groups}
    for joint in _joint_groups(symmetry):
        ids = {group.id for group in joint.groups}
        inside = [
            group for group in joint.groups if group.n > joint.g and not permutations_of(group).keeps_order(group)
        ]
        lacking = [group.id for group in inside if group.id not in present]
        if lacking or not ids & present:
            raise _refused(lacking[0] if lacking else min(ids), "some", "none")


def in_gauge(products: Products, element: GroupElement, reference: GroupElement) -> dict[str, Any]:
    """Return the products of networks after ``element`` with references after another one; what does not fit stays."""
    found: dict[str, Any] = {}
    for name, value in products.items():
        array = to_numpy(as_array(value))
        if array.ndim == 2 and len(element) == 1:
            array = array[None]
        if name in element.perms and array.shape == (*element.perms[name].shape, element.perms[name].shape[1]):
            for given, axis in ((reference, 1), (element, 2)):
                array = np.take_along_axis(array, np.expand_dims(to_numpy(given.perms[name]), 3 - axis), axis)
                if name in given.scales:
                    array = array * np.expand_dims(to_numpy(given.scales[name]), 3 - axis)
        found[name] = array
    return found


def _joint_groups(symmetry: Symmetry) -> tuple[JointGroups, ...]:
    return joint_groups_of(symmetry, {action.tensor for action in symmetry.actions})


def _gains(leader: str, given: Mapping[str, NDArray[Any]], symmetry: Symmetry, rows: Any) -> NDArray[np.float64]:
    """Return the (rows, n, n) products of a group and of those that are like it; zeros where none are given."""
    total = np.zeros((len(rows), symmetry[leader].n, symmetry[leader].n))
    for name, array in given.items():
        if symmetry.leader(name).id == leader:
            total += array[rows]
    return total


def _keys(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (K, n) sums over the channels of the reference, in one order: equal columns have equal keys."""
    # fixed random weights: sums of different columns are equal only by chance
    weights = np.random.default_rng(0).uniform(0.5, 1.5, gains.shape[1])
    return (gains * weights[:, None]).sum(axis=1)


def _stacked(name: str, value: Any, symmetry: Symmetry, K: int) -> NDArray[np.floating]:
    """Return the products of a group as (K, n, n)."""
    known = {group.id: group.n for group in symmetry.groups}
    if name not in known:
        raise _refused(name, f"one of {', '.join(known)}", "another group")
    array = to_numpy(as_array(value))
    if array.ndim == 2 and K == 1:
        array = array[None]
    if array.shape != (expected := (K, known[name], known[name])):
        raise _refused(name, str(expected), str(array.shape))
    return array


def _refused(group: str, expected: str, got: str) -> SymmetryError:
    step = "Sum over the same inputs for every group, or align by weights."
    return SymmetryError(Problem("align", f"products of activations of group {group!r}", expected, got, step))
