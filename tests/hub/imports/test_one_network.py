"""A network that is there in several formats comes once, and parts of one that was cut are named before they are read."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import import_zoo, plan_import
from ckptzoo.hub.imports.one_network import related
from tests.support.effort import examples
from tests.support.published_zoos import State, network, packed, save


def keras(path: Path, state: State) -> None:
    with h5py.File(path, "w") as file:
        for name, array in state.items():
            file[name.replace(".", "/")] = array


def flax(path: Path, state: State) -> None:
    def packed_array(array: np.ndarray) -> msgpack.ExtType:
        return msgpack.ExtType(1, msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True))

    layers = {f"layer{at}": {"kernel": packed_array(array)} for at, array in enumerate(state.values())}
    path.write_bytes(msgpack.packb(layers, use_bin_type=True))


def shards(path: Path, state: State, write: Callable[[Path, State], None]) -> None:
    names = list(state)
    for number, part in enumerate((names[:2], names[2:]), 1):
        file = path.with_name(f"{path.stem}-{number:05d}-of-00002{path.suffix}")
        write(file, {name: state[name] for name in part})


def half(state: State) -> State:
    return {name: array.astype(np.float16) for name, array in state.items()}


FORMS: dict[str, Callable[[Path, State], None]] = {
    "model.safetensors": lambda path, state: save_file(state, path),
    "model-*.safetensors": lambda path, state: shards(
        path.with_name("model.safetensors"), state, lambda file, part: save_file(part, file)
    ),
    "pytorch_model.bin": lambda path, state: save(path, state),
    "pytorch_model-*.bin": lambda path, state: shards(path.with_name("pytorch_model.bin"), state, save),
    "tf_model.h5": keras,
    "flax_model.msgpack": flax,
    "model.fp16.safetensors": lambda path, state: save_file(half(state), path),
    "original/consolidated.00.pth": lambda path, state: save(path, state),
}
"""As transformers names them, that which is preferred first."""
BESIDE = {
    "config.json": b'{"model_type": "bert"}', "openvino/openvino_model.bin": b"\x9c\x01\x7f" * 9,
    "tokenizer.model": bytes.fromhex("0a0e0a053c756e6b3e15000000001802") + bytes(range(200)),
    "training_args.bin": b"",
}  # fmt: skip


@settings(max_examples=examples(60, 2), deadline=None)
@given(
    forms=st.lists(st.sampled_from(list(FORMS)), min_size=1, max_size=4, unique=True),
    folders=st.lists(st.sampled_from(["", "unet/", "runs/a/"]), min_size=1, max_size=2, unique=True),
    archive=st.sampled_from(["", ".tar", ".zip", "zip in a folder"]),
)
def test_one_network_comes_once_in_the_format_that_is_preferred(
    tmp_path_factory: pytest.TempPathFactory, forms: list[str], folders: list[str], archive: str
) -> None:
    root = tmp_path_factory.mktemp("formats")
    for number, folder in enumerate(folders):
        for form in forms:
            path = root / "published" / folder / form
            path.parent.mkdir(parents=True, exist_ok=True)
            FORMS[form](path, network(number))
        for name, content in BESIDE.items():
            path = root / "published" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content) if content else torch.save({"lr": 0.1}, path)
    source = root / "published"
    if archive == "zip in a folder":
        source = root / "around"
        source.mkdir()
        packed(root / "published", source / "net.zip")
    elif archive:
        source = packed(source, root / f"published{archive}")
    done = import_zoo(source, root / "zoo", license="MIT")
    assert done.added == len(folders)
    kept = min(forms, key=list(FORMS).index)
    rows = ckptzoo.open(root / "zoo").metadata.to_pylist()
    stem, _, end = kept.partition("*")
    assert all(
        stem.rstrip("-") in json.loads(row["extra"])["file"] and json.loads(row["extra"])["file"].endswith(end)
        for row in rows
    )
    several = sum(2 if "*" in form else 1 for form in forms if form != kept)
    listed = [item for item in done.passed_over if "another form of the network in" in item["reason"]]
    assert len(listed) == several * len(folders)


def test_it_is_said_whether_the_others_have_the_same_numbers_and_include_chooses(tmp_path: Path) -> None:
    source = tmp_path / "net"
    source.mkdir()
    save_file(network(0), source / "model.safetensors")
    save_file(half(network(0)), source / "model.fp16.safetensors")
    save(source / "pytorch_model.bin", network(0) | {"0.bias": network(1)["0.bias"]})
    FORMS["flax_model.msgpack"](source / "flax_model.msgpack", network(0))
    (source / "tf_model.h5").write_text("version https://git-lfs.github.com/spec/v1\n")
    done = import_zoo(source, tmp_path / "zoo", license="MIT")
    reasons = {item["file"]: item["reason"] for item in done.passed_over}
    assert reasons["model.fp16.safetensors"].endswith("it has the same numbers")
    assert reasons["pytorch_model.bin"].endswith("it has other numbers in 1 of 4 tensors")
    assert "git-lfs" in reasons["tf_model.h5"] and "it " not in reasons["flax_model.msgpack"]
    assert {item.file for item in plan_import(source).files} == {"model.safetensors"}
    import_zoo(source, tmp_path / "other", license="MIT", include=["pytorch_model.bin"])
    zoo = ckptzoo.open(tmp_path / "other")
    assert np.array_equal(zoo["0.bias"][0], network(1)["0.bias"])


def test_members_in_different_formats_are_all_kept(tmp_path: Path) -> None:
    source = tmp_path / "nets"
    save(source / "a.pt", network(0))
    save_file(network(1), source / "b.safetensors")
    np.savez(source / "c.npz", **network(2))
    save(source / "half.fp16.pt", network(3))
    save(source / "half.pt", network(4))
    save(source / "ema" / "a.pt", network(5))
    save(source / "ema" / "model.pt", network(8))
    save(source / "ema" / "pytorch_model.pt", network(9))
    # a curve, and no network, so that the other file of this name is read
    np.savez(source / "d.npz", train_loss=np.ones(9), test_acc=np.ones(9))
    keras(source / "d.h5", network(6))
    # one network twice, by its name
    save_file(network(7), source / "e.safetensors")
    save(source / "e.pth", network(7))
    done = import_zoo(source, tmp_path / "zoo", license="MIT")
    assert sorted(ckptzoo.open(tmp_path / "zoo").ids) == [
        *("a", "b", "c", "d", "e", "ema-a", "ema-model", "ema-pytorch_model", "half", "half.fp16")
    ]
    reasons = {item["file"]: item["reason"] for item in done.passed_over}
    assert set(reasons) == {"d.npz", "e.pth"} and "figures" in reasons["d.npz"]
    assert reasons["e.pth"].endswith("it has the same numbers")


PARTS = {
    "consolidated.{:02d}.pth": "convert_llama_weights_to_hf", "mp_rank_{:02d}_model_states.pt": "deepspeed_to_megatron",
    "iter_5/mp_rank_{:02d}/model_optim_rng.pt": "tools/checkpoint/convert.py",
    "net_tp_rank_{}.pt": "tools/checkpoint/convert.py", "tp_rank_{:02d}_pp_rank_000/weights.ckpt": "Megatron",
    "layer_{:02d}-model_00-model_states.pt": "deepspeed_to_megatron",
    "model-rank-{}-part-0.safetensors": "with the program that wrote them",
    "checkpoint-model_part-{}.pt": "with the program that wrote them",
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_network_are_named_before_anything_of_it_is_read(tmp_path: Path, name: str) -> None:
    source = tmp_path / "published"
    for number in range(3):
        path = source / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        (save_file if name.endswith("safetensors") else lambda state, file: save(file, state))(network(number), path)
    with pytest.raises(ZooError, match="cut for several devices") as caught:
        import_zoo(source, tmp_path / "zoo", license="MIT")
    assert PARTS[name] in str(caught.value) and not (tmp_path / "zoo").exists()
    plan = plan_import(source)
    assert not plan.files and len(plan.problems) == 3
    save_file(network(0), source / "model.safetensors")
    import_zoo(source, tmp_path / "zoo", license="MIT", include=["model.safetensors"])


def test_a_part_is_told_by_what_it_says_of_itself(tmp_path: Path) -> None:
    save(tmp_path / "net.pt", {"module": network(0), "mp_world_size": 2})
    with pytest.raises(ZooError, match="a whole network, got 1 of 2 parts"):
        import_zoo(tmp_path / "net.pt", tmp_path / "zoo", license="MIT")
    save(tmp_path / "whole.pt", {"module": network(0), "mp_world_size": 1})
    import_zoo(tmp_path / "whole.pt", tmp_path / "zoo", license="MIT")


@settings(max_examples=examples(300, 15), deadline=None)
@given(
    st.lists(
        st.builds(
            "{}{}{}{}".format,
            st.sampled_from(["", "a/", "original/"]),
            st.sampled_from(["model", "pytorch_model", "net", "net.fp16", "consolidated.00", "model-00001-of-00002"]),
            st.sampled_from([".safetensors", ".bin", ".pt", ".npz", ".pkl", ".json"]),
            st.sampled_from(["", "", ".gz"]),
        ),
        unique=True,
        max_size=8,
    ),
    st.booleans(),
)
def test_what_is_passed_over_is_so_for_a_file_that_is_read(paths: list[str], can_compare: bool) -> None:
    found = related(dict.fromkeys(paths, 9), can_compare=can_compare)
    assert set(found.kept) <= set(paths) and set(found.reasons) == set(found.kept)
    assert all(kept in paths and kept not in found.kept for kept in found.kept.values())
    assert not found.kept.keys() & found.parts.keys()
    assert all(found.kept[other] == first for first, others in found.compared.items() for other in others)
