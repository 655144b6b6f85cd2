"""Three-way merging, file by file."""

from pathlib import Path

from hypothesis import given, settings

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
