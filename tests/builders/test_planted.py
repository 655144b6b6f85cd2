"""Planted pairs: where they start, what is trained, what their rows say, and builds that are stopped or refused."""

import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from builders import rng, sources
from builders.__main__ import run
from builders.build import Built
from builders.build import build as build_members
from builders.checkpointing import WORK_FOLDER, Interrupted
from builders.planted import PlantedMember, build, initial_weights, planted_recipe
from builders.recipe import Recipe
from builders.status import status
from builders.train import open_trainer
from ckptzoo import archs
from ckptzoo.errors import ZooError
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.symmetry import GroupElement, apply, transpositions
from tests.support.builds import QUIET, stopped_soon

ROOT = Path(__file__).parents[2]
TOY = dataclasses.replace(
    Recipe.load("toy").shortened(2), architecture="mlp-2-6-5-1", learning_rate=0.1, momentum=0.9, weight_decay=1e-3
)
MOST = 9
NUMBERS = (0, 2, 9)


def planted(to: Path, **options: Any) -> Built:
    return build(TOY, to, **{"runs": 2, "transpositions": NUMBERS, "console": QUIET, **options})


def facts(path: Path) -> list[dict[str, Any]]:
    extras = [parse_extra(text) for text in ckptzoo.open(path).metadata["extra"].to_pylist()]
    return [extra["planted"] for extra in extras if extra is not None]


