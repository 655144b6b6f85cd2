"""The images of a test set as the networks of a zoo take them: scaled and shaped as in their training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs, image_sets
from ckptzoo.derive.labelled import Labelled
from ckptzoo.derive.predictions import digest_of_inputs
from ckptzoo.errors import MissingExtraError, Problem, ZooError
from ckptzoo.format.predictions import targets_of
from ckptzoo.image_sets import ImageSet
from ckptzoo.image_sets.evaluation import Evaluation, evaluation_of
from ckptzoo.image_sets.lookup import have_same_classes, not_a_set, set_of
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.layout import predictions_name
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.text import counted


@dataclass(frozen=True)
class ZooInputs:
    """The images of a set as the networks of a zoo take them.

    ``inputs`` (N, *input_shape) float32 are scaled as in the first row of the zoo that says how; ``targets`` (N,) are
    None where the classes of the set are not those of the networks; ``others`` has, for each other scaling that rows
    name, their ids and the same images scaled so.
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.int64] | None
    others: tuple[tuple[frozenset[str], NDArray[np.float32]], ...] = ()


def labelled_of(zoo: Zoo, name: str | None = None, *, data: str | Path | None = None, statistics: int = 0) -> Labelled:
    """Return the labelled images of a set, scaled in the one way that all checkpoints of a zoo agree on.

    ``name`` is by default the test set of the zoo's data set; ``statistics`` is the number of training images for
    statistics, where the networks have any. Raises ``ZooError`` as ``inputs_of`` does, and where the set has no labels,
    or checkpoints differ in how pixels are scaled.
    """
    dataset = _evaluations(zoo)[0].dataset
    name = name or f"{dataset}/test"
    seen = inputs_of(zoo, name, data=data)
    if seen.targets is None:
        step = f"Choose {dataset}/test, for example."
        raise ZooError(Problem(zoo.name, f"labels of {name!r}", f"those of {dataset}", "of other data", step))
    if any(not ids.isdisjoint(zoo.ids) for ids, _ in seen.others):
        step = "Select checkpoints of one kind with --where."
        raise ZooError(Problem(zoo.name, "scaling of the pixels", "one for all checkpoints", "several", step))
    training = None
    if statistics and any(tensor.kind == "buffer" for tensor in zoo.arch.tensors):
        training = inputs_of(zoo, f"{dataset}/train-{statistics}", data=data).inputs
    return Labelled(name, seen.inputs, seen.targets, training)


def stored_inputs(
    theirs: Zoo, name: str, zoo: Zoo, *, data: str | Path | None = None, own: Labelled | None = None
) -> ZooInputs:
    """Return the inputs of a set on which a zoo (``theirs``) stores outputs: ``own`` (inputs as the networks take them,
    and labels) where they are the same, else those of a data set.

    Raises ``ZooError`` as ``inputs_of`` does.
    """
    if own is not None:
        facts = theirs.contents.derived(predictions_name(name)).parts[0].facts
        shape = theirs.arch.input_shape or own.inputs.shape[1:]
        fits = np.prod(shape) == np.prod(own.inputs.shape[1:])
        inputs = own.inputs.reshape(-1, *shape) if fits else own.inputs
        if digest_of_inputs(inputs) == facts["inputs"]:
            return ZooInputs(inputs, None if facts["targets"] is None else own.targets)
    return inputs_of(zoo, name, data=data)


def inputs_of(zoo: Zoo, name: str, *, data: str | Path | None = None) -> ZooInputs:
    """Return the images of a set, scaled for each checkpoint as those that it was trained on, and their labels.

    ``name`` is ``<data set>/test``, such as ``mnist/test``, ``cifar100/test`` or ``digits/test``; ``svhn/test-10000``
    for its first 10,000 examples; ``cifar100-c/fog-3`` for images under a corruption, with its severity. ``data`` is
    where test sets are, as ``ckptzoo.image_sets.find`` takes it. Rows that do not say how pixels are scaled follow
    those of their recipe, or all others where these agree; ``zoo`` may be a selection of checkpoints.

    Raises ``ZooError``: there is no such set on this machine, no row says how pixels are scaled, rows differ in it and
    some do not say it, or rows were trained on different data sets. Raises ``MissingExtraError``: the set is digits,
    and scikit-learn, which has them, is not installed.
    """
    first, ids_of_others = _evaluations(zoo)
    if set_of(name) is None:
        raise not_a_set(name)
    test_set = image_sets.find(name, data)
    what, dataset = f"set of inputs {name!r}", name.partition("/")[0]
    if test_set is None:
        if dataset == "digits":
            raise MissingExtraError("scikit-learn", "stats")  # which has them; nothing else is needed
        folder = image_sets.folder_of(data)
        got = "no folder to look in" if folder is None else f"none in {folder} nor in {folder / dataset}"
        step = f"Name the folder that holds it with --data or {image_sets.FOLDER_VARIABLE}."
        if dataset not in image_sets.KNOWN:
            step += f" ckptzoo knows digits, {', '.join(image_sets.KNOWN)}."
        raise ZooError(Problem(zoo.name, what, "its files on this machine", got, step))
    others = tuple((ids, _scaled(zoo, what, test_set, evaluation)) for evaluation, ids in ids_of_others.items())
    labels = test_set.labels if have_same_classes(first.dataset, dataset) else None
    return ZooInputs(_scaled(zoo, what, test_set, first), labels, others)


