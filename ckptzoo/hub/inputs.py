"""The images of a test set as the networks of a zoo take them: scaled and shaped as in their training."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub import test_sets
from ckptzoo.hub.contributions.evaluation import Evaluation, evaluations
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.layout import SET_NAME

_SPLIT = re.compile(r"test(?:-([1-9]\d{0,8}))?")
"""``test`` for all examples, ``test-100`` for the first 100."""


def inputs_of(
    zoo: Zoo, name: str, *, data: str | Path | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """Inputs as the zoo's networks take them, scaled as the data set that they were trained on, and their labels.

    Parameters
    ----------
    zoo : its rows say how pixels are scaled.
    name : the set, ``<data set>/test``, such as ``mnist/test``, ``fashion-mnist/test`` or ``digits/test``; and
        ``mnist/test-100`` for its first 100 examples.
    data : where test sets are, as ``ckptzoo.hub.test_sets.find`` takes it.

    Returns
    -------
    (N, *input_shape) float32, and (N,) labels; None for another data set than that of the networks.

    Raises
    ------
    ZooError
        There is no such set on this machine, no row says how pixels are scaled, or rows differ in it.
    """
    dataset, _, split = name.partition("/")
    split_match = _SPLIT.fullmatch(split)
    if not SET_NAME.fullmatch(name) or split_match is None:
        expected, step = "a data set and /test, as mnist/test or mnist/test-100", "Others are for derive.predict."
        raise ZooError(Problem(zoo.name, "set of inputs", expected, repr(name), step))
    limit = int(split_match[1]) if split_match[1] else None
    evaluation = _common_evaluation(zoo)
    test_set = test_sets.find(dataset, data)
    what = f"set of inputs {name!r}"
    if test_set is None:
        folder = test_sets.folder_of(data)
        got = "no folder to look in" if folder is None else f"none in {folder} nor in {folder / dataset}"
        step = f"Name the folder that holds it with --data or {test_sets.FOLDER_VARIABLE}."
        raise ZooError(Problem(zoo.name, what, "its files on this machine", got, step))
    if limit is not None and limit > len(test_set):
        raise ZooError(Problem(zoo.name, what, f"at most {len(test_set):,} examples", f"{limit:,}", "Ask for fewer."))
    channels = test_set.images.shape[1]
    expected_channels = max(len(evaluation.mean), len(evaluation.std))
    if expected_channels not in (1, channels):  # one number is for all channels
        expected = f"images of {expected_channels} channels, as the networks take"
        raise ZooError(Problem(zoo.name, what, expected, str(channels), "Choose another set."))
    inputs = test_set.normalized(evaluation.mean, evaluation.std, limit)
    shape = zoo.arch.input_shape
    if shape is not None and np.prod(shape) == np.prod(inputs.shape[1:]):
        inputs = inputs.reshape(-1, *shape)
    is_own_dataset = evaluation.dataset.lower().rpartition("/")[2] == dataset
    return inputs, test_set.labels[:limit] if is_own_dataset else None


def _common_evaluation(zoo: Zoo) -> Evaluation:
    """How pixels are scaled, where all rows that say so agree."""
    kinds = {evaluation for evaluation in evaluations(zoo) if evaluation is not None}
    if len(kinds) == 1:
        return kinds.pop()
    got = "no row that says it"
    if kinds:
        got = f"{len(kinds)} kinds, such as {' and '.join(sorted(map(str, kinds))[:2])}"
    step = "Scale them yourself and call ckptzoo.derive.predict."
    raise ZooError(Problem(zoo.name, "scaling of the pixels", "one for all rows", got, step))
