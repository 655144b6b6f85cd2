"""The commands barriers, compact and pairs, on labelled images that they find by themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run
from tests.support.derived_zoos import weights_of

RNG = np.random.default_rng(0)
NAME, EXTRA = "mlp-784-4-10", {"mean": 0.3, "std": 0.5}
MODULE = "from ckptzoo import archs\n\n\ndef network():\n    return archs.get('mlp-784-4-10')()\n"


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six perceptrons whose rows say that they take MNIST, and a few images of it."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("mnist", "fashion-mnist"):
        images = RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8)
        np.savez(data / f"{name}_test.npz", images=images, labels=RNG.integers(0, 10, 12))
    monkeypatch.setenv("CKPTZOO_DATA", str(data))
    arch, path = archs.architecture(NAME), tmp_path / "zoo"
    rows = [{"id": f"net-{at}", "dataset": "ylecun/mnist", "extra": json.dumps(EXTRA)} for at in range(6)]
    with ckptzoo.create(path, arch=arch, symmetry=archs.symmetry(NAME)) as writer:
        writer.add(weights_of(6, 0, arch=arch), rows)
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert run([str(word) for word in words]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_each_study_finds_the_test_set_of_the_zoo(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "study", "barriers", zoo, zoo, "--pairs", 2, "--points", 3, "--activations", 9, "--json")
    assert [item["set"] for item in found["zoos"]] == ["mnist/test", "mnist/test"]
    assert found["zoos"][0] == found["zoos"][1] and "aligned by activations" in found["zoos"][0]["lines"]
    assert answer(capsys, "study", "compact", zoo, "--draws", 3, "--json")["inputs"] == 12
    found = answer(capsys, "study", "pairs", zoo, "--set", "mnist/test-5", "--nearest", 2, "--json")
    assert found["set"] == "mnist/test-5" and len(found["nearest"]) == 2
    assert answer(capsys, "study", "pairs", zoo, "--no-barriers", "--json")["set"] is None


def test_landscape_measures_once_and_the_study_reads_it(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["study", "landscape", str(zoo)]) == 2 and "Run ckptzoo landscape" in capsys.readouterr().err
    options = ("--probes", 30, "--steps", 4, "--json")
    found = answer(capsys, "landscape", zoo, *options)
    assert (found["set"], found["checkpoints"], found["already"], found["exact"]) == ("mnist/test", 6, 0, False)
    assert answer(capsys, "landscape", zoo, *options)["already"] == 6
    found = answer(capsys, "study", "landscape", zoo, "--pairs", 2, "--curve-steps", 3, "--json")
    assert (found["set"], found["members"], len(found["pairs"]), found["inputs"]) == ("mnist/test", 6, 2, 12)
    assert answer(capsys, "landscape", zoo, "--set", "mnist/test-5", *options)["examples"] == 5
    found = answer(capsys, "study", "landscape", zoo, "--set", "mnist/test-5", "--pairs", 0, "--json")
    assert found["set"] == "mnist/test-5" and found["top_errors"] > 0
    assert run(["landscape", str(zoo), "--inputs", "own.npz"]) == 2


def test_a_network_of_ones_own(zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "network.py"
    file.write_text(MODULE)
    options = ("--pairs", 2, "--points", 3, "--json")
    both = [answer(capsys, "study", "barriers", zoo, *options, *more) for more in ((), ("--module", f"{file}:network"))]
    losses = [item["zoos"][0]["lines"]["aligned"]["losses"] for item in both]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def of_unknown_forward(zoo: Path, folder: Path, width: int) -> Path:
    """Two perceptrons of another width, whose forward function has no name."""
    known, table = archs.architecture(f"mlp-784-{width}-10"), archs.symmetry(f"mlp-784-{width}-10")
    arch = ckptzoo.Architecture("mine", known.tensors, None, known.input_shape)
    row = {"dataset": "ylecun/mnist", "extra": json.dumps(EXTRA)}
    with ckptzoo.create(folder, arch=arch, symmetry=table) as writer:
        writer.add(weights_of(2, width, arch=arch), [{"id": f"net-{at}", **row} for at in range(2)])
    return folder


@pytest.mark.exhaustive
def test_a_network_of_ones_own_is_that_of_zoos_whose_forward_function_is_unknown(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "network.py"
    file.write_text(MODULE.replace("mlp-784-4-10", "mlp-784-3-10"))
    own = of_unknown_forward(zoo, tmp_path / "own", 3)
    options = ("--pairs", 1, "--points", 3, "--module", f"{file}:network", "--json")
    for zoos in ((own, zoo), (zoo, own)):
        found = answer(capsys, "study", "barriers", *zoos, *options)["zoos"]
        assert [item["name"] for item in found] == [path.name for path in zoos]
    other = of_unknown_forward(zoo, tmp_path / "other", 5)
    assert run([str(word) for word in ("study", "barriers", own, other, zoo, *options)]) == 2
    assert "expected one architecture, got other tensors in own than in other. Name zoos" in capsys.readouterr().err
    for command in ("barriers", "pairs"):
        module = options[-3:-1] if command == "barriers" else ("--module", f"{file}:network", "--nearest", 1)
        assert run([str(word) for word in ("study", command, zoo, *module)]) == 2
        assert (
            "tensor 'fc1.weight' of the module: expected (4, 784), got (3, 784), and 2 more differ. Name"
            in capsys.readouterr().err
        )


@pytest.mark.parametrize("command", ["compact", "pairs", "steps"])
def test_losses_of_gaussians_are_refused_with_what_to_do(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    name, path = f"gaussian-{NAME}", tmp_path / "gaussians"
    arch = archs.architecture(name)
    row = {"member": "net", "dataset": "ylecun/mnist", "extra": json.dumps(EXTRA)}
    with ckptzoo.create(path, arch=arch, symmetry=archs.symmetry(name)) as writer:
        writer.add(weights_of(3, 0, arch=arch), [{"id": f"net-{at}", "step": at, **row} for at in range(3)])
    assert run(["study", command, str(path)]) == 2
    assert (
        f"expected networks {NAME}, got Gaussians over their weights. Draw networks from them with "
        "ckptzoo.derive.draws; ckptzoo study barriers takes Gaussians"
    ) in capsys.readouterr().err


def test_images_without_labels_of_the_zoo_are_refused(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["study", "barriers", str(zoo), "--set", "fashion-mnist/test"]) == 2
    assert "labels of 'fashion-mnist/test': expected those of mnist" in capsys.readouterr().err


def test_numbers_that_are_refused_are_named(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["study", "barriers", str(zoo), "--simplex", "1"]) == 2
    assert "barriers: simplex: expected 2 or more, got 1." in capsys.readouterr().err
