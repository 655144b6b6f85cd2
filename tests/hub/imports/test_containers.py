"""Files are told by their content, in archives and packed too: each network comes in once, whatever it is kept in."""

import cProfile
import io
import json
import os
import pstats
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.numpy import save

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import Options, import_zoo, plan_import
from ckptzoo.hub.imports import run as running
from tests.support.checkpoint_files import written
from tests.support.container_files import (
    ARCHIVES,
    FORMS,
    PACKERS,
    flax_file,
    hdf5_file,
    joblib_file,
    tar_file,
    torch_file,
    zip_file,
)
from tests.support.effort import ALL, examples
from tests.support.published_zoos import network

JUNK = ["__MACOSX/._net", ".ipynb_checkpoints/net-checkpoint.pt", ".DS_Store", "._net.pt", "net.pt~", ".git/HEAD"]


def placed(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def imported(folder: Path, **options: Any) -> Any:
    return import_zoo(folder, folder.parent / "zoo", license="MIT", **options)


def rows_of(zoo: Path) -> dict[str, dict[str, np.ndarray]]:
    """The tensors of each checkpoint by its id, of a zoo or of all in a collection."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for path in sorted({item.parent for item in zoo.rglob("zoo.json")}):
        opened = ckptzoo.open(path)
        assert ckptzoo.verify(path) == []
        for row, name in enumerate(opened.ids):
            assert name not in found
            found[name] = {tensor: opened[tensor][row] for tensor in opened.arch.names}
    return found


@settings(max_examples=examples(80, 2), deadline=None)
@given(
    nets=st.lists(
        st.tuples(
            st.sampled_from(list(FORMS)),
            st.sampled_from(["", *PACKERS]),
            st.lists(st.sampled_from(list(ARCHIVES)), max_size=2),
        ),
        min_size=1,
        max_size=4,
    ),
    junk=st.lists(st.sampled_from(JUNK), max_size=3, unique=True),
)
def test_a_network_comes_in_once_from_whatever_it_is_kept_in(
    tmp_path_factory: pytest.TempPathFactory, nets: list[tuple[str, str, list[str]]], junk: list[str]
) -> None:
    root = tmp_path_factory.mktemp("kept")
    expected: dict[str, dict[str, np.ndarray]] = {}
    count = 0
    for number, (suffix, packer, archives) in enumerate(nets):
        state = network(number)
        data, name = FORMS[suffix](state), f"net{number}{suffix}"
        if packer:
            data, name = PACKERS[packer](data), name + packer
        members, path = {name: data} | dict.fromkeys(junk, b"\x00\x05\x16\x07"), f"net{number}"
        for level, archive in enumerate(archives):
            members = {f"in{number}_{level}{archive}": ARCHIVES[archive](members)}
            path = f"in{number}_{level}-{path}"
        count += len(junk) if archives else 0
        placed(root / "source", members if archives else {name: data})
        expected[path] = state
    done = imported(root / "source")
    found = rows_of(root / "zoo")
    assert {*found} == {*expected} and done.skipped == ()
    for name, state in expected.items():
        assert all(np.array_equal(found[name][tensor], array) for tensor, array in state.items()), name
    left_behind = [item for item in done.passed_over if item["reason"].startswith("left by a system")]
    assert len(left_behind) == len(done.passed_over) == count
    assert sum(done.forms.values()) == len(nets)
    again = imported(root / "source")
    assert (again.added, again.present) == (0, len(nets))


def keras2(file: Any) -> None:
    """A model as Keras 2 writes it, with the state of its optimiser; items of HDF5 are in the order of the alphabet."""
    group = file.create_group("model_weights")
    group.attrs["layer_names"] = [b"second", b"first"]
    for name in ("first", "second"):
        layer = group.create_group(name)
        layer.attrs["weight_names"] = [f"{name}/kernel:0".encode(), f"{name}/bias:0".encode()]
        layer[f"{name}/kernel:0"], layer[f"{name}/bias:0"] = np.ones((3, 2), "f4"), np.zeros(2, "f4")
    file["optimizer_weights/iter"] = np.int64(4)


def with_attributes(file: Any) -> None:
    """Numbers as MATLAB and Julia write them, lists, and what holds none."""
    file["fc/weight"], file["fc/bias"] = np.ones((3, 2), "f4"), np.zeros(2, "f4")
    file.attrs.update(
        {"seed": np.array([7]), "lr": 0.1, "act": "relu", "names": ["a", "b"], "mean": np.array([0.1, 0.2])}
    )
    file.attrs.update({"none": np.zeros(0), "table": np.zeros((3, 3)), "no value": h5py.Empty("f4")})
    file["fc"].attrs["padding"] = np.array([1, 2])


def test_attributes_of_hdf5_are_facts(tmp_path: Path) -> None:
    imported(placed(tmp_path / "source", {"net.h5": hdf5_file(with_attributes)}))
    zoo = ckptzoo.open(tmp_path / "zoo")
    facts = json.loads(zoo[0].row["extra"])
    expected = {"lr": 0.1, "act": "relu", "names": ["a", "b"], "padding": "[1, 2]", "mean": "[0.1, 0.2]"}
    assert {name: facts[name] for name in expected} == expected and zoo[0].row["seed"] == 7
    assert {tensor.name for tensor in zoo.contents.architecture.tensors} == {"weight", "bias"}


def keras3(file: Any) -> None:
    file["layers/dense/vars/0"], file["layers/dense/vars/1"] = np.ones((3, 2), "f4"), np.zeros(2, "f4")
    file["optimizer/vars/0"] = np.int64(3)


KEPT: dict[str, tuple[dict[str, bytes], list[str]]] = {
    "keras 2": ({"a.h5": hdf5_file(keras2)}, ["second.kernel", "second.bias", "first.kernel", "first.bias"]),
    "keras 3": ({"a.keras": zip_file({"config.json": b"{}", "model.weights.h5": hdf5_file(keras3)})}, ["layers.dense.vars.0", "layers.dense.vars.1"]),
    "flax": ({"a.msgpack": flax_file({"params": {"Dense_0": {"kernel": np.ones((2, 3), "f4")}}, "batch_stats": {"norm": {"mean": np.ones(3, "f4")}}})}, ["params.Dense_0.kernel", "batch_stats.norm.mean"]),
    "flax in pieces": ({"a.msgpack": flax_file({"params": {"d": {"kernel": {"__msgpack_chunked_array__": True, "shape": {"0": 2, "1": 2}, "chunks": {"0": np.ones(3, "f4"), "1": np.ones(1, "f4")}}}}})}, ["params.d.kernel"]),
    "objects of joblib": ({"a.joblib": joblib_file({"net": {"w.weight": np.ones((2, 2)), "w.bias": np.zeros(2)}, "classes": np.array(["a", "b"]), "names": np.array([{}, "x"], dtype=object)})}, ["w.weight", "w.bias"]),
    "shards in an archive": ({"a.tar": tar_file({f"model-0000{n}-of-00002.safetensors": save({f"{n}.weight": np.ones(2, "f4")}) for n in (1, 2)})}, ["1.weight", "2.weight"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEPT)
def test_tensors_have_the_names_and_the_order_of_their_program(tmp_path: Path, kind: str) -> None:
    files, names = KEPT[kind]
    imported(placed(tmp_path / "source", files))
    assert list(ckptzoo.open(tmp_path / "zoo").arch.names) == names


@pytest.mark.parametrize(
    ("shapes", "chains"), [({"w.weight": (4, 5), "w.bias": (4,)}, 1), ({"w_in_1": (4, 5), "w_1_2": (5, 3)}, 2)]
)
def test_draws_of_arviz_are_those_of_its_chains(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], chains: int
) -> None:
    draw = np.random.default_rng(0)
    draws = {name: draw.standard_normal((chains, 3, *shape)) for name, shape in shapes.items()}

    def fill(file: Any) -> None:
        for group in map(file.create_group, ("posterior", "prior")):
            for axis, count in (("chain", chains), ("draw", 3)):
                group[axis] = np.arange(count)
                group[axis].make_scale(axis)
            for name, array in draws.items():
                group[name] = array + (group.name == "/prior")
                for place, axis in enumerate(("chain", "draw")):
                    group[name].dims[place].attach_scale(group[axis])
        file["posterior"].attrs["inference_library"] = "numpyro"
        file["sample_stats/diverging"] = np.zeros((chains, 3), bool)

    placed(tmp_path / "source", {"idata.nc": hdf5_file(fill)})
    imported(tmp_path / "source")
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert all(np.array_equal(zoo[name], array.reshape(chains * 3, *shapes[name])) for name, array in draws.items())
    rows = zoo.metadata.to_pylist()
    assert [(row["method"], row["mode"], row["draw"]) for row in rows] == [
        ("samples", f"idata/chain-{chain}", number) for chain in range(chains) for number in range(3)
    ]
    extra = json.loads(rows[0]["extra"])
    assert extra["inference_library"] == "numpyro" and extra["other_groups"] == "prior, sample_stats"


def test_draws_of_arviz_in_one_vector_are_cut_by_the_layout(tmp_path: Path) -> None:
    lines = ["varname,start_idx,end_idx,shape", 'a,0,4,"(4,)"', 'b,4,9,"(5,)"']
    placed(
        tmp_path / "vectors",
        {"idata.nc": hdf5_file(lambda file: file.create_dataset("posterior/theta", data=np.ones((2, 3, 9))))},
    )
    options = Options(layout="\n".join(lines))
    import_zoo(tmp_path / "vectors", tmp_path / "cut", license="MIT", options=options)
    assert ckptzoo.open(tmp_path / "cut").metadata["draw"].to_pylist() == [0, 1, 2, 0, 1, 2]


def test_snapshots_of_a_hubs_cache_are_told_apart_and_its_blobs_are_no_files(tmp_path: Path) -> None:
    source, revision = tmp_path / "source", "c0ffee" * 6
    for number, name in enumerate(("models--lab--one", "models--lab--two")):
        placed(source / name, {f"blobs/{number}": save(network(number)), "refs/main": revision.encode()})
        snapshot = source / name / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{number}")
    done = imported(source)
    found = rows_of(tmp_path / "zoo")
    assert done.added == len(found) == 2 and all("lab--one" in name or "lab--two" in name for name in found)
    alone = import_zoo(source / "models--lab--one", tmp_path / "alone", license="MIT")
    assert alone.added == 1


NOT_READ: dict[str, tuple[dict[str, bytes], str]] = {
    "torch.distributed.checkpoint": ({"step/.metadata": b"\x80\x04N.", "step/__0_0.distcp": torch_file({})}, "dcp_to_torch"),
    "deepspeed": ({"zero_pp_rank_0_mp_rank_00_model_states.pt": torch_file({})}, "zero_to_fp32.py"),
    "orbax": ({"100/_CHECKPOINT_METADATA": b"{}", "100/default/d/0123abcd": bytes(9)}, "flax.serialization.to_bytes"),
    "tensorflow": ({"checkpoint": b'model_checkpoint_path: "m"', "m-9.index": bytes(9), "m-9.data-00000-of-00001": bytes(9)}, "tf.train.load_variable"),
    "saved model": ({"saved_model.pb": bytes(9), "variables/variables.index": bytes(9)}, "tf.saved_model.load"),
    "onnx": ({"a.onnx": b"\x08\x08\x12\x07pytorch"}, "onnx.numpy_helper"),
    "ggml": ({"a.ggml": b"lmgg\x03\0\0\0"}, "safetensors files from which it was made"),
    "matlab": ({"a.mat": b"MATLAB 5.0 MAT-file"}, "scipy.io.loadmat"),
    "netcdf": ({"a.nc": b"CDF\x01\0\0\0\0"}, "xarray.open_dataset"),
    "torchscript": ({"a.pt": zip_file({"a/data/0": b"", "a/data.pkl": b"", "a/constants.pkl": b""})}, "torch.jit.load"),
    "pt2": ({"a.pt2": zip_file({"a/archive_format": b"pt2"})}, "torch.export.load"),
    "csv": ({"w.csv": b"1.5,2.5\n"}, "numpy.loadtxt"),
    "json": ({"w.json": b'{"w": [1, 2]}'}, "json.load"),
    "zstd": ({"a.pt.zst": b"\x28\xb5\x2f\xfd\0"}, "zstd -d"),
    "git-lfs": ({"a.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "git lfs pull"),
    "a page": ({"a.bin": b"<!DOCTYPE html><html>"}, "Fetch the file itself"),
    "nothing but texts": ({"README.md": b"# nets\n"}, "model.state_dict()"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_READ)
@pytest.mark.sampled(3)
def test_what_is_not_read_is_named_with_a_step_that_helps(tmp_path: Path, kind: str) -> None:
    files, step = NOT_READ[kind]
    with pytest.raises(ZooError) as caught:
        imported(placed(tmp_path / "source", files))
    assert step in str(caught.value) and "--as" not in str(caught.value), str(caught.value)
    # beside a network it is passed over with the same step, or ends the import by name
    placed(tmp_path / "source", {"net.pt": torch_file(network(0))})
    done = imported(tmp_path / "source", skip_bad=True)
    assert done.added == 1 and len(done.passed_over) + len(done.skipped) == len(files)


def test_programs_of_torch_are_named(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    placed(tmp_path / "source", {"script.pt": (tmp_path / "script.pt").read_bytes(), "net.pt": torch_file(network(0))})
    (passed,) = imported(tmp_path / "source").passed_over
    assert passed["file"] == "script.pt" and "torch.jit.load(FILE).state_dict()" in passed["reason"]


def test_one_broken_file_ends_nothing_where_it_may_be_skipped(tmp_path: Path) -> None:
    good = {f"good{number}.pt": torch_file(network(number)) for number in range(3)}
    good["config.json"] = b'{"lr": 0.1}'
    broken = {
        "a.pt": b"",
        "b.pt": bytes(range(256)) * 3,
        "c.zip": zip_file({"in.pt": torch_file(network(7))})[:-40],
        "d.pt.gz": PACKERS[".gz"](torch_file(network(8)))[:-60],
        "m-00001-of-00002.safetensors": save(network(9)),
        "m-00003-of-00002.safetensors": save(network(9)),
        "z.tgz": tar_file({"in.pt": os.urandom(20_000), "later.pt": b"x"}, "w:gz")[:-9000],
    }
    placed(tmp_path / "source", good | broken)
    done = imported(tmp_path / "source", skip_bad=True)
    assert done.added == 3 and done.passed_over == ()
    # of the archive that ends in its middle also the member there
    assert len({item["file"] for item in done.skipped}) == len(done.skipped) == len(broken) + 1
    named = " ".join(item["file"] for item in done.skipped)
    assert all(name.partition(".")[0] in named for name in broken)
    assert (tmp_path / "zoo-import-report.json").is_file()


@pytest.mark.parametrize("kind", ["unknown", "shard", "twice", "archive", "empty"])
@pytest.mark.sampled(3)
def test_what_was_read_before_an_error_is_kept_and_the_same_call_goes_on(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "BATCH_FILES", 2)
    placed(tmp_path / "source", {f"a{number}.pt": torch_file(network(number)) for number in range(5)})
    bad = {
        "unknown": {"b.pt": bytes(range(256)) * 3},
        "shard": {"b-00001-of-00002.safetensors": save(network(9))},
        "twice": {"a4.pth": torch_file(network(9))},
        "archive": {"b.zip": zip_file({"x.pt": b"x"})[:-9]},
        "empty": {"b.pt": b""},
    }[kind]
    placed(tmp_path / "source", bad | {"c.pt": torch_file(network(5))})
    with pytest.raises(ZooError):
        imported(tmp_path / "source")
    kept = rows_of(tmp_path / "zoo")
    assert {f"a{number}" for number in range(5)} <= {*kept}
    for name in bad:
        (tmp_path / "source" / name).unlink()
    done = imported(tmp_path / "source")
    assert {*rows_of(tmp_path / "zoo")} == {*(f"a{number}" for number in range(5)), "c"}
    assert done.present == len(kept)


def test_a_damaged_member_of_an_archive_is_left_out_alone(tmp_path: Path) -> None:
    nets = {f"n{number}.pt": torch_file(network(number)) for number in range(3)}
    data = bytearray(zip_file(nets))
    data[data.index(b"n1.pt") + 300] ^= 255  # in the middle of the packed bytes
    for number, source in enumerate(("a.zip", "folder/a.zip")):
        path = tmp_path / source
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        done = import_zoo(path if not number else path.parent, tmp_path / f"zoo{number}", license="MIT", skip_bad=True)
        assert done.added == 2 and len(done.skipped) == 1 and "n1.pt" in done.skipped[0]["file"], done


def test_patterns_choose_files_inside_archives_too(tmp_path: Path) -> None:
    nets = {name: torch_file(network(at)) for at, name in enumerate(("s0/best.pt", "s0/last.pt", "s1/best.pt"))}
    placed(tmp_path / "source", {"wandb/x.pt": torch_file(network(8)), "runs.zip": zip_file(nets)})
    for number, (options, expected) in enumerate(
        (
            ({"include": ["best.pt"]}, {"runs-s0-best", "runs-s1-best"}),
            ({"include": ["runs/s0"], "exclude": ["last*"]}, {"runs-s0-best"}),
            ({"exclude": ["wandb", "s1/"]}, {"runs-s0-best", "runs-s0-last"}),
            ({"exclude": ["runs.zip"]}, {"wandb-x"}),
            ({"include": ["*.zip"], "exclude": ["s1"]}, {"runs-s0-best", "runs-s0-last"}),
        )
    ):
        done = import_zoo(tmp_path / "source", tmp_path / f"zoo{number}", license="MIT", **options)
        assert {*rows_of(tmp_path / f"zoo{number}")} == expected
        assert all(item["reason"].startswith("left out by --") for item in done.passed_over) and done.passed_over
    with pytest.raises(ZooError, match=r"left out by --include.* Correct the patterns of --include and --exclude"):
        import_zoo(tmp_path / "source", tmp_path / "none", license="MIT", include=["nothing*"])


def test_patterns_choose_checkpoints_and_what_is_said_beside_them_stays(tmp_path: Path) -> None:
    files = {
        "s0/best.pt": torch_file(network(0)),
        "s0/last.pt": torch_file(network(1)),
        "s0/config.json": b'{"lr": 0.3}',
    }
    placed(tmp_path / "source", {**files, "packed.zip": zip_file(files)})
    for number, (options, expected) in enumerate(
        (({"include": ["best.pt"]}, [True] * 2), ({"include": ["*.pt"], "exclude": ["config.json"]}, [False] * 4))
    ):
        import_zoo(tmp_path / "source", tmp_path / f"zoo{number}", license="MIT", **options)
        found = ckptzoo.open(tmp_path / f"zoo{number}").metadata["extra"].to_pylist()
        assert ['"lr": 0.3' in (text or "").replace('":', '": ').replace("  ", " ") for text in found] == expected


def test_a_dry_run_says_what_each_file_is_taken_for_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "run0/checkpoint_5.pth.tar": torch_file(network(0), epoch=5),
        "run0/notes.md": b"# x\n",
        "run1.zip": zip_file({"checkpoint-7/model.safetensors": save(network(1)), "__MACOSX/._x": b"x"}),
        "m-00001-of-00001.safetensors": save(network(2)),
        "bad.pt": b"",
    }
    placed(tmp_path / "source", files)
    before = sorted(tmp_path.rglob("*"))
    command = ["import", str(tmp_path / "source"), "--to", str(tmp_path / "zoo"), "--dry-run"]
    assert run([*command, "--json"]) == 1
    plan = json.loads(capsys.readouterr().out)
    assert {item["file"]: (item["taken_for"], item["member"], item["step"]) for item in plan["files"]} == {
        "run0/checkpoint_5.pth.tar": ("a file of torch.save", "run0", 5),
        "run1/checkpoint-7/model.safetensors": ("a safetensors file", "run1", 7),
        "m.safetensors": ("shards: a safetensors file", "m", None),
    }
    assert {item["file"]: item["reason"] for item in plan["passed_over"]} == {
        "run0/notes.md": "a text",
        "run1/__MACOSX/._x": "left by a system, a notebook or an editor",
    }
    assert [item["file"] for item in plan["problems"]] == ["bad.pt"] and plan["format"] == "files"
    assert run(command) == 1
    printed = capsys.readouterr().out
    assert "3 files to read of 3 members" in printed and "cannot be read" in printed and "run0" in printed
    assert sorted(tmp_path.rglob("*")) == before
    # what is planned is what is imported
    (tmp_path / "source" / "bad.pt").unlink()
    planned = plan_import(tmp_path / "source")
    imported(tmp_path / "source")
    assert {item.id for item in planned.files} == {*rows_of(tmp_path / "zoo")} and planned.problems == []


def test_states_of_optimisers_are_counted_by_files(tmp_path: Path) -> None:
    for seed, key in enumerate(("optimizer", "optimizer_state_dict", "optim")):
        adam = {"state": {0: {"m": torch.ones(2)}}, "param_groups": [{"lr": seed}]}
        state = {"model": torch.nn.Linear(3, 2).state_dict(), key: adam}
        (tmp_path / "source").mkdir(exist_ok=True)
        torch.save(state, tmp_path / "source" / f"net{seed}.pt")
    done = import_zoo(tmp_path / "source", tmp_path / "zoo", license="MIT")
    assert done.notes == {"left out: the optimiser's state": 3}
    out = io.StringIO()
    done.print(Console(file=out, width=200))
    assert "note: left out: the optimiser's state in 3 files\n" in out.getvalue()


def test_a_dry_run_says_what_would_be_refused_and_which_facts_are_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    written(source, {"net.pth": torch_file(network(0)), "config.json": b'{"lr": 0.1}', "net.json": b'{"seed": 3}'})
    planned = plan_import(source)
    with pytest.raises(ZooError) as refused:
        import_zoo(source, tmp_path / "none")
    assert planned.refused == str(refused.value) and "licence" in planned.refused
    assert planned.facts == {"config.json": "extra.config", "net.json": "columns and extra"}
    assert plan_import(source, license="MIT").refused == ""
    imported(source)
    (row,) = ckptzoo.open(tmp_path / "zoo").metadata.to_pylist()
    assert row["seed"] == 3 and '"config":{"lr":0.1}' in row["extra"].replace(" ", "")


def test_the_work_of_a_dry_run_grows_with_the_files_alone(tmp_path: Path) -> None:
    """Counted in calls of functions, which are the same on every machine."""
    data, calls = torch_file(network(0)), []
    counts = (1, *((5000, 10_000) if ALL else (200, 400)))  # the first makes what is imported on demand
    for count in counts:
        source = placed(tmp_path / f"{count}", {f"net{number}.pth.tar": data for number in range(count)})
        with cProfile.Profile() as profile:
            assert len(plan_import(source).files) == count
        calls.append(pstats.Stats(profile).total_calls)
    assert calls[2] < 2.1 * calls[1] and calls[2] < 400 * counts[2]


def test_the_same_archive_beside_its_folder_is_refused_by_name(tmp_path: Path) -> None:
    data = torch_file(network(0))
    placed(tmp_path / "source", {"agent.zip": zip_file({"policy.pth": data}), "agent/policy.pth": data})
    with pytest.raises(ZooError, match="'agent-policy' twice"):
        imported(tmp_path / "source")
    import_zoo(tmp_path / "source", tmp_path / "one", license="MIT", exclude=["*.zip"])
    assert {*rows_of(tmp_path / "one")} == {"agent-policy"}
