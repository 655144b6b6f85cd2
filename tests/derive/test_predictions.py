"""Predictions: what is stored is what stock PyTorch computes, whoever computes it and however often it is asked for."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import Predicted, concurrency, derive, predict
from ckptzoo.derive.derived_writer import DerivedTreeWriter
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.format.durable import locked
from ckptzoo.schema.architecture import Architecture
from tests.support.derived_zoos import ARCH, files_of, fill, inputs_of, weights_of, written, zoo_of

INPUTS = inputs_of(ARCH, 21).astype(np.float32)
TARGETS = np.arange(21) % 10


def predicted(path: Path, inputs: np.ndarray = INPUTS, **how: Any) -> Predicted:
    return predict(path, inputs, **{"set": "mnist/test", "targets": TARGETS, **how})


def logits(path: Path, name: str = "mnist/test") -> np.ndarray:
    return np.asarray(ckptzoo.open(path).predictions(name).logits)


def shards(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(path).items() if "predictions-" in name and "parquet" not in name}


def stock(name: str, weights: dict[str, np.ndarray], at: int, inputs: np.ndarray) -> np.ndarray:
    model = archs.get(name)().eval()
    model.load_state_dict({key: torch.from_numpy(np.array(array[at])) for key, array in weights.items()})
    with torch.no_grad():
        return model(torch.from_numpy(inputs)).numpy()


@pytest.mark.parametrize("name", ["optunet", "mlp-tanh-12-5-3", "resnet8-conv-10"])
def test_stored_outputs_are_those_of_stock_pytorch_rounded_once(tmp_path: Path, name: str) -> None:
    arch = archs.architecture(name)
    weights = weights_of(11, 0, arch=arch)
    shape = arch.input_shape or (3, 8, 8)
    inputs = np.random.default_rng(1).standard_normal((7, *shape)).astype(np.float32)
    made = predicted(written(tmp_path / "zoo", arch, weights), inputs, targets=None)
    found = logits(tmp_path / "zoo")
    assert found.dtype == np.float16 and found.shape == (11, 7, made.classes)
    for at in range(11):
        exact = stock(name, weights, at, inputs)
        scale = np.abs(exact).max()
        assert np.abs(found[at] - exact).max() <= scale * (2**-11 + 1e-5)
        assert (found[at] == exact.astype(np.float16)).mean() > 0.95


@pytest.mark.parametrize(("name", "count"), [("mlp-784-40-10", 19), ("optunet", 67)])
def test_nothing_but_the_network_and_the_number_of_inputs_decides_the_bytes(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = archs.architecture(name)
    weights = weights_of(count, 0, arch=arch)
    inputs = inputs_of(arch, 150)
    found: list[dict[str, bytes]] = []
    threads = torch.get_num_threads()
    for at, cores in enumerate((1, 2, 5)):
        monkeypatch.setattr(concurrency, "cores", lambda cores=cores: cores)
        torch.set_num_threads(1 + at % 2)
        try:
            predicted(written(tmp_path / f"{cores}", arch, weights), inputs, targets=None)
        finally:
            torch.set_num_threads(threads)
        found.append(shards(tmp_path / f"{cores}"))
    assert found[0] and found[0] == found[1] == found[2]
    order = np.random.default_rng(0).permutation(count)
    predicted(
        written(tmp_path / "moved", arch, {key: array[order] for key, array in weights.items()}), inputs, targets=None
    )
    np.testing.assert_array_equal(logits(tmp_path / "moved"), logits(tmp_path / "1")[order])


def test_each_raw_part_gives_one_and_a_second_call_nothing(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (5, 3))
    seen: list[tuple[int, int]] = []
    first = predicted(path, progress=lambda done, total: seen.append((done, total)))
    assert (first.checkpoints, first.already, len(first.parts)) == (8, 0, 2) and seen == [(5, 8), (8, 8)]
    before = files_of(path)
    second = predicted(path)
    assert (second.checkpoints, second.already, second.parts) == (0, 8, ()) and files_of(path) == before
    fill(path, (4,), start=2)
    third = predicted(path)
    assert (third.checkpoints, third.already, len(third.parts)) == (4, 8, 1)
    assert ckptzoo.verify(path) == [] and logits(path).shape == (12, 21, 10)
    assert not list(path.rglob(".*"))
    assert ckptzoo.open(path).variants == ("raw",), "predictions are no variant"


class _StopError(Exception):
    pass


def test_a_call_that_is_broken_off_leaves_whole_parts_and_is_carried_on(tmp_path: Path) -> None:
    path, whole = zoo_of(tmp_path / "zoo", (9, 3, 100)), zoo_of(tmp_path / "whole", (9, 3, 100))
    predicted(whole)

    def stop(done: int, total: int) -> None:
        if done > 12:
            raise _StopError

    with pytest.raises(_StopError):
        predicted(path, progress=stop)
    parts = [name.name for name in (path / "derived/predictions-mnist--test").iterdir()]
    assert len(parts) == 2 and all(name[0] != "." for name in parts) and ckptzoo.verify(path) == []
    carried = predicted(path)
    assert carried.already + carried.checkpoints == 112 and carried.already == 12
    assert shards(path) == shards(whole)


def test_a_part_that_another_process_writes_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    path, other = zoo_of(tmp_path / "zoo", (9, 4)), tmp_path / "other"
    shutil.copytree(path, other)
    predicted(other)
    tree = "derived/predictions-mnist--test"

    def meanwhile(done: int, total: int) -> None:
        (path / tree).mkdir(parents=True, exist_ok=True)
        with locked(path):  # as every writer does
            for part in [part for part in (other / tree).iterdir() if not (path / tree / part.name).exists()]:
                part.rename(path / tree / part.name)

    made = predicted(path, progress=meanwhile)
    # the first part may have been written before the first call of ``progress``, the second cannot
    assert made.checkpoints + made.already == 13 and made.checkpoints in (0, 9)
    assert ckptzoo.verify(path) == [] and len(logits(path)) == 13


def test_outputs_that_are_not_finite_or_beyond_float16_are_counted(tmp_path: Path) -> None:
    weights = weights_of(6, 0)
    weights["fc.bias"][1, 3] = 1e6
    weights["fc.bias"][2, :2] = -1e30
    weights["fc.bias"][3, 0] = np.nan
    weights["fc.bias"][4, 0] = np.inf
    weights["fc.bias"][5, 0] = 65_000
    made = predicted(written(tmp_path / "zoo", ARCH, weights))
    assert (made.not_finite, made.overflowed) == (4, 21 + 42)
    held = ckptzoo.open(tmp_path / "zoo").predictions("mnist/test")
    found = np.asarray(held.logits)
    assert held.finite.tolist() == [True, False, False, False, False, True]
    assert (
        np.isposinf(found[1, :, 3]).all() and np.isneginf(found[2, :, :2]).all() and np.isposinf(found[4, :, 0]).all()
    )
    assert set(found[3, :, 0].view(np.uint16).tolist()) == {0x7E00}, "one NaN stands for all"
    assert ckptzoo.verify(tmp_path / "zoo") == []


def test_half_precision_and_tied_tensors(tmp_path: Path) -> None:
    half = Architecture("half", tuple(ckptzoo.Tensor(t.name, t.shape, "float16") for t in ARCH.tensors), "optunet")
    weights = weights_of(3, 0, dtype=np.float16)
    predicted(written(tmp_path / "zoo", half, weights), targets=None)
    single = {name: array.astype(np.float32) for name, array in weights.items()}
    predicted(written(tmp_path / "single", ARCH, single), targets=None)
    np.testing.assert_array_equal(logits(tmp_path / "zoo"), logits(tmp_path / "single"))


def test_an_optunet_on_larger_images_is_evaluated_by_its_module(tmp_path: Path) -> None:
    free = Architecture("free", ARCH.tensors, "optunet")
    weights = weights_of(3, 0)
    inputs = np.random.default_rng(2).standard_normal((5, 1, 32, 32)).astype(np.float32)
    predicted(written(tmp_path / "zoo", free, weights), inputs, targets=None)
    expected = np.stack([stock("optunet", weights, at, inputs) for at in range(3)])
    np.testing.assert_allclose(logits(tmp_path / "zoo"), expected, rtol=0, atol=2**-10 * np.abs(expected).max())


class _Image(nn.Module):
    """A network that ckptzoo.archs does not know, whose outputs are no list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(images))