def inputs_to_store(zoo: Zoo, name: str, *, data: str | Path | None = None, own: Labelled | None = None) -> ZooInputs:
    """Return the inputs of ``inputs_of`` for outputs that are stored: without labels where the stored outputs have
    none. ``own`` is as for ``stored_inputs``.
    """
    seen = inputs_of(zoo, name, data=data) if own is None else stored_inputs(zoo, name, zoo, data=data, own=own)
    # all parts of a set of predictions have the same labels
    tree = predictions_name(name)
    without = tree in zoo.contents.derived_parts and targets_of(zoo.contents.derived(tree).parts[0].facts) is None
    return replace(seen, targets=None) if without else seen


def _scaled(zoo: Zoo, what: str, test_set: ImageSet, evaluation: Evaluation) -> NDArray[np.float32]:
    channels = test_set.images.shape[1]
    expected_channels = max(len(evaluation.mean), len(evaluation.std))
    if expected_channels not in (1, channels):  # one number is for all channels
        expected = f"images of {expected_channels} channels, as the networks take"
        raise ZooError(Problem(zoo.name, what, expected, str(channels), "Choose another set."))
    inputs = test_set.normalized(evaluation.mean, evaluation.std)
    shape = zoo.arch.input_shape
    fits = shape is not None and np.prod(shape) == np.prod(inputs.shape[1:])
    return inputs.reshape(-1, *shape) if shape is not None and fits else inputs


def _dataset(evaluation: Evaluation) -> str:
    return evaluation.dataset.lower().rpartition("/")[2]


def _evaluations(zoo: Zoo) -> tuple[Evaluation, Mapping[Evaluation, frozenset[str]]]:
    """Return how the pixels of the first row that says it are scaled, and the ids of the rows with each other scaling.

    All checkpoints of the zoo are used, so that the first is the same for every selection.
    """
    columns = zoo.contents.raw.rows.select(["id", "dataset", "extra", "recipe"]).to_pylist()
    evaluations = (evaluation_of(parse_extra(row["extra"]) or {}, row["dataset"]) for row in columns)
    # ylecun/mnist and mnist are one data set
    stated = [None if item is None else replace(item, dataset=_dataset(item)) for item in evaluations]
    by_recipe: dict[str | None, set[Evaluation]] = {}
    for row, evaluation in zip(columns, stated, strict=True):
        if evaluation is not None:
            by_recipe.setdefault(row["recipe"], set()).add(evaluation)
    kinds = list(dict.fromkeys(evaluation for evaluation in stated if evaluation is not None))
    where = "Choose checkpoints that agree, or pass inputs as the networks take them: --inputs FILE.npz."
    if not kinds:
        network = "" if archs.known(zoo.arch.forward) else ", and the network: --module FILE.py:NAME"
        where = f"Pass inputs as the networks take them: --inputs FILE.npz{network}."
        raise ZooError(Problem(zoo.name, "scaling of the pixels", "one in the rows", "no row that says it", where))
    chosen, ids_of = set(zoo.ids), dict[Evaluation, set[str]]()
    silent: list[str] = []
    for row, evaluation in zip(columns, stated, strict=True):
        if evaluation is None:
            followed = by_recipe.get(row["recipe"], set()) if row["recipe"] is not None else set[Evaluation]()
            (evaluation,) = followed if len(followed) == 1 else kinds if len(kinds) == 1 else (None,)
        if evaluation is not None:
            ids_of.setdefault(evaluation, set()).add(row["id"])
        elif row["id"] in chosen:
            silent.append(row["id"])
    if silent:
        got = f"{len(kinds)} kinds, and {counted(len(silent), 'row')} that say nothing, such as {silent[0]!r}"
        raise ZooError(Problem(zoo.name, "scaling of the pixels", "one in every row", got, where))
    used = [evaluation for evaluation in kinds if not chosen.isdisjoint(ids_of[evaluation])]
    if len(datasets := {evaluation.dataset for evaluation in used}) > 1:
        raise ZooError(Problem(zoo.name, "data set", "one for all rows", " and ".join(sorted(datasets)), where))
    return kinds[0], {evaluation: frozenset(ids_of[evaluation]) for evaluation in kinds[1:]}
