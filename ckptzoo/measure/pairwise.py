"""The difference of predictions of pairs of members: the mutual information of every ensemble of two."""

import math
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.measure.panels import run_tasks

WIDTH = 4096
"""Probabilities of one member that are summed in float32 at a time; sums of these are in float64."""
ROWS = 8
"""Members that are paired with one other in one call: three arrays of ``ROWS * WIDTH`` float32 fit a core's cache."""
_LANES = 64
"""The maximum number of sums that compiled code holds at once; a remainder would be summed one by one."""
COMPILED_MEMBERS = 100
"""The number of members from which on Numba is used where it is installed: fewer are done before it has compiled."""

Values = NDArray[np.float64]
Single = NDArray[np.float32]


class PairwiseInformation:
    r"""The mutual information of prediction and member for every pair of M members, added up over inputs.

    .. math:: I_{ij} = \frac{1}{N} \sum_n \left[ H\left( \frac{p_{in} + p_{jn}}{2} \right)
        - \frac{H(p_{in}) + H(p_{jn})}{2} \right]

    in nats: what ``ckptzoo.measure.predictions.mutual_information`` gives for the ensemble of i and j (Houlsby et al.,
    arXiv 1112.5745, equation 2; of pairs, as functional diversity: arXiv 2310.08287, section 5.1), and the
    Jensen-Shannon divergence of the two predictions (Lin, "Divergence measures based on the Shannon entropy", 1991).
    Inputs come block by block, in any order, and are not kept.

    ``members`` is M, 2 or more; ``inputs`` is N, the number of inputs added. Raises ``ZooError`` if there are fewer
    than two members.

    Time M^2 / 2 logarithms for every input and class, on all cores: 1 ns each of one core with Numba
    (``ckptzoo[fast]``, for ``COMPILED_MEMBERS`` and more), 4 ns with numpy (``benchmarks/pairwise_mi.py``). Memory 8
    M^2 bytes, and for a block 32 bytes for each of ``WIDTH`` probabilities of every member.

    Probabilities are float64, their halves and the sums of up to ``WIDTH`` of them float32. With H the mean entropy of
    the average prediction, at most log C, the error of :math:`I_{ij}` is at most ``(70 H + 4) 2^-24``, 1e-5 nats for 10
    classes, as far as the logarithm in float32 is within 4 units in the last place: per entropy 2 (H + 1) units from
    rounding a probability and a sum of two, 8 H from the logarithm, H from the product, and 24 H from summation, which
    is pairwise in numpy, and compiled for vectors of 16 sums or more. Typical errors are 1e-7, or 3e-8 on 10,000
    inputs. Members that predict the same have exactly 0. Numba's results and numpy's differ within these errors. Tested
    in ``tests/measure/test_pairwise.py``.

    Examples
    --------
    >>> pairs = PairwiseInformation(2)
    >>> pairs.add([[[9.0, 0.0]], [[0.0, 0.0]]])  # one input: the first is sure of a class, the second of none
    >>> pairs.mutual_information.round(4).tolist()
    [[0.0, 0.2152], [0.2152, 0.0]]
    """

    def __init__(self, members: int) -> None:
        if members < 2:
            raise ZooError(Problem("pairwise information", "members", "2 or more", str(members), "Pass others."))
        self.members, self.inputs = members, 0
        # the sums of m log m for the averages m of two, on the diagonal of single members, above it of pairs
        self._sums = np.zeros((members, members))

    def add(self, logits: ArrayLike) -> None:
        """Add the outputs of some inputs.

        ``logits`` are (M, n, C) logits, or logarithms of probabilities: both are normalised here. -inf is probability
        0. Raises ``ZooError`` if the shape does not fit, or an input has logits that are NaN, infinite, or all -inf.
        """
        array = np.asarray(logits)
        if array.ndim != 3 or len(array) != self.members or not array.shape[2]:
            expected, got = f"({self.members}, n, C)", str(array.shape)
            step = "Pass logits of the same members."
            raise ZooError(Problem("pairwise information", "shape of the logits", expected, got, step))
        step = max(1, WIDTH // array.shape[2])
        for start in range(0, array.shape[1], step):
            self._add(_half_probabilities(array[:, start : start + step]))
        self.inputs += array.shape[1]

    @property
    def mutual_information(self) -> Values:
        """(M, M) float64 in 0 .. log 2, symmetric, 0 on the diagonal.

        Raises ``ZooError`` if no inputs were added.
        """
        if not self.inputs:
            raise ZooError(Problem("pairwise information", "inputs", "at least one", "none", "Add some first."))
        of_members = self._sums.diagonal()
        information = (of_members[:, None] + of_members) / 2 - self._sums
        above = np.triu(information / self.inputs, 1).clip(0, math.log(2))  # rounding leaves the range
        return above + above.T

    def _add(self, halves: Single) -> None:
        """Add the inputs that these halves of probabilities, (M, w), belong to."""

        def compiled() -> Callable[[int], None]:
            from ckptzoo.measure.pairwise_compiled import add_columns

            return lambda start: add_columns(halves, self._sums, start, min(start + ROWS, self.members))

        def worker() -> Callable[[int], None]:
            means, terms = np.empty((2, ROWS, halves.shape[1]), np.float32)

            def add_columns(start: int) -> None:
                """Pairs j in ``start .. start + ROWS - 1``, i up to j."""
                stop = min(start + ROWS, self.members)
                for i in range(stop):
                    first = max(i, start)
                    mean, term = means[: stop - first], terms[: stop - first]
                    np.add(halves[first:stop], halves[i], out=mean)
                    np.log(mean, out=term)
                    np.multiply(mean, term, out=term)
                    self._sums[i, first:stop] += term.sum(axis=1)

            return add_columns

        fast = self.members >= COMPILED_MEMBERS and find_spec("numba") is not None
        # the longest first, so that no thread is left with one at the end
        run_tasks(reversed(range(0, self.members, ROWS)), compiled if fast else worker)


def pairwise_mutual_information(logits: ArrayLike) -> Values:
    """The mutual information of prediction and member for every pair of members, mean over the inputs, in nats.

    ``logits`` are (M, N, C) logits, or logarithms of probabilities, of M members, 2 or more, on N inputs, 1 or more.
    Returns (M, M) float64 in 0 .. log 2, symmetric, 0 on the diagonal. Raises ``ZooError`` if the shape does not fit,
    or a logit is NaN, infinite, or all of an input are -inf. ``PairwiseInformation`` has the equation, cost and error,
    and takes the inputs in blocks.
    """
    array = np.asarray(logits)
    pairs = PairwiseInformation(len(array) if array.ndim else 0)
    pairs.add(array)
    return pairs.mutual_information


def _half_probabilities(logits: NDArray[np.generic]) -> Single:
    """(M, w) half the softmax of (M, n, C), none of them 0, and up to a multiple of ``_LANES`` nearly 0."""
    values = logits.astype(np.float64)
    largest = values.max(axis=2, keepdims=True)
    if not np.isfinite(largest).all():  # NaN where any is, -inf where all are
        bad = np.flatnonzero(~np.isfinite(largest).all(axis=(1, 2)))
        got = f"others of {'member' if len(bad) == 1 else 'members'} {', '.join(map(str, bad[:8].tolist()))}"
        got += ", ..." if len(bad) > 8 else ""
        raise ZooError(Problem("pairwise information", "logits", "finite ones", got, "Leave them out."))
    values -= largest
    np.exp(values, out=values)
    values /= 2 * values.sum(axis=2, keepdims=True)
    flat = values.reshape(len(values), -1)
    # 0 log 0 is 0, but not in floats; the least normal number is as good
    least = np.finfo(np.float32).tiny
    halves = np.full((len(flat), -(-flat.shape[1] // _LANES) * _LANES), least)
    np.maximum(flat, least, out=halves[:, : flat.shape[1]], casting="same_kind")
    return halves
