"""Gated units: channels whose scales are products of two, their silent channels, their least mass, and refusals."""

from dataclasses import replace

import numpy as np
import pytest

from ckptzoo.archs.gaussian_spec import declare
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, align, apply, canonicalize, common, count, min_mass

N, WIDTH = 6, 4
Weights = dict[str, np.ndarray]


def unit(name: str, reads: tuple[AxisAction, ...] = (), n: int = N) -> tuple[AxisAction, ...]:
    """The actions of one gated unit but for what reads it."""
    actions: list[AxisAction] = []
    for part in ("gate", "up"):
        segments = (Segment(f"{name}.{part}", 0, 1, n),)
        actions += [
            AxisAction(f"{name}.{part}.weight", 0, segments, 1, True, "out"),
            *(replace(action, tensor=f"{name}.{part}.weight") for action in reads),
            AxisAction(f"{name}.{part}.bias", 0, segments, 1, False, "bias"),
        ]
    return tuple(actions)


def groups(name: str, n: int = N, gate: str = "positive") -> tuple[Group, ...]:
    return Group(f"{name}.gate", n, Sym(), gate), Group(f"{name}.up", n, Like(f"{name}.gate"), "nonzero")


def reading(name: str, tensor: str = "", n: int = N) -> AxisAction:
    segments, gates = ((Segment(f"{name}.{part}", 0, 1, n),) for part in ("up", "gate"))
    return AxisAction(tensor, 1, segments, -1, True, "in", gates=gates)


ONE = Symmetry(groups("a"), (*unit("a"), reading("a", "down.weight")))
TWO = Symmetry(
    (*groups("a"), *groups("b", 5)), (*unit("a"), *unit("b", (reading("a"),), 5), reading("b", "down.weight", 5))
)


def weights(table: Symmetry, K: int, seed: int) -> Weights:
    """Normal weights."""
    rng = np.random.default_rng(seed)
    shapes = {f"a.{part}.weight": (N, WIDTH) for part in ("gate", "up")}
    shapes |= {f"b.{part}.weight": (5, N) for part in ("gate", "up") if table is TWO}
    shapes |= {name.replace("weight", "bias"): shape[:1] for name, shape in shapes.items()}
    shapes |= {"down.weight": (3, 5 if table is TWO else N)}
    return {name: rng.standard_normal((K, *shape)) for name, shape in shapes.items()}


def outputs(held: Weights) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((1, WIDTH, 7))
    for name in ("a", "b"):
        if f"{name}.up.weight" in held:
            gate, up = (
                held[f"{name}.{part}.weight"] @ values + held[f"{name}.{part}.bias"][..., None]
                for part in ("gate", "up")
            )
            values = np.maximum(gate, 0) * up
    return held["down.weight"] @ values


def scales_only(table: Symmetry, K: int, seed: int) -> GroupElement:
    drawn = GroupElement.random(table, K, np.random.default_rng(seed), spread=0.5)
    return GroupElement(GroupElement.identity(table, K).perms, drawn.scales)


@pytest.mark.parametrize("table", [ONE, TWO], ids=["one unit", "two units"])
def test_elements_keep_the_function_and_compose(table: Symmetry) -> None:
    raw = weights(table, 3, 0)
    g, h = (GroupElement.random(table, 3, np.random.default_rng(seed), spread=0.5) for seed in (1, 2))
    moved = apply(g, raw, table)
    np.testing.assert_allclose(outputs(moved), outputs(raw), rtol=1e-9, atol=1e-12)
    for name, array in apply(h, moved, table).items():
        np.testing.assert_allclose(apply(h.compose(g), raw, table)[name], array, rtol=1e-12, err_msg=name)
    for name, array in apply(g.inverse(), moved, table).items():
        np.testing.assert_allclose(array, raw[name], rtol=1e-12, err_msg=name)


def test_both_scales_count() -> None:
    counts = count(TWO)
    assert (counts.scaling_eval, counts.dimensions, counts.signs) == (2 * N + 2 * 5, 2 * N + 2 * 5, N + 5)


@pytest.mark.parametrize("gauge", ["canonical", "unit-norm", "unit-std", "first-weight", "min-mass"])
def test_silent_gates_and_values(gauge: str) -> None:
    """Nothing writes the gate of channel 0, the value of 1, or either of 2 and 3; what reads them settles the scales."""
    raw = weights(ONE, 4, 3)
    for part, channels in (("gate", [0, 2, 3]), ("up", [1, 2, 3])):
        for kind in ("weight", "bias"):
            raw[f"a.{part}.{kind}"][:, channels] = 0
    raw["down.weight"][3, :, 2] = 0
    g = scales_only(ONE, 4, 1)
    one, two = (canonicalize(item, ONE, gauge=gauge) for item in (raw, apply(g, raw, ONE)))
    np.testing.assert_array_equal(one.report.dead, two.report.dead)
    assert (one.report.dead[:3] == 6 if gauge != "min-mass" else one.report.dead > 0).all()
    assert not (one.report.unresolved | two.report.unresolved).any()
    for name, array in one.weights.items():
        np.testing.assert_allclose(array, two.weights[name], rtol=1e-9, atol=1e-9, err_msg=name)
    again = canonicalize(one.weights, ONE, gauge=gauge).weights
    for name, array in one.weights.items():
        np.testing.assert_array_equal(array, again[name], err_msg=name)


