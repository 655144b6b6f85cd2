"""A hub's API: the only package that uses the client library's ``HfApi`` and knows its answers and errors."""

from ckptzoo.hub.client.client import Client
from ckptzoo.hub.client.models import Discussion, Listing, RepoFile, RepoFound
from ckptzoo.hub.client.retry import HubRetryPolicy, NotThereError, RaceError

__all__ = ["Client", "Discussion", "HubRetryPolicy", "Listing", "NotThereError", "RaceError", "RepoFile", "RepoFound"]
