"""What ``audit`` says of folders, zoos and hubs, and how much of their files it reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save, save_file

from ckptzoo.cli.app import run
from ckptzoo.errors import ZooError
from ckptzoo.hub.audits import audit
from ckptzoo.hub.audits.series import missing_steps
from ckptzoo.hub.imports import import_zoo, link_zoo
from tests.support.hosted import Hosted, push

Weights = dict[str, NDArray[Any]]


def walk(seed: int, count: int, shape: tuple[int, ...] = (24, 32), layers: int = 4) -> list[Weights]:
    """Weights that drift and jitter, as those of a training run do."""
    rng = np.random.default_rng(seed)
    weights = {f"layers.{at}.weight": rng.normal(size=shape).astype("f4") for at in range(layers)}
    drift = {name: rng.normal(size=shape) * 0.01 for name in weights}
    steps: list[Weights] = []
    for _ in range(count):
        steps.append(weights)
        weights = {
            name: (array + drift[name] + 0.01 * rng.normal(size=shape)).astype("f4") for name, array in weights.items()
        }
    return steps


def written(folder: Path, states: list[Weights], steps: list[int] | None = None) -> Path:
    for step, weights in zip(steps or range(0, 100 * len(states), 100), states, strict=True):
        place = folder / f"step{step}"
        place.mkdir(parents=True)
        save_file(weights, place / "model.safetensors")
    return folder


def found(*sources: Path, **options: Any) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((item.kind, tuple(item.steps)) for item in audit(list(sources), **options).findings)


def test_every_kind_of_fault(tmp_path: Path) -> None:
    first, second, third = (walk(seed, 10) for seed in range(3))
    first[2], first[6] = first[6], first[2]
    first[4] = first[9]
    second[3] = first[3]
    second[5] = {name: array.astype("f2") for name, array in second[5].items()}
    second[7] = {**second[7], "layers.1.weight": np.full((24, 32), np.nan, "f4")}
    steps = [*range(0, 500, 100), *range(600, 1100, 100)]
    for name, states in (("a", first), ("b", second)):
        written(tmp_path / name, states)
    written(tmp_path / "c", third, steps)
    (tmp_path / "b" / "step200" / "trainer_state.json").write_text('{"global_step": 300}')
    for step in (0, 100):
        (tmp_path / "b" / f"step{step}" / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    (tmp_path / "c" / "step300" / "model.safetensors").write_bytes(b"\x10" + bytes(7) + b"{" + bytes(30))
    assert found(tmp_path) == [
        ("claim", (200,)),
        ("copy", (400, 900)),
        ("gap", (300, 500)),
        ("header", (500,)),
        ("nonfinite", (700,)),
        ("order", (200, 600)),
        ("other-run", (300,)),
        ("unreadable", ()),
    ]


def test_the_command_prints_and_exits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states = walk(0, 8)
    written(tmp_path / "clean", states)
    assert run(["audit", str(tmp_path / "clean")]) == 0
    assert "8 checkpoints of 1 run: nothing found" in capsys.readouterr().out
    states[3], states[4] = states[4], states[3]
    written(tmp_path / "swapped", states)
    assert run(["audit", str(tmp_path / "swapped"), "--json"]) == 1
    (item,) = json.loads(capsys.readouterr().out)["findings"]
    assert item["kind"] == "order" and item["steps"] == [300, 400]
    assert run(["audit", str(tmp_path / "none" / "at" / "all")]) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(ZooError, match="checkpoints: expected at least one, got none"):
        audit(tmp_path / "empty")


def test_equal_neighbours_are_a_note_where_training_stands_still(tmp_path: Path) -> None:
    still = walk(0, 8)
    changed = still[-1]["layers.0.weight"].copy()
    changed[0, :5] += 1
    still += [{**still[-1], "layers.0.weight": changed}] * 3  # as with bfloat16 and a small learning rate
    result = audit(written(tmp_path / "still", still))
    assert not result.findings
    (note,) = result.notes
    assert tuple(note.steps) == (800, 900, 1000) and "training hardly moves" in note.detail
    moving = walk(0, 8)
    moving[5] = moving[4]
    assert found(written(tmp_path / "moving", moving)) == [("copy", (400, 500))]
    late = walk(0, 8)
    late[1] = late[0]
    # one update with a learning rate of 0 explains it, a hundred do not
    assert found(written(tmp_path / "late", late)) == [("copy", (0, 100))]
    warm = audit(written(tmp_path / "warm", late, list(range(8))))
    assert not warm.findings and "nothing may have been learnt yet" in warm.notes[0].detail


def test_runs_may_share_their_start(tmp_path: Path) -> None:
    first, second = walk(0, 8), walk(1, 8)
    moved = [{name: array + first[0][name] - second[0][name] for name, array in state.items()} for state in second]
    moved[0] = first[0]
    written(tmp_path / "a", first)
    written(tmp_path / "b", moved)
    result = audit(tmp_path)
    assert not result.findings and result.notes[0].detail == "2 runs begin with the same 1 step: a, b"
    second[0] = first[0]  # from where this run did not come
    written(tmp_path / "c", second)
    assert {(item.kind, item.run) for item in audit(tmp_path).findings} == {("other-run", "c")}


def test_weights_from_elsewhere_belong_to_no_trajectory(tmp_path: Path) -> None:
    states = walk(0, 8)
    states[4] = walk(1, 1)[0]
    assert found(written(tmp_path / "runs", states)) == [("stranger", (400,))]


def test_files_of_torch_shards_and_averages(tmp_path: Path) -> None:
    states = walk(0, 8, (64, 64))
    states[2], states[5] = states[5], states[2]
    for at, weights in enumerate(states):
        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        (tmp_path / "zip").mkdir(exist_ok=True)
        torch.save({"model": tensors, "step": at * 10}, tmp_path / "zip" / f"checkpoint-{at * 10}.pt")
        place = tmp_path / "shards" / f"checkpoint-{at * 10}"
        place.mkdir(parents=True)
        names = sorted(weights)
        for number, part in enumerate((names[:2], names[2:]), start=1):
            save_file({name: weights[name] for name in part}, place / f"model-0000{number}-of-00002.safetensors")
        save_file({name: array * 0.5 for name, array in weights.items()}, place / "ema.safetensors")
    assert found(tmp_path / "zip") == [("order", (20, 50))]
    result = audit(tmp_path / "shards")
    assert [(item.kind, tuple(item.steps)) for item in result.findings] == [("order", (20, 50))] * 2
    assert result.checkpoints == 16


def test_zoos_are_audited_by_their_rows(tmp_path: Path) -> None:
    states = walk(0, 8)
    states[1], states[6] = states[6], states[1]
    import_zoo(written(tmp_path / "runs", states), tmp_path / "zoo", license="mit")
    assert found(tmp_path / "zoo") == found(tmp_path / "runs") == [("order", (100, 600))]


def test_reading_everything_finds_nan_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states = walk(0, 6, (200, 100))
    states[3]["layers.2.weight"] = states[3]["layers.2.weight"].copy()
    states[3]["layers.2.weight"][-1, -1] = np.inf
    folder = written(tmp_path / "runs", states)
    assert found(folder) == []
    result = audit(folder, everything=True)
    assert [(item.kind, tuple(item.steps)) for item in result.findings] == [("nonfinite", (300,))]
    # small files are read more than once
    assert 0 < result.bytes_read <= result.bytes_stored
    result.print()
    assert f"nonfinite: {result.findings[0].next_step}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.exhaustive
def test_less_than_a_hundredth_of_large_files_is_read(tmp_path: Path) -> None:
    states = walk(0, 5, (512, 1280))
    states[1], states[3] = states[3], states[1]
    for at, weights in enumerate(states):
        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        torch.save(tensors, tmp_path / f"zip-step{at}.bin")
        save_file(weights, tmp_path / f"flat-step{at}.safetensors")
    result = audit(tmp_path)
    # the same weights in both forms are compared whole, where that needs no transfer
    assert {item.kind for item in result.findings} == {"order", "other-run"}
    for form in ("zip", "flat"):
        result = audit(tmp_path, include=[f"{form}-*"])
        assert [(item.kind, tuple(item.steps)) for item in result.findings] == [("order", (1, 3))]
        assert result.bytes_read < 0.01 * result.bytes_stored


def test_shipped_zoos_are_clean() -> None:
    result = audit("cards/mnist-optunet-trajectories")
    assert result.runs == 32 and not result.findings and not result.notes


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 144000, 1000)], []),
        ([0, 1, 2, 4, 8, 32, 64, 128, 256, 512, 1000, 2000, 4000, 5000], [16, 3000]),
        ([10, 20, 30, 40, 70, 80], [50, 60]),
        ([0, 500, 1000, 1500, 1733], []),
        ([3, 17, 40, 41, 90], []),
        ([1, 2, 3, 5, 6], [4]),
        ([*map(round, np.geomspace(10, 10000, 16))], []),
        ([step for at, step in enumerate(map(round, np.geomspace(10, 10000, 16))) if at != 9], [631]),
        ([100, 200, 300, 400, 600], [500]),
        ([5], []),
    ],
)
def test_missing_steps(steps: list[int], missing: list[int]) -> None:
    assert missing_steps(steps) == missing


def published(server: Hosted, runs: int, count: int, **shape: Any) -> list[str]:
    """Push runs as repositories with a branch for each step, the second with a swap, the third with a stale copy."""
    api, addresses = server.api("write"), list[str]()
    for number in range(runs):
        repository, states = f"lab/run-seed{number}", walk(number, count, **shape)
        if number == 1:
            states[2], states[count - 2] = states[count - 2], states[2]
        if number == 2:
            states[2] = states[-1]
        api.create_repo(repository)
        for at, weights in enumerate(states):
            if (number, at) != (0, 3):
                api.create_branch(repository, branch=f"step{1000 * at}")
                files = {"model.safetensors": save(weights), "config.json": b'{"hidden": 3}'}
                push(server, files, f"models/{repository}", revision=f"step{1000 * at}")
        addresses.append(f"hf://{repository}@step*")
    return addresses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "count", "shape"),
    [
        (3, 5, {}),
        pytest.param(3, 5, {"shape": (512, 640), "layers": 8}, marks=pytest.mark.exhaustive),
        pytest.param(45, 20, {}, marks=pytest.mark.exhaustive),
    ],
)
def test_repositories_of_a_hub(tmp_path: Path, server: Hosted, runs: int, count: int, shape: dict[str, Any]) -> None:
    addresses = published(server, runs, count, **shape)
    (tmp_path / "runs.txt").write_text("\n".join(addresses))
    before = len(server.request_log.entries)
    result = audit(tmp_path / "runs.txt", endpoint=server.url)
    assert sorted((item.kind, item.run, tuple(item.steps)) for item in result.findings) == [
        ("copy", "run-seed2", (2000, 1000 * (count - 1))),
        ("gap", "run-seed0", (3000,)),
        ("order", "run-seed1", (2000, 1000 * (count - 2))),
    ]
    assert result.checkpoints == runs * count - 1
    if shape:  # files of 10 MB
        assert result.bytes_read < 0.01 * result.bytes_stored
        assert sum(entry.sent for entry in server.request_log.entries[before:]) < 0.01 * result.bytes_stored


def test_tensors_that_were_not_read_are_not_said_to_be_equal(tmp_path: Path) -> None:
    states = walk(0, 6)
    kernel = torch.randn(8, 8, 3, 3, generator=torch.Generator().manual_seed(0))
    for at in range(len(states)):
        tensors = {name: torch.from_numpy(array) for name, array in states[min(at, 4)].items()}
        # numbers in another order than the first to the last axis have no place of their own in the file
        tensors["conv.weight"] = (kernel + at).to(memory_format=torch.channels_last)
        torch.save(tensors, tmp_path / f"step{at}.pt")
    (item,) = audit(tmp_path).findings
    assert tuple(item.steps) == (4, 5) and "in the" in item.detail and "numbers that were read" in item.detail
    assert found(tmp_path, everything=True) == []


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_judged(tmp_path: Path) -> None:
    states = walk(0, 10, (64, 64))
    states[2], states[6] = states[6], states[2]
    expected = [("order", (20, 60)), ("unreadable", ())]
    for at, weights in enumerate(states):
        torch.save({name: torch.from_numpy(array) for name, array in weights.items()}, tmp_path / f"step{at * 10}.pt")
    path = tmp_path / "step40.pt"
    data = bytearray(path.read_bytes())
    # the header of a member, which is looked at when its numbers are read
    at = data.rindex(b"PK\x03\x04", 0, data.index(b"data/2"))
    data[at : at + 2] = b"?!"
    path.write_bytes(data)
    for everything in (False, True):
        result = audit(tmp_path, everything=everything)
        assert sorted((item.kind, tuple(item.steps)) for item in result.findings) == expected
        assert "a header of its own" in next(item.detail for item in result.findings if item.kind == "unreadable")
    # rows of a zoo that refers to files are read at once
    folder = written(tmp_path / "flat/runs", states, [*range(0, 100, 10)])
    link_zoo(folder, tmp_path / "zoo", license="mit")
    (folder / "step40/model.safetensors").touch()
    for everything in (False, True):
        result = audit(tmp_path / "zoo", everything=everything)
        assert sorted((item.kind, tuple(item.steps)) for item in result.findings) == expected
        assert "step40/model.safetensors" in "".join(item.detail for item in result.findings)


def test_a_member_of_an_archive_holds_all_of_its_tensor(tmp_path: Path) -> None:
    states = walk(0, 3, (64, 64))
    for at, weights in enumerate(states):
        torch.save({name: torch.from_numpy(array) for name, array in weights.items()}, tmp_path / f"step{at}.pt")
    path = tmp_path / "step1.pt"
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(b"data/2"))
    # both sizes in the directory
    data[at + 20 : at + 28] = (16000).to_bytes(4, "little") * 2
    path.write_bytes(data)
    (item,) = audit(tmp_path).findings
    assert item.kind == "unreadable" and "'layers.2.weight': expected 16384 bytes, got 16000 bytes" in item.detail
