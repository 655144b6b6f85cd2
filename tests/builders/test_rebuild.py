"""Members trained again from their rows: the same bits however they were built, and whatever was tampered with."""

import dataclasses
import json
import os
import shutil
import time
import weakref
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ckptzoo
from builders import planted
from builders.build import build
from builders.rebuild import RepeatedTraining
from builders.recipe import Recipe
from builders.rounding import round_weights
from ckptzoo.cli.app import run
from ckptzoo.errors import IntegrityError, MissingExtraError, UnknownNameError, ZooError
from ckptzoo.loader import rebuilding
from tests.support.builds import QUIET
from tests.support.effort import ALL, examples
from tests.support.made_once import made_once

DATA = Path(os.environ.get("CKPTZOO_DATA") or Path(__file__).parents[3] / "shared" / "data")
TOY = Recipe.load("toy").shortened(1)
ROLLING = dataclasses.replace(TOY, name="rolling", momentum=0.9, learning_rate=0.2)
"""The same with momentum, so that weights alone are no state of the optimiser."""
KEPT = (0, 7, 20)
STEPS = TOY.steps
RECIPES = {"toy": TOY, "rolling": ROLLING}
SLOWLY = settings(max_examples=examples(200, 2), suppress_health_check=[HealthCheck.too_slow])


def make(folder: Path) -> None:
    for name, recipe in RECIPES.items():
        build(recipe, folder / name, members=3, keep_steps=KEPT, unit_size=2, console=QUIET)
        # every step, to compare with
        build(recipe, folder / f"{name}-whole", members=3, keep_steps=range(STEPS), console=QUIET)


@pytest.fixture(scope="module")
def zoos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not any(item.group == rebuilding.GROUP for item in metadata.distribution("ckptzoo").entry_points):
        pytest.fail("the installed distribution declares no trainer: install it again (pip install -e .)")
    return made_once(tmp_path_factory, "rebuilt-toys", make)


def written(zoo: Path, to: Path, rows: list[dict[str, Any]], weights: dict[str, np.ndarray]) -> "ckptzoo.Zoo":
    """A zoo of these rows and weights, with all digests made anew."""
    opened = ckptzoo.open(zoo)
    shutil.rmtree(to, ignore_errors=True)
    ckptzoo.create(to, arch=opened.arch, card=ckptzoo.Card(opened.name), symmetry=opened.symmetry)
    with ckptzoo.append(to) as writer:
        writer.add(weights, [{key: value for key, value in row.items() if key != "finite"} for row in rows])
    assert ckptzoo.verify(to) == []
    return ckptzoo.open(to)


def content(zoo: Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    opened = ckptzoo.open(zoo)
    return opened.metadata.to_pylist(), {name: np.array(opened[name][:]) for name in opened.arch.names}


@SLOWLY
@given(st.data())
def test_any_step_has_the_bits_of_a_build_that_kept_it(zoos: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(RECIPES)))
    few, whole = ckptzoo.open(zoos / name), ckptzoo.open(zoos / f"{name}-whole")
    member = data.draw(st.sampled_from(sorted(set(few.column("member").to_pylist()))))
    kept = data.draw(st.sets(st.sampled_from([*KEPT, STEPS]), min_size=1))
    step = data.draw(st.integers(0, STEPS))
    chosen = few.where({"step": sorted(kept)})
    expected = whole.where({"member": member, "step": step})[0]
    found = chosen.at(member, step, check=data.draw(st.booleans()))
    assert all(np.asarray(found[tensor]).tobytes() == np.asarray(expected[tensor]).tobytes() for tensor in found)
    assert (found.row["member"], found.row["step"], found.row["seed"]) == (member, step, expected.row["seed"])


