"""Whether a contributed checkpoint is there already: the same bits, or the same network permuted or rescaled."""

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.contributions.report import Check, check_result
from ckptzoo.hub.contributions.target_zoo import CANONICAL, TargetZoo, Weights
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES, canonicalize, fingerprint
from ckptzoo.symmetry.comparison import compare, invariant_width, rounding_tolerance
from ckptzoo.symmetry.fingerprint import PRECISION
from ckptzoo.symmetry.invariants import invariants
from ckptzoo.symmetry.matrices.comparison import matrix_distances, matrix_tolerance
from ckptzoo.symmetry.matrices.invariants import matrix_invariants, sketch_bound
from ckptzoo.symmetry.matrices.tables import mixes
from ckptzoo.text import counted

_COUNTER = "num_batches_tracked"
"""How the names of BatchNorm's counters end in torch; they do not enter the outputs in evaluation mode."""
_KIND = f"{CANONICAL}-{GAUGES[CANONICAL].version}:{PRECISION:g}:"
"""How fingerprints of this version begin; others cannot be compared with them."""


@dataclass(frozen=True)
class Copies:
    """What a search for duplicates found.

    Parameters
    ----------
    found
        contributed checkpoint to what it is a copy of, in words.
    left
        the number of the zoo's checkpoints with which nothing was compared.
    outdated
        whether the zoo stores fingerprints of another version of the gauge, which cannot be compared.
    resolved
        whether every contributed checkpoint has a canonical form.
    permuted
        whether permuted and rescaled copies were looked for, or the same bits alone.
    """

    found: Mapping[str, str]
    left: int
    outdated: bool
    resolved: bool
    permuted: bool

    def check(self) -> Check:
        """As one of the checks."""
        wrong = [f"{name} is {other}" for name, other in self.found.items()]
        what = "no copy, permuted and scaled ones included" if self.permuted else "no copy bit for bit"
        if not self.permuted:
            what += " (no symmetry table is known, so that permuted or rescaled ones were not looked for)"
        elif not self.resolved:
            what += " (some have ties that stay unresolved: of those, only copies bit for bit)"
        if self.left and not wrong:
            left = counted(self.left, "checkpoint")
            step = "Store the fingerprints with ckptzoo derive ZOO --gauge canonical."
            if self.outdated:
                step = (
                    f"Its canonical variant is of another version than {GAUGES[CANONICAL].version}: remove "
                    "derived/canonical and make it again with ckptzoo derive ZOO --gauge canonical."
                )
            return Check(
                "duplicates", "not done", f"{what} among those compared; {left} of the zoo not compared. {step}"
            )
        return check_result("duplicates", wrong, what)


@dataclass(frozen=True)
class _Described:
    """A checkpoint: the digest of its bits and, where it has a canonical form, its fingerprint and its sketch."""

    name: str
    exact: str
    fingerprint: str | None
    sketch: NDArray[np.float64] | None


class _Known:
    """Checkpoints by digest, fingerprint and sketch, and their canonical weights where those have to decide.

    Parameters
    ----------
    target
        the zoo that holds them.
    table
        of its symmetries.
    """

    def __init__(self, target: TargetZoo, table: Symmetry | None) -> None:
        self._target, self._table = target, table
        self.exact: dict[str, str] = {}
        self._unread: dict[str, list[str]] = {}
        self._sketches: list[tuple[float, str, NDArray[np.float64]]] = []
        self._tolerance, self._width = 0.0, 0.0
        if table is not None:
            arch = target.zoo.arch
            dtypes = [numpy_dtype(tensor.dtype) for tensor in arch.tensors]
            if mixes(table):
                self._tolerance, self._width = matrix_tolerance(dtypes), sketch_bound(dtypes)
            else:
                self._tolerance = rounding_tolerance(dtypes, table)
                self._width = invariant_width(self._tolerance, len(arch.tensors))

    def add(self, checkpoint: _Described) -> None:
        """Remember a checkpoint whose weights were read."""
        self.exact.setdefault(checkpoint.exact, checkpoint.name)
        if checkpoint.sketch is not None:
            self._add_sketch(checkpoint.name, checkpoint.sketch)

    def add_fingerprint(self, name: str, stored: str) -> None:
        """Remember a checkpoint of which nothing but a fingerprint is known."""
        self._unread.setdefault(stored, []).append(name)

    def read_candidates(self, checkpoint: _Described) -> None:
        """Read the weights of those of which nothing but this checkpoint's fingerprint is known."""
        for other in _describe(self._target.batches(self._unread.pop(checkpoint.fingerprint or "", [])), self._table):
            self.add(other)

    def permuted(self, checkpoint: _Described, submitted: TargetZoo) -> str | None:
        """The first checkpoint that is the same network, by the canonical weights of those that may be."""
        if checkpoint.sketch is None or self._table is None:
            return None
        near = self._near(checkpoint.sketch)
        if not near:
            return None
        ((_, weights),) = submitted.batches([checkpoint.name])
        first = _comparable(canonicalize(weights, self._table, gauge=CANONICAL).weights)
        for ids, stacked in self._target.batches(near):
            others = _comparable(canonicalize(stacked, self._table, gauge=CANONICAL).weights)
            if mixes(self._table):
                agree = matrix_distances(first, others, self._table, self._tolerance)[0] <= self._tolerance
            else:
                agree, _ = compare(first, others, self._table, self._tolerance)
            if agree.any():
                # argmax of truth values is the first that is true
                return ids[int(agree.argmax())]
        return None

    def _add_sketch(self, name: str, sketch: NDArray[np.float64]) -> None:
        # ordered by number and name: Python cannot order tuples by arrays of several elements
        insort(self._sketches, (float(sketch[0]), name, sketch), key=lambda item: item[:2])

    def _near(self, sketch: NDArray[np.float64]) -> list[str]:
        """Names of the checkpoints whose sketches are within the width, in any order of theirs."""
        low, high = float(sketch[0]) - self._width, float(sketch[0]) + self._width
        start = bisect_left(self._sketches, low, key=lambda item: item[0])
        stop = bisect_right(self._sketches, high, key=lambda item: item[0])
        near = (name for _, name, other in self._sketches[start:stop] if np.abs(other - sketch).max() <= self._width)
        return sorted(near, key=self._rows.__getitem__)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self._target.zoo.ids)}


