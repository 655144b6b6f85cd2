"""Several starts: what many more starts find, never worse than one, the same whatever else is aligned."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import GroupElement, align, apply
from ckptzoo.symmetry.alignment import restarts
from tests.support.effort import ALL, examples

Weights = dict[str, np.ndarray]


def random_networks(arch: str, count: int, seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return {item.name: rng.standard_normal((count, *item.shape)) for item in archs.architecture(arch).tensors}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.exhaustive
def test_ten_starts_reach_what_a_hundred_find() -> None:
    """Random networks with two hidden layers of 16 and no relation: the hardest of their size."""
    pairs, arch = 20 if ALL else 3, "mlp-8-16-16-4"
    ours, theirs = random_networks(arch, pairs, 0), random_networks(arch, pairs, 1)
    one, ten, hundred = (align(ours, theirs, arch, starts=starts).distance for starts in (1, 10, 100))
    assert (ten <= one).all() and (one > ten + 0.1).sum() >= pairs // 2
    assert (ten <= hundred + 0.02).sum() >= pairs - 1


@pytest.mark.timeout(1200)
@pytest.mark.exhaustive
@settings(max_examples=examples(20, 5), deadline=None)
@given(seed=st.integers(0, 99), arch=st.sampled_from(["mlp-3-4-4-2", "mlp-2-5-1", "optunet"]))
def test_it_is_never_worse_exact_where_one_start_is_and_does_not_depend_on_others(seed: int, arch: str) -> None:
    ours, theirs = random_networks(arch, 3, seed), random_networks(arch, 1, seed + 100)
    one, many = align(ours, theirs, arch), align(ours, theirs, arch, starts=4)
    assert (many.distance <= one.distance * (1 + 1e-12)).all()
    if arch != "mlp-3-4-4-2":
        np.testing.assert_allclose(many.distance, one.distance, rtol=1e-12)
    alone = align({name: array[1:2] for name, array in ours.items()}, theirs, arch, starts=4)
    for name, perm in many.element.perms.items():
        np.testing.assert_array_equal(perm[1:2], alone.element.perms[name])
    again = align(ours, theirs, arch, starts=4)
    assert all((perm == again.element.perms[name]).all() for name, perm in many.element.perms.items())


def test_copies_come_back_from_any_start() -> None:
    arch = "mlp-3-6-6-2"
    ours = random_networks(arch, 2, 3)
    table = archs.symmetry(arch)
    assert table is not None
    element = GroupElement.random(table, 2, np.random.default_rng(0))
    disguised = apply(
        GroupElement(element.perms, {name: np.ones_like(s) for name, s in element.scales.items()}), ours, table
    )
    assert (align(disguised, ours, arch, starts=3).distance < 1e-12).all()


def test_what_cannot_be_begun_several_times_is_refused() -> None:
    ours = random_networks("mlp-2-5-1", 1, 0)
    for starts, more in ((0, {}), (2, {"scales": "fit"})):
        with pytest.raises(SymmetryError, match="align: starts: expected 1 or more"):
            align(ours, ours, "mlp-2-5-1", starts=starts, **more)
    assert restarts.ROUNDS > 0
