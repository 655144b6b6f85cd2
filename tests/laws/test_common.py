"""Every element of ``common(tables)`` is one of every table, whatever the tables: also those that no network has."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SpecError, SymmetryError
from ckptzoo.schema.groups import SCALES, AxisAction, Fixed, Group, Like, Perm, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, common
from tests.support.effort import examples

K, POSITIONS = 2, 4
TENSORS = ("t", "u", "v", "w")
SIZES = {"a": 4, "b": 4, "c": 2, "d": 2}
"""Groups and their channels. Every tensor has one axis."""


@st.composite
def runs(draw: st.DrawFn) -> tuple[Segment, ...]:
    """Which channels are where: in one run, in two of one group or of two, or at two positions each."""
    wide, first, second = draw(st.sampled_from("ab")), draw(st.sampled_from("cd")), draw(st.sampled_from("cd"))
    kinds = (
        (Segment(wide, 0, 1, 4),),
        (Segment(wide, 0, 1, 2), Segment(wide, 2, 1, 2)),
        (Segment(first, 0, 1, 2), Segment(second, 2, 1, 2)),
        (Segment(first, 0, 2, 2),),
        (Segment(first, 2, 1, 2),),
    )
    return kinds[draw(st.integers(0, len(kinds) - 1))]


@st.composite
def actions(draw: st.DrawFn, tensor: str) -> AxisAction:
    exponent = draw(st.sampled_from((1, 1, 1, -1, 0, 2)))
    action = AxisAction(tensor, 0, draw(runs()), exponent, True, {2: "variance", -1: "in"}.get(exponent, "out"))
    if exponent == 2:
        return replace(action, eps=draw(st.sampled_from((0.0, 0.1))))
    return replace(action, absolute=bool(exponent) and draw(st.integers(0, 3)) == 0)


@st.composite
def tables(draw: st.DrawFn) -> Symmetry:
    made = [draw(actions(tensor)) for tensor in TENSORS if draw(st.integers(0, 4))]
    assume(made)
    perms: dict[str, Perm] = {}
    signed = draw(st.booleans())
    if signed:  # as BatchNorm's: b is normalised channels of a
        made.append(AxisAction("x", 0, (Segment("a", 0, 1, 4),), 1, True, "out"))
        if draw(st.integers(0, 4)):
            signs = (Segment("a", 0, 1, 4),) if draw(st.integers(0, 3)) else ()
            made.append(AxisAction("y", 0, (Segment("b", 0, 1, 4),), 1, True, "gain", signs=signs))
            perms["b"] = Like("a")
    gated = not signed and draw(st.booleans())
    if gated:  # b multiplies a
        a, b = (Segment(name, 0, 1, 4) for name in "ab")
        made += [AxisAction("x", 0, (a,), 1, True, "out"), AxisAction("y", 0, (b,), 1, True, "out")]
        if draw(st.integers(0, 4)):
            exponent = draw(st.sampled_from((-1, -1, 1)))
            made.append(AxisAction("z", 0, (a,), exponent, True, "in", gates=(b,) if draw(st.integers(0, 3)) else ()))
            perms["b"] = Like("a")
    groups: list[Group] = []
    for name in sorted(set().union(*(action.groups for action in made))):
        n = SIZES[name]
        some: list[Perm] = [Sym(), Sym(), Fixed(), Wreath("o", 2, n // 2), Wreath("p", n, 1)]
        some += [Wreath("o", 2, n // 2, "fixed"), Wreath("q", 2, n // 2, "fixed")]
        some += [Like(group.id) for group in groups if group.n == n and not isinstance(group.perm, Like)]
        perm = perms.get(name) or draw(st.sampled_from(some))
        scale = "nonzero" if signed and name == "a" else draw(st.sampled_from(SCALES))
        groups.append(Group(name, n, perm, scale))
    try:
        return Symmetry(tuple(groups), tuple(draw(st.permutations(made))))
    except SpecError:
        assume(False)
        raise


def channels(segments: Sequence[Segment], table: Symmetry) -> dict[int, tuple[str, int, tuple[int, int]]]:
    """By position: the group, the channel, and which of the positions that it has on the axis this is."""
    starts: dict[str, int] = {}
    found: dict[int, tuple[str, int, tuple[int, int]]] = {}
    for segment in segments:
        n, start = table[segment.group].n, starts.get(segment.group, 0)
        starts[segment.group] = start + segment.count
        for at in range(segment.count * segment.inner):
            listing, channel = divmod(start + at // segment.inner, n)
            found[segment.offset + at] = (segment.group, channel, (listing, at % segment.inner))
    return found


def element_of(table: Symmetry, sources: dict[str, np.ndarray], factors: dict[str, np.ndarray]) -> GroupElement:
    """The element of a table that moves and scales positions so; what the positions leave open is 1."""
    perms = {group.id: np.arange(group.n)[None] for group in table.groups}
    scales = {group.id: np.ones((1, group.n)) for group in table.groups if group.scale != "none"}
    exact: set[str] = set()
    # those that tell the moduli alone first, gains that take other signs last
    for action in sorted(table.actions, key=lambda item: (bool(item.signs), item.exponent in (1, -1))):
        where, signs = channels(action.segments, table), channels(action.signs, table)
        signed = action.exponent in (1, -1) and not action.absolute
        for position, (group, channel, place) in where.items():
            source = where.get(int(sources[action.tensor][position]))
            assert source is not None and (source[0], source[2]) == (group, place), "a channel leaves its group"
            perms[group][0, channel] = source[1]
            if (
                group not in scales
                or not action.exponent
                or action.gates
                or (group in exact and not (signed and not signs))
            ):
                continue
            factor = factors[action.tensor][position]
            if position in signs:
                before, other, _ = signs[position]
                factor *= np.sign(scales[before][0, other])
            scales[group][0, channel] = factor**action.exponent if signed else abs(factor) ** (1 / action.exponent)
        if signed and not action.gates:
            exact |= action.groups
    return GroupElement(perms, scales)


def moves_and_factors(
    element: GroupElement, table: Symmetry, weights: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Where each position's value comes from, and what it was multiplied by."""
    unscaled = GroupElement(element.perms, {name: np.ones_like(scale) for name, scale in element.scales.items()})
    places = {name: np.arange(POSITIONS, dtype=float)[None] for name in weights}
    sources = {name: value[0].round().astype(int) for name, value in apply(unscaled, places, table).items()}
    eps = {action.tensor: action.eps for action in table.actions}
    moved = apply(element, weights, table)
    factors = {
        name: (moved[name][0] + eps.get(name, 0.0)) / (value[0][sources[name]] + eps.get(name, 0.0))
        for name, value in weights.items()
    }
    return sources, factors


@settings(
    max_examples=examples(2000, 15),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(st.lists(tables(), min_size=2, max_size=3), st.integers(0, 99))
def test_every_element_is_one_of_every_table(several: list[Symmetry], seed: int) -> None:
    try:
        table = common(several)
    except SymmetryError:
        assume(False)
        raise
    assert common([table, *several]) == table
    rng = np.random.default_rng(seed)
    weights = {name: rng.uniform(1.0, 2.0, (1, POSITIONS)) for name in (*TENSORS, "x", "y", "z")}
    element = GroupElement.random(table, 1, rng, spread=0.1)
    element.check(table)
    moved = apply(element, weights, table)
    sources, factors = moves_and_factors(element, table, weights)
    for other in several:
        own = element_of(other, sources, factors)
        own.check(other)
        again = apply(own, weights, other)
        for name, value in moved.items():
            np.testing.assert_allclose(again[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
