"""Learning rate schedules: the learning rate during each epoch of a training."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

MILESTONES, COSINE = "milestones", "cosine"
NAMES = (MILESTONES, COSINE)
"""The values of the key ``schedule`` of a recipe."""


class Schedule(Protocol):
    """The learning rates of a training."""

    def learning_rate_at(self, epoch: int) -> float:
        """Return the learning rate during an epoch, counted from 0."""
        ...

    def wrong_values(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each value that cannot be used, and what is expected; values may be of any type."""
        ...


@dataclass(frozen=True)
class MilestoneSchedule:
    """The learning rate is multiplied by a factor at the start of each milestone, as ``MultiStepLR`` of torch does.

    During the first ``warmup`` epochs it moves in equal steps from ``warmup_from``, which is the rate before the first
    epoch, to where it would be without: in the last of them it is there.

    Milestones are rising epochs, counted from 0, at least 1. ``factor``, ``warmup`` (epochs) and ``warmup_from`` are at
    least 0; ``warmup_from`` may be above the rate that follows.

    >>> schedule = MilestoneSchedule(0.5, milestones=(2, 3), factor=0.5)
    >>> [schedule.learning_rate_at(epoch) for epoch in range(4)]
    [0.5, 0.5, 0.25, 0.125]
    >>> schedule = MilestoneSchedule(0.5, milestones=(), factor=1, warmup=2, warmup_from=0.25)
    >>> [schedule.learning_rate_at(epoch) for epoch in range(4)]
    [0.375, 0.5, 0.5, 0.5]
    """

    learning_rate: float
    milestones: tuple[int, ...]
    factor: float
    warmup: int = 0
    warmup_from: float = 0.0

    def learning_rate_at(self, epoch: int) -> float:
        rate = self.learning_rate * self.factor ** sum(epoch >= milestone for milestone in self.milestones)
        # in epoch ``warmup`` - 1 the rate is reached, hence no branch for it
        if epoch + 1 < self.warmup:
            return self.warmup_from + (rate - self.warmup_from) * (epoch + 1) / self.warmup
        return rate

    def wrong_values(self) -> Iterator[tuple[str, str]]:
        # not isinstance: TOML's true is a Python int
        if type(self.warmup) is not int or self.warmup < 0:
            yield "warmup", "an integer, at least 0"
        for name in ("learning_rate", "factor", "warmup_from"):
            value = getattr(self, name)
            if not _is_rate(value):
                yield name, "a finite number, at least 0"
        milestones = self.milestones
        if not isinstance(milestones, tuple) or any(type(epoch) is not int or epoch < 1 for epoch in milestones):
            yield "milestones", "a list of epochs, at least 1"
        elif list(milestones) != sorted(set(milestones)):
            yield "milestones", "rising epochs"


@dataclass(frozen=True)
class CosineSchedule:
    r"""The learning rate falls along half a period of a cosine, as ``CosineAnnealingLR`` of torch with ``eta_min`` 0.

    In epoch e of E it is :math:`\frac{\eta}{2} (1 + \cos \frac{\pi e}{E})` (Loshchilov and Hutter, "SGDR: stochastic
    gradient descent with warm restarts", ICLR 2017, equation 5, without a restart), the same for every step of the
    epoch.

    >>> schedule = CosineSchedule(0.5, epochs=4)
    >>> [round(schedule.learning_rate_at(epoch), 4) for epoch in range(4)]
    [0.5, 0.4268, 0.25, 0.0732]
    """

    learning_rate: float
    epochs: int

    def learning_rate_at(self, epoch: int) -> float:
        return self.learning_rate / 2 * (1 + math.cos(math.pi * epoch / self.epochs))

    def wrong_values(self) -> Iterator[tuple[str, str]]:
        """Yield nothing, because a recipe checks its epochs itself."""
        if not _is_rate(self.learning_rate):
            yield "learning_rate", "a finite number, at least 0"


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0
