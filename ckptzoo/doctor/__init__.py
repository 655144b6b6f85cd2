"""Whether an installation, its machine, its hub and a zoo are as they should be: ``examine``; nothing is changed.

::

    installation    Python, packages, extras with the commands that install them, the GPU
    machine         memory, limits, the cache and its file system
    hub             whether the hub answers, and whose token there is
    zoo             whether a zoo opens, its snapshot, what is not derived yet, one block of its weights
"""

from ckptzoo.checks import NOTE, OK, PROBLEM, Check
from ckptzoo.doctor.examination import Examination, examine

__all__ = ["NOTE", "OK", "PROBLEM", "Check", "Examination", "examine"]
