"""Copies that were rounded, shifted or covered with noise, among members that were trained independently."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import described_rows
from ckptzoo.derive.near_copies import Points, near_copies, outputs, points, seeded_inputs
from ckptzoo.errors import ZooError
from ckptzoo.symmetry import GroupElement, apply
from ckptzoo.symmetry.identity import neighbours

CARD = Path(__file__).parents[2] / "cards" / "mnist-optunet"
ARCH = archs.architecture("optunet")
TABLE = archs.symmetry("optunet")


@pytest.fixture(scope="module")
def members() -> dict[str, np.ndarray]:
    """The weights of the first 2,048 trained members."""
    zoo = ckptzoo.open(CARD)[:2048]
    return {name: zoo[name][:] for name in zoo.arch.names}


def half(weights: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: a.astype(np.float16).astype(a.dtype) if a.dtype.kind == "f" else a for name, a in weights.items()}


def noise(weights: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        name: (a + 1e-4 * rng.standard_normal(a.shape)).astype(a.dtype) if a.dtype.kind == "f" else a
        for name, a in weights.items()
    }


def shift(weights: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The same direction added to all rows of the last layer leaves the softmax as it is."""
    direction = rng.standard_normal((1, 1, *weights["fc.weight"].shape[2:])).astype(np.float32)
    return weights | {"fc.weight": weights["fc.weight"] + direction, "fc.bias": weights["fc.bias"] + np.float32(0.7)}


