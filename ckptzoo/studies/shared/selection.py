"""A study's selection from a zoo: tensors, checkpoints, predictions, and the symmetry table it needs."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ckptzoo import archs, image_sets
from ckptzoo.derive.predictions import digest_of_inputs
from ckptzoo.derive.tables import declare_step
from ckptzoo.errors import Problem, SymmetryError, UnknownNameError, ZooError
from ckptzoo.image_sets.evaluation import Evaluation, evaluation_of
from ckptzoo.image_sets.lookup import have_same_classes, set_of
from ckptzoo.loader.derived_command import derived_command
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.metadata import parse_extra
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GAUGES

BATCH_BYTES = 16 * 2**20
"""Bytes of weights that are read at a time, as far as whole rows allow."""

_MAX_SCALINGS = 8
"""The maximum number of ways of scaling images that are tried."""
_T = TypeVar("_T")


def parameter_names(arch: Architecture) -> list[str]:
    """Floating-point parameters with elements; buffers, such as running statistics, are not among them."""
    parameters = [tensor for tensor in arch.tensors if tensor.kind == "parameter" and tensor.size]
    return [tensor.name for tensor in parameters if "float" in tensor.dtype]


def parameters_by_layer(arch: Architecture) -> dict[str, list[str]]:
    """Layer to its floating-point parameters; layers without any are left out."""
    names = set(parameter_names(arch))
    by_layer = {layer: [name for name in tensors if name in names] for layer, tensors in arch.layers.items()}
    return {layer: tensors for layer, tensors in by_layer.items() if tensors}


def weight_names(arch: Architecture) -> list[str]:
    """Floating-point parameters with two axes or more; all of them where there are none such."""
    parameters = parameter_names(arch)
    return [name for name in parameters if len(arch[name].shape) > 1] or parameters


def usable_members(zoo: Zoo, least: int) -> Zoo:
    """The members finite and not diverged at their last step; raises ``ZooError`` if there are fewer than ``least``."""
    last = zoo.last_steps()
    usable = last.take(usable_networks(last))
    if len(usable) < least:
        expected, got = f"{least:,} or more that are finite and did not diverge", f"{len(usable):,} of {len(last):,}"
        raise ZooError(Problem(zoo.name, "members", expected, got, "Select others."))
    return usable


def evenly(number: int, limit: int) -> NDArray[np.int64]:
    """At most ``limit`` of the indices 0 to number - 1, evenly spaced from the first to the last; ascending.

    >>> evenly(9, 3).tolist(), evenly(2, 3).tolist()
    ([0, 4, 8], [0, 1])
    """
    return np.unique(np.linspace(0, number - 1, min(number, limit)).round().astype(np.int64))


def thinned(items: Sequence[_T], limit: int) -> tuple[list[_T], int]:
    """At most ``limit`` of the items, evenly spaced from the first to the last, and the number left out."""
    indices = evenly(len(items), limit)
    return [items[index] for index in indices], len(items) - len(indices)


def blocks(shape: Sequence[int], limit: int) -> Iterator[tuple[int | slice, ...]]:
    """Indices that cut a tensor, in order, into blocks of at most ``limit`` elements, and of one at least.

    >>> list(blocks((2, 3), 2))
    [(0, slice(0, 2, None)), (0, slice(2, 3, None)), (1, slice(0, 2, None)), (1, slice(2, 3, None))]
    """
    if math.prod(shape) <= limit:
        yield ()
        return
    # the outermost axis of which one index fits: blocks of an array in C order are contiguous then
    axis = next(axis for axis in range(len(shape)) if axis + 1 == len(shape) or math.prod(shape[axis + 1 :]) <= limit)
    step = max(1, limit // math.prod(shape[axis + 1 :]))
    for lead in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*lead, slice(start, min(start + step, shape[axis])))


def table_of(zoo: Zoo, variant: str) -> Symmetry:
    """The symmetry table of a zoo that has checkpoints and this variant.

    Raises ``UnknownNameError`` if there is neither a variant nor a gauge of this name, and ``SymmetryError`` or
    ``ZooError``, which name what is missing and the command that makes it.
    """
    if not len(zoo):
        raise ZooError(Problem(zoo.name, "checkpoints", "at least one", "none", "Select others."))
    derived = [name for name in zoo.variants if name != layout.RAW]
    if variant not in derived and variant not in GAUGES:
        raise UnknownNameError(zoo.name, "variant", variant, list(dict.fromkeys([*derived, *GAUGES])))
    folder = zoo.contents.files.here
    where = quote(str(folder or "FOLDER"))
    command = f"{'Run' if folder else 'Pull the zoo, then run'} ckptzoo derive {where} --gauge {variant}."
    if zoo.symmetry is None:
        # derive takes the table of a registered architecture by itself; others have to be declared first
        step = command if archs.known(zoo.arch.forward) else declare_step(zoo.contents)
        raise SymmetryError(Problem(zoo.name, "symmetry table", "one", "none", step))
    if variant not in derived:
        raise ZooError(Problem(zoo.name, "variants", f"{variant!r} among them", ", ".join(zoo.variants), command))
    return zoo.symmetry


def own_table(zoo: Zoo) -> Symmetry:
    """The zoo's table, else its architecture's in ``ckptzoo.archs``; raises ``SymmetryError`` if there is none."""
    if zoo.symmetry is not None:
        return zoo.symmetry
    if archs.known(zoo.arch.forward):
        return archs.symmetry(zoo.arch.forward)
    raise SymmetryError(Problem(zoo.name, "symmetry table", "one", "none", declare_step(zoo.contents)))


def labels_of(zoo: Zoo, name: str) -> NDArray[np.int64]:
    """(N,) the labels of a set that was predicted: those that are stored, else those of the data set of its name.

    Raises ``ZooError`` if the set has other classes than the networks, or its images are not on this machine or were
    others.
    """
    predictions = zoo.predictions(name)
    if predictions.targets is not None:
        return predictions.targets
    dataset, what = name.partition("/")[0], f"labels of {name}"
    step = "Choose another set, or predict it with its labels."
    kinds = [kind for kind in _evaluations(zoo) if have_same_classes(kind.dataset, dataset)]
    if not kinds or set_of(name) is None:
        raise ZooError(Problem(zoo.name, what, "some", "none", step))
    images = image_sets.find(name)
    if images is None:
        folder = f"Name the folder that holds {dataset} with {image_sets.FOLDER_VARIABLE}"
        raise ZooError(Problem(zoo.name, what, "stored ones, or its files on this machine", "none", f"{folder}."))
    # each takes a digest of all images, and rows may be anyone's
    for kind in kinds[:_MAX_SCALINGS]:
        inputs = images.normalized(kind.mean, kind.std)
        shape = zoo.arch.input_shape
        # networks may take images in another shape, such as flat
        shaped = inputs.reshape(-1, *shape) if shape is not None and inputs[:1].size == np.prod(shape) else inputs
        # only labels of the very images that were predicted belong to the outputs
        if digest_of_inputs(shaped) == predictions.inputs:
            return images.labels
    raise ZooError(Problem(zoo.name, what, f"outputs on the images of {name} here", "on others", step))


def _evaluations(zoo: Zoo) -> list[Evaluation]:
    """How rows say that the networks take images, each way once."""
    rows = zoo.contents.raw.rows.select(["dataset", "extra"]).to_pylist()
    evaluations = (evaluation_of(parse_extra(row["extra"]) or {}, row["dataset"]) for row in rows)
    return list(dict.fromkeys(item for item in evaluations if item is not None))


def is_sample(name: str) -> bool:
    """Whether a set of inputs is the first examples of one, as zoos ship them to be compared: ``digits/test-16``."""
    return re.fullmatch(r"(test|train)-\d+", name.rpartition("/")[2]) is not None


def default_sets(zoo: Zoo) -> tuple[str | None, tuple[str, ...]]:
    """Return the predicted set with labels that a study takes where none is named, and the sets of other data.

    Where several sets have labels, the uncorrupted one of the networks' own data set is taken, and not one of other
    images with the same classes. A sample stands for no data set: it is taken where it has labels and no whole set has,
    and never as other data.
    """
    datasets = {name.lower().rpartition("/")[2] for name in zoo.column("dataset").drop_null().unique().to_pylist()}
    labelled = [name for name in zoo.predicted if zoo.predictions(name).targets is not None]
    own = min(labelled, key=lambda name: (is_sample(name), name.partition("/")[0] not in datasets), default=None)
    others = (name for name in zoo.predicted if name not in labelled and not is_sample(name))
    return own, tuple(name for name in others if not _has_own_classes(name, datasets))


def _has_own_classes(name: str, datasets: Iterable[str]) -> bool:
    return any(have_same_classes(name.partition("/")[0], dataset) for dataset in datasets)


def predict_command(zoo: Zoo, *others: str) -> str:
    """The command that stores predictions with labels, those on the data set of the networks, and on other sets."""
    folder, datasets = zoo.contents.files.here, zoo.column("dataset").drop_null().unique().to_pylist()
    own = f"{datasets[0]}/test" if len(datasets) == 1 else "mnist/test"
    labelled = any(zoo.predictions(item).targets is not None for item in zoo.predicted)
    names = list(others) if labelled and others else [own, *others]
    calls = [derived_command(zoo.contents, name, str(folder or "FOLDER")) for name in names]
    # sets of images are evaluated by one call, inputs of one's own by one a set
    if "--inputs" not in calls[0]:
        calls = [calls[0].replace(quote(names[0]), " ".join(map(quote, names)))]
    command = " and ".join(calls)
    return f"{'Run' if folder else 'Pull the zoo, then run'} {command}, which writes into that folder"
