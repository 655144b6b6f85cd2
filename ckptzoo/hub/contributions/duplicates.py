"""Whether a contributed checkpoint is there already: the same bits, or the same network permuted or rescaled."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.contributions.report import ReviewCheck, check_result
from ckptzoo.hub.contributions.target_zoo import CANONICAL, TargetZoo, Weights
from ckptzoo.loader.zoo import Zoo
from ckptzoo.symmetry import GAUGES, canonicalize, fingerprint
from ckptzoo.symmetry.identity.fingerprint import PRECISION
from ckptzoo.symmetry.identity.index import Index
from ckptzoo.text import counted

_COUNTER = "num_batches_tracked"
"""The end of the names of BatchNorm's counters in torch; they do not enter the outputs in evaluation mode."""
_KIND = f"{CANONICAL}-{GAUGES[CANONICAL].version}:{PRECISION:g}:"
"""Start of the fingerprints of this version; others cannot be compared with them."""


@dataclass(frozen=True)
class DuplicateSearch:
    """Duplicates that a search found.

    ``found`` maps a contributed checkpoint to a description of its original. ``left`` counts the zoo's checkpoints that
    were not compared. ``outdated`` says that the zoo stores fingerprints of another version of the gauge; ``resolved``
    that every contributed checkpoint has a canonical form; ``permuted`` that permuted and rescaled copies were
    searched, and not the same bits alone.
    """

    found: Mapping[str, str]
    left: int
    outdated: bool
    resolved: bool
    permuted: bool

    def check(self) -> ReviewCheck:
        """Return the result as one of the checks."""
        wrong = [f"{name} is {other}" for name, other in self.found.items()]
        passed = "no copy, permuted and scaled ones included" if self.permuted else "no copy bit for bit"
        if not self.permuted:
            passed += " (no symmetry table is known, so that permuted or rescaled ones were not looked for)"
        elif not self.resolved:
            passed += " (some have ties that stay unresolved: of those, only copies bit for bit)"
        if self.left and not wrong:
            left = counted(self.left, "checkpoint")
            step = "Store the fingerprints with ckptzoo derive ZOO --gauge canonical."
            if self.outdated:
                step = (
                    f"Its canonical variant is of another version than {GAUGES[CANONICAL].version}: remove "
                    "derived/canonical and make it again with ckptzoo derive ZOO --gauge canonical."
                )
            return ReviewCheck(
                "duplicates", "not done", f"{passed} among those compared; {left} of the zoo not compared. {step}"
            )
        return check_result("duplicates", wrong, passed)


@dataclass(frozen=True)
class _Described:
    """A checkpoint: its zoo and name, the digest of its bits, and its fingerprint and sketch where it has a form."""

    zoo: TargetZoo
    name: str
    exact: str
    fingerprint: str | None
    sketch: NDArray[np.float64] | None


def copies(submitted: Zoo, target: TargetZoo | None) -> DuplicateSearch:
    """Find contributed checkpoints that are copies of one another, or of those of a zoo.

    Copies bit for bit are found by the sha256 of all tensors. Where the table of symmetries is known, sketches that
    depend on no order of channels say which may be one network, and the canonical weights of these decide, as in
    ``ckptzoo.derive.dedupe``; counters of batches do not matter. A zoo's stored fingerprints are used, and the weights
    of the checkpoints that share one with a contributed checkpoint are read; where it lacks some fingerprints, its
    weights are read if they are at most 256 MiB.
    """
    own = TargetZoo(submitted)
    table = own.symmetry if target is None else target.symmetry
    arch = (target or own).zoo.arch
    index = None if table is None else Index(table, [numpy_dtype(tensor.dtype) for tensor in arch.tensors])
    mine = _describe(own, own.zoo.ids, index)
    theirs, left = ([], 0) if target is None else _of_zoo(target, mine, index)
    outdated = target is not None and not all(stored.startswith(_KIND) for stored in target.fingerprints.values())
    # a checkpoint may be a copy of those before it in this list
    known = theirs + mine
    permuted = None if index is None else _Permuted(known, index)
    exact: dict[tuple[bool, str], str] = {}
    copied: dict[str, str] = {}
    words = {True: "of the same contribution", False: "of the zoo"}
    for number, checkpoint in enumerate(known):
        key = (checkpoint.zoo is own, checkpoint.exact)
        if checkpoint.zoo is own:
            of = next((own_zoo for own_zoo in (True, False) if (own_zoo, checkpoint.exact) in exact), None)
            if of is not None:
                copied[checkpoint.name] = f"{exact[of, checkpoint.exact]} {words[of]}, bit for bit"
            elif permuted is not None and (original := permuted.first_before(number)) is not None:
                copied[checkpoint.name] = f"{original.name} {words[original.zoo is own]}, permuted or rescaled"
        exact.setdefault(key, checkpoint.name)
    resolved = index is None or all(checkpoint.sketch is not None for checkpoint in mine)
    return DuplicateSearch(copied, left, outdated, resolved, index is not None)


