"""Listings that lie: names that lead elsewhere, sizes and digests that are none, pages without end."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.pull import pull
from ckptzoo.schema.documents import seal
from tests.faults.counts import COUNTS
from tests.faults.evil import API, COMMIT, REPO, Asked, Evil, plain, running
from tests.support.hub_zoos import files_of

pytestmark = pytest.mark.usefixtures("hurried")

NAMES = {
    "above": "../x",
    "far above": "a/../../../../../../tmp/ckptzoo-evil",
    "absolute": "/tmp/ckptzoo-evil",
    "drive": "C:\\x",
    "backslashes": "..\\..\\x",
    "NUL": "a\0b",
    "newline": "parts/a\nb",
    "terminal": "a\x1b[2Jb",
    "empty": "",
    "empty piece": "parts//x",
    "dot": "./zoo.json",
    "here": "parts/.",
    "slash behind": "parts/",
    "long": "x" * 10_000,
    "long piece": "parts/" + "x" * 300,
    "half a letter": "a\ud800b",
    "twice": "zoo.json",
    "a file for a folder": "parts",
    "our own folder": ".ckptzoo-pull/asked.json",
    "hidden": ".ssh/authorized_keys",
    "in a part": "parts/000001-00000000/../../../x",
}
SIZES: dict[str, Any] = {
    "negative": -1,
    "huge": 10**18,
    "beyond integers": 10**400,
    "infinite": float("inf"),
    "not a number": float("nan"),
    "text": "many",
    "nothing": None,
    "true": True,
    "list": [1],
}
DIGESTS: dict[str, Any] = {
    "path": "../../../../tmp/ckptzoo-evil",
    "short": "abc",
    "empty": "",
    "number": 7,
    "long": "0" * 10_000,
    "another": "0" * 64,
}


@pytest.fixture
def evil(tiny: Path) -> Iterator[Evil]:
    with running(Evil(files_of(tiny))) as hub:
        yield hub


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Path]:
    """The folder to pull into; nothing may appear beside it, in the working folder or where names above lead to."""
    room = tmp_path / "room"
    room.mkdir()
    yield room / "zoo"
    assert {path.name for path in room.iterdir()} <= {"zoo"}
    assert {path.name for path in tmp_path.iterdir()} <= {"room", "cache", "hf"}
    assert not Path("/tmp/ckptzoo-evil").exists() and not Path("x").exists()


def refused_or_harmless(evil: Evil, target: Path, what: str) -> None:
    """Opening and pulling raise errors of ours, or give the zoo as it is; nothing comes to lie elsewhere."""
    COUNTS.inputs[what] += 1
    for act in (lambda: ckptzoo.open(REPO, endpoint=evil.url).ids, lambda: pull(REPO, target, endpoint=evil.url)):
        try:
            act()
        except (ZooError, OSError) as error:
            text = str(error)
            assert "expected" in text and "got" in text and text.replace("\n", "").isprintable(), repr(text)
            assert isinstance(error, ZooError) or "room on the disk" in text
    if (target / "zoo.json").exists():
        assert ckptzoo.verify(target, deep=True) == []
    written = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert {name for name in written if not name.startswith(".ckptzoo-pull/")} <= set(evil.files)


@pytest.mark.parametrize("name", NAMES)
def test_names(evil: Evil, around: Path, name: str) -> None:
    added = {"rfilename": NAMES[name], "size": 3, "blobId": "0" * 40}
    evil.siblings = [*evil.listing(), added]
    refused_or_harmless(evil, around, "names in listings of a hub")
    assert not [asked for asked in evil.asked if "evil/resolve" in asked.path and asked.path.endswith("/x")]


@pytest.mark.parametrize("name", NAMES)
def test_names_in_listings_of_web_servers(evil: Evil, around: Path, name: str) -> None:
    facts = {item["rfilename"]: [item["size"], None] for item in evil.listing()}
    try:
        data = seal({"version": 1, "files": {**facts, NAMES[name]: [3, None]}})
    except (ZooError, UnicodeEncodeError):
        data = json.dumps({"version": 1, "files": {**facts, NAMES[name]: [3, None]}}).encode()
    evil.says = lambda asked: plain(data) if asked.path == "/listing.json" else None
    COUNTS.inputs["names in listings of web servers"] += 1
    try:
        ckptzoo.open(evil.url)
    except ZooError as error:
        assert "expected" in str(error) and str(error).replace("\n", "").isprintable()
    assert {asked.path for asked in evil.asked} <= {"/listing.json", "/zoo.json", "/architecture.json"}


@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_sizes(evil: Evil, around: Path, size: str, pages: bool) -> None:
    shard = next(name for name in evil.files if name.endswith(".safetensors"))
    items = evil.listing()
    next(item for item in items if item["rfilename"] == shard)["size"] = SIZES[size]
    if pages:
        tree(evil, items)
    else:
        evil.siblings = items
    refused_or_harmless(evil, around, "sizes in listings")


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("digest", DIGESTS)
def test_digests(evil: Evil, around: Path, digest: str, large: bool) -> None:
    items = evil.listing()
    for item in items:
        if large:
            item["lfs"] = {"sha256": DIGESTS[digest], "size": item["size"], "pointerSize": 130}
        else:
            item["blobId"] = DIGESTS[digest]
    evil.siblings = items
    refused_or_harmless(evil, around, "digests in listings")


def tree(evil: Evil, items: list[Any]) -> None:
    """Answer as a hub that lists no sizes at first, and then files by pages."""
    bare = [{"rfilename": item["rfilename"]} for item in items]
    entries = [{"type": "file", "path": item["rfilename"], "size": item["size"], "oid": "0" * 40} for item in items]

    def says(asked: Asked) -> bytes | None:
        if asked.path.startswith(API):
            return plain(json.dumps({"sha": COMMIT, "siblings": bare}).encode())
        return plain(json.dumps(entries).encode()) if "/tree/" in asked.path else None

    evil.says = says


@pytest.mark.parametrize(
    "link",
    [
        "{url}/api/datasets/lab/evil/tree/{commit}?page=2",
        "file:///etc/passwd",
        "//",
        "http://[",
        "javascript:1",
        "x" * 9999,
    ],
)
def test_pages_that_lead_on_and_on_or_elsewhere(evil: Evil, around: Path, link: str) -> None:
    bare = [{"rfilename": name} for name in evil.files]
    numbers = itertools.count()

    def says(asked: Asked) -> bytes | None:
        if asked.path.startswith(API):
            return plain(json.dumps({"sha": COMMIT, "siblings": bare}).encode())
        if "/tree/" in asked.path or "page" in asked.path:
            entry = {"type": "file", "path": f"f{next(numbers)}", "size": 1, "oid": "0" * 40}
            following = link.format(url=evil.url, commit=COMMIT)
            return plain(json.dumps([entry]).encode(), Link=f'<{following}>; rel="next"')
        return None

    evil.says = says
    COUNTS.inputs["pages of listings"] += 1
    with pytest.raises(ZooError, match="expected"):
        ckptzoo.open(REPO, endpoint=evil.url)
    assert len(evil.asked) < 1000


ANSWERS: dict[str, Any] = {
    "nothing": None,
    "a number": 7,
    "a list": [],
    "empty": {},
    "no files": {"sha": COMMIT},
    "files that are none": {"sha": COMMIT, "siblings": 7},
    "files of numbers": {"sha": COMMIT, "siblings": [1, 2]},
    "files of lists": {"sha": COMMIT, "siblings": [["size", "rfilename"]]},
    "names of numbers": {"sha": COMMIT, "siblings": [{"rfilename": 7, "size": 1}]},
    "a commit that leads elsewhere": {"sha": "../../x", "siblings": []},
    "a commit of lists": {"sha": [COMMIT], "siblings": []},
    "lfs that is none": {"sha": COMMIT, "siblings": [{"rfilename": "zoo.json", "size": 1, "lfs": 7}]},
    "lfs without facts": {"sha": COMMIT, "siblings": [{"rfilename": "zoo.json", "size": 1, "lfs": {"a": 1}}]},
    "lfs of numbers": {"sha": COMMIT, "siblings": [{"rfilename": "zoo.json", "size": 1, "lfs": {"size": 1, "oid": 7}}]},
}


@pytest.mark.parametrize("answer", [*ANSWERS, "deep", "not JSON", "not UTF-8", "a bomb"])
def test_answers_that_are_no_listing(evil: Evil, around: Path, answer: str) -> None:
    data = {
        "deep": b"[" * 200_000,
        "not JSON": b"<html>",
        "not UTF-8": b'{"sha": "\xff"}',
        "a bomb": b'{"sha":' + b"9" * 5_000_000 + b"}",
    }.get(answer)
    if data is None:
        data = json.dumps(ANSWERS[answer]).encode()
    evil.says = lambda asked: plain(data) if asked.path.startswith(API) else None
    refused_or_harmless(evil, around, "answers that are no listing")
