"""Balanced pairs: one form for all disguises, the product kept, equal and vanishing singular values, the least mass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry.kinds.linear import Balance, balance, resolve_equal
from tests.support.effort import examples
from tests.symmetry.matrices.disguises import distance, invertible, orthogonal, with_signs_of, with_spectrum

DOUBLE, SINGLE = (float(np.finfo(dtype).eps) for dtype in (np.float64, np.float32))
seeds = st.integers(0, 2**32 - 1)
laws = settings(max_examples=examples(150), deadline=None)
Pair = tuple[np.ndarray, np.ndarray]


def balanced(A: np.ndarray, B: np.ndarray, precision: float = DOUBLE) -> tuple[np.ndarray, np.ndarray, Balance]:
    found = balance(A, B, precision)
    return found.left @ A, found.right @ B, found


def least_mass(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Twice the nuclear norm of ``A^T B``."""
    return 2 * balance(A, B, DOUBLE).values.sum(axis=-1)


def disguised(rng: np.random.Generator, pair: Pair, condition: float) -> Pair:
    H = invertible(rng, len(pair[0]), condition)
    return H @ pair[0], np.linalg.inv(H).T @ pair[1]


def transposed(A: np.ndarray) -> np.ndarray:
    return np.swapaxes(A, -1, -2)


def differences(pair: Pair, other: Pair, precision: float = DOUBLE) -> float:
    """How far the balanced forms of two disguises are apart; one sign a row is that of both factors."""
    A, B, _ = balanced(*pair, precision)
    A2, B2, _ = balanced(*other, precision)
    both, both2 = (np.concatenate(sides, axis=-1) for sides in ((A, B), (A2, B2)))
    return distance(with_signs_of(both2, both), both)


