"""Is a contributed checkpoint there already: the same bits, or the same network in disguise?"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.contributions.report import Check, check_result
from ckptzoo.hub.contributions.target_zoo import CANONICAL, TargetZoo, Weights, batches
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, canonicalize, fingerprint
from ckptzoo.symmetry.fingerprint import PRECISION, sketch
from ckptzoo.text import counted

ROUNDINGS = 4
"""Canonical weights agree when they differ by at most so many units of the precision in which they are stored."""
REACH = 4.0
"""Sketches of weights that agree differ by at most so many times the tolerance and the root of the tensors' number."""
_COUNTER = "num_batches_tracked"
_KIND = f"{CANONICAL}-{GAUGES[CANONICAL].version}:{PRECISION:g}:"
"""How fingerprints of this version begin; others cannot be compared with them."""


@dataclass(frozen=True)
class Copies:
    """What a search for duplicates found.

    Parameters
    ----------
    found : contributed checkpoint to what it is a copy of, in words.
    left : of the zoo's checkpoints, how many nothing was compared with.
    resolved : whether every contributed checkpoint has a fingerprint.
    disguises : whether the same network in other permutations and scales was looked for, or the same bits alone.
    """

    found: Mapping[str, str]
    left: int
    resolved: bool
    disguises: bool

    def check(self) -> Check:
        """As one of the checks."""
        wrong = [f"{name} is {other}" for name, other in self.found.items()]
        how = "no copy, permuted and scaled ones included" if self.disguises else "no copy bit for bit"
        if not self.disguises:
            how += " (no symmetry table is known, so that disguised ones were not looked for)"
        elif not self.resolved:
            how += " (some have ties that stay unresolved: of those, only copies bit for bit)"
        if self.left and not wrong:
            what = counted(self.left, "checkpoint")
            step = "Store the fingerprints with ckptzoo derive --gauge canonical."
            return Check(
                "duplicates", "not done", f"{how} among those compared; {what} of the zoo not compared. {step}"
            )
        return check_result("duplicates", wrong, how)


@dataclass(frozen=True)
class _One:
    """A checkpoint: the digest of its bits and, where it has a canonical form, its fingerprint and its sketch."""

    name: str
    exact: str
    print: str | None
    sketch: NDArray[np.float64] | None


class _Known:
    """Checkpoints by digest and by fingerprint, and their canonical weights where those have to decide.

    Parameters
    ----------
    standing : the zoo that holds them.
    table : of its symmetries.
    """

    def __init__(self, standing: TargetZoo, table: Symmetry | None) -> None:
        self._standing, self._table = standing, table
        self.exact: dict[str, str] = {}
        self._prints: dict[str, list[str]] = {}
        self._sketches: dict[str, NDArray[np.float64]] = {}
        tolerance = max((_tolerance(item.dtype) for item in standing.zoo.arch.tensors), default=0.0)
        self._width = REACH * tolerance * np.sqrt(len(standing.zoo.arch.tensors))

    def add(self, one: _One) -> None:
        """Remember one whose weights were read."""
        self.exact.setdefault(one.exact, one.name)
        if one.print is not None and one.sketch is not None:
            self._sketches[one.name] = one.sketch
            self.add_print(one.name, one.print)

    def add_print(self, name: str, print_: str) -> None:
        """Remember one of which a fingerprint is stored."""
        self._prints.setdefault(print_, []).append(name)

    def disguised(self, one: _One, submitted: TargetZoo) -> str | None:
        """The first of those with the same fingerprint whose canonical weights agree."""
        same = self._prints.get(one.print or "", [])
        if not same or one.sketch is None or self._table is None:
            return None
        for other in _described(
            self._standing.batches([name for name in same if name not in self._sketches]), self._table
        ):
            if other.sketch is not None:
                self._sketches[other.name] = other.sketch
        near = [
            name
            for name in same
            if name in self._sketches and np.abs(self._sketches[name] - one.sketch).max() <= self._width
        ]
        if not near:
            return None
        ((_, weights),) = submitted.batches([one.name])
        mine = canonicalize(weights, self._table, gauge=CANONICAL).weights
        for ids, theirs in self._standing.batches(near):
            others = canonicalize(theirs, self._table, gauge=CANONICAL).weights
            for at, found in enumerate(ids):
                kept = (key for key in mine if not key.endswith(_COUNTER))
                if all(_agree(mine[key][0], others[key][at], str(weights[key].dtype)) for key in kept):
                    return found
        return None


