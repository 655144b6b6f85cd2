"""What a pull request changes, and bringing it in."""

import difflib
from dataclasses import dataclass

from ckptzoo.server.store.blobs import Blobs
from ckptzoo.server.store.git import pointer
from ckptzoo.server.store.trees import Changes, Trees

_MAX_TEXT, _MAX_DIFF = 2**18, 2**22


@dataclass(frozen=True)
class Merge:
    """The changes to apply to the target, and the paths that both sides changed differently."""

    changes: Changes
    conflicts: tuple[str, ...]


def merge(trees: Trees, base: str, target: str, proposed: str) -> Merge:
    """Three-way, file by file: what ``proposed`` changed since ``base`` is applied to ``target``.

    Parameters
    ----------
    base, target, proposed : ids of folders.

    Notes
    -----
    Contents are never mixed: a file that both sides changed, and not to the same, is a conflict.
    """
    ours, theirs = trees.difference(base, target), trees.difference(base, proposed)
    conflicts = [path for path in theirs if path in ours and ours[path] != theirs[path]]
    return Merge({path: after for path, (_, after) in theirs.items()}, tuple(conflicts))


def diff(trees: Trees, blobs: Blobs, before: str, after: str) -> str:
    """The unified diff between two folders; large files show as their pointers, and it ends where it grows too long."""
    parts: list[str] = []
    size = 0
    for path, oids in trees.difference(before, after).items():
        texts = [_text(trees, blobs, oid) for oid in oids]
        head = f"diff --git a/{path} b/{path}\n"
        if oids[0] is None:
            head += "new file mode 100644\n"
        if oids[1] is None:
            head += "deleted file mode 100644\n"
        if texts[0] is None or texts[1] is None:
            body = f"Binary files a/{path} and b/{path} differ\n"
        else:
            names = ["/dev/null" if oid is None else f"{side}/{path}" for side, oid in zip("ab", oids, strict=True)]
            old, new = texts[0].splitlines(), texts[1].splitlines()
            lines = difflib.unified_diff(old, new, names[0], names[1], lineterm="")
            body = "".join(f"{line}\n" for line in lines)
        parts.append(head + body)
        size += len(parts[-1])
        if size > _MAX_DIFF:
            parts.append("The diff is too long to be shown whole.\n")
            break
    return "".join(parts)


def _text(trees: Trees, blobs: Blobs, oid: str | None) -> str | None:
    """The text of a file, empty where there is none; None where it is no text or too long."""
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
