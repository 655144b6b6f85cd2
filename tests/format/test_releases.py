"""Releases: a name opens the same checkpoints for ever, the newest is stable, and damaged ones are named."""

from collections.abc import Callable
from datetime import UTC, datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import IntegrityError, SpecError, UnknownNameError, ZooError
from ckptzoo.format import releases
from ckptzoo.schema.documents import seal, unseal
from ckptzoo.schema.release import Release, decode, encode
from tests.support.effort import examples

pytestmark = pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("w", (2,)),))
NAMES = st.from_regex(r"\A[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?\Z").filter(
    lambda name: ".." not in name and not name.endswith(".lock") and name not in ("stable", "main", "head")
)


def add(path: Path, count: int) -> None:
    start = len(ckptzoo.open(path).contents.raw.rows)
    with ckptzoo.append(path) as writer:
        rows = [{"id": f"m{number}"} for number in range(start, start + count)]
        writer.add({"w": np.zeros((count, 2), np.float32)}, rows)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    ckptzoo.create(tmp_path / "zoo", arch=ARCH, card=ckptzoo.Card("tiny"))
    add(tmp_path / "zoo", 2)
    return tmp_path / "zoo"


@pytest.mark.exhaustive
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_comes_later_a_name_opens_the_same(tmp_path_factory: Any, data: st.DataObject) -> None:
    zoo = tmp_path_factory.mktemp("grown") / "zoo"
    ckptzoo.create(zoo, arch=ARCH, card=ckptzoo.Card("tiny"))
    add(zoo, 1)
    meant: dict[str, list[str]] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        step = data.draw(st.sampled_from(["add", "retract", "release", "compact"]))
        ids = ckptzoo.open(zoo).ids
        if step == "add":
            add(zoo, data.draw(st.integers(1, 2)))
        elif step == "retract" and ids:
            ckptzoo.retract(zoo, [data.draw(st.sampled_from(ids))], reason="a test")
        elif step == "release":
            name = data.draw(NAMES)
            if name in meant:
                if meant[name] != ids:
                    with pytest.raises(ZooError, match=r"release: expected none of the name.*Choose another name"):
                        ckptzoo.release(zoo, name)
                continue
            ckptzoo.release(zoo, name)
            meant[name] = ids
        else:
            ckptzoo.compact(zoo)
        for name, expected in meant.items():
            assert ckptzoo.open(zoo, revision=name).ids == expected
        assert [item.name for item in ckptzoo.open(zoo).releases] == list(meant)
        if meant:
            assert ckptzoo.open(zoo, revision="stable").ids == list(meant.values())[-1]
    assert ckptzoo.verify(zoo) == []


def test_names_open_what_they_meant(zoo: Path) -> None:
    ckptzoo.release(zoo, "one")
    ckptzoo.retract(zoo, ["m0"], reason="a test")
    ckptzoo.release(zoo, "two")
    add(zoo, 1)
    found = {name: ckptzoo.open(zoo, revision=name).ids for name in ("one", "two", "stable")}
    assert found == {"one": ["m0", "m1"], "two": ["m1"], "stable": ["m1"]}
    with pytest.raises(ZooError, match=r"release: expected none of the name, got one of these notes at another revis"):
        ckptzoo.release(zoo, "two")
    assert [item.name for item in ckptzoo.open(zoo).releases] == ["one", "two"] and ckptzoo.verify(zoo) == []


@settings(max_examples=examples(100))
@given(NAMES, st.text(st.characters(codec="utf-8"), max_size=50), st.datetimes(timezones=st.just(UTC)))
def test_a_document_says_all_of_a_release(name: str, notes: str, created: datetime) -> None:
    release = Release(name, "sha256:0", "sha256:1", created, notes)
    assert decode(encode(release), location="here") == release


@pytest.mark.parametrize(
    "name",
    ["", "stable", "main", "head", "V1", "a/b", "../a", "a..b", "a.lock", ".a", "a.", "-", "a" * 65, "0" * 40, "a b"],
)
def test_names_that_are_none(zoo: Path, name: str) -> None:
    with pytest.raises(SpecError, match=r"name: expected small letters.*Choose another name"):
        ckptzoo.release(zoo, name)
    assert not (zoo / "releases").exists()


def test_the_same_again_is_no_error_and_other_notes_are_one(zoo: Path) -> None:
    first = ckptzoo.release(zoo, "one", "All.")
    assert ckptzoo.release(zoo, "one", "All.") == first
    with pytest.raises(ZooError, match=r"zoo/releases/one\.json: release: expected none of the name, got one with oth"):
        ckptzoo.release(zoo, "one", "Others.")


