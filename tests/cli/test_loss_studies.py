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


def test_a_network_of_ones_own(zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "network.py"
    file.write_text(MODULE)
    options = ("--pairs", 2, "--points", 3, "--json")
    both = [answer(capsys, "study", "barriers", zoo, *options, *more) for more in ((), ("--module", f"{file}:network"))]
    losses = [item["zoos"][0]["lines"]["aligned"]["losses"] for item in both]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_images_without_labels_of_the_zoo_are_refused(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["study", "barriers", str(zoo), "--set", "fashion-mnist/test"]) == 2
    assert "labels of 'fashion-mnist/test': expected those of mnist" in capsys.readouterr().err
