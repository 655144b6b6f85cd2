"""How a request is turned away."""

from collections.abc import Mapping

from ckptzoo.errors import ZooError


class Refusal(ZooError):
    """A request that is turned away.

    Parameters
    ----------
    status : of HTTP.
    message : what the client is told.
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
    """There is none, or it is private and the client may not know of it."""
    return Refusal(404, f"Repository not found: {name}", code="RepoNotFound")


def no_revision(name: str) -> Refusal:
    """No branch, tag, pull request or commit has this name."""
    return Refusal(404, f"Invalid rev id: {name}", code="RevisionNotFound")


def no_entry(path: str, headers: Mapping[str, str] | None = None) -> Refusal:
    """No file or folder has this path."""
    return Refusal(404, f"Entry not found: {path}", code="EntryNotFound", headers=headers)
