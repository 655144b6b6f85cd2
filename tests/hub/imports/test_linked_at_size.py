"""Walks of users through files that they link, at full size: 2,000 files, and 45 runs of 20 revisions."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

import ckptzoo
from ckptzoo.cli.app import run
from tests.hub.audits.test_audit import walk
from tests.support.effort import ALL
from tests.support.hosted import Hosted, hosted, push

SEEDS, STEPS = (200, 10) if ALL else (9, 2)
RUNS, REVISIONS = (45, 20) if ALL else (3, 8)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def called(*words: object, code: int = 0) -> str:
        assert run([str(word) for word in words]) == code, capsys.readouterr()
        return capsys.readouterr().out

    return called


def use(hub: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use a hub, as the environment of their process would."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", hub.tokens["write"])


@pytest.mark.exhaustive
def test_files_of_a_loop_are_linked_computed_with_and_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str]
) -> None:
    last, net = dict[int, np.ndarray](), dict[str, np.ndarray]()
    for seed in range(SEEDS):
        draw = np.random.default_rng(seed)
        net = {"fc1.weight": draw.normal(size=(16, 8)), "fc1.bias": draw.normal(size=16)}
        net |= {"fc2.weight": draw.normal(size=(3, 16)), "fc2.bias": draw.normal(size=3)}
        for step in range(STEPS):
            net = {name: (array + 0.1 * draw.normal(size=array.shape)).astype("f4") for name, array in net.items()}
            path = tmp_path / f"runs/seed{seed}/step{100 * step}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(net, path)
        last[seed] = net["fc1.weight"]
    # one network again, with its hidden units in another order
    net["fc1.weight"], net["fc1.bias"] = net["fc1.weight"][::-1].copy(), net["fc1.bias"][::-1].copy()
    net["fc2.weight"] = net["fc2.weight"][:, ::-1].copy()
    (tmp_path / f"runs/seed{SEEDS}").mkdir()
    end, zoo, final = 100 * (STEPS - 1), tmp_path / "zoo", tmp_path / "final"
    save_file(net, tmp_path / f"runs/seed{SEEDS}/step{end}.safetensors")
    count = SEEDS * STEPS + 1
    linked = ["link", tmp_path / "runs", "--to", zoo, "--arch", "mlp-8-16-3", "--license", "cc-by-4.0", "--json"]
    assert json.loads(command(*linked))["added"] == count and json.loads(command(*linked))["present"] == count
    opened = ckptzoo.open(zoo).where(f"step == {end}").sorted("seed")
    rows = np.concatenate([batch["fc1.weight"] for batch in opened.stream("fc1", batch_size=64, remainder="keep")])
    assert rows.shape == (SEEDS + 1, 16, 8) and rows[:SEEDS].tobytes() == np.stack(list(last.values())).tobytes()
    command("derive", zoo)
    copies = json.loads(command("dedupe", zoo, "--where", f"step == {end}", "--json"))
    (group,) = copies["groups"]
    assert sorted(group["ids"]) == sorted([f"seed{SEEDS - 1}-step{end}", f"seed{SEEDS}-step{end}"])
    assert "fc1" in command("study", "mass", zoo, "--where", f"step == {end}")
    kept = f"step == {end} and id != 'seed{SEEDS}-step{end}'"
    command("materialize", zoo, "--to", final, "--where", kept)
    assert "no problem found" in command("verify", final)
    with hosted(tmp_path / "hub") as hub:
        use(hub, monkeypatch)
        assert "materialize" not in command("push", final, "lab/final")
        there = ckptzoo.open("hf://datasets/lab/final").sorted("seed")
        assert there["fc1.weight"][:].tobytes() == rows[:SEEDS].tobytes() and there.variants == ("raw", "canonical")


@pytest.mark.exhaustive
def test_revisions_of_many_runs_are_linked_audited_and_streamed_over_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., str]
) -> None:
    """Two steps are swapped, one is a stale copy and one is missing."""
    with hosted(tmp_path / "hub") as hub:
        use(hub, monkeypatch)
        second = list[dict[str, Any]]()
        for number in range(RUNS):
            states = walk(number, REVISIONS, (48, 64))
            if number == 0:
                states[2], states[5] = states[5], states[2]
            elif number == 1:
                second = states
            hub.api().create_repo(f"lab/run{number}")
            for at, state in enumerate(states):
                if (number, at) == (2, 4):
                    continue
                hub.api().create_branch(f"lab/run{number}", branch=f"step{100 * at}")
                content = states[-1] if (number, at) == (1, 3) else state
                push(hub, {"model.safetensors": save(content)}, f"models/lab/run{number}", revision=f"step{100 * at}")
        listed, zoo = tmp_path / "runs.txt", tmp_path / "zoo"
        listed.write_text("".join(f"hf://lab/run{number}@step*\n" for number in range(RUNS)))
        done = json.loads(command("link", listed, "--to", zoo, "--license", "mit", "--json"))
        assert done["added"] == RUNS * REVISIONS - 1
        stale = 100 * (REVISIONS - 1)
        for source in (zoo, listed):
            result = json.loads(command("audit", source, "--json", code=1))
            found = sorted((item["kind"], sorted(item["steps"])) for item in result["findings"])
            assert found == [("copy", [300, stale]), ("gap", [400]), ("order", [200, 500])], result["findings"]
        run_of_one = ckptzoo.open(zoo).where("extra.file >= 'run1/' and extra.file < 'run1/~'").sorted("step")
        batches = [batch["layers.2.weight"] for batch in run_of_one.stream("layers.2", batch_size=3, remainder="keep")]
        second[3] = second[-1]
        assert np.concatenate(batches).tobytes() == np.stack([state["layers.2.weight"] for state in second]).tobytes()
    shutil.rmtree(tmp_path)
