"""Inputs of one's own: a zoo from a plain loop is contributed to and reviewed on them, from the command line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import ZooError
from ckptzoo.hub.card.page import readme
from ckptzoo.hub.contributions.evaluation import Evaluation, EvaluatorPool
from ckptzoo.schema.architecture import Architecture
from ckptzoo.studies.inventory import inventory
from tests.support.effort import ALL
from tests.support.hosted import Hosted

REPO = "lab/loop"
NETWORK = """
from torch import nn


def net():
    return nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))
"""
CARD = 'contributor = "Ada Stranger"\nlicense = "mit"\nsource = "https://example.org"\ndataset = "digits"\n'
Say = Callable[..., tuple[int, str, str]]


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3))


def accuracy(module: nn.Module, inputs: np.ndarray, targets: np.ndarray) -> float:
    with torch.no_grad():
        return float((module(torch.from_numpy(inputs)).argmax(1).numpy() == targets).mean())


@pytest.fixture
def say(server: Hosted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command line as somebody, in a folder with the network, its inputs, a card and a file to contribute."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORK)
    Path("contribution.toml").write_text(CARD)
    rng = np.random.default_rng(0)
    np.savez("own.npz", inputs=rng.normal(size=(50, 12)).astype("f4"), targets=rng.integers(0, 3, 50))
    torch.save(net(100).state_dict(), "theirs.pt")

    def said(*arguments: object, role: str = "write") -> tuple[int, str, str]:
        monkeypatch.setenv("HF_TOKEN", server.tokens[role])
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return said


def checks(out: str) -> dict[str, tuple[str, str]]:
    return {check["name"]: (check["outcome"], check["detail"]) for check in json.loads(out)["checks"]}


@pytest.mark.exhaustive
def test_a_zoo_of_a_loop_is_contributed_to_and_reviewed(say: Say, server: Hosted, tmp_path: Path) -> None:
    module, own = ("--module", "net.py:net"), ("--inputs", "own.npz")
    with ckptzoo.create("loop", arch=net(0), card=ckptzoo.Card("loop", license="mit")) as writer:
        for seed in range(12):
            writer.add(net(seed), {"id": f"net-{seed}", "seed": seed, "test_accuracy": 0.5, "dataset": "digits"})
    for words in (
        ("derive", "loop", *module, "--input-shape", 12),
        ("predict", "loop", "own/test", *module, *own),
        ("align", "loop", "--to", "best", "--gauge", "canonical", "--label", "nearest", *module),
        ("push", "loop", REPO),
    ):
        code, _, err = say(*words)
        assert code == 0, (words, err)
    bring = ("contribute", "theirs.pt", "--to", REPO, "--card", "contribution.toml")
    # the command that says which option is missing has it
    code, out, _ = say(*bring, "--dry-run", "--json", role="contribute")
    outcome, detail = checks(out)["accuracy"]
    assert code == 0 and outcome == "not done" and "[evaluation]" not in detail
    assert 0 < detail.find("--inputs FILE.npz") < detail.find("--module FILE.py:NAME")
    code, out, _ = say(*bring, *module, *own, "--json", role="contribute")
    assert code == 0 and checks(out)["accuracy"][0] == "passed" and json.loads(out)["folder"] is None
    read = np.load("own.npz")
    expected = accuracy(net(100), read["inputs"], read["targets"])
    code, out, _ = say("review", REPO, 1, "--merge", "--derive", *module, *own, "--json")
    told = json.loads(out)
    assert code == 0 and all(check["outcome"] == "passed" for check in told["checks"]), told["checks"]
    assert checks(out)["accuracy"][1] == f"measured of 1 checkpoint, {expected:.2%}, on own.npz"
    (note,) = told["notes"]  # a variant that is aligned is made where the reference is
    zoo = ckptzoo.open(REPO, endpoint=server.url)
    row = zoo.metadata.to_pylist()[-1]
    assert row["id"] == "stranger/theirs" and row["test_accuracy"] == expected
    assert json.loads(row["extra"])["evaluation"]["inputs"] == "own.npz"
    assert zoo.arch.input_shape == (12,) and len(zoo.having("canonical")) == len(zoo.having("own/test")) == 13
    commands = re.findall(r"(?:ckptzoo )(.+?)(?:, (?=ckptzoo)| and (?=ckptzoo)|\.$)", note)
    assert len(commands) == 3 and commands[1].startswith("align FOLDER --to net-0 --label nearest --gauge canonical")
    for command in commands:
        said = command.replace("FOLDER", "here").replace("FILE.py:NAME", "net.py:net")
        code, _, err = say(*said.split())
        assert code == 0, (said, err)
    assert len(ckptzoo.open(REPO, endpoint=server.url).having("aligned-nearest")) == 13


@pytest.mark.exhaustive
def test_variants_that_a_merge_made_without_checks_are_named_and_counted(say: Say, server: Hosted) -> None:
    with ckptzoo.create("loop", arch=net(0)) as writer:
        for seed in range(3):
            writer.add(net(seed), {"id": f"net-{seed}", "license": "mit"})
    network = ("--module", "net.py:net")
    assert say("derive", "loop", *network, "--input-shape", 12)[0] == 0
    assert say("predict", "loop", "own/test", *network, "--inputs", "own.npz")[0] == 0
    assert say("push", "loop", REPO)[0] == 0
    bring = ("contribute", "theirs.pt", "--to", REPO, "--card", "contribution.toml", "--inputs", "own.npz")
    code, out, _ = say(*bring, *network, role="contribute")
    assert code == 0 and out.endswith(f"ckptzoo review {REPO} 1 --module FILE.py:NAME --inputs FILE.npz\n")
    code, out, _ = say("review", REPO, 1, "--merge", "--derive", "--json")
    assert checks(out)["accuracy"][1].startswith("stated ")
    outcome, detail = checks(out)["near copies"]
    assert outcome == "not done" and "--module FILE.py:NAME" in detail
    note, later = json.loads(out)["notes"]
    assert later.endswith(f"ckptzoo review {REPO} 1 --finish --module FILE.py:NAME --inputs FILE.npz.")
    assert "mean" not in later
    assert code == 0 and note.startswith("no equivalence check of canonical for the new checkpoints: ")
    zoo = ckptzoo.open(REPO, endpoint=server.url)
    assert inventory(zoo).variants[1].checked_random == 3
    for text in (say("info", REPO)[1], readme(zoo, ckptzoo.Card("loop"))):
        assert "(3 of 4 checked)" in text and ("tated by contributors, not measured again" in text)
    for command in re.findall(r"(?:ckptzoo )(.+?)(?:, (?=ckptzoo)| and (?=ckptzoo)| add it\.$)", note):
        code, _, err = say(*command.replace("FOLDER", "here").replace("FILE.py:NAME", "net.py:net").split())
        assert code == 0, (command, err)
    assert say("review", REPO, 1, "--finish", *network, "--inputs", "own.npz")[0] == 0
    told = say("info", REPO)[1]
    assert "checked)" not in told and "not measured again" not in told
    assert len(ckptzoo.open(REPO, endpoint=server.url).having("own/test")) == 4
    again = ckptzoo.open(REPO, endpoint=server.url)
    assert say("review", REPO, 1, "--finish", *network, "--inputs", "own.npz")[0] == 0
    assert ckptzoo.open(REPO, endpoint=server.url).measured.equals(again.measured)


@pytest.mark.parametrize("arrays", ["none", "labels", "classes", "size"])
@pytest.mark.sampled(3)
def test_inputs_that_do_not_fit(say: Say, tmp_path: Path, arrays: str) -> None:
    with ckptzoo.create("loop", arch=net(0)) as writer:
        writer.add(net(1), {"id": "net-1"})
    assert say("push", "loop", REPO)[0] == 0
    inputs, labels = np.zeros((4, 12), "f4"), np.arange(4) % 3
    expected = {
        "none": ({"x": inputs}, "expected a .npz file with arrays inputs (N, ...) and targets (N,), got arrays 'x'"),
        "labels": ({"inputs": inputs}, "array 'targets': expected labels beside the inputs, got none"),
        "classes": ({"inputs": inputs, "targets": labels + 1}, "expected (N, 4) scores of labels, got (4, 3)"),
        "size": ({"inputs": inputs[:, :5], "targets": labels}, "inputs (4, 5) of bad.npz: expected a network that"),
    }
    content, said = expected[arrays]
    np.savez("bad.npz", **content)
    words: tuple[Any, ...] = ("contribute", "theirs.pt", "--to", REPO, "--card", "contribution.toml", "--dry-run")
    code, _, err = say(*words, "--module", "net.py:net", "--inputs", "bad.npz", role="contribute")
    assert code in (2, 3, 4) and said in err
    if arrays == "size":
        assert "one whose first weights, 0.weight, are (7, 12)" in err and err.endswith("--inputs FILE.npz.\n")


SIZES = [((1, 8, 8), 64), ((1, 28, 28), 64), ((3, 4, 4), 16), ((1, 4, 4), 16)]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(("shape", "width"), SIZES if ALL else SIZES[:2])
def test_images_of_another_size_are_named_with_what_the_network_takes(
    tmp_path: Path, shape: tuple[int, ...], width: int, declared: bool
) -> None:
    module = nn.Linear(width, 10)
    arch = Architecture.of(module.state_dict(), name="mine", input_shape=(width,) if declared else None)
    np.savez(tmp_path / "made_test.npz", images=np.zeros((3, *shape), np.uint8), labels=np.arange(3))
    pool = EvaluatorPool(arch, lambda: module, tmp_path)
    weights = {name: value.detach().numpy()[None] for name, value in module.state_dict().items()}
    flat = int(np.prod(shape))
    if declared and flat == width:
        assert pool.measure(weights, Evaluation("made"))[0] is not None
        return
    with pytest.raises(ZooError) as refused:
        pool.measure(weights, Evaluation("made"))
    said = str(refused.value)
    assert f"inputs {(3, *shape)} of made" in said and f"weight, are (10, {width})" in said
    assert ("--inputs FILE.npz" in said) == (flat != width) and ("input_shape = [" in said) == (flat == width)