def test_a_silent_channel_takes_unit_size_from_what_reads_it() -> None:
    raw = weights(ONE, 1, 4)
    raw["a.gate.weight"][:, 0] = raw["a.gate.bias"][:, 0] = 0
    made = canonicalize(raw, ONE, gauge="unit-norm")
    np.testing.assert_allclose(np.linalg.norm(made.weights["down.weight"][0, :, 0]), 1, rtol=1e-11)
    np.testing.assert_allclose(np.linalg.norm(made.weights["a.up.weight"][0], axis=1), 1, rtol=1e-11)
    for part in ("gate", "up"):
        raw[f"a.{part}.weight"][:, 0] = raw[f"a.{part}.bias"][:, 0] = 0
    made = canonicalize(raw, ONE, gauge="unit-norm")
    np.testing.assert_allclose(np.linalg.norm(made.weights["down.weight"][0, :, 0]), 1, rtol=1e-11)
    assert made.element.scales["a.gate"][0, 0] == 1 != made.element.scales["a.up"][0, 0]


@pytest.mark.parametrize(("gate", "value", "kept"), [("sign", "nonzero", "a.gate"), ("nonzero", "sign", "a.up")])
def test_of_two_silent_channels_the_one_of_fewer_scales_keeps_1(gate: str, value: str, kept: str) -> None:
    table = Symmetry(
        tuple(replace(group, scale=gate if group.id == "a.gate" else value) for group in ONE.groups), ONE.actions
    )
    raw = weights(ONE, 1, 5)
    for part in ("gate", "up"):
        raw[f"a.{part}.weight"][:, 0] = raw[f"a.{part}.bias"][:, 0] = 0
    g = scales_only(table, 1, 0)
    one, two = (canonicalize(item, table) for item in (raw, apply(g, raw, table)))
    for name, array in one.weights.items():
        np.testing.assert_allclose(array, two.weights[name], rtol=1e-9, atol=1e-9, err_msg=name)
    silent = int(np.flatnonzero(np.all(one.weights["a.gate.weight"][0] == 0, axis=1))[0])
    assert one.element.scales[kept][0, silent] == 1
    np.testing.assert_allclose(np.linalg.norm(one.weights["down.weight"][0, :, silent]), 1, rtol=1e-11)


def test_the_least_mass_of_one_unit_is_known() -> None:
    """``p a^2 + q b^2 + r / (a b)^2`` is ``3 (p q r)^(1 / 3)`` at least."""
    raw = weights(ONE, 3, 6)
    found = min_mass(raw, ONE)
    p, q = (np.square(raw[f"a.{part}.weight"]).sum(axis=2) for part in ("gate", "up"))
    r = np.square(raw["down.weight"]).sum(axis=1)
    np.testing.assert_allclose(found.mass_after, 3 * np.cbrt(p * q * r).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.mass_before, (p + q + r).sum(axis=1), rtol=1e-12)
    assert (found.gap < 1e-11).all() and (found.imbalance < 1e-11).all() and (found.iterations < 60).all()
    np.testing.assert_allclose(outputs(found.weights), outputs(raw), rtol=1e-9, atol=1e-12)
    for name, array in apply(GroupElement(GroupElement.identity(ONE, 3).perms, dict(found.scales)), raw, ONE).items():
        np.testing.assert_allclose(found.weights[name], array, rtol=1e-12, err_msg=name)
    again = min_mass(found.weights, ONE)
    assert (again.iterations == 0).all() and (again.gap < 1e-11).all()
    for name, array in found.weights.items():
        np.testing.assert_array_equal(again.weights[name], array)


@pytest.mark.exhaustive
def test_single_precision_at_its_least_mass_is_left_as_it_is() -> None:
    raw = {name: array.astype(np.float32) for name, array in weights(TWO, 3, 7).items()}
    made = min_mass(raw, TWO).weights
    again = min_mass(made, TWO)
    assert (again.iterations == 0).all() and (again.gap < 1e-10).all()
    for name, array in made.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(again.weights[name], array)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(3)
