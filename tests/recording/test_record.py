"""Recorded runs: what a loop saves is what the gathered zoo holds, whatever else records, and nothing comes twice."""

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ckptzoo
from ckptzoo.errors import SpecError, UnknownNameError, ZooError
from ckptzoo.recording.recorder import Recorder
from ckptzoo.recording.units import member_folder, recorded_steps, unit_path, waiting_units
from tests.support.effort import examples

SHAPES = {"conv.weight": (2, 1, 3, 3), "conv.bias": (2,), "scale": (), "none": (0, 2)}


def networks(seed: int, dtypes: tuple[str, ...] = ("float32",)) -> dict[str, Any]:
    """Weights of one network, of several dtypes and shapes."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Any] = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        weights[name] = rng.normal(size=shape).astype(dtypes[number % len(dtypes)])
    return {**weights, "count": np.asarray(seed, np.int64)}


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    ckptzoo.create(tmp_path / "zoo", arch=ckptzoo.Architecture.of(networks(0), name="net"))
    return tmp_path / "zoo"


@given(st.data())
@settings(max_examples=examples(60, 6), deadline=None)
def test_a_recorded_zoo_is_that_written_at_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any interleaving of members, saves and gatherings gives the weights bit for bit, and the rows but their times."""
    root = tmp_path_factory.mktemp("law")
    dtypes = data.draw(st.permutations(("float32", "float64", "float16")))
    members = [f"run-{number}" for number in range(data.draw(st.integers(1, 3)))]
    arch = ckptzoo.Architecture.of(networks(0, tuple(dtypes)), name="net")
    expected: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    actions = data.draw(st.lists(st.tuples(st.sampled_from([*members, "gather"]), st.integers(0, 6)), max_size=14))
    options: dict[str, Any] = {"arch": arch, "seed": 1, "dataset": "d"}
    runs = {member: ckptzoo.record(root / "recorded", member=member, **options) for member in members}
    for action in actions:
        member, step = action
        if member == "gather":
            ckptzoo.gather(root / "recorded")
            continue
        name = f"{member}-{step:06d}"
        weights, row = networks(len(expected), tuple(dtypes)), {"test_accuracy": step / 8, "extra": {"lr": step}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            assert runs[member].save(weights, step=step, **row) == (name not in expected)
        if name not in expected:
            row = {"id": name, "member": member, "seed": 1, "step": step, "dataset": "d", **row}
            expected[name] = ({key: value.copy() for key, value in weights.items()}, row)
        for value in weights.values():  # the loop goes on at once
            value[...] = 7
    for run in runs.values():
        run.close()
    last = ckptzoo.gather(root / "recorded")
    assert not last.problems and not ckptzoo.verify(root / "recorded") and waiting_units(root / "recorded") == 0
    assert not (root / "recorded" / ".work").exists()
    recorded = ckptzoo.open(root / "recorded") if expected else []
    assert len(recorded) == len(expected)
    if not expected:
        return
    with ckptzoo.create(root / "whole", arch=arch) as writer:
        for name in recorded.ids:
            writer.add(*expected[name])
    whole = ckptzoo.open(root / "whole")
    for tensor in arch.names:
        assert recorded[tensor][:].tobytes() == whole[tensor][:].tobytes()
    columns = [name for name in whole.metadata.column_names if name != "created"]
    assert recorded.metadata.select(columns).to_pylist() == whole.metadata.select(columns).to_pylist()


def test_a_step_that_comes_again_is_kept_as_it_was(zoo: Path) -> None:
    with ckptzoo.record(zoo, member="a") as run:
        run.save(networks(1), step=10)
        run.save(networks(2), step=20)
    ckptzoo.gather(zoo)
    with ckptzoo.record(zoo, member="a") as run:
        assert (run.steps, run.last_step) == ((10, 20), 20)
        with pytest.warns(UserWarning, match="a: step 20 was saved before and is kept"):
            assert not run.save(networks(9), step=20)
        assert run.save(networks(3), step=30)
    assert ckptzoo.gather(zoo).checkpoints == 1
    assert ckptzoo.open(zoo)["count"][:].tolist() == [1, 2, 3]


def test_a_run_that_begins_again_earlier_is_warned_of(zoo: Path) -> None:
    """Once: what the earlier run saved later is another trajectory."""
    with ckptzoo.record(zoo, member="a", seed=1) as run:
        for step in (10, 20, 30):
            run.save(networks(step), step=step)
    with ckptzoo.record(zoo, member="a", seed=1) as run:
        with pytest.warns(UserWarning, match="a: step 15 comes behind step 30, which an earlier run saved"):
            run.save(networks(15), step=15)
        run.save(networks(25), step=25)
        run.save(networks(35), step=35)
    for gathered in (False, True):
        with pytest.raises(
            ZooError, match=r"seed of member 'a': expected 1, got 2\. Give this run a member of its own"
        ):
            ckptzoo.record(zoo, member="a", seed=2)
        if not gathered:
            ckptzoo.gather(zoo)


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_file_is_saved_again(zoo: Path, damage: str) -> None:
    with ckptzoo.record(zoo, member="a") as run:
        run.save(networks(1), step=1)
        run.save(networks(2), step=2)
    path = unit_path(member_folder(zoo, "a"), 1)
    data = unit_path(member_folder(zoo, "a"), 2).read_bytes() if damage == "other" else path.read_bytes()
    path.write_bytes({"cut": data[:-9], "empty": b"", "other": data}[damage])
    with pytest.warns(UserWarning, match=r"000001\.kept\.safetensors: damaged; step 1 of a is saved again"):
        run = ckptzoo.record(zoo, member="a")
    assert run.steps == (2,)
    with pytest.warns(UserWarning, match="comes behind step 2"):
        assert run.save(networks(1), step=1)
    run.close()
    assert ckptzoo.gather(zoo).checkpoints == 2 and not ckptzoo.verify(zoo)


def test_steps_are_numbers_of_any_kind(zoo: Path) -> None:
    with ckptzoo.record(zoo, member="a") as run:
        for step in (torch.tensor(6), np.int64(7), np.asarray(8)):
            assert run.save(networks(1), step=step)
    assert ckptzoo.gather(zoo).checkpoints == 3


def test_nothing_is_removed_before_a_figure_is_known(zoo: Path) -> None:
    with ckptzoo.record(zoo, member="a", keep_best="test_loss") as run:
        for step in range(4):
            run.save(networks(step), step=step)
    assert list(recorded_steps(member_folder(zoo, "a"))) == [0, 1, 2, 3]


def test_numbers_beyond_a_dtype_are_warned_of(tmp_path: Path) -> None:
    with ckptzoo.record(tmp_path / "zoo", arch=networks(0), member="a", dtype="float16") as run:
        with pytest.warns(UserWarning, match="a: scale has numbers beyond the range of float16, which become infinite"):
            run.save({**networks(1), "scale": np.asarray(1e6, np.float32)}, step=1)
        run.save({**networks(1), "scale": np.asarray(1e6, np.float32)}, step=2)
    with pytest.raises(
        SpecError, match=r'dtype: expected float16, that of the zoo, got float32\. Pass dtype="float16"'
    ):
        ckptzoo.record(tmp_path / "zoo", arch=networks(0), member="a")


def test_what_was_waited_for_is_on_the_disk(zoo: Path) -> None:
    run = ckptzoo.record(zoo, member="a")
    for step in range(5):
        run.save(networks(step), step=step)
    run.wait()
    assert list(recorded_steps(member_folder(zoo, "a"))) == [0, 1, 2, 3, 4]
    run.close()
    with pytest.raises(ZooError, match=r"recorder: expected one in use, got one that has ended\. Open it again with"):
        run.save(networks(5), step=5)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"keep_every": 4}, [0, 4, 8, 9]),
        ({"keep_best": "test_accuracy"}, [3, 9]),
        ({"keep_best": "test_loss"}, [6, 9]),
        ({"keep_every": 5, "keep_best": "test_loss"}, [0, 5, 6, 9]),
    ],
)
@pytest.mark.parametrize("stopped", [None, 2, 7])
def test_what_is_kept(zoo: Path, options: dict[str, Any], kept: list[int], stopped: int | None) -> None:
    """The last, the best, and multiples; also where the run was stopped and resumed in between."""
    accuracies = [0.1, 0.2, float("nan"), 0.9, 0.5, 0.9, 0.2, 0.3, 0.1, 0.4]
    run = ckptzoo.record(zoo, member="a", **options)
    for step, accuracy in enumerate(accuracies):
        run.save(networks(step), step=step, test_accuracy=accuracy, test_loss=abs(step - 6) + 1.0)
        if step == stopped:
            run.close()
            run = ckptzoo.record(zoo, member="a", **options)
    run.close()
    assert list(recorded_steps(member_folder(zoo, "a"))) == kept


