"""Standard normal numbers of members: where they come from, what they depend on, and their distribution."""

import math

import numpy as np
import torch

from builders import rng

KEYS = rng.member_keys("sha256:" + 64 * "0", range(20))
PURPOSE = 77


def test_they_are_box_and_muller_of_philox_words() -> None:
    made = rng.normals(KEYS[3:4], 5, 11, PURPOSE)[0]
    for place, value in enumerate(made):
        block, pair, turn = place // 4, place // 2 % 2, (math.cos, math.sin)[place % 2]
        words = rng.philox((block, 5, PURPOSE, 0), KEYS[3:4])
        u, v = ((int(word[0]) + 0.5) / 2**32 for word in words[2 * pair : 2 * pair + 2])
        assert math.isclose(value, math.sqrt(-2 * math.log(u)) * turn(2 * math.pi * v), rel_tol=1e-12)


def test_a_row_depends_on_key_draw_and_purpose_alone() -> None:
    together = rng.normals(KEYS, 2, 101, PURPOSE)
    assert together.shape == (20, 101) and together.dtype == np.float64
    for member in (0, 7, 19):
        assert np.array_equal(rng.normals(KEYS[member : member + 1], 2, 101, PURPOSE)[0], together[member])
    assert np.array_equal(rng.normals(KEYS[4:9], 2, 34, PURPOSE), together[4:9, :34])
    several = rng.normals(KEYS, range(1, 4), 101, PURPOSE)
    assert np.array_equal(several[:, 1], together) and np.array_equal(several[:, 2], rng.normals(KEYS, 3, 101, PURPOSE))
    of_torch = rng.normals(torch.from_numpy(KEYS.view(np.int64)), 2, 101, PURPOSE)
    assert of_torch.dtype == torch.float64 and np.allclose(of_torch.numpy(), together, rtol=1e-12)
    for other in (rng.normals(KEYS, 3, 101, PURPOSE), rng.normals(KEYS, 2, 101, PURPOSE + 1)):
        assert not np.isin(other, together).any()


def test_they_are_standard_normal_and_independent() -> None:
    made = np.stack([rng.normals(KEYS, draw, 1000, PURPOSE) for draw in range(5)])
    sorted_values = np.sort(made.ravel())
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in sorted_values])
    gap = np.abs(below - (np.arange(made.size) + 0.5) / made.size).max()
    assert gap < 1.95 / math.sqrt(made.size), "Kolmogorov and Smirnov, at a level of 0.001"
    # neighbours share a Philox block, members a draw, and draws a member
    for left, right in ((made[..., 1:], made[..., :-1]), (made[:, 1:], made[:, :-1]), (made[1:], made[:-1])):
        products = left * right
        assert abs(products.mean()) < 5 / math.sqrt(products.size)
        squares = (left**2 - 1) * (right**2 - 1) / 2
        assert abs(squares.mean()) < 5 / math.sqrt(squares.size)
