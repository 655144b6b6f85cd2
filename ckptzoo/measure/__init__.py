"""Measurements of arrays of weights and predictions. Pure arrays, no files."""

from ckptzoo.measure.barriers import Barriers, barriers
from ckptzoo.measure.cka import linear_cka
from ckptzoo.measure.convergence import Convergence, convergence, tail_ess
from ckptzoo.measure.distances import Distances
from ckptzoo.measure.gaussians import divergence, signal_to_noise, wasserstein
from ckptzoo.measure.mmd import MMDTest, mmd2, mmd_test, p_value
from ckptzoo.measure.permutation_tests import Independence, independence

__all__ = [
    "Barriers",
    "Convergence",
    "Distances",
    "Independence",
    "MMDTest",
    "barriers",
    "convergence",
    "divergence",
    "independence",
    "linear_cka",
    "mmd2",
    "mmd_test",
    "p_value",
    "signal_to_noise",
    "tail_ess",
    "wasserstein",
]
