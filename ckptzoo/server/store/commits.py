"""Commits, the refs that point to them, three-way merges and diffs."""

import difflib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ckptzoo.server.errors import Refusal, no_revision
from ckptzoo.server.store.blobs import Blobs
from ckptzoo.server.store.git_objects import Changes, Trees, commit_content, object_id, pointer

HEADS, TAGS, PULLS = "refs/heads/", "refs/tags/", "refs/pr/"
"""The beginnings of the names of branches, tags and pull requests; the last as on the hub."""
MAIN = "refs/heads/main"
# UNION leaves out what was reached before, so that each commit is followed once (sqlite.org/lang_with.html).
_REACHED = """WITH RECURSIVE reached (oid) AS (
    SELECT ? UNION SELECT p.parent FROM reached r JOIN parents p ON p.child = r.oid)"""
"""A commit and everything before it."""
_MAX_TEXT, _MAX_DIFF = 2**18, 2**22
"""Bytes of a file that is shown in a diff, and of a diff as JSON."""
_MAX_COMPARISONS = 100_000
"""Product of the numbers of lines on both sides up to which difflib, quadratic in it and worse, looks for common lines
(about 0.3 s at the most)."""
_TOO_LONG = "The diff is too long to be shown whole.\n"
_CONTEXT = 3
"""Lines around a change that a diff shows."""
_HUNK = re.compile(r"^@@ -(\d+)((?:,\d+)?) \+(\d+)")
"""The head of a hunk; every other line of a diff's body begins with a space, a plus or a minus."""
_DIFF_SECONDS = 2.0
"""Seconds that a diff may take."""
_MERGE_SECONDS = 30.0
"""Seconds that other writers wait for a merge."""


def now() -> str:
    """Return the time, as the hub writes it."""
    return stamp(datetime.now(UTC))


