"""The keyed permutation: a bijection, keyed, uniform, and the same bits wherever it is computed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.loader.permutation import LARGEST, derive_key, keyed_permutation
from tests.support.effort import examples

WORD = 2**32
KEYS = st.integers(0, 2**64 - 1)


def mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % WORD
    x ^= x >> 15
    x = x * 0x846CA68B % WORD
    return x ^ (x >> 16)


def plain(position: int, n: int, key: int) -> int:
    """The docstring's algorithm on Python integers."""
    a = math.ceil(math.sqrt(n))
    a += a % 2
    b = math.ceil(n / a)
    rounds = 24 if n < 256 else 8
    k = [mix(mix((key % WORD + (i + 1) * 0x9E3779B9) % WORD) ^ (key >> 32)) for i in range(rounds)]
    x = position
    while True:
        left, right = divmod(x, b)
        for i in range(0, rounds, 2):
            left = (left + (mix(right ^ k[i]) * a >> 32)) % a
            right = (right + (mix(left ^ k[i + 1]) * b >> 32)) % b
        x = left * b + right
        if x < n:
            return x


@given(n=st.integers(1, 3000), key=KEYS)
def test_it_is_a_bijection(n: int, key: int) -> None:
    order = keyed_permutation(np.arange(n), n, key)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 255, 256, 257, 60_000, 2**16, 2**16 + 1, 1_000_003])
def test_it_is_a_bijection_at_awkward_sizes(n: int) -> None:
    assert np.array_equal(np.sort(keyed_permutation(np.arange(n), n, derive_key(n))), np.arange(n))


@given(n=st.integers(1, 2**40), key=KEYS, data=st.data())
@settings(max_examples=examples(60))
def test_it_is_the_documented_algorithm(n: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    expected = [plain(position, n, key) for position in positions]
    assert keyed_permutation(positions, n, key).tolist() == expected
    assert int(keyed_permutation(positions[0], n, key)) == expected[0]
    signed = int(np.uint64(key).astype(np.int64))
    tensor = keyed_permutation(torch.tensor(positions), n, torch.tensor([signed]))
    assert tensor.tolist() == expected


def test_known_answers() -> None:
    assert derive_key(0) == 7434755675892716031
    assert derive_key(1, 2, 3) == 18001877160497339420
    assert keyed_permutation(np.arange(8), 8, 0).tolist() == [5, 0, 1, 3, 7, 2, 4, 6]
    assert keyed_permutation(np.arange(5), 60_000, 2**64 - 1).tolist() == [5939, 42623, 3175, 42639, 1889]
    assert keyed_permutation([0, 2**39], 2**40, 2**63).tolist() == [530618667455, 937944946402]


def test_keys_broadcast_with_positions() -> None:
    keys = np.array([derive_key(0, member) for member in range(6)])
    together = keyed_permutation(np.arange(100), 1437, keys[:, None])
    assert together.shape == (6, 100)
    for member, key in enumerate(keys):
        assert np.array_equal(together[member], keyed_permutation(np.arange(100), 1437, key))


def test_different_keys_give_different_orders() -> None:
    keys = np.array([derive_key(seed, epoch) for seed in range(8) for epoch in range(8)])
    orders = keyed_permutation(np.arange(1000), 1000, keys[:, None])
    same = (orders[:, None] == orders[None]).sum(-1)[~np.eye(len(keys), dtype=bool)]
    assert same.max() < 15, "independent orders agree at one place on average"


def chi_square(counts: np.ndarray) -> float:
    """Standard deviations by which counts that should be equal miss that."""
    expected = counts.mean()
    return float((((counts - expected) ** 2).sum() / expected - counts.size) / math.sqrt(2 * counts.size))


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8])
def test_every_order_of_a_few_items_is_as_likely(n: int) -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, size=60_000, dtype=np.uint64)
    orders = keyed_permutation(np.arange(n), n, keys[:, None])
    rank = np.zeros(len(keys), dtype=np.int64)
    for i in range(n):
        rank = rank * (n - i) + (orders[:, i : i + 1] > orders[:, i + 1 :]).sum(1)
    # 5 standard deviations: chance of a sound permutation to fail is below 1e-4 with these fixed keys.
    assert abs(chi_square(np.bincount(rank, minlength=math.factorial(n)))) < 5
    places = np.stack([np.bincount(orders[:, i], minlength=n) for i in range(n)])
    assert abs(chi_square(places)) < 5


def test_pairs_of_positions_are_uniform_at_the_size_of_mnist() -> None:
    n = 60_000
    keys = np.random.default_rng(1).integers(0, 2**64, size=20_000, dtype=np.uint64)
    places = keyed_permutation(np.array([0, 1, n // 2, n - 1]), n, keys[:, None]) * 16 // n
    for i, j in ((0, 1), (0, 2), (1, 3), (2, 3)):
        assert abs(chi_square(np.bincount(places[:, i] * 16 + places[:, j], minlength=256))) < 5
    order = keyed_permutation(np.arange(n), n, keys[0])
    neighbours = np.corrcoef(order[:-1], order[1:])[0, 1]
    assert abs(neighbours) < 5 / math.sqrt(n)


def test_derived_keys_depend_on_every_word() -> None:
    lists = [(0,), (0, 0), (0, 0, 0), (1,), (0, 1), (1, 0), (2**32,), (0, 2**32), (2**64 - 1,)]
    assert len({int(derive_key(*words)) for words in lists}) == len(lists)


def test_refusals() -> None:
    assert keyed_permutation(np.arange(0), 0, 1).shape == (0,)
    with pytest.raises(ZooError, match="number of items"):
        keyed_permutation([0], LARGEST + 1, 1)
    for wrong in (-1, 5):
        with pytest.raises(ZooError, match="positions: expected 0 to 4"):
            keyed_permutation([wrong], 5, 1)
    for wrong in (-1, 2**64):
        with pytest.raises(ZooError, match="seed"):
            derive_key(wrong)
