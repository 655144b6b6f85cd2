"""A zoo as it was: a stream's state continues there although parts and tombstones came since."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import StateError, ZooError
from ckptzoo.format import reader, snapshot
from ckptzoo.schema.documents import canonical, digest_of
from ckptzoo.text import counted
from tests.conftest import MIXED, rows_of, weights_of

pytestmark = pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")


def add(path, count, start):
    with ckptzoo.append(path) as writer:
        writer.add(weights_of(MIXED, count, start), rows_of(count, start, unit=f"unit-{start}"))


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_a_state_continues_although_the_zoo_grew(make_zoo, shuffle, indexed):
    path, _ = make_zoo((4, 3))
    ckptzoo.retract(path, ["m00001"], reason="a test")

    def stream(zoo):
        return zoo.where("seed < 6").stream("conv", batch_size=2, shuffle=shuffle, seed=3, remainder="keep")

    before = list(stream(ckptzoo.open(path)))
    state = before[0].state
    add(path, 3, 7)
    ckptzoo.retract(path, ["m00002"], reason="a test")
    if indexed:
        ckptzoo.compact(path)
    grown = ckptzoo.open(path)
    with pytest.raises(StateError, match=r"Open the zoo as it was, ckptzoo\.open\(\.\.\., revision='sha256:"):
        stream(grown).load_state_dict(state)
    earlier = ckptzoo.open(path, revision=state["revision"])
    assert (len(earlier), len(grown), len(earlier.refresh())) == (6, 8, 8)
    resumed = stream(earlier)
    resumed.load_state_dict(state)
    after = list(resumed)
    assert [batch.ids for batch in after] == [batch.ids for batch in before[1:]]
    for old, new in zip(before[1:], after, strict=True):
        assert old.state == new.state
        np.testing.assert_array_equal(old["conv.weight"], new["conv.weight"])


def test_every_earlier_revision_opens(make_zoo):
    path, _ = make_zoo((2,))
    seen = {}

    def note():
        zoo = ckptzoo.open(path)
        seen[zoo.revision] = zoo.ids

    note()
    for step in range(3):
        add(path, 1, 2 + step)
        note()
        ckptzoo.retract(path, [f"m0000{step}"], reason="a test")
        note()
    assert len(seen) == 7
    for revision, ids in seen.items():
        zoo = ckptzoo.open(path, revision=revision)
        assert (zoo.revision, zoo.ids) == (revision, ids)
        assert zoo["flag"].shape == (len(ids), 1)


def test_an_unknown_revision_names_the_nearest(make_zoo):
    path, _ = make_zoo((2, 1))
    revision = ckptzoo.open(path).revision
    with pytest.raises(ZooError, match=f"The nearest is {revision}, of the first 2 parts and 0 parts of tombstones"):
        ckptzoo.open(path, revision=revision[:20])
    with pytest.raises(ZooError, match="release 'main': expected one of"):
        ckptzoo.open(path, revision="main")


def counts_by_trial(revision, digests, tombstones):
    """The counts of parts and tombstones with this revision, else those of the nearest: tried from the newest."""
    nearest, shared = None, -1
    for tombs in range(len(tombstones), -1, -1):
        for parts in range(len(digests), -1, -1):
            found = digest_of([*digests[:parts], *tombstones[:tombs]])
            same = next(size for size in range(len(found), -1, -1) if revision.startswith(found[:size]))
            if found == revision:
                return parts, tombs
            if same > shared:
                nearest, shared = (found, parts, tombs), same
    return nearest


@given(parts=st.integers(0, 5), tombs=st.integers(0, 5), data=st.data())
def test_revisions_are_found_as_by_trial(parts, tombs, data):
    """The names of parts are any text; so is the revision."""
    digests, tombstones = ([f"{kind}é{at}" for at in range(count)] for kind, count in (("a", parts), ("b", tombs)))
    first, early = data.draw(st.integers(0, parts)), data.draw(st.integers(0, tombs))
    earlier = digest_of([*digests[:first], *tombstones[:early]])
    revision = data.draw(st.sampled_from([earlier, earlier[: 7 + first], f"{earlier}0", f"sha256:{parts}", "main"]))
    trees = [SimpleNamespace(parts=[SimpleNamespace(digest=one) for one in each]) for each in (digests, tombstones)]
    expected = counts_by_trial(revision, digests, tombstones)
    files = SimpleNamespace(name="zoo")
    if len(expected) == 2:
        assert reader.counts_at(files, revision, *trees) == expected
    else:
        with pytest.raises(
            ZooError, match=r"The nearest is (.*), of the first (.*) parts? and (.*) parts? of"
        ) as error:
            reader.counts_at(files, revision, *trees)
        assert error.match(
            re.escape(f"is {expected[0]}, of the first {counted(expected[1], 'part')} and {expected[2]}")
        )


def test_revisions_are_looked_for_among_the_newest(monkeypatch):
    """With a limit of 9 three of each are tried, or more of one where there are fewer of the other."""
    monkeypatch.setattr(reader, "_MAX_REVISIONS", 9)
    digests, tombstones = (tuple(f"{kind}{at}" for at in range(5)) for kind in "ab")

    def found(first, early, parts=5, tombs=5):
        each = digests[:parts], tombstones[:tombs]
        trees = [SimpleNamespace(parts=[SimpleNamespace(digest=one) for one in some]) for some in each]
        revision = digest_of([*digests[:first], *tombstones[:early]])
        return reader.counts_at(SimpleNamespace(name="zoo"), revision, *trees)

    assert found(3, 3) == (3, 3) and found(5, 4) == (5, 4) and found(0, 0, tombs=0) == (0, 0) == found(0, 0, parts=0)
    for counts in ((2, 5), (5, 2), (0, 0)):
        with pytest.raises(ZooError, match="The nearest is"):
            found(*counts)


def test_the_time_of_a_search_is_that_of_its_revisions(monkeypatch):
    """Two hundred parts and tombstones: no list of parts is encoded again for each of the 40,000 revisions."""
    encoded = []
    monkeypatch.setattr(reader, "canonical", lambda text: encoded.append(text) or canonical(text))
    trees = [SimpleNamespace(parts=[SimpleNamespace(digest=f"{kind}{at}") for at in range(200)]) for kind in "ab"]
    monkeypatch.setattr(snapshot, "revision_of", lambda digests: digest_of(encoded.append("all") or list(digests)))
    with pytest.raises(ZooError, match="The nearest is"):
        reader.counts_at(SimpleNamespace(name="zoo"), "main", *trees)
    assert len(encoded) == 401
