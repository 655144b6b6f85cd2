"""Strangers' checkpoint files as named arrays: read as data, in a process of their own, refused by name otherwise."""

from ckptzoo.hub.untrusted.api import read, read_all
from ckptzoo.hub.untrusted.formats import SUFFIXES
from ckptzoo.hub.untrusted.limits import Limits, Read, StateDict

__all__ = ["SUFFIXES", "Limits", "Read", "StateDict", "read", "read_all"]
