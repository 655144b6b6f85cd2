"""The units of a build, trained one after another: progress is shown, states are saved, and a stop loses nothing.

Which process takes a unit is decided in ``claims.py``.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console

from builders.checkpointing import BuildFolder, Interrupted, StopRequested, Unit
from builders.energy import Counter, Spent, spent
from builders.estimate import SECONDS, WARM_UP
from builders.progress import Progress
from builders.state import TrainingState
from builders.train import Trainer
from ckptzoo.recording.claims import Claim, Claims

_SAVING_SHARE = 0.01
"""The share of the time that saving states may take."""
_SPAN_SECONDS = 1.0
"""Steps are taken in spans of about this many seconds: between two the process can be stopped, and progress is shown.
"""


@dataclass(frozen=True)
class StepsTaken:
    """Steps of a unit that were just taken. ``step`` counts the optimiser steps of the unit so far; ``member_steps``
    those of all members together since the last time, and ``seconds`` their time.
    """

    step: int
    member_steps: int
    seconds: float


@dataclass(frozen=True, eq=False)
class UnitTraining(ABC):
    """Brings units from where they were saved to their ends. At most ``save_seconds`` of work are lost when the process
    is killed; more where saving takes more than 1 % of it. ``counter`` counts the joules that the device uses.
    """

    build_folder: BuildFolder
    trainer: Trainer
    engine: str
    save_seconds: float
    should_stop: StopRequested
    counter: Counter

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of what is built, for people."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Optimiser steps of a unit."""

    @abstractmethod
    def stops(self, unit: Unit) -> Sequence[int]:
        """Return the rising steps of a unit at which something is stored; the last of them is its end."""

    @abstractmethod
    def is_finished(self, unit: Unit) -> bool:
        """Return whether everything of a unit is stored."""

    @abstractmethod
    def is_stored(self, unit: Unit, step: int) -> bool:
        """Return whether the data of one of a unit's stops is stored."""

    @abstractmethod
    def start(self, unit: Unit) -> TrainingState:
        """Return the state from which a unit proceeds."""

    @abstractmethod
    def at_stop(self, unit: Unit, state: TrainingState, total: Spent) -> None:
        """Store the data of the state's step, except what is stored already."""

    def finish(self, unit: Unit) -> None:
        """Complete a unit after its last stop was reached."""
        return

    @abstractmethod
    def describe(self, steps_per_second: float) -> str:
        """Return how long the whole will take at a number of member-steps a second."""

    def train(self, units: Sequence[Unit], console: Console) -> tuple[int, float]:
        """Train unfinished units that no other process holds; return the member-steps and the seconds taken."""
        finished = [unit for unit in units if self.is_finished(unit)]
        members = sum(len(unit.seeds) for unit in units)
        ready = sum(len(unit.seeds) for unit in finished)
        started = time.monotonic()
        with Progress(
            console,
            self.name,
            members=members,
            member_steps=members * self.steps,
            done=ready * self.steps,
            finished=ready,
        ) as progress:
            remaining = [unit for unit in units if unit not in finished]
            if remaining and self.steps > WARM_UP:
                # an engine is compiled before the clock starts
                self.trainer.advance(self.start(remaining[0]), min(WARM_UP, self.steps))
            for unit in remaining:
                with self.claims.held(unit.name) as claim:
                    # another process may have finished it meanwhile
                    if claim is not None and (self.is_finished(unit) or self._attempt(unit, progress, claim)):
                        progress.finish(len(unit.seeds))
        return progress.taken, time.monotonic() - started

    def failed(self, unit: Unit, step: int, error: Exception) -> None:
        """Handle the failure of a unit: the build fails, unless a derived class continues with the others."""
        raise error

    def _attempt(self, unit: Unit, progress: Progress, claim: Claim) -> bool:
        """Train a unit; return False where it was not finished."""
        try:
            return self._train(unit, progress, claim)
        except Interrupted:
            raise
        except Exception as error:  # whatever an engine or a device raises
            self.failed(unit, claim.progress, error)
            return False

    @cached_property
    def claims(self) -> Claims:
        """The claims of the units, by all processes that share the folder."""
        return Claims(self.build_folder.folder)

    def _train(self, unit: Unit, progress: Progress, claim: Claim) -> bool:
        """Train one unit from where it was saved to its end; return False where another process has taken it over."""
        spans = self.proceed(unit)
        progress.resume(next(spans).member_steps)
        for taken in spans:
            claim.progress = taken.step
            if taken.member_steps:
                self._report(progress, taken.member_steps, taken.seconds)
            if claim.lost:
                return False
        return True

    def proceed(self, unit: Unit) -> Iterator[StepsTaken]:
        """Train one unit from where it was saved to its end.

        The first value has the steps before the last save, each later one those of a span; it counts none where the
        state was just saved, or checkpoints stored. The caller's work behind a save counts as time of that save.
        """
        state = self.start(unit)
        total = self.build_folder.restore(unit, state)
        if not all(self.is_stored(unit, stop) for stop in self.stops(unit) if stop < state.step):
            # at_stop stores the checkpoints of a step when it is there, and a state cannot go back
            # it has passed what somebody has removed since
            state, total = self.start(unit), Spent()
        yield StepsTaken(state.step, state.step * len(state), 0.0)
        # a guess, until the first span has shown how long a step takes
        span, saved, interval = self.trainer.first_span, time.monotonic(), self.save_seconds
        for stop in self.stops(unit):
            while state.step < stop:
                first, end = state.step, min(stop, state.step + span)
                used = spent(lambda end=end: self.trainer.advance(state, end), self.counter)
                total += used
                yield StepsTaken(state.step, (end - first) * len(state), used.seconds)
                span = max(1, round((end - first) * _SPAN_SECONDS / max(used.seconds, 1e-6)))
                stop_now, began = self.should_stop(), time.monotonic()
                if stop_now or began - saved >= interval:
                    self.build_folder.save(unit, state, total)
                    yield StepsTaken(state.step, 0, 0.0)
                    saved = time.monotonic()
                    interval = max(self.save_seconds, (saved - began) / _SAVING_SHARE)
                if stop_now:
                    # after the save: what was asked to stop has lost nothing
                    raise Interrupted(
                        f"{unit.name}: stopped at step {state.step} and saved. Run the same command to carry on."
                    )
            if state.step == stop:
                self.at_stop(unit, state, total)
                yield StepsTaken(state.step, 0, 0.0)
        self.finish(unit)
        # last: a process that is killed before takes the unit up at its end
        self.build_folder.forget_state(unit)

    def _report(self, progress: Progress, member_steps: int, seconds: float) -> None:
        """Count steps; when enough of them are known for a speed, report how long the whole will take."""
        known = progress.seconds >= SECONDS
        progress.advance(member_steps, seconds)
        if not known and progress.seconds >= SECONDS:
            progress.note(self.describe(progress.taken / progress.seconds))
