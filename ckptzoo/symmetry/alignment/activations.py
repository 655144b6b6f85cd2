"""Matching by activations: channels that answer alike on the same inputs are put in the same places."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.symmetry import Like, Symmetry
from ckptzoo.symmetry.alignment.blocks import assign_jointly
from ckptzoo.symmetry.alignment.joint_groups import JointGroups, joint_groups_of
from ckptzoo.symmetry.arrays import as_array, to_numpy
from ckptzoo.symmetry.element import GroupElement

Activations = Mapping[str, Any]
"""Group id to (K, n, examples), or of one network (n, examples): what each channel holds on the same inputs."""
_PIECE_BYTES = 256 * 2**20
"""Gains that are held at a time, or those of one network."""


def match_activations(
    activations: Activations, reference: Activations, symmetry: Symmetry, K: int, R: int = 1
) -> tuple[GroupElement, NDArray[np.bool_]]:
    r"""Permutations by which the activations of K networks correlate most with those of a reference.

    For every symmetric group one assignment on the uncentred products :math:`C_{ij} = \sum_x a_i(x) b_j(x)` (activation
    matching: Ainsworth et al., arXiv 2209.04836, section 3.1); for wreath groups within and among blocks. Groups that
    are ``Like`` another add their products to its, where they are given. For covariances, centre both before.

    Parameters
    ----------
    activations : of each group (K, n, examples).
    reference : of each group (R, n, examples), or (n, examples) of one for all.
    K, R : networks, and references: 1 or K.

    Returns
    -------
    The permutations, and (K,) which networks have finite activations; the others keep the identity.

    Raises
    ------
    SymmetryError
        A group that permutations move has no activations, or their shapes do not fit.
    """
    ours = {name: _stacked(name, array, symmetry, K) for name, array in activations.items()}
    theirs = {name: _stacked(name, array, symmetry, R) for name, array in reference.items()}
    usable = np.ones(K, bool)
    for name, array in ours.items():
        if name in theirs and array.shape[2] != theirs[name].shape[2]:
            raise _refused(name, f"{theirs[name].shape[2]} examples, as the reference has", str(array.shape[2]))
        usable &= np.isfinite(array).all(axis=(1, 2))
    if wrong := [name for name, array in theirs.items() if not np.isfinite(array).all()]:
        raise _refused(wrong[0], "finite numbers of the reference", "others")
    element = GroupElement.identity(symmetry, K)
    rows = np.flatnonzero(usable)
    for joint in joint_groups_of(symmetry, {action.tensor for action in symmetry.actions}):
        _require(joint, {symmetry.leader(name).id for name in ours.keys() & theirs.keys()})
        nbytes = sum(8 * group.n**2 for group in joint.groups)
        step = max(1, _PIECE_BYTES // nbytes)
        for some in (rows[start : start + step] for start in range(0, len(rows), step)):
            gains = {group.id: _gains(group.id, ours, theirs, symmetry, some) for group in joint.groups}
            found, _, _ = assign_jointly(joint, gains, (), None)
            for name, perm in found.items():
                for group in symmetry.groups:
                    if group.id == name or group.perm == Like(name):
                        element.perms[group.id][some] = perm
    return element, usable


def in_gauge(activations: Activations, element: GroupElement) -> dict[str, Any]:
    """The activations of networks after ``element``: in other orders, and scaled; what does not fit stays."""
    found: dict[str, Any] = {}
    for name, value in activations.items():
        array = to_numpy(as_array(value))
        if array.ndim == 2 and len(element) == 1:
            array = array[None]
        if name in element.perms and array.ndim == 3 and array.shape[:2] == element.perms[name].shape:
            array = np.take_along_axis(array, to_numpy(element.perms[name])[:, :, None], 1)
            if name in element.scales:
                array = array * to_numpy(element.scales[name])[:, :, None]
        found[name] = array
    return found


def _gains(
    leader: str, ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]], symmetry: Symmetry, rows: Any
) -> NDArray[np.floating]:
    """(rows, n, n) products of a group and of those that are like it; zeros where there are no activations."""
    total = np.zeros((len(rows), symmetry[leader].n, symmetry[leader].n))
    for group in symmetry.groups:
        if group.id in ours and group.id in theirs and symmetry.leader(group.id).id == leader:
            first = theirs[group.id] if len(theirs[group.id]) == 1 else theirs[group.id][rows]
            total += first @ ours[group.id][rows].swapaxes(1, 2)
    return total


def _stacked(name: str, value: Any, symmetry: Symmetry, K: int) -> NDArray[np.floating]:
    """(K, n, examples) of a group."""
    known = {group.id: group.n for group in symmetry.groups}
    if name not in known:
        raise _refused(name, f"one of {', '.join(known)}", "another group")
    array = to_numpy(as_array(value))
    if array.ndim == 2 and K == 1:
        array = array[None]
    if array.ndim != 3 or array.shape[:2] != (K, known[name]):
        raise _refused(name, f"({K}, {known[name]}, examples)", str(array.shape))
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)


def _require(joint: JointGroups, present: set[str]) -> None:
    """Refuse groups whose permutations nothing determines."""
    ids = {group.id for group in joint.groups}
    lacking = [group.id for group in joint.groups if group.id not in present and group.n > joint.g]
    if lacking or not ids & present:
        raise _refused(lacking[0] if lacking else min(ids), "those of the networks and of the reference", "none")


def _refused(group: str, expected: str, got: str) -> SymmetryError:
    return SymmetryError(
        f"activations: group {group!r}: expected {expected}, got {got}. Record them on the same inputs for every group."
    )
