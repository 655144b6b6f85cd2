"""Laws of Gaussians over weights: their symmetries are those of the weights that are drawn from them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.errors import SpecError
from ckptzoo.schema.groups import AxisAction, Segment
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, fingerprint, min_mass
from tests.support.effort import examples

K = 2
BASES = ("mlp-4-5-6-3", "mlp-tanh-4-5-6-3", "optunet", "resnet20-pad-3")
Weights = dict[str, np.ndarray]
bases, seeds = st.sampled_from(BASES), st.integers(0, 2**32 - 1)
few = settings(max_examples=examples(100, 4), deadline=None)


def gaussians(base: str, seed: int) -> Weights:
    """K Gaussians with positive deviations and variances, gains of both signs, in float64."""
    rng = np.random.default_rng(seed)
    made: Weights = {}
    for tensor in archs.architecture(f"gaussian-{base}").tensors:
        if tensor.dtype == "int64":
            made[tensor.name] = np.full((K, *tensor.shape), 7)
            continue
        values = rng.standard_normal((K, *tensor.shape))
        made[tensor.name] = np.exp(values) if tensor.name.endswith(("_std", "running_var")) else values
    return made


def element(table: Symmetry, seed: int, *, spread: float) -> GroupElement:
    """A random element whose scales every running variance can bear."""
    g = GroupElement.random(table, K, np.random.default_rng(seed), spread=spread)
    normalised = {item.group for act in table.actions if act.exponent == 2 for item in act.segments}
    scales = {
        name: np.sign(scale) * np.maximum(np.abs(scale), 1 / np.abs(scale)) if name in normalised else scale
        for name, scale in g.scales.items()
    }
    return GroupElement(g.perms, scales)


def signs_only(g: GroupElement) -> GroupElement:
    return GroupElement(g.perms, {name: np.sign(scale) for name, scale in g.scales.items()})


def means(weights: Weights, base: str) -> Weights:
    return {name: weights[name] for name in archs.architecture(base).names}


def drawn(weights: Weights, noise: Weights, base: str) -> Weights:
    """``mean + std * z`` for every parameter; buffers are as they are."""
    return {
        name: array + weights[f"{name}_std"] * noise[name] if f"{name}_std" in weights else array
        for name, array in means(weights, base).items()
    }


def noise_of(base: str, seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal((K, *t.shape)) for t in archs.architecture(base).tensors}


def moved_noise(g: GroupElement, noise: Weights, base: str) -> Weights:
    """z' of the law: z permuted, with the signs that the weights take; buffers do not enter."""
    without = [action for action in archs.symmetry(base).actions if action.exponent != 2]
    used = {group for action in without for group in action.groups}
    table = Symmetry(tuple(group for group in archs.symmetry(base).groups if group.id in used), tuple(without))
    turned = signs_only(g)
    kept = GroupElement({n: turned.perms[n] for n in used}, {n: s for n, s in turned.scales.items() if n in used})
    return apply(kept, noise, table)


@few
@given(bases, seeds, seeds, seeds, st.sampled_from([0.0, 0.5]))
def test_moving_a_gaussian_moves_its_draws(base: str, a: int, b: int, c: int, spread: float) -> None:
    """``g . (mu + sigma z) = g . mu + |g| . sigma z'``; to 7e-15 of the terms, and to 3e-14 with scales."""
    table = archs.symmetry(f"gaussian-{base}")
    weights, noise, g = gaussians(base, a), noise_of(base, b), element(table, c, spread=spread)
    g = signs_only(g) if spread == 0 else g
    one = apply(g, drawn(weights, noise, base), archs.symmetry(base))
    moved = apply(g, weights, table)
    turned = moved_noise(g, noise, base)
    two = drawn(moved, turned, base)
    for name, array in one.items():
        deviation = np.abs(moved[f"{name}_std"]) if f"{name}_std" in moved else 0
        bound = np.abs(moved[name]) + deviation * np.abs(turned[name]) + np.abs(array)
        assert (np.abs(array - two[name]) <= (7e-15 if spread == 0 else 3e-14) * bound).all(), name


