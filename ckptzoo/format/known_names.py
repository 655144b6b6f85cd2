"""Names that were seen, in 8 bytes each: of ten million ids 80 MB, where a set of texts takes 1.1 GB."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_RECENT = 2**16
"""Hashes that are kept in a set, which is quick to add to, before they are sorted into the array."""


class KnownNames:
    """Names of which the hashes of Python are kept, 64 bits each.

    A name without its hash here was not seen. One with it was seen, or has the hash of another, so look it up where the
    names themselves are.

    >>> known = KnownNames()
    >>> known.add(["a", "b"])
    >>> known.likely(["b", "c", None])
    {'b'}
    """

    def __init__(self) -> None:
        self._sorted: NDArray[np.int64] = np.empty(0, np.int64)
        self._recent: set[int] = set()

    def add(self, names: Iterable[str]) -> None:
        """Add names, also such as were added before."""
        self._recent.update(map(hash, names))
        if len(self._recent) > _RECENT:
            added = np.fromiter(self._recent, np.int64, len(self._recent))
            added.sort()
            # of two sorted arrays one after the other a stable sort is a merge
            self._sorted = np.concatenate([self._sorted, added])
            self._sorted.sort(kind="stable")
            self._recent = set()

    def likely(self, names: Iterable[str | None]) -> set[str]:
        """Those of some names that were seen, and with chance 2**-64 for each pair of names one that was not."""
        asked = [name for name in names if name is not None]
        hashes = list(map(hash, asked))
        found = {name for name, number in zip(asked, hashes, strict=True) if number in self._recent}
        if len(self._sorted) and asked:
            wanted = np.array(hashes, np.int64)
            places = self._sorted.searchsorted(wanted)
            places[places == len(self._sorted)] = 0
            found.update(asked[at] for at in np.flatnonzero(self._sorted[places] == wanted).tolist())
        return found
