"""The plan of a build of draws, and its units."""

from dataclasses import dataclass
from itertools import groupby

from builders.checkpointing import Unit


@dataclass(frozen=True)
class DrawUnit(Unit):
    """Modes that advance together: their places among all modes, and the numbers of the draws to be taken."""

    modes: tuple[int, ...]
    draws: range


@dataclass(frozen=True)
class PosteriorPlan:
    """The plan of a build of draws, settled when it starts.

    ``method`` is the method's digest, and ids begin with ``prefix``. ``modes`` and ``draws`` count what the zoo holds
    when the build is done; ``present`` counts the draws of each mode that it held at the start. ``starts`` are digests
    of the weights of the members that modes are; none of chains, and where they are not known.
    """

    method: str
    prefix: str
    modes: int
    draws: int
    names: tuple[str, ...]
    seeds: tuple[int, ...]
    present: tuple[int, ...]
    unit_size: int
    device: str
    engine: str
    dataset_digest: str
    starts: tuple[str, ...] = ()

    @property
    def units(self) -> list[DrawUnit]:
        """The units: modes that lack the same draws."""
        lacking = [mode for mode in range(self.modes) if self.present[mode] < self.draws]
        units: list[DrawUnit] = []
        # runs of modes that lack the same draws, since a unit takes the same draws of all its modes
        for present, group in groupby(lacking, key=lambda mode: self.present[mode]):
            modes = list(group)
            for start in range(0, len(modes), self.unit_size):
                piece = modes[start : start + self.unit_size]
                seeds = tuple(self.seeds[mode] for mode in piece)
                name = f"{self.prefix}-{seeds[0]:06d}-{seeds[-1]:06d}-draws-{present}-{self.draws - 1}"
                units.append(DrawUnit(name, seeds, tuple(piece), range(present, self.draws)))
        return units
