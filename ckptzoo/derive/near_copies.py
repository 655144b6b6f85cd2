"""Checkpoints that compute nearly the same: copies that were rounded, shifted or covered with noise. Needs torch."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ckptzoo import archs
from ckptzoo.arguments import NETWORK, checked
from ckptzoo.derive.checks import import_with_torch
from ckptzoo.derive.concurrency import in_order
from ckptzoo.derive.described_rows import DescribedRows, Rows
from ckptzoo.derive.tables import unless_layers, with_input_shape
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.stream import Batch
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry.identity.neighbours import close_pairs
from ckptzoo.text import Progress

INPUTS = 64
"""Standard normal inputs, the same for every checkpoint."""
LEAST_MEMBERS = 8
"""The number of independent members without which the distance between such members is unknown."""
MAX_MEMBERS = 1024
"""The number of members whose distances are measured, spread evenly over the zoo."""
SHARE = 0.1
"""Pairs nearer than this share of the first percentile of distances between independent members are reported.

In ``cards/mnist-optunet`` the percentile is 0.223 and the nearest two of 3,072 members are at 0.034; of copies rounded
to float16 the farthest is at 0.003 from its original, of copies with noise of 1e-4 at 0.003, of 1e-3 at 0.036.
"""
_BATCH_BYTES = 8 * 2**20
"""Bytes of weights that are evaluated at a time, unless one checkpoint has more."""
_STACK, _STACK_BYTES = 64, 2**20
"""The maximum of checkpoints that go through the network at once, and of their weights' bytes, unless one has more."""
_FAST_STACK = 512
"""The number of checkpoints at once where ``archs.stacked`` has a function, which arranges the inputs at every call."""
MAX_PAIRS = 100_000
"""The maximum of pairs that are listed: n copies of one network are n (n - 1) / 2 of them."""
_VERSION = 2
"""The version of outputs and inputs: where their bits change, another number keeps kept ones from being used."""


@dataclass(frozen=True)
class NearPair:
    """Two checkpoints with nearly the same outputs.

    ``ids`` are the two checkpoints' ids; ``distance`` is between their outputs, from 0 to 1 (``points``).
    """

    ids: tuple[str, str]
    distance: float


@dataclass(frozen=True)
class NearCopies:
    """Pairs that ``near_copies`` found.

    Parameters
    ----------
    pairs
        the nearest first, at most 100,000.
    threshold
        the distance below which pairs are reported.
    compared
        the number of checkpoints.
    found
        the number of pairs below the threshold, listed or not.
    """

    pairs: tuple[NearPair, ...]
    threshold: float
    compared: int
    found: int


@dataclass(frozen=True, eq=False)
class Points:
    """Checkpoints as points: Euclidean distances of the values (N, D) are the distances of their outputs."""

    ids: tuple[str, ...]
    origins: NDArray[Any]
    """(N,) what each stems from; those with one origin are not independent."""
    values: NDArray[np.floating[Any]]

    def threshold(self) -> float | None:
        """A tenth of the first percentile of distances between independent checkpoints; None where these are too few.

        One checkpoint of each origin counts, the last one. Of those nearer than a tenth of the median the first counts,
        or copies would make copies seem independent.
        """
        _, last = np.unique(_labels(self.origins)[0][::-1], return_index=True)
        rows = np.sort(len(self.origins) - 1 - last)
        # values are at most 1, so that sums are finite where all of them are
        rows = rows[np.isfinite(self.values.sum(axis=1))[rows]]
        if len(rows) < LEAST_MEMBERS:
            return None
        spread = np.linspace(0, len(rows) - 1, min(len(rows), MAX_MEMBERS)).round().astype(np.int64)
        values = self.values[rows[spread]].astype(np.float64)
        distances = np.sqrt(_squares(values, values))
        below = np.triu(distances < SHARE * np.median(distances[np.triu_indices(len(values), 1)]), 1)
        distances = distances[np.ix_(*2 * [~below.any(axis=0)])]
        return SHARE * float(np.quantile(distances[np.triu_indices(len(distances), 1)], 0.01))

    def near(self, others: "Points", threshold: float) -> tuple[list[NearPair], int]:
        """Pairs of one of these and one of others that are nearer than a threshold and of different origins.

        Each pair once where the others are these. Returns the nearest ``MAX_PAIRS`` of them, and how many there are.
        """
        mine, theirs = _labels(self.origins, others.origins)
        nearest = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        waiting, held, count = [nearest], 0, 0
        for found in close_pairs(self.values, others.values, threshold, (mine, theirs)):
            waiting.append(found)
            held, count = held + len(found[0]), count + len(found[0])
            if held > MAX_PAIRS:
                waiting, held = [nearest := _nearest(waiting)], 0
        pairs = [
            NearPair((self.ids[row], others.ids[other]), distance)
            for row, other, distance in zip(*(part.tolist() for part in _nearest(waiting)), strict=True)
        ]
        return sorted(pairs, key=lambda pair: (pair.distance, pair.ids)), count