@laws
@given(seeds, st.integers(1, 9), st.integers(1, 20), st.integers(1, 20))
def test_balanced_factors_have_one_diagonal_gram_matrix_and_the_same_product(seed: int, k: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((k, m)), 100 * rng.standard_normal((k, n))
    one, two, found = balanced(A, B)
    scale = found.values[0]
    np.testing.assert_allclose(found.values[: min(k, m, n)], np.linalg.svd(A.T @ B)[1][:k], rtol=0, atol=1e-13 * scale)
    np.testing.assert_allclose(one.T @ two, A.T @ B, rtol=0, atol=1e-12 * scale)
    kept = np.where(np.arange(k) < found.rank, found.values, 0)
    for side in (one, two):
        np.testing.assert_allclose(side @ side.T, np.diag(kept), rtol=0, atol=1e-11 * scale)
    if found.rank == k:
        smallest = found.values[-1] / scale
        np.testing.assert_allclose(found.left.T @ found.right, np.eye(k), rtol=0, atol=1e-12 / smallest)
    assert found.rank == min(k, m, n) and not found.unresolved
    np.testing.assert_allclose(least_mass(A, B), (one**2).sum() + (two**2).sum(), rtol=1e-11)


def test_it_is_the_truncated_singular_value_decomposition() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((3, 7, 30)), rng.standard_normal((3, 7, 40))
    one, two, found = balanced(A, B)
    U, values, V = np.linalg.svd(transposed(A) @ B)
    np.testing.assert_allclose(found.values, values[:, :7], rtol=1e-13)
    root = np.sqrt(values[:, :7, None])
    for side, expected in ((one, root * transposed(U)[:, :7]), (two, root * V[:, :7])):
        assert distance(with_signs_of(side, expected), expected) < 1e-12
    gaps = -np.diff(values[:, :7]) / values[:, :1]
    np.testing.assert_allclose(found.margin, gaps.min(axis=1), rtol=1e-11)
    assert (found.rank == 7).all() and not found.degenerate.any()


@pytest.mark.parametrize(("condition", "bound"), [(10, 1e-12), (1e3, 1e-10)])
@laws
@given(seed=seeds)
def test_disguises_have_one_balanced_form(seed: int, condition: float, bound: float) -> None:
    """With a condition of 1e3 the disguised weights themselves carry 1e3 times the rounding."""
    rng = np.random.default_rng(seed)
    pair = with_spectrum(rng, list(np.cumprod(rng.uniform(0.5, 0.9, 6))), 12, 9)
    assert differences(disguised(rng, pair, condition), disguised(rng, pair, condition)) < bound


def test_a_head_of_a_transformer() -> None:
    """k 64, d 768, flat and decaying spectra, conditions 10 and 1000, stored in double and single precision."""
    rng = np.random.default_rng(1)
    for decay in (1, 100):
        A, B = rng.standard_normal((64, 768)) / np.geomspace(1, decay, 64)[:, None], rng.standard_normal((64, 768))
        for condition, bound in ((10, 1e-12), (1e3, 2e-11)):
            assert differences(disguised(rng, (A, B), condition), disguised(rng, (A, B), condition)) < bound
        one, two = (
            tuple(side.astype(np.float32).astype(np.float64) for side in disguised(rng, (A, B), 10)) for _ in range(2)
        )
        gap = balance(A, B, SINGLE).margin
        assert differences((one[0], one[1]), (two[0], two[1]), SINGLE) < max(1e-5, 2 * SINGLE / gap)


@laws
@given(seeds, st.integers(1, 6))
def test_stored_in_single_precision(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    pair = with_spectrum(rng, list(1 - 0.15 * np.arange(k)), 10, 10)
    one, two = (
        tuple(side.astype(np.float32).astype(np.float64) for side in disguised(rng, pair, 10)) for _ in range(2)
    )
    assert differences((one[0], one[1]), (two[0], two[1]), SINGLE) < 1e-5


@laws
@given(seeds, st.integers(1, 8), st.integers(1, 12))
def test_a_second_application_changes_nothing(seed: int, k: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    values = list(1 - 0.1 * np.arange(min(k, m)))
    small = with_spectrum(rng, values, m, 12)
    pad = np.zeros((k - len(values), 1))
    A, B = (np.vstack([side, pad + np.zeros(side.shape[1])]) for side in small)
    one, two, _ = balanced(*disguised(rng, (A, B), 10))
    again, other, _ = balanced(one, two)
    assert distance(with_signs_of(again, one), one) < 1e-12 and distance(with_signs_of(other, two), two) < 1e-12


@pytest.mark.parametrize(
    "values", [[2, 2], [3, 1, 1, 1], [1, 1, 1e-3, 1e-3, 1e-3], [1] * 6, [5, 2, 2, 1, 0, 0]], ids=str
)
@pytest.mark.parametrize("widths", [(9, 9), (30, 12)], ids=str)
def test_equal_singular_values_resolve(values: list[float], widths: tuple[int, int]) -> None:
    rng = np.random.default_rng(len(values))
    pair = with_spectrum(rng, values, *widths)
    # at a condition of 10 the rounding of the weights themselves moves two values by up to 136 units, and 64 are equal
    one, two = disguised(rng, pair, 2), disguised(rng, pair, 2)
    assert differences(one, two) < 1e-11
    A, B, found = balanced(*one)
    assert not found.unresolved and found.margin < 64 * DOUBLE
    np.testing.assert_allclose(A.T @ B, pair[0].T @ pair[1], atol=1e-13 * values[0])
    np.testing.assert_allclose(A @ A.T, np.diag(values), atol=1e-12 * values[0])


def test_without_resolving_equal_values_the_forms_differ() -> None:
    """The planted values are a real test: rows of the decomposition alone are far apart."""
    rng = np.random.default_rng(5)
    pair = with_spectrum(rng, [3, 1, 1, 1], 20, 20)
    plain = []
    for A, B in (disguised(rng, pair, 10), disguised(rng, pair, 10)):
        U, values, V = np.linalg.svd(A.T @ B)
        plain.append(np.sqrt(values[:4, None]) * np.concatenate([U.T[:4], V[:4]], axis=1))
    assert distance(with_signs_of(plain[1], plain[0]), plain[0]) > 0.1


def test_equal_values_that_storage_splits() -> None:
    rng = np.random.default_rng(6)
    pair = with_spectrum(rng, [3, 1, 1, 0.5], 20, 20)
    one, two = (tuple(side.astype(np.float32).astype(np.float64) for side in disguised(rng, pair, 3)) for _ in range(2))
    assert differences((one[0], one[1]), (two[0], two[1]), SINGLE) < 1e-5
    assert differences((one[0], one[1]), (two[0], two[1]), DOUBLE) > 1e-2  # not equal to the precision of doubles


def test_a_space_that_one_side_leaves_open_is_resolved_by_the_other() -> None:
    """Rows of A and of B on two columns each: ``diag(1, ..., m)`` has equal entries in it where columns are mixed so."""
    root = np.sqrt(0.5)
    # columns 1 and 4, 2 and 3 of A in equal parts: both rows have the mean 2.5 of the column numbers
    A = np.array([[root, 0, 0, root], [0, root, root, 0]])
    B = np.array([[1.0, 0, 0], [0, 0, 1.0]])
    rng = np.random.default_rng(7)
    one, two = disguised(rng, (A, B), 10), disguised(rng, (A, B), 10)
    assert differences(one, two) < 1e-12 and not balance(*one, DOUBLE).unresolved
    # B in the same way: nothing is left that tells the rows apart
    found = balance(A, A, DOUBLE)
    assert found.unresolved and found.rank == 2
    np.testing.assert_allclose((found.left @ A).T @ (found.right @ A), A.T @ A, atol=1e-15)


def test_equal_values_follow_the_columns() -> None:
    """Once columns have another basis, ``resolve_equal`` gives what balancing anew would give."""
    rng = np.random.default_rng(8)
    stack = [with_spectrum(rng, values, 12, 12) for values in ([3, 2, 2, 1], [4, 3, 2, 1], [1, 1, 1, 0])]
    A, B = (np.stack(sides) for sides in zip(*stack, strict=True))
    one, two, found = balanced(A, B)
    Q = orthogonal(rng, 12)
    turn, unresolved = resolve_equal(one @ Q, two @ Q, found.values, DOUBLE)
    anew, other, _ = balanced(A @ Q, B @ Q)
    assert not unresolved.any()
    np.testing.assert_array_equal(turn[1], np.eye(4))
    for index in range(3):
        rows = slice(0, int(found.rank[index]))
        for mine, expected in ((turn @ one @ Q, anew), (turn @ two @ Q, other)):
            signed = with_signs_of(mine[index, rows], expected[index, rows])
            np.testing.assert_allclose(signed, expected[index, rows], atol=1e-12)


@laws
@given(seeds, st.integers(0, 4))
def test_a_rank_below_k_gives_zero_rows_and_keeps_the_product(seed: int, rank: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((5, rank)) @ rng.standard_normal((rank, 11)), rng.standard_normal((5, 8))
    one, two, found = balanced(A, B)
    assert found.rank == rank and found.degenerate == 5 - rank
    assert (one[rank:] == 0).all() and (two[rank:] == 0).all()
    np.testing.assert_allclose(one.T @ two, A.T @ B, rtol=0, atol=1e-12 * max(found.values[0], 1))
    np.testing.assert_allclose(one @ one.T, two @ two.T, atol=1e-11 * max(found.values[0], 1))
    swapped, other, _ = balanced(B, A)
    np.testing.assert_allclose(swapped.T @ other, B.T @ A, atol=1e-12 * max(found.values[0], 1))


def test_what_is_small_is_counted_and_what_storage_cannot_tell_from_zero_is_dropped() -> None:
    A, B = with_spectrum(np.random.default_rng(16), [1, 0.5, 1e-5, 1e-8], 9, 9)
    one, two, single = balanced(A, B, SINGLE)
    assert single.rank == 3 and single.degenerate == 2 and not one[3:].any() and not two[3:].any()
    np.testing.assert_allclose(one.T @ two, A.T @ B, atol=1.1e-8)
    assert balance(A, B, 2**-8).rank == 3  # bfloat16: no row of a larger value is dropped
    one, two, double = balanced(A, B)
    assert double.rank == 4 and double.degenerate == 0
    np.testing.assert_allclose(one.T @ two, A.T @ B, atol=1e-14)
    np.testing.assert_allclose(double.margin, 1e-5, rtol=1e-2)


def test_one_head_as_wide_as_the_stream_behind_a_layer_norm() -> None:
    """Centred rows: k = d, rank d - 1. A bias beside A keeps its products with B, and both disguises are one form."""
    rng = np.random.default_rng(9)
    d = 12
    A, B = (side - side.mean(axis=1, keepdims=True) for side in rng.standard_normal((2, d, d)))
    bias = rng.standard_normal(d)
    one, two, found = balanced(A, B)
    assert found.rank == d - 1 and found.degenerate == 1 and (one[-1] == 0).all() and (two[-1] == 0).all()
    np.testing.assert_allclose(one.T @ two, A.T @ B, atol=1e-12)
    np.testing.assert_allclose((found.left @ bias) @ two, bias @ B, atol=1e-11)
    assert differences(disguised(rng, (A, B), 10), disguised(rng, (A, B), 10)) < 1e-11


def test_zero_and_narrow_weights() -> None:
    rng = np.random.default_rng(10)
    A = rng.standard_normal((3, 4))
    for pair in ((A, np.zeros((3, 5))), (np.zeros((3, 5)), A), (np.zeros((3, 1)), np.zeros((3, 1)))):
        one, two, found = balanced(*pair)
        assert not one.any() and not two.any() and not found.values.any()
        assert (found.rank, found.degenerate, found.margin, found.unresolved) == (0, 3, 1, False)
    one, two, found = balanced(np.array([[3.0, 4.0]]), np.array([[0.0, 0.2]]))
    np.testing.assert_allclose(found.values, [1])
    np.testing.assert_allclose(np.abs(one), [[0.6, 0.8]]) and np.testing.assert_allclose(np.abs(two), [[0, 1]])
    assert found.margin == 1
    one, two, found = balanced(A[:, :1], A[:, :2])
    assert found.rank == 1 and not one[1:].any()
    np.testing.assert_allclose(one.T @ two, A[:, :1].T @ A[:, :2], atol=1e-14)


def test_a_factor_may_be_large_or_small() -> None:
    rng = np.random.default_rng(11)
    A, B = rng.standard_normal((2, 4, 9))
    one, two, _ = balanced(A, B)
    for size in (2.0**500, 2.0**-500):
        large, small, _ = balanced(size * A, B / size)
        assert distance(with_signs_of(large, one), one) < 1e-12 and distance(with_signs_of(small, two), two) < 1e-12
    graded = np.geomspace(1, 1e-12, 4)[:, None]
    assert differences((graded * A, B / graded), (A, B)) < 1e-12


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 2), (4, 50), (64, 96)], ids=str)
def test_stacks_have_the_bits_of_single_pairs(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(12)
    A, B = rng.standard_normal((2, 3, 4, *shape))
    A[1, 2] = 0
    A[0, 1], B[0, 1] = (
        with_spectrum(rng, [1.0] * min(shape), *shape[1:] * 2) if shape[0] <= shape[1] else (A[0, 0], B[0, 0])
    )
    stacked = balance(A, B, DOUBLE)
    for place in np.ndindex(3, 4):
        single = balance(A[place], B[place], DOUBLE)
        for name, value in vars(single).items():
            np.testing.assert_array_equal(getattr(stacked, name)[place], value, err_msg=name)
    np.testing.assert_array_equal(least_mass(A, B)[2, 3], least_mass(A[2, 3], B[2, 3]))
    assert balance(A[:0], B[:0], DOUBLE).left.shape == (0, 4, shape[0], shape[0])


def test_the_least_mass_is_that_of_a_minimisation_over_matrices() -> None:
    from scipy.optimize import minimize

    rng = np.random.default_rng(13)
    for k in (1, 2, 3):
        A, B = rng.standard_normal((k, 5)), rng.standard_normal((k, 4))

        def mass(flat: np.ndarray, A: np.ndarray = A, B: np.ndarray = B, k: int = k) -> float:
            H = flat.reshape(k, k)
            return float(((H @ A) ** 2).sum() + ((np.linalg.inv(H).T @ B) ** 2).sum())

        best = min(
            minimize(mass, invertible(rng, k, 2).ravel(), method="BFGS", options={"gtol": 1e-9}).fun for _ in range(3)
        )
        np.testing.assert_allclose(least_mass(A, B), best, rtol=1e-9)
        one, two, _ = balanced(A, B)
        np.testing.assert_allclose(mass(np.eye(k).ravel(), one, two), best, rtol=1e-9)


def test_the_least_mass_is_that_of_a_semidefinite_program() -> None:
    import cvxpy

    rng = np.random.default_rng(14)
    A, B = rng.standard_normal((4, 6)), rng.standard_normal((4, 5))
    whole = cvxpy.Variable((11, 11), PSD=True)
    program = cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(whole)), [whole[:6, 6:] == A.T @ B])
    program.solve(solver=cvxpy.CLARABEL)
    np.testing.assert_allclose(least_mass(A, B), program.value, rtol=1e-6)


