"""Folders of exports: what other programs read from them, how they are cut, and that one is always whole."""

import hashlib
import itertools
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import load_torch_model, split_state_dict_into_shards_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import average, derive
from ckptzoo.errors import ZooError
from ckptzoo.format import durable
from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub import export
from ckptzoo.hub.exports import targets
from ckptzoo.hub.exports.targets import shards_of
from ckptzoo.hub.imports import import_zoo
from ckptzoo.schema.architecture import ITEMSIZE, Architecture, Tensor
from tests.conftest import MIXED
from tests.conftest import weights_of as mixed_weights
from tests.support.derived_zoos import files_of, weights_of, written, zoo_of
from tests.support.effort import ALL, examples

NAME = "mlp-4-8-3"
ARCH = archs.architecture(NAME)


def zoo(folder: Path) -> ckptzoo.Zoo:
    return ckptzoo.open(written(folder, ARCH, weights_of(5, 0, arch=ARCH), symmetry=archs.symmetry(NAME)))


@pytest.mark.parametrize("size", [10**9, 150, 1])
def test_a_folder_loads_with_the_hubs_own_library(tmp_path: Path, size: int) -> None:
    of = zoo(tmp_path / "zoo")
    steps: list[tuple[int, int]] = []
    paths = export(of[2], tmp_path / "out", zoo=of, max_shard_size=size, progress=lambda *at: steps.append(at))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [path.name for path in paths]
    assert steps[-1] == (ARCH.nbytes, ARCH.nbytes)
    model = archs.get(NAME)()
    load_torch_model(model, tmp_path / "out", strict=True)
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), of[2][name])
    weights = [path for path in paths if path.suffix == ".safetensors"]
    assert len(weights) == {10**9: 1, 150: 2, 1: 4}[size]
    sharded = "model.safetensors.index.json" in [path.name for path in paths]
    assert sharded == (len(weights) > 1)
    config = json.loads((tmp_path / "out/config.json").read_bytes())
    assert (config["id"], config["dtype"], config["architectures"]) == ("2", "float32", [NAME])
    assert Architecture.from_json(config["architecture"]) == ARCH


def test_a_folder_is_imported_bit_for_bit(tmp_path: Path) -> None:
    weights = mixed_weights(MIXED, 5)
    of = ckptzoo.open(written(tmp_path / "zoo", MIXED, weights))
    for name, size in (("whole", 10**9), ("cut", 16)):
        export(of[4], tmp_path / name, zoo=of, max_shard_size=size)
        import_zoo(str(tmp_path / name), tmp_path / f"{name}-zoo", license="mit")
        (found,) = ckptzoo.open(tmp_path / f"{name}-zoo")
        state = found.state_dict()
        assert set(state) == {*weights, "tied.weight"}
        for key, array in weights.items():
            assert found[key].dtype == array.dtype and found[key].tobytes() == array[4].tobytes()
        assert torch.equal(state["tied.weight"], state["brain.weight"])


def test_averages_say_what_went_in(tmp_path: Path) -> None:
    of = zoo(tmp_path / "zoo")
    found = average(of.take([0, 3]), to="1")
    for place in ("one.safetensors", "folder"):
        export(found, tmp_path / place, zoo=of)
    config = json.loads((tmp_path / "folder/config.json").read_bytes())
    assert config["average"] == {"method": "average", "ids": ["0", "3"], "reference": "checkpoint 1 of zoo"}
    with (tmp_path / "one.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert json.loads(header["__metadata__"]["average"]) == config["average"]
    page = (tmp_path / "folder/README.md").read_text()
    assert "- `0`\n- `3`\n" in page and "aligned with `checkpoint 1 of zoo`" in page
    loaded = load_file(tmp_path / "folder/model.safetensors")
    for name, tensor in loaded.items():
        np.testing.assert_array_equal(tensor.numpy(), found.checkpoint[name])


def test_a_variant_of_a_half_precision_zoo(tmp_path: Path) -> None:
    tensors = tuple(Tensor(item.name, item.shape, "bfloat16") for item in ARCH.tensors)
    arch = Architecture(NAME, tensors, NAME, ARCH.input_shape)
    weights = weights_of(3, 0, arch=arch, dtype=numpy_dtype("bfloat16"))
    path = written(tmp_path / "zoo", arch, weights, symmetry=archs.symmetry(NAME))
    derive(path, gauge="unit-norm", certify="none")
    of = ckptzoo.open(path)
    for variant, dtype in (("raw", "bfloat16"), ("unit-norm", "float32")):
        export(of.checkpoint("1", variant=variant), tmp_path / variant, zoo=of)
        assert json.loads((tmp_path / variant / "config.json").read_bytes())["dtype"] == dtype
        for name, tensor in load_file(tmp_path / variant / "model.safetensors").items():
            assert tensor.dtype == getattr(torch, dtype)
            np.testing.assert_array_equal(tensor.float().numpy(), of.checkpoint("1", variant=variant)[name])
    mean = average(of).checkpoint["fc1.weight"]
    exact = weights["fc1.weight"].astype(np.float64).mean(0)
    assert mean.dtype == numpy_dtype("bfloat16") and abs(mean - exact).max() <= 2**-8 * abs(exact).max()


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(sorted(ITEMSIZE))), min_size=1, max_size=12),
    st.integers(1, 400),
)
def test_shards_are_cut_as_by_the_hubs_own_library(sizes: list[tuple[int, str]], limit: int) -> None:
    tensors = [Tensor(f"t{at}", (count,), dtype) for at, (count, dtype) in enumerate(sizes)]
    expected = split_state_dict_into_shards_factory(
        {tensor.name: tensor for tensor in tensors},
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=limit,
    )
    assert shards_of(Architecture("any", tuple(tensors)), limit) == expected.filename_to_tensors


