"""Networks in shards, under the names that programs and people give them, with and without their index."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import import_zoo, link_zoo
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.published_zoos import packed

NAMES: dict[str, Callable[[int, int], str]] = {
    "transformers": lambda at, count: f"model-{at + 1:05d}-of-{count:05d}",
    "deepseek": lambda at, count: f"model-{at + 1:05d}-of-{count:06d}",
    "bloom": lambda at, count: f"model_{at + 1:05d}-of-{count:05d}",
    "from 0": lambda at, count: f"model-{at:05d}-of-{count:05d}",
    "last number": lambda at, count: f"model-{at:05d}-of-{count - 1:05d}",
    "numbered": lambda at, count: f"part{at + 1}",
    "words": lambda at, count: f"{'abcdefgh'[at]}/weights",
}
SAY_IT_THEMSELVES = ("transformers", "deepseek", "bloom")


def network(seed: int, count: int, like: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"l.{at}.weight": rng.normal(size=(2, 3 if like else 3 + at)).astype("f4") for at in range(count)}


def written(folder: Path, state: dict[str, np.ndarray], name: Callable[[int, int], str], suffix: str) -> dict[str, str]:
    """Write a tensor a shard, and return the map of the index."""
    files = {tensor: f"{name(at, len(state))}{suffix}" for at, tensor in enumerate(state)}
    for tensor, file in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        if suffix == ".safetensors":
            save_file({tensor: state[tensor]}, folder / file)
        else:
            torch.save({tensor: torch.from_numpy(state[tensor])}, folder / file)
    return files


def indexed(folder: Path, suffix: str, files: dict[str, str]) -> None:
    (folder / f"model{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


@settings(max_examples=examples(80, FEW_EXAMPLES), deadline=None)
@given(
    naming=st.sampled_from(list(NAMES)),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    suffix=st.sampled_from([".safetensors", ".bin"]),
    damage=st.sampled_from(["", "", "no index", "absent shard", "absent tensor"]),
    archive=st.sampled_from(["", ".tar", ".zip"]),
    like=st.booleans(),
)
def test_a_network_in_shards_is_one_network_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    naming: str,
    counts: list[int],
    suffix: str,
    damage: str,
    archive: str,
    like: bool,
) -> None:
    """Whatever its shards are called and hold: their index says it, or else their names do."""
    if damage == "no index" and naming not in SAY_IT_THEMSELVES:
        return  # nothing says then that they are shards
    root = tmp_path_factory.mktemp("shards")
    states = [network(seed, max(counts), like) for seed in range(len(counts))]
    for number, state in enumerate(states):
        folder = root / f"published/run{number}"
        files = written(folder, state, NAMES[naming], suffix)
        if damage == "absent shard":
            (folder / files.pop(f"l.{max(counts) - 1}.weight")).unlink()
            files["l.absent.weight"] = f"absent{suffix}"
        elif damage == "absent tensor":
            files["l.absent.weight"] = files["l.0.weight"]
        if damage != "no index":
            indexed(folder, suffix, files)
    source = packed(root / "published", root / f"published{archive}") if archive else root / "published"
    if damage == "absent shard" or (damage == "absent tensor" and suffix == ".safetensors"):
        with pytest.raises(ZooError, match=r"absent|expected one network|shards: expected"):
            import_zoo(source, root / "zoo", license="MIT")
        return
    import_zoo(source, root / "zoo", license="MIT")
    zoo = ckptzoo.open(root / "zoo")
    assert len(zoo) == len(states) and set(zoo.arch.names) == set(states[0])
    kept = {b"".join(zoo[name][row].tobytes() for name in sorted(states[0])) for row in range(len(zoo))}
    assert kept == {b"".join(state[name].tobytes() for name in sorted(state)) for state in states}
    if suffix == ".safetensors" and not archive:
        link_zoo(source, root / "linked", license="MIT")
        linked = ckptzoo.open(root / "linked")
        assert linked.ids == zoo.ids
        assert all(linked[name][:].tobytes() == zoo[name][:].tobytes() for name in zoo.arch.names)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "../x.bin"}}']
)
def test_a_file_that_is_no_index_says_nothing(tmp_path: Path, content: str) -> None:
    state = network(0, 2, False)
    folder = tmp_path / "published"
    written(folder, state, NAMES["transformers"], ".safetensors")
    (folder / "model.safetensors.index.json").write_text(content)
    import_zoo(folder, tmp_path / "zoo", license="MIT")
    assert set(ckptzoo.open(tmp_path / "zoo").arch.names) == set(state)


def test_an_index_whose_shards_are_all_elsewhere_does_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    save_file(network(0, 2, False), folder / "model.safetensors")
    indexed(folder, ".safetensors", {"l.0.weight": "model-00001-of-00002.safetensors"})
    import_zoo(folder, tmp_path / "zoo", license="MIT")
    assert len(ckptzoo.open(tmp_path / "zoo")) == 1
