"""How are the weights of each layer distributed, with symmetries and without?"""

from ckptzoo.studies.marginals.study import Marginals, marginals

__all__ = ["Marginals", "marginals"]
