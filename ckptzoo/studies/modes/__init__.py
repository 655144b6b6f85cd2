"""How many modes does the posterior have? What symmetry alone makes of one, and what mean shift finds."""

from ckptzoo.studies.modes.study import Modes, modes

__all__ = ["Modes", "modes"]
