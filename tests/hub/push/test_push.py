"""Publishing to a real server: what is uploaded, what stays, and who can read it."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import HubError
from ckptzoo.hub.client import Client
from ckptzoo.hub.push import Planned, plan
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_clients import END, run_client
from tests.support.hub_zoos import ARCH, assert_same_except_generated, downloaded, files_of, grown, pushed, zoo_of

Make = Callable[..., Path]


def planned_push(server: Hosted, zoo: Path) -> Planned:
    return plan(zoo, ZOO, endpoint=server.url, token=server.tokens["write"])


def test_a_first_push_then_added_parts_then_nothing(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo("zoo", (3, 2))
    reports: list[tuple[int, int]] = []
    first = pushed(server, zoo, progress=lambda done, total: reports.append((done, total)))
    assert first.created and len(first.commits) == 1 and len(first.parts) == 2 and first.already == 0
    assert first.sent == first.nbytes == reports[-1][0] == reports[-1][1]
    assert {"zoo.json", "architecture.json", "symmetry.json", "README.md"} < set(first.documents)
    assert_same_except_generated(zoo, downloaded(server, tmp_path))
    grown(zoo, (4,), start=2)
    sent = server.request_log.count("upload")
    second = pushed(server, zoo)
    assert not second.created and len(second.commits) == 1 and len(second.parts) == 1 and second.already == 2
    assert server.request_log.count("upload") - sent == 4  # two tables, a shard, a snapshot
    down = downloaded(server, tmp_path)
    assert_same_except_generated(zoo, down)
    assert ckptzoo.verify(down) == [] and len(list((down / "snapshots").iterdir())) == 1
    before, entries = files_of(zoo), len(server.request_log.entries)
    third = pushed(server, zoo)
    assert (third.commits, third.parts, third.already, third.documents, third.sent) == ((), (), 3, (), 0)
    assert [entry.operation for entry in server.request_log.entries[entries:]] == ["info"] and files_of(zoo) == before


def test_the_snapshot_is_the_one_that_compact_would_make(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    pushed(server, zoo)
    ckptzoo.compact(zoo)
    down = downloaded(server, tmp_path)
    assert [p.read_bytes() for p in (down / "snapshots").iterdir()] == [
        p.read_bytes() for p in (zoo / "snapshots").iterdir()
    ]


def test_without_a_snapshot(server: Hosted, make_zoo: Make) -> None:
    pushed(server, make_zoo(), snapshot=False)
    assert not [name for name in Client(server.url).files(ZOO) if name.startswith("snapshots/")]


def test_variants_tombstones_and_late_tables_come_along(server: Hosted, tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    ckptzoo.create(zoo, arch=ARCH)
    grown(zoo, (3, 2))
    pushed(server, zoo)
    (zoo / "symmetry.json").write_bytes(files_of(zoo_of(tmp_path / "other"))["symmetry.json"])
    derive(zoo, gauge="canonical", certify="none")
    ckptzoo.retract(zoo, ["m0-1"], reason="a test")
    found = pushed(server, zoo)
    assert "symmetry.json" in found.documents and found.already == 2
    trees = [name.rpartition("/")[0] for name in found.parts]
    assert sorted(trees) == ["derived/canonical", "derived/canonical", "derived/retracted"]
    down = downloaded(server, tmp_path)
    assert_same_except_generated(zoo, down)
    assert ckptzoo.verify(down) == []


def test_a_zoo_without_parts_is_a_beginning(server: Hosted, tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    ckptzoo.create(zoo, arch=ARCH)
    first = pushed(server, zoo)
    assert len(first.commits) == 1 and first.parts == () and "zoo.json" in first.documents
    assert pushed(server, grown(zoo, (2,))).already == 0
    assert ckptzoo.verify(downloaded(server, tmp_path)) == []


def test_a_new_card_is_a_commit_of_its_own(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    pushed(server, zoo)
    card = (zoo / "card.toml").read_bytes() + b'notes = "More words."\n'
    (zoo / "card.toml").write_bytes(card)
    found = pushed(server, zoo, message="Better words")
    assert found.documents == ("card.toml", "README.md", "croissant.json") and found.parts == ()
    down = downloaded(server, tmp_path)
    page, described = ((down / name).read_bytes() for name in ("README.md", "croissant.json"))
    assert found.sent == found.nbytes == len(card) + len(page) + len(described) and b"More words." in page
    assert server.api().list_repo_commits(ZOO, repo_type="dataset")[0].title == "Better words"


def test_a_plan_changes_nothing(server: Hosted, make_zoo: Make, capsys: pytest.CaptureFixture[str]) -> None:
    zoo = make_zoo()
    found = planned_push(server, zoo)
    assert found.creates and len(found.parts) == 2 and found.commits == 1
    assert Client(server.url).find(ZOO) is None
    done = pushed(server, zoo)
    assert (done.parts, done.documents, done.nbytes) == (found.parts, found.documents, found.nbytes)
    assert planned_push(server, zoo).commits == 0
    found.print()
    done.print()
    planned_push(server, zoo).print()
    out = capsys.readouterr().out
    assert "2 parts to upload in a new repository" in out and "2 parts uploaded, 0 there already" in out
    assert "nothing to do, 2 parts there already" in out and "nothing was sent" in out
    assert json.loads(json.dumps(done.to_json()))["created"] is True and json.dumps(found.to_json())


def test_parts_of_others_stay_and_are_in_the_snapshot(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    """Two people add the third part at once: both are there, in the order of their names."""
    mine = make_zoo("mine", (3, 2))
    pushed(server, mine)
    theirs = Path(shutil.copytree(mine, tmp_path / "theirs"))
    grown(theirs, (2,), start=2, label="t")
    grown(mine, (4, 1), start=2)
    pushed(server, theirs)
    found = pushed(server, mine)
    assert len(found.parts) == 2 and found.already == 2
    down = downloaded(server, tmp_path)
    assert ckptzoo.verify(down) == []
    opened = ckptzoo.open(down)
    assert len(opened) == 12 and opened.contents.snapshot is not None
    assert sorted(opened.ids) == sorted([*ckptzoo.open(mine).ids, "t2-0", "t2-1"])
    assert len(list((down / "parts").glob("000003-*"))) == 2
    assert sum(map(len, opened.contents.snapshot.parts.values())) == 5  # a prefix of every tree, so it is used
    again = pushed(server, theirs)
    assert again.commits == () and again.already == 3


def test_a_part_that_is_there_under_another_number_is_not_sent_again(
    server: Hosted, make_zoo: Make, tmp_path: Path
) -> None:
    zoo = make_zoo("zoo", (3, 2))
    pushed(server, zoo)
    grown(zoo, (2,), start=2)
    copy = Path(shutil.copytree(zoo, tmp_path / "copy"))
    (part,) = (copy / "parts").glob("000003-*")
    part.rename(part.with_name(part.name.replace("000003", "000007")))
    pushed(server, copy)
    found = pushed(server, zoo)
    assert found.commits == () and found.already == 3


def test_private_repositories_stay_so(server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    pushed(server, zoo, private=True)
    assert Client(server.url).find(ZOO) is None
    grown(zoo, (1,), start=2)
    assert len(pushed(server, zoo).parts) == 1 and Client(server.url).find(ZOO) is None


OPENED = "import ckptzoo, sys; print(ckptzoo.open('hf://datasets/lab/zoo', endpoint=sys.argv[1])['fc.weight'].shape)"
LOADED = """
import json
from datasets import load_dataset
print(json.dumps([list(load_dataset("lab/zoo", "metadata", split="train", streaming=s)["id"]) for s in (False, True)]))
"""


@pytest.mark.exhaustive
def test_what_was_pushed_opens_in_few_requests(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo("zoo", (3, 2))
    pushed(server, zoo)
    before = len(server.request_log.entries)
    assert run_client(server, tmp_path / "home", sys.executable, "-c", OPENED, server.url, role=None).strip() == str(
        (5, *np.shape(ckptzoo.open(zoo)["fc.weight"])[1:])
    )
    requests = server.request_log.entries[before:]
    opening = [entry for entry in requests if "raw-00" not in entry.path and entry.operation != "blob"]
    assert len(opening) <= 6 and sum(entry.sent for entry in requests) < 200_000


@pytest.mark.exhaustive
def test_load_dataset_reads_the_metadata(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    zoo = make_zoo("zoo", (3, 2))
    pushed(server, zoo)
    ids = ckptzoo.open(zoo).ids
    assert json.loads(run_client(server, tmp_path / "home", sys.executable, "-c", LOADED + END, role=None)) == [
        ids,
        ids,
    ]


def test_splits_go_along_and_none_is_replaced(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo("zoo", (3, 2))
    ckptzoo.make_split(zoo, "main", {"train": 0.5, "test": 0.5})
    assert "splits/main.json" in pushed(server, zoo).documents
    down = downloaded(server, tmp_path)
    assert_same_except_generated(zoo, down)
    assert ckptzoo.open(down).split("main", "train").ids == ckptzoo.open(zoo).split("main", "train").ids
    ckptzoo.write_split(zoo, "paper", {"train": ["m0-0"], "test": ["m1-0"]})
    second = pushed(server, zoo)
    assert set(second.documents) == {"splits/paper.json", "README.md"} and pushed(server, zoo).commits == ()
    assert b"| splits | `main`, `paper` |" in (downloaded(server, tmp_path) / "README.md").read_bytes()
    (zoo / "splits" / "main.json").unlink()
    ckptzoo.make_split(zoo, "main", {"train": 0.5, "test": 0.5}, seed=1)
    with pytest.raises(HubError, match=r"splits/main\.json: expected digest .*documents of a zoo are never replaced"):
        pushed(server, zoo)
