"""The study of independence: zoos of independent members, planted shared starts, and what cannot be tested."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.derive.independence import IndependenceTest, random_pairs
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.independence import UNIFORM, independence
from tests.support.derived_zoos import linked, weights_of, written
from tests.support.printed import line_of

NAME = "mlp-8-10-3"


def zoo_of(folder: Path, rows: list[dict[str, Any]], starts: list[int], *, name: str = NAME) -> ckptzoo.Zoo:
    """Networks that end near their starts, which several may share."""
    arch = archs.architecture(name)
    begun, noise = weights_of(max(starts) + 1, 1, arch=arch), weights_of(len(starts), 2, arch=arch)
    weights = {key: begun[key][starts] + 0.3 * noise[key] for key in begun}
    with ckptzoo.create(folder, arch=arch, symmetry=archs.symmetry(name)) as writer:
        writer.add(weights, [{"id": f"n{at}", **row} for at, row in enumerate(rows)])
    return ckptzoo.open(folder)


def test_independent_members_and_kept_steps(tmp_path: Path) -> None:
    rows = [{"member": f"m{at}", "step": step} for step in (0, 7) for at in range(30)]
    zoo = zoo_of(tmp_path / "zoo", rows, 2 * list(range(30)))
    steps: list[tuple[int, int]] = []
    found = independence(zoo, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (45, 45) and found.members == found.origins == 30
    assert found.independent and found.different.uniform is not None and found.different.uniform > UNIFORM
    assert found.same is not None and found.same.uniform is not None and found.same.uniform < 1e-6
    assert len({name for pair in found.different.ids for name in pair}) == 30
    ids = zoo.ids
    assert set(found.same.ids) == {(ids[at], ids[30 + at]) for at in range(30)}
    assert len(found.same.flagged) > 25 and found.same.below["0.01"] > 0.9
    for words in ("30 members", "999 of 10^6.6, of fc1", "No sign that members share their initial weights"):
        assert words in line_of(found, 160)
    assert canonical(found.to_json()) == canonical(json.loads(canonical(found.to_json())))
    assert canonical(found.to_json()) == canonical(independence(zoo).to_json())
    assert {file.name for file in found.plot(tmp_path / "pictures")} == {"independence.png", "independence.json"}
    assert independence(zoo.last_steps()).same is None


def test_shared_starts_are_found(tmp_path: Path) -> None:
    """Members 2 k and 2 k + 1 started from one network: all pairs find each, and disjoint ones those that they have."""
    zoo = zoo_of(tmp_path / "zoo", [{"member": f"m{at}"} for at in range(24)], [at // 2 for at in range(24)])
    every = independence(zoo, disjoint=False)
    assert len(every.different.p) == 24 * 23 // 2 and every.different.uniform is None and not every.independent
    planted = {(f"n{2 * at}", f"n{2 * at + 1}") for at in range(12)}
    assert {tuple(sorted(pair[:2], key=lambda name: int(name[1:]))) for pair in every.different.flagged} == planted
    assert "12 pairs of 276 share their initial weights" in line_of(every, 160) and "n0" in line_of(every, 160)
    assert len(independence(zoo, disjoint=False, pairs=50).different.p) == 50
    one_of_each = zoo.take(np.arange(0, 24, 2))
    assert independence(one_of_each).independent and independence(one_of_each, disjoint=False).independent


def test_starts_that_all_share_are_found_together(tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path / "zoo", [{"member": f"m{at}"} for at in range(30)], 30 * [0])
    found = independence(zoo)
    assert found.different.uniform is not None and found.different.uniform < 1e-6 and not found.independent
    assert "share their initial weights" in line_of(found, 160)


def test_draws_around_one_mode_have_one_origin(tmp_path: Path) -> None:
    rows = [
        {"member": f"d{at}", "mode": f"m{at // 5}", "method": "made", "draw": at % 5, "seed": at // 5}
        for at in range(100)
    ]
    zoo = zoo_of(tmp_path / "zoo", rows, [at // 5 for at in range(100)])
    found = independence(zoo)
    assert (found.members, found.origins, len(found.different.p)) == (100, 20, 10) and found.independent
    assert found.same is not None and len(found.same.flagged) >= 18
    assert "100 members of 20 origins" in line_of(found, 160)


def test_a_copy_that_was_permuted_afterwards_looks_independent(tmp_path: Path) -> None:
    """What the documentation says: dedupe finds these, and this test does not."""
    arch, table = archs.architecture(NAME), archs.symmetry(NAME)
    weights = {key: np.repeat(value, 2, axis=0) for key, value in weights_of(12, 1, arch=arch).items()}
    elements = symmetry.GroupElement.random(table, 24, np.random.default_rng(3), spread=0.5)
    zoo = ckptzoo.open(written(tmp_path / "zoo", arch, dict(symmetry.apply(elements, weights, table))))
    assert independence(zoo, disjoint=False).independent


def test_what_cannot_be_tested_is_refused(tmp_path: Path) -> None:
    rows = [{"member": "m", "step": at} for at in range(3)]
    with pytest.raises(ZooError, match=r"independent members or modes: expected two or more, got 1\. Select other"):
        independence(zoo_of(tmp_path / "one", rows, [0, 0, 0]))
    rows = [{"member": f"m{at}"} for at in range(3)]
    with pytest.raises(SymmetryError, match=r"permutations of neurons: expected 100 or more, got 6\. Test"):
        independence(zoo_of(tmp_path / "small", rows, [0, 1, 2], name="mlp-4-3-3"))
    with pytest.raises(ZooError, match=r"expected networks mlp-8-10-3, got Gaussians over their weights\. Draw"):
        independence(zoo_of(tmp_path / "gaussians", rows, [0, 1, 2], name=f"gaussian-{NAME}"))
    unknown = ckptzoo.Architecture("mine", archs.architecture(NAME).tensors)
    path = written(tmp_path / "unknown", unknown, weights_of(3, 0, arch=unknown), symmetry=None)
    with pytest.raises(SymmetryError, match="symmetry table of mine"):
        independence(ckptzoo.open(path))
    with pytest.raises(ZooError, match="independence: permutations: expected"):
        independence(zoo_of(tmp_path / "zoo", rows, [0, 1, 2]), permutations=9)


def test_more_permutations_than_floats_count(tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path / "wide", [{"member": f"m{at}"} for at in range(6)], [0, 0, 1, 2, 3, 4], name="mlp-4-256-3")
    found = independence(zoo, disjoint=False, permutations=99)
    assert "of 10^506.9, of fc1" in line_of(found, 160) and found.least == 15 / 1501
    assert [pair[:2] for pair in found.different.flagged] == [("n0", "n1")]


def test_networks_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    """Rows of linked zoos do not say whether weights are finite, so the weights are read."""
    arch = archs.architecture(NAME)
    weights = weights_of(8, 1, arch=arch)
    weights["fc1.weight"][2, 0, 0], weights["fc2.bias"][5] = np.inf, np.nan
    zoo = ckptzoo.open(linked(tmp_path / "zoo", arch, weights))
    assert zoo.metadata["finite"].null_count == 8
    found = independence(zoo, disjoint=False)
    assert found.members == 6 and found.independent and found.different.p.min() > 0


def test_similarities_count_for_what_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two networks have 24 KiB of weights here, and their similarities 256 KiB."""
    zoo = zoo_of(tmp_path / "wide", [{"member": f"m{at}"} for at in range(5)], list(range(5)), name="mlp-8-256-3")
    monkeypatch.setattr("ckptzoo.derive.independence.BATCH_BYTES", 2**20)
    batches: list[int] = []
    pairs = random_pairs(5, 10, False, np.random.default_rng(0))
    IndependenceTest(zoo, permutations=99, seed=0).of(zoo, zoo, pairs, advance=batches.append)
    assert batches == [3, 3, 3, 1]
