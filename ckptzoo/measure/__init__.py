"""What can be measured of arrays of weights and predictions. Pure arrays, no files."""

from ckptzoo.measure.distances import Distances
from ckptzoo.measure.mmd import MMDTest, mmd2, mmd_test, p_value

__all__ = ["Distances", "MMDTest", "mmd2", "mmd_test", "p_value"]
