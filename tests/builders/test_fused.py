"""The fused engine: where it is chosen, what it compiles to, and its steps in Triton's interpreter and on a GPU."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from builders import data, engines
from builders.data_source import DataSource
from builders.recipe import Recipe
from builders.state import TrainingState
from builders.train import open_trainer
from ckptzoo.errors import MissingExtraError, ZooError
from tests.support.effort import ALL

triton = pytest.importorskip("triton")

DIGITS = Recipe.load("digits-optunet")
FULL = data.load(DIGITS)
POINTERS = {"pixels": "*u8", "labels": "*i64", "keys": "*i64", "corners": "*i64", "winners": "*i8", "words": "*i32"}
NUMBERS = {"start": "i32", "stop": "i32", "shift": "fp32", "scale": "fp32"}
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_it_is_the_fastest_on_a_gpu() -> None:
    assert engines.usable(DIGITS, "cuda")[-3:] == ("general", "optunet", "fused")
    assert engines.fastest(DIGITS, "cuda:1") == "fused"
    assert "fused" not in engines.usable(DIGITS, "cpu")
    assert "fused" not in engines.usable(Recipe.load("toy"), "cuda")
    with pytest.raises(ZooError, match="got fused"), open_trainer(DIGITS, FULL, engine="fused"):
        pass


def test_without_triton_there_are_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert engines.usable(DIGITS, "cuda")[-2:] == ("general", "optunet")
    assert "fused" not in engines.usable(DIGITS, "cuda")
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[gpu\]"):
        engines.get("fused")


def test_a_cpu_is_refused() -> None:
    with pytest.raises(ZooError, match="expected 28x28 pixels on cuda, got 28x28 on cpu"):
        engines.get("fused")(DataSource.of(DIGITS, FULL, "cpu"), TrainingState.initial(DIGITS, [0], "cpu"), 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.exhaustive
def test_its_steps_are_right_in_tritons_interpreter() -> None:
    checks = Path(__file__).with_name("fused_interpreted.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(checks)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path.cwd(), check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert ("8 passed" if ALL else "3 passed, 5 skipped") in found.stdout


@pytest.mark.exhaustive
def test_it_compiles_to_128_registers_without_atomics_or_tensor_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an H200, by the compiler and the assembler that Triton brings along; no GPU is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from builders.engines import fused
    from builders.engines.fused.training import train

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    recipe = dataclasses.replace(Recipe.load("mnist-optunet"), train=60)
    few = dataclasses.replace(FULL, train_images=FULL.train_images[:60], train_labels=FULL.train_labels[:60])
    constants = {**fused.constants(DataSource.of(recipe, few, "cpu")), "count": 60000, "side": 246}
    names = train.arg_names
    kinds = {name: "constexpr" if name in constants else {**POINTERS, **NUMBERS}.get(name, "*fp32") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if kinds[name].startswith("*")}
    made = triton.compile(
        ASTSource(train, signature=kinds, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", 90, 32),
        options=fused.options(constants["lanes"]),
    )
    (tmp_path / "fused.cubin").write_bytes(made.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    used = subprocess.run(
        [tool, "-res-usage", tmp_path / "fused.cubin"], capture_output=True, text=True, check=True
    ).stdout
    print(used)
    sizes = {name: int(size) for name, size in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", used)}
    assert sizes["REG"] <= 128
    assert sizes["STACK"] + sizes["LOCAL"] <= 16
    assert sizes["SHARED"] <= 2048
    assert not re.search(r"\b(atom|red|mma|wgmma)\.", made.asm["ptx"])


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize(("batch", "momentum"), [(32, 0.0), (64, 0.9), (100, 0.0)])
def test_a_gpu_takes_the_steps_of_the_engine_optunet(batch: int, momentum: float) -> None:
    recipe = dataclasses.replace(DIGITS, batch=batch, momentum=momentum, learning_rate=0.05, milestones=(1,))
    steps = recipe.epoch_steps + 20
    states = []
    for engine in ("optunet", "fused"):
        with open_trainer(recipe, FULL, device="cuda", engine=engine) as trainer:
            states.append(trainer.start([0, 1, 2]))
            trainer.advance(states[-1], steps)
    assert states[1].step == steps
    for name, tensor in states[0].weights.items():
        torch.testing.assert_close(tensor, states[1].weights[name], rtol=0, atol=1e-3)
        assert not torch.allclose(tensor[0], tensor[1], atol=1e-2)


@pytest.mark.gpu
@on_a_gpu
def test_on_a_gpu_a_member_does_not_depend_on_its_company_or_the_way() -> None:
    with open_trainer(DIGITS, FULL, device="cuda", engine="fused") as trainer:
        together, alone = trainer.start(range(3000)), trainer.start([7, 2999])
        trainer.advance(together, 200)
        for stop in (1, 64, 113, 200):
            trainer.advance(alone, stop)
        accuracy = trainer.measure(alone.weights)["test_accuracy"]
    for name, tensor in together.weights.items():
        assert tensor.isfinite().all()
        assert torch.equal(tensor[[7, 2999]], alone.weights[name])
    assert (accuracy > 0.2).all()
