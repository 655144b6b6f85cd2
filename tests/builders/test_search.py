"""Searches of OptuNet's family: what they find, killed, repeated and by several processes at once."""

import io
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import builders.search
import ckptzoo
from builders.__main__ import run
from builders.progress import Progress
from builders.recipe import Recipe, names
from builders.search import BEST, ENGINE, PICTURE, SearchedNetworks, search, with_architecture
from builders.search_trials import JOURNAL, PUBLISHED, SPACE, Trials
from builders.train import Trainer
from ckptzoo import archs
from ckptzoo.errors import IntegrityError, MissingExtraError, ZooError
from tests.support.effort import ALL

ROOT = Path(__file__).parents[2]
RECIPE = "digits-optunet"
TRIALS, MEMBERS = 12, 2
"""More than the ten trials that TPE draws at random."""
KILLS = 10 if ALL else 2


def quick(to: Path, **options: Any) -> SearchedNetworks:
    """A search of short trials in this process, without output."""
    options = {"trials": TRIALS, "epochs": 1, "members": MEMBERS, "console": Console(file=io.StringIO()), **options}
    return search(RECIPE, to, **options)


def command(to: Path, trials: int = TRIALS) -> "subprocess.Popen[str]":
    """The same as a process."""
    arguments = ["search", RECIPE, "--to", str(to), "--trials", str(trials), "--epochs", "1"]
    arguments += ["--members", str(MEMBERS), "--threads", "1", "--json"]
    line = [sys.executable, "-m", "builders", *arguments]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def figures(found: SearchedNetworks) -> dict[str, Any]:
    """What a search has found, without where, and without the numbers of trials, which count lost ones."""
    content = json.loads(json.dumps(found.to_json()))
    del content["folder"]
    for network in (*content["networks"], *content["front"], content["best"]):
        del network["trial"]
    return content


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SearchedNetworks:
    return quick(tmp_path_factory.mktemp("search") / "new")


def test_the_space_holds_networks_that_there_are_and_optunet_is_the_first(found: SearchedNetworks) -> None:
    assert all(
        distribution._contains(distribution.to_internal_repr(PUBLISHED[name])) for name, distribution in SPACE.items()
    )
    assert found.networks[0].architecture == "optunet" and found.networks[0].parameters == 392
    assert found.trials == TRIALS and not found.failures
    assert len({network.architecture for network in found.networks}) == len(found.networks) > 10
    for network in found.networks:
        assert archs.architecture(network.architecture).parameters == network.parameters
        assert network.accuracy == pytest.approx(np.mean(network.accuracies)) and len(network.accuracies) == MEMBERS


@pytest.mark.parametrize("which", [min, max])
def test_the_smallest_and_the_largest_networks_of_the_space_exist(which: Any) -> None:
    sampled = {
        name: which(distribution.choices if name == "hidden" else (distribution.low, distribution.high))
        for name, distribution in SPACE.items()
    }
    ends = [{**sampled, "kernel2": 5, "kernel1": kernel, "pool": 4} for kernel in (2, 7)]
    for chosen in (sampled, *ends):
        assert archs.known(builders.search_trials._architecture(chosen))


def test_the_front_is_that_of_brute_force(found: SearchedNetworks) -> None:
    surpassed = {
        one.architecture
        for one in found.networks
        for other in found.networks
        if other.parameters <= one.parameters
        and other.accuracy >= one.accuracy
        and (other.parameters, other.accuracy) != (one.parameters, one.accuracy)
    }
    expected = [network for network in found.networks if network.architecture not in surpassed]
    assert sorted(expected, key=lambda network: network.parameters) == list(found.front)
    assert 0 < len(found.front) < len(found.networks)
    assert found.best in found.front


@pytest.mark.exhaustive
def test_the_best_is_the_most_accurate_with_at_most_so_many_parameters(found: SearchedNetworks) -> None:
    front = found.front
    for bound, best in ((10**6, front[-1]), (front[-1].parameters - 1, front[-2]), (1, front[0])):
        assert quick(found.folder, max_parameters=bound).best == best
        assert Recipe.load(found.folder / BEST).architecture == best.architecture
    stream = io.StringIO()
    quick(found.folder, max_parameters=1).print(Console(file=stream, width=200))
    assert "the smallest: none has at most 1." in stream.getvalue()
    assert quick(found.folder).best == found.best