def _nearest(found: Sequence[tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], ...]:
    """The nearest ``MAX_PAIRS`` of some pairs: rows, other rows and distances; of equal distances the first rows."""
    rows, others, distances = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((others, rows, distances))[:MAX_PAIRS]
    return rows[order], others[order], distances[order]


def _labels(*origins: NDArray[Any]) -> list[NDArray[np.int64]]:
    """A number for each of some origins, the same for equal ones."""
    encoded = pa.array(np.concatenate(origins)).dictionary_encode().indices
    return np.split(encoded.to_numpy().astype(np.int64), np.cumsum([len(each) for each in origins])[:-1])


@checked
def near_copies(
    zoo: Zoo,
    *,
    module: NETWORK | None = None,
    input_shape: Sequence[int] | None = None,
    saved_in: str | Path | None = None,
    progress: Progress | None = None,
) -> NearCopies:
    """The members of a zoo whose outputs are nearer to one another than those of independent members are.

    A copy that was rounded to float16, whose softmax was shifted, or that has a little noise on its weights is another
    network for ``dedupe``, but answers nearly the same on any inputs: here on 64 standard normal ones. The distance
    of two checkpoints is that of ``points``. Reported is what is nearer than a tenth of the first percentile of all
    distances; who looks at a pair decides whether it is a copy.

    Parameters
    ----------
    zoo
        a zoo, or a selection of it, of at least 8 members; the last step of each counts.
    module
        the network as a torch module, for one that is not in ``ckptzoo.archs``.
    input_shape
        of one input, where the zoo's architecture does not say it.
    saved_in
        a folder in which the outputs of each block of checkpoints are kept; those that are there are not computed
        again. See ``outputs``.
    progress
        called after every batch with the checkpoints that have been evaluated.

    Raises
    ------
    ZooError
        No forward function is known, or no input shape; or there are fewer than 8 members.
    IntegrityError
        Outputs that were kept are damaged.
    MissingExtraError
        torch is not installed.

    Notes
    -----
    64 forward passes a checkpoint and one read of the weights. Outputs are kept in a temporary file, 4 bytes times 64
    times the number of outputs for each checkpoint, in the folder for blocks where there is one. They are compared with
    those around them alone, so that the time grows little faster than the zoo, and with the number of near pairs.
    Memory for 64 bytes a checkpoint, and for the pairs that are listed. Pairs of one member, or of draws around one
    mode, are not compared. Tested in tests/derive/test_near_copies.py.

    Examples
    --------
    >>> near_copies(ckptzoo.open("zoos/few")).pairs
    ()
    """
    members = zoo.last_steps()
    values = outputs(zoo, module=module, input_shape=input_shape, saved_in=saved_in).mapped("values", progress)
    found = Points(tuple(members.ids), origins(members), values)
    threshold = found.threshold()
    if threshold is None:
        step = "Weights of fewer are compared all the same; add members to compare outputs."
        got = str(len(set(found.origins.tolist())))
        raise ZooError(Problem(zoo.name, "independent members", f"at least {LEAST_MEMBERS}", got, step))
    pairs, count = found.near(found, threshold)
    return NearCopies(tuple(pairs), threshold, len(members), count)


def outputs(
    zoo: Zoo, *, module: Any = None, input_shape: Sequence[int] | None = None, saved_in: str | Path | None = None
) -> DescribedRows:
    """Evaluate every member by itself, in blocks that processes can share; modules of one name are one network."""
    inputs = seeded_inputs(with_input_shape(zoo.arch, input_shape))
    _require_forward(zoo, module)

    def compute(some: Zoo, progress: Progress) -> Rows:
        return {"values": points(some, inputs, module=module, progress=progress).values}

    network = zoo.arch.forward if module is None else f"module {type(module).__qualname__}"
    what = {"described": "outputs", "version": _VERSION, "network": network}
    return DescribedRows(zoo.last_steps(), what, compute, saved_in)


def seeded_inputs(arch: Architecture) -> NDArray[np.float32]:
    """(64, *input_shape) standard normal inputs, always the same; ZooError without an input shape."""
    if arch.input_shape is None:
        step = "Say the shape of one input: --input-shape 64, or input_shape=(64,) in Python."
        raise ZooError(Problem(arch.name, "input shape", "one", "none", step))
    generator = np.random.default_rng(np.random.SeedSequence(0))
    return generator.standard_normal((INPUTS, *arch.input_shape)).astype(np.float32)


