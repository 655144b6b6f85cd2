"""Draws in a zoo: the same bytes however they come about, resumed builds, and what is refused."""

import contextlib
import dataclasses
import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckptzoo
from builders import posterior, rng, sources
from builders.__main__ import run
from builders.build import build as build_members
from builders.checkpointing import WORK_FOLDER, Interrupted
from builders.posterior.build import BuiltDraws, build, estimate
from builders.posterior.dropout import Dropout
from builders.posterior.method import Surroundings, spread
from builders.recipe import Recipe
from builders.rounding import DTYPES, round_weights
from ckptzoo import archs
from ckptzoo.errors import SpecError, UnknownNameError, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents
from ckptzoo.hub.contributions.inputs import inputs_of
from ckptzoo.schema.documents import digest_of
from ckptzoo.schema.metadata import parse_extra
from tests.support.builds import QUIET
from tests.support.effort import ALL

ROOT = Path(__file__).parents[3]
TOY = Recipe.load("toy").shortened(2)
DIGITS = Recipe.load("digits-optunet").shortened(1)
CHANGES: dict[str, dict[str, Any]] = {
    "dropout": {},
    "bnn": {},
    "sghmc": {"epochs": 12, "burn_in": 2, "first_draw": 3, "every": 1},
    "csghmc": {"epochs": 8, "noisy": 1, "draws_per_cycle": 2, "step_size": 0.05},
    "swag": {"snapshots": 3, "distance": 1, "ramp": 1},
    "laplace": {},
    "hmc": {"burn_in": 30, "transitions": 8, "thinning": 2, "most_leapfrogs": 8},
}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("members") / "toy"
    build_members(TOY, path, members=6, console=QUIET)
    return path


def draws_of(method: str, to: Path, members: Path, **options: Any) -> BuiltDraws:
    start = members if posterior.get(method).starts == "member" else None
    given: dict[str, Any] = {"modes": 3, "draws": 4, "start": start, "changes": CHANGES[method], "console": QUIET}
    return build(method, TOY, to, **{**given, **options})


def content(path: Path) -> dict[tuple[str, int], bytes]:
    """The bytes of every draw, by mode and number."""
    zoo = ckptzoo.open(path)
    columns = (zoo.metadata[name].to_pylist() for name in ("mode", "draw"))
    arrays = {name: zoo[name][:] for name in zoo.arch.names}
    return {
        key: b"".join(array[row].tobytes() for array in arrays.values())
        for row, key in enumerate(zip(*columns, strict=True))
    }


@pytest.mark.parametrize("method", posterior.names())
@pytest.mark.sampled(4)
def test_draws_are_checkpoints_that_say_what_they_are(method: str, members: Path, tmp_path: Path) -> None:
    built = draws_of(method, tmp_path / "zoo", members)
    assert (built.draws, built.modes) == (12, 3)
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert not ckptzoo.verify(tmp_path / "zoo")
    assert len(zoo.where(f"method == '{method}' and draw < 2")) == 6
    rows = zoo.metadata.to_pylist()
    assert len({row["member"] for row in rows}) == 12
    assert {(row["mode"], row["draw"]) for row in rows} == set(
        itertools.product({row["mode"] for row in rows}, range(4))
    )
    model = posterior.get(method).load(TOY, None, CHANGES[method])
    assert {row["recipe_digest"] for row in rows} == {model.digest} != {TOY.digest}
    assert built.diverged == sum(row["diverged"] for row in rows)
    assert all(np.isfinite(row["train_loss"]) and 0 <= row["test_accuracy"] <= 1 for row in rows)
    if model.starts == "member":
        assert {row["mode"] for row in rows} <= set(ckptzoo.open(members).metadata["member"].to_pylist())
    # masks are few, and a rejection repeats the draw before
    assert len(set(content(tmp_path / "zoo").values())) >= {"dropout": 3, "hmc": 6}.get(method, 12)


@pytest.mark.exhaustive
def test_draws_tell_how_pixels_are_scaled(tmp_path: Path) -> None:
    build("dropout", DIGITS, tmp_path / "zoo", modes=1, draws=2, console=QUIET)
    found = inputs_of(ckptzoo.open(tmp_path / "zoo"), "digits/test-5")
    expected = sources.test_inputs(DIGITS, sources.load(DIGITS), 5)
    np.testing.assert_array_equal(found.inputs, expected)
    assert found.targets is not None and len(found.targets) == 5 and found.others == ()