@SLOWLY
@given(st.data())
def test_a_member_is_the_same_in_any_unit_with_any_stops_and_threads(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    zoo, recipe = tmp_path_factory.mktemp("unit") / "zoo", data.draw(st.sampled_from([TOY, ROLLING]))
    members = data.draw(st.integers(1, 5))
    build(
        recipe,
        zoo,
        members=members,
        first_seed=data.draw(st.integers(0, 10**6)),
        keep_steps=data.draw(st.lists(st.integers(0, STEPS), max_size=4)),
        unit_size=data.draw(st.integers(1, 5)),
        engine=data.draw(st.sampled_from(["mlp", "general", "single"])),
        threads=data.draw(st.integers(1, 3)),
        console=QUIET,
    )
    count, threads = data.draw(st.integers(1, members)), data.draw(st.integers(1, 3))
    found = ckptzoo.open(zoo).rebuild(count, seed=data.draw(st.integers(0, 99)), threads=threads)
    assert (found.reproduced, len(found.members)) == (count, count), found.members


def _changed_recipe(row: dict[str, Any], key: str, factor: float) -> None:
    """Another recipe, whose digest the row has."""
    extra = json.loads(row["extra"])
    recipe = dataclasses.replace(TOY, **{key: type(getattr(TOY, key))(getattr(TOY, key) * factor)})
    row["extra"], row["recipe_digest"] = json.dumps({**extra, **recipe.facts()}), recipe.digest


def _changed_extra(row: dict[str, Any], **values: Any) -> None:
    row["extra"] = json.dumps({**json.loads(row["extra"]), **values})


FIGURES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "test_nll", "test_brier", "test_ece")
TAMPERINGS: dict[str, Callable[[dict[str, Any]], None]] = {
    **{
        figure: (lambda row, figure=figure: row.update({figure: row[figure] + (0.03 if row[figure] < 0.5 else -0.03)}))
        for figure in FIGURES
    },
    "seed": lambda row: row.update(seed=row["seed"] + 1),
    "other seed": lambda row: row.update(seed=2**62),
    "negative seed": lambda row: row.update(seed=-1),
    "step": lambda row: row.update(step=(row["step"] + 1) % STEPS),
    "step beyond the end": lambda row: row.update(step=STEPS + 1),
    "step of another row": lambda row: row.update(step=7 if row["step"] != 7 else 20),
    "epoch": lambda row: row.update(epoch=row["epoch"] + 0.5),
    "precision": lambda row: row.update(precision="float64"),
    "data set": lambda row: row.update(dataset="mnist"),
    "digest of the data": lambda row: row.update(dataset_digest="sha256:" + "0" * 64),
    "digest of the recipe": lambda row: row.update(recipe_digest="sha256:" + "0" * 64),
    "name of the recipe": lambda row: row.update(recipe="rolling"),
    "diverged": lambda row: row.update(diverged=not row["diverged"]),
    "engine": lambda row: _changed_extra(row, engine="general" if "mlp" in row["extra"] else "mlp"),
    "rate in extra": lambda row: _changed_extra(row, learning_rate=0.5),
    "rate": lambda row: _changed_recipe(row, "learning_rate", 1.0001),
    "batch": lambda row: _changed_recipe(row, "batch", 2),
    "decay": lambda row: _changed_extra(row, weight_decay=1e-4),
    "seed of the data": lambda row: _changed_extra(row, data_seed=1),
}

LATER = ("engine",)


@SLOWLY
@given(st.data())
@example(None)
def test_what_was_tampered_with_and_sealed_again_is_found(
    zoos: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject | None
) -> None:
    to = tmp_path_factory.mktemp("tampered") / "toy"
    if data is None:  # nothing is, and nothing is found
        assert written(zoos / "toy", to, *content(zoos / "toy")).rebuild(3).reproduced == 3
        return
    rows, weights = content(zoos / "toy")
    number = data.draw(st.integers(0, len(rows) - 1))
    how = data.draw(st.sampled_from(["weight", "swap", *TAMPERINGS]))
    if how == "weight":
        array = weights[data.draw(st.sampled_from(sorted(weights)))][number].reshape(-1)
        place = data.draw(st.integers(0, array.size - 1))
        array[place] = np.nextafter(array[place], np.float32(np.inf))
    elif how == "swap":
        other = (number + 1) % len(rows)
        for array in weights.values():
            array[[number, other]] = array[[other, number]]
    else:
        TAMPERINGS[how](rows[number])
    found = written(zoos / "toy", to, rows, weights).rebuild([rows[number]["member"]])
    # an engine decides no bit of step 0
    if how in LATER and rows[number]["step"] == 0:
        return
    assert found.reproduced == 0 and found.members[0].differences, (how, rows[number], found)


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=examples(400, 15), suppress_health_check=[HealthCheck.too_slow])
@given(key=st.sampled_from(sorted({*TOY.facts(), "mean", "std", "inputs", "target_mean", "planted"})), value=HOSTILE)
@example(key="train", value=2**31)
@example(key="centres", value=[[1e308, 1e308], [0, 0]])
@example(key="architecture", value="mlp-32768-32768-1")
@example(key="architecture", value="../toy")
@example(key="dataset", value="../../etc")
@example(key="milestones", value={"a": 1})
@example(key="full_epochs", value={})
@example(key="engine", value="os")
def test_a_hostile_recipe_is_refused_in_a_sentence(zoos: Path, key: str, value: Any) -> None:
    zoo = ckptzoo.open(zoos / "toy")
    row = zoo[0].row
    extra = {**json.loads(row["extra"]), key: value}
    options = rebuilding.RebuildOptions()
    row = {**row, "extra": json.dumps(extra)}
    # as somebody who makes the digest of what they wrote
    for digest in (row["recipe_digest"], _digest_of(row, extra)):
        try:
            options.open({**row, "recipe_digest": digest}, zoo.arch)
        except ZooError as error:
            assert str(error).count("\n") <= len(getattr(error, "problems", ())) + 1


