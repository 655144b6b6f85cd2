"""What the study of pairs finds among networks of which some are permuted copies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import SymmetryError, UnknownNameError, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.pairs import pairs
from ckptzoo.studies.plots.pairs import distances
from tests.support.derived_zoos import weights_of, written
from tests.support.printed import line_of, printed

NAME = "mlp-4-8-3"
RNG = np.random.default_rng(0)


def zoo_of(folder: Path) -> ckptzoo.Zoo:
    """Members 0, 1 and 2 are one network, and so are 3 and 4; each is permuted. The other five are independent."""
    arch, table = archs.architecture(NAME), archs.symmetry(NAME)
    places = [0, 0, 0, 1, 1, 2, 3, 4, 5, 6]
    weights = {key: value[places] for key, value in weights_of(7, 1, arch=arch).items()}
    elements = symmetry.GroupElement.random(table, 10, np.random.default_rng(1), spread=0.0)
    return ckptzoo.open(written(folder, arch, dict(symmetry.apply(elements, weights, table))))


def labelled() -> Labelled:
    inputs = RNG.standard_normal((50, 4)).astype(np.float32)
    return Labelled("made/test", inputs, RNG.integers(0, 3, 50))


@pytest.mark.parametrize("gauge", [None, "unit-norm"])
def test_copies_are_the_nearest_and_are_connected(tmp_path: Path, gauge: str | None) -> None:
    zoo = zoo_of(tmp_path / "zoo")
    steps: list[tuple[int, int]] = []
    found = pairs(zoo, labelled(), gauge=gauge, nearest=4, progress=lambda done, total: steps.append((done, total)))
    ids = zoo.ids
    expected = {(0, 1), (0, 2), (1, 2), (3, 4)}
    assert {(ids.index(first), ids.index(second)) for first, second, _ in found.nearest} == expected
    assert all(distance < 1e-2 for _, _, distance in found.nearest) and found.components == (3, 2)
    np.testing.assert_allclose(found.barriers["nearest"], 0, atol=1e-5)
    assert found.sampled.sum() == found.least.sum() == 45 and len(found.barriers["random"]) == 4
    assert (found.neighbours[:5] < 1e-2).all() and (found.neighbours[5:] > 0.1).all()
    assert steps[-1] == (8, 8)
    said = line_of(found)
    for words in (
        "10 members",
        "pairs 45",
        "4 nearest pairs link 5 members in 2 groups, the largest of 3",
        "nearest 4",
    ):
        assert words in said
    assert canonical(found.to_json()) == canonical(json.loads(canonical(found.to_json())))
    assert {file.name for file in found.plot(tmp_path / "pictures")} == {"pairs.png", "pairs.json"}


def test_all_pairs_are_joined_once(tmp_path: Path) -> None:
    """With as many nearest pairs as there are, random ones would be the same again."""
    zoo, given = zoo_of(tmp_path / "zoo").take(np.arange(3)), labelled()
    joined: list[tuple[int, int]] = []
    found = pairs(zoo, given, nearest=3, progress=lambda done, total: joined.append((done, total)))
    assert joined[-1] == (3, 3) and list(found.barriers) == list(found.barrier_distances) == ["nearest"]
    found.plot(tmp_path / "pictures")
    _, right = distances(found).axes
    (line,) = right.lines
    x, y = np.asarray(line.get_data(), float)
    assert x.max() < 0.97 * right.get_xlim()[1] and y.max() < 0.97 * right.get_ylim()[1], "whole points"
    assert list(pairs(zoo, given, nearest=2).barriers) == ["nearest", "random"]
    said = printed(pairs(zoo, given, nearest=1))
    assert "The nearest pair links 2 members in 1 group, the largest of 2." in said and said.count("± -") == 2


def test_distances_alone_need_no_inputs(tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path / "zoo")
    found = pairs(zoo)
    assert found.set is None and not found.barriers and len(found.nearest) == 45
    weights = {name: np.asarray(zoo[name]) for name in zoo.arch.names}
    every = symmetry.pair_distances(weights, zoo.symmetry or NAME)[np.triu_indices(10, 1)]
    assert found.distances[1].mean == pytest.approx(every.mean())
    found.plot(tmp_path / "pictures")


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        (NAME, {"gauge": "none"}, UnknownNameError, "gauge"),
        (NAME, {"nearest": 0}, ZooError, "pairs: nearest: expected an integer, 1 or more, got int 0"),
        ("mlp-4-5-5-2", {}, SymmetryError, "meet in no tensor"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    arch = archs.architecture(name)
    zoo = ckptzoo.open(written(tmp_path / "zoo", arch, weights_of(4, 1, arch=arch)))
    with pytest.raises(error, match=words):
        pairs(zoo, **options)
