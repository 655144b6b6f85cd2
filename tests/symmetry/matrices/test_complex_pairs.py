"""Complex factors: one form for all, products and rotations kept, sums that vanish, zero sides."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.kinds.complex import balance_complex
from ckptzoo.symmetry.kinds.matrix import Basis
from tests.support.effort import examples
from tests.symmetry.matrices.disguises import orthogonal

DOUBLE, SINGLE = (float(np.finfo(dtype).eps) for dtype in (np.float64, np.float32))
seeds = st.integers(0, 2**32 - 1)
laws = settings(max_examples=examples(150), deadline=None)


def complex_normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def factors(a: np.ndarray, b: np.ndarray, precision: float = DOUBLE) -> Basis:
    """The basis as complex numbers."""
    found = balance_complex(a, b, precision)
    left, right = (side[..., 0] + 1j * side[..., 1] for side in (found.left, found.right))
    return replace(found, left=left, right=right)


def balanced(a: np.ndarray, b: np.ndarray, precision: float = DOUBLE) -> tuple[np.ndarray, np.ndarray, Basis]:
    found = factors(a, b, precision)
    return found.left[..., None] * a, found.right[..., None] * b, found


def disguised(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    c = (10 ** rng.uniform(-3, 3, a.shape[:-1]) * np.exp(2j * np.pi * rng.uniform(size=a.shape[:-1])))[..., None]
    return c * a, b / c.conj()


def assert_equal_up_to_signs(
    one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], bound: float
) -> None:
    both, both2 = np.concatenate(one, axis=-1), np.concatenate(other, axis=-1)
    sign = np.where((both * both2.conj()).sum(axis=-1, keepdims=True).real < 0, -1, 1)
    assert (np.linalg.norm(both - sign * both2, axis=-1) <= bound * np.linalg.norm(both, axis=-1)).all()


def as_stored(a: np.ndarray) -> np.ndarray:
    return a.astype(np.complex64).astype(np.complex128)


@laws
@given(seeds, st.integers(1, 20), st.integers(1, 20))
def test_all_disguises_have_one_form(seed: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = complex_normal(rng, 4, m), 100 * complex_normal(rng, 4, n)
    one, two, found = balanced(a, b)
    assert not found.degenerate.any() and not found.unresolved.any()
    np.testing.assert_allclose(np.linalg.norm(one, axis=-1), np.linalg.norm(two, axis=-1), rtol=1e-13)
    products, kept = a[..., :, None] * b[..., None, :].conj(), one[..., :, None] * two[..., None, :].conj()
    np.testing.assert_allclose(kept, products, rtol=1e-12)
    squares = (one**2).sum(axis=-1)
    np.testing.assert_allclose(squares.imag, 0, atol=1e-13 * (np.abs(one) ** 2).sum(axis=-1).max())
    assert (squares.real > 0).all()
    np.testing.assert_allclose(found.margin, squares.real / (np.abs(one) ** 2).sum(axis=-1), rtol=1e-11)
    worst = found.margin.min()
    for _ in range(2):
        again = disguised(rng, a, b)
        assert_equal_up_to_signs((one, two), balanced(*again)[:2], 1e-14 / worst + 1e-14)
        stored = tuple(map(as_stored, again))
        assert_equal_up_to_signs((one, two), balanced(stored[0], stored[1], SINGLE)[:2], 1e-6 / worst)
    assert_equal_up_to_signs((one, two), balanced(one, two)[:2], 1e-14 / worst)


@laws
@given(seeds)
def test_orthogonal_columns_do_not_matter(seed: int) -> None:
    """The factors are those of before where the stream takes another basis, so that the two commute."""
    rng = np.random.default_rng(seed)
    a, b, Q = complex_normal(rng, 3, 6), complex_normal(rng, 3, 6), orthogonal(rng, 6)
    here, there = factors(a, b), factors(a @ Q, b @ Q)
    signs = np.sign((here.left * there.left.conj()).real)
    np.testing.assert_allclose(signs * there.left, here.left, rtol=1e-13 / here.margin.min())
    np.testing.assert_allclose(signs * there.right, here.right, rtol=1e-13 / here.margin.min())


def test_rotations_by_position_are_kept() -> None:
    """Logits under rotary embedding of two positions, written with real numbers, before and after."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 2, 5))  # rows are the two channels of the pair
    x, y = rng.standard_normal((2, 5))

    def turned(angle: float) -> np.ndarray:
        return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    found = factors(query[0] + 1j * query[1], key[0] + 1j * key[1])

    def real(c: complex) -> np.ndarray:
        return np.array([[c.real, -c.imag], [c.imag, c.real]])

    left, right = real(complex(found.left)), real(complex(found.right))
    for s, t in ((0.0, 0.0), (0.3, 2.1), (5.0, 1.0)):
        before = (turned(s) @ query @ x) @ (turned(t) @ key @ y)
        after = (turned(s) @ left @ query @ x) @ (turned(t) @ right @ key @ y)
        np.testing.assert_allclose(after, before, rtol=1e-12)