@few
@given(bases, seeds, seeds)
def test_the_mean_moves_as_weights_do_and_a_deviation_keeps_its_sign(base: str, a: int, b: int) -> None:
    table, weights = archs.symmetry(f"gaussian-{base}"), gaussians(base, a)
    g = element(table, b, spread=0.5)
    moved = apply(g, weights, table)
    for name, array in apply(g, means(weights, base), archs.symmetry(base)).items():
        np.testing.assert_array_equal(moved[name], array, name)
    assert all((array > 0).all() for name, array in moved.items() if name.endswith("_std"))
    back = apply(g.inverse(), moved, table)
    for name, array in weights.items():
        np.testing.assert_allclose(back[name], array, rtol=1e-13, atol=1e-9 * name.endswith("var"), err_msg=name)


@few
@given(bases, seeds, seeds)
def test_the_canonical_form_does_not_depend_on_the_disguise(base: str, a: int, b: int) -> None:
    table, weights = archs.symmetry(f"gaussian-{base}"), gaussians(base, a)
    g = element(table, b, spread=0.5)
    one, two = canonicalize(weights, table), canonicalize(apply(g, weights, table), table)
    assert one.report.gauged.all() and not one.report.unresolved.any()
    rows = (one.report.margin > 1e-8) & (one.report.clamped == 0) & (two.report.clamped == 0)
    for name, array in one.weights.items():
        np.testing.assert_allclose(array[rows], two.weights[name][rows], rtol=1e-9, atol=1e-10, err_msg=name)
    assert all((array > 0).all() for name, array in one.weights.items() if name.endswith("_std"))
    again = canonicalize(one.weights, table).weights
    for name, array in one.weights.items():
        np.testing.assert_array_equal(again[name], array, name)


@few
@given(bases, seeds, seeds)
def test_permuted_gaussians_have_one_canonical_form_bit_for_bit(base: str, a: int, b: int) -> None:
    table, weights = archs.symmetry(f"gaussian-{base}"), gaussians(base, a)
    g = GroupElement(element(table, b, spread=0).perms, GroupElement.identity(table, K).scales)
    one, two = canonicalize(weights, table), canonicalize(apply(g, weights, table), table)
    assert fingerprint(one) == fingerprint(two) and None not in fingerprint(one)
    for name, array in one.weights.items():
        np.testing.assert_array_equal(array, two.weights[name], name)


@settings(max_examples=examples(30, 4), deadline=None)
@given(st.sampled_from([base for base in BASES if "tanh" not in base]), seeds, seeds)
def test_the_least_mass_is_certified_and_does_not_depend_on_scales(base: str, a: int, b: int) -> None:
    table, weights = archs.symmetry(f"gaussian-{base}"), gaussians(base, a)
    g = element(table, b, spread=0.5)
    normalised = {item.group for act in table.actions if act.exponent == 2 for item in act.segments}
    g = GroupElement(g.perms, {n: np.sign(s) if n in normalised else s for n, s in g.scales.items()})
    one, two = (min_mass(held, table) for held in (weights, apply(g, weights, table)))
    assert (one.gap <= 1e-10).all() and (one.mass_after <= one.mass_before * (1 + 1e-12)).all()
    np.testing.assert_allclose(one.mass_after, two.mass_after, rtol=1e-9)


def test_tables_without_moduli_are_written_as_before_and_others_come_back() -> None:
    for base in BASES:
        assert not any("absolute" in action for action in archs.symmetry(base).to_json()["actions"])
        table = archs.symmetry(f"gaussian-{base}")
        assert Symmetry.from_json(table.to_json()) == table
        moduli = [action for action in table.actions if action.absolute]
        # ReLU scales are positive, tanh has signs alone: moduli are needed where a BatchNorm reads a filter
        assert bool(moduli) == base.startswith("resnet") and all("conv" in action.tensor for action in moduli)


@pytest.mark.parametrize(
    "change",
    [{"exponent": 0}, {"exponent": 2, "role": "variance"}, {"role": "gain", "signs": (Segment("h", 0, 1, 2),)}],
)
def test_moduli_where_they_make_no_sense_are_refused(change: dict) -> None:
    table = archs.symmetry("gaussian-mlp-2-2-2")
    action = AxisAction("fc1.weight", 0, (Segment("fc1", 0, 1, 2),), 1, True, "out", absolute=True)
    others = tuple(item for item in table.actions if (item.tensor, item.axis) != ("fc1.weight", 0))
    assert Symmetry(table.groups, (action, *others))
    with pytest.raises(SpecError, match="absolute: expected true only with exponent 1 or -1 and without signs"):
        Symmetry(table.groups, (replace(action, **change), *others))
