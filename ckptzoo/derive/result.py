"""What became of the checkpoints that were derived, counted part by part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptzoo.derive.rule import PRECISIONS, Precision


@dataclass(frozen=True)
class Certified:
    """Certificates of one precision.

    Parameters
    ----------
    precision : in which the outputs were computed.
    checkpoints : how many have one.
    random, real : the largest on random and on real inputs; None where there is none.
    """

    precision: Precision
    checkpoints: int
    random: float | None
    real: float | None


@dataclass(frozen=True)
class Derived:
    """What ``derive`` did.

    Parameters
    ----------
    gauge, version : the gauge.
    store : what the parts hold that were written now.
    parts : names of the parts that were written, one for each raw part that had none.
    checkpoints : how many were derived now.
    already : how many the variant had before.
    untouched : how many of those derived now stay as they were: not finite, or not representable in the gauge.
    tied, unresolved : how many of those derived now have ties, and ties that could not be resolved.
    dead, clamped : how many of those derived now have dead channels, and filters whose scale was limited.
    certified : their certificates, by precision.
    seconds, certifying : what it took, and about how much of that went into certificates.
    """

    gauge: str
    version: int
    store: str
    parts: tuple[str, ...]
    checkpoints: int
    already: int
    untouched: int
    tied: int
    unresolved: int
    dead: int
    clamped: int
    certified: tuple[Certified, ...]
    seconds: float
    certifying: float


class Tally:
    """Sums over the rows of parts, in memory that does not grow with them.

    Attributes
    ----------
    checkpoints : how many rows were counted.
    counts : those that stayed as they were, and those in which something was found, named as in ``Derived``.
    certified : the certificates by precision, the most precise first.
    """

    def __init__(self) -> None:
        self.checkpoints = 0
        self.counts: dict[str, int] = dict.fromkeys(("untouched", "tied", "unresolved", "dead", "clamped"), 0)
        self.certified: dict[Precision, Certified] = {}

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count the rows of a part."""
        self.checkpoints += len(rows)
        self.counts["untouched"] += sum(not row["gauged"] for row in rows)
        for name in ("tied", "unresolved", "dead", "clamped"):
            column = "ties" if name == "tied" else name
            self.counts[name] += sum(bool(row[column]) for row in rows)
        found = dict(self.certified)
        for precision in PRECISIONS:
            some = [row for row in rows if row.get("certified") == precision]
            if some:
                before = found.get(precision, Certified(precision, 0, None, None))
                random, real = _worst(some, "random", before.random), _worst(some, "real", before.real)
                found[precision] = Certified(precision, before.checkpoints + len(some), random, real)
        self.certified = {precision: found[precision] for precision in PRECISIONS if precision in found}


def _worst(rows: Sequence[Mapping[str, Any]], inputs: str, before: float | None) -> float | None:
    """The largest certificate of rows, and the one before."""
    found = [before, *(row.get(f"certificate_{inputs}") for row in rows)]
    return max((gap for gap in found if gap is not None), default=None)
