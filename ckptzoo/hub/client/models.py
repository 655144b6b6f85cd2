"""The answers of a hub as small frozen records, and how they are read from those of the client library."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class RepoFile(NamedTuple):
    """A file of a repository: its size in bytes, its sha256 if it is in LFS storage, and the id that git gives it."""

    size: int
    sha256: str | None
    oid: str | None


WITHOUT_WRITE = ("read", "contribute")
"""Roles of tokens that may not commit; ``ckptzoo serve`` has the second."""


@dataclass(frozen=True)
class RevisionListing:
    """A commit, the files it holds by name, and where the hub says so whether the repository is private, and what the
    token may do there.
    """

    commit: str
    files: dict[str, RepoFile]
    private: bool | None = None
    role: str | None = None


class Committed(NamedTuple):
    """A commit that was acknowledged, and the bytes that were sent for it, which are none of what the hub had."""

    commit: str
    sent: int


class PullRequest(NamedTuple):
    """A pull request that was opened, and its page where the hub has pages."""

    number: int
    url: str | None


@dataclass(frozen=True)
class TokenOwner:
    """The user a token belongs to, and its role; None where the hub does not say."""

    name: str
    role: str | None
    organizations: tuple[str, ...]


@dataclass(frozen=True)
class Comment:
    """One comment; the first one of a pull request is its description."""

    author: str
    text: str


@dataclass(frozen=True)
class Discussion:
    """A discussion or a pull request.

    ``status`` is ``draft``, ``open``, ``closed`` or ``merged``; ``url`` its page, None where the hub has no pages;
    ``revision`` is ``refs/pr/7`` of a pull request, else None; ``merged`` the commit that merged it, or None. In
    listings ``comments``, ``commits`` (its own, in order) and ``conflicts`` (files that both sides changed) are empty.
    """

    number: int
    title: str
    author: str
    status: str
    url: str | None
    revision: str | None
    comments: tuple[Comment, ...] = ()
    conflicts: tuple[str, ...] = ()
    merged: str | None = None
    commits: tuple[str, ...] = ()


@dataclass(frozen=True)
class RepoFound:
    """A repository that matches a search; ``card`` is the front matter of its README.md."""

    id: str
    sha: str | None
    tags: tuple[str, ...]
    downloads: int
    likes: int
    updated: datetime | None
    private: bool
    card: dict[str, Any]


def repo_file_of(sibling: Any) -> RepoFile:
    """Convert a file of the client library."""
    lfs = sibling.lfs
    # huggingface_hub has sizes of files where files_metadata was asked for
    if sibling.size is None:
        raise ValueError(f"{sibling.rfilename}: no size")
    return RepoFile(sibling.size, None if lfs is None else lfs.sha256, sibling.blob_id)


def discussion_of(item: Any, *, pages: bool) -> Discussion:
    """Convert a discussion of the client library, with details or without; ``pages``: the hub has web pages."""
    # huggingface_hub lists discussions without events (Discussion); DiscussionWithDetails has them
    comments = [event for event in getattr(item, "events", ()) if event.type == "comment"]
    conflicts = getattr(item, "conflicting_files", None) or ()
    return Discussion(
        item.num,
        item.title,
        item.author,
        item.status,
        # huggingface_hub makes an address of any endpoint, whether there is such a page or not
        item.url if pages else None,
        f"refs/pr/{item.num}" if item.is_pull_request else None,
        tuple(Comment(event.author, event.content) for event in comments),
        ("some files",) if conflicts is True else tuple(conflicts),  # True: the hub does not say which
        getattr(item, "merge_commit_oid", None),
        tuple(event.oid for event in getattr(item, "events", ()) if event.type == "commit"),
    )


def repo_found_of(item: Any) -> RepoFound:
    """Convert a repository of the client library."""
    card = item.card_data.to_dict() if item.card_data is not None else {}
    counts = (item.downloads or 0, item.likes or 0)
    return RepoFound(item.id, item.sha, tuple(item.tags or ()), *counts, item.last_modified, bool(item.private), card)
