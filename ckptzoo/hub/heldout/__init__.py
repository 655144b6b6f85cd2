"""Test sets of images that lie on this machine, read in bounded memory and checked.

Networks are measured on them: by who contributes checkpoints, and again by who reviews a contribution.
"""

from ckptzoo.hub.heldout.images import FOLDER_VARIABLE, HeldOut, find, folder_of

__all__ = ["FOLDER_VARIABLE", "HeldOut", "find", "folder_of"]