def copies(submitted: Zoo, standing: TargetZoo | None) -> Copies:
    """Contributed checkpoints that are copies of one another, or of those of a zoo.

    Copies bit for bit are found by sha256 of all tensors. Where the table of symmetries is known, fingerprints of the
    canonical forms and sketches of them say which may be one network, and ``||a_t - b_t|| <= 4 eps ||a_t||`` for the
    floating tensors t of the two canonical forms decides, as in ``ckptzoo.derive.dedupe``; counters of batches do not
    matter.

    Notes
    -----
    Of the zoo the stored fingerprints are used; where it lacks some, its weights are read if they are at most 256 MiB.
    Checkpoints of the zoo that share a fingerprint with a contributed one are read. Law:
    tests/hub/contributions/test_duplicates.py.
    """
    own = TargetZoo(submitted)
    table = own.symmetry if standing is None else standing.symmetry
    theirs, left = (None, 0) if standing is None else _of_zoo(standing, table)
    mine, found, resolved = _Known(own, table), dict[str, str](), True
    for one in _described(batches(submitted), table):
        resolved &= one.print is not None or table is None
        if (other := mine.exact.get(one.exact)) is not None:
            found[one.name] = f"{other} of the same contribution, bit for bit"
        elif theirs is not None and (other := theirs.exact.get(one.exact)) is not None:
            found[one.name] = f"{other} of the zoo, bit for bit"
        elif (other := mine.disguised(one, own)) is not None:
            found[one.name] = f"{other} of the same contribution in disguise"
        elif theirs is not None and (other := theirs.disguised(one, own)) is not None:
            found[one.name] = f"{other} of the zoo in disguise"
        mine.add(one)
    return Copies(found, left, resolved, table is not None)


def _of_zoo(standing: TargetZoo, table: Symmetry | None) -> tuple[_Known, int]:
    """What is known of a zoo's checkpoints, and how many of them nothing is known of."""
    known = _Known(standing, table)
    stored = {} if table is None else {k: v for k, v in standing.fingerprints.items() if v.startswith(_KIND)}
    missing: list[str] = []
    for name in standing.zoo.ids:
        if name in stored:
            known.add_print(name, stored[name])
        else:
            missing.append(name)
    if missing and not standing.small:
        return known, len(missing)
    for one in _described(standing.batches(missing), table):
        known.add(one)
    return known, 0


def _described(some: Iterable[tuple[list[str], Weights]], table: Symmetry | None) -> Iterator[_One]:
    """Digests, fingerprints and sketches; none of the latter where there is no table or no canonical form."""
    for ids, weights in some:
        exact = digests(weights)
        if table is None:
            yield from (_One(name, digest, None, None) for name, digest in zip(ids, exact, strict=True))
            continue
        made = canonicalize(weights, table, gauge=CANONICAL)
        prints = fingerprint(made)
        good = [at for at, found in enumerate(prints) if found is not None]
        taken = {name: np.asarray(array)[good] for name, array in made.weights.items()}
        sketches = dict(zip(good, sketch(taken) if good else (), strict=True))
        for at, name in enumerate(ids):
            yield _One(name, exact[at], prints[at], sketches.get(at))


def digests(weights: Weights) -> list[str]:
    """The sha256 of each of K checkpoints' tensors in order, from stacked weights (K, *shape)."""
    count = len(next(iter(weights.values())))
    made = [hashlib.sha256() for _ in range(count)]
    for name, array in weights.items():
        for total, one in zip(made, array, strict=True):
            total.update(f"{name} {one.dtype} {one.shape}\n".encode())
            total.update(np.ascontiguousarray(one).tobytes())
    return [total.hexdigest() for total in made]


def _agree(one: NDArray[Any], two: NDArray[Any], stored: str) -> bool:
    if one.dtype.kind in "iub":
        return bool(np.array_equal(one, two))
    one, two = one.astype(np.float64), two.astype(np.float64)
    return bool(np.linalg.norm(one - two) <= _tolerance(stored) * np.linalg.norm(one))


def _tolerance(dtype: str) -> float:
    kind = numpy_dtype(dtype)
    return 0.0 if kind.kind in "iub" else ROUNDINGS * float(ml_dtypes.finfo(kind).eps)