def test_a_module_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = _Image()
    with ckptzoo.create(tmp_path / "mine", arch=module.state_dict(), card=ckptzoo.Card("mine", "Mine.")) as writer:
        for number in range(3):
            nn.init.normal_(module.conv.weight)
            writer.add(module.state_dict(), {"id": f"net-{number}"})
    inputs = np.random.default_rng(0).standard_normal((4, 1, 5, 5)).astype(np.float32)
    with pytest.raises(ZooError, match=r"predict\(\.\.\., module="):
        predicted(tmp_path / "mine", inputs, targets=None)
    made = predicted(tmp_path / "mine", inputs, targets=None, module=module)
    assert made.classes == 18 and module.training
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(inputs)).flatten(1).half().numpy()
    np.testing.assert_array_equal(logits(tmp_path / "mine")[2], expected)
    with pytest.raises(ZooError, match=r"expected \(2, features\)"):
        predicted(tmp_path / "mine", inputs[:, 0], targets=None, module=module, set="mine/flat")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = zoo_of(tmp_path_factory.mktemp("refusals") / "zoo", (2,))
    yield path
    assert not (path / "derived").exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"set": "mnist"}, "name of the set"),
        ({"set": "Mnist/test"}, "name of the set"),
        ({"set": "../test"}, "name of the set"),
        ({"set": "mnist/te--st"}, "name of the set"),
        ({"set": "m/" + "x" * 50}, "name of the set"),
        ({"inputs": INPUTS[:, 0]}, r"shape of the inputs: expected \(N, 1, 28, 28\)"),
        ({"inputs": INPUTS[:0]}, "shape of the inputs"),
        ({"targets": TARGETS[:5]}, "targets: expected 21 integers from 0 to 9"),
        ({"targets": TARGETS.astype(float)}, "targets"),
        ({"targets": TARGETS - 1}, "from -1 to 8"),
        ({"targets": TARGETS + 1}, "from 1 to 10"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(zoo: Path, how: dict[str, Any], said: str) -> None:
    with pytest.raises(ZooError, match=said):
        predicted(zoo, **how)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"inputs": INPUTS + 1}, "inputs of the predictions"),
        ({"inputs": INPUTS[:20], "targets": TARGETS[:20]}, "examples of the predictions: expected 20, got 21"),
        ({"targets": TARGETS[::-1]}, "targets of the predictions"),
        ({"targets": None}, "targets of the predictions: expected None"),
    ],
)
def test_other_inputs_under_the_same_name_are_never_mixed(tmp_path: Path, how: dict[str, Any], said: str) -> None:
    path = zoo_of(tmp_path / "zoo", (2,))
    predicted(path)
    fill(path, (1,), start=1)
    before = files_of(path)
    with pytest.raises(ZooError, match=said):
        predicted(path, **how)
    assert files_of(path) == before
    predicted(path, set="mnist/other", **how)
    assert ckptzoo.open(path).predicted == ("mnist/other", "mnist/test")


