"""How good are single members, how good are ensembles of them, and from which size on do they gain no more?"""

from ckptzoo.studies.ensembles.result import Ensembles
from ckptzoo.studies.ensembles.study import ensembles

__all__ = ["Ensembles", "ensembles"]