@pytest.mark.parametrize("precision", [DOUBLE, SINGLE])
def test_sums_that_vanish_give_way_to_the_next(precision: float) -> None:
    rng = np.random.default_rng(1)
    vanishing, generic = np.array([1.0, 1j, 2.0, 2j]), complex_normal(rng, 4)
    # so do the sums of these squares and of those weighted by 1, 2, 3, 4
    both_vanish = np.array([1.0, np.sqrt(2) * 1j, 1.0, 0])  # 1 - 2 + 1 and 1 - 4 + 3
    cases = [(vanishing, generic, "b"), (vanishing, vanishing, "weighted a"), (both_vanish, vanishing, "weighted b")]
    for a, b, settles in cases:
        forms = []
        for _ in range(2):
            one, two, found = balanced(*disguised(rng, a, b), precision)
            assert not found.unresolved and not found.degenerate and found.margin > 1e-2
            forms.append((one, two))
            weights = np.arange(1, 5) if settles.startswith("weighted") else 1
            total = (weights * (two if settles.endswith("b") else one) ** 2).sum()
            assert abs(total.imag) < 1e-12 * total.real
        assert_equal_up_to_signs(forms[0], forms[1], 1e-12)
    one, two, found = balanced(both_vanish, both_vanish, precision)
    assert found.unresolved and found.margin == 0
    np.testing.assert_allclose(one[:, None] * two.conj(), both_vanish[:, None] * both_vanish.conj(), atol=1e-14)


def test_zero_sides_and_stacks() -> None:
    rng = np.random.default_rng(2)
    a, b = complex_normal(rng, 2, 3, 5), complex_normal(rng, 2, 3, 7)
    a[0, 0], b[1, 1], a[1, 2], b[1, 2] = 0, 0, 0, 0
    one, two, found = balanced(a, b)
    expected = np.zeros((2, 3), bool)
    expected[[0, 1, 1], [0, 1, 2]] = True
    np.testing.assert_array_equal(found.degenerate, expected)
    assert not one[expected].any() and not two[expected].any() and not found.unresolved.any()
    for place in np.ndindex(2, 3):
        single = factors(a[place], b[place])
        for name, value in vars(single).items():
            np.testing.assert_array_equal(getattr(found, name)[place], value, err_msg=name)


def test_refusals() -> None:
    a = np.ones((2, 3), complex)
    for wrong in (np.ones(3, complex), np.ones((3, 3), complex), np.ones((2, 0), complex), np.array(1j)):
        with pytest.raises(SymmetryError, match="shapes of a and b"):
            balance_complex(a, wrong, DOUBLE)
    for value in (np.nan, np.inf, 1j * np.nan, -1j * np.inf, 1e200):
        with pytest.raises(SymmetryError, match="norm of b: expected finite"):
            balance_complex(a, np.full((2, 3), value, complex), DOUBLE)
