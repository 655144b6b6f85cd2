"""Validation of names from clients: of repositories, branches and files."""

import re
from urllib.parse import unquote

from ckptzoo.server.errors import Refusal

KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
"""The kinds of repositories, as addresses and as bodies name them."""

RESERVED = frozenset({*KINDS, "api", "_blobs", "_uploads"})
"""First segments of the server's own addresses, which no repository may have."""
# 96 characters at most, as huggingface_hub.utils.validate_repo_id allows; remote/address.py and schema/card.py, too.
_SEGMENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_BRANCH = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/+-]{0,198}[A-Za-z0-9_+-])?")
_WINDOWS_DEVICE = re.compile(r"(?i)(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?")
_MAX_PATH, _MAX_PART = 1024, 255
"""Bytes; 255 is the limit of the usual file systems for one name."""
_MAX_LEVELS = 32
"""The largest number of levels of a path; each is a folder that a commit stores again."""


def decoded(raw: str) -> str:
    """Return the text of a percent-encoded piece of an address."""
    try:
        return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise Refusal(400, "The address is not UTF-8.") from None


def checked_id(name: str) -> str:
    """Return ``namespace/name``, by the rule of ``huggingface_hub.utils.validate_repo_id``."""
    parts = name.split("/")
    if (
        len(parts) != 2
        or not all(_SEGMENT.fullmatch(part) for part in parts)
        # huggingface_hub names the cache folder of a repository datasets--namespace--name
        or "--" in name
        or ".." in name
        or name.endswith(".git")
        or parts[0].lower() in RESERVED
    ):
        raise Refusal(400, f"Repository: expected namespace/name of letters, digits, '-', '_', '.', got {name!r}.")
    return name


def checked_user(name: str) -> str:
    """Return the name of an account, which is the namespace of its repositories."""
    try:
        checked_id(f"{name}/name")
    except Refusal:
        raise Refusal(400, f"User: expected a name of letters, digits, '-', '_', '.', got {name!r}.") from None
    return name


def checked_branch(name: str) -> str:
    """Return a name for a branch or a tag that is not a path upwards, a commit, or a ref in full."""
    forbidden = ("..", "//", "/.", "./", ".lock")  # as in git check-ref-format
    if not _BRANCH.fullmatch(name) or any(part in name for part in forbidden) or name.startswith("refs/"):
        raise Refusal(400, f"Reference: expected a short name of letters, digits, '-', '_', '.', '/', got {name!r}.")
    # a revision may be a commit, and git writes those as 40 hex digits
    if re.fullmatch(r"[0-9a-f]{40}", name):
        raise Refusal(400, f"Reference: expected a name, got what reads like a commit, {name!r}.")
    return name


def checked_path(path: str) -> str:
    """Return a relative file name that means the same file on every system.

    Parts are separated by ``/``; none is empty, ``.``, ``..`` or ``.git``, none holds a control character, a backslash
    or a colon, and none is a device of Windows.
    """
    problem = _problem(path)
    if problem is not None:
        raise Refusal(400, f"File name: expected a relative path, got {path[:200]!r} ({problem}).")
    return path


def _problem(path: str) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "not Unicode"
    if size > _MAX_PATH:
        return f"over {_MAX_PATH} bytes"
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 or letter in "\\:" for letter in path):
        return "a control character, a backslash or a colon"
    if path.count("/") >= _MAX_LEVELS:
        return f"over {_MAX_LEVELS} levels"
    for part in path.split("/"):
        # a folder .GIT is git's own where case does not count (CVE-2014-9390)
        if part in ("", ".", "..") or part.lower() == ".git":
            return "an empty part, '.', '..' or '.git'"
        if len(part.encode()) > _MAX_PART:
            return f"a part over {_MAX_PART} bytes"
        # Windows takes nul.txt for the device, and drops a final dot or space
        if _WINDOWS_DEVICE.fullmatch(part) or part[-1] in ". ":
            return "a part that Windows cannot store"
    return None