def test_the_facts_are_those_of_the_page(tmp_path: Path) -> None:
    import base64
    import hashlib

    path = zoo_of(tmp_path / "zoo", (2,))
    predicted(path)
    zoo = ckptzoo.open(path)
    (part,) = zoo.contents.derived("predictions-mnist--test").parts
    digest = hashlib.sha256(b"(21, 1, 28, 28)\n" + INPUTS.astype("<f4").tobytes()).hexdigest()
    assert part.facts == {
        "kind": "predictions",
        "set": "mnist/test",
        "raw": zoo.contents.raw.parts[0].digest,
        "outputs": "logits",
        "examples": 21,
        "classes": 10,
        "inputs": f"sha256:{digest}",
        "targets": base64.b64encode(TARGETS.astype("u1").tobytes()).decode(),
    }
    assert [file.name for file in sorted((path / part.path).iterdir())] == [
        "index.parquet",
        "metadata.parquet",
        "predictions-00.safetensors",
    ]


def test_a_zoo_without_checkpoints_and_a_result_that_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ckptzoo.create(tmp_path / "zoo", arch=ARCH)
    made = predicted(tmp_path / "zoo")
    assert made.parts == () and ckptzoo.open(tmp_path / "zoo").predicted == ()
    Predicted("a/b", ("x",), 3, 2, 1000, 10, 1, 7, 0.5).print()
    said = capsys.readouterr().out
    for words in (
        "3 checkpoints evaluated on 1,000 examples",
        "2 were there",
        "0.5 s",
        "1 with outputs",
        "7 outputs beyond",
    ):
        assert words in " ".join(said.split())
    assert json.loads(json.dumps(made.to_json()))["set"] == "mnist/test"


