"""Copies of zoos in two bytes a weight: rounded to nearest, measured as stored, resumable, refused where wrong."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptzoo
from builders import rounding, sources
from builders.__main__ import run
from builders.build import build
from builders.recipe import Recipe
from builders.train import open_trainer
from ckptzoo import archs
from ckptzoo.errors import IntegrityError, ZooError
from tests.support.builds import COLOUR, QUIET, small_cifar10

MEASURED = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "test_nll", "test_brier", "test_ece")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files of a few images, known as CIFAR-10."""
    with small_cifar10(tmp_path_factory.mktemp("data")) as path:
        yield path


@pytest.fixture(scope="module")
def zoo(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two members at three steps."""
    path = tmp_path_factory.mktemp("zoos") / "colour"
    build(COLOUR, path, members=2, keep_steps=(0, 3), folder=folder, console=QUIET)
    return path


@pytest.mark.parametrize("dtype", rounding.DTYPES)
@pytest.mark.sampled(2)
def test_weights_are_rounded_to_nearest_and_measured_as_stored(
    dtype: str, zoo: Path, folder: Path, tmp_path: Path
) -> None:
    report = rounding.round_weights(zoo, COLOUR, tmp_path / "copy", dtype=dtype, folder=folder)
    before, after = ckptzoo.open(zoo), ckptzoo.open(tmp_path / "copy")
    assert ckptzoo.verify(tmp_path / "copy") == []
    assert (report.added, report.held, after.ids) == (6, 6, before.ids)
    for tensor in COLOUR.arch.tensors:
        exact, stored = torch.from_numpy(before[tensor.name][:].copy()), after.arch[tensor.name].dtype
        assert stored == ("int64" if tensor.dtype == "int64" else dtype)
        rounded = np.asarray(after[tensor.name][:]).astype(np.float64)
        np.testing.assert_array_equal(rounded, exact.to(getattr(torch, stored)).double().numpy())
    with open_trainer(COLOUR, sources.load(COLOUR, folder)) as trainer:
        states = [after.checkpoint(name).state_dict() for name in after.ids]
        whole = {name: torch.stack([state[name] for state in states]) for name in COLOUR.arch.names}
        whole = {name: values.float() if values.is_floating_point() else values for name, values in whole.items()}
        expected = trainer.measure(whole)
    rows, originals = after.metadata.to_pylist(), before.metadata.to_pylist()
    changes = []
    for number, (row, original) in enumerate(zip(rows, originals, strict=True)):
        assert {name: row[name] for name in MEASURED} == {name: expected[name][number].item() for name in MEASURED}
        assert json.loads(row.pop("extra")) == {**json.loads(original.pop("extra")), "rounded_from": "float32"}
        assert row["unit"] is None and original["unit"] is not None
        kept = row.keys() - {*MEASURED, "unit"}
        assert {name: row[name] for name in kept} == {name: original[name] for name in kept}
        changes.append(abs(row["test_accuracy"] - original["test_accuracy"]))
    assert report.largest_change == max(changes)
    assert any(row["test_loss"] != original["test_loss"] for row, original in zip(rows, originals, strict=True))


def test_a_copy_is_carried_on_and_grows(
    zoo: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command does; an interruption loses no more than a part."""
    monkeypatch.setattr(rounding, "_PART", 2)
    monkeypatch.setattr(rounding, "_MEASURED_BYTES", 1)
    recipe, copy, calls = tmp_path / "colour.toml", tmp_path / "copy", []
    monkeypatch.setattr(Recipe, "load", lambda name: COLOUR)
    command = ["round", str(zoo), str(recipe), "-o", str(copy), "--data", str(folder)]
    assert run([*command, "--where", "step == 3"]) == 0
    assert "2 checkpoints in float16; test accuracy changed by at most" in capsys.readouterr().out

    def interrupted(*args: object) -> object:
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return rows(*args)  # type: ignore[arg-type]

    rows = rounding._rows
    monkeypatch.setattr(rounding, "_rows", interrupted)
    assert run(command) == 130
    assert len(ckptzoo.open(copy)) == 4
    monkeypatch.setattr(rounding, "_rows", rows)
    assert run(command) == run(command) == 0
    assert "holds 6 checkpoints already; nothing was added" in capsys.readouterr().out
    assert sorted(ckptzoo.open(copy).ids) == sorted(ckptzoo.open(zoo).ids) and ckptzoo.verify(copy) == []


def test_the_copy_works_as_any_zoo(zoo: Path, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    rounding.round_weights(zoo, COLOUR, copy, where="step > 3", folder=folder)
    inputs = sources.test_inputs(COLOUR, sources.load(COLOUR, folder))
    assert ckptzoo.derive.derive(copy, store="element", inputs=inputs).certified
    ckptzoo.derive.predict(copy, inputs, set="cifar10/test")
    opened, network = ckptzoo.open(copy), archs.get(COLOUR.architecture)().eval()
    assert opened.variants == ("raw", "canonical") and not ckptzoo.verify(copy)
    for variant in opened.variants:
        for row, name in enumerate(opened.ids):
            network.load_state_dict(opened.checkpoint(name, variant=variant).state_dict())
            with torch.inference_mode():
                found = network(torch.from_numpy(inputs)).numpy()
            np.testing.assert_allclose(opened.predictions("cifar10/test").logits[row], found, rtol=2**-10, atol=2e-3)


def test_what_cannot_be_rounded_is_refused(zoo: Path, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with pytest.raises(ZooError, match=r"dtype: expected float16 or bfloat16, got int8"):
        rounding.round_weights(zoo, COLOUR, copy, dtype="int8", folder=folder)
    other = dataclasses.replace(COLOUR, learning_rate=0.3)
    with pytest.raises(ZooError, match=r"recipe: expected .* of colour .*Name the recipe that trained them"):
        rounding.round_weights(zoo, other, copy, folder=folder)
    with pytest.raises(ZooError, match=r"architecture: expected optunet in float32, the recipe's, got resnet8-conv-10"):
        rounding.round_weights(zoo, "digits-optunet", copy)
    assert not copy.exists()
    rounding.round_weights(zoo, COLOUR, copy, where="step == 3", folder=folder)
    with pytest.raises(IntegrityError, match=r"resnet8-conv-10 in bfloat16, int64, got .* in float16, int64.*another"):
        rounding.round_weights(zoo, COLOUR, copy, dtype="bfloat16", folder=folder)
    large = tmp_path / "large"
    weights = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in COLOUR.arch.tensors}
    weights["linear.bias"][3] = 70_000
    with ckptzoo.create(large, arch=COLOUR.arch) as writer:
        writer.add(weights, {"id": "one", "recipe_digest": COLOUR.digest})
    with pytest.raises(
        ZooError, match=r"'linear.bias': expected numbers in the range of float16, got 7e\+04.*bfloat16"
    ):
        rounding.round_weights(large, COLOUR, tmp_path / "none", folder=folder)
    assert len(ckptzoo.open(tmp_path / "none")) == 0
    rounding.round_weights(large, COLOUR, tmp_path / "wide", dtype="bfloat16", folder=folder)
    assert ckptzoo.open(tmp_path / "wide")["linear.bias"][0, 3] == 70_144
