"""A hub's API: the only package that uses the client library's ``HfApi`` and knows its answers and errors."""

from ckptzoo.hub.client.client import Client
from ckptzoo.hub.client.models import Discussion, RepoFile, RepoFound, RevisionListing
from ckptzoo.hub.client.retry import HubRetryPolicy, NotThereError, RaceError

__all__ = [
    "Client",
    "Discussion",
    "HubRetryPolicy",
    "NotThereError",
    "RaceError",
    "RepoFile",
    "RepoFound",
    "RevisionListing",
]
