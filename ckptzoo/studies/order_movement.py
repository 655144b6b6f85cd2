"""How the orders of members change between two steps, against keys that move by independent noise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.measure.ranks import kendall, noise_tau, normal_tau, normal_tau_sd
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.symmetry.transpositions import random_transpositions, transpositions

ENOUGH = 8
"""The minimum number of members for a reading: the spread of fewer says too little."""
SIGMAS = 3
"""A tau within this number of standard errors of what is expected counts as equal to it."""
MORE, AS, LESS, UNKNOWN = "more", "as", "less", "unknown"
"""How much of an order is kept, compared with what is expected."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Movement(JsonFields, derived=("noise", "than_noise", "normal", "than_normal")):
    """One order at two steps; means over members, which are independent, with standard errors over them.

    An order holds ``n`` things; a member's figures are means over its ``orders``, and ``members`` have both steps.
    ``tau`` is Kendall's, between the ranks at the two steps; ``transpositions`` lead from one order to the other;
    ``changed`` is the share of the orders that are not the same. ``distance`` is d, how far the keys moved: the
    standard deviation of their change over theirs at the first step, within orders, pooled over members, NaN where all
    keys are equal; ``correlation`` is that of the keys at the two steps, pooled in the same way. ``noise_error`` and
    ``normal_error`` are standard errors of ``tau - noise`` and of ``tau - normal``: by the jackknife over members, or
    where that is larger the error that normal keys would have. Errors are None for a single member.
    """

    label: str
    n: int
    orders: int
    first: int
    second: int
    members: int
    tau: float
    tau_se: float | None
    transpositions: float
    transpositions_se: float | None
    changed: float
    distance: float
    correlation: float
    noise_error: float | None
    normal_error: float | None

    @property
    def noise(self) -> float:
        """The tau expected had every key moved as far by independent normal noise."""
        return float(noise_tau(self.distance))

    @property
    def normal(self) -> float:
        """The tau expected of normal keys with the measured correlation."""
        return float(normal_tau(self.correlation))

    @property
    def than_noise(self) -> str:
        """How much of the order is kept, compared with independent noise of that size; one of the four constants."""
        return self._compared(self.noise, self.noise_error)

    @property
    def than_normal(self) -> str:
        """How much of the order is kept, compared with normal keys of that correlation."""
        return self._compared(self.normal, self.normal_error)

    def _compared(self, expected: float, error: float | None) -> str:
        if self.members < ENOUGH or error is None or not np.isfinite(expected + error):
            return UNKNOWN
        excess = self.tau - expected
        if abs(excess) <= SIGMAS * error + 1e-9:  # the error can be 0: rounding is no excess
            return AS
        return MORE if excess > 0 else LESS

    def to_json(self) -> Document:
        return {**super().to_json(), "random": {"tau": 0.0, "transpositions": random_transpositions(self.n)}}


@dataclass(frozen=True, eq=False)
class MemberMovements:
    """One order of some members at two steps, one figure a member: (M,) each.

    ``changed`` is the share of the member's orders that are not the same at both steps; ``before``, ``after`` and
    ``change`` are sums of squares of the keys and of their change, within orders; ``product`` has sums of products of
    the keys before and after, within orders.
    """

    tau: Values
    transpositions: Values
    changed: Values
    before: Values
    after: Values
    change: Values
    product: Values

    @classmethod
    def of(
        cls, ranks: tuple[NDArray[np.int64], NDArray[np.int64]], keys: tuple[NDArray[np.float64], NDArray[np.float64]]
    ) -> "MemberMovements":
        """Make it from ranks and keys at the two steps, (M, v, n) each."""
        first, second = ranks
        # the second ranks in the first order: a permutation that is the identity where nothing moved
        relative = np.take_along_axis(second, np.argsort(first, axis=2), 2)
        before, after = (values - values.mean(axis=2, keepdims=True) for values in keys)
        exchanges = transpositions(relative)
        return cls(
            kendall(first, second).mean(axis=1),
            exchanges.mean(axis=1),
            (exchanges > 0).mean(axis=1),
            np.square(before).sum(axis=(1, 2)),
            np.square(after).sum(axis=(1, 2)),
            np.square(after - before).sum(axis=(1, 2)),
            (before * after).sum(axis=(1, 2)),
        )

    @classmethod
    def join(cls, parts: "list[MemberMovements]") -> "MemberMovements":
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def movement(self, label: str, n: int, orders: int, pair: tuple[int, int]) -> Movement:
        """Average over the members, of which there is at least one."""
        members = len(self.tau)
        sums = np.array([self.before, self.after, self.change, self.product])
        total = sums.sum(axis=1, keepdims=True)
        distance, correlation = (float(value[0]) for value in _distance_and_correlation(total))
        # for the jackknife: all figures again without each member in turn
        without = _distance_and_correlation(total - sums)
        tau = (self.tau.sum() - self.tau) / max(1, members - 1)
        # keys x and x + d s e have the correlation 1 / sqrt(1 + d^2)
        noise_correlation = 1 / float(np.hypot(1, distance))
        return Movement(
            label,
            n,
            orders,
            pair[0],
            pair[1],
            members,
            float(self.tau.mean()),
            _error(self.tau),
            float(self.transpositions.mean()),
            _error(self.transpositions),
            float(self.changed.mean()),
            distance,
            correlation,
            # a member's tau is a mean over its orders, of which each has that deviation
            _excess_error(tau - noise_tau(without[0]), float(normal_tau_sd(noise_correlation, n)) / orders**0.5),
            _excess_error(tau - normal_tau(without[1]), float(normal_tau_sd(correlation, n)) / orders**0.5),
        )


def _distance_and_correlation(sums: Values) -> tuple[Values, Values]:
    """d and r from (4, M) sums: of squares before, after and of the change, and of products."""
    # a sum less one member's share can round to below 0
    before, after, change, product = sums.clip([[0], [0], [0], [-np.inf]])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(change / before), (product / np.sqrt(before * after)).clip(-1, 1)


def _error(values: Values) -> float | None:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


def _excess_error(without: Values, sd: float) -> float | None:
    """The error of a figure from its values without each member, not below that of means with this deviation."""
    members = len(without)
    if members < 2:
        return None
    # the jackknife's variance is (m - 1) / m times the sum of squares (Efron, 1979)
    jackknifed = np.sqrt((members - 1) / members) * np.linalg.norm(without - without.mean())
    return float(np.maximum(jackknifed, sd / members**0.5))
