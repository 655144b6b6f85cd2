"""Checkpoints by their addresses: of zoos, files, and folders of exports."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import average
from ckptzoo.errors import AbsentError, IntegrityError, UnknownNameError, ZooError
from ckptzoo.hub import export
from ckptzoo.hub.addressed import checkpoint_at
from ckptzoo.studies.differences import differences
from tests.support.derived_zoos import weights_of, written
from tests.support.hosted import Hosted

ARCH = archs.architecture("mlp-4-8-3")


def test_one_checkpoint_by_every_kind_of_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = weights_of(2, 0, arch=ARCH)
    zoo = ckptzoo.open(written(tmp_path / "zoo", ARCH, weights))
    written(tmp_path / "only", ARCH, {name: array[1:] for name, array in weights.items()})
    one = {name: array[1] for name, array in weights.items()}
    state = {name: torch.from_numpy(array) for name, array in one.items()}
    save_file(one, "net.safetensors")
    save_file(one, "a#b.safetensors")
    torch.save(state, "net.pt")
    torch.save({"model": state, "ema": {name: tensor + 1 for name, tensor in state.items()}}, "two.pt")
    export(zoo[1], "whole", zoo=zoo)
    export(zoo[1], "cut", zoo=zoo, max_shard_size=100)
    export(zoo[1], "one.pt", zoo=zoo)
    places = ("zoo#1", "only", "net.safetensors", "a#b.safetensors", "net.pt", "two.pt#model", "whole", "cut", "one.pt")
    for place in places:
        found, of = checkpoint_at(place)
        assert (of is not None) == (place in ("zoo#1", "only"))
        assert set(found.arch.names) == set(ARCH.names)
        for name, array in one.items():
            np.testing.assert_array_equal(found[name], array)
    for place, error, said in (
        ("zoo", ZooError, "expected one, got 2 of them. Name one of them, such as 'zoo#0'"),
        ("zoo#7", UnknownNameError, "checkpoint '7'"),
        ("two.pt", UnknownNameError, "Name one of them, such as two.pt#"),
        ("two.pt#none", UnknownNameError, "state dict 'none'"),
        ("net.pt#none", UnknownNameError, "state dict 'none'"),
        ("nowhere/zoo/deep", AbsentError, "nowhere"),
        ("net.pth", AbsentError, "net.pth: checkpoint: expected a file, got nothing. Did you mean net.pt?"),
        ("runs/last.pt#ema", AbsentError, "runs/last.pt: checkpoint: expected a file, got nothing. Correct the path."),
    ):
        with pytest.raises(error, match=said.replace("(", r"\(")):
            checkpoint_at(place)
    (tmp_path / "bad.safetensors").write_bytes(b"12345678{")
    with pytest.raises(IntegrityError, match=r"bad\.safetensors"):
        checkpoint_at("bad.safetensors")


def test_tied_tensors_of_a_file(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    torch.save({"a.weight": weight, "b.weight": weight, "a.bias": torch.zeros(2)}, tmp_path / "tied.pt")
    found, _ = checkpoint_at(str(tmp_path / "tied.pt"))
    assert [(item.name, item.aliases) for item in found.arch.tensors] == [("a.weight", ("b.weight",)), ("a.bias", ())]


def test_a_checkpoint_of_a_hub(tmp_path: Path, server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of(3, 0, arch=ARCH)
    local = written(tmp_path / "zoo", ARCH, weights)
    ckptzoo.push(local, "lab/nets", endpoint=server.url, token=server.tokens["write"])
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    for place in ("lab/nets#1", "hf://datasets/lab/nets#1"):
        found, zoo = checkpoint_at(place)
        assert zoo is not None and differences(found, checkpoint_at(f"{local}#1")[0]).is_identical
        export(average(zoo.take([2, 1])), tmp_path / "out", zoo=zoo, force=True)
        page = (tmp_path / "out/README.md").read_text()
        assert "(`hf://datasets/lab/nets" in page and str(tmp_path) not in page
        mean, _ = checkpoint_at(str(tmp_path / "out"))
        for name, array in weights.items():
            np.testing.assert_array_equal(mean[name], array[1:].mean(0, np.float64).astype(np.float32))
