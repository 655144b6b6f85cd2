"""The trials of a search, shared by any number of processes through Optuna's journal in a folder.

::

    journal.log            every trial, as Optuna's JournalStorage writes it
    trial-000007.claim-…   a process trains trial 7 (ckptzoo.recording.claims)
    asking.claim-…         one takes the next trial; journal.claim-…: one writes into the journal

A trial whose process ended before it reported a result is lost: it is reported as failed, is not counted, and the next
one is drawn with its random numbers. So a search by one process that was killed makes the trials of an undisturbed one.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from ckptzoo import archs
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.recording.claims import Claims

JOURNAL = "journal.log"
SPACE: dict[str, BaseDistribution] = {
    "groups": IntDistribution(1, 4),
    "channels1_per_group": IntDistribution(1, 3),
    "kernel1": IntDistribution(2, 7),
    "pool": IntDistribution(2, 4),
    "channels2_per_group": IntDistribution(1, 8),
    "kernel2": IntDistribution(2, 5),
    "hidden": CategoricalDistribution((0, 5, 10, 20)),
}
"""27,648 networks of 28 to 3,876 parameters, all of which fit 28x28 images. 0 hidden units: no hidden layer."""
PUBLISHED = {
    "groups": 2,
    "channels1_per_group": 1,
    "kernel1": 4,
    "pool": 3,
    "channels2_per_group": 5,
    "kernel2": 5,
    "hidden": 0,
}
"""OptuNet, the first trial of every search."""
_ACCURACIES, _REASON = "accuracies", "reason"
_LOCK_HEARTBEAT, _LOCK_STALE = 5.0, 30.0
"""Seconds, as in ``ckptzoo.recording.claims``, of what a process holds for a moment; of another machine's, as
Optuna's locks.
"""
_WAIT_SECONDS = 0.05
"""Seconds between two looks of a process at whether another one has finished an exclusive action."""


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network, by its first ``trial``; its test ``accuracies``, one a member from 0 to 1, and their mean."""

    trial: int
    architecture: str
    parameters: int
    accuracy: float
    accuracies: tuple[float, ...]


@dataclass(frozen=True)
class FailedTrial:
    """A trial that has no result."""

    trial: int
    architecture: str
    reason: str


@dataclass(frozen=True, eq=False)
class ClaimedTrial:
    """A trial that this process makes, with the name of its network."""

    number: int
    architecture: str
    trial: Trial


