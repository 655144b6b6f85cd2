"""Decide on a contribution: every check again, from the bytes on the hub."""

from ckptzoo.hub.reviewing.result import Review
from ckptzoo.hub.reviewing.review import review

__all__ = ["Review", "review"]
