"""How good are single members and ensembles of them, by stored predictions?"""

from collections.abc import Callable, Mapping, Sequence
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import ZooError
from ckptzoo.loader.predictions import Predictions
from ckptzoo.loader.zoo import Zoo
from ckptzoo.measure.diversity import disagreement
from ckptzoo.studies.ensembles.result import Ensembles, Size
from ckptzoo.studies.ensembles.scores import Scores, scores
from ckptzoo.studies.ensembles.sums import Growing, Sum, log_softmax
from ckptzoo.studies.reading.batches import Progress

SUBSETS = 50
"""Ensembles of one size that are scored, at most; single members are all."""
EXTRA = (10, 100)
"""Sizes beside the powers of two."""
BATCH_BYTES = 4 * 2**20
"""Logits that are read at a time, as far as whole members allow."""


def ensembles(
    zoo: Zoo,
    set: str | None = None,
    *,
    ood: Sequence[str] | None = None,
    references: Mapping[str, float] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Ensembles:
    r"""Score single members and ensembles of 2, 4, 8, ..., also 10, 100, and all of them.

    An ensemble predicts the average of its members' probabilities,

    .. math:: p(c \mid x) = \frac{1}{S} \sum_{s=1}^S \operatorname{softmax}(f_s(x))_c

    (Lakshminarayanan, Pritzel and Blundell, arXiv 1612.01474, section 2.4; on zoos: arXiv 2310.08287). The members are
    put in a random order and cut into disjoint ensembles of each size, so that the ensembles of a size are independent
    of one another as far as the members are; mean and standard deviation are over these, ``SUBSETS`` of them at most.

    Parameters
    ----------
    zoo : what ``ckptzoo.open`` gives, or a selection of it, with predictions. Each member's last step counts. Members
        that diverged count; those whose weights or logits on ``set`` are not finite are left out and counted.
    set : the predictions to score; by default the first set of the zoo that has labels.
    ood : sets of other inputs, to be told from those of ``set``; by default all that have no labels. Members whose
        logits on one of them are not finite are left out for that set alone.
    references : accuracies from elsewhere, 0 to 1, by the names under which they are shown.
    seed : of the order.
    progress : called with the bytes of logits read and the bytes in all.

    Raises
    ------
    UnknownNameError
        No such set.
    ZooError
        The zoo has no predictions, the set has no labels or is among ``ood``, the networks have a single output, fewer
        than two members are finite, or a reference is no accuracy.

    Notes
    -----
    One pass, and one more for each other set on which some members are not finite; 8 bytes an input, class and size,
    and some copies of ``BATCH_BYTES``, whatever the number of members. In an average probabilities below exp(-700)
    count as that. Known answers: ``tests/studies/test_ensembles.py``.
    """
    if wrong := {name: value for name, value in (references or {}).items() if not 0 <= value <= 1}:
        raise ZooError(f"{zoo.name}: references: expected accuracies from 0 to 1, got {wrong}. Correct them.")
    own, others = _sets(zoo, set, ood)
    last = zoo.last_steps()
    finite = last.metadata["finite"].fill_null(True).to_numpy().astype(np.bool_) & last.predictions(own).finite
    _enough(zoo, own, int(finite.sum()), len(last))
    members = last.take(np.random.default_rng(seed).permutation(np.flatnonzero(finite)))
    held = {name: members.predictions(name) for name in (own, *others)}
    targets, classes = held[own].targets, held[own].logits.shape[2]
    if targets is None:
        step = "Choose another set, or predict it with its labels."
        raise ZooError(f"{zoo.name}: labels of {own}: expected some, got none. {step}")
    if classes < 2:
        step = "Choose a zoo of classifiers with an output a class."
        raise ZooError(f"{zoo.name}: classes of {own}: expected 2 or more, got {classes}. {step}")
    odd = {name: int((~held[name].finite).sum()) for name in others}
    told = [name for name in others if len(members) - odd[name] >= 2]
    passes = [{name: held[name] for name in (own, *told) if not odd.get(name)}]
    for name in told:
        if odd[name]:
            kept = members.take(np.flatnonzero(held[name].finite))
            passes.append({each: kept.predictions(each) for each in (own, name)})
    total, done = sum(item.logits.nbytes for each in passes for item in each.values()), 0

    def read(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    (scored, apart), *more = [_scored(each, targets, read) for each in passes]
    sizes = {size: Size.of(size, found) for size, found in scored.items()}
    for each, pairs in more:
        (name,) = pairs.keys() - {own}
        apart[name] = pairs[name]
        for size, found in each.items():
            sizes[size] = Size.of(size, [{name: item[name]} for item in found]).beside(sizes.get(size))
    return Ensembles(
        name=zoo.name,
        set=own,
        ood=tuple(told),
        ood_not_finite={name: count for name, count in odd.items() if count},
        inputs=len(targets),
        classes=classes,
        members=len(members),
        not_finite=len(last) - len(members),
        seed=seed,
        accuracies=np.array([item[own]["accuracy"] for item in scored[1]]),
        diverged=members.metadata["diverged"].fill_null(False).to_numpy().astype(np.bool_),
        sizes=tuple(sizes[size] for size in sorted(sizes)),
        disagreement={name: apart[name] for name in (own, *told)},
        references=dict(references or {}),
    )


def _scored(
    held: Mapping[str, Predictions], targets: NDArray[np.int64], read: Callable[[int], None]
) -> tuple[dict[int, list[Scores]], dict[str, float]]:
    """Size to the figures of each ensemble, and set to the share of pairs of members that disagree.

    Parameters
    ----------
    held : set to the predictions of the same members, the set that is scored first.
    read : called with the bytes of each batch.
    """
    own = next(iter(held))
    K, _, classes = held[own].logits.shape
    ends = np.cumsum([0, *(item.logits.shape[1] for item in held.values())])
    sets = {name: slice(*ends[at : at + 2]) for at, name in enumerate(held)}
    sizes = _sizes(K)
    growing, votes = Growing(sizes), np.zeros((ends[-1], classes), np.int64)
    scored: dict[int, list[Scores]] = {size: [] for size in (1, *sizes)}
    several = max(1, BATCH_BYTES * K // sum(item.logits.nbytes for item in held.values()))
    for batches in zip(*(item.stream(batch_size=several) for item in held.values()), strict=True):
        logits = np.concatenate([batch["logits"] for batch in batches], axis=1)
        for one in logits:
            logs = log_softmax(one)
            scored[1].append(scores(logs, None, sets, targets))
            votes[np.arange(len(logs)), logs.argmax(-1)] += 1
            for whole in growing.add(Sum.of(logs)):
                if len(scored[whole.size]) < SUBSETS:
                    scored[whole.size].append(scores(whole.logs, whole.mutual_information, sets, targets))
        read(logits.nbytes)
    return scored, {name: float(disagreement(votes[inputs]).mean()) for name, inputs in sets.items()}


def _enough(zoo: Zoo, own: str, members: int, among: int) -> None:
    if members < 2:
        got = f"{members} of {among}"
        step = "Select others."
        raise ZooError(f"{zoo.name}: members: expected 2 or more with finite logits on {own}, got {got}. {step}")


def _sizes(members: int) -> list[int]:
    """2 or more each, ascending; the last is all."""
    powers = [2**power for power in range(1, members.bit_length())]
    return sorted({size for size in (*powers, *EXTRA, members) if size <= members})


def _sets(zoo: Zoo, own: str | None, ood: Sequence[str] | None) -> tuple[str, list[str]]:
    """The set to score, and those to tell from it."""
    known = zoo.predicted
    if not known:
        raise ZooError(f"{zoo.name}: predictions: expected those on a set of inputs, got none. {_predict(zoo)}.")
    if own is None:
        own = next((name for name in known if _labelled(zoo, name)), None)
    if own is None:
        got = f"got {', '.join(known)}. {_predict(zoo)}"
        raise ZooError(f"{zoo.name}: predictions: expected a set with labels among them, {got}.")
    if ood is not None and own in ood:
        step = "Leave it out, or choose another set to score."
        raise ZooError(f"{zoo.name}: ood: expected other sets than {own}, which is scored, got that one too. {step}")
    others = [name for name in known if not _labelled(zoo, name)] if ood is None else dict.fromkeys(ood)
    return own, [name for name in others if name != own]


def _predict(zoo: Zoo) -> str:
    """The command that stores predictions with labels: those on the data set of the networks have them."""
    folder, datasets = zoo.contents.files.here, zoo.metadata["dataset"].drop_null().unique().to_pylist()
    name = f"{datasets[0]}/test" if len(datasets) == 1 else "mnist/test"
    command = f"ckptzoo predict {quote(str(folder)) if folder else 'FOLDER'} {quote(name)}"
    return f"{'Run' if folder else 'Pull the zoo, then run'} {command}, which writes into that folder"


def _labelled(zoo: Zoo, name: str) -> bool:
    return zoo.predictions(name).targets is not None
