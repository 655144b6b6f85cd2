"""How a request is refused."""

from collections.abc import Mapping

from ckptzoo.errors import ZooError


class Refusal(ZooError):
    """A request that is refused.

    Parameters
    ----------
    status
        of HTTP.
    message
        for the client.
    code
        the hub's name for it (``RepoNotFound``, ``RevisionNotFound``, ``EntryNotFound``), which the clients turn into
        their exceptions.
    headers
        further headers of the response.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status, self.message, self.code, self.headers = status, message, code, dict(headers or {})
        super().__init__(message)


def no_repository(name: str) -> Refusal:
    """There is no such repository, or it is private and the caller may not know of it."""
    return Refusal(404, f"Repository not found: {name}", code="RepoNotFound")


def lacking(needed: str, role: str | None, place: str = "here") -> Refusal:
    """The caller may not do what was asked."""
    return Refusal(403, f"Expected a token that may {needed} {place}, got one that may {role or 'do nothing'}")


def no_revision(name: str) -> Refusal:
    """No branch, tag, pull request or commit has this name."""
    return Refusal(404, f"Invalid rev id: {name}", code="RevisionNotFound")


def no_entry(path: str, headers: Mapping[str, str] | None = None) -> Refusal:
    """No file or folder has this path."""
    return Refusal(404, f"Entry not found: {path}", code="EntryNotFound", headers=headers)
