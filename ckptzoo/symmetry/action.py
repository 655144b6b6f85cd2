"""A group element acting on stacked weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ckptzoo.arguments import Count, checked
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry.arrays import Facts, Stacked, fitting, in_memory, is_array, is_float, to_numpy
from ckptzoo.symmetry.backends import Stack, act, run
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.kinds.registry import arithmetic
from ckptzoo.symmetry.matrix_action import MixedChannels, mixed_channels, multiply, unit_gains
from ckptzoo.symmetry.moves import Move
from ckptzoo.symmetry.tables import Arch, table_of

MIX = 2**23
"""Elements whose channels are mixed at a time, at least one checkpoint's tensor: 64 MiB of float64."""


@checked
def apply(
    element: GroupElement,
    weights: Stacked,
    symmetry: Arch,
    *,
    out: Stacked | None = None,
    threads: Count | None = None,
) -> dict[str, Any]:
    r"""``g . theta`` for K checkpoints and K group elements: the same functions with other weights.

    Along every axis of the table, ``new[i] = scale[i] ** exponent * old[perm[i]]``; a running variance becomes
    ``scale[i] ** 2 * (old[perm[i]] + eps) - eps`` (arXiv 2310.08287, section 3; eps exactly). A gain is multiplied by
    the sign of the scale of what it normalises. Where a group has matrices, ``new = G old`` for the channels of a
    block with exponent 1 and ``new = G^-T old`` with exponent -1, after the permutation of whole blocks.

    Parameters
    ----------
    element
        K elements of the table's group, numpy or torch.
    weights
        tensor name to (K, *shape), numpy or torch on any device; tensors outside the table pass through.
    symmetry
        the table, or whatever names a network, as for ``canonicalize``.
    out
        tensor name to an array for the result, for any of the tensors: of its shape, dtype and device, contiguous, and
        apart from the weights in memory. What it holds is undefined after an error.
    threads
        at most this number for arrays in the CPU's memory; None for one a core, at most 8.

    Returns
    -------
    dict[str, Any]
        dict of new arrays, or those of ``out``, each in its input's framework and on its device, without gradients.
        Divisions by scales, products with them and then variances act in float64 with one rounding at the end, to the
        input's dtype or to float32 where that is a half precision. The bits do not depend on framework, device, threads
        or the other checkpoints, and are those of the input where a checkpoint's scales are 1; those of tensors that
        matrices act on are the same on one machine with one library alone.

    Raises
    ------
    SymmetryError
        The element is not of the table's group, the tensors or ``out`` do not fit, a device has no float64, a
        scale makes a running variance negative, or gains are not 1 where orthogonal matrices need it.

    Notes
    -----
    Linear in the size of the weights, times k for matrices of k channels. Beside the output a few MiB a thread (a row
    of a tensor where that is larger), a copy of a checkpoint's tensor where that is not contiguous, and one of a
    group's permutations; on other devices a few hundred MiB. Tested in
    tests/symmetry/test_action.py, test_arrays.py and test_variance.py, and in tests/laws/test_symmetry.py.
    """
    symmetry = table_of(symmetry)
    held = element.to(np.empty(0))
    held.check(symmetry)
    arrays, K = fitting(weights, symmetry)
    if symmetry.groups and len(element) != K:
        raise SymmetryError(
            f"group element: number of elements: expected {K}, one a checkpoint, got {len(element)}. "
            "Select the same rows of both."
        )
    if strange := set(out or ()) - arrays.keys():
        raise _refused(min(strange), "a name among the weights", "none")
    made = {name: _target(name, array, (out or {}).get(name)) for name, array in arrays.items()}
    acting = _acting(held)
    if acting.matrices:
        unit_gains(arrays, symmetry, set(acting.matrices))
    placed: dict[str, GroupElement] = {}
    stacks: list[Stack] = []
    for name, array in arrays.items():
        move = Move.of(tuple(array.shape[1:]), symmetry.actions_on(name), symmetry)
        perms, scales = _on(move, acting, array)
        mixed = mixed_channels(symmetry.actions_on(name), symmetry) if acting.matrices and is_float(array) else []
        if mixed := [channels for channels in mixed if channels.group in acting.matrices]:
            _mix(move, GroupElement(perms, scales, acting.matrices), mixed, array, made[name])
            continue
        if in_memory(array):
            stacks.append(Stack(move, perms, scales, to_numpy(array), to_numpy(made[name])))
            continue
        place = str(device(array))
        if place not in placed:
            placed[place] = element.to(array)
        near = placed[place]
        perms = {group: near.perms[group] for group in perms}
        act(move, perms, {group: near.scales[group] for group in scales}, array, made[name])
    run(stacks, threads)
    return made


