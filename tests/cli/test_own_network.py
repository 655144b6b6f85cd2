"""A zoo that a plain loop wrote, of a network that ckptzoo does not know: every study that its contents allow runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.cli.app import run
from tests.cli.conftest import Cli
from tests.support.effort import ALL

NETWORK = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x):
        return self.net(x.flatten(1))
"""
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of 24 members at two steps, the file of their network, and labelled and other inputs."""
    from torch import nn

    folder = tmp_path_factory.mktemp("plain")
    (folder / "net.py").write_text(NETWORK)
    spaces: dict[str, Any] = {}
    exec(NETWORK, spaces)
    model: nn.Module = spaces["Net"]()
    with ckptzoo.create(folder / "zoo", arch=model) as writer:
        for seed in range(24):
            start = {name: RNG.normal(size=value.shape).astype("f4") for name, value in model.state_dict().items()}
            for step in (0, 10):
                weights = {name: value + RNG.normal(size=value.shape) * 0.1 for name, value in start.items()}
                row = {"id": f"{seed}-{step}", "member": f"{seed}", "seed": seed, "step": step}
                accuracy = {"test_accuracy": RNG.uniform(0.2, 0.9)}
                writer.add({name: value.astype("f4") for name, value in weights.items()}, row | accuracy)
    inputs = RNG.normal(size=(40, 12)).astype("f4")
    np.savez(folder / "own.npz", inputs=inputs, targets=RNG.integers(0, 3, 40))
    np.savez(folder / "other.npz", inputs=inputs + 1)
    return folder


def test_every_study_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zoo, module = folder / "zoo", ("--module", f"{folder}/net.py:Net")

    def called(*words: object) -> tuple[int, str]:
        code = run([str(word) for word in words])
        return code, capsys.readouterr().err

    shape = ("--input-shape", 12)
    for study in ("symmetries", "mass", "marginals", "modes", "permutations", "steps")[: None if ALL else 2]:
        code, said = called("study", study, zoo, *(("--no-barriers",) if study == "steps" else ()))
        assert code != 0 and f"Run ckptzoo derive {zoo} --module FILE.py:NAME --input-shape SHAPE" in said
    # each command that needs the shape says so, and works with it
    code, said = called("derive", zoo, *module)
    assert (
        code != 0
        and f"Say the shape of one input: ckptzoo derive {zoo} --module FILE.py:NAME --input-shape SHAPE" in said
    )
    for gauge in ("canonical", "min-mass", "unit-norm") if ALL else ("canonical",):
        code, said = called("derive", zoo, "--gauge", gauge, *module, *shape)
        assert code == 0, said
    assert ckptzoo.open(zoo).variant_metadata("canonical")["certified"].unique().to_pylist() == ["float64"]
    commands = (
        ("dedupe", zoo, *module, *shape),
        ("align", zoo, "--to", "best", *module, *shape),
        ("predict", zoo, "own/test", *module, "--inputs", folder / "own.npz"),
        ("predict", zoo, "other/test", *module, "--inputs", folder / "other.npz"),
    )
    for words in commands if ALL else commands[2:3]:
        code, said = called(*words)
        assert code == 0, said
    labelled = (*module, "--inputs", folder / "own.npz")
    studies: tuple[tuple[object, ...], ...] = (
        ("compact", *labelled, "--draws", 2),
        ("ensembles",),
        ("symmetries",),
        ("mass",),
        ("marginals",),
        ("modes",),
        ("permutations",),
        ("predict-accuracy",),
        ("collapse",),
        ("steps", *labelled),
        ("pairs", *labelled, "--nearest", 2),
        ("barriers", *labelled, "--pairs", 1, "--points", 3),
    )
    for words in studies if ALL else studies[:2]:
        code, said = called("study", words[0], zoo, *words[1:])
        assert code == 0, (words, said)


def test_shapes_and_inputs_that_do_not_fit(folder: Path, tmp_path: Path, cli: Cli) -> None:
    zoo, module = folder / "zoo", ("--module", f"{folder}/net.py:Net")
    for text in ("3x", "x", "12.5", "-1", "0", ",", "12;3"):
        assert "expected sizes such as 64 or 3x32x32, got" in cli("derive", zoo, *module, f"--input-shape={text}").line
    np.save(tmp_path / "array.npy", np.zeros((3, 2)))
    (tmp_path / "text.npz").write_text("no archive")
    for name, arrays, said in (
        ("none", {}, "got arrays none"),
        ("x", {"x": np.zeros((2, 2))}, "got arrays 'x'"),
        ("flat", {"inputs": np.zeros(3)}, "array 'inputs': expected numbers"),
        ("texts", {"inputs": np.array([["a"]])}, "array 'inputs'"),
        ("few", {"inputs": np.zeros((3, 12)), "targets": np.zeros(2, int)}, "array 'targets': expected (3,) integers"),
        ("floats", {"inputs": np.zeros((3, 12)), "targets": np.zeros(3)}, "array 'targets'"),
        ("negative", {"inputs": np.zeros((3, 12)), "targets": np.full(3, -1)}, "array 'targets'"),
        ("objects", {"inputs": np.array([[{}]], object)}, "got another file"),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        ended = cli("study", "compact", zoo, *module, "--inputs", tmp_path / f"{name}.npz")
        assert said in ended.line and ended.code == 2, ended.err
    for name in ("array.npy", "text.npz", "nowhere.npz"):
        said = cli("study", "pairs", zoo, *module, "--inputs", tmp_path / name).line
        assert "expected a .npz file" in said or "expected a file, got" in said
    assert "expected an array targets" in cli("study", "compact", zoo, "--inputs", folder / "other.npz").line
    assert "expected one SET" in cli("predict", zoo, "a/test", "b/test", "--inputs", folder / "own.npz").line