@pytest.mark.exhaustive
def test_the_recipe_file_builds_the_members_of_the_trial(found: SearchedNetworks, tmp_path: Path) -> None:
    quick(found.folder, max_parameters=10**6)
    file = found.folder / BEST
    recipe = Recipe.load(file)
    assert recipe.epochs == Recipe.load(RECIPE).epochs and recipe.name == f"digits-{recipe.architecture}"
    arguments = ["--epochs", "1", "--members", str(MEMBERS), "--engine", ENGINE, "--to", str(tmp_path / "zoo")]
    assert run(["build", str(file), *arguments]) == 0
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert ckptzoo.verify(tmp_path / "zoo") == []
    rows = sorted(zoo.metadata.to_pylist(), key=lambda row: row["seed"])
    assert tuple(row["test_accuracy"] for row in rows) == found.front[-1].accuracies


@pytest.mark.parametrize("name", names())
def test_a_recipe_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    file = tmp_path / "copy.toml"
    file.write_text(Recipe.load(name).to_toml())
    assert Recipe.load(file) == Recipe.load(name) and Recipe.load(file).digest == Recipe.load(name).digest


def test_optunet_itself_stays_the_recipe() -> None:
    recipe = Recipe.load(RECIPE)
    assert with_architecture(recipe, "optunet").digest == recipe.digest
    assert with_architecture(recipe, "optunet-3-5-2-8-4-1").digest != recipe.digest


@pytest.mark.exhaustive
def test_the_same_seed_finds_the_same_and_another_one_other_networks(found: SearchedNetworks, tmp_path: Path) -> None:
    """At once, or when a search of fewer trials, which is done, is carried on: in full to the end."""
    few = quick(tmp_path / "again", trials=3)
    journal = (few.folder / JOURNAL).read_bytes()
    assert quick(few.folder, trials=3) == few and (few.folder / JOURNAL).read_bytes() == journal, "it is done"
    more = quick(few.folder, trials=4)
    assert more.networks == found.networks[: len(more.networks)] and more.networks[: len(few.networks)] == few.networks
    other = quick(tmp_path / "other", seed=1, trials=2)
    assert {network.architecture for network in other.networks} & {
        network.architecture for network in found.networks
    } == {"optunet"}
    if not ALL:
        return
    again = quick(few.folder, threads=1)
    assert figures(again) == figures(found) == figures(quick(found.folder))
    for name in (PICTURE, BEST):
        assert (again.folder / name).read_bytes() == (found.folder / name).read_bytes()


@pytest.mark.exhaustive
def test_killed_at_any_moment_it_ends_with_what_an_undisturbed_one_finds(
    found: SearchedNetworks, tmp_path: Path
) -> None:
    for kill in range(1, KILLS + 1):
        with command(tmp_path) as child:
            wait_for_results(tmp_path, min(kill * 2, TRIALS - 2), child)
            child.kill()
    assert list(tmp_path.glob("trial-*.claim-*")), "it was killed between two trials"
    with command(tmp_path) as child:
        output, errors = child.communicate()
    assert child.returncode == 0, errors
    made = [line for line in errors.splitlines() if ": trial " in line]
    assert len(made) < TRIALS, "no trial is made twice"
    content = json.loads(output)
    assert [network["architecture"] for network in content["networks"]] == [
        item.architecture for item in found.networks
    ]
    assert figures(quick(tmp_path)) == figures(found)


def wait_for_results(folder: Path, count: int, child: "subprocess.Popen[str]") -> None:
    """Until so many results were told, and the network of the next trial is trained."""

    def ready() -> bool:
        try:
            journal = (folder / JOURNAL).read_text()
        except FileNotFoundError:
            return False
        told = journal.count('"datetime_complete"')
        # the last of the choices of a trial is "hidden"
        return told >= count and journal.count('"param_name":"hidden"') > told and any(folder.glob("trial-*.claim-*"))

    while not ready():
        assert child.poll() is None
        time.sleep(0.005)


@pytest.mark.exhaustive
def test_interrupted_it_says_how_to_carry_on(tmp_path: Path) -> None:
    with command(tmp_path) as child:
        wait_for_results(tmp_path, 1, child)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate()
    assert child.returncode == 130
    assert (
        errors.splitlines()[-1] == "builders: interrupted: finished trials are kept. Run the same command to carry on."
    )
    assert not list(tmp_path.glob("*.claim-*"))