@pytest.mark.parametrize("method", posterior.names() if ALL else ("laplace", "sghmc"))
def test_more_draws_and_modes_leave_the_first_as_they_are(method: str, members: Path, tmp_path: Path) -> None:
    draws_of(method, tmp_path / "grown", members, modes=2, draws=2, unit_size=1)
    assert draws_of(method, tmp_path / "grown", members, modes=2, draws=2).part is None
    draws_of(method, tmp_path / "grown", members, modes=1, draws=4)
    grown = draws_of(method, tmp_path / "grown", members)
    assert (grown.draws, grown.modes) == (2 + 4, 2)
    draws_of(method, tmp_path / "whole", members)
    assert content(tmp_path / "grown") == content(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("method", posterior.names())
def test_killed_at_random_moments_it_ends_with_the_same_draws(method: str, tmp_path: Path) -> None:
    build_members(DIGITS, tmp_path / "members", members=12, console=QUIET)
    changes = {
        "sghmc": {"epochs": 24},
        "swag": {"distance": 4},
        "csghmc": {"epochs": 40},
        "hmc": {"most_leapfrogs": 1, "burn_in": 12, "transitions": 6},
    }.get(method, {})
    changes = {**CHANGES[method], **changes}
    start = tmp_path / "members" if posterior.get(method).starts == "member" else None
    whole: dict[str, Any] = {"modes": 4, "draws": 3, "start": start, "unit_size": 2, "console": QUIET}
    build(method, DIGITS, tmp_path / "whole", changes=changes, **whole)
    path = tmp_path / "zoo"
    command = [sys.executable, "-m", "builders", "posterior", method, DIGITS.name, "--epochs", "1", "--to", str(path)]
    command += ["--modes", "4", "--draws", "3", "--unit-size", "2", "--save-every", "0.05"]
    command += ["--from", str(start)] if start else []
    command += [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    for life in itertools.count():
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if life < 6:
            before = saved(path)
            while child.poll() is None and saved(path) == before:
                time.sleep(0.002)
            time.sleep(0.03 * life)
            child.send_signal(signal.SIGINT if life % 2 else signal.SIGKILL)
        _, errors = child.communicate(timeout=200)
        if child.returncode == 0:
            break
        assert child.returncode in (-signal.SIGKILL, 130), errors
    assert life, "no process was stopped before it was done"
    assert content(path) == content(tmp_path / "whole")
    assert not (path / WORK_FOLDER).exists()


def saved(path: Path) -> set[tuple[str, int]]:
    """What an unfinished build has saved."""
    found: set[tuple[str, int]] = set()
    for file in (path / WORK_FOLDER).glob("*/*.safetensors"):
        try:
            found.add((file.name, file.stat().st_mtime_ns))
        except FileNotFoundError:  # replaced, or removed, in between
            continue
    return found


def test_stopped_it_is_carried_on_by_the_same_arguments_alone(members: Path, tmp_path: Path) -> None:
    asked = iter([False, True])
    from builders.posterior import build as module

    @dataclasses.dataclass
    class Stop:
        def __enter__(self) -> Any:
            return lambda: next(asked, True)

        def __exit__(self, *error: object) -> None:
            pass

    draws_of("sghmc", tmp_path / "zoo", members, modes=2, draws=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "catch_stop_signals", Stop)
        with pytest.raises(Interrupted, match="stopped at step"):
            draws_of("sghmc", tmp_path / "zoo", members)
    with pytest.raises(ZooError, match=r"unfinished build: expected draws 4, got draws 5\."):
        draws_of("sghmc", tmp_path / "zoo", members, draws=5)
    with pytest.raises(
        ZooError, match=r"got modes 5, names \S+-000000,\.\.\.,\S+-000004 \(5\), seeds 0,\.\.\.,4 \(5\)"
    ):
        draws_of("sghmc", tmp_path / "zoo", members, modes=5)
    assert draws_of("sghmc", tmp_path / "zoo", members, modes=2, draws=2).part is None  # the zoo holds these
    draws_of("sghmc", tmp_path / "zoo", members)
    draws_of("sghmc", tmp_path / "whole", members)
    assert content(tmp_path / "zoo") == content(tmp_path / "whole")


def test_a_chain_that_diverges_is_kept_marked_and_counted(members: Path, tmp_path: Path) -> None:
    changes = {**CHANGES["csghmc"], "step_size": 500.0}
    built = draws_of("csghmc", tmp_path / "zoo", members, changes=changes)
    rows = ckptzoo.open(tmp_path / "zoo").metadata.to_pylist()
    assert built.diverged == sum(row["diverged"] for row in rows) > 0
    assert len(rows) == 12
    assert "diverged and marked" in built.line()


def test_a_folded_mask_is_the_masked_network() -> None:
    recipe = Recipe.load("digits-optunet")
    method = Dropout.load(recipe)
    source = sources.load(recipe)
    surroundings = Surroundings(sources.data_source(method.chain, source, "cpu"), source, "general")
    state = method.start(surroundings, rng.member_keys(method.digest, range(3)), None)
    images = torch.from_numpy(sources.test_inputs(recipe, source, 20)).double()
    masks: set[tuple[bool, ...]] = set()
    for number in range(12):
        drawn = method.draw(surroundings, state, number)
        kept = rng.kept_units(state.keys, number, np.zeros(1, np.int64), 10, method.p, rng.DRAWN_MASKS)
        for mode in range(3):
            masks.add(tuple(kept[mode, 0].tolist()))
            scales = torch.from_numpy(kept[mode, 0] / (1 - method.p))
            model = archs.get(recipe.architecture)().double()
            layer = model.get_submodule("fc")
            hook = layer.register_forward_pre_hook(lambda module, inputs, scales=scales: (inputs[0] * scales,))
            weights = {name: tensor[mode].double() for name, tensor in state.weights.items()}
            masked = torch.func.functional_call(model, weights, (images,))
            hook.remove()
            folded = torch.func.functional_call(
                model, {name: tensor[mode].double() for name, tensor in drawn.items()}, (images,)
            )
            assert torch.allclose(folded, masked, rtol=1e-6, atol=1e-6)
    assert len(masks) > 25


def test_the_first_draws_of_a_chain_are_spread_over_it() -> None:
    for count in (1, 2, 7, 12, 100):
        order = spread(range(count))
        assert sorted(order) == list(range(count)) and order[0] == count - 1
    ten = sorted(spread(range(100))[:10])
    assert max(np.diff(ten)) <= 16 and min(np.diff(ten)) >= 8


def test_what_is_refused(members: Path, tmp_path: Path) -> None:
    def refused(match: str, method: str = "swag", error: type[Exception] = ZooError, **options: Any) -> None:
        with pytest.raises(error, match=match):
            draws_of(method, tmp_path / "zoo", members, **{"changes": {}, **options})
        assert not (tmp_path / "zoo").exists()

    for name, step in (("mcmc", "dropout"), ("ensemble", "ckptzoo study posteriors selects them")):
        with pytest.raises((UnknownNameError, ZooError), match=step):
            build(name, TOY, tmp_path / "zoo", modes=1, draws=1)
    refused(r"method swag: expected a zoo of members to start from, got none\. Name one with --from", start=None)
    refused("expected no zoo to start from", "dropout", start=members)
    refused("at least 7, got 6 of 6", modes=7)
    refused("draws of a mode of sghmc: expected at most 10, got 11", "sghmc", changes=CHANGES["sghmc"], draws=11)
    refused("key 'sclae': expected one of", changes={"sclae": 1}, error=SpecError)
    refused("key 'kl_weight': expected one of .*temperature, got an unknown one", "bnn", changes={"kl_weight": 1e-4})
    for setting, wrong in itertools.product(("prior", "temperature"), (0, -0.1, float("nan"))):
        refused(f"{setting}: expected a number above 0 to 1000000", "bnn", changes={setting: wrong}, error=SpecError)
    refused("p: expected a number above 0 to 0.99, got 1.5", "dropout", changes={"p": 1.5}, error=SpecError)
    refused("prior_precision: expected a number from 0", "laplace", changes={"prior_precision": -1}, error=SpecError)
    refused("first_draw: expected an epoch after burn-in", "sghmc", changes={"first_draw": 3}, error=SpecError)
    refused("epochs: expected a multiple of 4", "csghmc", changes={"epochs": 9}, error=SpecError)
    with pytest.raises(ZooError, match="expected optunet in float32, the recipe's, got mlp-2-2-1 in float32"):
        build("swag", DIGITS, tmp_path / "zoo", modes=1, draws=1, start=members)
    with pytest.raises(ZooError, match=r"recipe of the members: expected toy .*, got toy"):
        build("swag", TOY.shortened(1), tmp_path / "zoo", modes=1, draws=1, start=members)


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_are_taken_around_rounded_members_as_they_are_stored(dtype: str, members: Path, tmp_path: Path) -> None:
    copy, widened = tmp_path / "rounded", tmp_path / "widened"
    round_weights(members, TOY, copy, dtype=dtype)
    rounded = ckptzoo.open(copy)
    with ckptzoo.create(widened, arch=TOY.arch) as writer:
        weights = {name: np.array(rounded[name][:]).astype(np.float32) for name in TOY.arch.names}
        writer.add(weights, rounded.metadata.to_pylist())
    for start, path in ((copy, tmp_path / "zoo"), (widened, tmp_path / "same")):
        draws_of("laplace", path, start)
    assert content(tmp_path / "zoo") == content(tmp_path / "same")
    # the same ids, and other weights than those that were rounded
    with pytest.raises(ZooError, match="weights of mode"):
        draws_of("laplace", tmp_path / "zoo", members, draws=5)


@pytest.mark.exhaustive
def test_a_variational_network_starts_at_members_where_a_zoo_of_them_is_named(members: Path, tmp_path: Path) -> None:
    still = {"prior": 1e6, "initial_rho_linear": -40.0, "initial_rho_spread": 0.0, "temperature": 1e-6}
    for start in (members, None):  # chains have ids of their own beside them
        built = draws_of("bnn", tmp_path / "zoo", members, start=start, changes=still)
        assert (built.draws, built.modes) == (12, 3)
    zoo, trained = ckptzoo.open(tmp_path / "zoo"), ckptzoo.open(members)
    rows = zoo.metadata.to_pylist()
    assert [row["mode"] for row in rows[:12:4]] == trained.metadata["member"].to_pylist()[:3]
    extras = [parse_extra(row["extra"]) or {} for row in rows]
    assert {extra["settings"]["means"] for extra in extras[:12]} == {"member"}
    assert {row["mode"] for row in rows[:12]}.isdisjoint(row["mode"] for row in rows[12:])
    assert len({row["recipe_digest"] for row in rows}) == 2
    # without a prior and without noise it is trained further: to a loss no higher than that of the member
    for place in range(3):
        assert rows[4 * place]["train_loss"] < trained.metadata["train_loss"][place].as_py() + 1e-3


def test_a_variational_network_has_the_digest_that_its_weight_of_the_divergence_gave_it() -> None:
    method, recipe = posterior.get("bnn").load(DIGITS), DIGITS
    settings = {key: value for key, value in method.settings.items() if key not in ("temperature", "means")}
    for temperature, kappa in ((1, 0), (1e-3 * recipe.train, 1e-3)):
        old = {"recipe": recipe.digest, "method": "bnn", "settings": {**settings, "kl_weight": kappa}, "version": 1}
        assert dataclasses.replace(method, temperature=temperature).digest == digest_of(old)


@pytest.mark.parametrize("method", ["swag", pytest.param("bnn", marks=pytest.mark.exhaustive)])
def test_shares_make_the_draws_of_one_process(method: str, members: Path, tmp_path: Path) -> None:
    path, shared = tmp_path / "zoo", {"modes": 5, "unit_size": 1}
    draws_of(method, tmp_path / "whole", members, **shared)
    first = draws_of(method, path, members, share=(1, 3), **shared)
    assert (first.part, first.modes, first.left) == (None, 2, 3)
    assert "2 modes done here; 3 units left." in first.line()
    assert draws_of(method, path, members, share=(1, 3), **shared).modes == 0  # done already
    last = [draws_of(method, path, members, share=(number, 3), **shared) for number in (2, 0)]
    assert [item.left for item in last] == [2, 0] and "without --share adds the draws" in last[1].line()
    assert len(ckptzoo.open(path)) == 0
    built = draws_of(method, path, members, **shared)
    assert (built.draws, built.modes, built.member_steps) == (20, 5, 0)
    assert content(path) == content(tmp_path / "whole")
    assert (tmp_path / "zoo-gaussian").exists() == (method == "bnn")
    assert draws_of(method, path, members, share=(0, 3), **shared).left is None  # the zoo holds them


@pytest.mark.exhaustive
def test_processes_share_draws_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    command = [sys.executable, "-m", "builders", "posterior", "sghmc", "toy", "--epochs", "2", "--to", str(path)]
    command += ["--modes", "6", "--draws", "2", "--unit-size", "1"]
    command += [part for key, value in CHANGES["sghmc"].items() for part in ("--set", f"{key}={value}")]
    with contextlib.ExitStack() as stack:
        extras = (["--share", "0/2"], ["--share", "1/2"])
        workers = [stack.enter_context(subprocess.Popen([*command, *extra], cwd=ROOT)) for extra in extras]
        # the lock is for settling alone, so it is free again
        while not list(path.glob(".work/*/plan.json")):
            assert all(worker.poll() is None for worker in workers)
            time.sleep(0.01)
        for _ in range(20):
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if "no other one at work" not in ended.stderr:
                break
        assert ended.returncode == 0, ended.stderr
        assert [worker.wait() for worker in workers] == [0, 0]
    draws_of("sghmc", tmp_path / "whole", path, modes=6, draws=2)
    assert content(path) == content(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_cluster_of_ray_makes_the_draws_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path, settings = tmp_path / "zoo", {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    command = ["posterior", "sghmc", "toy", "--epochs", "2", "--modes", "6", "--draws", "2", "--unit-size", "1"]
    command += [part for key, value in CHANGES["sghmc"].items() for part in ("--set", f"{key}={value}")]
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    try:
        assert run([*command, "--to", str(path), "--on", f"ray://{cluster.address}"]) == 0
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert "12 draws of 6 modes" in capsys.readouterr().out
    built = draws_of("sghmc", tmp_path / "whole", path, modes=6, draws=2)
    assert content(path) == content(tmp_path / "whole") and built.member_steps > 0
    assert run([*command, "--to", str(path), "--on", "ray", "--share", "0/2"]) == 2
    assert "one of --share and --on" in capsys.readouterr().err


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["posterior", "sghmc", "toy", "--modes", "2", "--draws", "2", "--to", str(tmp_path / "zoo")]
    command += [part for key, value in CHANGES["sghmc"].items() for part in ("--set", f"{key}={value}")]
    assert run(command) == 0
    assert "4 draws of 2 modes" in capsys.readouterr().out
    assert run(command) == 0
    assert "holds these draws already; nothing was added" in capsys.readouterr().out
    assert run([*command, "--set", "shape"]) == 2
    assert "expected a setting such as scale=0.5" in capsys.readouterr().err
    assert run([*command[:2], "resnet", *command[3:]]) == 2


def test_raw_rows_of_independent_members_name_no_method(members: Path) -> None:
    rows = read_contents(Folder(members)).raw.metadata
    assert all(rows[name].null_count == len(rows) for name in ("method", "mode", "draw"))


@pytest.mark.parametrize("method", ["sghmc", "laplace"])
def test_an_estimate_writes_nothing_and_counts_what_a_build_does(
    method: str,
    members: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(estimate.__kwdefaults__, "seconds", 0.1)  # for the command
    start = members if method == "laplace" else None
    given: dict[str, Any] = {"modes": 3, "draws": 4, "start": start, "changes": CHANGES[method]}
    found = estimate(method, TOY, **given, seconds=0.1)
    model = posterior.get(method).load(TOY, None, CHANGES[method])
    assert (found.recipe, found.members, found.checkpoints) == (model.prefix, 3, 12)
    assert found.member_steps == 3 * model.steps and found.steps_per_second > 0
    assert found.parameter_bytes == TOY.arch.nbytes and found.measuring is not None
    command = ["posterior", method, "toy", "--epochs", "2", "--modes", "3", "--draws", "4", "--to", str(tmp_path / "z")]
    command += ["--from", str(start)] if start else []
    command += [part for key, value in CHANGES[method].items() for part in ("--set", f"{key}={value}")]
    assert run([*command, "--estimate"]) == 0
    assert f"3 ({12} checkpoints)" in capsys.readouterr().out
    assert not (tmp_path / "z").exists()


def test_a_variational_method_writes_its_gaussians_beside(members: Path, tmp_path: Path) -> None:
    built = draws_of("bnn", tmp_path / "zoo", members, modes=2, draws=3)
    assert built.gaussian == tmp_path / "zoo-gaussian" and "zoo-gaussian" in built.line()
    draws_of("bnn", tmp_path / "zoo", members, modes=3, draws=3)
    gaussians, zoo = ckptzoo.open(tmp_path / "zoo-gaussian"), ckptzoo.open(tmp_path / "zoo")
    assert gaussians.arch.name == "gaussian-mlp-2-2-1"
    assert gaussians.ids == sorted(set(zoo.metadata["mode"].to_pylist())) and len(gaussians) == 3
    assert not ckptzoo.verify(tmp_path / "zoo-gaussian")
    mean, std = gaussians["fc1.weight"][:], gaussians["fc1.weight_std"][:]
    assert (std > 0).all()
    by_mode = [zoo.where(f"mode == '{name}'")["fc1.weight"][:] for name in gaussians.ids]
    # three draws lie within a few deviations of the mean, which are of a hundredth at first
    assert all((np.abs(drawn - mean[row]) < 5 * std[row]).all() for row, drawn in enumerate(by_mode))