def _of_zoo(target: TargetZoo, mine: list[_Described], index: Index | None) -> tuple[list[_Described], int]:
    """Return descriptions of a zoo's checkpoints that can be copies, and of how many nothing is known."""
    stored = {} if index is None else {k: v for k, v in target.fingerprints.items() if v.startswith(_KIND)}
    shared = {checkpoint.fingerprint for checkpoint in mine}
    missing = [name for name in target.zoo.ids if name not in stored]
    left = len(missing) if missing and not target.small else 0
    unread = set(missing) if not left else set[str]()
    wanted = [name for name in target.zoo.ids if name in unread or stored.get(name) in shared]
    return _describe(target, wanted, index), left


def _describe(zoo: TargetZoo, names: Sequence[str], index: Index | None) -> list[_Described]:
    """Return digests, fingerprints and sketches; none of the latter without a table or a canonical form."""
    descriptions: list[_Described] = []
    for ids, weights in zoo.batches(list(names)):
        exact = digests(weights)
        if index is None:
            descriptions += [_Described(zoo, name, digest, None, None) for name, digest in zip(ids, exact, strict=True)]
            continue
        canonical = canonicalize(weights, index.symmetry, gauge=CANONICAL)
        usable, described = index.describe(canonical)
        sketches = dict(zip(np.flatnonzero(usable).tolist(), described.sketches, strict=True))
        prints = fingerprint(canonical)
        descriptions += [
            _Described(zoo, name, exact[row], prints[row], sketches.get(row)) for row, name in enumerate(ids)
        ]
    return descriptions


class _Permuted:
    """Checkpoints in a list, by their sketches, and their canonical weights where those have to decide."""

    def __init__(self, known: list[_Described], index: Index) -> None:
        self._known, self._index = known, index
        self._places = np.array([number for number, item in enumerate(known) if item.sketch is not None], np.int64)
        sketches = [item.sketch for item in known if item.sketch is not None]
        self._neighbours = index.neighbours(np.array(sketches).reshape(-1, index.features))

    def first_before(self, number: int) -> _Described | None:
        """Return the first before one in the list that is the same network, of the same zoo before others."""
        checkpoint = self._known[number]
        if checkpoint.sketch is None:
            return None
        near = self._places[self._neighbours.near(int(np.searchsorted(self._places, number)))]
        before = [self._known[other] for other in near[near < number].tolist()]
        if not before:
            return None
        ((_, weights),) = checkpoint.zoo.batches([checkpoint.name])
        first = self._canonical(weights)
        for own in (True, False):
            others = [other for other in before if (other.zoo is checkpoint.zoo) == own]
            seen = 0
            for ids, weights in others[0].zoo.batches([other.name for other in others]) if others else ():
                if (agree := self._index.agree(first, self._canonical(weights))).any():
                    # argmax of truth values is the first that is true
                    return others[seen + int(agree.argmax())]
                seen += len(ids)
        return None

    def _canonical(self, weights: Weights) -> Weights:
        """Return canonical weights without counters of batches, which do not make another network."""
        canonical = canonicalize(weights, self._index.symmetry, gauge=CANONICAL).weights
        return {name: array for name, array in canonical.items() if not name.endswith(_COUNTER)}


def units(weights: Weights) -> list[str]:
    """Return the units of K contributed checkpoints: the digests of their weights, which no other weights have."""
    return [f"weights-{digest[:40]}" for digest in digests(weights)]


def digests(weights: Weights) -> list[str]:
    """Return the sha256 of each of K checkpoints' tensors in order, from stacked weights (K, *shape)."""
    K = len(next(iter(weights.values())))
    hashes = [hashlib.sha256() for _ in range(K)]
    for name, array in weights.items():
        for sha256, tensor in zip(hashes, array, strict=True):
            # the same bytes in other shapes or under other names are another network
            sha256.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            sha256.update(np.ascontiguousarray(tensor).tobytes())
    return [sha256.hexdigest() for sha256 in hashes]
