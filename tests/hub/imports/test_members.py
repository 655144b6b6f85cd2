"""What is no network makes none, what was passed over is listed, and no run is cut into members."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import Options, import_zoo
from ckptzoo.hub.imports.report import ImportResult
from tests.support.effort import examples
from tests.support.published_zoos import network, packed, save

CASES = Path(__file__).parents[4] / "shared" / "cases" / "inputs"


def optimiser() -> dict[str, Any]:
    net = torch.nn.Linear(3, 2)
    found = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    found.step()
    return found.state_dict()


def pickled(path: Path, content: Any) -> None:
    path.write_bytes(pickle.dumps(content))


def random_states() -> dict[str, Any]:
    return {
        "python": (3, (1, 2, 3), None),
        "numpy": ("MT19937", np.arange(624, dtype=np.uint32), 624, 0, 0.0),
        "cpu": torch.get_rng_state(),
    }


OTHERS: dict[str, Callable[[Path], None]] = {
    "optimizer.pt": lambda path: torch.save(optimiser(), path),
    "optimizer_state.pt": lambda path: torch.save({"optimizer_state_dict": optimiser(), "step": 3}, path),
    "scheduler.pt": lambda path: torch.save({"base_lrs": [0.1], "last_epoch": 3, "_step_count": 4}, path),
    "rng_state.pth": lambda path: torch.save(random_states(), path),
    "random_states_0.pkl": lambda path: pickled(path, {"step": 3, "numpy_random_seed": random_states()["numpy"]}),
    "training_args.bin": lambda path: torch.save({"lr": 0.1, "seed": 3}, path),
    "evaluations.npz": lambda path: np.savez(path, timesteps=np.arange(9), results=np.ones((9, 5))),
    "vecnormalize.pkl": lambda path: pickled(path, {"obs_rms": {"mean": np.ones(4), "var": np.ones(4), "count": 3.0}}),
    "masks.pt": lambda path: torch.save({"0.weight": torch.ones(5, 4), "0.bias": torch.ones(5)}, path),
    "swag.pt": lambda path: torch.save({"mean": torch.ones(9), "sq_mean": torch.ones(9), "n_models": 3}, path),
    "mean.npy": lambda path: np.save(path, np.ones(4)),
    "obs_std.npy": lambda path: np.save(path, np.ones(4)),
    "predictions.npy": lambda path: np.save(path, np.ones((9, 3))),
    "history.npz": lambda path: np.savez(path, train_loss=np.ones(9), test_acc=np.ones(9)),
    "notes.txt": lambda path: path.write_text("nothing"),
    "config.json": lambda path: path.write_text("{}"),
    "._model.pt": lambda path: path.write_bytes(b"\0\5\26\7"),
}


def single(folder: Path, state: dict[str, Any]) -> None:
    torch.save({name: torch.from_numpy(value) for name, value in state.items()}, folder / "model.pt")


def shards(folder: Path, state: dict[str, Any]) -> None:
    names = sorted(state)
    for number, part in enumerate((names[:2], names[2:]), 1):
        save_file({name: state[name] for name in part}, folder / f"model-{number:05d}-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))


def wrapped(folder: Path, state: dict[str, Any]) -> None:
    tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    torch.save(
        {"state_dict": tensors, "optimizer": optimiser(), "mask": {"0.weight": torch.ones(5, 4)}}, folder / "a.pth"
    )


LAYOUTS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "single": single,
    "shards": shards,
    "wrapped": wrapped,
    "safetensors": lambda folder, state: save_file(state, folder / "model.safetensors"),
    "step": lambda folder, state: ((folder / "checkpoint-500").mkdir(), save_file(state, folder / "checkpoint-500" / "model.safetensors"))[0],
}  # fmt: skip


def networks(zoo: Path) -> Counter[bytes]:
    """How often each network is in a zoo."""
    opened = ckptzoo.open(zoo)
    order = sorted(opened.arch.names)
    return Counter(b"".join(opened[name][row].tobytes() for name in order) for row in range(len(opened)))


def expected(count: int) -> Counter[bytes]:
    return Counter(b"".join(state[name].tobytes() for name in sorted(state)) for state in map(network, range(count)))


@settings(max_examples=examples(60, 3), deadline=None)
@given(
    layouts=st.lists(st.sampled_from(list(LAYOUTS)), min_size=1, max_size=3),
    beside=st.lists(st.sampled_from(list(OTHERS)), max_size=5, unique=True),
    archive=st.sampled_from(["", ".tar", ".zip"]),
)
def test_exactly_the_networks_are_made_and_all_else_is_listed(
    tmp_path_factory: pytest.TempPathFactory, layouts: list[str], beside: list[str], archive: str
) -> None:
    root = tmp_path_factory.mktemp("mixed")
    for number, layout in enumerate(layouts):
        folder = root / "published" / f"run{number}"
        folder.mkdir(parents=True)
        LAYOUTS[layout](folder, network(number))
        for name in beside:
            OTHERS[name](folder / name)
    source = packed(root / "published", root / f"published{archive}") if archive else root / "published"
    done = import_zoo(source, root / "zoo", license="MIT")
    assert networks(root / "zoo") == expected(len(layouts)) and ckptzoo.verify(root / "zoo") == []
    rows = ckptzoo.open(root / "zoo").metadata
    assert len({*rows["member"].to_pylist()}) == len(layouts)
    listed = Counter(Path(item["file"]).name for item in done.passed_over)
    listed.pop("model.safetensors.index.json", None)
    assert listed == Counter(beside * len(layouts)) and all(item["reason"] for item in done.passed_over)


def test_where_nothing_holds_a_network_it_is_said_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "published").mkdir()
    for name, write in OTHERS.items():
        write(tmp_path / "published" / name)
    with pytest.raises(ZooError, match="networks: expected at least one, got"):
        import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    assert not (tmp_path / "zoo" / "zoo.json").exists()


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_networks_that_lack_a_shard_are_refused(tmp_path: Path, missing: int) -> None:
    state = network(0)
    for number, name in enumerate(sorted(state)[:3], 1):
        if number != missing:
            save_file({name: state[name]}, tmp_path / f"net-{number:05d}-of-00003.safetensors")
    with pytest.raises(ZooError, match=rf"net-{missing:05d}-of-00003\.safetensors: shards: expected 3, got 2"):
        import_zoo(tmp_path, tmp_path.parent / "zoo", license="MIT")


NAMES = {
    "ckpt": "{run}/ckpt_{step}.pth", "epoch": "{run}/epoch_{step}.pt", "lightning": "{run}/epoch={step}-val_loss=0.{step}1.ckpt",
    "trainer": "{run}/checkpoint-{step}/model.pt", "flat": "{run}_epoch{step}.pt", "step": "{run}-step-{step:06d}.pt",
    "imagenet": "{run}/checkpoint_{step}.pth", "round": "round_{step}/{run}.pt", "figure": "{run}_ep{step}_acc0.{step}.pt",
    "before": "{run}/{step}_epochs.pt", "folders": "{run}/weights/step{step}/model.pt", "level": "{run}/level_{step}.pt",
    "steps": "{run}/steps/{step}.pt", "epochs": "{run}/epochs/{step}/model.pt", "trajectory": "{run}/trajectory/{step}.pt",
}  # fmt: skip


@pytest.mark.parametrize("form", NAMES)
@settings(max_examples=examples(20, 2), deadline=None)
@given(
    runs=st.lists(st.sampled_from(["seed0", "seed1", "a", "client_07", "run-12", "fold_10"]), min_size=1, max_size=3, unique=True),
    steps=st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True),
    facts=st.booleans(),
    final=st.booleans(),
)  # fmt: skip
@pytest.mark.sampled(9)
def test_checkpoints_of_a_run_are_one_member(
    tmp_path_factory: pytest.TempPathFactory, form: str, runs: list[str], steps: list[int], facts: bool, final: bool
) -> None:
    root = tmp_path_factory.mktemp("runs")
    of_run: dict[str, str] = {}
    for number, name in enumerate(runs):
        for step in steps:
            path = NAMES[form].format(run=name, step=step)
            content = {"net": network(number, step), "epoch": step, "seed": number}
            save(root / "nets" / path, content if facts else network(number, step))
            of_run[path] = name
    if final and not facts and form in ("flat", "step", "figure"):
        for name in runs:
            save(root / "nets" / f"{name}_ema.pt", network(8, 8))
            of_run[f"{name}_ema.pt"] = name
    if final and form in ("ckpt", "epoch", "trainer", "imagenet"):
        for number, name in enumerate(runs):
            save(
                root / "nets" / name / "model_best.pt",
                {"net": network(7, 7), "seed": number} if facts else network(7, 7),
            )
            of_run[f"{name}/model_best.pt"] = name
    import_zoo(root / "nets", root / "zoo", license="MIT")
    rows = ckptzoo.open(root / "zoo").metadata.to_pylist()
    members = {json.loads(row["extra"])["file"]: row["member"] for row in rows}
    assert {path: members[path] for path in of_run} == members
    # one member for each run, and one run for each member
    assert len({(of_run[path], member) for path, member in members.items()}) == len(runs) == len({*members.values()})
    saved = sorted(row["step"] for row in rows if "best" not in row["id"] and "ema" not in row["id"])
    assert saved == sorted(steps * len(runs))


def test_seeds_in_files_tell_runs_apart_that_have_the_same_names(tmp_path: Path) -> None:
    for seed in range(2):
        for step in (1, 2):
            save(tmp_path / "nets" / f"ckpt_{10 * seed + step}.pt", {"net": network(seed, step), "seed": seed})
    import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    assert (
        sorted(ckptzoo.open(tmp_path / "zoo").metadata["member"].to_pylist()) == ["nets-seed0"] * 2 + ["nets-seed1"] * 2
    )


def test_patterns_and_columns_say_members_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        for step in (3, 4):
            save(tmp_path / "nets" / f"x{seed}-{step}.pt", network(seed, step))
    arguments = ["import", str(tmp_path / "nets"), "--license", "MIT", "--to"]
    assert run([*arguments, str(tmp_path / "a"), "--member", r"x\d", "--step", r"-(\d)\."]) == 0
    table = tmp_path / "facts.csv"
    table.write_text("path,member,step,lr\n" + "".join(f"x{s}-{t}.pt,x{s},{t},0.1\n" for s in range(2) for t in (3, 4)))
    assert run([*arguments, str(tmp_path / "b"), "--metadata", str(table)]) == 0
    for zoo in ("a", "b"):
        rows = ckptzoo.open(tmp_path / zoo).metadata
        assert rows["member"].to_pylist() == ["x0", "x0", "x1", "x1"] and rows["step"].to_pylist() == [3, 4, 3, 4]
    assert run([*arguments, str(tmp_path / "c"), "--member", "("]) == 2
    assert run([*arguments, str(tmp_path / "c"), "--member", "y"]) == 2
    assert "--member: expected what 'y' finds, got nothing" in capsys.readouterr().err


def test_members_and_steps_of_paths_are_said(tmp_path: Path) -> None:
    for number, path in enumerate(("run1/step200", "run1/step1000", "run2/step3", "alone")):
        save(tmp_path / "nets" / f"{path}.pt", {"net": network(number)})
    done = import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    text = "2 members, steps 3 to 1,000, taken from the paths; --member and --step take others"
    assert done.notes == {text: 3}


def test_files_that_may_be_one_run_are_said(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "nets" / f"{number}.pt", {"net": network(number), "epoch": number + 5})
    done = import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    assert any("--member names it" in note for note in done.notes)


@pytest.mark.parametrize(
    ("pattern", "numbers", "is_said"),
    [
        ("model{:06d}.pt", (10_000, 20_000), True), ("run/{}.pt", (0, 500), True), ("net-{}.pt", (50, 100, 150), True),
        ("seed0/{}.pt", (1, 2), True), ("a/fold_3/model_{}.pt", (4, 7), True), ("seed0/{}.pt", (1,), False),
        ("model_{}.pt", (0, 1, 2), False), ("{}.pt", (100,), False), ("seed{}.pt", (10, 20), False),
        ("width_{}.pt", (64, 128), False), ("steps/{}.pt", (100, 200), False), ("ckpt_{}.pt", (100, 200), False),
    ],
)  # fmt: skip
def test_numbers_that_may_be_steps_are_said(
    tmp_path: Path, pattern: str, numbers: tuple[int, ...], is_said: bool
) -> None:
    for number in numbers:
        save(tmp_path / "nets" / pattern.format(number), network(number % 97))
    done = import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    said = [note for note in done.notes if note.startswith("files that differ in a number, such as")]
    assert len(said) == is_said
    members = len({*ckptzoo.open(tmp_path / "zoo").metadata["member"].to_pylist()})
    assert members == (1 if pattern.startswith(("steps", "ckpt")) else len(numbers))


@pytest.mark.parametrize("word", ["trajectory", "history", "steps", "epochs"])
@settings(max_examples=examples(10, 2), deadline=None)
@given(steps=st.lists(st.integers(0, 10**6), min_size=2, max_size=4, unique=True), seeds=st.integers(1, 3))
def test_numbered_networks_of_a_trajectory_are_steps(
    tmp_path_factory: pytest.TempPathFactory, word: str, steps: list[int], seeds: int
) -> None:
    root = tmp_path_factory.mktemp("trajectory")
    for seed in range(seeds):
        content = {word: {step: network(seed, number) for number, step in enumerate(steps)}, "lr": 0.1}
        save(root / "nets" / f"net{seed}.pt", content)
    import_zoo(root / "nets", root / "zoo", license="MIT")
    rows = ckptzoo.open(root / "zoo").metadata
    assert len({*rows["member"].to_pylist()}) == seeds and sorted(rows["step"].to_pylist()) == sorted(steps * seeds)


def test_averages_are_of_the_run_that_they_average(tmp_path: Path) -> None:
    for number in range(2):
        layers = {"linear": {"w": np.ones((4, 6)) * number, "b": np.ones(6)}}
        (tmp_path / "nets").mkdir(exist_ok=True)
        pickled(tmp_path / "nets" / f"{number}.pkl", {"params": layers, "ema_params": layers, "step": 3})
    import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    rows = ckptzoo.open(tmp_path / "zoo").metadata.to_pylist()
    assert [(row["id"], row["member"], row["step"], json.loads(row["extra"])["network"]) for row in rows] == [
        (f"{number}/{name}", str(number), 3, name) for number in range(2) for name in ("params", "ema_params")
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([np.ones(7), np.ones(7)], "2 vectors of 7 numbers without names"),
        (np.ones((10, 7)), r"one array of shape \(10, 7\) without a name"),
        ({"0.weight": np.ones((5, 6, 4)), "0.bias": np.ones((5, 6))}, "one of 5 in all of them, as of samples"),
        ({"a_mu": np.ones(3), "a_rho": np.ones(3), "b": np.ones(3)}, "'b' beside 1 with mu and rho"),
    ],
)
def test_what_may_be_samples_is_refused_with_the_option_that_says(tmp_path: Path, content: Any, words: str) -> None:
    pickled(tmp_path / "a.pkl", content)
    with pytest.raises(ZooError, match=words):
        import_zoo(tmp_path / "a.pkl", tmp_path / "zoo", license="MIT")


def test_stacked_samples_are_cut(tmp_path: Path) -> None:
    states = [network(number) for number in range(5)]
    np.savez(tmp_path / "a.npz", **{name: np.stack([state[name] for state in states]) for name in states[0]})
    import_zoo(tmp_path / "a.npz", tmp_path / "zoo", license="MIT", options=Options(stacked=True))
    assert networks(tmp_path / "zoo") == expected(5)
    assert ckptzoo.open(tmp_path / "zoo").metadata["draw"].to_pylist() == list(range(5))
    import_zoo(tmp_path / "a.npz", tmp_path / "one", license="MIT", options=Options(stacked=False))
    assert len(ckptzoo.open(tmp_path / "one")) == 1


def test_rho_is_brought_to_deviations_by_softplus(tmp_path: Path) -> None:
    state = network(0)
    content = {f"{name}_{end}": torch.from_numpy(value) for end in ("mu", "rho") for name, value in state.items()}
    torch.save(content, tmp_path / "a.pt")
    done = import_zoo(tmp_path / "a.pt", tmp_path / "zoo", license="MIT")
    zoo = ckptzoo.open(tmp_path / "zoo")
    for name, value in state.items():
        assert np.array_equal(zoo[name][0], value)
        np.testing.assert_allclose(zoo[f"{name}_std"][0], np.log1p(np.exp(value.astype(float))), rtol=1e-6)
    assert any("softplus" in note for note in done.notes)


KNOWN: dict[str, tuple[int, int]] = {
    "wrong_members/sharded_safetensors": (2, 4), "wrong_members/optimizer_files": (2, 4), "wrong_members/hf_trainer": (2, 4),
    "wrong_members/ema_params": (4, 2), "silent_loss/sparse_coo": (1, 4), "silent_loss/scipy_csr": (1, 2),
    "silent_loss/bias_as_list": (1, 2), "junk/ipynb_checkpoints": (1, 4), "containers/stax_list": (1, 4),
    "wrong_members/agents_in_zips": (2, 4), "containers/pth_tar_folder": (3, 4), "containers/pt_gz": (3, 4),
    "containers/keras_h5": (3, 2), "junk/macosx_zip": (2, 4), "other_programs/h5_of_tensors": (2, 4),
    "other_programs/npy_per_tensor": (2, 4), "other_programs/sklearn_joblib": (2, 4),
}  # fmt: skip
REFUSED = ["silent_loss/lazy_parameter", "silent_loss/meta_mixed"]


@pytest.mark.skipif(not CASES.is_dir(), reason="the collected inputs are not available")
@pytest.mark.parametrize("case", [*KNOWN, *REFUSED])
@pytest.mark.sampled(3)
def test_inputs_that_people_have(tmp_path: Path, case: str) -> None:
    def read() -> ImportResult:
        return import_zoo(CASES / case, tmp_path / "zoo", license="MIT")

    if case in REFUSED:
        with pytest.raises(ZooError):
            read()
        return
    done, zoo = read(), ckptzoo.open(tmp_path / "zoo")
    assert (done.added, len(zoo.arch.names)) == KNOWN[case]


def test_the_report_is_printed_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "nets" / "a.pt", network(0))
    for number in range(3):
        OTHERS["optimizer.pt"](tmp_path / "nets" / f"optimizer_{number}.pt")
    assert run(["import", str(tmp_path / "nets"), "--to", str(tmp_path / "zoo"), "--license", "MIT"]) == 0
    assert "passed over 3 files: the state of an optimiser: optimizer_0.pt" in capsys.readouterr().out
