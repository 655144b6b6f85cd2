"""How a request is refused, and how much a client may ask for."""

from collections.abc import Mapping
from dataclasses import dataclass

from ckptzoo.errors import ZooError


class Refusal(ZooError):
    """A request that is refused.

    Parameters
    ----------
    status : of HTTP.
    message : for the client.
    code : the hub's name for it (``RepoNotFound``, ``RevisionNotFound``, ``EntryNotFound``), which the clients
        turn into their exceptions.
    headers : further headers of the response.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status, self.message, self.code, self.headers = status, message, code, dict(headers or {})
        super().__init__(message)


def no_repository(name: str) -> Refusal:
    """There is no such repository, or it is private and the caller may not know of it."""
    return Refusal(404, f"Repository not found: {name}", code="RepoNotFound")


def no_revision(name: str) -> Refusal:
    """No branch, tag, pull request or commit has this name."""
    return Refusal(404, f"Invalid rev id: {name}", code="RevisionNotFound")


def no_entry(path: str, headers: Mapping[str, str] | None = None) -> Refusal:
    """No file or folder has this path."""
    return Refusal(404, f"Entry not found: {path}", code="EntryNotFound", headers=headers)


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds of the server; sizes in bytes, times in seconds."""

    json_bytes: int = 8 * 2**20
    """A body of JSON or of a form."""
    line_bytes: int = 16 * 2**20
    """One line of a commit, with a small file in base64."""
    commit_bytes: int = 512 * 2**20
    """All lines of a commit."""
    commit_files: int = 20_000
    """Operations of a commit."""
    inline_bytes: int = 2**20
    """Text files up to this size are sent within the commit and served without a redirect."""
    file_bytes: int = 50 * 10**9
    """One file; the clients refuse larger ones over plain HTTP."""
    part_bytes: int = 64 * 2**20
    """Larger files are uploaded in parts of this size."""
    parts: int = 10_000
    """Parts of one upload."""
    batch_files: int = 1000
    """Files of one request about uploads, and paths of one request about paths."""
    page: int = 1000
    """Entries of a page of a tree, and repositories of a page of a listing."""
    small_page: int = 50
    """Entries of a page with the last commit of each, and commits or discussions of a page."""
    address_seconds: float = 3600
    """A signed address is good for this long."""
    drain_bytes: int = 64 * 2**20
    """How much of a refused body is still read, because clients read the answer after they have sent everything."""
