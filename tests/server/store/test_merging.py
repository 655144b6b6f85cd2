"""Three-way merging, file by file."""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.server.store import commits
from ckptzoo.server.store.blobs import Blobs
from ckptzoo.server.store.commits import diff, merge
from ckptzoo.server.store.git_objects import Trees
from tests.server.store.test_trees import Files, built, files, held, trees

__all__ = ["trees"]


@given(base=files, ours=files, theirs=files)
@settings(deadline=None)
def test_a_merge_takes_what_either_side_changed(trees: Trees, base: Files, ours: Files, theirs: Files) -> None:
    roots = [built(trees, content) for content in (base, ours, theirs)]
    found = merge(trees, *roots)
    both = {path for path in {*base, *ours, *theirs} if ours.get(path) != base.get(path) != theirs.get(path)}
    assert set(found.conflicts) == {path for path in both if ours.get(path) != theirs.get(path)}
    if not found.conflicts:
        merged = held(trees, trees.changed(roots[1], found.changes))
        sides = [held(trees, root) for root in roots]
        for path in {*base, *ours, *theirs}:
            was, mine, other = (side.get(path) for side in sides)
            assert merged.get(path) == (mine if other == was else other)


def test_a_diff_reads_as_git_writes_it(trees: Trees, tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    before, after = {"a": b"1\n2\n", "gone": b"x\n", "same": b"s"}, {"a": b"1\n3\n", "new": b"\xff", "same": b"s"}
    for data in (*before.values(), *after.values()):
        blobs.add(data)
    assert diff(trees, blobs, built(trees, before), built(trees, after)) == (
        "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n"
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/new b/new\nnew file mode 100644\nBinary files a/new and b/new differ\n"
    )


def applied(old: list[str], patch: str) -> list[str]:
    """What a unified diff of one file makes of its lines."""
    made: list[str] = []
    position = 0
    for line in patch.splitlines()[2:]:
        hunk = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line)
        if hunk is not None:
            start = int(hunk[1]) - (hunk[2] != "0")
            made += old[position:start]
            position = start
            assert int(hunk[3]) - (hunk[4] != "0") == len(made)
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert old[position] == line[1:]
            position += 1
            made += [line[1:]] * (line[0] == " ")
    return made + old[position:]


texts = st.lists(st.sampled_from(["a", "b", "+c", "@@ -1 +1 @@", ""]), max_size=30)


@pytest.mark.parametrize("comparisons", [100_000, 6])
@given(head=texts, old=texts, new=texts, tail=texts)
@settings(deadline=None)
def test_a_diff_makes_the_new_text_of_the_old(
    comparisons: int, head: list[str], old: list[str], new: list[str], tail: list[str]
) -> None:
    before, after = head + old + tail, head + new + tail
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "_MAX_COMPARISONS", comparisons)
        found = commits._unified(before, after, ["a/x", "b/x"])
    assert applied(before, found) == after


def test_diffs_of_many_short_lines_are_fast(trees: Trees, tmp_path: Path) -> None:
    """difflib alone takes minutes: what it does is quadratic in the lines that occur often."""
    blobs = Blobs(tmp_path)
    before = {"a": "".join(f"{at % 999:x}\n" for at in range(60_000)).encode()}
    after = {"a": "".join(f"{at * 7 % 997:x}\n" for at in range(60_000)).encode()}
    for data in (*before.values(), *after.values()):
        blobs.add(data)
    start = time.monotonic()
    found = diff(trees, blobs, built(trees, before), built(trees, after))
    assert time.monotonic() - start < 5 and "@@ -2," in found


@pytest.mark.parametrize(
    "text", [b"1\n" * 40_000, b"\x01" * 60_000, "é\u2028\n".encode() * 15_000], ids=["lines", "controls", "letters"]
)
@pytest.mark.sampled(3)
def test_a_diff_is_bounded_as_it_is_sent(trees: Trees, tmp_path: Path, text: bytes) -> None:
    after = {f"{at:03}": text + b"%d" % at for at in range(60)}
    blobs = Blobs(tmp_path)
    for data in after.values():
        blobs.add(data)
    found = diff(trees, blobs, built(trees, {}), built(trees, after), seconds=60)
    sent = len(json.dumps(found, ensure_ascii=False).encode())
    assert 2**22 - 500_000 < sent < 2**22 + 100 and found.endswith("The diff is too long to be shown whole.\n")
    assert diff(trees, blobs, built(trees, {}), built(trees, dict(list(after.items())[:2]))).count("diff --git") == 2


def test_a_diff_ends_with_its_time_or_its_reader(trees: Trees, tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    after = {f"{at}": f"{at}".encode() for at in range(9)}
    for data in after.values():
        blobs.add(data)
    roots = built(trees, {}), built(trees, after)
    whole = diff(trees, blobs, *roots)
    late, abandoned = diff(trees, blobs, *roots, seconds=-1), diff(trees, blobs, *roots, is_abandoned=lambda: True)
    for cut, count in ((late, 0), (abandoned, 1)):
        head, _, end = cut.partition("The diff is too long")
        assert whole.startswith(head) and head.count("diff --git") == count and end