def _mix(move: Move, element: GroupElement, mixed: list[MixedChannels], array: Any, target: Any) -> None:
    """Fill a target (K, *shape) whose channels matrices mix, some checkpoints at a time in float64."""
    step = max(1, MIX // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        some = slice(start, start + step)
        source = array[some]
        work = replace(Facts.of(source), dtype=array_namespace(array).float64).empty()
        near = element[some].to(source)
        if in_memory(source):
            run([Stack(move, near.perms, near.scales, to_numpy(source), to_numpy(work))], None)
        else:
            act(move, near.perms, near.scales, source, work)
        multiply(work, mixed, near.matrices)
        target[some] = work if isinstance(work, np.ndarray) else array_namespace(work).astype(work, target.dtype)


def fill(
    targets: Mapping[str, np.ndarray],
    arrays: Mapping[str, np.ndarray],
    moves: Mapping[str, Move],
    element: GroupElement,
    threads: int,
) -> None:
    """Fill contiguous targets from stacked weights under an element of some groups, without matrices, unchecked."""
    acting = _acting(element)
    run(
        [Stack(moves[name], *_on(moves[name], acting, array), array, targets[name]) for name, array in arrays.items()],
        threads,
    )


def transform(
    array: np.ndarray, actions: Sequence[AxisAction], element: GroupElement, symmetry: Symmetry
) -> np.ndarray:
    """Return one stacked tensor under its actions (by axis), computed in numpy in the caller's thread.

    The result is float64, not rounded, where the element has scales for the tensor's channels, else of the input's
    dtype. It is the array itself where the element leaves it alone.
    """
    move = Move.of(array.shape[1:], actions, symmetry)
    scaling = is_float(array) and any(name in element.scales for axis in move.axes for name in axis.scaling)
    perms, scales = _on(move, _acting(element), array)
    if not perms and not scaling:
        return array
    made = np.empty(array.shape, np.float64 if scaling else array.dtype)
    run([Stack(move, perms, scales, array, made)], 1)
    return made


def _acting(element: GroupElement) -> GroupElement:
    """Return the element without the groups that all K elements leave alone."""
    return GroupElement(
        **{
            part: {name: value for name, value in values.items() if not arithmetic(part, value).is_identity(value)}
            for part, values in element.parts.items()
        }
    )


def _on(move: Move, element: GroupElement, array: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the permutations and scales that act on a tensor; integers are never scaled."""
    groups = move.groups
    perms = {name: perm for name, perm in element.perms.items() if name in groups}
    scales = {name: scale for name, scale in element.scales.items() if name in groups} if is_float(array) else {}
    return perms, scales


def _target(name: str, array: Any, given: Any | None) -> Any:
    """Return where a tensor's result goes: the array that was given, once it is checked, or a new one."""
    facts = Facts.of(array).stored()
    if given is None:
        return facts.empty()
    found = Facts.of(given) if is_array(given) else type(given).__name__
    if found != facts:
        raise _refused(name, str(facts), str(found))
    if in_memory(given):
        if not (held := to_numpy(given)).flags.c_contiguous or not held.flags.writeable:
            raise _refused(name, "a contiguous array that may be written", "another")
        if np.may_share_memory(held, to_numpy(array)):
            raise _refused(name, "memory apart from the weights", "the same memory")
    return given


def _refused(name: str, expected: str, got: str) -> SymmetryError:
    return SymmetryError(f"out: tensor {name!r}: expected {expected}, got {got}. Leave it out to get a new array.")
