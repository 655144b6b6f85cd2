"""An import that is killed goes on, several architectures become several zoos, and what is bad is named or left out."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import Options, import_zoo
from ckptzoo.hub.imports import run as running
from ckptzoo.hub.imports.run import report_path
from ckptzoo.hub.imports.tables import read_by_path
from ckptzoo.hub.imports.target import Declaration, TargetZoos
from tests.support.effort import ALL
from tests.support.published_zoos import files, network, packed, ray_tune, save, small_cnn, table

ROOT = Path(__file__).parents[3]
IMPORT = """
import sys
sys.path[:0] = [{root!r}]
from ckptzoo.hub.imports import run, target
run.BATCH_FILES, target.PART_SECONDS = 4, 0
from ckptzoo.errors import ZooError
print("started", flush=True)
run.import_zoo({source!r}, {to!r}, license="MIT", progress=lambda done, total: print(done, flush=True))
"""


def many(folder: Path, count: int = 40) -> Path:
    """Networks of two widths, in turn from the middle on."""
    for number in range(count):
        wide = number > count // 2 and number % 2
        save_file(network(number, width=6 if wide else 5), (folder / f"n{number:03d}.safetensors"))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    paths = [folder] if (folder / "zoo.json").is_file() else sorted(item for item in folder.iterdir() if item.is_dir())
    for path in paths:
        assert ckptzoo.verify(path) == []
        zoo = ckptzoo.open(path)
        for number, name in enumerate(zoo.ids):
            assert name not in found
            found[name] = b"".join(zoo[tensor][number].tobytes() for tensor in sorted(zoo.arch.names))
    return found


@pytest.mark.parametrize("suffix", [pytest.param("", marks=pytest.mark.exhaustive), ".tgz"])
def test_killed_anywhere_and_called_again_it_ends_with_the_same_checkpoints(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "nets").mkdir()
    source = many(tmp_path / "nets")
    import_zoo(source, tmp_path / "whole", license="MIT")
    expected = contents(tmp_path / "whole")
    source = packed(source, tmp_path / f"nets{suffix}") if suffix else source
    code = IMPORT.format(root=str(ROOT), source=str(source), to=str(tmp_path / "zoo"))
    for lines in (1, 9, 17, 25, 30) if ALL else (17,):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            for _ in range(lines):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "zoo") == expected


@pytest.mark.parametrize("moved", [False, True])
def test_making_room_for_a_second_architecture_can_be_killed(tmp_path: Path, moved: bool) -> None:
    (tmp_path / "nets").mkdir()
    import_zoo(many(tmp_path / "nets", 4), tmp_path / "zoo", license="MIT")
    before = contents(tmp_path / "zoo")
    beside = tmp_path / ".zoo.several"
    beside.mkdir()
    if moved:
        for item in sorted((tmp_path / "zoo").iterdir()):
            item.rename(beside / item.name)
        (tmp_path / "zoo").rmdir()
    TargetZoos(tmp_path / "zoo", Declaration("zoo"), by_order=False)
    assert not beside.exists() and contents(tmp_path / "zoo") == before


def test_a_zoo_that_becomes_a_folder_of_zoos_is_named(tmp_path: Path) -> None:
    for name, shape in (("one", 2), ("two", 3)):
        (tmp_path / name).mkdir()
        save(tmp_path / name / "net.pt", {"w": np.ones(shape, np.float32)})
    assert not import_zoo(tmp_path / "one", tmp_path / "zoo", license="MIT").notes
    result = import_zoo(tmp_path / "two", tmp_path / "zoo", license="MIT")
    (first,) = (name for name, added in result.zoos.items() if not added)
    said = f"{tmp_path / 'zoo'} was a zoo and is a folder of zoos now: what it held is in {tmp_path / 'zoo' / first}"
    assert said in result.notes and len(ckptzoo.open(tmp_path / "zoo" / first)) == 1


def test_members_that_differ_in_a_fact_go_to_zoos_of_their_own(tmp_path: Path) -> None:
    ray_tune(tmp_path / "ray")
    result = import_zoo(tmp_path / "ray", tmp_path / "zoo", split_by="extra.model.dropout")
    assert result.zoos == {"dropout-0.0": 3, "dropout-0.5": 3}
    both = ckptzoo.open_collection(tmp_path / "zoo")
    assert len(both) == 6 and list(both.where("extra.model.dropout > 0.1").zoos) == ["dropout-0.5"]
    with pytest.raises(ZooError, match=r"--split-by extra\.none: expected a value, got none"):
        import_zoo(tmp_path / "ray", tmp_path / "other", split_by="extra.none")


def test_what_was_read_before_a_bad_file_is_kept_and_skipping_leaves_it_out(tmp_path: Path) -> None:
    expected = files(tmp_path / "published")
    (tmp_path / "published" / "b.pt").write_bytes(b"\x80\x02X")
    save(tmp_path / "published" / "d.pt", {"w": np.ones(2, np.complex64)})
    with pytest.raises(ZooError, match=r"b\.pt: pickle: expected a whole pickle"):
        import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    assert set(contents(tmp_path / "zoo")) == {"a"}
    result = import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT", skip_bad=True)
    assert set(contents(tmp_path / "zoo")) == set(expected)
    assert [item["file"] for item in result.skipped] == ["b.pt", "d.pt"] and result.present == 1
    report = json.loads(report_path(tmp_path / "zoo").read_text())
    assert [item["file"] for item in report["skipped"]] == ["b.pt", "d.pt"] and report["added"] == 3


def test_scalars_of_a_file_become_columns_without_what_is_private(tmp_path: Path) -> None:
    settings = {"optim": {"lr": 0.1}, "data_dir": "/home/somebody/data", "hostname": "n1", "name": "x"}
    save(tmp_path / "published" / "a.pt", {"model": network(0), "epoch": 3, "test_acc": 0.5, "args": settings})
    import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    (row,) = ckptzoo.open(tmp_path / "zoo").metadata.to_pylist()
    assert (row["epoch"], row["claimed_test_accuracy"]) == (3.0, 0.5)
    assert json.loads(row["extra"]) == {"args": {"name": "x", "optim": {"lr": 0.1}}, "file": "a.pt"}


def test_one_network_several_times_is_reported(tmp_path: Path) -> None:
    save(tmp_path / "published" / "list.pt", [network(1), network(2), network(1), network(1)])
    result = import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    assert result.repeated == {"list/0": ("list/2", "list/3")} and result.added == 4


def test_weights_that_are_not_finite_are_kept_and_marked(tmp_path: Path) -> None:
    state = network(0)
    state["0.bias"][1] = np.nan
    save(tmp_path / "published" / "a.pt", state)
    import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.metadata["finite"].to_pylist() == [False] and np.isnan(zoo["0.bias"][0, 1])


def test_a_named_network_gives_names_and_symmetries(tmp_path: Path) -> None:
    save(tmp_path / "published" / "a.pt", network(0))
    with pytest.raises(ZooError, match="names of the tensors"):
        import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT", arch="mlp-4-5-3")
    import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT", arch="mlp-4-5-3", names="order")
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.arch.names == ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias") and zoo.symmetry is not None
    assert np.array_equal(zoo["fc2.weight"][0], network(0)["2.weight"])
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))\n"
    )
    module = f"{tmp_path / 'net.py'}:make"
    import_zoo(tmp_path / "published", tmp_path / "own", license="MIT", module=module, input_shape=[4])
    table_ = ckptzoo.open(tmp_path / "own").symmetry
    assert table_ is not None and [(group.n, group.scale) for group in table_.groups] == [(5, "positive")]
    (tmp_path / "tanh.py").write_text((tmp_path / "net.py").read_text().replace("ReLU", "Tanh"))
    modules = [module, f"{tmp_path / 'tanh.py'}:make"]
    import_zoo(tmp_path / "published", tmp_path / "both", license="MIT", module=modules, input_shape=[4])
    table_ = ckptzoo.open(tmp_path / "both").symmetry
    assert table_ is not None and [(group.n, group.scale) for group in table_.groups] == [(5, "none")]


def test_means_and_deviations_become_a_gaussian(tmp_path: Path) -> None:
    state = network(0)
    save(tmp_path / "pyro" / "a.pt", _pyro(state))
    save(tmp_path / "swag" / "a.pt", [{"loc": state, "scale": {n: abs(v) for n, v in network(1).items()}}] * 2)
    import_zoo(tmp_path / "pyro", tmp_path / "zoo", license="MIT", arch="mlp-4-5-3", names="order")
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.arch.forward == "gaussian-mlp-4-5-3" and np.allclose(zoo["fc1.weight_std"][0], np.exp(state["0.weight"]))
    plain = {f"{n}.{end}": v for n, v in state.items() for end in ("loc", "scale")}
    save(tmp_path / "negative" / "a.pt", plain)
    refused(tmp_path / "negative", "expected standard deviations above 0")
    import_zoo(tmp_path / "swag", tmp_path / "two", license="MIT")
    zoo = ckptzoo.open(tmp_path / "two")
    assert zoo.arch.name == "gaussian-two" and zoo.ids == ["a/0", "a/1"]
    assert np.array_equal(zoo["2.bias_std"][1], abs(network(1)["2.bias"]))


def _pyro(state: dict[str, np.ndarray]) -> dict[str, object]:
    """As ``pyro.get_param_store().save``: scales before their constraint is applied."""
    from torch.distributions import constraints

    bounds = {"loc": constraints.real, "scale": constraints.positive}
    names = [(f"guide.{name}.{end}", value, bounds[end]) for name, value in state.items() for end in bounds]
    return {
        "params": {name: value for name, value, _ in names},
        "constraints": {name: bound for name, _, bound in names},
    }


def test_exported_files_come_back_bit_for_bit(tmp_path: Path) -> None:
    files(tmp_path / "published")
    import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    zoo = ckptzoo.open(tmp_path / "zoo")
    out = tmp_path / "exported"
    out.mkdir()
    for number, name in enumerate(zoo.ids):
        save_file(
            {tensor: zoo[tensor][number].copy() for tensor in zoo.arch.names},
            out / f"{name.replace('/', '-')}.safetensors",
        )
    import_zoo(out, tmp_path / "again", license="MIT")
    first, second = contents(tmp_path / "zoo"), contents(tmp_path / "again")
    assert {name.replace("/", "-"): data for name, data in first.items()} == second


def test_batches_of_any_size_give_the_same_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets").mkdir()
    many(tmp_path / "nets", 12)
    import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    for size in (1, 5):
        monkeypatch.setattr(running, "BATCH_FILES", size)
        import_zoo(tmp_path / "nets", tmp_path / f"zoo{size}", license="MIT")
        for path in sorted(item for item in (tmp_path / "zoo").iterdir() if item.is_dir()):
            other = tmp_path / f"zoo{size}" / path.name
            assert ckptzoo.open(path).metadata.drop(["source"]).equals(ckptzoo.open(other).metadata.drop(["source"]))
        assert contents(tmp_path / f"zoo{size}") == contents(tmp_path / "zoo")


def refused(folder: Path, words: str, to: str = "zoo", **more: object) -> None:
    with pytest.raises(ZooError) as caught:
        import_zoo(folder, folder.parent / to, license="MIT", **more)  # pyright: ignore[reportArgumentType]
    assert words in str(caught.value), str(caught.value)


def test_what_a_person_says_wrong_is_named(tmp_path: Path) -> None:
    files(tmp_path / "published")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("x")
    refused(tmp_path / "published", "expected no folder, an empty one or a zoo", to="other")
    import_zoo(tmp_path / "published", tmp_path / "done" / "zoo", license="MIT")
    refused(tmp_path / "done", "expected checkpoints of others, got a zoo")
    refused(tmp_path / "none", "expected a folder or a file, got nothing")
    refused(tmp_path / "other", "networks: expected at least one, got note.txt: a text")
    refused(tmp_path / "published", "expected auto, safetensors-archive", adapter="keras")
    with pytest.raises(ZooError, match="licence: expected one, got none"):
        import_zoo(tmp_path / "published", tmp_path / "zoo")
    table(tmp_path / "few.csv", [{"path": "a.pt", "lr": 1}])
    table(tmp_path / "many.csv", [{"path": p, "lr": 1} for p in ("a.pt", "deep/b.pth", "c.npz", "d.pt")])
    for name, words in (
        ("few", "row of --metadata: expected one for every file"),
        ("many", "files of the source, got 1 others"),
    ):
        rows = read_by_path((tmp_path / f"{name}.csv").read_bytes(), name)
        refused(tmp_path / "published", words, to=f"zoo-{name}", options=Options(metadata=rows))
    refused(
        tmp_path / "published",
        "expected {stem}, {name}, {parent}, {path}, got {nothing}",
        options=Options(id_pattern="{nothing}"),
    )


def test_tables_of_ray_that_are_missing_or_torn(tmp_path: Path) -> None:
    ray_tune(tmp_path / "published", members=1)
    (result,) = (tmp_path / "published").rglob("result.json")
    text = result.read_text()
    for cut, words in (
        (text[:-30], "line 3: file: expected JSON"),
        ("{}\n", "training_iteration: expected an integer"),
        (None, "no such file"),
    ):
        result.unlink() if cut is None else result.write_text(cut)
        refused(tmp_path / "published", words)
    result.write_text(text.replace('"test_acc": 0.1', '"test_acc": 55.0'))
    refused(tmp_path / "published", "expected a fraction from 0 to 1, got 55")
    import_zoo(tmp_path / "published", tmp_path / "percent", options=Options(percent=True))
    assert ckptzoo.open(tmp_path / "percent").metadata["claimed_test_accuracy"].to_pylist()[0] == 0.55


def test_layouts_that_do_not_fit(tmp_path: Path) -> None:
    small_cnn(tmp_path / "published")
    layout = tmp_path / "published" / "mnist" / "layout.csv"
    text = layout.read_text()
    for old, new, words in (
        ("2,20", "3,21", "expected 2, got 3: a gap"),
        ("2,20", "1,19", "expected 2, got 1: an overlap"),
        ("(3, 3, 1, 2)", "(3, 3, 1, 9)", "expected 81, got 18"),
        ("(3, 3, 1, 2)", "__import__('os').system('true')", "a name, two positions and a shape"),
        ("sequential/dense", "sequential/conv2d", "each once"),
    ):
        assert old in text
        layout.write_text(text.replace(old, new))
        refused(tmp_path / "published", words)
    layout.write_text(text)
    metrics = tmp_path / "published" / "mnist" / "metrics.csv.gz"
    data = metrics.read_bytes()
    metrics.write_bytes(data[:-20])
    refused(tmp_path / "published", "gzip: expected bytes as they were packed")
    metrics.write_bytes(data)
    np.save(layout.with_name("weights.npy"), np.ones((3, 28), np.float32))
    refused(tmp_path / "published", "rows: expected 3, as many as")
    np.save(layout.with_name("weights.npy"), np.array([{}], dtype=object), allow_pickle=True)
    refused(tmp_path / "published", "a matrix of floats by rows")
