"""Strangers' checkpoint files as named arrays: read as data, in a process of their own, refused by name otherwise."""

from ckptzoo.hub.intake.found import Found, Limits, Read
from ckptzoo.hub.intake.kinds import SUFFIXES
from ckptzoo.hub.intake.reading import read, read_all

__all__ = ["SUFFIXES", "Found", "Limits", "Read", "read", "read_all"]