def test_notes_that_are_too_long_or_no_unicode(zoo: Path) -> None:
    for notes in ("x" * 100_001, "\ud800"):
        with pytest.raises(SpecError, match="notes: expected at most 100,000 characters of Unicode"):
            ckptzoo.release(zoo, "one", notes)


def test_stable_is_the_newest_although_clocks_disagree(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        time = datetime(2030, 1, 1, tzinfo=UTC)

        @classmethod
        def now(cls, tz: timezone | None = None) -> datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
            return cls.time

    monkeypatch.setattr(releases, "datetime", Clock)
    ckptzoo.release(zoo, "b")
    Clock.time = datetime(2020, 1, 1, tzinfo=UTC)
    add(zoo, 1)
    ckptzoo.release(zoo, "a")
    assert len(ckptzoo.open(zoo, revision="stable")) == 3


def test_no_release_of_the_name(zoo: Path) -> None:
    with pytest.raises(
        UnknownNameError, match=r"release 'stable': expected one of \(none\).*ckptzoo release .*zoo NAME"
    ):
        ckptzoo.open(zoo, revision="stable")
    ckptzoo.release(zoo, "2026-12")
    with pytest.raises(UnknownNameError, match=r"expected one of 2026-12, stable, got '2026-11'. Did you mean 2026-12"):
        ckptzoo.open(zoo, revision="2026-11")


def resealed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content, _ = unseal(path.read_bytes(), location="")
    change(content)
    path.write_bytes(seal(content))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.update(name="two"), "name: expected one, got two"),
        (lambda content: content.update(zoo="sha256:00"), "digest of the zoo"),
        (lambda content: content.update(notes=7), "notes: expected a text"),
        (lambda content: content.update(created="2026-12-01"), "created: expected a time of UTC"),
        (lambda content: content.update(created="9" * 50), "created: expected a time of UTC"),
        (lambda content: content.update(further=1), "fields: expected format"),
        (lambda content: content.update(kind="split"), "format and kind"),
        (lambda content: content.update(version=2), "Upgrade ckptzoo"),
    ],
)
def test_documents_that_are_none(zoo: Path, change: Callable[[dict[str, Any]], None], said: str) -> None:
    ckptzoo.release(zoo, "one")
    resealed(zoo / "releases/one.json", change)
    for call in (lambda: ckptzoo.open(zoo, revision="one"), lambda: ckptzoo.open(zoo).releases):
        with pytest.raises(IntegrityError, match=said):
            call()
    assert [said in str(problem) for problem in ckptzoo.verify(zoo)] == [True]


def test_verify_names_what_does_not_belong_and_revisions_that_are_gone(zoo: Path) -> None:
    ckptzoo.release(zoo, "one")
    resealed(zoo / "releases/one.json", lambda content: content.update(revision="sha256:" + "0" * 64))
    (zoo / "releases/One.json").write_text("{}")
    stray, gone = ckptzoo.verify(zoo)
    assert "a release: expected <name>.json, got 'One.json'" in str(stray)
    assert "releases/one.json: revision: expected one that its first parts have" in str(gone)


def test_a_flipped_byte_is_noticed(zoo: Path) -> None:
    ckptzoo.release(zoo, "one", "All of them.")
    path = zoo / "releases/one.json"
    data = path.read_bytes()
    for place in range(0, len(data), 67):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert ckptzoo.verify(zoo, deep=False) != []


def test_pull_brings_the_releases_of_a_whole_zoo_and_none_of_a_part(zoo: Path, tmp_path: Path) -> None:
    ckptzoo.release(zoo, "one")
    add(zoo, 2)
    ckptzoo.pull(zoo, tmp_path / "whole")
    assert ckptzoo.open(tmp_path / "whole", revision="one").ids == ["m0", "m1"]
    ckptzoo.pull(zoo, tmp_path / "part", where="id != 'm0'")
    assert ckptzoo.open(tmp_path / "part").releases == () and ckptzoo.verify(tmp_path / "part") == []
    ckptzoo.merge_parts(zoo, tmp_path / "merged")
    assert ckptzoo.open(tmp_path / "merged").releases == () and ckptzoo.verify(tmp_path / "merged") == []


def test_a_listing_names_releases(zoo: Path) -> None:
    ckptzoo.release(zoo, "one")
    ckptzoo.compact(zoo)
    assert b"releases/one.json" in (zoo / "listing.json").read_bytes()
