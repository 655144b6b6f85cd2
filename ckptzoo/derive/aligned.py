"""``align_zoo``: a variant in which every checkpoint is permuted to be close to one reference network."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptzoo
from ckptzoo import archs
from ckptzoo.archs.gaussian_spec import STD
from ckptzoo.archs.gaussian_spec import declare as declare_gaussian
from ckptzoo.arguments import NETWORK, checked
from ckptzoo.derive.checks import RANDOM_INPUTS, import_with_torch
from ckptzoo.derive.predictions import checked_inputs, digest_of_inputs
from ckptzoo.derive.tables import symmetry_of, traced_shape, unless_layers
from ckptzoo.derive.variant_rule import ActivationMatching, AlignmentRule, Weights
from ckptzoo.derive.variants import Derived, derive_by
from ckptzoo.errors import Problem, SymmetryError, UnknownNameError, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import Contents, read_contents
from ckptzoo.loader.zoo import Zoo
from ckptzoo.remote import AbsentError
from ckptzoo.schema import layout
from ckptzoo.schema.card import Card
from ckptzoo.schema.layout import GaugeName
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import barycentre, canonicalize, gauge_named
from ckptzoo.symmetry.alignment.align import METHODS, SCALES
from ckptzoo.text import Progress

BEST, BARYCENTRE = "best", "barycentre"
"""References that are found in the zoo itself: the most accurate checkpoint, and the mean of all, aligned."""
EXAMPLES = 5_000
"""The maximum number of inputs on which activations are compared: the first ones."""
BATCH_BYTES = 32 * 2**20
"""Bytes of weights that are averaged at a time, unless one checkpoint has more."""


@checked
def align_zoo(
    path: str | Path,
    to: str,
    *,
    label: str | None = None,
    method: str = "weights",
    gauge: GaugeName | None = None,
    scales: str = "fixed",
    barycentre_zoo: str | Path | None = None,
    store: str = "weights",
    certify: str = "auto",
    inputs: NDArray[Any] | None = None,
    inputs_name: str = "",
    module: NETWORK | None = None,
    input_shape: Sequence[int] | None = None,
    share: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> Derived:
    """Align every checkpoint of a zoo with a reference and write the variant ``aligned-<label>`` beside the raw ones.

    The permutations are those of ``ckptzoo.symmetry.align``, by weights or by activations. The variant is stored,
    pushed, pulled and streamed as any gauge's; checkpoints that are added later are aligned by the same call with the
    same reference.

    Parameters
    ----------
    path
        the zoo's folder.
    to
        the reference: ``best``, the last step of the most accurate member (``test_accuracy``); ``barycentre``, the mean
        of the last steps of all members, aligned with one another; the id of a checkpoint; or the folder or address of
        a zoo of one checkpoint, of the same architecture or of a Gaussian over it, whose means it has then.
    label
        small letters, digits and hyphens; by default ``best`` or ``barycentre``, else it must be named.
    method
        ``weights``, or ``activations``: channels that answer alike on the first 5,000 of the inputs come together.
    gauge
        a name in ``ckptzoo.symmetry.GAUGES`` into which all are brought before; by default they keep their scales.
    scales
        ``fixed``, as they are or as the gauge has them; or ``fit``, by weights alone: those of least distance, which
        raises barriers (``ckptzoo.symmetry.align``).
    barycentre_zoo
        where the barycentre is kept, as a zoo of one Gaussian: its means, and the standard deviations of the aligned
        members. By default ``<zoo>-<label>`` beside the zoo. One that is there is the reference.
    inputs
        as for ``derive``; for activations (N, *input_shape), as the networks take them, such as training images, of
        which the first 8 are for the equivalence check.
    inputs_name
        of the inputs of activations, for people.
    store, certify, module, input_shape, share, progress
        as for ``derive``.

    Raises
    ------
    UnknownNameError
        No such method, gauge, rule for scales, store, rule for equivalence checks or reference.
    SymmetryError
        The variant is there with another reference, method, inputs or gauge, the reference is not finite, no table is
        known, or activations of a group cannot be recorded.
    ZooError
        The label is no name, the zoo has no accuracies, or fewer than two finite members, or activations have no
        inputs or no forward function.
    MissingExtraError
        Activations are wanted and torch is not installed.

    Notes
    -----
    By activations every checkpoint is evaluated on all inputs, and the reference for every batch of ``derive``. Memory
    for a core: the activations of a batch of inputs, at most 32 MiB of a stack of checkpoints or those of one input,
    and 128 MiB of sums of their products or those of one checkpoint. Tested in tests/derive/test_aligned.py.

    Examples
    --------
    >>> align_zoo("zoos/few", "best").gauge
    'aligned-best'
    """
    if gauge is not None:
        gauge_named(gauge, "align")
    if method not in METHODS:
        raise UnknownNameError("align", "method", method, METHODS)
    if scales not in SCALES:
        raise UnknownNameError("align", "scales", scales, SCALES)
    if scales == "fit" and method != "weights":
        step = "Leave the scales as they are, or align by weights."
        raise ZooError(Problem("align", "method for scales 'fit'", "weights", method, step))
    contents = read_contents(Folder(path))
    table = symmetry_of(contents, module, traced_shape(contents.architecture, input_shape, inputs))
    label = _label(to, label)
    examples = None if method == "weights" else _examples(contents, inputs, module)
    zoo = ckptzoo.open(path)
    if to == BARYCENTRE:
        kept = _barycentre_path(path, label, barycentre_zoo)
        if share != (0, 1) and not _is_kept(kept):
            step = "Align one zoo without a share first, or name the barycentre's zoo."
            raise ZooError(Problem("align", f"barycentre in {kept}", "one, to share the work", "none", step))
        keep_barycentre(
            path, label=label, gauge=gauge, barycentre_zoo=barycentre_zoo, module=module, input_shape=input_shape
        )
        reference, source = _of_zoo(str(kept), zoo), f"barycentre in {kept.name}"
    else:
        reference, source = reference_of(zoo, to)
    matching = None
    if examples is not None:
        recorder = import_with_torch("activations").ActivationProducts(zoo.arch, table, reference, examples, module)
        matching = ActivationMatching(recorder, digest_of_inputs(examples), len(examples), inputs_name)
        inputs = None if certify == "none" else examples[:RANDOM_INPUTS]
    rule = AlignmentRule(label, reference, source, gauge, matching, scales)
    _require_same(path, rule, table)
    with nullcontext() if matching is None else import_with_torch("forward").one_thread():
        return derive_by(
            rule,
            path,
            store=store,
            certify=certify,
            inputs=inputs,
            module=module,
            input_shape=input_shape,
            share=share,
            progress=progress,
        )


def keep_barycentre(
    path: str | Path,
    *,
    label: str | None = None,
    gauge: GaugeName | None = None,
    barycentre_zoo: str | Path | None = None,
    module: Any = None,
    input_shape: Sequence[int] | None = None,
) -> None:
    """Write the barycentre that ``align_zoo`` takes as the reference, unless it is there: shares of the work need it.

    Parameters and errors are those of ``align_zoo``.
    """
    kept = _barycentre_path(path, _label(BARYCENTRE, label), barycentre_zoo)
    if not _is_kept(kept):
        _write_barycentre(
            ckptzoo.open(path), symmetry_of(read_contents(Folder(path)), module, input_shape), gauge, kept
        )


def _barycentre_path(path: str | Path, label: str, barycentre_zoo: str | Path | None) -> Path:
    return Path(barycentre_zoo or f"{Path(path).absolute()}-{label}")


def _is_kept(path: Path) -> bool:
    return (path / layout.ZOO).exists() and len(ckptzoo.open(path)) > 0


def _examples(contents: Contents, inputs: NDArray[Any] | None, module: Any) -> NDArray[np.float32]:
    """The inputs on which activations are compared."""
    location = f"{contents.identity.name}: align"
    if inputs is None:
        step = "Name some, such as training images: --inputs FILE."
        raise ZooError(Problem(location, "inputs of method 'activations'", "some", "none", step))
    if module is None and not archs.known(contents.architecture.forward):
        step = unless_layers(contents, "Name the network: --module FILE.py:NAME.")
        got = repr(contents.architecture.forward)
        raise ZooError(Problem(location, "forward function", "one of ckptzoo.archs, or a module", got, step))
    examples = checked_inputs(contents, inputs[:EXAMPLES], command="align")
    if not np.isfinite(examples).all():
        step = "Scale them as those that the networks were trained on."
        raise ZooError(Problem(location, "inputs", "finite numbers", "others", step))
    return examples


def _label(to: str, label: str | None) -> str:
    """Check the label, which with the prefix names a tree."""
    label = label or (to if to in (BEST, BARYCENTRE) else None)
    if label is None:
        raise ZooError(Problem("align", "label", "one for this reference", "none", "Name the variant by --label."))
    if not layout.DERIVED_NAME.fullmatch(layout.ALIGNED + label):
        expected = f"small letters, digits and hyphens, at most {64 - len(layout.ALIGNED)}"
        raise ZooError(Problem("align", "label", expected, repr(label)[:80], "Name another one by --label."))
    return label


def reference_of(zoo: Zoo, to: str, variant: str = layout.RAW) -> tuple[Weights, str]:
    """The weights of a checkpoint of the zoo, or of another one, and where they are from.

    ``to`` is ``best``, the last step of the most accurate member; an id; or the folder or address of a zoo of one
    checkpoint; ``variant`` is the gauge in which a checkpoint of the zoo is taken. Raises ``UnknownNameError`` if there
    is no such reference, and ``SymmetryError`` or ``ZooError`` if the other zoo is of another architecture or holds
    several checkpoints; or no finite one has an accuracy.
    """
    if to == BEST:
        last = zoo.last_steps()
        accuracies = last.column("test_accuracy").to_numpy().astype(np.float64)
        finite = last.column("finite").fill_null(zoo.contents.identity.references).to_numpy().astype(bool)
        accuracies = np.where(finite & np.isfinite(accuracies), accuracies, -np.inf)
        if not np.isfinite(accuracies).any():
            step = "Name a checkpoint by its id."
            raise ZooError(Problem(zoo.name, "test_accuracy", "one of a finite checkpoint", "none", step))
        to = last.ids[int(accuracies.argmax())]
    if to in set(zoo.ids):
        return dict(zoo.checkpoint(to, variant=variant)), f"checkpoint {to} of {zoo.name}"
    return _of_zoo(to, zoo), to


def _of_zoo(address: str, zoo: Zoo) -> Weights:
    """The one checkpoint of another zoo; of a Gaussian its means."""
    try:
        other = ckptzoo.open(address)
    except AbsentError as error:
        raise UnknownNameError("align", "reference", address, (BEST, BARYCENTRE, *zoo.ids)) from error
    names = zoo.arch.names
    shapes = {name: other.arch[name].shape if name in other.arch else None for name in names}
    if wrong := [name for name in names if shapes[name] != zoo.arch[name].shape]:
        expected, got = f"{wrong[0]} {zoo.arch[wrong[0]].shape}", str(shapes[wrong[0]] or "none")
        step = "Name a reference of the same architecture, or of a Gaussian over it."
        raise SymmetryError(Problem(other.name, "tensors of the reference", expected, got, step))
    if len(other) != 1:
        step = "Name one of them by its id, or a zoo that holds it alone."
        raise ZooError(Problem(other.name, "checkpoints", "one, the reference", str(len(other)), step))
    return {name: np.asarray(other[name])[0] for name in names}


def _require_same(path: str | Path, rule: AlignmentRule, table: Symmetry) -> None:
    """Refuse a label that already stands for another reference or way to match: one variant has one."""
    contents = read_contents(Folder(path))
    if rule.name not in contents.variants:
        return
    wanted = rule.facts(table)
    for part in contents.derived(rule.name).parts:
        location = f"{contents.identity.name}/{part.path}"
        if part.facts.get("reference") != wanted["reference"]:
            expected, got = f"{part.facts.get('source')}", rule.source
            step = "Name that reference by --to, or another variant by --label."
            raise SymmetryError(Problem(location, "reference", expected, got, step))
        # facts that other ways to match lack
        for key, default in (("method", "weights"), ("inputs", "none"), ("examples", "none"), ("fitted", False)):
            expected, got = (str(facts.get(key, default)) for facts in (part.facts, wanted))
            if got != expected:
                step = "Align as before, or name another variant by --label."
                raise SymmetryError(Problem(location, key, expected, got, step))


def _write_barycentre(zoo: Zoo, table: Symmetry, gauge: GaugeName | None, path: Path) -> None:
    """Write the mean of the members as a zoo of one Gaussian; of Gaussians, their means and mean deviations."""
    members = zoo.last_steps()

    def batches() -> Iterator[Any]:
        for batch in members.batches(max_bytes=BATCH_BYTES):
            weights = {name: batch[name] for name in zoo.arch.names}
            yield weights if gauge is None else canonicalize(weights, table, gauge=gauge).weights

    found = barycentre(batches, table)
    arch, doubled = zoo.arch, table
    if not any(f"{name}{STD}" in zoo.arch for name in zoo.arch.names):
        name = zoo.arch.forward if archs.known(zoo.arch.forward) else zoo.arch.name
        arch, doubled = declare_gaussian(f"gaussian-{name}", zoo.arch, table)
    # a weight that all members share has no deviation, but a Gaussian has one above 0
    least = float(np.finfo(np.float32).tiny)
    deviations = {f"{name}{STD}": np.maximum(std, least) for name, std in found.std.items()}
    values: dict[str, NDArray[Any]] = {}
    for tensor in arch.tensors:
        made = (deviations | found.mean).get(tensor.name)
        values[tensor.name] = np.asarray(members[tensor.name][:1])[0] if made is None else made.astype(tensor.dtype)
    card = Card(path.name, f"Mean and standard deviation of {int(found.used.sum()):,} members of {zoo.name}, aligned.")
    # one that was killed here has made the zoo and nothing in it
    made = (path / layout.ZOO).exists()
    with ckptzoo.append(path) if made else ckptzoo.create(path, arch=arch, card=card, symmetry=doubled) as writer:
        writer.add({name: value[None] for name, value in values.items()}, [{"id": BARYCENTRE}])
