"""Facts about a repository on its page: those of its card and of its files, kept by commit."""

import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptzoo.schema import layout
from ckptzoo.server.responses import MAX_FRONT_MATTER, front_matter, tags
from ckptzoo.server.store.blobs import Blobs
from ckptzoo.server.store.commits import History
from ckptzoo.server.store.discussions import Discussions
from ckptzoo.server.store.git_objects import File, Trees

_MAX_TEXT, _MAX_TAGS = 100, 30
_FACTS = ("zoos", "checkpoints", "members", "parameters")
"""Numbers that a card has below ``ckptzoo``; the first only a collection's."""
_MAX_DOCUMENT = 2**22
"""Bytes of a collection's document that are read."""
_COMMITS = 200
"""The number of commits that are searched for the one that wrote a collection's document."""
_DRAWN = (layout.PICTURES, layout.EXPLORER)
_MERGES = 20
"""The number of last merged pull requests that are looked at."""


@dataclass(frozen=True)
class Summary:
    """A card's facts.

    ``title`` is the card's ``pretty_name``; ``licenses`` are those that it names, none, one or several; ``tags`` are
    those that a search finds. ``numbers`` count zoos, checkpoints, members and parameters, where the card has them.
    """

    title: str = ""
    licenses: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)

    def tagged(self, start: str) -> tuple[str, ...]:
        """Return the rest of each tag with this beginning, as ``optunet`` for ``arch:``; each once."""
        rest = [tag.removeprefix(start) for tag in self.tags if tag.startswith(start)]
        # a card may have more tags than are kept; its licences are entries of their own
        return tuple(dict.fromkeys([*rest, *(self.licenses if start == "license:" else ())]))


@dataclass(frozen=True)
class SpecialFiles:
    """The special files of a commit: its readme, and the page ``pages/explorer.html``, None where absent."""

    files: int
    nbytes: int
    readme: File | None
    explorer: File | None


@dataclass(frozen=True)
class CollectedZoo:
    """A zoo of a collection.

    ``checkpoints`` counts those when the collection was written; None where the collection does not have the zoo.
    ``state`` is ``missing``, ``changed`` since the collection was written, ``not in it``, or empty where all is well.
    """

    folder: str
    checkpoints: int | None
    state: str = ""


@dataclass(frozen=True)
class CollectedZoos:
    """The zoos of a collection, in order of their folders; none where the document cannot be read, and then ``problem``
    says why.
    """

    zoos: tuple[CollectedZoo, ...]
    problem: str = ""

    @property
    def differing(self) -> dict[str, list[str]]:
        """The folders that differ from the collection's document, by their state."""
        by_state: dict[str, list[str]] = {}
        for zoo in self.zoos:
            if zoo.state:
                by_state.setdefault(zoo.state, []).append(zoo.folder)
        return by_state


