"""The least mass over matrices: closed forms, numerical minimisation, disguises, the bound, lower rank, refusals."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import torch

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, canonicalize, min_mass, monomial
from ckptzoo.symmetry.mass import blocks
from tests.support.matrix_tables import Shapes, Weights, decoder, low_rank, packed, repeated, weights_of

COUPLED = {"packed": packed(d=4, heads=2, k=2, hidden=3), "low rank": low_rank(n=4, rank=2)}


def without_permutations(table: Symmetry, K: int, seed: int, spread: float = 0.5) -> GroupElement:
    """Random scales, invertible matrices and complex numbers."""
    drawn = GroupElement.random(table, K, np.random.default_rng(seed), spread=spread)
    one = GroupElement.identity(table, K)
    kept = {name: drawn.matrices[name] for name in one.matrices if table[name].scale in ("linear", "complex")}
    return GroupElement(one.perms, drawn.scales, {**one.matrices, **kept})


def counted(weights: Weights, table: Symmetry) -> np.ndarray:
    """The sum of squares of what counts in the mass."""
    names = {action.tensor for action in table.actions if action.in_mass}
    parts = [np.square(value.astype(np.float64)) for key, value in weights.items() if key in names]
    return np.sum([part.reshape(len(part), -1).sum(axis=1) for part in parts], axis=0)


def least_by_optimizer(weights: Weights, table: Symmetry) -> float:
    """The least mass of one checkpoint over logarithms of scales and symmetric matrices, by BFGS on torch gradients."""
    groups = [group for group in table.groups if group.resizes or group.scale == "linear"]
    tensors = {key: torch.from_numpy(value[0]) for key, value in weights.items()}
    sizes = [int(np.prod(group.matrix_shape)) if group.matrix_shape else group.n for group in groups]

    def factor(group: Group, logs: torch.Tensor) -> torch.Tensor:
        if group.matrix_shape is None:
            return torch.diag(torch.exp(logs))
        raw = logs.reshape(group.matrix_shape)
        return torch.block_diag(*torch.matrix_exp(raw + raw.transpose(-1, -2)))

    def mass(flat: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.from_numpy(flat).requires_grad_()
        factors = {group.id: factor(group, part) for group, part in zip(groups, torch.split(x, sizes), strict=True)}
        total = torch.zeros((), dtype=torch.float64)
        for name, value in tensors.items():
            actions = table.actions_on(name)
            if not any(action.in_mass for action in actions):
                continue
            for action in actions:
                whole = torch.eye(value.shape[action.axis], dtype=torch.float64)
                for segment in action.segments:
                    if segment.group in factors:
                        run = slice(segment.offset, segment.offset + segment.count)
                        G = factors[segment.group]
                        exponent = segment.exponent or action.exponent
                        whole[run, run] = G if exponent == 1 else torch.linalg.inv(G).T
                value = torch.movedim(torch.tensordot(whole, torch.movedim(value, action.axis, 0), 1), 0, action.axis)
            total = total + (value**2).sum()
        (gradient,) = torch.autograd.grad(total, x)
        return total.detach().item(), gradient.numpy()

    found = scipy.optimize.minimize(mass, np.zeros(sum(sizes)), jac=True, method="BFGS", options={"gtol": 1e-9})
    return float(found.fun)


def test_heads_alone_have_twice_the_nuclear_norm() -> None:
    table, shapes = decoder()
    weights = weights_of(shapes, 3, 1)
    found = min_mass(weights, table)
    expected = counted({key: weights[key] for key in ("embed", "gain", "gate", "up", "down", "head")}, table)
    for row in range(3):
        for head in range(3):
            v, o = weights["v"][row, 4 * head : 4 * head + 4], weights["o"][row, :, 4 * head : 4 * head + 4]
            expected[row] += 2 * np.linalg.norm(o @ v, "nuc")
            q, k = (weights[name][row, 4 * head : 4 * head + 4].reshape(2, 2, -1) for name in "qk")
            expected[row] += 2 * (np.linalg.norm(q, axis=(0, 2)) * np.linalg.norm(k, axis=(0, 2))).sum()
    np.testing.assert_allclose(found.mass_after, expected, rtol=1e-12)
    np.testing.assert_allclose(found.mass_after, counted(found.weights, table), rtol=1e-12)
    np.testing.assert_allclose(found.mass_before, counted(weights, table), rtol=1e-12)
    assert (found.gap < 1e-12).all() and (found.imbalance < 1e-12).all()
    v, o = found.weights["v"][0, :4], found.weights["o"][0, :, :4]
    np.testing.assert_allclose(v @ v.T, o.T @ o, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.sampled(2)
def test_blocks_and_scales_in_one_tensor_are_as_an_optimizer_finds_them(name: str) -> None:
    table, shapes = COUPLED[name]
    weights = weights_of(shapes, 2, 1)
    found = min_mass(weights, table)
    assert (found.gap < 1e-10).all()
    assert (found.mass_after < counted(weights, table)).all()
    for row in range(2):
        least = least_by_optimizer({key: value[row : row + 1] for key, value in weights.items()}, table)
        np.testing.assert_allclose(found.mass_after[row], least, rtol=1e-9)


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.sampled(2)
def test_the_bound_holds_wherever_turns_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, shapes = COUPLED[name]
    weights = weights_of(shapes, 4, 2)
    least = min_mass(weights, table).mass_after
    gaps = []
    for rounds in (1, 2, 4, 8):
        monkeypatch.setattr(blocks, "MAX_ROUNDS", rounds)
        found = min_mass(weights, table)
        assert (found.mass_after * (1 - found.gap) <= least * (1 + 1e-12)).all()
        assert (found.mass_after >= least * (1 - 1e-12)).all()
        gaps.append(found.gap)
    assert (gaps[-1] < gaps[0]).all() and (gaps[-1] < 1).all() and (gaps[0] > 1e-6).all()


@pytest.mark.parametrize("make", [decoder, packed, low_rank])
@pytest.mark.sampled(3)
def test_disguises_have_the_same_least_mass_and_weights(make: Callable[[], tuple[Symmetry, Shapes]]) -> None:
    table, shapes = make()
    weights = weights_of(shapes, 2, 3)
    g = without_permutations(table, 2, 4)
    one, two = (min_mass(some, table) for some in (weights, apply(g, weights, table)))
    np.testing.assert_allclose(one.mass_after, two.mass_after, rtol=1e-12)
    for key in weights:
        np.testing.assert_allclose(one.weights[key], two.weights[key], atol=1e-8)
    identity = GroupElement.identity(table, 2)
    element = GroupElement(identity.perms, one.scales, {**identity.matrices, **one.matrices})
    for key, value in apply(element, weights, table).items():
        np.testing.assert_allclose(value, one.weights[key], atol=1e-9)
    again = min_mass(one.weights, table)
    for key in weights:
        np.testing.assert_allclose(again.weights[key], one.weights[key], atol=1e-9)
    alone = min_mass({key: value[1:] for key, value in weights.items()}, table)
    for key in weights:
        np.testing.assert_array_equal(alone.weights[key][0], one.weights[key][1])


def test_the_gauge_is_the_least_mass() -> None:
    table, shapes = packed()
    weights = weights_of(shapes, 3, 1)
    weights["qkv"][1, 0, 0] = np.nan
    found, made = min_mass(weights, table), canonicalize(weights, table, gauge="min-mass")
    assert made.gauge.version == 3 and "invertible matrices" in made.gauge.collapses
    np.testing.assert_array_equal(made.report.gauged, [True, False, True])
    assert not made.report.unresolved.any() and not made.report.degenerate.any()
    assert np.isnan(found.gap[1])
    for key in weights:
        np.testing.assert_array_equal(made.weights[key], found.weights[key])
        np.testing.assert_array_equal(made.weights[key][1], weights[key][1])
    made.element.check(table)
    single = {key: torch.from_numpy(value.astype(np.float32)) for key, value in weights.items()}
    in_torch = canonicalize(single, table, gauge="min-mass").weights
    assert all(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in in_torch.values())
    np.testing.assert_allclose(in_torch["o"][0].numpy(), made.weights["o"][0], atol=1e-4)


def test_blocks_of_lower_rank_have_their_limit() -> None:
    table, shapes = decoder()
    weights = repeated(weights_of(shapes, 1, 1), 2)
    weights["v"][1, 1] = weights["v"][1, 0] + weights["v"][1, 2]
    weights["v.bias"][:] = 0
    made = canonicalize(weights, table, gauge="min-mass")
    np.testing.assert_array_equal(made.report.degenerate, [0, 1])
    assert np.isnan(made.element.matrices["vo"][1, 0]).all() and np.isfinite(made.element.matrices["vo"][0]).all()
    v, o = made.weights["v"][1, :4], made.weights["o"][1, :, :4]
    np.testing.assert_allclose(o @ v, weights["o"][1, :, :4] @ weights["v"][1, :4], atol=1e-11)
    found = min_mass(weights, table)
    assert (found.gap < 1e-12).all()
    np.testing.assert_allclose(found.mass_after, counted(made.weights, table), rtol=1e-12)


def test_heads_of_queries_that_share_keys_and_values() -> None:
    """One block for the two heads of queries of each head of keys: twice the nuclear norm of all of them."""
    table = Symmetry(
        (
            Group("qk", 8, Wreath("kv", 2, 4), "linear"),
            Group("vo", 8, Wreath("kv", 2, 4), "linear"),
            Group("q", 4, Wreath("kv", 2, 2), "none"),
        ),
        (
            AxisAction("q", 0, (Segment("q", 0, 4, 4, None, "qk"),), 1, True, "out"),
            AxisAction("k", 0, (Segment("qk", 0, 1, 8),), -1, True, "out"),
            AxisAction("v", 0, (Segment("vo", 0, 1, 8),), 1, True, "out"),
            AxisAction("o", 1, (Segment("q", 0, 4, 4, None, "vo"),), -1, True, "in"),
        ),
    )
    weights = weights_of({"q": (16, 5), "k": (8, 5), "v": (8, 5), "o": (5, 16)}, 1, 1)
    found = min_mass(weights, table)
    expected = 0.0
    for head in range(2):
        q, k = weights["q"][0, 8 * head : 8 * head + 8].reshape(2, 4, 5), weights["k"][0, 4 * head : 4 * head + 4]
        v, o = weights["v"][0, 4 * head : 4 * head + 4], weights["o"][0, :, 8 * head : 8 * head + 8]
        expected += 2 * np.linalg.norm(o.reshape(10, 4) @ v, "nuc")
        expected += 2 * np.linalg.norm(np.moveaxis(q, 1, 2).reshape(10, 4) @ k, "nuc")
    np.testing.assert_allclose(found.mass_after, expected, rtol=1e-12)
    assert (found.gap < 1e-12).all()


def test_packed_scales_are_parts_of_their_own() -> None:
    """Queries and keys in one tensor, scaled by s and 1 / s: 2 |q| |k| for each channel, in closed form."""
    rows = (Segment("qk", 1, 1, 3), Segment("qk", 5, 1, 3, exponent=-1))
    table = Symmetry((Group("qk", 3, Sym(), "nonzero"),), (AxisAction("w", 0, rows, 1, True, "out"),))
    weights = {"w": np.random.default_rng(0).standard_normal((2, 9, 4))}
    found = min_mass(weights, table)
    q, k = (np.linalg.norm(weights["w"][:, start : start + 3], axis=2) for start in (1, 5))
    rest = (weights["w"][:, [0, 4, 8]] ** 2).sum(axis=(1, 2))
    np.testing.assert_allclose(found.mass_after, rest + 2 * (q * k).sum(axis=1), rtol=1e-13)
    np.testing.assert_allclose(np.abs(found.scales["qk"]), np.sqrt(k / q), rtol=1e-12)
    assert (found.gap < 1e-12).all() and not found.matrices


@pytest.mark.exhaustive
def test_scales_of_keys_behind_gains_take_turns() -> None:
    """The permutations and scales of a packed attention: the mass of keys has the inverses of two scales."""
    table, shapes = packed(d=4, heads=2, k=2, hidden=3)
    plain = monomial(table)
    weights = weights_of(shapes, 2, 1)
    found, with_matrices = min_mass(weights, plain), min_mass(weights, table)
    assert (found.gap < 1e-10).all() and (found.mass_after > with_matrices.mass_after).all()
    for row in range(2):
        least = least_by_optimizer({key: value[row : row + 1] for key, value in weights.items()}, plain)
        np.testing.assert_allclose(found.mass_after[row], least, rtol=1e-9)
    made = canonicalize(weights, plain, gauge="min-mass")
    for key in weights:
        np.testing.assert_allclose(made.weights[key], found.weights[key], atol=1e-12)
    assert not made.report.unresolved.any()


def test_what_is_refused() -> None:
    recurrent = Symmetry(
        (Group("h", 3, Sym(), "linear"),),
        (
            AxisAction("w", 0, (Segment("h", 0, 1, 3),), 1, True, "out"),
            AxisAction("w", 1, (Segment("h", 0, 1, 3),), -1, True, "in"),
        ),
    )
    with pytest.raises(SymmetryError, match=r"'w': matrices: expected those of a group on one axis.*monomial\(table\)"):
        min_mass(weights_of({"w": (3, 3)}, 1, 1), recurrent)
    normalised = Symmetry(
        (
            Group("bn", 4, Sym(), "positive"),
            Group("after", 4, Like("bn"), "none"),
            Group("vo", 4, Wreath("heads", 2, 2), "linear"),
        ),
        (
            AxisAction("w", 0, (Segment("bn", 0, 1, 4),), 1, True, "out"),
            AxisAction("bn.running_var", 0, (Segment("bn", 0, 1, 4),), 2, False, "variance", eps=1e-5),
            AxisAction("v", 0, (Segment("vo", 0, 1, 4),), 1, True, "out"),
            AxisAction("v", 1, (Segment("after", 0, 1, 4),), -1, True, "in"),
            AxisAction("o", 1, (Segment("vo", 0, 1, 4),), -1, True, "in"),
        ),
    )
    weights = weights_of({"w": (4, 3), "v": (4, 4), "o": (5, 4)}, 2, 1)
    weights["bn.running_var"] = np.ones((2, 4))
    assert (min_mass(weights, normalised).gap < 1e-12).all()
    for formulation in ("volume", "eval_chain"):
        with pytest.raises(SymmetryError, match=f"{formulation}: symmetry table: expected one without matrices"):
            min_mass(weights, normalised, formulation=formulation)
