"""What a zoo's networks are shown of a set of images that lies on this machine."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import ZooError
from ckptzoo.hub import test_sets
from ckptzoo.hub.contributions.evaluation import Evaluation, evaluations
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.layout import SET_NAME

_SPLIT = re.compile(r"test(?:-([1-9]\d{0,8}))?")
"""Which examples of a data set there are."""


def inputs_of(
    zoo: Zoo, name: str, *, data: str | Path | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """Inputs as the zoo's networks take them, scaled as the data set that they were trained on, and their labels.

    Parameters
    ----------
    zoo : its rows say how pixels are scaled.
    name : the set, ``<data set>/test``, such as ``mnist/test``, ``fashion-mnist/test`` or ``digits/test``; and
        ``mnist/test-100`` for its first 100 examples.
    data : where test sets lie, as ``ckptzoo.hub.test_sets.find`` takes it.

    Returns
    -------
    (N, *input_shape) float32, and (N,) labels; None for another data set than that of the networks.

    Raises
    ------
    ZooError
        There is no such set at hand, no row says how pixels are scaled, or rows differ in it.
    """
    dataset, _, split = name.partition("/")
    cut = _SPLIT.fullmatch(split)
    if not SET_NAME.fullmatch(name) or cut is None:
        expected, step = "a data set and /test, as mnist/test or mnist/test-100", "Others are for derive.predict."
        raise ZooError(f"{zoo.name}: set of inputs: expected {expected}, got {name!r}. {step}")
    limit = int(cut[1]) if cut[1] else None
    evaluation = _evaluation(zoo)
    found = test_sets.find(dataset, data)
    if found is None:
        place = test_sets.folder_of(data)
        looked = "no folder to look in" if place is None else f"none in {place} nor in {place / dataset}"
        step = f"Name the folder that holds it with --data or {test_sets.FOLDER_VARIABLE}."
        raise ZooError(f"{zoo.name}: set of inputs {name!r}: expected its files at hand, got {looked}. {step}")
    if limit is not None and limit > len(found):
        expected = f"at most {len(found):,} examples"
        raise ZooError(f"{zoo.name}: set of inputs {name!r}: expected {expected}, got {limit:,}. Ask for fewer.")
    channels = found.images.shape[1]
    told = max(len(evaluation.mean), len(evaluation.std))
    if told not in (1, channels):
        expected = f"images of {told} channels, as the networks take"
        raise ZooError(f"{zoo.name}: set of inputs {name!r}: expected {expected}, got {channels}. Choose another set.")
    seen = found.normalized(evaluation.mean, evaluation.std, limit)
    wanted = zoo.arch.input_shape
    if wanted is not None and np.prod(wanted) == np.prod(seen.shape[1:]):
        seen = seen.reshape(-1, *wanted)
    own = evaluation.dataset.lower().rpartition("/")[2] == dataset
    return seen, found.labels[:limit] if own else None


def _evaluation(zoo: Zoo) -> Evaluation:
    """How all rows that say so have pixels scaled."""
    told = {found for found in evaluations(zoo) if found is not None}
    if len(told) == 1:
        return told.pop()
    got = (
        "no row that says it" if not told else f"{len(told)} kinds, such as {' and '.join(sorted(map(str, told))[:2])}"
    )
    step = "Scale them yourself and call ckptzoo.derive.predict."
    raise ZooError(f"{zoo.name}: scaling of the pixels: expected one for all rows, got {got}. {step}")
