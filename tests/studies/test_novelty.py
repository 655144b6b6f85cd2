"""The study of novelty: planted copies are found, independent networks are not, and what cannot be compared."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.novelty import novelty
from tests.support.derived_zoos import Weights, linked, weights_of
from tests.support.printed import line_of

NAMES = ["optunet", pytest.param("mlp-tanh-4-8-3", marks=pytest.mark.exhaustive), "mlp-4-6-5-3"]
CARDS = Path(__file__).parents[2] / "cards"


def zoo_of(folder: Path, name: str, weights: Weights, *, dtype: str = "float32", start: int = 0) -> ckptzoo.Zoo:
    known = archs.architecture(name)
    tensors = tuple(ckptzoo.Tensor(tensor.name, tensor.shape, dtype) for tensor in known.tensors)
    arch = ckptzoo.Architecture(name, tensors, name, known.input_shape)
    with ckptzoo.create(folder, arch=arch, symmetry=archs.symmetry(name)) as writer:
        count = len(next(iter(weights.values())))
        stored = {key: np.asarray(value, dtype) for key, value in weights.items()}
        writer.add(stored, [{"id": f"{folder.name}{at + start:04}"} for at in range(count)])
    return ckptzoo.open(folder)


def disguised(name: str, weights: Weights, seed: int, *, noise: float = 0.0, spread: float = 0.5) -> Weights:
    """The same networks with their channels in other orders and of other sizes and signs, and noise on top."""
    table, rng = archs.symmetry(name), np.random.default_rng(seed)
    count = len(next(iter(weights.values())))
    element = symmetry.GroupElement.random(table, count, rng, spread=spread)
    moved = symmetry.apply(element, {key: value.astype(np.float64) for key, value in weights.items()}, table)
    return {key: value + noise * value.std() * rng.standard_normal(value.shape) for key, value in moved.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_planted_copies_are_found_and_independent_networks_are_new(tmp_path: Path, name: str) -> None:
    weights = weights_of(30, 1, arch=archs.architecture(name))
    zoo = zoo_of(tmp_path / "zoo", name, weights)
    some = {key: value[:6] for key, value in weights.items()}
    fresh = zoo_of(tmp_path / "fresh", name, weights_of(20, 2, arch=archs.architecture(name)))
    found = novelty(fresh, zoo)
    assert found.copies == 0 and {item.verdict for item in found.generated} == {"new"}
    assert found.exact == (name != "mlp-4-6-5-3")
    steps: list[tuple[int, int]] = []
    planted = {
        "permuted": (disguised(name, some, 3, spread=0.0), "float32", {"copy"}),
        "scaled": (disguised(name, some, 4), "float32", {"copy"}),
        "halves": (disguised(name, some, 5), "float16", {"copy", "near copy"}),
        "noisy": (disguised(name, some, 6, noise=1e-4), "float32", {"near copy"}),
    }
    for kind, (copies, dtype, verdicts) in planted.items():
        given = zoo_of(tmp_path / kind, name, copies, dtype=dtype)
        found = novelty(given, zoo, progress=lambda done, total: steps.append((done, total)))
        assert found.copies == 6 and {item.verdict for item in found.generated} <= verdicts, kind
        assert [item.member for item in found.generated] == zoo.ids[:6], kind
        assert max(item.distance for item in found.generated) < {"permuted": 1e-12, "scaled": 1e-4}.get(kind, 0.1)
    # 30 members, 4 levels of noise, 6 checkpoints
    assert steps[-1] == (30 + 4 * 30 + 6,) * 2


def test_what_is_said_drawn_and_written(tmp_path: Path) -> None:
    name = "optunet"
    weights = weights_of(30, 1)
    zoo = zoo_of(tmp_path / "zoo", name, weights)
    mixed = {
        key: np.concatenate([value[:3], other])
        for (key, value), other in zip(weights.items(), weights_of(5, 9).values(), strict=True)
    }
    mixed["fc.bias"][4] = np.nan
    given = zoo_of(tmp_path / "made", name, mixed)
    found = novelty(given, zoo)
    assert found.skipped == ("made0004",) and found.copies == 3 and len(found.generated) == 7
    for words in ("7 checkpoints", "30 checkpoints", "exact: least over all permutations", "3 copies, 4 new, of 7."):
        assert words in line_of(found, 200)
    assert "1 that are not finite were left out" in line_of(found, 200)
    assert {file.name for file in found.plot(tmp_path / "pictures")} == {"novelty.png", "novelty.json"}
    assert canonical(found.to_json()) == canonical(json.loads(canonical(found.to_json())))
    # neither does the order of the zoo change anything, nor do other generated ones but for Holm's adjustment
    shuffled = zoo.take(np.random.default_rng(0).permutation(30))
    assert canonical(novelty(given, shuffled).to_json()) == canonical(found.to_json())
    alone = novelty(given.take(np.array([1])), zoo).generated[0]
    assert (alone.member, alone.distance, alone.p) == tuple(
        getattr(found.generated[1], key) for key in ("member", "distance", "p")
    )


def test_members_of_one_origin_and_copies_in_the_zoo_say_nothing_of_independent_ones(tmp_path: Path) -> None:
    """Kept steps of one member are near each other, and members that are there twice are."""
    arch = archs.architecture("optunet")
    begun = weights_of(20, 1)
    weights = {key: np.concatenate([value, value * 1.01, value[:2]]) for key, value in begun.items()}
    rows = [{"id": f"s{step}-{at}", "member": f"m{at}", "step": step} for step in (0, 1) for at in range(20)]
    rows += [{"id": f"again-{at}"} for at in range(2)]
    with ckptzoo.create(tmp_path / "zoo", arch=arch, symmetry=archs.symmetry("optunet")) as writer:
        writer.add(weights, rows)
    zoo = ckptzoo.open(tmp_path / "zoo")
    fresh = zoo_of(tmp_path / "fresh", "optunet", weights_of(10, 2))
    found = novelty(fresh, zoo)
    assert found.copies == 0 and len(found.between) == 22
    # the two that are there twice are near others of another origin
    assert (found.between < 0.5 * np.median(found.between)).sum() == 4
    again = novelty(zoo_of(tmp_path / "copies", "optunet", {key: value[:3] for key, value in begun.items()}), zoo)
    assert again.copies == 3


def test_rows_that_do_not_say_whether_weights_are_finite(tmp_path: Path) -> None:
    """Zoos that refer to files of others have such rows."""
    arch = archs.architecture("optunet")
    weights, made = weights_of(12, 1), weights_of(4, 2)
    weights["conv1.weight"][3, 0] = np.nan
    made["fc.bias"][1, 0], made["conv2.weight"][2, 0] = np.nan, np.inf
    zoo, given = (ckptzoo.open(linked(tmp_path / name, arch, it)) for name, it in (("zoo", weights), ("made", made)))
    found = novelty(given, zoo)
    assert found.members == 11 and found.skipped == tuple(np.array(given.ids)[[1, 2]])
    assert [item.verdict for item in found.generated] == ["new", "new"]
    assert np.isfinite(found.between).all()


def test_copies_of_members_that_are_there_twice(tmp_path: Path) -> None:
    """The median distance of such members is 0 and that of no independent ones."""
    begun = weights_of(20, 1)
    twins = {key: np.concatenate([value, value[:12]]) for key, value in begun.items()}
    zoo = zoo_of(tmp_path / "zoo", "optunet", twins)
    some = {key: value[10:14] for key, value in begun.items()}
    given = zoo_of(tmp_path / "given", "optunet", disguised("optunet", some, 3, spread=0.0))
    found = novelty(given, zoo)
    assert np.median(found.between) == 0
    assert [item.verdict for item in found.generated] == 4 * ["copy"]
    assert novelty(zoo_of(tmp_path / "fresh", "optunet", weights_of(8, 2)), zoo).copies == 0
    said = r"zoo: members whose nearest is no copy of them: expected 8 or more, got 7\. Compare"
    with pytest.raises(ZooError, match=said):
        novelty(given, zoo.take(np.r_[:19, 20:32]))


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    few = zoo_of(tmp_path / "few", "mlp-4-8-3", weights_of(7, 1, arch=archs.architecture("mlp-4-8-3")))
    with pytest.raises(ZooError, match=r"few: independent members: expected 8 or more, got 7\. Compare"):
        novelty(few, few)
    with pytest.raises(ZooError, match="independent members: expected 8 or more, got 0"):
        novelty(few, few.take(np.arange(0)))
    other = zoo_of(tmp_path / "other", "mlp-4-9-3", weights_of(9, 1, arch=archs.architecture("mlp-4-9-3")))
    with pytest.raises(ZooError, match=r"few: tensor 'fc1.bias': expected \(9,\), as in other, got \(8,\)\. Compare"):
        novelty(few, other)
    name = "gaussian-mlp-4-8-3"
    gaussians = zoo_of(tmp_path / "gaussians", name, weights_of(9, 1, arch=archs.architecture(name)))
    for pair in ((gaussians, few), (few, gaussians)):
        with pytest.raises(ZooError, match=r"got Gaussians over their weights\. Draw"):
            novelty(*pair)
    unknown = ckptzoo.Architecture("mine", archs.architecture("mlp-4-8-3").tensors)
    with ckptzoo.create(tmp_path / "unknown", arch=unknown) as writer:
        writer.add(weights_of(9, 0, arch=unknown), [{"id": str(at)} for at in range(9)])
    with pytest.raises(SymmetryError, match="symmetry table of mine"):
        novelty(few, ckptzoo.open(tmp_path / "unknown"))
    assert novelty(few.take(np.arange(0)), zoo_of_nine(tmp_path)).copies == 0


def zoo_of_nine(folder: Path) -> ckptzoo.Zoo:
    return zoo_of(folder / "nine", "mlp-4-8-3", weights_of(9, 1, arch=archs.architecture("mlp-4-8-3")))


@pytest.mark.exhaustive
def test_five_hundred_planted_copies_and_two_thousand_members(tmp_path: Path) -> None:
    """Of members of cards/mnist-optunet: 1,072 are the zoo, the other 2,000 new, and 500 of the zoo disguised."""
    every = ckptzoo.open(CARDS / "mnist-optunet")
    zoo, others = every.take(np.arange(1072)), every.take(np.arange(1072, 3072))
    assert novelty(others, zoo).copies == 0
    weights = {name: np.asarray(zoo[name][:500]) for name in zoo.arch.names}
    made: list[tuple[str, dict[str, Any], str]] = [
        ("permuted", {}, "float32"),
        ("halves", {}, "float16"),
        ("noisy", {"noise": 1e-4}, "float32"),
    ]
    for kind, options, dtype in made:
        copies = zoo_of(tmp_path / kind, "optunet", disguised("optunet", weights, 1, **options), dtype=dtype)
        found = novelty(copies, zoo)
        assert found.copies == 500 and [item.member for item in found.generated] == zoo.ids[:500], kind