def content(path: Path) -> dict[str, list[bytes]]:
    zoo = ckptzoo.open(path)
    return {name: [zoo[tensor][row].tobytes() for tensor in zoo.arch.names] for row, name in enumerate(zoo.ids)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted") / "zoo"
    built = planted(path, keep_steps=(0, 7))
    assert (built.members, built.checkpoints) == (8, 24)
    assert not ckptzoo.verify(path)
    return path


def test_seeds_are_those_of_runs_and_numbers() -> None:
    members = [PlantedMember(run, number) for run in range(3) for number in (None, *range(MOST + 1))]
    assert [member.seed(MOST) for member in members] == list(range(3 * (MOST + 2)))
    assert [PlantedMember.of(seed, MOST) for seed in range(len(members))] == members


def test_members_start_at_the_reference_with_its_neurons_exchanged(whole: Path) -> None:
    zoo, table = ckptzoo.open(whole), archs.symmetry(TOY.architecture)
    rows, facts_of = zoo.metadata.to_pylist(), facts(whole)
    first = {row["member"]: place for place, row in enumerate(rows) if row["step"] == 0}
    assert len(first) == 8
    for member, place in first.items():
        start = {name: np.asarray(zoo[name])[place : place + 1] for name in zoo.arch.names}
        if "of" not in facts_of[place]:
            assert facts_of[place] == {"run": facts_of[place]["run"]}
            seeds = [rows[place]["seed"]]
            initial = rng.initial_weights(zoo.arch, rng.member_keys(rows[place]["recipe_digest"], seeds))
            assert all(np.array_equal(start[name], initial[name]) for name in start)
            continue
        perms = facts_of[place]["permutations"]
        counts = {group: int(transpositions(perm)) for group, perm in perms.items()}
        assert counts == facts_of[place]["groups"] and sum(counts.values()) == facts_of[place]["transpositions"]
        element = GroupElement.identity(table, 1)
        for group, perm in perms.items():
            element.perms[group][0] = perm
        reference = first[facts_of[place]["of"]]
        assert rows[reference]["seed"] < rows[place]["seed"] and member != facts_of[place]["of"]
        moved = apply(
            element, {name: np.asarray(zoo[name])[reference : reference + 1] for name in zoo.arch.names}, table
        )
        assert all(np.array_equal(start[name], moved[name]) for name in start)
    assert [item.get("transpositions") for item in facts_of if item["run"] == 1][:4] == [None, *NUMBERS]
    runs = [{name: np.asarray(zoo[name])[first[rows[place]["member"]]] for name in zoo.arch.names} for place in (0, 4)]
    assert not np.array_equal(runs[0]["fc1.weight"], runs[1]["fc1.weight"])


def test_the_order_of_the_examples_is_another_one(whole: Path) -> None:
    """A member whose start is that of the reference ends elsewhere."""
    zoo, facts_of = ckptzoo.open(whole), facts(whole)
    steps = zoo.metadata["step"].to_pylist()
    ends = [place for place in range(len(zoo)) if steps[place] == TOY.steps and facts_of[place]["run"] == 0]
    reference, same = ends[0], ends[1]
    assert facts_of[same]["transpositions"] == 0 and facts_of[same]["permutations"] == {}
    assert np.abs(zoo["fc1.weight"][reference] - zoo["fc1.weight"][same]).max() > 1e-3


def test_in_the_same_order_members_end_at_the_permuted_reference() -> None:
    recipe = planted_recipe(dataclasses.replace(TOY, precision="float64"))
    seeds = [PlantedMember(0, number).seed(MOST) for number in (None, *NUMBERS)]
    weights, element = initial_weights(recipe, seeds)
    with open_trainer(recipe, sources.load(recipe), threads=1) as trainer:
        state = trainer.start(seeds, weights)
        state.keys[:] = state.keys[0]
        trainer.advance(state, 40)
    ends = {name: tensor.numpy() for name, tensor in state.weights.items()}
    copies = {name: np.repeat(array[:1], len(seeds), 0) for name, array in ends.items()}
    moved = apply(element, copies, archs.symmetry(recipe.architecture))
    for name, array in ends.items():
        np.testing.assert_allclose(array, moved[name], rtol=0, atol=1e-9)
        assert np.abs(array[-1] - array[0]).max() > 1e-2 or name == "fc3.bias"


@pytest.mark.exhaustive
def test_more_runs_and_numbers_are_added_and_leave_the_others_as_they_are(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    planted(path, runs=1, transpositions=[9, 0], unit_size=1)
    assert planted(path, runs=1, transpositions=[0, 9, 0]).part is None
    grown = planted(path)
    assert (grown.members, grown.held) == (5, 8)
    found, expected = content(path), content(whole)
    assert set(found) == {name for name in expected if name.endswith(f"-{TOY.steps:06d}")}
    np.testing.assert_allclose(
        [np.frombuffer(part, np.float32) for name in found for part in found[name][:1]],
        [np.frombuffer(part, np.float32) for name in found for part in expected[name][:1]],
        atol=1e-5,
    )


def test_beside_the_recipes_own_members(tmp_path: Path) -> None:
    build_members(TOY, tmp_path / "zoo", members=2, console=QUIET)
    assert planted(tmp_path / "zoo", runs=1).members == 4
    assert build_members(TOY, tmp_path / "zoo", members=3, console=QUIET).members == 1
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.metadata["recipe"].to_pylist() == ["toy"] * 2 + ["toy-planted"] * 4 + ["toy"]
    assert zoo.metadata["source"].to_pylist()[2] == "python -m builders planted toy"


def test_stopped_it_goes_on_to_the_same_bits(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zoo"
    with stopped_soon(monkeypatch):
        for _ in range(3):
            with pytest.raises(Interrupted, match="Run the same command"):
                planted(path, keep_steps=(0, 7))
    assert len(list((path / WORK_FOLDER).glob("*/*.state.safetensors"))) == 1
    (unfinished,) = status(path)
    assert unfinished.count("waiting", "silent") == 8
    with pytest.raises(ZooError, match=r"expected transpositions 0,2,9, got transpositions 0,2,8\. Carry it on"):
        planted(path, transpositions=(0, 2, 8), keep_steps=(0, 7))
    planted(path, keep_steps=(0, 7))
    assert content(path) == content(whole) and facts(path) == facts(whole)
    assert not (path / WORK_FOLDER).exists()


@pytest.mark.exhaustive
def test_killed_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "builders", "planted", "toy", "--architecture", "mlp-2-6-1", "--epochs", "100"]
    command += ["--transpositions", "0,1,5", "--runs", "2", "--save-every", "0.01"]
    whole, path = tmp_path / "whole", tmp_path / "zoo"
    assert run([*command[3:], "--to", str(whole)]) == 0
    with subprocess.Popen([*command, "--to", str(path)], cwd=ROOT, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None and not list(path.glob(f"{WORK_FOLDER}/*/*.state.safetensors")):
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL, "killed before it was done"
    assert run([*command[3:], "--to", str(path)]) == 0
    assert content(path) == content(whole)
    assert facts(path) == facts(whole)


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for numbers, got in (((0, 10), "10"), ((-1,), "-1"), ((), "none")):
        with pytest.raises(
            ZooError, match=rf"transpositions: expected numbers from 0 to 9 for \S+, got {got}\. Choose"
        ):
            planted(tmp_path / "zoo", transpositions=numbers)
    with pytest.raises(ZooError, match="runs: expected at least 1, got 0"):
        planted(tmp_path / "zoo", runs=0)
    assert not (tmp_path / "zoo").exists()
    asked = ["planted", "toy", "--runs", "1", "--to", str(tmp_path / "zoo"), "--transpositions"]
    assert run([*asked, "0,x"]) == 2
    assert "expected whole numbers such as 0,100,938" in capsys.readouterr().err
    assert run([*asked, "2"]) == 2
    assert "expected numbers from 0 to 1 for mlp-2-2-1, got 2." in capsys.readouterr().err
    assert run([*asked, "0,1", "--epochs", "1"]) == 0
    assert "3 checkpoints of 3 members in part" in capsys.readouterr().out
    assert run([*asked, "1,0", "--epochs", "1"]) == 0
    assert "holds these members already; nothing was added." in capsys.readouterr().out
