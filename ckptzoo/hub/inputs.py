"""The images of a test set as the networks of a zoo take them: scaled and shaped as in their training."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ckptzoo import image_sets
from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.contributions.evaluation import Evaluation, evaluations
from ckptzoo.loader.zoo import Zoo


def inputs_of(
    zoo: Zoo, name: str, *, data: str | Path | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """Inputs as the zoo's networks take them, scaled as the data set that they were trained on, and their labels.

    Parameters
    ----------
    zoo : its rows say how pixels are scaled.
    name : the set, ``<data set>/test``, such as ``mnist/test``, ``cifar100/test`` or ``digits/test``;
        ``svhn/test-10000`` for its first 10,000 examples; ``cifar100-c/fog-3`` for images under a corruption, with its
        severity.
    data : where test sets are, as ``ckptzoo.image_sets.find`` takes it.

    Returns
    -------
    (N, *input_shape) float32, and (N,) labels; None for another data set than that of the networks, corrupted or not.

    Raises
    ------
    ZooError
        There is no such set on this machine, no row says how pixels are scaled, or rows differ in it.
    """
    evaluation = _common_evaluation(zoo)
    test_set = image_sets.find_named(name, data)
    what, dataset = f"set of inputs {name!r}", name.partition("/")[0]
    if test_set is None:
        folder = image_sets.folder_of(data)
        got = "no folder to look in" if folder is None else f"none in {folder} nor in {folder / dataset}"
        step = f"Name the folder that holds it with --data or {image_sets.FOLDER_VARIABLE}."
        raise ZooError(Problem(zoo.name, what, "its files on this machine", got, step))
    channels = test_set.images.shape[1]
    expected_channels = max(len(evaluation.mean), len(evaluation.std))
    if expected_channels not in (1, channels):  # one number is for all channels
        expected = f"images of {expected_channels} channels, as the networks take"
        raise ZooError(Problem(zoo.name, what, expected, str(channels), "Choose another set."))
    inputs = test_set.normalized(evaluation.mean, evaluation.std)
    shape = zoo.arch.input_shape
    if shape is not None and np.prod(shape) == np.prod(inputs.shape[1:]):
        inputs = inputs.reshape(-1, *shape)
    # corrupted images have the labels of the others
    is_own_dataset = evaluation.dataset.lower().rpartition("/")[2] == dataset.removesuffix("-c")
    return inputs, test_set.labels if is_own_dataset else None


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
