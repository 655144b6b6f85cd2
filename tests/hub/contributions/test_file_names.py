"""Columns in the names of files, and in what files hold beside their tensors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptzoo.errors import SpecError
from ckptzoo.hub.contributions.file_names import FIELDS, FilePattern, claimed_accuracy, distinct_names
from ckptzoo.hub.contributions.ingest import Ingestor
from ckptzoo.hub.contributions.submission import Submission
from ckptzoo.hub.untrusted.facts import own_columns
from tests.support.hub_zoos import ARCH
from tests.support.untrusted_files import state_of

TOP = {"contributor": "Ada", "license": "mit"}
words = st.text("abcXYZ019", min_size=1, max_size=8)


@given(words, words, st.integers(0, 10**9), st.sampled_from(["-", "_", ".", "+", "(1)", "{{", " "]))
def test_what_is_written_into_a_name_is_read_from_it(member: str, prefix: str, step: int, between: str) -> None:
    pattern = f"{prefix}{between}{{member}}{between}at{{step}}.pt"
    name = pattern.format(member=member, step=step)
    assert FilePattern.parse(pattern).columns(name) == {"member": member, "step": step}
    assert FilePattern.parse(pattern).columns(name + "x") is None


def test_numbers_and_other_forms() -> None:
    found = FilePattern.parse("{epoch}_{seed}.npz")
    assert found.columns("1.5_7.npz") == {"epoch": 1.5, "seed": 7}
    for name in ("-1_7.npz", "1.5_x.npz", "1e3_7.npz", "1.5_" + 19 * "9" + ".npz", "a1.5_7.npz", "1.5_7.npz.pt", ""):
        assert found.columns(name) is None


@pytest.mark.parametrize(
    "text", ["run.pt", "{member}{member}", "{loss}.pt", "{epoch:d}.pt", "{member!r}", "{0}", "{}", "{"]
)
def test_patterns_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        FilePattern.parse(text)
    with pytest.raises(SpecError, match=r"pattern: expected a text such as \{member\}-checkpoint-\{epoch\}\.pt"):
        Submission.from_mapping({**TOP, "pattern": text})


def test_own_entries_that_are_no_numbers_from_0_do_not_count() -> None:
    assert own_columns("a.pt", {"epoch": 3, "global_step": 900, "loss": 0.5}) == {"epoch": 3.0, "step": 900}
    assert own_columns("a.pt", {"epoch": True, "step": -1, "iter": 2**63, "steps": "7", "iteration": 1.5}) == {}


def test_paths_say_the_run_and_its_step_as_in_imports() -> None:
    assert own_columns("seed0/ckpt_2.pth.tar", {}) == {"member": "seed0", "seed": 0, "step": 2}
    assert own_columns("seed0/ckpt_2.pth.tar", {"args.seed": 7})["seed"] == 7
    assert own_columns("run1/epoch_4.pt", {"epoch": 5}) == {"member": "run1", "epoch": 5.0, "step": 4}


def test_files_of_equal_names_are_told_apart_by_their_folders() -> None:
    paths = [Path("/r/a/x/net.pt"), Path("/r/b/x/net.pt"), Path("/r/c/other.pt")]
    assert list(distinct_names(paths).values()) == ["a/x/net.pt", "b/x/net.pt", "other.pt"]
    assert list(distinct_names(paths[:1]).values()) == ["net.pt"]
    assert set(FIELDS) <= {"id", "member", "seed", "step", "epoch", "recipe", "method", "mode", "draw"}


@pytest.mark.parametrize(
    ("facts", "claimed"),
    [
        ({"test_acc": 0.6323}, 0.6323),
        ({"test_acc": "0.6323"}, 0.6323),  # as the metadata of safetensors has it
        ({"test/acc": 63.23}, 0.6323),
        ({"metrics.test_accuracy": 1}, 1.0),
        ({"best_test_acc": 0.9, "test_acc": 0.5}, 0.5),
        ({"best_test_acc": 0.9}, None),
        ({"Test-Accuracy": 0.25}, 0.25),
        ({"test_acc": 101}, None),
        ({"test_acc": -0.5}, None),
        ({"test_acc": True}, None),
        ({"test_acc": float("nan")}, None),
        ({"test_acc": "high"}, None),
        ({"test_acc": [0.5]}, None),
        ({"train_acc": 0.9, "acc": 0.8, "val_acc": 0.7}, None),
        ({}, None),
    ],
)
def test_figures_in_files_are_claims(facts: dict[str, object], claimed: float | None) -> None:
    assert own_columns("a.pt", facts).get("claimed_test_accuracy") == claimed
    kept = {"claimed_test_accuracy": None, "extra": json.dumps({"facts": facts})}
    assert claimed_accuracy(kept) == claimed
    # what the contributor says counts more
    assert claimed_accuracy({**kept, "claimed_test_accuracy": 0.125}) == 0.125


def rows(tmp_path: Path, files: dict[str, dict[str, object]], **card: object) -> list[dict[str, object]]:
    """The rows of files, each with some entries beside its state dict."""
    paths = [tmp_path / name for name in files]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
    for number, (path, entries) in enumerate(zip(paths, files.values(), strict=True)):
        state = {name: torch.from_numpy(np.array(array)) for name, array in state_of(number).items()}
        torch.save({"state_dict": state, **entries}, path)
    ingestor = Ingestor(Submission.from_mapping({**TOP, **card}), {})
    found = [row for batch in ingestor.ingest(paths, ARCH) for row in batch.rows]
    if ingestor.problems:
        raise SpecError(ingestor.problems)
    return found


def test_a_trajectory_is_brought_with_its_members_and_epochs(tmp_path: Path) -> None:
    files = {f"{member}-checkpoint-{epoch}.pt": {} for member in ("a", "b") for epoch in (0, 10)}
    found = rows(tmp_path, files, pattern="{member}-checkpoint-{epoch}.pt")
    assert [(row["member"], row["epoch"]) for row in found] == [("a", 0.0), ("a", 10.0), ("b", 0.0), ("b", 10.0)]
    assert len({row["id"] for row in found}) == 4


def test_what_is_said_of_a_file_counts_more_than_its_name_and_its_entries(tmp_path: Path) -> None:
    files = {"a-3.pt": {"epoch": 7, "global_step": 70}, "b-4.pt": {"epoch": 7}}
    entries = rows(tmp_path, files)
    assert [(row["epoch"], row.get("step")) for row in entries] == [(7.0, 70), (7.0, None)]
    described = [{"file": "a-3.pt", "epoch": 1.0}]
    card = {"pattern": "{member}-{epoch}.pt", "checkpoint": described, "step": 5}
    found = rows(tmp_path, files, **card)
    assert [(row["epoch"], row["step"]) for row in found] == [(1.0, 5), (4.0, 5)]


def test_a_file_with_another_name_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=re.escape("other.pt: name: expected {member}-{epoch}.pt, got another form")):
        rows(tmp_path, {"a-3.pt": {}, "other.pt": {}}, pattern="{member}-{epoch}.pt")


def test_equal_names_in_several_folders_become_ids_and_runs(tmp_path: Path) -> None:
    made = rows(tmp_path, {"seed0/ckpt_2.pth.tar": {}, "seed1/ckpt_2.pth.tar": {"global_step": 7}, "last": {}})
    assert [(row["id"], row.get("member"), row.get("step")) for row in made] == [
        ("seed0-ckpt_2", "seed0", 2),
        ("seed1-ckpt_2", "seed1", 7),
        ("last", None, None),
    ]
    described = [{"file": "seed1/ckpt_2.pth.tar", "id": "mine", "seed": 3}]
    made = rows(tmp_path, {"seed0/ckpt_2.pth.tar": {}, "seed1/ckpt_2.pth.tar": {}}, checkpoint=described)
    assert [(row["id"], row.get("seed")) for row in made] == [("seed0-ckpt_2", 0), ("mine", 3)]
