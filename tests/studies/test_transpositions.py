"""What the study of planted permutations finds where it is known what became of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import ckptzoo
from builders.planted import build
from builders.recipe import Recipe
from ckptzoo import archs, symmetry
from ckptzoo.cli import app
from ckptzoo.derive.evaluation import Evaluator
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.shared.networks import ALIGNED, RAW
from ckptzoo.studies.transpositions import UNDONE, transpositions
from ckptzoo.symmetry import random_element
from tests.support.derived_zoos import weights_of
from tests.support.printed import line_of

NUMBERS = (0, 1, 3, 5, 10)
STEPS = (0, 40)


def element_facts(element: symmetry.GroupElement, row: int) -> dict[str, list[int]]:
    return {name: perm[row].tolist() for name, perm in element.perms.items()}


def planted_zoo(path: Path, name: str, changed: int = 0, **spoiled: Any) -> ckptzoo.Zoo:
    """Two runs at two steps: at the first members are g A, at the second h g A, h with ``changed`` transpositions."""
    arch, table, rng = archs.architecture(name), archs.symmetry(name), np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    parts: list[dict[str, np.ndarray]] = []
    for run in range(2):
        drawn = [random_element(table, number, 1, rng) for number in NUMBERS]
        change = [random_element(table, changed, 1, rng) for _ in NUMBERS]
        for step in STEPS:
            reference = weights_of(1, 10 * run + step, arch=arch)
            reference = {key: 3 * value if value.dtype == np.float32 else value for key, value in reference.items()}
            members = [reference]
            for element, other in zip(drawn, change, strict=True):
                members.append(symmetry.apply(other.compose(element) if step else element, reference, table))
            parts += members
            facts: list[dict[str, Any]] = [{"run": run}]
            facts += [
                {"run": run, "of": f"r{run}", "transpositions": number, "permutations": element_facts(element, 0)}
                for number, element in zip(NUMBERS, drawn, strict=True)
            ]
            ids = [f"r{run}", *(f"r{run}-t{number}" for number in NUMBERS)]
            rows += [
                {"id": f"{id}-{step}", "member": id, "step": step, "extra": {"planted": {**fact, **spoiled}}}
                for id, fact in zip(ids, facts, strict=True)
            ]
    weights = {key: np.concatenate([part[key] for part in parts]) for key in arch.names}
    with ckptzoo.create(path, arch=arch, symmetry=table) as writer:
        writer.add(weights, rows)
    return ckptzoo.open(path)


def labelled(zoo: ckptzoo.Zoo) -> Labelled:
    inputs = np.random.default_rng(3).standard_normal((50, *(zoo.arch.input_shape or ()))).astype(np.float32)
    weights = {name: np.asarray(zoo.last_steps()[name])[:1] for name in zoo.arch.names}
    answers = Evaluator(zoo.arch, Labelled("made/test", inputs, np.zeros(50, np.int64))).outputs(weights)
    return Labelled("made/test", inputs, answers[0].argmax(1))


@pytest.mark.parametrize("name", ["mlp-4-12-3", "mlp-tanh-4-7-6-3", "optunet-4-4-7-20-3-2", "resnet8-conv-3"])
@pytest.mark.sampled(2)
def test_copies_are_found_as_they_were_planted(tmp_path: Path, name: str) -> None:
    zoo = planted_zoo(tmp_path / "zoo", name)
    found = transpositions(zoo, points=3)
    assert found.numbers == list(NUMBERS) and len(found.planted) == 10
    assert (found.found == found.planted).all() and not found.apart.any()
    assert found.steps == STEPS and (found.found_at == found.planted).all() and not found.apart_at.any()
    np.testing.assert_allclose(found.distances[ALIGNED], 0, atol=1e-5)
    np.testing.assert_allclose(found.distances[UNDONE], 0, atol=1e-5)
    assert (found.distances[RAW][found.planted > 0] > 0.01).all()
    assert not found.along[:, 0].any() and (found.along[:, -1] == found.planted).all()
    assert found.barriers == {} and found.correlations == {"planted and found": pytest.approx(1)}
    assert "is found again in 10 of 10 pairs, and as many transpositions as were planted in 10." in line_of(found, 110)


def test_what_training_changed_is_what_lies_apart(tmp_path: Path) -> None:
    zoo = planted_zoo(tmp_path / "zoo", "mlp-4-12-3", changed=2)
    found = transpositions(zoo, labelled(zoo), points=5)
    assert (found.apart == 2).all() and not found.apart_at[0].any() and (found.apart_at[1] == 2).all()
    assert not (found.found == found.planted).all()
    assert (found.distances[UNDONE] > 0.01).all()
    np.testing.assert_allclose(found.distances[ALIGNED], 0, atol=1e-5)
    np.testing.assert_allclose(found.barriers[ALIGNED], 0, atol=1e-6)
    assert found.barriers[RAW].max() > 1e-3 and found.barriers[UNDONE].max() > 1e-3
    said = line_of(found, 110)
    for words in ("10 pairs of 2 runs", "at most 11 transpositions", "found again in 0 of 10 pairs", "50 inputs"):
        assert words in said
    content = found.to_json()
    assert canonical(content) == canonical(json.loads(canonical(content)))
    paths = found.plot(tmp_path / "pictures")
    assert [path.name for path in paths] == ["transpositions.png", "transpositions.json"]
    assert paths[0].read_bytes()[:4] == b"\x89PNG"


def test_trained_members_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Recipe.of("toy", 2, None, "mlp-2-6-1")
    build(recipe, tmp_path / "zoo", runs=2, transpositions=(0, 3), keep_steps=(0,), console=Console(quiet=True))
    assert app.run(["study", "transpositions", str(tmp_path / "zoo"), "--no-barriers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["planted"] == [0, 0, 3, 3] and found["most"] == 5
    assert found["steps"][0] == {"step": 0, "found": [0, 0, 3, 3], "apart": [0, 0, 0, 0]}
    assert found["barriers"] == {} and found["along"]["3"][0] == 0


def test_what_is_left_out_and_what_is_refused(tmp_path: Path) -> None:
    zoo = planted_zoo(tmp_path / "zoo", "mlp-4-12-3")
    some = zoo.where("member != 'r1'")
    assert transpositions(some, points=2).left_out == 5
    assert transpositions(zoo.where("member != 'r1' and step == 0"), points=2).steps == (0,)
    with pytest.raises(ZooError, match="expected a planted member and its reference, both finite, got no planted"):
        transpositions(zoo.where("member == 'r0'"))
    with pytest.raises(ZooError, match="points: expected an integer, 2 or more, got int 1"):
        transpositions(zoo, points=1)
    other = planted_zoo(tmp_path / "other", "mlp-4-12-3", permutations={"fc1": [0] * 12})
    with pytest.raises(SymmetryError, match="expected each of 0 to 11 once"):
        transpositions(other)
    with ckptzoo.create(tmp_path / "third", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        rows = [{"id": "r0", "member": "r0", "extra": {"planted": {"of": "r1", "run": 0}}}]
        writer.add(weights_of(1, 0, arch=zoo.arch), rows)
    with pytest.raises(ZooError, match=r"planted of r0: expected of and permutations, run, transpositions, got \{'of"):
        transpositions(ckptzoo.open(tmp_path / "third"))
