"""What is noted about checkpoints, in their files, beside them and in their names, becomes columns and ``extra``."""

import argparse
import dataclasses
import enum
import json
import pathlib
import types
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.hub.imports import Options, import_zoo
from ckptzoo.hub.imports.adapters.adapter import identifier
from ckptzoo.hub.imports.adapters.files import _Reading  # pyright: ignore[reportPrivateUsage]
from ckptzoo.hub.imports.adapters.side_files import SideFiles
from ckptzoo.hub.imports.facts import row_of
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.imports.sources import FolderSource, natural
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.runs import facts_of, step_of
from ckptzoo.hub.untrusted.state_dicts import find_state_dicts
from ckptzoo.hub.untrusted.torch_files import read_torch
from tests.support.checkpoint_files import saved
from tests.support.effort import examples
from tests.support.published_zoos import network, save


class OwnDict(dict):  # pyright: ignore[reportMissingTypeArgument]
    """As Lightning, yacs and EasyDict have them."""


class Optimiser(enum.Enum):
    ADAM = "adam"


@dataclasses.dataclass
class Settings:
    lr: float = 0.1
    seed: int = 3
    act: type = torch.nn.ReLU
    widths: tuple[int, ...] = (4, 8)
    optimiser: Optimiser = Optimiser.ADAM


SETTINGS: dict[str, Any] = {
    "dict": {"lr": 0.1, "seed": 3},
    "own dict": OwnDict(lr=0.1, seed=3),
    "nested": OwnDict(lr=0.1, seed=3, inner=OwnDict(width=4)),
    "namespace": argparse.Namespace(lr=0.1, seed=3, optimiser=Optimiser.ADAM),
    "simple namespace": types.SimpleNamespace(lr=0.1, seed=3, where=pathlib.PurePosixPath("x/y")),
    "dataclass": Settings(),
}
WORDS = ["args", "cfg", "config", "hparams", "hyper_parameters", "settings"]


def read(content: Any) -> Any:
    root = read_torch(saved(content), location="a.pt", limits=Limits(), strict=False)
    return find_state_dicts(root, location="a.pt", limits=Limits())


@settings(max_examples=examples(60, 15), deadline=None)
@given(kind=st.sampled_from(list(SETTINGS)), word=st.sampled_from(WORDS), own=st.booleans())
def test_settings_in_any_object_are_facts(kind: str, word: str, own: bool) -> None:
    weights = {name: torch.from_numpy(array) for name, array in network(0).items()}
    content = {"model": OwnDict(weights) if own else weights, word: SETTINGS[kind], "epoch": 4}
    (state,) = read(OwnDict(content) if own else content)
    assert set(state.tensors) == set(weights) and not state.left_out
    row = row_of(state.facts, location="a.pt")
    assert (row["seed"], row["epoch"], row["extra"][word]["lr"]) == (3, 4.0, 0.1)
    more = row["extra"][word]
    if kind == "dataclass":
        assert more["act"] == "torch.nn.modules.activation.ReLU" and list(more["widths"]) == [4, 8]
    if kind in ("dataclass", "namespace"):
        assert more["optimiser"] == "adam"
    if kind == "simple namespace":
        assert more["where"] == "x/y"
    if kind == "nested":
        assert more["inner"] == {"width": 4}


def test_small_arrays_beside_weights_are_facts_and_large_ones_are_said() -> None:
    weights = {name: torch.from_numpy(array) for name, array in network(0).items()}
    tensors = {"x_mean": torch.ones(4), "x_std": np.full(4, 2.0), "bias_of_data": torch.ones(100)}
    optimiser = {parameter: torch.zeros(2) for parameter in torch.nn.Linear(2, 2).parameters()}
    (state,) = read({"model": weights, **tensors, "adam": optimiser})
    assert state.facts["x_mean"] == (1.0,) * 4 and state.facts["x_std"] == (2.0,) * 4
    assert any("bias_of_data" in text for text in state.left_out) and any("adam" in text for text in state.left_out)