def test_memory_of_a_core_is_a_stack_and_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The activations that a batch needs follow from INPUT_BYTES, whatever the number of inputs."""
    sizes: list[tuple[int, ...]] = []
    from ckptzoo.derive import forward
    from ckptzoo.derive.forward import Forward

    kept = Forward.outputs

    def outputs(self: Forward, weights: Any, batches: Any, *, stacked: bool) -> Any:
        sizes.extend((len(next(iter(weights.values()))), *batch.shape) for batch in batches)
        return kept(self, weights, batches, stacked=stacked)

    monkeypatch.setattr(Forward, "outputs", outputs)
    arch = archs.architecture("mlp-784-40-10")
    predicted(
        written(tmp_path / "mlp", arch, weights_of(3, 0, arch=arch)), np.zeros((150, 784), np.float32), targets=None
    )
    assert set(sizes) == {(8, 50, 784)}
    assert all(stack * batch * 4 * 784 <= forward.INPUT_BYTES for stack, batch, _ in sizes)
    sizes.clear()
    images = np.zeros((1500, 1, 28, 28), np.float32)
    predicted(zoo_of(tmp_path / "zoo", (65,)), images, targets=None)
    assert set(sizes) == {(64, 750, 1, 28, 28), (1, 750, 1, 28, 28)}
    assert all(batch * 4 * 28 * 28 <= forward.FAST_INPUT_BYTES for _, batch, *_ in sizes)


@pytest.mark.parametrize("at_a_time", [1, 100])
@pytest.mark.parametrize("gauge", [None, "canonical"])
def test_nothing_is_derived_from_damaged_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gauge: str | None, at_a_time: int
) -> None:
    runs = DerivedTreeWriter.runs
    monkeypatch.setattr(DerivedTreeWriter, "runs", lambda self, parts, rows: runs(self, parts, at_a_time))
    path = zoo_of(tmp_path / "zoo")
    *_, second = sorted((path / "parts").iterdir())
    shard = second / "raw-00.safetensors"
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(IntegrityError, match=rf"{second.name}/raw-00.safetensors: sha256 of the whole file"):
        predict(path, INPUTS, set="mnist/test") if gauge is None else derive(path, gauge=gauge)
    assert all(str(second.name) in str(problem) for problem in ckptzoo.verify(path)), "what is derived is sound"
    assert len(list((path / "derived").glob("*/0*"))) <= 1, "the first part"


def test_predictions_that_were_cut_short_are_not_taken_for_whole(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    predict(path, INPUTS, set="mnist/test")
    shard = next((path / "derived").rglob("predictions-00.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(IntegrityError, match=r"predictions-00.safetensors: size"):
        predict(path, INPUTS, set="mnist/test")
