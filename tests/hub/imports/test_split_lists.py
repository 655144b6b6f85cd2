"""Splits that papers publish: tables, lists for each part, orders, and what is wrong with them."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports.split_lists import _numbers, import_order, import_split  # pyright: ignore[reportPrivateUsage]

ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("w", (2,)),))
IDS = [f"run{member}-{step}" for member in range(4) for step in (0, 1, 86)]
HALVES = {"train": 0.4, "val": 0.1, "test": 0.5}


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    path = tmp_path / "zoo"
    with ckptzoo.create(path, arch=ARCH) as writer:
        rows = [
            {
                "id": id,
                "member": id.partition("-")[0],
                "step": int(id.partition("-")[2]),
                "extra": {"file": f"nets/{id}.pth"},
            }
            for id in IDS
        ]
        writer.add({"w": np.zeros((len(rows), 2), np.float32)}, rows)
    return path


def ids_of(zoo: Path, name: str, part: str) -> list[str]:
    return ckptzoo.open(zoo).split(name, part).ids


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.csv", "split,id\ntrain,run0-86\nTest,run1-86\ntrain,run2-86\n,run3-86\n"),
        ("a.csv", "\ufeffid,split,note\nrun0-86, train,\"a,\nb\"\nrun2-86,train,\nrun1-86,test,\n\n"),
        ("a.csv", "path,split\n./nets/run0-86.pth,train\n/data/x/nets/run2-86.pth,train\nnets/run1-86.pth,test\n"),
        ("a.json", '{"train": ["run2-86", "run0-86"], "test": ["run1-86"]}'),
        ("a.json", '{"train": {"path": ["nets/run0-86.pth", "d/nets/run2-86.pth"]}, "test": {"path": ["nets/run1-86.pth"]}}'),
    ],
)  # fmt: skip
def test_one_file_for_all_parts(zoo: Path, tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    import_split(zoo, "paper", tmp_path / file)
    assert ids_of(zoo, "paper", "train") == ["run0-86", "run2-86"] and ids_of(zoo, "paper", "test") == ["run1-86"]
    assert ckptzoo.verify(zoo) == []


def test_a_file_for_each_part_also_packed(zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"run0\nrun2\n\n"))
    (tmp_path / "test.json").write_text('["run1"]')
    split = import_split(zoo, "paper", {"train": tmp_path / "train.txt.gz", "test": tmp_path / "test.json"})
    assert split.by == "member" and ids_of(zoo, "paper", "test") == IDS[3:6]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("a.csv", "id,split\nrun0-0,train\nrun0-0,train\n", r"line 3: names: expected each once.*before in .*line 2"),
        ("a.csv", "id,split\nrun0-0,train\nrun0-0,test\n", r"line 3: names: expected each once"),
        ("a.csv", "id,split\nrun0-0,train\nrun0-1,test\n", r"members: expected each in one part, got 1 .*'run0'"),
        ("a.csv", "id,split\nrun9-0,train\n", r"line 2: name: expected ids of the zoo, got 'run9-0'"),
        ("a.csv", "member,split\nrun9,train\n", r"line 2: name: expected members of the zoo, got 'run9'"),
        ("a.csv", "path,split\nrun9.pth,train\n", r"line 2: name: expected paths of the zoo, got 'run9\.pth'"),
        ("a.json", '{"train": ["run0-0", "run9-0"]}', r"part 'train', item 2: name: expected ids, members or paths"),
        ("a.csv", "id\nrun0-0\n", r"line 1: expected columns split and id, member or path, got id"),
        ("a.csv", "0\n3\n1\n", r"line 1.*an order of numbers is read with import_order \(--order\)"),
        ("a.csv", "", r"line 1: expected columns split and id.*got nothing"),
        ("a.csv", "id,split\nrun0-0\n", r"line 2: fields: expected 2, got 1"),
        ("a.csv", 'id,split\n"run0-0', r"expected"),
        ("a.json", "[1, 2]", r"expected an object with a list for each part, got list"),
        ("a.json", '{"train": [1]}', r"part 'train': expected a list of names, got other items"),
        ("a.json", '{"train": 3}', r"part 'train': expected a list of names, got int"),
        ("a.json", '{"train": {"label": []}}', r"part 'train': expected a list id, member, path, file, got label"),
        ("a.json", "{" * 100_000, r"file: expected JSON"),
        ("a.json", '{"train": ["a"], "train": ["b"]}', r"file: expected JSON, got .*'train' twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(zoo: Path, tmp_path: Path, file: str, text: str, message: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(ZooError, match=message):
        import_split(zoo, "paper", tmp_path / file)
    assert not (zoo / "splits").exists()


def test_an_order_is_cut_as_nfn_cuts_it(zoo: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(len(IDS)).tolist()
    (tmp_path / "order.csv").write_text("0\n" + "\n".join(map(str, order)) + "\n")
    again = next(line for line, number in enumerate(order, start=2) if number == 0)
    with pytest.raises(ZooError, match=rf"0 twice, in lines 1 and {again}\. The first line may be a header.*--header"):
        import_order(zoo, "nfn", tmp_path / "order.csv", HALVES, where="step == 86")
    fractions = {"rest": 0.5, "test": 0.5}
    import_order(zoo, "nfn", tmp_path / "order.csv", fractions, where="step == 86", header=True)
    # data_utils.py of nfn: rows in this order, of those the last epochs, and of those the second half
    final = [IDS[number] for number in order if IDS[number].endswith("-86")]
    assert sorted(ids_of(zoo, "nfn", "test")) == sorted(final[2:]) and len(ids_of(zoo, "nfn", "rest")) == 2
    with pytest.raises(ZooError, match="members: expected each in one part"):
        import_order(zoo, "leak", tmp_path / "order.csv", HALVES, header=True)
    split = import_order(zoo, "leak", tmp_path / "order.csv", HALVES, header=True, allow_shared_members=True)
    assert split.shared_members and [len(ids_of(zoo, "leak", part)) for part in HALVES] == [4, 2, 6]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("\n".join(map(str, range(11))), {}, r"numbers: expected 12, one for each checkpoint of the zoo, got 11"),
        ("\n".join(map(str, range(1, 13))), {}, r"numbers: expected 12.*got numbers up to 12"),
        ("\n".join(map(str, range(13))), {}, r"numbers: expected 12.*got 13"),
        ("index\n0", {}, r"line 1: expected the number of a checkpoint, got 'index'\. The first line may be a header"),
        ("0\n1.5", {}, r"line 2: expected the number of a checkpoint, got '1\.5'"),
        ("0\n1\n1", {}, r"line 3: expected each checkpoint once, got 1 twice, in lines 2 and 3\. Correct the list"),
        ("\n".join(map(str, range(12))), {"fractions": {"a": 0.9, "b": 0.9}}, r"fractions: expected numbers above 0"),
    ],
)  # fmt: skip
def test_orders_that_are_none(zoo: Path, tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    (tmp_path / "order.csv").write_text(text)
    with pytest.raises(ZooError, match=message):
        import_order(zoo, "nfn", tmp_path / "order.csv", **{"fractions": HALVES, **options})


@pytest.mark.skipif("CKPTZOO_DATA" not in os.environ and not Path("../shared").is_dir(), reason="no samples")
def test_the_published_list_of_nfn_is_an_order_with_a_header() -> None:
    shared = Path(os.environ.get("CKPTZOO_DATA", "../shared/data")).parent
    file = shared / "checkpoints/import-samples/published-splits-and-statistics/nfn-mnist_split.csv.gz"
    if not file.is_file():
        pytest.skip("no samples")
    with pytest.raises(ZooError, match=r"0 twice, in lines 1 and \d+\. The first line may be a header"):
        _numbers(file, 269_973, header=False)
    assert sorted(_numbers(file, 269_973, header=True)) == list(range(269_973))


def test_the_command(zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "order.csv").write_text("\n".join(map(str, reversed(range(12)))))
    (tmp_path / "train").write_text("run0\nrun2")
    (tmp_path / "test").write_text("run1")
    address = str(zoo)
    assert run(["splits", "make", address, "main", "--fractions", "0.5", "0", "0.5", "--seed", "3", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [item["part"] for item in made["parts"]] == ["train", "test"] and made["seed"] == 3
    assert sum(item["checkpoints"] for item in made["parts"]) == 12 and made["in_no_part"]["checkpoints"] == 0
    parts = [f"--from=train={tmp_path}/train", f"--from=test={tmp_path}/test"]
    assert run(["splits", "import", address, "paper", *parts]) == 0
    assert "In no part: 3 checkpoints of 1 member." in capsys.readouterr().out
    order = ["splits", "import", address, "order", f"--order={tmp_path}/order.csv"]
    assert run(order) == 2 and "expected --fractions" in capsys.readouterr().err
    assert run([*order, "--fractions", "0.4", "0.1", "0.5", "--allow-shared-members"]) == 0
    assert "overstate what is known of others" in capsys.readouterr().out
    assert run(["splits", "import", address, "other"]) == 2
    assert run(["splits", "import", address, "other", *parts, "--header"]) == 2
    assert run(["splits", "import", address, "other", parts[0], parts[0]]) == 2
    assert run(["splits", "list", address]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["split", "main", "order", "paper"]
    assert run(["splits", "show", address, "main"]) == 0 and "by the hash of each member" in capsys.readouterr().out
    assert run(["splits", "show", address, "none"]) != 0
