"""What is left of the posterior of two last-layer weights once scales and permutations are removed?"""

from ckptzoo.studies.toy.study import Toy, toy

__all__ = ["Toy", "toy"]
