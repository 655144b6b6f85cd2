"""The errors with which a request is refused."""

from collections.abc import Mapping

from ckptzoo.errors import ZooError


class Refusal(ZooError):
    """A request that is refused, with an HTTP status and a message for the client.

    ``code`` is the hub's name for the error (``RepoNotFound``, ``RevisionNotFound``, ``EntryNotFound``), which the
    clients turn into their exceptions; ``headers`` are further headers of the response.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status, self.message, self.code, self.headers = status, message, code, dict(headers or {})
        super().__init__(message)


def no_repository(name: str) -> Refusal:
    """Return the error for a repository that does not exist, or is private and the caller may not know of it."""
    return Refusal(404, f"Repository not found: {name}", code="RepoNotFound")


def lacking(needed: str, role: str | None, place: str = "here") -> Refusal:
    """Return the error for an action that the caller has no permission for."""
    return Refusal(403, f"Expected a token that may {needed} {place}, got one that may {role or 'do nothing'}")


def no_revision(name: str) -> Refusal:
    """Return the error for a name that no branch, tag, pull request or commit has."""
    return Refusal(404, f"Invalid rev id: {name}", code="RevisionNotFound")


def no_entry(path: str, headers: Mapping[str, str] | None = None) -> Refusal:
    """Return the error for a path that no file or folder has."""
    return Refusal(404, f"Entry not found: {path}", code="EntryNotFound", headers=headers)
