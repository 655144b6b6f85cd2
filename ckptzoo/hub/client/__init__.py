"""Asking a hub: the one folder that knows the client library's ``HfApi``, and what its answers and refusals mean."""

from ckptzoo.hub.client.client import Client
from ckptzoo.hub.client.models import Discussion, Listing, RepoFile, RepoFound
from ckptzoo.hub.client.retry import HubRetryPolicy, NotThereError, RaceError

__all__ = ["Client", "Discussion", "HubRetryPolicy", "Listing", "NotThereError", "RaceError", "RepoFile", "RepoFound"]