@dataclass(frozen=True)
class Behind:
    """The files and folders ``what`` that the merge of the pull request ``number`` has not brought up to date."""

    number: int
    what: tuple[str, ...]

    @property
    def drawn(self) -> tuple[str, ...]:
        """Those of them that show all weights, which ``ckptzoo review --finish`` does not read."""
        return tuple(name for name in self.what if name in _DRAWN)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Those that ``ckptzoo review --finish`` brings up to date."""
        return tuple(name for name in self.what if name not in _DRAWN)


class Summaries:
    """Summaries and overviews by repository and commit; of more than ``size``, each below 5 kB, the least used are
    forgotten.
    """

    def __init__(self, blobs: Blobs, size: int = 10_000) -> None:
        self._blobs, self._size = blobs, size
        self._kept: OrderedDict[tuple[str, int, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def summary(self, connection: sqlite3.Connection, repository: int, commit: str) -> Summary:
        """Return the summary of the card of a repository at a commit."""
        return self._of("summary", repository, commit, lambda: self._summary(connection, repository, commit))

    def overview(self, connection: sqlite3.Connection, repository: int, commit: str) -> SpecialFiles:
        """Return the overview of a repository at a commit; computed once."""
        return self._of("overview", repository, commit, lambda: _overview(connection, repository, commit))

    def behind(self, connection: sqlite3.Connection, repository: int, commit: str) -> Behind | None:
        """Return what the last merges have not brought up to date; None where it is done, or somebody has pushed parts
        since.
        """
        return self._of("behind", repository, commit, lambda: _behind(connection, repository, commit))

    def collected(self, connection: sqlite3.Connection, repository: int, commit: str) -> CollectedZoos | None:
        """Return the zoos of a collection and how they differ from its document; None for a repository that is none."""
        return self._of("collected", repository, commit, lambda: self._collected(connection, repository, commit))

    def _collected(self, connection: sqlite3.Connection, repository: int, commit: str) -> CollectedZoos | None:
        trees, history = Trees(connection, repository), History(connection, repository)
        head = history.resolve(commit)
        file = _file(trees, head.tree, layout.COLLECTION)
        if file is None or trees.find(head.tree, layout.ZOO) is not None:
            return None
        if file.size > _MAX_DOCUMENT:
            return CollectedZoos((), f"it has more than {_MAX_DOCUMENT:,} bytes")
        listed = _listed_zoos(self._blobs.path(file.sha256).read_bytes())
        if listed is None:
            return CollectedZoos((), "it is no list of zoos")
        written = head.tree
        for earlier in history.log(commit, _COMMITS):
            if trees.find(earlier.tree, layout.COLLECTION) != trees.find(head.tree, layout.COLLECTION):
                break
            written = earlier.tree
        zoos = [
            CollectedZoo(folder, count, _state(trees, folder, written, head.tree)) for folder, count in listed.items()
        ]
        folders = (name for name, node in trees.nodes(head.tree).items() if node.folder and name not in listed)
        zoos += [
            CollectedZoo(name, None, "not in it")
            for name in folders
            if trees.find(head.tree, f"{name}/{layout.ZOO}") is not None
        ]
        return CollectedZoos(tuple(sorted(zoos, key=lambda zoo: zoo.folder)))

    def _of(self, kind: str, repository: int, commit: str, make: Callable[[], Any]) -> Any:
        key = (kind, repository, commit)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        summary = make()
        with self._lock:
            self._kept[key] = summary
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return summary

    def _summary(self, connection: sqlite3.Connection, repository: int, commit: str) -> Summary:
        trees = Trees(connection, repository)
        head = History(connection, repository).commit(commit)
        readme = None if head is None else _file(trees, head.tree, layout.README)
        if readme is None:
            return Summary()
        with self._blobs.path(readme.sha256).open("rb") as file:
            # the end may cut a character in two
            text = file.read(MAX_FRONT_MATTER).decode(errors="replace")
        try:
            card = front_matter(text)
        except ValueError:
            return Summary()
        own = card.get("ckptzoo")
        # a bool is an instance of int, and no count
        numbers = {name: own[name] for name in _FACTS if type(own.get(name)) is int} if isinstance(own, dict) else {}
        return Summary(
            title=str(card.get("pretty_name") or "")[:_MAX_TEXT],
            licenses=_texts(card.get("license")),
            tags=tuple(tag[:_MAX_TEXT] for tag in tags(card)[:_MAX_TAGS]),
            numbers=numbers,
        )


def _overview(connection: sqlite3.Connection, repository: int, commit: str) -> SpecialFiles:
    trees = Trees(connection, repository)
    tree = History(connection, repository).resolve(commit).tree
    oids = [node.oid for _, node in trees.walk(tree) if not node.folder]
    files = trees.files(oids)
    return SpecialFiles(
        files=len(oids),
        nbytes=sum(files[oid].size for oid in oids),
        readme=_file(trees, tree, layout.README),
        explorer=_file(trees, tree, layout.EXPLORER),
    )


def _behind(connection: sqlite3.Connection, repository: int, commit: str) -> Behind | None:
    trees, history = Trees(connection, repository), History(connection, repository)
    head = history.resolve(commit).tree
    merged = [item for item in Discussions(connection, repository).all() if item.merged is not None]
    for item in merged[:_MERGES]:
        merge = history.commit(item.merged or "")
        parents = [] if merge is None else history.parents(merge.oid)
        before = history.commit(parents[0]) if parents else None
        if merge is None or before is None:
            continue
        parts = [trees.find(tree, layout.PARTS) for tree in (before.tree, merge.tree, head)]
        if parts[0] == parts[1] or parts[1] != parts[2]:
            continue
        # what shows the checkpoints: counts and accuracies, pictures, the explorer
        names = [layout.README, layout.PICTURES, layout.EXPLORER, layout.SNAPSHOTS]
        derived = trees.find(merge.tree, layout.DERIVED)
        if derived is not None and derived.folder:
            names += [f"{layout.DERIVED}/{name}" for name in trees.nodes(derived.oid) if name not in layout.ROWS_ALONE]
        same = [name for name in names if (node := trees.find(merge.tree, name)) and node == trees.find(head, name)]
        if same:
            return Behind(item.number, tuple(same))
    return None


def _listed_zoos(data: bytes) -> dict[str, int] | None:
    """Return folders and counts of a collection's document, which is untrusted; None of another."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    items = content.get("zoos") if isinstance(content, dict) else None
    if not isinstance(items, list):
        return None
    counts: dict[str, int] = {}
    for item in items:
        folder, count = (item.get("folder"), item.get("checkpoints")) if isinstance(item, dict) else (None, None)
        if type(folder) is not str or not layout.is_folder_name(folder) or folder in counts or type(count) is not int:
            return None
        counts[folder] = count
    return counts


def _state(trees: Trees, folder: str, before: str, after: str) -> str:
    """Return how a zoo differs from its state when the collection was written: by its raw parts and tombstones."""
    if trees.find(after, f"{folder}/{layout.ZOO}") is None:
        return "missing"
    counted = (f"{folder}/{layout.PARTS}", f"{folder}/{layout.DERIVED}/{layout.RETRACTED}")
    return "" if all(trees.find(before, path) == trees.find(after, path) for path in counted) else "changed"


def _texts(value: object) -> tuple[str, ...]:
    """Return a text of a card, or the texts of a list, each once; the first few of others."""
    listed = value if isinstance(value, list) else [value]
    texts = [str(item).strip()[:_MAX_TEXT] for item in listed if isinstance(item, str | int | float)]
    return tuple(dict.fromkeys(text for text in texts if text))[:_MAX_TAGS]


def _file(trees: Trees, tree: str, path: str) -> File | None:
    node = trees.find(tree, path)
    return None if node is None or node.folder else trees.file(node.oid)
