"""Zoos of several architectures in one folder: found by their rows, opened when they are needed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run
from ckptzoo.errors import IntegrityError, UnknownNameError, ZooError
from ckptzoo.schema.documents import seal
from tests.support.derived_zoos import weights_of
from tests.support.serving import Served, running

NAMES = {"narrow": "mlp-4-5-3", "wide": "mlp-4-7-3"}


def add(path: Path, name: str, count: int, first: int = 0) -> None:
    arch = archs.architecture(name)
    writer = ckptzoo.append(path) if path.exists() else ckptzoo.create(path, arch=arch)
    rows = [
        {"id": f"m{at}", "test_accuracy": at / 10, "extra": json.dumps({"width": int(name.split("-")[2])})}
        for at in range(first, first + count)
    ]
    with writer:
        writer.add(weights_of(count, first, arch=arch), rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "both"
    root.mkdir()
    for folder, name in NAMES.items():
        add(root / folder, name, 4 if folder == "narrow" else 3)
    (root / "notes").mkdir()
    ckptzoo.write_collection(root)
    return root


def test_rows_of_all_zoos_are_in_one_table_and_only_those_needed_are_opened(folder: Path) -> None:
    both = ckptzoo.open_collection(folder)
    assert len(both) == 7 and [entry.folder for entry in both.entries] == ["narrow", "wide"]
    assert both.metadata["zoo"].to_pylist() == ["narrow"] * 4 + ["wide"] * 3 and "2 zoos" in repr(both)
    (folder / "narrow" / "zoo.json").unlink()  # it is not needed
    wide = both.where("extra.width == 7 and test_accuracy > 0.05")
    assert len(wide) == 2 and list(wide.zoos) == ["wide"]
    (zoo,) = wide
    assert zoo.ids == ["m1", "m2"] and zoo.arch.name == NAMES["wide"]
    assert len(both.where([True] * 2 + [False] * 5)) == 2 and len(both.where({"zoo": "wide"})) == 3
    assert len(both.where("test_accuracy > 5")) == 0 and not both.where("test_accuracy > 5").zoos
    with pytest.warns(UserWarning, match="both: column 'epoch': empty in all 7 checkpoints") as warned:
        assert len(both.where("epoch < 5")) == 0
    assert warned[0].filename == __file__
    with pytest.raises(IntegrityError, match="Write the collection again"):
        both.zoos["narrow"]
    with pytest.raises(UnknownNameError):
        both.where("nothing == 1")
    with pytest.raises(UnknownNameError):
        both.zoos["none"]


def test_zoos_are_as_they_were_until_it_is_written_again(folder: Path) -> None:
    add(folder / "wide", NAMES["wide"], 2, first=3)
    both = ckptzoo.open_collection(folder)
    with pytest.warns(UserWarning, match=r"both/wide: the zoo has changed.*ckptzoo collection FOLDER"):
        assert len(both) == 7 and len(both.zoos["wide"]) == 3
    assert len(both.zoos["narrow"]) == 4
    ckptzoo.write_collection(folder)
    assert len(ckptzoo.open_collection(folder)) == 9


def test_equal_zoos_give_equal_bytes_and_retracted_rows_are_left_out(folder: Path) -> None:
    files = [folder / "collection.json", folder / "collection.parquet"]
    before = [path.read_bytes() for path in files]
    ckptzoo.write_collection(folder)
    assert [path.read_bytes() for path in files] == before
    ckptzoo.retract(folder / "narrow", ["m0"], reason="made by mistake")
    with pytest.warns(UserWarning, match="retracted"):
        ckptzoo.write_collection(folder)
        both = ckptzoo.open_collection(folder)
        assert len(both) == 6 and len(both.zoos["narrow"]) == 3


def test_what_is_damaged_or_of_two_writings_is_refused(folder: Path, tmp_path: Path) -> None:
    document, table = folder / "collection.json", folder / "collection.parquet"
    good, rows = document.read_bytes(), table.read_bytes()
    add(folder / "wide", NAMES["wide"], 2, first=3)
    ckptzoo.write_collection(folder)
    document.write_bytes(good)
    with pytest.raises(IntegrityError, match="Write the collection again"):
        ckptzoo.open_collection(folder)
    table.write_bytes(rows)
    assert len(ckptzoo.open_collection(folder)) == 7
    content = json.loads(good)
    content.pop("digest")
    for change, words in (
        ({"kind": "zoo"}, "format and kind"), ({"version": 9}, "Upgrade ckptzoo"), ({"zoos": []}, "one or more"),
        ({"zoos": [{**content["zoos"][0], "folder": "../narrow"}]}, "names of folders"),
        ({"zoos": content["zoos"][:1] * 2}, "each once"), ({"zoos": content["zoos"][:1]}, "rows"),
        ({"zoos": [{"folder": "x"}]}, "zoo"),
    ):  # fmt: skip
        document.write_bytes(seal({**content, **change}))
        with pytest.raises(IntegrityError, match=words):
            ckptzoo.open_collection(folder)
    document.write_bytes(good[:-3] + b"x}\n")
    with pytest.raises(IntegrityError):
        ckptzoo.open_collection(folder)
    with pytest.raises(IntegrityError, match="Write one with ckptzoo collection"):
        ckptzoo.open_collection(folder / "wide")
    with pytest.raises(IntegrityError, match=r"ckptzoo\.open_collection"):
        ckptzoo.open(folder)
    with pytest.raises(ZooError, match="folders with a zoo"):
        ckptzoo.write_collection(tmp_path / "none")


def test_what_could_not_be_read_is_not_written(folder: Path) -> None:
    before = (folder / "collection.json").read_bytes()
    add(folder / "back\\slash", NAMES["narrow"], 1)
    with pytest.raises(ZooError, match=r"slash.*Give the folder another name"):
        ckptzoo.write_collection(folder)
    assert (folder / "collection.json").read_bytes() == before and len(ckptzoo.open_collection(folder)) == 7


def test_the_command_writes_and_lists_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "collection.json").unlink()
    assert run(["collection", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "narrow" in out and "wide" in out
    assert run(["collection", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoints"] == 7 and [zoo["checkpoints"] for zoo in found["zoos"]] == [4, 3]
    both = ckptzoo.open_collection(folder)
    assert np.array_equal(both.zoos["wide"]["fc1.bias"][:], ckptzoo.open(folder / "wide")["fc1.bias"][:])


def test_verify_checks_the_zoos_and_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def found() -> list[tuple[str, str]]:
        return [(item.location, item.what) for item in ckptzoo.verify_collection(folder)]

    assert found() == [] and run(["verify", str(folder)]) == 0 and "no problem found" in capsys.readouterr().out
    (shard,) = (folder / "wide").rglob("raw-*.safetensors")
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert {what[:6] for _, what in found()} == {"sha256"} and all(at.startswith("both/wide/") for at, _ in found())
    assert run(["verify", str(folder)]) == 1
    shard.write_bytes(data)
    add(folder / "wide", NAMES["wide"], 1, first=3)
    assert found() == [("both/wide", "revision in the collection")]
    ckptzoo.write_collection(folder)
    assert found() == []
    add(folder / "third", NAMES["wide"], 1)
    assert found() == [("both/collection.json", "zoos")]
    ckptzoo.write_collection(folder)
    file = folder / "collection.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert found()[0][0] == "both/collection.parquet"


KILLED = """
import os, signal, sys
from pathlib import Path
import ckptzoo
replace, left = Path.replace, [int(sys.argv[2])]
def replaced(self, target):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    replace(self, target)
Path.replace = replaced
ckptzoo.write_collection(sys.argv[1])
"""


@pytest.mark.parametrize("files", [0, 1])
def test_a_kill_leaves_the_old_collection_or_one_that_says_that_it_is_torn(folder: Path, files: int) -> None:
    before = ckptzoo.open_collection(folder).metadata
    add(folder / "wide", NAMES["wide"], 2, first=3)
    ended = subprocess.run([sys.executable, "-c", KILLED, folder, str(files)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    if files == 0:
        assert ckptzoo.open_collection(folder).metadata.equals(before)
    else:
        with pytest.raises(IntegrityError, match="Write the collection again with ckptzoo collection"):
            ckptzoo.open_collection(folder)
    ckptzoo.write_collection(folder)
    assert len(ckptzoo.open_collection(folder)) == 9 and ckptzoo.verify_collection(folder) == []


@pytest.mark.exhaustive
def test_behind_a_web_server(folder: Path, tmp_path: Path) -> None:
    for name in NAMES:
        ckptzoo.compact(folder / name)
    files = {f"/pub/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in folder.rglob("*.*")}
    with running(Served(files)) as served:
        both = ckptzoo.open_collection(f"{served.url}/pub")
        assert both.metadata.equals(ckptzoo.open_collection(folder).metadata)
        (wide,) = both.where("zoo == 'wide'")
        assert np.array_equal(wide["fc1.bias"][:], ckptzoo.open(folder / "wide")["fc1.bias"][:])


def test_rows_with_nan_are_those_of_the_zoo(tmp_path: Path) -> None:
    arch = archs.architecture(NAMES["narrow"])
    with ckptzoo.create(tmp_path / "a", arch=arch) as writer:
        writer.add(weights_of(2, 0, arch=arch), [{"id": "a", "train_loss": float("nan")}, {"id": "b"}])
    ckptzoo.compact(tmp_path / "a")
    ckptzoo.write_collection(tmp_path)
    assert ckptzoo.verify_collection(tmp_path) == []