def points(
    zoo: Zoo,
    inputs: NDArray[np.float32],
    others: Sequence[tuple[Collection[str], NDArray[np.float32]]] = (),
    *,
    module: Any = None,
    progress: Progress | None = None,
) -> Points:
    """Evaluate checkpoints and place them so that distances are those of their outputs.

    The distance of two checkpoints with class probabilities p and q, softmaxes of their outputs, is

        d = sqrt(mean_b (1/2) sum_c (sqrt(p_bc) - sqrt(q_bc))^2)

    over inputs b (B, *input_shape) and classes c: the root of the mean squared Hellinger distance, from 0 to 1. A shift
    of all outputs of an input by one number leaves it alone. ``others`` are ids of checkpoints that take the same
    inputs in another form, and those.
    """
    _require_forward(zoo, module)
    forward_module = import_with_torch("forward")
    forward = forward_module.Forward(zoo.arch, module)
    most = _FAST_STACK if forward.has_stacked(inputs.shape[1:]) else _STACK
    stack = max(1, min(most, _STACK_BYTES // zoo.arch.nbytes))

    def evaluate(batch: Batch, seen: NDArray[np.float32]) -> NDArray[np.float32]:
        weights = {name: np.asarray(batch[name]) for name in zoo.arch.names}
        placed: list[NDArray[np.float32]] = []
        for start in range(0, len(batch.ids), stack):
            some = {name: array[start : start + stack] for name, array in weights.items()}
            parts = forward.outputs(some, forward.batches(seen, INPUTS), stacked=stack > 1)
            values = np.concatenate([part.double().numpy() for part in parts], axis=1)
            placed.append(_placed(values[:, : len(seen)]))
        return np.concatenate(placed)

    ids, rows_of = zoo.ids, {name: row for row, name in enumerate(zoo.ids)}
    forms = [(sorted(rows_of[name] for name in named if name in rows_of), seen) for named, seen in others]
    other_rows = {row for rows, _ in forms for row in rows}
    forms.insert(0, ([row for row in range(len(ids)) if row not in other_rows], inputs))
    values: NDArray[np.float32] | None = None
    done = 0
    with forward_module.one_thread():
        for rows, seen in forms:
            start = 0
            batches = zoo.take(np.array(rows, np.int64)).batches(max_bytes=_BATCH_BYTES) if rows else iter(())
            for found in in_order(lambda batch, seen=seen: evaluate(batch, seen), batches):
                values = np.full((len(ids), found.shape[1]), np.nan, np.float32) if values is None else values
                values[rows[start : start + len(found)]] = found
                start, done = start + len(found), done + len(found)
                if progress is not None:
                    progress(done, len(ids))
    return Points(tuple(ids), origins(zoo), np.zeros((len(ids), 0)) if values is None else values)


def _require_forward(zoo: Zoo, module: Any) -> None:
    if module is None and not archs.known(zoo.arch.forward):
        step = "Name your own: --module FILE.py:NAME, or module=... from Python."
        got, step = repr(zoo.arch.forward) if zoo.arch.forward else "none", unless_layers(zoo.contents, step)
        raise ZooError(Problem(zoo.name, "forward function", "one of ckptzoo.archs", got, step))


def stored_points(zoo: Zoo, logits: Iterator[tuple[slice, NDArray[Any]]], examples: int) -> Points:
    """Place checkpoints by stored outputs (K, examples, classes), each with their places in the zoo."""
    values: NDArray[np.float32] | None = None
    for places, outputs in logits:
        found = _placed(np.asarray(outputs[:, :examples], np.float64))
        values = np.full((len(zoo), found.shape[1]), np.nan, np.float32) if values is None else values
        values[places] = found
    return Points(tuple(zoo.ids), origins(zoo), np.zeros((len(zoo), 0)) if values is None else values)


def origins(zoo: Zoo) -> NDArray[Any]:
    """(N,) what each checkpoint stems from: the mode that a draw is taken around, else the member."""
    none, found = pa.scalar(None, pa.string()), [np.empty(0, np.object_)]
    for run in zoo.metadata_runs("mode", "member", "id"):
        named = (pc.call_function("if_else", [pc.call_function("equal", [it, ""]), none, it]) for it in run.columns)
        found.append(pc.call_function("coalesce", list(named)).to_numpy())
    return np.concatenate(found)


def _placed(outputs: NDArray[np.float64]) -> NDArray[np.float32]:
    """(K, B * C) roots of the softmax of outputs (K, B, C), divided by the root of 2 B."""
    with np.errstate(invalid="ignore", over="ignore"):
        exponentials = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
        placed = np.sqrt(probabilities).reshape(len(outputs), -1) / np.sqrt(2 * outputs.shape[1])
    return placed.astype(np.float32)


def _squares(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, M) squared distances of rows."""
    norms = [np.square(values).sum(axis=1) for values in (first, second)]
    return np.maximum(norms[0][:, None] + norms[1][None, :] - 2 * first @ second.T, 0)