def _digest_of(row: dict[str, Any], extra: dict[str, Any]) -> str:
    names = {field.name for field in dataclasses.fields(TOY)}
    known = {name: value for name, value in extra.items() if name in names}
    try:
        named = {"inputs": "gaussians", **known, "name": row["recipe"]}
        return Recipe.from_content(named, location="here").digest
    except Exception:
        return row["recipe_digest"]


BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no recipe": ({"recipe": None}, r"recipe: expected one in its row \(recipe\), got none"),
    "no digest": ({"recipe_digest": None}, r"recipe: expected one in its row \(recipe_digest\), got none"),
    "no seed": ({"seed": None}, r"seed: expected one in its row \(seed\), got none\. It cannot be trained again"),
    "a draw": ({"method": "swag"}, "expected one of a training run, got a draw of the posterior method swag"),
    "a recipe that is gone": (
        {"extra": None, "recipe": "gone"}, r"no recipe of builders is called 'gone'.*Give the recipe.*--recipe FILE"
    ),
    "no engine": ({"extra": "{}", "recipe": "toy"}, r"engine: expected one of .* in extra\.engine, got none"),
    "a GPU": ({"device": "cuda: NVIDIA H100"}, "got none, and it was trained on cuda: NVIDIA H100 by mlp. Rebuild it on"),
    "a step behind the end": ({"step": STEPS + 1}, rf"step: expected 0 to {STEPS}, those of toy, got {STEPS + 1}"),
    "other data": ({"dataset_digest": "sha256:1"}, "expected sha256:1, on which it was trained, got .* --data FOLDER"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ROWS)
def test_what_cannot_be_trained_again_says_why(zoos: Path, name: str) -> None:
    changes, said = BAD_ROWS[name]
    zoo = ckptzoo.open(zoos / "toy")
    row = {**zoo[0].row, **changes}
    if changes.get("extra") == "{}":
        row["recipe_digest"] = Recipe.load("toy").digest
    with pytest.raises(ZooError, match=f"(?s){said}"):
        rebuilding.RebuildOptions().open(row, zoo.arch)


