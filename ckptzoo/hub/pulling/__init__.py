"""Fetch a zoo, or a part of one that is itself a zoo."""

from ckptzoo.hub.pulling.pull import pull
from ckptzoo.hub.pulling.result import Pulled

__all__ = ["Pulled", "pull"]