def test_names_of_a_tied_tensor_stay_together() -> None:
    arch = Architecture("tied", (Tensor("a", (4,), aliases=("b", "c")), Tensor("d", (4,)), Tensor("e", (4,))))
    assert shards_of(arch, 32) == {
        "model-00001-of-00002.safetensors": ["a", "b", "c"],
        "model-00002-of-00002.safetensors": ["d", "e"],
    }


def test_equal_checkpoints_give_equal_bytes(tmp_path: Path) -> None:
    of = zoo(tmp_path / "zoo")
    for name in ("one", "another"):
        export(of[1], tmp_path / name, zoo=of, max_shard_size=100)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "another")


def test_what_is_there_is_replaced_only_where_that_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, target = zoo(tmp_path / "zoo"), tmp_path / "out"
    target.mkdir()
    export(of[0], target, zoo=of)  # an empty folder
    (target / "notes.txt").write_text("mine")
    before = files_of(target)
    with pytest.raises(
        ZooError, match=r"out: folder: expected an empty one or none, got one with 4 names, such as 'REA"
    ):
        export(of[1], target, zoo=of)
    assert files_of(target) == before
    export(of[1], target, zoo=of, force=True)
    assert set(files_of(target)) == {"README.md", "config.json", "model.safetensors"}
    (tmp_path / "link").symlink_to(target)
    export(of[2], tmp_path / "link", zoo=of, force=True)
    assert (tmp_path / "link").is_symlink() and json.loads((target / "config.json").read_bytes())["id"] == "2"
    (tmp_path / "git/.git").mkdir(parents=True)
    (tmp_path / "home/inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home/inner")
    (tmp_path / "file").write_text("")
    for place, got in (
        ("zoo", "got a zoo"),
        ("git", "got a repository"),
        ("home", "got one with the working folder in it"),
        ("file", "got a file"),
        ("net.ckpt", "a file that ends in .safetensors or .pt, got"),
        ("none/out", "an existing folder to write to, got none"),
    ):
        with pytest.raises(ZooError, match=got):
            export(of[1], tmp_path / place, zoo=of, force=True)
    with pytest.raises(ZooError, match="1 byte or more, got 0"):
        export(of[1], tmp_path / "new", zoo=of, max_shard_size=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "git", "home", "link", "out", "zoo"]


def test_what_cannot_be_written_leaves_the_older_folder(tmp_path: Path) -> None:
    weights = weights_of(3, 0, arch=ARCH)
    weights["fc2.weight"][1, 0, 0] = np.nan
    of = ckptzoo.open(written(tmp_path / "zoo", ARCH, weights))
    export(of[0], tmp_path / "out", zoo=of)
    before = files_of(tmp_path / "out")
    with pytest.raises(ZooError, match="finite numbers"):
        export(average(of), tmp_path / "out", zoo=of, force=True)
    assert files_of(tmp_path / "out") == before and not list(tmp_path.glob(".ckptzoo*"))


def _digest(folder: Path) -> str:
    return hashlib.sha256(repr(sorted(files_of(folder).items())).encode()).hexdigest()


def _killed_at(line: int, act: Callable[[], Any]) -> bool:
    """Run something in a process that ends at its nth line in these modules; returns whether it came to an end."""
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in (durable.__file__, targets.__file__):
                return trace if event == "call" else None
            if event == "line":
                left -= 1
                if left < 0:
                    os._exit(9)
            return trace

        sys.settrace(trace)
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("exchange", [True, False])
def test_a_process_that_is_killed_leaves_one_folder_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    of, target = zoo(tmp_path / "zoo"), tmp_path / "out"
    digests = []
    for row in (1, 0):
        export(of[row], target, zoo=of, force=True)
        digests.append(_digest(target))
    if not exchange:  # as on systems that cannot
        monkeypatch.setattr(durable, "_exchange", lambda first, second: False)
    lines = itertools.count() if ALL else iter(sorted(random.Random(exchange).sample(range(110), 6)))
    ended, aside = False, 0
    for line in lines:
        ended = _killed_at(line, lambda: export(of[1], target, zoo=of, force=True))
        if not target.exists():
            # the older folder is beside it until the next call brings it back
            assert not exchange and [path.name for path in tmp_path.glob(".ckptzoo-before-*")] == [
                ".ckptzoo-before-out"
            ]
            aside += 1
            targets.check_target(target, zoo=of, force=True)
        assert _digest(target) in digests
        export(of[0], target, zoo=of, force=True)
        assert _digest(target) == digests[1]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "zoo"]
        if ended:
            break
    assert ended == ALL and (exchange or aside > 0 or not ALL)


def test_files_leave_nothing_behind_that_the_next_call_does_not_clear(tmp_path: Path) -> None:
    of, target = zoo(tmp_path / "zoo"), tmp_path / "one.safetensors"
    export(of[0], target, zoo=of)
    before = target.read_bytes()
    for line in range(0, 60, 1 if ALL else 11):
        _killed_at(line, lambda: export(of[0], target, zoo=of))
        assert target.read_bytes() == before
    export(of[0], target, zoo=of)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.safetensors", "zoo"]


def test_optunets_in_any_gauge_load_as_their_module(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3,))
    derive(path, gauge="canonical", store="element", certify="none")
    of = ckptzoo.open(path)
    export(of.checkpoint("0-1", variant="canonical"), tmp_path / "out", zoo=of)
    model = archs.get("optunet")()
    load_torch_model(model, tmp_path / "out", strict=True)
    assert torch.equal(
        model.state_dict()["fc.weight"], of.checkpoint("0-1", variant="canonical").state_dict()["fc.weight"]
    )
    assert "in the gauge `canonical`" in (tmp_path / "out/README.md").read_text()
