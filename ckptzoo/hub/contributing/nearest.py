"""Which name of a zoo is the nearest to a stranger's: a one-to-one assignment, by names and equal shapes."""

import difflib
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]

_WORDS = re.compile(r"[a-zA-Z]+|\d+")
_IN_ORDER = 0.1
"""How much standing at the same place of the order counts beside the names."""
MOST = 2_000
"""Names of one shape up to which an assignment is sought."""


def nearest(found: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> dict[str, str]:
    """For each stranger's name the name of the zoo's that it most likely is; each is used once, shapes are equal.

    Within each shape it is the assignment with the largest sum of similarities: that of the words of both names
    (``difflib``'s ratio over words and numbers, and the share of the same last word), and of their places in the
    order.

    Parameters
    ----------
    found, wanted : names and shapes, in order.

    Returns
    -------
    Old name to new one, in the order of ``found``; names for which none is left are not in it.

    Notes
    -----
    Cubic in the number of names of one shape. Law: tests/hub/contributing/test_nearest.py.
    """
    made: dict[str, str] = {}
    for shape in dict.fromkeys(found.values()):
        old = [name for name in found if found[name] == shape]
        new = [name for name in wanted if wanted[name] == shape]
        if not new or max(len(old), len(new)) > MOST:
            continue
        gain = np.array([[similarity(one, two) for two in new] for one in old])
        places = (np.arange(len(names)) / max(1, len(names) - 1) for names in (old, new))
        first, second = places
        gain -= _IN_ORDER * np.abs(first[:, None] - second)
        made.update({old[row]: new[column] for row, column in assignment(gain)})
    return {name: made[name] for name in found if name in made}


def similarity(one: str, two: str) -> float:
    """How alike two names are, 0 to 2: ``conv1.weight`` is more like ``features.conv1.weight`` than ``fc.weight``."""
    first, second = _WORDS.findall(one.lower()), _WORDS.findall(two.lower())
    ratio = difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
    letters = difflib.SequenceMatcher(None, one.lower(), two.lower(), autojunk=False).ratio()
    return (ratio + letters) / 2 + (first[-1:] == second[-1:])


def assignment(gain: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs of rows and columns, each in at most one, with the largest sum of gains.

    The Hungarian method by shortest augmenting paths (Jonker and Volgenant 1987), cubic in the larger side.

    Parameters
    ----------
    gain : (R, C); as many pairs are made as the smaller side has places.
    """
    if gain.shape[0] > gain.shape[1]:
        return sorted((row, column) for column, row in assignment(gain.T))
    rows, columns = gain.shape
    cost = -gain
    u, v = np.zeros(rows + 1), np.zeros(columns + 1)
    owner = np.zeros(columns + 1, np.int64)
    for row in range(1, rows + 1):
        owner[0], at = row, 0
        least = np.full(columns + 1, np.inf)
        before = np.zeros(columns + 1, np.int64)
        used = np.zeros(columns + 1, bool)
        while owner[at]:
            used[at] = True
            free = ~used[1:]
            reduced = cost[owner[at] - 1] - u[owner[at]] - v[1:]
            better = free & (reduced < least[1:])
            least[1:][better], before[1:][better] = reduced[better], at
            following = 1 + int(np.argmin(np.where(free, least[1:], np.inf)))
            step = least[following]
            u[owner[used]] += step
            v[used] -= step
            least[1:][free] -= step
            at = following
        while at:
            owner[at], at = owner[before[at]], before[at]
    return sorted((int(owner[column]) - 1, column - 1) for column in range(1, columns + 1) if owner[column])


def pasteable(names: Mapping[str, str]) -> str:
    """A table ``[names]`` for contribution.toml."""
    return "\n".join(["[names]", *(f"{quoted(old)} = {quoted(new)}" for old, new in names.items())])


def quoted(text: str) -> str:
    """A basic string of TOML."""
    marks = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(marks.get(mark, mark if mark.isprintable() else f"\\U{ord(mark):08x}") for mark in text) + '"'