def test_planted_copies_are_found_among_2048_and_no_independent_pair(
    members: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """As the zoo would be if three strangers had added 32 disguised copies each."""
    rng, chosen, expected = np.random.default_rng(5), np.arange(0, 2048, 64), set()
    zoo = ckptzoo.open(CARD)[:2048]
    with ckptzoo.create(tmp_path / "zoo", arch=ARCH) as writer:
        writer.add(members, [{"id": name, "unit": "members"} for name in zoo.ids])
        for disguise in (half, noise, shift):
            copied = disguise({name: array[chosen] for name, array in members.items()}, rng)
            rows = [{"id": f"{disguise.__name__}{at}", "unit": disguise.__name__} for at in chosen]
            writer.add(copied, rows)
            expected |= {(zoo.ids[at], row["id"]) for at, row in zip(chosen, rows, strict=True)}
    found = near_copies(ckptzoo.open(tmp_path / "zoo"))
    pairs = {pair.ids for pair in found.pairs}
    assert {pair for pair in pairs if pair[0] in set(zoo.ids)} == expected
    # the disguised copies of one member are near one another too
    assert all(re.sub(r"\D", "", first) == re.sub(r"\D", "", second) for first, second in pairs - expected)
    assert len(pairs) == 6 * 32 and found.compared == 2048 + 96
    assert 0.01 < found.threshold < 0.05 and found.pairs[-1].distance < found.threshold


def permuted(weights: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """With scales too."""
    element = GroupElement.random(TABLE, len(weights["fc.bias"]), rng)
    moved = apply(element, weights, TABLE)
    return {name: np.asarray(moved[name]).astype(array.dtype) for name, array in weights.items()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_near_copies_are_those_of_all_pairs(
    members: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random zoos have copies of several kinds, also copies of copies, whatever fits into memory at a time."""
    rng = np.random.default_rng(seed)
    weights = {name: array[rng.choice(2048, 60, replace=False)] for name, array in members.items()}
    for disguise in rng.permutation(np.array([half, noise, shift, permuted, permuted], object)):
        some = rng.integers(0, len(weights["fc.bias"]), rng.integers(1, 12))
        copied = disguise({name: array[some] for name, array in weights.items()}, rng)
        weights = {name: np.concatenate([array, copied[name]]) for name, array in weights.items()}
    count = len(weights["fc.bias"])
    with ckptzoo.create(tmp_path / "zoo", arch=ARCH) as writer:
        writer.add(weights, [{"id": f"m{at}"} for at in rng.permutation(count)])
    zoo = ckptzoo.open(tmp_path / "zoo")
    monkeypatch.setattr(described_rows, "BLOCK_ROWS", int(rng.integers(5, count)))
    values = outputs(zoo).arrays()["values"].astype(np.float64)
    for name, sizes in {"LEAF": (2, 9), "NUMBERS": (640, 6400), "SAMPLE": (3, 256)}.items():
        monkeypatch.setattr(neighbours, name, int(rng.integers(*sizes)))
    found = near_copies(zoo)
    distances = np.linalg.norm(values[:, None] - values, axis=2)
    near = np.argwhere(np.triu(distances < found.threshold, 1)).tolist()
    assert len(near) >= count - 60 and found.found == len(near)
    assert {frozenset(pair.ids) for pair in found.pairs} == {frozenset(zoo.ids[at] for at in pair) for pair in near}
    assert [pair.distance for pair in found.pairs] == sorted(distances[tuple(pair)] for pair in near)
    # the nearest stay where fewer are listed
    monkeypatch.setattr(sys.modules[Points.__module__], "MAX_PAIRS", 5)
    few = near_copies(zoo)
    assert few.found == found.found and len(few.pairs) == 5
    assert [pair.distance for pair in few.pairs] == [pair.distance for pair in found.pairs[:5]]


@pytest.mark.exhaustive
def test_trained_members_are_not_near() -> None:
    found = near_copies(ckptzoo.open(CARD))
    assert found.pairs == () and found.compared == 8192


def test_the_distance_as_printed() -> None:
    """Of five members on four inputs, against the formula in a loop."""
    zoo = ckptzoo.open(CARD)[:5]
    inputs = seeded_inputs(zoo.arch)[:4]
    placed = points(zoo, inputs)
    torch = pytest.importorskip("torch")
    outputs: list[np.ndarray] = []
    for checkpoint in zoo:
        with torch.no_grad():
            outputs.append(softmax(checkpoint.model().double()(torch.from_numpy(inputs).double()).numpy(), axis=-1))
    for one in range(5):
        for other in range(5):
            squares = [
                0.5
                * sum((np.sqrt(p) - np.sqrt(q)) ** 2 for p, q in zip(outputs[one][b], outputs[other][b], strict=True))
                for b in range(4)
            ]
            distance = np.linalg.norm(placed.values[one] - placed.values[other])
            np.testing.assert_allclose(distance, np.sqrt(np.mean(squares)), atol=1e-6)


def test_a_stacked_and_a_single_network_are_placed_alike() -> None:
    zoo = ckptzoo.open(CARD)[:3]
    inputs = seeded_inputs(zoo.arch)
    module = archs.get("optunet")()
    plain, own = points(zoo, inputs), points(zoo, inputs, module=module)
    np.testing.assert_allclose(plain.values, own.values, atol=1e-5)
    # the second checkpoint takes the same inputs at another scale
    scaled = points(zoo, inputs, [([zoo.ids[1]], 2 * inputs)])
    assert np.array_equal(scaled.values[[0, 2]], plain.values[[0, 2]])
    assert np.array_equal(scaled.values[1], points(zoo, 2 * inputs).values[1])


def synthetic(count: int, rng: np.random.Generator, origins: Any = None) -> Points:
    values = rng.random((count, 6))
    names = np.array([str(at) for at in range(count)], object) if origins is None else np.array(origins, object)
    return Points(tuple(map(str, range(count))), names, values)


def test_pairs_of_one_origin_do_not_count() -> None:
    rng = np.random.default_rng(3)
    few = synthetic(20, rng, [str(at // 4) for at in range(20)])
    assert few.threshold() is None  # 5 origins
    many = synthetic(40, rng, [str(at // 4) for at in range(40)])
    last = many.values[3::4]
    distances = [np.linalg.norm(last[a] - last[b]) for a in range(10) for b in range(a)]
    assert many.threshold() == pytest.approx(0.1 * np.quantile(distances, 0.01))
    many.values[5] = many.values[0]  # of another origin
    many.values[2] = many.values[1]  # of the same
    (pair,), count = many.near(many, 1e-3)
    assert count == 1
    assert pair.ids == ("0", "5") and pair.distance == 0


def test_copies_do_not_make_copies_seem_independent() -> None:
    rng = np.random.default_rng(6)
    alone = synthetic(12, rng)
    values = np.concatenate([alone.values, *3 * [alone.values + 1e-6]])
    crowded = Points(tuple(map(str, range(48))), np.arange(48).astype(object), values)
    assert crowded.threshold() == pytest.approx(alone.threshold()) and crowded.near(crowded, 1e-3)[1] == 12 * 6


def test_outputs_that_are_not_finite_are_near_to_nothing() -> None:
    some = synthetic(20, np.random.default_rng(4))
    some.values[3] = np.nan
    assert some.threshold() is not None and some.near(some, 1e-3)[0] == []


def test_too_few_members_and_networks_without_a_function(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="at least 8, got 5"):
        near_copies(ckptzoo.open(CARD)[:5])
    arch = ckptzoo.Architecture("mine", ARCH.tensors)
    ckptzoo.create(tmp_path / "zoo", arch=arch)
    with pytest.raises(ZooError, match="input shape"):
        near_copies(ckptzoo.open(tmp_path / "zoo"))
    shaped = ckptzoo.Architecture("mine", ARCH.tensors, input_shape=(1, 28, 28))
    ckptzoo.create(tmp_path / "shaped", arch=shaped)
    with pytest.raises(ZooError, match="--module"):
        near_copies(ckptzoo.open(tmp_path / "shaped"))