def test_refusals() -> None:
    A = np.ones((3, 4))
    for wrong in (np.ones((2, 4)), np.ones((2, 3, 4)), np.ones(3), np.ones((3, 0))):
        with pytest.raises(SymmetryError, match="shapes of A and B"):
            balance(A, wrong, DOUBLE)
    for value in (np.nan, np.inf, -np.inf):
        for place in np.ndindex(3, 4):
            wrong = A.copy()
            wrong[place] = value
            for pair in ((wrong, A), (A, wrong), (wrong, np.zeros((3, 2)))):
                with pytest.raises(SymmetryError, match=r"expected finite entries"):
                    balance(*pair, DOUBLE)
    with pytest.raises(SymmetryError, match=r"A\^T B: expected finite entries"):
        balance(1e200 * A, 1e200 * A, DOUBLE)


def test_half_precision_keeps_rows_of_distinct_values_apart() -> None:
    """64 epsilons of half precision are 0.06: singular values of a head are closer, and their rows are in order."""
    rng = np.random.default_rng(15)
    A, B = rng.standard_normal((2, 32, 100))
    one, two, found = balanced(A, B, float(np.finfo(np.float16).eps))
    assert not found.unresolved and found.rank == 32 and found.margin < 0.06
    np.testing.assert_allclose(one @ one.T, np.diag(found.values), atol=1e-12 * found.values[0])
    np.testing.assert_allclose(two @ two.T, np.diag(found.values), atol=1e-12 * found.values[0])
