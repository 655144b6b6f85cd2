"""Laws of folders, on random files with names that sort in awkward ways."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.server.errors import Refusal
from ckptzoo.server.kept import Kept
from ckptzoo.server.store import git_objects
from ckptzoo.server.store.database import Database
from ckptzoo.server.store.git_objects import File, Trees, position

NAMES = ("a", "a.b", "a-b", "a0", "ab", "b", "\N{GREEK SMALL LETTER ALPHA}")
FOLDERS = ("d", "d.x", "d-", "d0")
PATHS = [*NAMES, *(f"{folder}/{name}" for folder in FOLDERS for name in NAMES), "d/d/a", "d/d/d/a.b", "d0/d.x/a"]

Files = dict[str, bytes]
files = st.dictionaries(st.sampled_from(PATHS), st.sampled_from([b"", b"1", b"22"]), max_size=12)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trees]:
    database = Database(Path(tmp_path_factory.mktemp("trees")) / "db")
    with database.writing() as connection:
        yield Trees(connection, 0)
    database.close()


def built(trees: Trees, content: Files) -> str:
    """The folder of these files."""
    return trees.changed(None, changes(trees, content))


def changes(trees: Trees, content: dict[str, bytes | None]) -> dict[str, str | None]:
    made: dict[str, str | None] = {}
    for path, data in content.items():
        if data is not None:
            trees.add_file(File.small(data))
        made[path] = None if data is None else File.small(data).oid
    return made


def held(trees: Trees, root: str) -> dict[str, str]:
    return {path: node.oid for path, node in trees.walk(root) if not node.folder}


@given(before=files, after=files)
@settings(deadline=None)
def test_changing_makes_what_building_makes(trees: Trees, before: Files, after: Files) -> None:
    step: dict[str, bytes | None] = {**dict.fromkeys(before), **after}
    changed = trees.changed(built(trees, before), changes(trees, step))
    assert changed == built(trees, after)
    assert held(trees, changed) == {path: File.small(data).oid for path, data in after.items()}


@given(content=files, size=st.integers(1, 5), recursive=st.booleans())
@settings(deadline=None)
def test_pages_are_the_whole(trees: Trees, content: Files, size: int, recursive: bool) -> None:
    root = built(trees, content)
    whole = list(trees.walk(root, recursive=recursive))
    places = [position(*item) for item in whole]
    assert places == sorted(set(places))
    found, after = [], b""
    while page := [item for item, _ in zip(trees.walk(root, recursive=recursive, after=after), range(size))]:  # noqa: B905
        found += page
        after = position(*page[-1])
    assert found == whole
    assert all(trees.find(root, path) == node for path, node in whole)


@given(before=files, after=files)
@settings(deadline=None)
def test_a_difference_is_the_paths_that_differ(trees: Trees, before: Files, after: Files) -> None:
    old = {path: File.small(data).oid for path, data in before.items()}
    new = {path: File.small(data).oid for path, data in after.items()}
    expected = {path: (old.get(path), new.get(path)) for path in {**old, **new} if old.get(path) != new.get(path)}
    assert trees.difference(built(trees, before), built(trees, after)) == expected


def test_a_file_is_no_folder(trees: Trees) -> None:
    root = built(trees, {"a": b"1", "d/a": b"1"})
    for wrong in ({"a/b": b"1"}, {"d": b"1"}):
        with pytest.raises(Refusal, match="got both"):
            trees.changed(root, changes(trees, wrong))
    assert held(trees, trees.changed(root, changes(trees, {"a": None, "a/b": b"1"}))).keys() == {"a/b", "d/a"}
    assert held(trees, trees.changed(root, changes(trees, {"d/a": None, "d": b"1"}))).keys() == {"a", "d"}
    assert trees.find(root, "a/b/c") is None and trees.find(root, "x") is None


def test_a_folder_is_not_read_again_for_the_next_request(trees: Trees) -> None:
    root = built(trees, {f"parts/{number:04d}/raw": b"" for number in range(300)})
    statements: list[str] = []
    trees.connection.set_trace_callback(statements.append)
    try:
        for number in range(300):
            assert Trees(trees.connection, 0).find(root, f"parts/{number:04d}/raw") is not None
    finally:
        trees.connection.set_trace_callback(None)
    # at most the root, the parts, and once the folder that all parts have in common
    assert sum("FROM trees" in statement for statement in statements) <= 3


@pytest.mark.parametrize("limit", [0, 1000, 3000, 10**6])
def test_answers_do_not_depend_on_what_is_kept(trees: Trees, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    made = [{f"d{number % 3}/{name}": bytes([number]) for name in NAMES} | {"a": b""} for number in range(12)]
    roots = [built(trees, content) for content in made]
    kept = Kept(limit, lambda nodes: 500 + 320 * len(nodes))
    monkeypatch.setattr(git_objects, "_KEPT", kept)
    for root, content in zip(roots * 2, made * 2, strict=True):
        expected = {path: File.small(data).oid for path, data in content.items()}
        assert held(Trees(trees.connection, 0), root) == expected and kept.held <= limit