def test_averages_are_members_of_their_own(zoo: Path) -> None:
    with ckptzoo.record(zoo, member="a", seed=3, recipe="r") as run:
        run.save(
            networks(1),
            step=5,
            test_accuracy=0.5,
            averages={"ema": networks(2), "swa": (networks(3), {"test_accuracy": 0.6})},
        )
    ckptzoo.gather(zoo)
    rows = (
        ckptzoo.open(zoo)
        .metadata.select(["id", "member", "method", "mode", "test_accuracy", "recipe", "seed"])
        .to_pylist()
    )
    assert [tuple(row.values()) for row in rows] == [
        ("a-000005", "a", None, None, 0.5, "r", 3),
        ("a+ema-000005", "a+ema", "ema", "a", None, "r", 3),
        ("a+swa-000005", "a+swa", "swa", "a", 0.6, "r", 3),
    ]


def test_wrapped_modules_are_the_network(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    average = torch.optim.swa_utils.AveragedModel(net)
    with ckptzoo.record(tmp_path / "zoo", arch=nn.DataParallel(net), member="a") as run:
        run.save(nn.DataParallel(net), step=1, averages={"ema": average})
        run.save(torch.compile(nn.DataParallel(net), backend="eager"), step=2)
        run.save(net.state_dict(), step=3)
    ckptzoo.gather(tmp_path / "zoo")
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.arch.names == tuple(net.state_dict()) and len(zoo) == 4
    assert (zoo["0.weight"][:] == net[0].weight.detach().numpy()).all()


def test_bfloat16_is_gathered_by_another_process(tmp_path: Path) -> None:
    with ckptzoo.record(tmp_path / "zoo", arch=networks(0), member="a", dtype="bfloat16") as run:
        run.save(networks(1), step=1)
    code = f"import ckptzoo; assert ckptzoo.gather({str(tmp_path / 'zoo')!r}).checkpoints == 1"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_another_dtype_is_rounded_once(tmp_path: Path, dtype: str) -> None:
    with ckptzoo.record(tmp_path / "zoo", arch=networks(0), member="a", dtype=dtype) as run:
        run.save(networks(1), step=1)
    ckptzoo.gather(tmp_path / "zoo")
    zoo = ckptzoo.open(tmp_path / "zoo")
    expected = torch.tensor(networks(1)["conv.weight"]).to(getattr(torch, dtype)).double().numpy()
    assert zoo.arch["conv.weight"].dtype == dtype and zoo.arch["count"].dtype == "int64"
    assert (zoo["conv.weight"][0].astype(np.float64) == expected).all()


def test_weights_that_are_not_finite_are_kept_and_marked(zoo: Path) -> None:
    with ckptzoo.record(zoo, member="a") as run:
        for step, value in enumerate((1.0, np.nan, np.inf)):
            run.save({**networks(1), "scale": np.asarray(value, np.float32)}, step=step)
    ckptzoo.gather(zoo)
    assert ckptzoo.open(zoo).metadata["finite"].to_pylist() == [True, False, False]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_ARRAY_JOB_ID": "71", "SLURM_ARRAY_TASK_ID": "3"}, "71-3"),
        ({"PBS_JOBID": "12[4].host", "PBS_ARRAY_INDEX": "4"}, "12-4-.host-4"),
        ({"LSB_JOBID": "9", "LSB_JOBINDEX": "0"}, None),
        ({"JOB_ID": "9", "SGE_TASK_ID": "undefined"}, None),
        ({"JOB_ID": "9", "SGE_TASK_ID": "5"}, "9-5"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, None),
        ({}, None),
    ],
)
def test_default_members(
    zoo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    expected: str | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with ckptzoo.record(zoo) as run:
        assert run.member == expected if expected else run.member.startswith("run-")
    assert f"Recording member {run.member} of {zoo}" in capsys.readouterr().err


def test_one_of_several_ranks_needs_a_name(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(
        ZooError, match=r"one of several processes records, got none\. Record in the process of rank 0 alone"
    ):
        ckptzoo.record(zoo)


def test_two_recorders_of_one_member(zoo: Path) -> None:
    with ckptzoo.record(zoo, member="a") as run:
        with pytest.raises(
            ZooError, match=rf"recorder of member 'a': expected no other one, got process {os.getpid()} on .* Stop it"
        ):
            ckptzoo.record(zoo, member="a")
        run.save(networks(1), step=1)
    with ckptzoo.record(zoo, member="a") as run:
        assert run.steps == (1,)


def test_many_record_at_once(zoo: Path) -> None:
    def record(number: int) -> None:
        with ckptzoo.record(zoo, member=f"run-{number}") as run:
            for step in range(4):
                run.save(networks(10 * number + step), step=step)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    ckptzoo.gather(zoo)
    for thread in threads:
        thread.join()
    ckptzoo.gather(zoo)
    assert sorted(ckptzoo.open(zoo)["count"][:].tolist()) == sorted(10 * n + s for n in range(5) for s in range(4))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_neither_saves_nor_gives_up(zoo: Path) -> None:
    with ckptzoo.record(zoo, member="a") as run:
        child = os.fork()
        if not child:
            try:
                run.save(networks(1), step=1)
            except ZooError as error:
                run.__exit__(None, None, None)
                os._exit(0 if f"got process {os.getpid()}, a fork of it" in str(error) else 2)
            os._exit(3)
        assert os.waitpid(child, 0)[1] == 0
        assert run.save(networks(1), step=1)
    assert ckptzoo.gather(zoo).checkpoints == 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"weights": {**networks(0), "scale": np.ones(2, np.float32)}}, "tensor 'scale': expected"),
    "dtype": ({"weights": networks(0, ("float64",))}, "Cast them to float32"),
    "missing": ({"weights": {"scale": np.ones((), np.float32)}}, "tensors: expected those of 'net'"),
    "optimiser": ({"weights": {"state": {}, "param_groups": []}}, "expected weights of a network, got the state of an optimiser"),
    "column": ({"accuracy": 0.5}, "column 'accuracy'"),
    "set here": ({"unit": "u"}, "column 'unit': expected a column that is not set here"),
    "optimizer": ({"optimizer": {}}, "the state of an optimiser. Keep it in a checkpoint of your own"),
    "value": ({"test_accuracy": 7.0}, "column 'test_accuracy': expected fractions from 0 to 1"),
    "type": ({"test_accuracy": "high"}, "test_accuracy"),
    "extra": ({"extra": {"x": float("nan")}}, "column 'extra'"),
    "step": ({"step": -1}, "step: expected a number of steps from 0"),
    "average": ({"averages": {"E M A": networks(0)}}, "name of an average"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused_saves(zoo: Path, what: str) -> None:
    options, message = REFUSED[what]
    with ckptzoo.record(zoo, member="a") as run:
        with pytest.raises((SpecError, UnknownNameError, ZooError)) as error:
            run.save(**{"weights": networks(0), "step": 1, **options})
        assert message in str(error.value)
        assert run.save(networks(0), step=2)
    assert ckptzoo.gather(zoo).checkpoints == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": {"other": np.zeros(2, np.float32)}}, "architecture: expected the one to be written"),
        ({"arch": networks(0), "card": ckptzoo.Card("another")}, "card: expected that of the zoo, got another"),
        ({"card": ckptzoo.Card("another")}, "card: expected that of the zoo, got another"),
        ({"arch": networks(0), "dtype": "float16"}, "architecture: expected the one to be written"),
        ({"dtype": "floatt16"}, "dtype: expected one of float64, float32"),
        ({"member": "a+ema"}, "member: expected 1 to"),
        ({"member": "a b"}, "member: expected 1 to"),
        ({"member": "x" * 200}, "member: expected 1 to"),
        ({"keep_best": "recipe"}, "column of numbers"),
        ({"colour": "red"}, "column 'colour'"),
        ({"dtype": "int8", "arch": networks(0)}, "dtype: expected one of"),
    ],
)  # fmt: skip
def test_refused_runs(zoo: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ZooError) as error:
        ckptzoo.record(zoo, **{"member": "a", **options})
    assert message in str(error.value)
    assert not (zoo / ".work").exists() or not waiting_units(zoo)


