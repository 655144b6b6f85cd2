"""Numbers of transpositions against all permutations, and uniform draws of a given number."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, monomial
from ckptzoo.symmetry.transpositions import (
    most_transpositions,
    random_element,
    random_permutations,
    random_transpositions,
    transpositions,
    transpositions_by_group,
    transpositions_in_total,
)
from tests.support.effort import examples
from tests.support.matrix_tables import decoder, low_rank, packed
from tests.symmetry.matrices.every_kind import grouped_queries, table


def test_all_permutations_of_4() -> None:
    found = transpositions(np.array(list(itertools.permutations(range(4)))))
    assert Counter(found.tolist()) == {0: 1, 1: 6, 2: 11, 3: 6}


def test_known_answers() -> None:
    np.testing.assert_array_equal(
        transpositions([[0, 1, 2, 3], [1, 0, 2, 3], [1, 0, 3, 2], [1, 2, 3, 0]]), [0, 1, 2, 3]
    )
    assert transpositions([0]) == 0 and transpositions(np.roll(np.arange(64), 1)) == 63


def walked(perm: np.ndarray) -> int:
    """The number of cycles, by walking along them."""
    seen: set[int] = set()
    cycles = 0
    for start in range(len(perm)):
        cycles += start not in seen
        while start not in seen:
            seen.add(start)
            start = int(perm[start])
    return cycles


@given(seed=st.integers(0, 2**32), n=st.integers(1, 70))
@settings(max_examples=examples(60), deadline=None)
def test_transpositions_are_what_the_cycles_leave(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    perms = rng.permuted(np.tile(np.arange(n), (2, 3, 1)), axis=2)
    found = transpositions(perms)
    assert found.shape == (2, 3)
    for at in np.ndindex(2, 3):
        assert found[at] == n - walked(perms[at])
    np.testing.assert_array_equal(transpositions(np.argsort(perms, axis=2)), found)
    other = rng.permutation(n)
    np.testing.assert_array_equal(transpositions(np.argsort(other)[perms[..., other]]), found)


def test_random_transpositions_are_the_mean_over_all_permutations() -> None:
    for n in (1, 2, 3, 5, 7):
        every = np.array(list(itertools.permutations(range(n))))
        assert transpositions(every).mean() == pytest.approx(random_transpositions(n), abs=1e-12)
    assert random_transpositions(2) == 0.5 and random_transpositions(3) == pytest.approx(7 / 6)


@pytest.mark.parametrize("perm", [[0, 0, 1], [1, 2, 3], [0.0, 1.0], [[0, 1], [1, 1]], [], 3])
def test_what_is_no_permutation_is_refused(perm: Any) -> None:
    with pytest.raises(SymmetryError, match="transpositions: rows: expected"):
        transpositions(perm)


def test_products_of_transpositions() -> None:
    """One more exchange changes the number by one; as many as they are make up the permutation, no fewer."""
    rng = np.random.default_rng(0)
    for n in (2, 7, 64, 129):
        perm = np.arange(n)
        before = 0
        for _ in range(2 * n):
            one, other = rng.choice(n, 2, replace=False)
            perm[[one, other]] = perm[[other, one]]
            now = int(transpositions(perm))
            assert abs(now - before) == 1 and now < n
            before = now
    assert transpositions(np.zeros((3, 1), int)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("n", "count"), [(4, 0), (4, 1), (4, 2), (4, 3), (5, 2), (5, 3), (1, 0)])
def test_draws_are_uniform(n: int, count: int) -> None:
    draws = 40_000
    found = random_permutations(n, count, draws, np.random.default_rng(1))
    expected = [perm for perm in itertools.permutations(range(n)) if transpositions(np.array(perm)) == count]
    counts = Counter(map(tuple, found.tolist()))
    assert set(counts) == set(expected)
    # chi-squared has len - 1 degrees of freedom, of variance twice that
    squares = sum((counts[perm] - draws / len(expected)) ** 2 for perm in expected) * len(expected) / draws
    assert squares <= len(expected) + 5 * np.sqrt(2 * len(expected))


@pytest.mark.parametrize("count", [0, 1, 12, 300, 511])
def test_wide_layers(count: int) -> None:
    found = random_permutations(512, count, 3, np.random.default_rng(2))
    assert (np.sort(found, axis=1) == np.arange(512)).all() and (transpositions(found) == count).all()
    again = random_permutations(512, count, 3, np.random.default_rng(2))
    np.testing.assert_array_equal(found, again)


def test_between_elements_it_is_zero_for_equal_ones_alone() -> None:
    table, rng = archs.symmetry("mlp-6-20-20-4"), np.random.default_rng(3)
    g, h = (GroupElement.random(table, 5, rng) for _ in range(2))
    assert all((counts == 0).all() for counts in transpositions_by_group(g.inverse().compose(g)).values())
    assert all((counts > 0).all() for counts in transpositions_by_group(h.inverse().compose(g)).values())


@pytest.mark.parametrize("count", [-1, 4, 9])
def test_numbers_that_no_permutation_has(count: int) -> None:
    with pytest.raises(SymmetryError, match=f"transpositions of 4 things: expected 0 to 3, got {count}"):
        random_permutations(4, count, 1, np.random.default_rng(0))


@pytest.mark.parametrize("count", range(6))
@pytest.mark.sampled(4)
def test_elements_are_uniform_over_all_groups_together(count: int) -> None:
    table, draws = archs.symmetry("mlp-2-3-4-1"), examples(8_000, 2_000)
    found = random_element(table, count, draws, np.random.default_rng(count))
    found.check(table)
    assert (transpositions_in_total(found, table) == count).all()
    both = itertools.product(itertools.permutations(range(3)), itertools.permutations(range(4)))
    expected = [pair for pair in both if sum(int(transpositions(np.array(perm))) for perm in pair) == count]
    pairs = zip(map(tuple, found.perms["fc1"].tolist()), map(tuple, found.perms["fc2"].tolist()), strict=True)
    counts = Counter(pairs)
    assert set(counts) == set(expected)
    squares = sum((counts[pair] - draws / len(expected)) ** 2 for pair in expected) * len(expected) / draws
    assert squares <= len(expected) + 5 * np.sqrt(2 * len(expected))


@pytest.mark.parametrize(("name", "most"), [("optunet", 8), ("resnet8-conv-3", 218), ("mlp-tanh-784-128-10", 127)])
def test_elements_of_other_tables_have_the_number_once_for_groups_that_are_alike(name: str, most: int) -> None:
    table = archs.symmetry(name)
    assert most_transpositions(table) == most
    for count in (0, 1, most // 2, most):
        found = random_element(table, count, 2, np.random.default_rng(5))
        found.check(table)
        assert transpositions_in_total(found, table).tolist() == [count, count]
        assert all((np.abs(scale) == 1).all() for scale in found.scales.values())
    with pytest.raises(SymmetryError, match=f"expected 0 to {most} in all groups, got {most + 1}"):
        random_element(table, most + 1, 1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("symmetry", "most"),
    [
        (low_rank()[0], 10),  # two layers of six units
        (packed(d=8, hidden=6)[0], 12),  # a stream that is permuted, and units
        (decoder(hidden=7)[0], 6),
        (table(), 9),
        (grouped_queries(), 2),  # two heads of queries for each of two heads of keys
    ],
    ids=["low rank", "packed", "decoder", "every kind", "grouped queries"],
)
def test_channels_that_matrices_mix_are_not_exchanged(symmetry: Symmetry, most: int) -> None:
    """Their permutations are matrices among those of the group; as elements they would have no action of their own."""
    assert most_transpositions(symmetry) == most
    for count in (0, most // 2, most):
        found = random_element(symmetry, count, 3, np.random.default_rng(count))
        found.check(symmetry)
        assert transpositions_in_total(found, symmetry).tolist() == [count] * 3
    # with the permutations among its matrices, and those alone, it is the table of permutations and scales
    plain = monomial(symmetry)
    assert most_transpositions(plain) > most
    random_element(plain, most_transpositions(plain), 2, np.random.default_rng(0)).check(plain)