@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
def test_facts_beside_files_go_to_their_files_the_nearest_first(tmp_path: Path, suffix: str) -> None:
    texts: dict[str, Any] = {
        "config.json": {"seed": 1, "act": "relu"},
        "run/params.json": {"seed": 2, "width": 8, "labels": {str(n): n for n in range(100)}},
        "run/net.json": {"seed": 3, "test_acc": 0.5},
        "run/adapter_config.json": {"r": 2, "lora_alpha": 4},
        "run/checkpoint-5/trainer_state.json": {"epoch": 1.5, "global_step": 5, "log_history": [{"loss": 1}]},
        "run/notes.json": {"a": 1},
        "run/tokenizer.json": [1],
    }
    for name in ("net.pt", "run/net.pt", "run/other.pt", "run/checkpoint-5/model.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\x80\x04N.")  # a pickle
    for name, content in texts.items():
        dump = json.dumps if suffix == "json" else yaml.safe_dump
        (tmp_path / name).with_suffix(f".{suffix}").write_text(dump(content))
    (tmp_path / "run/hparams.json").write_text("{")
    (tmp_path / "run/hparams.yaml").write_text("a: [")
    found = SideFiles(OpenedSource(FolderSource(tmp_path)))
    rows = {path: row_of(found.of(path), location=path) for path in ("net.pt", "run/net.pt", "run/other.pt")}
    assert [row["seed"] for row in rows.values()] == [1, 3, 2]
    assert rows["run/net.pt"]["claimed_test_accuracy"] == 0.5
    assert rows["run/other.pt"]["extra"]["params"] == {"width": 8}
    assert rows["run/other.pt"]["extra"]["adapter_config"] == {"r": 2, "lora_alpha": 4}
    state = row_of(found.of("run/checkpoint-5/model.safetensors"), location="a")
    assert (state["epoch"], state["extra"]["global_step"]) == (1.5, 5) and "epoch" not in rows["run/other.pt"]
    passed_over = {f"run/notes.{suffix}", f"run/tokenizer.{suffix}", "run/hparams.json", "run/hparams.yaml"}
    assert {item.path for item in found.passed_over} == passed_over


def test_files_of_hydra_are_about_the_folder_around_theirs(tmp_path: Path) -> None:
    for run, seed in (("a", 1), ("b", 2)):
        (tmp_path / run / ".hydra").mkdir(parents=True)
        (tmp_path / run / "net.pt").write_bytes(b"\x80\x04N.")  # a pickle
        (tmp_path / run / ".hydra/config.yaml").write_text(f"seed: {seed}\noptim: {{lr: 1e-4}}\n")
        (tmp_path / run / ".hydra/overrides.yaml").write_text(f"- seed={seed}\n")
    (tmp_path / "b/config.json").write_text('{"seed": 3}')
    source = OpenedSource(FolderSource(tmp_path))
    found = SideFiles(source)
    rows = [row_of(found.of(f"{run}/net.pt"), location=run) for run in ("a", "b")]
    assert rows == [{"seed": 1, "extra": {"config": {"optim": {"lr": 1e-4}}}}, {"seed": 3, "extra": {}}]
    assert source.facts == {"a/.hydra/config.yaml": "extra.config", "b/config.json": "extra.config"}
    assert sorted(item.path for item in found.passed_over) == [
        "a/.hydra/overrides.yaml", "b/.hydra/config.yaml", "b/.hydra/overrides.yaml"
    ]  # fmt: skip


@settings(max_examples=examples(60, 15), deadline=None)
@given(
    words=st.lists(st.sampled_from(["metrics", "final", "eval", "adv", "ema", "best", "pgd", "robust"]), max_size=2),
    mark=st.sampled_from([".", "/", "_", "::"]),
)
def test_figures_of_other_weights_or_inputs_are_no_claims(words: list[str], mark: str) -> None:
    row = row_of({mark.join([*words, "test_acc"]): 0.5, "epochs": 90}, location="a")
    is_plain = not {"adv", "ema", "best", "pgd", "robust"}.intersection(words)
    assert row.get("claimed_test_accuracy") == (0.5 if is_plain else None)
    assert "epoch" not in row and row["extra"]["epochs"] == 90


