"""The interface of kinds of symmetry, through which elements, counts, gauges and alignment work with every kind.

A group of channels has two kinds: which permutations it has (``permutation.py``), and what multiplies its channels
(``scale.py``, ``linear.py``, ``orthogonal.py``, ``complex.py``). Kinds have no state. Their methods take the group,
stacked values of K networks, and ``shared``, in which kinds that depend on one another find earlier results: the
permutation of a group under its id, and that of blocks that several groups share under ``*<outer>``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.groups import AxisAction, Group
from ckptzoo.symmetry.kinds.assignment import gained

Part = Literal["perms", "scales", "matrices"]
Shared = MutableMapping[str, np.ndarray]
Counts = Sequence[tuple[int, int]]
"""A number as a product of powers of factorials: (n, power) for each ``n! ** power``."""


class Kind(ABC):
    """One kind of symmetry: one part of a group element, for one group of channels.

    ``new = value . moved(old)``, with ``moved`` the permutation of the channels.
    """

    part: ClassVar[Part]
    """The attribute of ``GroupElement`` that has its values, (K, ...)."""
    among: str = "none"
    """The scales among its values, beside permutations: their place in a table of permutations and scales."""
    signs: str = "none"
    """The scales that are left where sizes, and matrices up to signs of channels, are settled."""
    sizes: str = "none"
    """The scales among its values that only resize."""
    keeps_mean: bool = False
    """Whether no value changes the mean of the channels."""
    roundings: ClassVar[int] = 4
    """Units of the stored precision by which the weights of one network in the gauge ``canonical`` differ at most."""
    gauge_error: float = 0.0
    """The relative error of what that gauge settles."""
    stays_open: ClassVar[bool] = False
    """Whether it leaves more open than an order of channels and signs, so that only smooth numbers can be compared."""

    @property
    def beside_gains(self) -> str:
        """The scales among its values where the gains of normalisations have scales of their own."""
        return self.among

    @abstractmethod
    def identity(self, group: Group, K: int) -> np.ndarray:
        """Return the K-fold identity."""

    @abstractmethod
    def random(self, group: Group, K: int, rng: np.random.Generator, spread: float, shared: Shared) -> np.ndarray:
        """Draw K values, uniform where the group is compact; ``spread`` is that of the logarithms of sizes."""

    @abstractmethod
    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Raise ``refused`` for what is no value of the group, whose permutation is ``perm``."""

    @staticmethod
    @abstractmethod
    def moved(value: Any, perm: Any) -> Any:
        """Return values in the order that a permutation (K, n) gives the channels."""

    @staticmethod
    @abstractmethod
    def product(second: Any, first: Any) -> Any:
        """Return the product of one value with an earlier one, which is moved already."""

    @staticmethod
    @abstractmethod
    def inverse(value: Any) -> Any:
        """Return the inverse of a value, before it is moved back."""

    @staticmethod
    @abstractmethod
    def is_identity(value: np.ndarray) -> bool:
        """Whether all K values leave their channels alone."""

    def dimensions(self, group: Group) -> int:
        """Return the dimensions of matrices in one element."""
        return 0

    # How channels are described where rounding decides what a gauge leaves open.

    def turnings(self, group: Group) -> Sequence["Turning"]:
        """Return the features of a group's channels that are turned with them."""
        return ()

    def turned_by(self, action: AxisAction) -> bool:
        """Whether an action turns the channels, and does not only permute them."""
        return False

    # What it does to the mass, the sum of squared weights, from what the channels of a group write and read.

    def imbalance(self, written: "Side", read: "Side") -> tuple[np.ndarray, np.ndarray]:
        """Return by how much masses of both sides differ (K,), and the largest difference as a share of both."""
        off, total = np.abs(written.total - read.total), written.total + read.total
        return off.sum(axis=1), np.divide(off, total, out=np.zeros_like(total), where=total > 0).max(axis=1)

    def reach(self, side: "Side", mass: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
        """Return how far logarithms of values can move (K,) before a side has more than the mass (K,) of all.

        ``others`` are how far all else can move the other way, in each tensor of the side.
        """
        each = [
            other[:, None] + half_log(mass[:, None], size) for other, size in zip(others, side.squares, strict=True)
        ]
        # a channel without any mass moves none
        alive = np.maximum.reduce(list(side.squares)) > 0
        return np.where(alive, np.minimum.reduce(each), -np.inf).max(axis=1)

    def lost(self, written: "Side", read: "Side") -> np.ndarray:
        """Return (K,) the number of channels that no value reaches at the least mass."""
        return np.zeros(written.K, np.int64)


@dataclass(frozen=True)
class Turning:
    """Features (K, blocks * size, F) that signs or matrices change as they do the channels, one set a block."""

    key: str
    blocks: int
    size: int
    start: float = 0.0
    """The features of the first round: 1 where the vector of ones stays under the matrices, else 0."""


@dataclass(frozen=True, eq=False)
class Side:
    """The weights that the channels of a group write, or read, without biases.

    ``squares`` are the squared norms (K, n) by each of ``actions``; ``joined`` returns all weights of the channels of
    each block side by side, (K, blocks, k, m).
    """

    K: int
    n: int
    actions: Sequence[AxisAction]
    squares: Sequence[np.ndarray]
    joined: Callable[[], np.ndarray]

    @property
    def total(self) -> np.ndarray:
        """(K, n), the squared norms of all."""
        return sum(self.squares, np.zeros((self.K, self.n)))

    @cached_property
    def gram(self) -> np.ndarray:
        """(K, blocks, k, k), the products of channels."""
        rows = self.joined()
        return rows @ rows.swapaxes(-1, -2)

    @cached_property
    def least_eigenvalue(self) -> np.ndarray:
        """(K,), that of all Gram matrices, rows of zeros left out, which no matrix changes."""
        diagonal = np.diagonal(self.gram, axis1=-2, axis2=-1)
        # the trace bounds all eigenvalues, so that rows of zeros do not give the least one
        largest = np.maximum(np.trace(self.gram, axis1=-2, axis2=-1), 1e-300)[..., None]
        filled = self.gram + np.eye(self.gram.shape[-1]) * np.where(diagonal == 0, largest, 0)[..., None]
        return np.linalg.eigvalsh(filled)[..., 0].min(axis=1)


@dataclass(frozen=True, eq=False)
class Ties:
    """Vertices and edges that permutations of a group add to the graph that distinguishes channels which look alike.

    Parameters
    ----------
    colours
        (n,) integers; channels with different ones never change places.
    vertices
        names of further vertices and their numbers; groups with the same name share them.
    edges
        of each, the name of its ends there, or the group's id, their numbers (m,), and channels (m,). Edges between
        channels have a direction.
    places
        channels of a block that keep apart, in turns.
    """

    colours: np.ndarray
    vertices: Mapping[str, int] = field(default_factory=dict)
    edges: Sequence[tuple[str, np.ndarray, np.ndarray]] = ()
    places: int = 1


class Turn(IntEnum):
    """When a group has its turn in alignment: what depends least on the others comes first."""

    BLOCKS = 0
    CHANNELS = 1
    STREAM = 2


class BlockKind(Kind):
    """A kind whose values alignment finds block by block, while all other groups stay.

    From gains (..., k, k), ``sum <a_i, b_j>`` over all slices a of a reference and b of a network that a block has.
    """

    least_fall: ClassVar[float] = 0.0
    """The relative fall of the squared distance below which values are not taken."""

    def turn(self, group: Group) -> Turn:
        """Return when the group has its turn."""
        return Turn.CHANNELS

    def beside(self, group: Group, K: int) -> Mapping[complex, np.ndarray]:
        """Return values under which a network's products count in the gains too, by the factors of these."""
        return {}

    @abstractmethod
    def of_pairs(self, group: Group, gains: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the best values within all pairs of blocks, and the sums that they reach.

        The values are None where they take long: then ``best`` finds them for the pairs that are chosen.
        """

    @abstractmethod
    def best(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the values within blocks that fit best: of permutations (..., k), of matrices (K, g, k, k)."""

    @abstractmethod
    def greatest(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the sums that the best values reach (...)."""

    @staticmethod
    @abstractmethod
    def value(gains: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the sums (K,) that values reach, from the gains (K, g, k, k) of their blocks."""


class PermutationKind(BlockKind):
    """Permutations of a group's channels."""

    part = "perms"

    def identity(self, group: Group, K: int) -> np.ndarray:
        return np.tile(np.arange(group.n), (K, 1))

    def check(self, group: Group, value: np.ndarray, perm: np.ndarray, K: int, shared: Shared) -> None:
        """Raise for rows that are no permutations."""
        what = f"group {group.id!r}: perm"
        if value.shape != (K, group.n) or value.dtype.kind not in "iu":
            raise refused(what, f"({K}, {group.n}) integers", f"{value.shape} {value.dtype}")
        if (np.sort(value, axis=1) != np.arange(group.n)).any():
            raise refused(what, f"each of 0 to {group.n - 1} once in every row", "another row")

    @staticmethod
    def moved(value: Any, perm: Any) -> Any:
        return taken(value, perm)

    @staticmethod
    def product(second: Any, first: Any) -> Any:
        return first

    @staticmethod
    def inverse(value: Any) -> Any:
        return array_namespace(value).argsort(value, axis=1)

    @staticmethod
    def is_identity(value: np.ndarray) -> bool:
        return not (value != np.arange(value.shape[1])).any()

    def greatest(self, group: Group, gains: np.ndarray) -> np.ndarray:
        """Return the sums of the best permutations."""
        return gained(gains, self.best(group, gains))

    def of_pairs(self, group: Group, gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self.best(group, gains)
        return found, gained(gains, found)

    @staticmethod
    def value(gains: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return (K,) sums of the gains of every channel."""
        chosen = np.take_along_axis(gains, value[..., None], -1)
        return chosen.reshape(len(chosen), -1).sum(axis=-1, dtype=np.float64)

    def together(self, group: Group) -> str | None:
        """Return a name for the groups that are permuted jointly with it; None where nothing moves."""
        return group.id if group.n > 1 else None

    def blocks(self, group: Group) -> int:
        """Return the number of blocks that channels stay within."""
        return 1

    def keeps_order(self, group: Group) -> bool:
        """Whether channels keep their order within a block."""
        return False

    def draw_shared(self, group: Group, K: int, rng: np.random.Generator, shared: Shared) -> None:
        """Draw what several groups share, before any group's own values."""

    def factorials(self, group: Group, counted: set[str]) -> Counts:
        """Return the number of its permutations, times that of shared ones that are not in ``counted`` yet."""
        return []

    def generators(self, group: Group) -> Mapping[str, np.ndarray]:
        """Return permutations (n,) that generate all; those under one name act on all groups that have it at once."""
        return {}

    def exchangeable(self, group: Group) -> list[tuple[int, int]]:
        """Return runs of channels that may be exchanged with one another alone: the first channel, and how many."""
        return []

    def settle(self, group: Group, keys: np.ndarray, shared: Shared) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the permutation (K, n) that a gauge takes, from keys (K, n) that move with the channels.

        The second item lists gaps (K, ...) between keys that decided it: where one is 0 the permutation is not
        determined.
        """
        return self.identity(group, len(keys)), []

    def moved_along(self, group: Group, shared: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Return the permutation by what other groups have settled; None where it takes part in none of that."""
        return None

    def ties(self, group: Group) -> Ties:
        """Return the structure that tells apart channels whose keys are equal."""
        return Ties(np.arange(group.n))

    def by_ranks(self, group: Group, ranks: np.ndarray, shared: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the permutation (n,) that a gauge takes, from ranks (n,) of channels and of vertices in ``Ties``."""
        return np.arange(group.n)


def taken(values: Any, perm: Any) -> Any:
    """Return every row in the order of its permutation."""
    xp = array_namespace(values, perm)
    return xp.take_along_axis(values, xp.astype(perm, xp.int64, copy=False), axis=1)


def blocks_taken(values: Any, perm: Any) -> Any:
    """Return the values of every block (K, blocks, ...) in the order of the permutation (K, n) of the channels."""
    xp = array_namespace(values, perm)
    K, blocks = values.shape[:2]
    k = perm.shape[1] // blocks
    order = xp.astype(perm[:, ::k] // k, xp.int64, copy=False)
    flat = xp.reshape(values, (K, blocks, -1))
    index = xp.broadcast_to(order[:, :, None], flat.shape)
    return xp.reshape(xp.take_along_axis(flat, index, axis=1), values.shape)


def half_log(mass: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return ``log(mass / size) / 2``, by how much the logarithm of a factor of a size can rise; infinite at 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(size > 0, np.log(mass / size) / 2, np.inf)


def refused(what: str, expected: str, got: str) -> SymmetryError:
    """Return the error for what is no group element."""
    return SymmetryError(
        f"group element: {what}: expected {expected}, got {got}. Make elements with GroupElement or canonicalize."
    )
