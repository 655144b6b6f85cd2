"""``search``: small and accurate networks of OptuNet's family, found by Optuna's TPE with two objectives (extra
``search``).

OptuNet was found so (arXiv 2310.08287, appendix B.2): by the number of parameters, the fewer the better, and by
accuracy. Here a trial trains a few members of a recipe with another architecture and takes the mean of their test
accuracies. The space of networks, ``builders.search_trials.SPACE``, is ours, and has OptuNet in it.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, Group

from builders import sources
from builders.checkpointing import Interrupted, StopRequested, catch_stop_signals
from builders.estimate import require_at_least
from builders.progress import Progress
from builders.recipe import Recipe
from builders.sources import Source
from builders.train import open_trainer
from ckptzoo.console import columns
from ckptzoo.errors import Problem, ZooError, require
from ckptzoo.format.durable import write_file
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import counted

if TYPE_CHECKING:
    from builders.search_trials import FailedTrial, TrainedNetwork, Trials

OPTUNET, OPTUNET_PARAMETERS = "optunet", 392
ENGINE = "single"
"""Its bits depend neither on the other members nor on the threads, and for four of these networks it takes no longer
than ``general``, which stacks them."""
BEST, PICTURE = "best.toml", "pareto.png"


@dataclass(frozen=True)
class SearchedNetworks(JsonFields):
    """The result of a search.

    ``name`` is the prefix of the recipe for this number of epochs, the members of a trial, and the seed; ``folder`` has
    the journal, picture and recipe. ``trials`` counts those with a result or a failure. ``front`` is the Pareto front
    by rising parameters, and ``best`` its most accurate network that has at most ``max_parameters``, else its smallest.
    """

    name: str
    recipe: str
    epochs: int
    members: int
    seed: int
    folder: Path
    trials: int
    networks: "tuple[TrainedNetwork, ...]"
    front: "tuple[TrainedNetwork, ...]"
    best: "TrainedNetwork"
    max_parameters: int
    failures: "tuple[FailedTrial, ...]"

    def print(self, console: Console | None = None) -> None:
        table = columns("architecture", "parameters", "accuracy", "of members", "trial")
        for network in self.front:
            least, most = min(network.accuracies), max(network.accuracies)
            spread = f"{100 * least:.1f} to {100 * most:.1f}"
            mean = f"{100 * network.accuracy:.1f} %"
            table.add_row(network.architecture, f"{network.parameters:,}", mean, spread, str(network.trial))
        failed = f"; {counted(len(self.failures), 'trial')} failed" if self.failures else ""
        which = f"the most accurate with at most {self.max_parameters:,}"
        if self.best.parameters > self.max_parameters:
            which = f"the smallest: none has at most {self.max_parameters:,}"
        counts = (
            f"{counted(self.trials, 'trial')}, {counted(len(self.networks), 'network')}, {len(self.front):,} of them"
        )
        lines = [
            f"{self.name}: {counts} on the Pareto front{failed}.",
            table,
            f"{self.folder / BEST}: {self.best.architecture}, {self.best.parameters:,} parameters, {which}.",
            f"{self.folder / PICTURE}: all networks.",
        ]
        (console or Console()).print(Group(*lines), highlight=False, markup=False, soft_wrap=True)


def search(
    recipe: Recipe | str | Path,
    to: str | Path,
    *,
    trials: int,
    epochs: int | None = None,
    seed: int = 0,
    members: int = 4,
    max_parameters: int = OPTUNET_PARAMETERS,
    folder: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    console: Console | None = None,
) -> SearchedNetworks:
    """Search until a folder has ``trials`` trials, failed ones included, and write the picture and the recipe of the
    best. Called again after it was stopped or killed, it continues; a larger number adds trials. Any number of
    processes may search in one folder at the same time. OptuNet is the first trial. A network that is drawn again is
    not trained again.

    ``recipe`` is that of OptuNet; trials train it with other architectures, for ``epochs``, by default its own, with
    ``members`` members of the seeds 0, 1, ... ``seed`` is that of the sampler: by one process the same seed gives the
    same trials, whether it was killed and repeated or not. ``max_parameters`` bounds the network whose recipe is
    written. The data are in ``folder``, see ``builders.sources.load``.

    Raises Interrupted on Ctrl-C or SIGTERM; finished trials are kept. Raises MissingExtraError: Optuna or matplotlib is
    not installed. Raises ZooError: the recipe is not of OptuNet, the folder has another search, or no trial has
    finished.
    """
    require("optuna", "search")
    require("matplotlib", "search")
    from builders.search_trials import Trials

    whole = Recipe.of(recipe)
    shortened = whole.shortened(epochs or whole.epochs)
    if whole.architecture != OPTUNET:
        raise ZooError(whole.problem_with("architecture", repr(OPTUNET)))
    require_at_least(trials=trials, members=members, threads=threads, max_parameters=max_parameters)
    require_at_least(0, seed=seed)
    source = sources.load(whole, folder)
    with open_trainer(shortened, source, device=device, engine=ENGINE, threads=threads):
        pass  # what is wrong with recipe, data or device is said here, and not by every trial
    root = Path(to).absolute()
    root.mkdir(parents=True, exist_ok=True)
    known = Trials(root, f"{shortened.prefix}-members{members}-seed{seed}", seed)
    training = _Training(shortened, source, members, device, threads)
    done, member_steps = known.ended(), members * shortened.steps
    with (
        catch_stop_signals() as should_stop,
        Progress(
            console or Console(),
            whole.name,
            members=trials * members,
            member_steps=trials * member_steps,
            done=done * member_steps,
            finished=done * members,
        ) as progress,
    ):
        while (text := _make_trial(known, trials, training, progress, should_stop)) is not None:
            progress.note(text)
            # with what other processes have done, and what trials that failed or were known have left out
            done = known.ended()
            progress.resume(done * member_steps - progress.done)
            progress.finish(done * members - progress.finished)
    return _report(known, whole, training, root, max_parameters)


def with_architecture(recipe: Recipe, architecture: str) -> Recipe:
    """Return a recipe of OptuNet with another network of its family, named after it; for OptuNet itself the same
    recipe.

    >>> with_architecture(Recipe.load("digits-optunet"), "optunet-3-5-2-8-4-1").name
    'digits-optunet-3-5-2-8-4-1'
    """
    name = f"{recipe.name}{architecture.removeprefix(OPTUNET)}"
    return dataclasses.replace(recipe, name=name, architecture=architecture, summary="")


@dataclass(frozen=True)
class _Training:
    """How trials train; see ``search``."""

    recipe: Recipe
    source: Source
    members: int
    device: str
    threads: int | None

    def accuracies(self, recipe: Recipe, progress: Progress, should_stop: StopRequested) -> Sequence[float]:
        """Return the accuracy of each member of a recipe on the test set."""
        with open_trainer(recipe, self.source, device=self.device, engine=ENGINE, threads=self.threads) as trainer:
            state = trainer.start(range(self.members))
            for stop in range(recipe.epoch_steps, recipe.steps + 1, recipe.epoch_steps):
                if should_stop():
                    raise Interrupted("finished trials are kept. Run the same command to carry on.")
                began = time.monotonic()
                trainer.advance(state, stop)
                progress.advance(self.members * recipe.epoch_steps, time.monotonic() - began)
            measured = trainer.measure(state.weights)
        diverged = int((~np.isfinite(measured["train_loss"])).sum())
        if diverged:
            expected, step = "finite training losses", "Lower the learning rate."
            got = f"{diverged} of {counted(self.members, 'member')} that diverged"
            raise ZooError(Problem(recipe.name, "training", expected, got, step))
        return [float(accuracy) for accuracy in measured["test_accuracy"]]


def _make_trial(
    known: "Trials", limit: int, training: _Training, progress: Progress, should_stop: StopRequested
) -> str | None:
    """Take a trial, train its network, record the result, and return it in a line; None where there are enough."""
    with known.taken(limit) as trial:
        if trial is None:
            return None
        recipe = with_architecture(training.recipe, trial.architecture)
        # TPE may draw a network again, and training it again would give the same accuracies
        accuracies = next(
            (item.accuracies for item in known.networks() if item.architecture == trial.architecture), None
        )
        try:
            if accuracies is None:
                accuracies = training.accuracies(recipe, progress, should_stop)
        except Interrupted:
            raise
        except Exception as error:  # whatever fails, the search goes on with other networks
            known.tell_failure(trial, f"{type(error).__name__}: {error}")
            result = f"failed: {error}"
        else:
            known.tell(trial, recipe.arch.parameters, accuracies)
            result = f"{recipe.arch.parameters:,} parameters, {100 * np.mean(accuracies):.1f} %"
        return f"trial {trial.number}: {trial.architecture}: {result}"


def _report(known: "Trials", whole: Recipe, training: _Training, folder: Path, max_parameters: int) -> SearchedNetworks:
    """Return the result of the trials; write the picture and the recipe of the best."""
    from builders.search_picture import pareto
    from ckptzoo.studies.shared.plots import png

    networks, front, failures = known.networks(), known.front(), known.failures()
    if not front:
        got = f"{counted(known.ended(), 'trial')} that ended" + (f"; {failures[-1].reason}" if failures else "")
        step = "Correct the recipe, or wait for other processes."
        raise ZooError(Problem(str(folder), "search", "a trial with a result", got, step))
    best = next((network for network in reversed(front) if network.parameters <= max_parameters), front[0])
    summary = f"{best.architecture} ({best.parameters:,} parameters), found by {known.name}"
    recipe = dataclasses.replace(with_architecture(whole, best.architecture), summary=summary)
    write_file(folder / BEST, recipe.to_toml().encode())
    title = f"{whole.name}: networks after {counted(training.recipe.epochs, 'epoch')}"
    published = next((network for network in networks if network.architecture == OPTUNET), None)
    write_file(folder / PICTURE, png(pareto(title, networks, front, best, published)))
    return SearchedNetworks(
        name=known.name,
        recipe=whole.name,
        epochs=training.recipe.epochs,
        members=training.members,
        seed=known.seed,
        folder=folder,
        trials=known.ended(),
        networks=tuple(networks),
        front=tuple(front),
        best=best,
        max_parameters=max_parameters,
        failures=tuple(failures),
    )
