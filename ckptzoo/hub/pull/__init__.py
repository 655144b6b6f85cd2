"""Fetch a zoo, or a part of one that is itself a zoo."""

from ckptzoo.hub.pull.api import Pulled, pull

__all__ = ["Pulled", "pull"]