class Trials:
    """The trials of one search, in a folder with the journal and the claims.

    The folder exists, and has one search with this ``name``; ``seed`` is that of the sampler.

    Raises IntegrityError: the journal is damaged. Raises ZooError: it is of another search.
    """

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name, self.seed, self._claims = name, seed, Claims(folder)
        self._locks = Claims(folder, heartbeat=_LOCK_HEARTBEAT, stale=_LOCK_STALE)
        path = folder / JOURNAL
        try:
            storage = JournalStorage(JournalFileBackend(str(path), _Lock(path, self._locks)))
            with _alone(self._locks, "asking"):
                known = {study.study_name for study in optuna.get_all_study_summaries(storage)}
                if not known:
                    optuna.create_study(storage=storage, study_name=name, directions=["minimize", "maximize"])
            # one search a folder: claims are named by trials alone
            if known - {name}:
                step = "Choose another folder, or give the arguments of that search."
                raise ZooError(Problem(str(folder), "search", name, ", ".join(sorted(known)), step))
            self._study = optuna.load_study(storage=storage, study_name=name)
        except (ValueError, KeyError, TypeError) as error:
            got, step = f"{type(error).__name__}: {error}", "Restore it, or search in another folder."
            raise IntegrityError(Problem(str(path), "journal", "one that Optuna reads", got, step)) from error

    @contextmanager
    def taken(self, limit: int) -> Iterator[ClaimedTrial | None]:
        """Yield a trial that this process is to make, until the end of the block; None where there are ``limit``."""
        with ExitStack() as stack:
            # no other process is to see a trial before it is claimed
            with _alone(self._locks, "asking"):
                trial = self._next(limit)
                if trial is not None:
                    stack.enter_context(self._claims.held(_claim(trial.number)))
            yield None if trial is None else ClaimedTrial(trial.number, _architecture(trial.params), trial)

    def ended(self) -> int:
        """Return how many trials have a result, or have failed."""
        return len(self._results()) + len(self.failures())

    def networks(self) -> list[TrainedNetwork]:
        """Return the networks with a result, in the order of their first trials."""
        return _networks(self._results())

    def front(self) -> list[TrainedNetwork]:
        """Return the Pareto front by rising parameters."""
        return sorted(_networks(self._study.best_trials), key=lambda network: network.parameters)

    def failures(self) -> list[FailedTrial]:
        """Return the trials that failed, in order, without lost ones."""
        failed = [trial for trial in self._counting() if trial.state == TrialState.FAIL]
        return [FailedTrial(trial.number, _architecture(trial.params), trial.user_attrs[_REASON]) for trial in failed]

    def tell(self, taken: ClaimedTrial, parameters: int, accuracies: Sequence[float]) -> None:
        """Record the result of a trial: the accuracies of its members."""
        # RuntimeError: it was taken for lost, because this process sent no heartbeat for minutes
        with suppress(RuntimeError):
            taken.trial.set_user_attr(_ACCURACIES, list(accuracies))
            self._study.tell(taken.trial, [parameters, float(np.mean(accuracies))], skip_if_finished=True)

    def tell_failure(self, taken: ClaimedTrial, reason: str) -> None:
        """Record that a trial has no result, and why."""
        with suppress(RuntimeError):
            taken.trial.set_user_attr(_REASON, reason)
            self._study.tell(taken.trial, state=TrialState.FAIL, skip_if_finished=True)

    def _counting(self) -> list[FrozenTrial]:
        """Return the trials that have a result, have failed or are being made, in order."""
        # not copied: trials are only read, and there may be thousands
        known = self._study.get_trials(deepcopy=False)
        return [
            trial
            for trial in known
            if trial.state != TrialState.WAITING
            and (trial.state != TrialState.FAIL or _REASON in trial.user_attrs)  # else it was lost
        ]

    def _results(self) -> list[FrozenTrial]:
        return [trial for trial in self._counting() if trial.state == TrialState.COMPLETE]

    def _next(self, limit: int) -> Trial | None:
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            holder = self._claims.holder(_claim(trial.number))
            if holder is None or not holder.alive:
                self._study.tell(trial.number, state=TrialState.FAIL)
        count = len(self._counting())
        if count >= limit:
            return None
        if count == 0:
            # a point of comparison from the first trial on
            self._study.enqueue_trial(PUBLISHED)
        # each trial has random numbers of its own, whatever was drawn before and by whom
        seed = np.random.SeedSequence((self.seed, count)).generate_state(1)[0]
        self._study.sampler = optuna.samplers.TPESampler(seed=int(seed))
        return self._study.ask(SPACE)


def _architecture(chosen: Mapping[str, Any]) -> str:
    """Return the name of the network that a trial has chosen."""
    groups, hidden = chosen["groups"], chosen["hidden"]
    channels = (groups * chosen["channels1_per_group"], groups * chosen["channels2_per_group"])
    numbers = (channels[0], chosen["kernel1"], chosen["pool"], channels[1], chosen["kernel2"], groups)
    return archs.optunet_name(*numbers, *((hidden,) if hidden else ()))


def _networks(results: Sequence[FrozenTrial]) -> list[TrainedNetwork]:
    """Return the networks of trials; for each that was drawn again, its first trial."""
    first: dict[str, TrainedNetwork] = {}
    for trial in sorted(results, key=lambda trial: trial.number):
        name, (parameters, accuracy) = _architecture(trial.params), trial.values
        network = TrainedNetwork(trial.number, name, int(parameters), accuracy, tuple(trial.user_attrs[_ACCURACIES]))
        first.setdefault(name, network)
    return list(first.values())


def _claim(number: int) -> str:
    return f"trial-{number:06d}"


class _Lock(JournalFileOpenLock):
    """A lock of Optuna's journal that is free at once when its holder was killed; Optuna's own waits for 30 seconds.
    The process that gets it removes an unfinished last line, because another line appended to it would make the journal
    unreadable.
    """

    def __init__(self, journal: Path, locks: Claims) -> None:
        super().__init__(str(journal))
        self._journal, self._locks, self._held = journal, locks, ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(_alone(self._locks, "journal"))
        with self._journal.open("r+b") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 1))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._held.close()


@contextmanager
def _alone(locks: Claims, name: str) -> Iterator[None]:
    """Run the block in one process at a time."""
    while True:
        with locks.held(name) as claim:
            if claim is not None:
                yield
                return
        time.sleep(_WAIT_SECONDS)