def test_missing_data_names_the_folder(zoos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo, recipe = ckptzoo.open("cards/mnist-optunet"), Recipe.load("mnist-optunet")
    monkeypatch.delenv("CKPTZOO_DATA", raising=False)
    with pytest.raises(ZooError, match="mnist"):
        zoo.at(zoo[0].row["member"], 3, data=tmp_path)
    assert zoo[0].row["recipe_digest"] == recipe.digest


def test_steps_members_and_bounds_that_are_not_there(zoos: Path) -> None:
    zoo = ckptzoo.open(zoos / "toy")
    member = zoo[0].row["member"]
    with pytest.raises(ZooError, match=rf"step: expected 0 to {STEPS}, where its training ended, got 41\. Choose"):
        zoo.at(member, STEPS + 1)
    with pytest.raises(UnknownNameError, match="toy"):
        zoo.at("nobody", 3)
    with pytest.raises(UnknownNameError):
        zoo.rebuild(["nobody"])
    with pytest.raises(ZooError, match=r"memory of training: expected at most 1 .*--max-memory"):
        zoo.at(member, 3, max_bytes=1)
    found = zoo.rebuild(1, max_bytes=1)
    assert zoo.rebuild(1, max_bytes=2**40).reproduced == 1
    assert found.reproduced == 0 and "memory of training" in str(found.members[0].refused)


def test_what_would_take_too_long_is_not_begun(tmp_path: Path) -> None:
    slow = dataclasses.replace(TOY, name="slow", epochs=10**5)
    zoo = tmp_path / "zoo"
    ckptzoo.create(zoo, arch=slow.arch, card=ckptzoo.Card("slow"))
    build(TOY, tmp_path / "toy", members=1, console=QUIET)
    rows, weights = content(tmp_path / "toy")
    extra = {**json.loads(rows[0]["extra"]), **slow.facts()}
    changes = {"recipe": slow.name, "recipe_digest": slow.digest, "extra": json.dumps(extra), "step": slow.steps}
    opened = written(tmp_path / "toy", zoo, [{**rows[0], **changes}], weights)
    found = opened.rebuild(1, max_seconds=2)
    refused = str(found.members[0].refused)
    assert "time of training: expected at most 0:00:02, got about" in refused and "--max-seconds" in refused


def test_one_data_set_and_few_weights_are_in_memory(zoos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo, trainer, measure = ckptzoo.open(zoos / "rolling"), rebuilding.load_trainer(), RepeatedTraining.measure
    monkeypatch.setattr(rebuilding, "_MEASURED_BYTES", 2 * zoo.arch.nbytes)
    runs, alive, measured = list[weakref.ref[Any]](), list[int](), list[int]()

    def watched(row: Any, arch: Any, **options: Any) -> Any:
        alive.append(sum(run() is not None for run in runs))
        run = trainer(row, arch, **options)
        runs.append(weakref.ref(run))
        return run

    def counting(run: RepeatedTraining, weights: Any) -> Any:
        measured.append(len(next(iter(weights.values()))))
        return measure(run, weights)

    monkeypatch.setattr(rebuilding, "load_trainer", lambda: watched)
    monkeypatch.setattr(RepeatedTraining, "measure", counting)
    assert zoo.rebuild(3).reproduced == 3
    assert sum(measured) == 3 * (len(KEPT) + 1) and max(measured) == 2
    # that of the row before is alive until the next one is there
    assert len(alive) > 12 and max(alive) <= 1
    assert {"time of training" in str(member.refused) for member in zoo.rebuild(3, max_seconds=0).members} == {True}


def test_what_a_failed_training_took_is_gone(zoos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo, trainer, left = ckptzoo.open(zoos / "toy"), rebuilding.load_trainer(), list[float]()

    def failing(row: Any, arch: Any, **options: Any) -> Any:
        run = dataclasses.replace(trainer(row, arch, **options), unit_size=1)

        def train(*given: Any, max_seconds: float, **named: Any) -> Any:
            left.append(max_seconds)
            time.sleep(0.05)
            raise ZooError("no more")
            yield

        object.__setattr__(run, "train", train)
        return run

    monkeypatch.setattr(rebuilding, "load_trainer", lambda: failing)
    assert zoo.rebuild(3, max_seconds=60).reproduced == 0
    assert len(left) == 3 and all(before - after >= 0.05 for before, after in pairwise(left))


def test_the_first_steps_are_counted(zoos: Path) -> None:
    zoo = ckptzoo.open(zoos / "toy")
    run = rebuilding.RebuildOptions().open(zoo[0].row, zoo.arch)
    with pytest.raises(ZooError, match=r"time of training: expected at most 0:00:00, got 0:00:00 for the first 2 step"):
        list(run.train([1], [STEPS], max_seconds=0, location="toy"))


def test_a_replay_that_does_not_reach_the_next_kept_step_is_refused(zoos: Path, tmp_path: Path) -> None:
    rows, weights = content(zoos / "toy")
    place = next(at for at, row in enumerate(rows) if row["step"] == 20)
    next(iter(weights.values()))[place] += 1e-3
    zoo = written(zoos / "toy", tmp_path / "toy", rows, weights)
    member = rows[place]["member"]
    with pytest.raises(IntegrityError, match=r"training from step 7: expected the weights that are kept of step 20"):
        zoo.at(member, 9)
    assert zoo.at(member, 9, check=False).row["step"] == 9


def test_planted_and_rounded_members_and_other_recipes_by_file(zoos: Path, tmp_path: Path) -> None:
    planted.build(TOY, tmp_path / "planted", runs=1, transpositions=(0, 1), keep_steps=KEPT, console=QUIET)
    assert ckptzoo.open(tmp_path / "planted").rebuild(3).reproduced == 3
    file = tmp_path / "whole.toml"
    file.write_text(Recipe.load("toy").to_toml())
    zoo = ckptzoo.open(zoos / "toy")
    assert zoo.rebuild(1, recipe=file).reproduced == 1  # for the epochs that rows state
    file.write_text(dataclasses.replace(TOY, full_epochs=None, batch=20).to_toml())
    found = zoo.rebuild(1, recipe=file)
    assert found.reproduced == 0 and "Ask whoever wrote the row" in found.members[0].differences[0]


@pytest.mark.exhaustive
def test_rounded_members_are_rounded_again(tmp_path: Path) -> None:
    recipe = Recipe.load("digits-optunet").shortened(1)
    build(recipe, tmp_path / "zoo", members=2, engine="optunet", console=QUIET)
    round_weights(tmp_path / "zoo", recipe, tmp_path / "half")
    zoo = ckptzoo.open(tmp_path / "half")
    assert zoo.arch.tensors[0].dtype == "float16"
    assert zoo.rebuild(2).reproduced == 2
    assert zoo.at(zoo[0].row["member"], 3)["fc.weight"].dtype == np.float16


def test_without_the_trainer_one_sentence_says_what_to_install(zoos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = ckptzoo.open(zoos / "toy")
    monkeypatch.setattr(rebuilding, "GROUP", "of.another")
    for call in (lambda: zoo.rebuild(1), lambda: zoo.at(zoo[0].row["member"], 3)):
        with pytest.raises(MissingExtraError, match=r"pip install 'ckptzoo\[build\]'"):
            call()
    assert len(zoo.at(zoo[0].row["member"], 7)) == len(zoo.arch.tensors)  # what is kept needs no trainer


@pytest.mark.exhaustive
def test_the_commands(zoos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zoo = shutil.copytree(zoos / "toy", tmp_path / "toy")
    member = ckptzoo.open(zoo)[0].row["member"]
    assert run(["verify", str(zoo), "--rebuild", "2", "--seed", "1", "--mark", "Ada Example"]) == 0
    assert "toy: 2 of 2 members (drawn from 3 with seed 1) rebuilt bit for bit." in capsys.readouterr().out
    (mark,) = ckptzoo.open(zoo).reproduced
    assert mark.by == "Ada Example" and len(mark.ids) == 2 * (len(KEPT) + 1) and mark.on["engine"] == "mlp"
    assert run(["verify", str(zoo), "--member", member, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rebuilt"]["members"][0]["reproduced"] is True and answer["rebuilt"]["seed"] is None
    for name in ("a\tb", "a" * 201):
        assert run(["verify", str(zoo), "--rebuild", "1", "--mark", name]) != 0
        said = capsys.readouterr()
        assert "mark: name: expected the name of who" in said.err and "rebuilt" not in said.out
    assert run(["verify", str(zoo), "--seed", "1"]) == 2 and run(["verify", str(zoo), "--mark", "Ada"]) == 2
    capsys.readouterr()
    file = tmp_path / "net.safetensors"
    assert run(["rebuild", str(zoo), member, "--step", "9", "-o", str(file)]) == 0 and file.is_file()
    rows, weights = content(zoo)
    next(iter(weights.values()))[:] *= 2
    written(zoos / "toy", zoo, rows, weights)
    capsys.readouterr()
    assert run(["verify", str(zoo), "--member", member]) == 1
    said = capsys.readouterr().out
    assert f"{member}: differs: step 0: weights of " in said and "Rebuilt on processor " in said


@pytest.mark.exhaustive
@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="MNIST is not available (CKPTZOO_DATA)")
def test_random_steps_of_the_shipped_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTZOO_DATA", str(DATA))
    zoo = ckptzoo.open("cards/mnist-optunet-trajectories")
    rng = np.random.default_rng(np.random.SeedSequence(48))
    members = sorted(set(zoo.column("member").to_pylist()))
    for _ in range(10 if ALL else 1):  # the next kept step of each is compared
        assert zoo.at(members[rng.integers(len(members))], int(rng.integers(56_281))).row["recipe"] == "mnist-optunet"