@settings(max_examples=examples(60, 15), deadline=None)
@given(
    count=st.integers(1, 3),
    place=st.sampled_from(["", "seed3/", "seed3/b/"]),
    run=st.sampled_from(["seed3", "exp.seed3"]),
    name=st.sampled_from(["metrics", "results", "config"]),
    others=st.sampled_from([(), ("optimizer.pt", "rng_state_0.pth"), ("net-00002-of-00002.safetensors",)]),
)
def test_figures_of_a_folder_are_claims_of_its_only_network_and_a_seed_in_a_path_is_nearer_than_settings_around_it(
    tmp_path_factory: pytest.TempPathFactory, count: int, place: str, run: str, name: str, others: tuple[str, ...]
) -> None:
    root = tmp_path_factory.mktemp("sides")
    names = [
        f"{'net-00001-of-00002.safetensors' if at == 0 and 'net' in str(others) else f'n{at}.pt'}"
        for at in range(count)
    ]
    for path in (*names, *others):
        file = root / run / "b" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\x80\x04N.")  # a pickle
    (root / f"{place.replace('seed3', run)}{name}.json").write_text(json.dumps({"test_acc": 0.5, "seed": 8, "lr": 0.1}))
    reading = _Reading.of("runs", Options(), SideFiles(OpenedSource(FolderSource(root))))
    for path in names:
        row = reading.found(f"{run}/b/{path}", 4, list, "").row
        assert row.get("claimed_test_accuracy") == (0.5 if count == 1 else None)
        assert row["extra"][name]["lr"] == 0.1 and (count == 1 or row["extra"][name]["test_acc"] == 0.5)
        # results are no settings, whose seeds are a column
        assert row["seed"] == (8 if place and name == "config" else 3)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("fold_10/seed3/model_best.pt", {"fold": 10, "seed": 3}),
        ("random_seed-7.pt", {"seed": 7}),
        ("round_3/client_07.pt", {"round": 3, "client": 7}),
        ("unfolded_3/seeds.pt", {}),
        ("Seed=12,lr.pt", {"seed": 12}),
        ("a_split2_b.safetensors", {"split": 2}),
    ],
)
def test_names_say_which_run_a_file_is_of(path: str, expected: dict[str, int]) -> None:
    assert facts_of(path) == expected


@pytest.mark.parametrize("text", ["мережа", "网络", "हिन्दी", "שלום", "réseau", "e\u0301tude", "net_1"])
def test_ids_keep_letters_of_any_script(text: str) -> None:
    made = identifier(f"{text} 1/№x")
    assert made.startswith(identifier(text)) and made.endswith("-1-x") and made.isprintable() and " " not in made
    assert len(identifier(text)) >= len(text) - 1


@settings(max_examples=examples(200, 20), deadline=None)
@given(st.lists(st.text(alphabet="ab_/0129", min_size=1, max_size=8), max_size=8))
def test_paths_have_one_order_in_which_numbers_ascend(paths: list[str]) -> None:
    ordered = sorted(paths, key=natural)
    assert all(natural(one) < natural(other) for one, other in pairwise(dict.fromkeys(ordered)))
    numbered = [path for path in ordered if path.startswith("a_") and path[2:].isdigit()]
    assert [int(path[2:]) for path in numbered] == sorted(int(path[2:]) for path in numbered)


def test_numbers_in_the_texts_of_safetensors_are_numbers() -> None:
    row = row_of({"seed": "7", "epoch": "3", "test_acc": "0.5", "format": "pt", "step": "40"}, location="a")
    assert (row["seed"], row["epoch"], row["claimed_test_accuracy"]) == (7, 3.0, 0.5) and step_of(row["extra"]) == 40


@pytest.mark.exhaustive
def test_equal_names_of_two_sources_get_names_of_their_own(tmp_path: Path) -> None:
    for number, source in enumerate(("p0", "p1")):
        for step in (1, 2):
            save(tmp_path / source / "seed0" / f"ckpt_{step}.pt", network(number, step))
        save(tmp_path / source / f"only{number}.pt", network(number, 9))
    counts = []
    for source in ("p0", "p1", "p1", "p0"):
        done = import_zoo(tmp_path / source, tmp_path / "zoo", license="MIT")
        counts.append((done.added, done.present))
    assert counts == [(3, 0), (3, 0), (0, 3), (0, 3)]
    rows = {row["id"]: row for row in ckptzoo.open(tmp_path / "zoo").metadata.to_pylist()}
    assert set(rows) == {
        "only0", "seed0-ckpt_1", "seed0-ckpt_2", "only1", "p1/seed0-ckpt_1", "p1/seed0-ckpt_2"
    }  # fmt: skip
    assert [rows[name]["member"] for name in sorted(rows)] == [
        "only0",
        "only1",
        "p1/seed0",
        "p1/seed0",
        "seed0",
        "seed0",
    ]
    assert {row["seed"] for name, row in rows.items() if "seed0" in name} == {0}
