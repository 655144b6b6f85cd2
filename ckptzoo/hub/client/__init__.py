"""Asking a hub: the one folder that knows the client library's ``HfApi``, and what its answers and refusals mean."""

from ckptzoo.hub.client.answers import Discussion, Listing, RepoFound, Stored
from ckptzoo.hub.client.asking import Bounds, NotThereError, RaceError
from ckptzoo.hub.client.client import Client

__all__ = ["Bounds", "Client", "Discussion", "Listing", "NotThereError", "RaceError", "RepoFound", "Stored"]