def test_a_folder_without_a_zoo_needs_an_architecture(tmp_path: Path) -> None:
    with pytest.raises(
        ZooError, match=r"zoo: expected one that is there, where arch is left out, got none\. Pass arch=model"
    ):
        ckptzoo.record(tmp_path / "none", member="a")


@pytest.mark.exhaustive
def test_recording_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, ckptzoo\n"
        f"with ckptzoo.record({str(tmp_path / 'zoo')!r}, arch={{'w': numpy.ones(2)}}, member='a') as run:\n"
        "    run.save({'w': numpy.ones(2)}, step=1)\n"
        f"ckptzoo.gather({str(tmp_path / 'zoo')!r})\n"
        "assert not {'torch', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_disk_that_fills_up_is_said_and_earlier_checkpoints_stay(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system of 64 KiB where one can be mounted; else the limit on the size of files."""
    big = {"w": np.zeros(40_000, np.float32)}
    code = (
        "import resource, signal, sys, numpy, ckptzoo\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"run = ckptzoo.record({str(zoo.parent / 'big')!r}, arch={{'w': numpy.zeros(40_000, numpy.float32)}}, member='a')\n"
        "run.save({'w': numpy.zeros(40_000, numpy.float32)}, step=1)\n"
        "run.wait()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "run.save({'w': numpy.zeros(40_000, numpy.float32)}, step=2)\n"
        "try:\n"
        "    run.wait()\n"
        "except OSError as error:\n"
        "    assert '000002.kept.safetensors' in str(error), error\n"
        "else:\n"
        "    sys.exit('nothing was said')\n"
        "run.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert big["w"].nbytes > 50_000 and ckptzoo.gather(zoo.parent / "big").checkpoints == 1
    assert sorted(path.name for path in (zoo.parent / "big").iterdir()) == [
        "README.md",
        "architecture.json",
        "card.toml",
        "parts",
        "zoo.json",
    ]


def test_the_order_of_gathering_changes_no_id(zoo: Path, tmp_path: Path) -> None:
    orders = [[("a", 1), ("b", 1), ("a", 2), ("b", 2)], [("b", 1), ("b", 2), ("a", 1), ("a", 2)]]
    contents: list[list[tuple[str, int]]] = []
    for number, order in enumerate(orders):
        path = tmp_path / str(number)
        arch = ckptzoo.Architecture.of(networks(0), name="net")
        runs: dict[str, Recorder] = {name: ckptzoo.record(path, arch=arch, member=name) for name in "ab"}
        for name, step in order:
            runs[name].save(networks(ord(name) + step), step=step)
        for run in runs.values():
            run.close()
        ckptzoo.gather(path)
        zoo_read = ckptzoo.open(path)
        contents.append(list(zip(zoo_read.ids, zoo_read["count"][:].tolist(), strict=True)))
    assert contents[0] == contents[1]
