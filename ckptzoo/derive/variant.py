"""Write a variant of a zoo: every raw part in a gauge, with the group elements and certificates."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ckptzoo.derive.pipeline import Behind, in_order
from ckptzoo.derive.probes import probes_of, torch_side
from ckptzoo.derive.result import Derived
from ckptzoo.derive.rule import Rule
from ckptzoo.derive.tables import declare, symmetry_of
from ckptzoo.derive.work import Work
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Part
from ckptzoo.format.reader import read_contents
from ckptzoo.symmetry import GAUGES

STORE = ("weights", "element")
"""What a variant's parts hold: weights and group elements, or group elements alone."""

Progress = Callable[[int, int], None]
"""Called with the checkpoints done and the checkpoints in all."""


def derive(
    path: str | Path,
    *,
    gauge: str = "canonical",
    store: str = "weights",
    certify: str = "auto",
    inputs: NDArray[Any] | None = None,
    module: Any = None,
    progress: Progress | None = None,
) -> Derived:
    """Bring every checkpoint of a zoo into a gauge and write the variant beside the raw weights.

    ``variant = cast(apply(g, raw))``: weights at least float32, g with permutations in int32 and scales in float64.
    Each raw part gives one derived part; what was derived before is left alone, so a second call adds nothing and
    a killed one is carried on from the last part that it finished.

    Parameters
    ----------
    path : the zoo's folder.
    gauge : a name in ``ckptzoo.symmetry.GAUGES``; also the variant's name.
    store : ``"weights"`` writes weights and group elements; ``"element"`` writes the elements alone, and the weights
        are computed when they are read. Parts that are there stay as they are stored.
    certify : which checkpoints are certified, by comparing raw and derived outputs. ``"all"``: every one, in float64
        up to 4 MiB a checkpoint; in larger networks in float32, and in float64 on a sample of each part: the first,
        the last and others evenly between, 8 in all. ``"sample"``: the sample alone, in float64. ``"none"``: none,
        and torch is not needed. ``"auto"``: all up to 4 MiB a checkpoint, else the sample. Checkpoints that are not
        finite have no certificate.
    inputs : (B, *input_shape) real inputs for the certificates, as the network takes them, beside 8 random ones where
        the zoo's architecture has an input shape.
    module : the network as a torch module, for the certificates of one that is not in ``ckptzoo.archs``.
    progress : called after every batch.

    Raises
    ------
    UnknownNameError
        No such gauge, store or rule for certificates.
    ZooError
        Certificates are asked for by ``"all"`` or ``"sample"``, and no forward function or no input is known.
    SymmetryError
        The network has no symmetry table, the table is wrong, the gauge is not defined for it, or the variant was
        made by another version of the gauge or with another table.
    MissingExtraError
        A certificate is wanted and torch is not installed.

    Notes
    -----
    A batch is 96 MiB of raw weights, or one checkpoint. One a core, at most four, is solved and certified at a time
    while earlier ones are written; memory is bounded by a few batches a core, with float64 copies of them for
    certificates and the activations of 8 inputs. Before anything is written the table is held against the forward
    function, with random group elements in float64, where certificates are wanted. Laws: tests/derive.
    """
    for kind, name, known in (("gauge", gauge, tuple(GAUGES)), ("store", store, STORE)):
        if name not in known:
            raise UnknownNameError("derive", kind, name, known)
    began = time.perf_counter()
    contents = read_contents(Folder(path))
    symmetry, rule = symmetry_of(contents), Rule.of(certify, contents.architecture)
    probes = probes_of(contents.architecture, rule, inputs, module=module)
    if certify in ("all", "sample") and not probes:
        raise ZooError(
            f"{contents.identity.name}: certificates: expected a forward function and inputs, got a network that "
            "is not in ckptzoo.archs. Pass derive(..., module=..., inputs=...) from Python, or certify none."
        )
    work = Work(contents, symmetry, GAUGES[gauge], probes, rule, module, weights=store == "weights")
    work.tree.catch_up()
    todo = work.tree.todo()
    share = 0.0
    if todo:
        with torch_side("forward").one_thread() if probes else nullcontext():
            work.prepare()
            if contents.symmetry is None:
                declare(contents.root, symmetry)
            share = _written(work, todo, progress)
    seconds, tally = time.perf_counter() - began, work.tally
    return Derived(
        gauge=gauge,
        version=GAUGES[gauge].version,
        store=store,
        parts=tuple(work.tree.parts),
        checkpoints=tally.checkpoints,
        already=len(contents.raw.rows) - tally.checkpoints,
        **tally.counts,
        certified=tuple(tally.certified.values()),
        seconds=seconds,
        certifying=seconds * share,
    )


def _written(work: Work, parts: Sequence[tuple[int, Part]], progress: Progress | None) -> float:
    """Derive parts, solving ahead and writing behind; returns the share of the work that was for certificates."""
    total, done, spent, certifying = sum(part.rows for _, part in parts), 0, 0.0, 0.0
    try:
        with Behind() as behind, closing(in_order(work.solve, work.batches(parts))) as solved:
            for made in solved:
                behind(work.store, made)
                done, spent, certifying = done + len(made.rows), spent + made.seconds, certifying + made.certifying
                if progress is not None:
                    progress(done, total)
    finally:
        work.tree.discard()
    return certifying / spent if spent else 0.0