@pytest.mark.exhaustive
def test_several_processes_share_the_trials(tmp_path: Path) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(command(tmp_path)) for _ in range(3)]
        wait_for_results(tmp_path, 2, children[0])
        children[0].kill()
        for child in children[1:]:
            _, errors = child.communicate()
            assert child.returncode == 0, errors
    found = quick(tmp_path)
    assert found.trials == TRIALS and not found.failures
    assert found.networks[0].architecture == "optunet"


@pytest.mark.exhaustive
def test_a_last_line_that_a_killed_process_left_unfinished_is_removed(found: SearchedNetworks, tmp_path: Path) -> None:
    quick(tmp_path, trials=3)
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":5,"worker')
    assert figures(quick(tmp_path)) == figures(found)
    assert journal.read_bytes().startswith(whole + b'{"op_code":4,'), "the next trial"


def test_a_network_that_fails_stops_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Trainer.advance

    def fail(trainer: Trainer, state: Any, stop: int) -> None:
        if trainer.recipe.architecture != "optunet":
            raise RuntimeError("no memory for\nthis network")
        advance(trainer, state, stop)

    monkeypatch.setattr(Trainer, "advance", fail)
    stream = io.StringIO()
    found = quick(tmp_path, trials=3, console=Console(file=stream, width=300))
    assert [network.architecture for network in found.networks] == ["optunet"] and found.trials == 3
    assert [(item.trial, item.reason) for item in found.failures] == [
        (n, "RuntimeError: no memory for\nthis network") for n in (1, 2)
    ]
    assert "6/6 members, 270/270 steps" in stream.getvalue()
    found.print(Console(file=stream, width=300))
    assert "3 trials, 1 network, 1 of them on the Pareto front; 2 trials failed." in stream.getvalue()


@pytest.mark.exhaustive
def test_networks_that_diverge_are_failures_and_where_all_do_there_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "wild.toml"
    file.write_text(
        (builders.recipe.FOLDER / f"{RECIPE}.toml").read_text().replace("learning_rate = 0.2", "learning_rate = 1e30")
    )
    with pytest.raises(
        ZooError,
        match=r"a trial with a result, got 2 trials that ended; .* expected finite training losses, got 2 of 2 members that diverged",
    ):
        search(file, tmp_path / "to", trials=2, epochs=1, members=2, console=Console(file=io.StringIO()))


def test_a_network_that_is_drawn_again_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Trials(tmp_path, "search", 0)
    trained: list[str] = []

    def accuracies(training: Any, recipe: Recipe, progress: Progress, should_stop: Any) -> list[float]:
        trained.append(recipe.architecture)
        return [0.5, 0.7]

    monkeypatch.setattr(builders.search._Training, "accuracies", accuracies)
    with Progress(Console(file=io.StringIO()), "n", members=1, member_steps=1, done=0, finished=0) as progress:
        training = builders.search._Training(Recipe.load(RECIPE), None, 2, "cpu", 1)  # pyright: ignore[reportArgumentType]
        for limit in (1, 2):
            if limit == 2:
                known._study.enqueue_trial(PUBLISHED)
            assert builders.search._make_trial(known, limit, training, progress, lambda: False) is not None
    assert trained == ["optunet"] and known.ended() == 2
    assert [(network.trial, network.accuracies) for network in known.networks()] == [(0, (0.5, 0.7))]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"epochs": 2},
            "search: expected digits-optunet-[0-9a-f]{8}-members2-seed0, got digits-optunet-3a775d60-members2-seed0",
        ),
        ({"members": 3}, "Choose another folder, or give the arguments of that search"),
        ({"seed": 1}, "members2-seed1, got"),
        ({"trials": 0}, "trials: expected at least 1"),
        ({"device": "tpu"}, "device: expected cpu or cuda"),
    ],
)
def test_what_does_not_fit_is_refused(found: SearchedNetworks, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ZooError, match=said):
        quick(found.folder, **options)


def test_recipes_of_other_networks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", "toy", "--to", str(tmp_path / "to")]) == 2
    assert "recipe 'toy': architecture: expected 'optunet', got 'mlp-2-2-1'" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b"these are\nno trials\n")
    with pytest.raises(IntegrityError, match=r"journal\.log: journal: expected one that Optuna reads"):
        quick(tmp_path)


@pytest.mark.parametrize("package", ["optuna", "matplotlib"])
def test_without_the_extra_it_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} is not installed.*ckptzoo\[search\]"):
        quick(tmp_path / "to")
    assert not (tmp_path / "to").exists()
