"""Augmentation by matrices: their distributions, the group's action, streams, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, learning
from ckptzoo.derive import declare
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.learning import Augment
from ckptzoo.learning.augment import element_keys, id_hashes
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import apply
from tests.support.matrix_tables import Weights, decoder, packed, weights_of

EVERYTHING = Augment(scales=0.3, signs=True, matrices=0.5, rotations=True)
SOME = (
    EVERYTHING,
    Augment(),
    Augment(matrices=0.2),
    Augment(permutations=False, rotations=True),
    Augment(scales=0.4, signs=True),
)
KNOWN = {
    "vo": [-0.5390382292003055, 0.5360367786154115, -0.034545484892224795, 0.8202525005975999],
    "qk": [0.5548381944581097, 1.324612653906112],
    "x": [0.020679170198747432, -0.06143763454152687, -0.5877906219212093, 0.1588623039489365],
}
IDS = [f"net-{number}" for number in range(4000)]


def group_alone(scale: str, k: int) -> Symmetry:
    """A table with one group of k channels, or k pairs."""
    inner = 2 if scale == "complex" else 1
    action = AxisAction("w", 0, (Segment("a", 0, inner, k),), 1, True, "out")
    return Symmetry((Group("a", k, Sym(), scale),), (action,))


def drawn(scale: str, k: int, size: float = 0.5) -> np.ndarray:
    augment = Augment(matrices=size, rotations=True)
    return augment.element(group_alone(scale, k), IDS, seed=0, epoch=0).matrices["a"]


def test_known_matrices() -> None:
    """The elements of a seed stay what they are: streams of other versions resume."""
    table, _ = decoder()
    found = EVERYTHING.element(table, ["net-0"], seed=0, epoch=0).matrices
    np.testing.assert_allclose(found["vo"][0, 0, 0], KNOWN["vo"], rtol=1e-9)
    np.testing.assert_allclose(found["qk"][0, 0], KNOWN["qk"], rtol=1e-9)
    np.testing.assert_allclose(found["x"][0, 0, 0, :4], KNOWN["x"], rtol=1e-9)


@pytest.mark.parametrize("augment", SOME)
def test_elements_are_of_the_group(augment: Augment) -> None:
    for table, _ in (decoder(), decoder(stream="orthogonal_mean"), packed()):
        element = augment.element(table, IDS[:20], seed=1, epoch=2)
        element.check(table)
        for name in element.matrices:
            kind = table[name].scale
            turned = np.abs(element.matrices[name]).reshape(20, -1)
            turned = ((turned > 0) & (turned != 1)).mean() > 0.9
            if kind.startswith("orthogonal"):
                assert turned == augment.rotations
            elif kind == "linear":
                assert turned == (augment.matrices is not None)


@pytest.mark.exhaustive
def test_orthogonal_matrices_are_uniform() -> None:
    """Moments of the Haar measure: mean 0, E R_ij^2 = 1 / k, E R_ij^4 = 3 / (k (k + 2)), either determinant."""
    for scale in ("orthogonal", "linear"):
        R = drawn(scale, 3, 0.0)[:, 0]
        np.testing.assert_allclose(R @ R.swapaxes(1, 2), np.broadcast_to(np.eye(3), R.shape), atol=1e-13)
        assert np.abs(R.mean(axis=0)).max() < 4 / np.sqrt(3 * len(R))
        np.testing.assert_allclose((R**2).mean(axis=0), 1 / 3, atol=0.02)
        np.testing.assert_allclose((R**4).mean(axis=0), 3 / 15, atol=0.02)
        assert abs(np.sign(np.linalg.det(R)).mean()) < 4 / np.sqrt(len(R))
    R = drawn("orthogonal_mean", 4)[:, 0]
    np.testing.assert_allclose(R.sum(axis=2), 1, atol=1e-13)
    # what is left of it beside the ones is uniform in dimension 3: E R_ij = 1/4, E (R_ij - 1/4)^2 = (3/4)^2 / 3
    np.testing.assert_allclose(R.mean(axis=0), 1 / 4, atol=0.03)
    np.testing.assert_allclose(((R - 1 / 4) ** 2).mean(axis=0), 3 / 16, atol=0.02)


def test_singular_values_and_moduli_are_log_uniform_and_phases_uniform() -> None:
    values = np.log(np.linalg.svd(drawn("linear", 3)[:, 0], compute_uv=False)) / 0.5
    numbers = drawn("complex", 3)
    numbers = numbers[..., 0] + 1j * numbers[..., 1]
    for logs in (values, np.log(np.abs(numbers)) / 0.5):
        assert np.abs(logs).max() <= 1 + 1e-12
        assert abs(logs.mean()) < 0.03 and abs(logs.var() - 1 / 3) < 0.02
    for power in (1, 2, 3):
        assert abs((numbers / np.abs(numbers)) ** power).mean() > 0.99
        assert abs(((numbers / np.abs(numbers)) ** power).mean()) < 4 / np.sqrt(numbers.size)


def test_no_bit_depends_on_the_batch_or_on_other_groups() -> None:
    table, _ = decoder()
    whole = EVERYTHING.element(table, IDS[:7], seed=1, epoch=2)
    for row in range(7):
        part = EVERYTHING.element(table, IDS[row : row + 1], seed=1, epoch=2)
        for name, matrix in part.matrices.items():
            np.testing.assert_array_equal(matrix[0], whole.matrices[name][row])
    other = EVERYTHING.element(table, IDS[:7], seed=1, epoch=3)
    assert all((other.matrices[name] != whole.matrices[name]).any() for name in whole.matrices)
    assert len(np.unique(element_keys(id_hashes(IDS[:7]), 1, 2, 0))) == 7
    alone = Augment(permutations=False, matrices=0.5).element(table, IDS[:7], seed=1, epoch=2)
    # permutations move blocks, whose matrices are those of the old order
    order = whole.perms["vo"][:, ::4] // 4
    moved = np.take_along_axis(alone.matrices["vo"], order[:, :, None, None], axis=1)
    np.testing.assert_array_equal(moved, whole.matrices["vo"])


def zoo_of(path: Path, table: Symmetry, weights: Weights) -> Zoo:
    """A zoo with a table."""
    K = len(next(iter(weights.values())))
    card = ckptzoo.Card("matrices", "Networks whose table has matrices.")
    arch = {name: value[0] for name, value in weights.items()}
    with ckptzoo.create(path, arch=arch, card=card) as writer:
        writer.add(weights, [{"id": f"net-{number}"} for number in range(K)])
    declare(path, table)
    return ckptzoo.open(path)


@pytest.mark.parametrize("augment", SOME)
def test_streams_apply_the_elements(augment: Augment, tmp_path: Path) -> None:
    table, shapes = decoder()
    weights = weights_of(shapes, 6, 1, np.float32)
    zoo = zoo_of(tmp_path / "zoo", table, weights)
    (batch,) = learning.stream(zoo, augment=augment, shuffle=False, seed=4, views=2)
    for view in (0, 1):
        element = augment.element(table, zoo.ids, seed=4, epoch=0, view=view)
        for name, array in apply(element, weights, table).items():
            np.testing.assert_allclose(batch.x[view][name], array, rtol=1e-5, atol=1e-5)
    by_two = list(learning.stream(zoo, augment=augment, shuffle=False, seed=4, batch_size=2))
    for name in weights:
        joined = np.concatenate([part.x[name] for part in by_two])
        np.testing.assert_array_equal(joined, batch.x[0][name])


def test_matrices_act_before_standardisation(tmp_path: Path) -> None:
    table, shapes = packed()
    weights = weights_of(shapes, 6, 1, np.float32)
    zoo = zoo_of(tmp_path / "zoo", table, weights)
    augment, scale = Augment(permutations=False, matrices=0.3), learning.statistics(zoo, per="tensor")
    options = {"augment": augment, "shuffle": False, "seed": 4}
    (plain,), (standard,) = learning.stream(zoo, **options), learning.stream(zoo, standardize=scale, **options)
    for name in ("qkv", "o"):
        mean, deviation = weights[name].mean(dtype=np.float64), weights[name].std(dtype=np.float64)
        expected = (plain.x[name] - mean) / deviation
        np.testing.assert_allclose(standard.x[name], expected, rtol=1e-4, atol=1e-5)


def test_what_is_refused(tmp_path: Path) -> None:
    table, shapes = decoder()
    weights = weights_of(shapes, 3, 1, np.float32)
    weights["gain"][2, 1] = 1.5
    zoo = zoo_of(tmp_path / "zoo", table, weights)
    next(iter(learning.stream(zoo, augment=Augment(matrices=0.5))))
    with pytest.raises(SymmetryError, match=r"tensor 'gain': expected gains of 1, .* differs by 0\.5"):
        next(iter(learning.stream(zoo, augment=Augment(rotations=True))))
    for augment in (Augment(matrices=0.0), Augment(rotations=True)):
        with pytest.raises(ZooError, match="augment with matrices: expected a table that has some"):
            augment.require(archs.symmetry("mlp-4-8-2"), "raw", location="zoo")
    for size in (-0.1, 81.0, float("nan")):
        with pytest.raises(ZooError, match="matrices: expected a logarithm from 0 to 80"):
            Augment(matrices=size)


@pytest.mark.parametrize(
    ("variant", "refused"),
    [
        ("raw", ""),
        ("canonical", "permutations scales matrices rotations"),
        ("unit-norm", "scales matrices"),
        ("min-mass", "permutations scales matrices"),
        ("aligned-best", "permutations scales matrices rotations"),
    ],
)
def test_variants_are_not_augmented_with_what_was_removed(variant: str, refused: str) -> None:
    table, _ = decoder()
    for name, augment in {
        "permutations": Augment(),
        "scales": Augment(permutations=False, scales=0.1),
        "matrices": Augment(permutations=False, matrices=0.1),
        "rotations": Augment(permutations=False, rotations=True),
    }.items():
        if name in refused:
            with pytest.raises(ZooError, match="weights that still have them"):
                augment.require(table, variant, location="zoo")
        else:
            assert augment.require(table, variant, location="zoo") is table