def test_the_least_mass_of_two_units_is_that_of_cvxpy(seed: int) -> None:
    cvxpy = pytest.importorskip("cvxpy")
    raw = weights(TWO, 1, seed)
    found = min_mass(raw, TWO)
    logs = {name: cvxpy.Variable(n) for name, n in (("a.gate", N), ("a.up", N), ("b.gate", 5), ("b.up", 5))}
    zero, first, second = np.zeros(WIDTH), logs["a.gate"] + logs["a.up"], logs["b.gate"] + logs["b.up"]
    terms = []
    for name, rows, columns in (
        *((f"a.{part}.weight", logs[f"a.{part}"], zero) for part in ("gate", "up")),
        *((f"b.{part}.weight", logs[f"b.{part}"], first) for part in ("gate", "up")),
        ("down.weight", np.zeros(3), second),
    ):
        for (row, column), mass in np.ndenumerate(np.log(np.square(raw[name][0]))):
            terms.append(mass + 2 * (rows[row] - columns[column]))
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.log_sum_exp(cvxpy.hstack(terms))))
    problem.solve(solver=cvxpy.CLARABEL)
    np.testing.assert_allclose(found.mass_after, np.exp(problem.value), rtol=1e-6)
    assert found.mass_after[0] * (1 - found.gap[0]) <= np.exp(problem.value) * (1 + 1e-9)
    assert found.gap[0] < 1e-11
    for name, log in logs.items():
        np.testing.assert_allclose(np.abs(found.scales[name][0]), np.exp(log.value), rtol=1e-2, err_msg=name)


def test_gates_without_a_least_mass_are_dropped() -> None:
    raw = weights(ONE, 2, 8)
    raw["a.gate.weight"][:, 0] = 0
    raw["a.up.weight"][:, 1] = 0
    raw["down.weight"][:, :, 2] = 0
    g = scales_only(ONE, 2, 3)
    one, two = (min_mass(item, ONE) for item in (raw, apply(g, raw, ONE)))
    assert one.degenerate.tolist() == two.degenerate.tolist() == [6, 6]
    assert (one.gap < 1e-11).all()
    kept = {name: array[:, 3:] if "down" not in name else array[:, :, 3:] for name, array in raw.items()}
    p, q = (np.square(kept[f"a.{part}.weight"]).sum(axis=2) for part in ("gate", "up"))
    r = np.square(kept["down.weight"]).sum(axis=1)
    np.testing.assert_allclose(one.mass_after, 3 * np.cbrt(p * q * r).sum(axis=1), rtol=1e-12)
    for name, array in one.weights.items():
        np.testing.assert_allclose(np.abs(array), np.abs(two.weights[name]), rtol=1e-9, atol=1e-9, err_msg=name)


def test_alignment_finds_a_permuted_unit_and_refuses_to_fit_scales() -> None:
    raw = weights(TWO, 2, 9)
    g = GroupElement.random(TWO, 2, np.random.default_rng(0), spread=0.5)
    reference = {name: array[0] for name, array in raw.items()}
    found = align(apply(g, raw, TWO), reference, TWO, gauge="canonical")
    assert found.distance[0] < 1e-9 < found.distance[1]
    with pytest.raises(SymmetryError, match=r"scales 'fit': expected no axis with gates.*gauge='min-mass'"):
        align(raw, reference, TWO, scales="fit")


def test_a_gaussian_of_gates_with_signs_is_refused() -> None:
    shapes = {name: array.shape[1:] for name, array in weights(ONE, 1, 0).items()}
    arch = Architecture("unit", tuple(Tensor(name, shape) for name, shape in shapes.items()))
    with pytest.raises(SymmetryError, match=r"'down\.weight': expected channels and gates without signs"):
        declare("gaussian-unit", arch, ONE)
    positive = tuple(replace(group, scale="positive") for group in ONE.groups)
    _, table = declare("gaussian-unit", arch, replace(ONE, groups=positive))
    assert table.actions_on("down.weight_std")[0].gates == ONE.actions[-1].gates


def test_what_tables_with_and_without_gates_have_in_common() -> None:
    plain = Symmetry(
        tuple(replace(group, scale="none") if group.id == "a.gate" else group for group in ONE.groups),
        tuple(replace(action, gates=()) for action in ONE.actions),
    )
    assert common([ONE, plain]) == common([plain, ONE]) == plain
    tanh = replace(ONE, groups=groups("a", gate="sign"))
    shared = common([ONE, tanh])
    assert [group.scale for group in shared.groups] == ["none", "nonzero"] and not shared.actions[-1].gates
    exchanged = replace(ONE, actions=(*ONE.actions[:-1], ONE.actions[-1].of_gates))
    assert [group.scale for group in common([ONE, exchanged]).groups] == ["none"]
