"""How does the order of a network's neurons move during training?"""

from ckptzoo.studies.permutations.study import Permutations, permutations

__all__ = ["Permutations", "permutations"]