def _comparable(weights: Weights) -> Weights:
    """Without counters of batches, which do not make another network."""
    return {name: array for name, array in weights.items() if not name.endswith(_COUNTER)}


def copies(submitted: Zoo, target: TargetZoo | None) -> Copies:
    """Contributed checkpoints that are copies of one another, or of those of a zoo.

    Copies bit for bit are found by the sha256 of all tensors. Where the table of symmetries is known, sketches that
    depend on no order of channels say which may be one network, and ``||a_t - b_t|| <= tolerance * ||a_t||`` for the
    floating tensors t of the two canonical forms decides, with the same tolerance as in ``ckptzoo.derive.dedupe``;
    counters of batches do not matter.

    Notes
    -----
    Of the zoo the stored fingerprints are used, and the weights of the checkpoints that share one with a contributed
    checkpoint are read; where it lacks some fingerprints, its weights are read if they are at most 256 MiB. Tested in
    tests/hub/contributions/test_duplicates.py.
    """
    own = TargetZoo(submitted)
    table = own.symmetry if target is None else target.symmetry
    theirs, left = (None, 0) if target is None else _of_zoo(target, table)
    outdated = target is not None and not all(stored.startswith(_KIND) for stored in target.fingerprints.values())
    mine, copied, resolved = _Known(own, table), dict[str, str](), True
    for checkpoint in _describe(own.batches(), table):
        resolved &= checkpoint.sketch is not None or table is None
        if theirs is not None:
            theirs.read_candidates(checkpoint)
        if (other := mine.exact.get(checkpoint.exact)) is not None:
            copied[checkpoint.name] = f"{other} of the same contribution, bit for bit"
        elif theirs is not None and (other := theirs.exact.get(checkpoint.exact)) is not None:
            copied[checkpoint.name] = f"{other} of the zoo, bit for bit"
        elif (other := mine.permuted(checkpoint, own)) is not None:
            copied[checkpoint.name] = f"{other} of the same contribution, permuted or rescaled"
        elif theirs is not None and (other := theirs.permuted(checkpoint, own)) is not None:
            copied[checkpoint.name] = f"{other} of the zoo, permuted or rescaled"
        mine.add(checkpoint)
    return Copies(copied, left, outdated, resolved, table is not None)


def _of_zoo(target: TargetZoo, table: Symmetry | None) -> tuple[_Known, int]:
    """What is known of a zoo's checkpoints, and of how many of them nothing is known."""
    known = _Known(target, table)
    stored = {} if table is None else {k: v for k, v in target.fingerprints.items() if v.startswith(_KIND)}
    missing: list[str] = []
    for name in target.zoo.ids:
        if name in stored:
            known.add_fingerprint(name, stored[name])
        else:
            missing.append(name)
    if missing and not target.small:
        return known, len(missing)
    for checkpoint in _describe(target.batches(missing), table):
        known.add(checkpoint)
    return known, 0


def _describe(batches: Iterable[tuple[list[str], Weights]], table: Symmetry | None) -> Iterator[_Described]:
    """Digests, fingerprints and sketches; none of the latter where there is no table or no canonical form."""
    for ids, weights in batches:
        exact = digests(weights)
        if table is None:
            yield from (_Described(name, digest, None, None) for name, digest in zip(ids, exact, strict=True))
            continue
        canonical = canonicalize(weights, table, gauge=CANONICAL)
        prints = fingerprint(canonical)
        known = canonical.report.gauged if mixes(table) else np.array([stored is not None for stored in prints], bool)
        usable = {name: np.asarray(array)[known] for name, array in _comparable(canonical.weights).items()}
        found = matrix_invariants(usable, table).unordered if mixes(table) else invariants(usable, table)
        sketches = dict(zip(np.flatnonzero(known).tolist(), found.sketches, strict=True))
        for row, name in enumerate(ids):
            yield _Described(name, exact[row], prints[row], sketches.get(row))


def units(weights: Weights) -> list[str]:
    """The units of K contributed checkpoints, by the digests of their weights: no other weights have the same."""
    return [f"weights-{digest[:40]}" for digest in digests(weights)]


def digests(weights: Weights) -> list[str]:
    """The sha256 of each of K checkpoints' tensors in order, from stacked weights (K, *shape)."""
    K = len(next(iter(weights.values())))
    hashes = [hashlib.sha256() for _ in range(K)]
    for name, array in weights.items():
        for sha256, tensor in zip(hashes, array, strict=True):
            sha256.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            sha256.update(np.ascontiguousarray(tensor).tobytes())
    return [sha256.hexdigest() for sha256 in hashes]