def stamp(time: datetime) -> str:
    """Format a time as the hub writes it: UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


@dataclass(frozen=True)
class Commit:
    """One commit, without its parents."""

    oid: str
    tree: str
    author: str
    date: str
    title: str
    message: str


class History:
    """The commits and refs of one repository, for as long as one transaction lasts."""

    def __init__(self, connection: sqlite3.Connection, repository: int) -> None:
        self._connection, self._repository = connection, repository

    def commit(self, oid: str) -> Commit | None:
        """Return a commit that belongs to this repository."""
        query = "SELECT c.* FROM commits c JOIN history h ON h.oid = c.oid WHERE h.repository = ? AND c.oid = ?"
        row = self._connection.execute(query, (self._repository, oid)).fetchone()
        return None if row is None else Commit(*row)

    def refs(self) -> dict[str, str]:
        """Return every ref and its commit."""
        rows = self._connection.execute(
            "SELECT name, oid FROM refs WHERE repository = ? ORDER BY name", (self._repository,)
        )
        return {row["name"]: row["oid"] for row in rows}

    def ref(self, name: str) -> str | None:
        """Return the commit of a ref that is named in full."""
        query = "SELECT oid FROM refs WHERE repository = ? AND name = ?"
        row = self._connection.execute(query, (self._repository, name)).fetchone()
        return None if row is None else row["oid"]

    def resolve(self, revision: str) -> Commit:
        """Return the commit that a branch, tag, ref in full or commit id means.

        Raises Refusal with status 404 and ``RevisionNotFound``.
        """
        for name in (HEADS + revision, TAGS + revision, revision):
            oid = self.ref(name)
            if oid is not None:
                break
        commit = self.commit(oid or revision)
        if commit is None:
            raise no_revision(revision)
        return commit

    def writable(self, revision: str) -> str:
        """Return the ref in full that commits for this revision go to: a branch or a pull request."""
        for name in (HEADS + revision, revision):
            if name.startswith((HEADS, PULLS)) and self.ref(name) is not None:
                return name
        raise no_revision(revision)

    def add(
        self,
        tree: str,
        parents: Sequence[str],
        *,
        author: str,
        title: str,
        message: str = "",
        date: datetime | None = None,
    ) -> str:
        """Store a commit; return its id, the sha1 that git gives it."""
        date = date or datetime.now(UTC)
        text = f"{title}\n\n{message}" if message else title
        oid = object_id("commit", commit_content(tree, parents, author, int(date.timestamp()), text))
        row = (oid, tree, author, stamp(date), title, message)
        self._connection.execute("INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?)", row)
        parent_rows = [(oid, position, parent) for position, parent in enumerate(parents)]
        self._connection.executemany("INSERT OR IGNORE INTO parents VALUES (?, ?, ?)", parent_rows)
        history_row = (self._repository, oid)
        self._connection.execute("INSERT OR IGNORE INTO history (repository, oid) VALUES (?, ?)", history_row)
        return oid

    def point(self, name: str, oid: str) -> None:
        """Make a ref point to a commit."""
        row = (self._repository, name, oid)
        self._connection.execute("INSERT INTO refs VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET oid = excluded.oid", row)

    def remove(self, name: str) -> None:
        """Remove a ref; its commits stay."""
        deleted = self._connection.execute(
            "DELETE FROM refs WHERE repository = ? AND name = ?", (self._repository, name)
        )
        if deleted.rowcount == 0:
            raise no_revision(name)

    def create(self, name: str, oid: str) -> None:
        if self.ref(name) is not None:
            raise Refusal(409, f"Reference already exists: {name}")
        self.point(name, oid)

    def reaches(self, head: str, oid: str) -> bool:
        """Return whether a commit is another one or comes before it."""
        query = f"{_REACHED} SELECT 1 FROM reached WHERE oid = ?"
        return self._connection.execute(query, (head, oid)).fetchone() is not None

    def parents(self, oid: str) -> list[str]:
        """Return the parents of a commit; the first is the one that it was made on."""
        rows = self._connection.execute("SELECT parent FROM parents WHERE child = ? ORDER BY position", (oid,))
        return [row["parent"] for row in rows]

    def log(self, oid: str, limit: int, start: int = 0) -> list[Commit]:
        """Return a commit and those before it, the newest first."""
        query = f"""{_REACHED} SELECT c.* FROM reached JOIN history h ON h.oid = reached.oid AND h.repository = ?
            JOIN commits c ON c.oid = h.oid ORDER BY h.sequence DESC LIMIT ? OFFSET ?"""
        return [Commit(*row) for row in self._connection.execute(query, (oid, self._repository, limit, start))]

    def forget(self, roots: Iterable[str]) -> None:
        """Remove from the repository every commit that none of these reaches."""
        reached: set[str] = set()
        for root in roots:
            if root not in reached:
                reached.update(
                    row["oid"] for row in self._connection.execute(f"{_REACHED} SELECT oid FROM reached", (root,))
                )
        owned = self._connection.execute("SELECT oid FROM history WHERE repository = ?", (self._repository,)).fetchall()
        unreached = [(self._repository, row["oid"]) for row in owned if row["oid"] not in reached]
        self._connection.executemany("DELETE FROM history WHERE repository = ? AND oid = ?", unreached)


@dataclass(frozen=True)
class Merge:
    """The changes to apply to the target, and the paths that both sides changed differently."""

    changes: Changes
    conflicts: tuple[str, ...]


def merge(trees: Trees, base: str, target: str, proposed: str, *, seconds: float = _MERGE_SECONDS) -> Merge:
    """Merge three ways, file by file: what ``proposed`` changed since ``base`` is applied to ``target``.

    The arguments are ids of folders; ``seconds`` is the longest duration.

    Contents are never mixed: a file that both sides changed differently is a conflict.

    Raises Refusal with status 413: it takes longer.
    """
    end = time.monotonic() + seconds
    ours, theirs = trees.difference(base, target, end=end), trees.difference(base, proposed, end=end)
    conflicts = [path for path in theirs if path in ours and ours[path] != theirs[path]]
    return Merge({path: after for path, (_, after) in theirs.items()}, tuple(conflicts))


def diff(
    trees: Trees,
    blobs: Blobs,
    before: str | None,
    after: str,
    *,
    seconds: float = _DIFF_SECONDS,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> str:
    """Return the unified diff between two folders; large files are shown as their pointers, and a long diff is cut.

    ``before`` and ``after`` are ids, None before the first commit. The diff is cut after ``seconds``, and where
    ``is_abandoned``, called between files, returns True.
    """
    parts: list[str] = []
    size, end = 0, time.monotonic() + seconds
    try:
        difference = trees.difference(before, after, end=end)
    except Refusal:
        return _TOO_LONG
    for path, oids in difference.items():
        texts = [_text(trees, blobs, oid) for oid in oids]
        head = f"diff --git a/{path} b/{path}\n"
        if oids[0] is None:
            # the lines of git's extended headers (git-diff(1)), which clients of the hub read
            head += "new file mode 100644\n"
        if oids[1] is None:
            head += "deleted file mode 100644\n"
        if texts[0] is None or texts[1] is None:
            body = f"Binary files a/{path} and b/{path} differ\n"
        else:
            names = ["/dev/null" if oid is None else f"{side}/{path}" for side, oid in zip("ab", oids, strict=True)]
            body = _unified(texts[0].splitlines(), texts[1].splitlines(), names)
        # as JSON, in which it is sent: line ends take two bytes there, control characters six
        size += len(json.dumps(head + body, ensure_ascii=False).encode()) - 2
        if size <= _MAX_DIFF:
            parts.append(head + body)
        if size > _MAX_DIFF or time.monotonic() > end or is_abandoned():
            parts.append(_TOO_LONG)
            break
    return "".join(parts)


def _unified(old: list[str], new: list[str], names: Sequence[str]) -> str:
    """Return the unified diff of two texts: difflib's, or one change where difflib would take too long."""
    least = min(len(old), len(new))
    start = next((at for at in range(least) if old[at] != new[at]), least)
    end = next((at for at in range(least - start) if old[-1 - at] != new[-1 - at]), least - start)
    removed, added = old[start : len(old) - end], new[start : len(new) - end]
    if len(removed) * len(added) <= _MAX_COMPARISONS:
        # difflib gets what differs with the context that it shows, and numbers lines from there
        first, after = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
        parts = old[first : len(old) - after], new[first : len(new) - after]
        lines = difflib.unified_diff(*parts, *names, n=_CONTEXT, lineterm="")
        return "".join(f"{_HUNK.sub(lambda match: _shifted(match, first), line)}\n" for line in lines)
    # as git writes a hunk without context: line numbers from 1, and how many lines of each side
    spans = f"@@ -{start + 1},{len(removed)} +{start + 1},{len(added)} @@"
    lines = [f"--- {names[0]}", f"+++ {names[1]}", spans, *(f"-{line}" for line in removed)]
    return "".join(f"{line}\n" for line in (*lines, *(f"+{line}" for line in added)))


def _shifted(hunk: re.Match[str], lines: int) -> str:
    return f"@@ -{int(hunk[1]) + lines}{hunk[2]} +{int(hunk[3]) + lines}"


def _text(trees: Trees, blobs: Blobs, oid: str | None) -> str | None:
    """Return the text of a file, empty where there is no file; None where it is not text or too long."""
    if oid is None:
        return ""
    file = trees.file(oid)
    if file.large:
        return pointer(file.sha256, file.size).decode()
    if file.size > _MAX_TEXT:
        return None
    try:
        return blobs.path(file.sha256).read_bytes().decode()
    except UnicodeDecodeError:
        return None
