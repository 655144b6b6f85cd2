"""How far are trained networks from the least mass that rescaling their neurons can reach?"""

from ckptzoo.studies.mass.study import Masses, mass

__all__ = ["Masses", "mass"]
