"""``average`` and ``soup``: one network whose weights are the mean of those of several."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import NETWORK, checked
from ckptzoo.derive.aligned import BEST
from ckptzoo.derive.checks import import_with_torch
from ckptzoo.derive.labelled import Labelled
from ckptzoo.derive.weight_sums import BATCH_BYTES, Members, Weights, WeightSum, refuse_gaussians
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.header import rounded
from ckptzoo.loader.checkpoint import Checkpoint
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import Document
from ckptzoo.text import Progress, counted, counter

if TYPE_CHECKING:
    from ckptzoo.derive.evaluation import Evaluator


@dataclass(frozen=True)
class Trial:
    """A checkpoint that was tried in a soup.

    Parameters
    ----------
    id
        its id.
    accuracy
        its own.
    together
        that of the mean of what was in the soup and this one.
    kept
        whether it stays in the soup.
    """

    id: str
    accuracy: float
    together: float
    kept: bool


@dataclass(frozen=True, eq=False)
class Averaged:
    """One network of the weights of several.

    Parameters
    ----------
    checkpoint
        its weights, and the columns on which the checkpoints agree.
    ids
        the checkpoints whose mean it is, in the order in which they were added.
    method
        ``average`` or ``soup``.
    reference
        what they were aligned with before; None where they were not.
    statistics
        what was done about the running statistics of BatchNorm; None where there are none.
    set, accuracy, loss
        what the network was measured on, and what was found; None where it was not.
    chosen_on
        the set by whose accuracy the checkpoints of a soup were chosen; None of an average.
    trials
        of a soup: every checkpoint in the order in which it was tried.
    left_out
        ids of a soup's candidates that are not finite.
    """

    checkpoint: Checkpoint
    ids: tuple[str, ...]
    method: str
    reference: str | None = None
    statistics: str | None = None
    set: str | None = None
    accuracy: float | None = None
    loss: float | None = None
    chosen_on: str | None = None
    trials: tuple[Trial, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def chosen_accuracy(self) -> float | None:
        """The accuracy of a soup on the set by which it was chosen; None of an average."""
        return next((trial.together for trial in reversed(self.trials) if trial.kept), None)

    def to_json(self) -> Document:
        """Everything but the weights by name; what is not known is left out."""
        names = ("method", "ids", "reference", "statistics", "set", "accuracy", "loss", "chosen_on", "left_out")
        facts: Document = {name: getattr(self, name) for name in names}
        facts["chosen_accuracy"] = self.chosen_accuracy
        facts |= {"ids": list(self.ids), "left_out": list(self.left_out)}
        facts["trials"] = [asdict(trial) for trial in self.trials]
        return {name: value for name, value in facts.items() if value is not None and value != []}


@checked
def average(
    zoo: Zoo,
    *,
    variant: str = layout.RAW,
    to: str | None = None,
    labelled: Labelled | None = None,
    module: NETWORK | None = None,
    progress: Progress | None = None,
) -> Averaged:
    """The mean of the weights of the checkpoints of a zoo, or of a selection of it.

    Sums are taken in float64 in the order of the zoo, and rounded once to the dtype in which the zoo holds the tensor.

    Parameters
    ----------
    zoo
        the checkpoints.
    variant
        the gauge their weights are taken in.
    to
        a reference with which each is aligned before (``ckptzoo.symmetry.align``, by weights): ``best``, the most
        accurate of the zoo; an id; or the folder or address of a zoo of one checkpoint. None for the weights as they
        are.
    labelled
        inputs on which the mean is measured; with training inputs (``Labelled.statistics``) the running statistics of
        BatchNorm are recomputed from these, else they are averaged as the weights are.
    module
        the network as a torch module, where ``ckptzoo.archs`` has no forward function for it: to measure it, and to
        trace its symmetries where the zoo has no table.
    progress
        called with the number of checkpoints, where weights are read at once.

    Raises
    ------
    UnknownNameError
        There is no such variant or reference.
    SymmetryError
        They are to be aligned and no table of symmetries is known.
    ZooError
        There are no checkpoints, they are Gaussians, one is not finite, or they differ in a tensor of integers that
        counts no batches; or the network does not take the inputs.
    MissingExtraError
        It is to be measured and torch is not installed.

    Notes
    -----
    Without a reference and without inputs each tensor is computed when it is read, so that memory is that of one tensor
    and of a batch of 64 MiB. Else all sums are in memory, 8 bytes an element, with a batch of 32 MiB of weights or one
    checkpoint. Tested in tests/derive/test_averages.py.

    Examples
    --------
    >>> found = average(ckptzoo.open("zoos/few").take(slice(4)), to="best")
    >>> found.checkpoint["conv1.weight"].shape, len(found.ids)
    ((2, 1, 4, 4), 4)
    """
    members = Members(zoo, variant, to, module)
    ids = tuple(zoo.ids)
    if to is None and labelled is None:
        read = members.mean
        result = Averaged(members.checkpoint("average", ids, read), ids, "average")
        return replace(result, statistics=_averaged_statistics(zoo.arch, len(ids)))
    total, advance = WeightSum(members), counter(len(ids), progress)
    for id, weights in members.aligned():
        total.add(id, weights)
        advance()
    return _finished(members, total, "average", labelled, module)


@checked
def soup(
    zoo: Zoo,
    labelled: Labelled,
    *,
    variant: str = layout.RAW,
    to: str | None = None,
    measured: Labelled | None = None,
    module: NETWORK | None = None,
    progress: Progress | None = None,
) -> Averaged:
    """A greedy soup of the checkpoints of a zoo, or of a selection of it.

    Algorithm 1 of Wortsman et al., arXiv 2203.05482: the checkpoints are sorted by their accuracy on held-out inputs,
    and in this order each is added to the mean unless the mean's accuracy falls.

    Parameters
    ----------
    zoo, variant, module
        as for ``average``. Checkpoints that are not finite are left out.
    labelled
        the held-out inputs by whose accuracy checkpoints are chosen; with training inputs (``Labelled.statistics``) the
        running statistics of BatchNorm of every mean are recomputed from these, else they are averaged. Single
        checkpoints keep theirs.
    to
        as for ``average``; ``best`` is the checkpoint that is the most accurate on the held-out inputs.
    measured
        inputs on which the soup is measured in the end; by default the held-out ones, on which its accuracy is too
        high, as it was chosen by it.
    progress
        called with the number of checkpoints that were evaluated, and of means.

    Raises
    ------
    UnknownNameError, SymmetryError, ZooError, MissingExtraError
        As for ``average``.

    Notes
    -----
    Of K checkpoints 2K - 1 networks are evaluated, and some more: where checkpoints are not kept, means with several
    further ones are evaluated at once. Of checkpoints with equal accuracies the first in the zoo comes first. Memory: 8
    bytes an element for the sums, 32 MiB of checkpoints with their means or one of each, and what evaluating takes.
    Tested in tests/derive/test_averages.py.

    Examples
    --------
    >>> from ckptzoo.derive.labelled import Labelled
    >>> from ckptzoo.image_sets import find
    >>> digits = find("digits/test-100")
    >>> held_out = Labelled("digits/test-100", digits.normalized((0.1307,), (0.3081,)), digits.labels)
    >>> found = soup(ckptzoo.open("zoos/few"), held_out, to="best")
    >>> found.accuracy >= max(trial.accuracy for trial in found.trials)
    True
    """
    members = Members(zoo, variant, None, module)
    evaluation = import_with_torch("evaluation")
    single: Evaluator = evaluation.Evaluator(zoo.arch, replace(labelled, statistics=None), module=module)
    renewing: Evaluator = evaluation.Evaluator(zoo.arch, labelled, module=module)
    count = len(zoo)
    advance = counter(2 * count - 1, progress)
    own, finite = _accuracies(members, single, advance)
    order = [place for place in np.argsort(-own, kind="stable").tolist() if finite[place]]
    ids = zoo.ids
    if not order:
        step = "Select others with --where."
        raise ZooError(Problem(zoo.name, "checkpoints of a soup", "one that is finite", f"none of {count:,}", step))
    members.align_to(ids[order[0]] if to == BEST else to)
    total = WeightSum(members)
    total.add(ids[order[0]], members.network(ids[order[0]]))

    def accuracies(candidates: Sequence[Weights]) -> list[float]:
        means = [total.mean(weights) for weights in candidates]
        stacked = {name: np.stack([mean[name] for mean in means]) for name in zoo.arch.names}
        return single.scores([renewing.renewed(stacked)])[0].accuracy.tolist()

    first = Trial(ids[order[0]], float(own[order[0]]), float(own[order[0]]), True)
    most = max(1, min(single.stack_size, BATCH_BYTES // zoo.arch.nbytes))
    trials = [first]
    advance(count - len(order))
    queue, ahead, accuracy = order[1:], 1, first.accuracy
    while queue:
        # one of several candidates after the other is what is meant; those behind one that is kept are tried again
        tried = queue[:ahead]
        candidates = [members.network(ids[place]) for place in tried]
        ahead = min(2 * ahead, most)
        for place, weights, together in zip(tried, candidates, accuracies(candidates), strict=True):
            total.check_integers(ids[place], weights)
            is_kept = together >= accuracy
            trials.append(Trial(ids[place], float(own[place]), together, is_kept))
            del queue[0]
            advance()
            if is_kept:
                accuracy = together
                total.add(ids[place], weights)
                ahead = 1
                break
    left_out = tuple(id for id, good in zip(ids, finite, strict=True) if not good)
    if measured is None or measured.statistics is None:
        measured = replace(measured or labelled, statistics=labelled.statistics)
    found = _finished(members, total, "soup", measured, module)
    return replace(found, chosen_on=labelled.set, trials=tuple(trials), left_out=left_out)


@checked
def measured_on(checkpoint: Checkpoint, labelled: Labelled, *, module: NETWORK | None = None) -> tuple[float, float]:
    """Accuracy and loss in nats of one checkpoint, with the running statistics that it has.

    Parameters
    ----------
    checkpoint
        of a zoo, or of ``average`` or ``soup``.
    labelled
        inputs with labels.
    module
        as for ``average``.

    Raises
    ------
    ZooError
        It is a Gaussian, or the network does not take the inputs.
    MissingExtraError
        torch is not installed.
    """
    refuse_gaussians(checkpoint.arch, checkpoint.arch.name)
    plain = replace(labelled, statistics=None)
    evaluator: Evaluator = import_with_torch("evaluation").Evaluator(checkpoint.arch, plain, module=module)
    (scores,) = evaluator.scores([{name: checkpoint[name][None] for name in checkpoint.arch.names}])
    return float(scores.accuracy[0]), float(scores.loss[0])


def _finished(members: Members, total: WeightSum, method: str, labelled: Labelled | None, module: Any) -> Averaged:
    """The mean with its running statistics, and what is measured of it."""
    weights, ids = total.mean(), tuple(total.ids)
    statistics = _averaged_statistics(members.zoo.arch, len(ids))
    # a single checkpoint keeps those of its training
    if labelled is not None and labelled.statistics is not None and len(ids) > 1:
        evaluator: Evaluator = import_with_torch("evaluation").Evaluator(members.zoo.arch, labelled, module=module)
        if evaluator.statistics:
            renewed = evaluator.renewed({name: array[None] for name, array in weights.items()})
            for name in evaluator.statistics:
                array = renewed[name][0]
                weights[name] = array if array.dtype.kind in "iub" else _stored(array, members.dtypes[name])
            statistics = f"recomputed from {counted(len(labelled.statistics), 'training input')}"
    checkpoint = members.checkpoint(method, ids, weights.__getitem__)
    found = Averaged(checkpoint, ids, method, members.reference, statistics)
    if labelled is None:
        return found
    accuracy, loss = measured_on(checkpoint, labelled, module=module)
    dataset = checkpoint.row.get("dataset")
    if dataset is not None and labelled.set == f"{dataset.rpartition('/')[2]}/test":
        checkpoint.row["test_accuracy"] = accuracy
    return replace(found, set=labelled.set, accuracy=accuracy, loss=loss)


def _stored(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return rounded(array.astype(np.float64), dtype)


def _accuracies(
    members: Members, evaluator: "Evaluator", advance: Callable[..., None]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(N,) the accuracy of every checkpoint by itself, and whether it is finite."""
    finite: list[NDArray[np.bool_]] = []

    def stacks() -> Iterator[Mapping[str, NDArray[Any]]]:
        for stack, ids in members.stacks():
            good = np.ones(len(ids), bool)
            for array in stack.values():
                if array.dtype.kind not in "iub":
                    good &= np.isfinite(array).reshape(len(ids), -1).all(1)
            finite.append(good)
            advance(len(ids))
            yield stack

    scores = evaluator.scores(stacks())
    return np.concatenate([item.accuracy for item in scores]), np.concatenate(finite)


def _averaged_statistics(arch: Architecture, count: int) -> str | None:
    statistics = any(tensor.name.endswith(("running_mean", "running_var")) for tensor in arch.tensors)
    return "averaged as the weights are" if statistics and count > 1 else None
