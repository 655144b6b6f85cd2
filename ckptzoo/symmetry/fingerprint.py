"""Fingerprints: short digests by which the same network is found again in disguise."""

import hashlib
import struct
from collections.abc import Mapping

import numpy as np

from ckptzoo.symmetry.arrays import to_numpy
from ckptzoo.symmetry.gauges import Canonical
from ckptzoo.symmetry.layout import is_float

SUMS = 16
"""Numbers in a sketch."""
PRECISION = 2.0**-6
"""Width of the cells to which a fingerprint rounds the numbers of a sketch."""


def sketch(weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """Sixteen numbers for each of K checkpoints, close for close weights and far for others.

    ``z_k = sum_t sum_j s_t(16 j + k) w_t[16 j + k] / ||w_t||`` over the floating tensors t in the order of their
    names, with random signs s_t that follow from the tensor's name: weights that differ by a relative norm of d in
    one tensor give numbers that differ by about d / 4.

    Parameters
    ----------
    weights : tensor name to (K, *shape), finite.

    Returns
    -------
    (K, 16) float64.

    Notes
    -----
    One pass over the weights, with a float64 copy of one checkpoint's tensor.
    """
    K = len(next(iter(weights.values())))
    found = np.zeros((K, SUMS))
    for name in sorted(weights):
        array = np.ascontiguousarray(to_numpy(weights[name]))
        size = array[0].size if K else 0
        if not is_float(array) or not size:
            continue
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
        signs = np.random.default_rng(seed).integers(0, 2, size, dtype=np.int8) * 2.0 - 1.0
        padded = np.zeros(-(-size // SUMS) * SUMS)
        for row, values in enumerate(array.reshape(K, size)):
            padded[:size] = values
            norm = np.sqrt(np.square(padded).sum())
            padded[:size] *= signs
            found[row] += padded.reshape(-1, SUMS).sum(axis=0) / (norm or 1.0)
    return found


def fingerprint(made: Canonical, *, precision: float = PRECISION) -> list[str | None]:
    """A digest of each checkpoint's canonical form at a declared precision.

    The sketch of the weights, rounded to multiples of ``precision``, with the names and shapes of the tensors.

    Parameters
    ----------
    made : what ``canonicalize`` returned, in a gauge that collapses permutations and scales.
    precision : positive; the larger, the more different the networks that share a fingerprint.

    Returns
    -------
    K texts ``"canonical-1:<precision>:<32 hex>"``; None where the checkpoint is not in the gauge, or where its order is
    not resolved.

    Raises
    ------
    ValueError
        The precision is not positive and finite.

    Notes
    -----
    Equal, for certain, for checkpoints that differ by permutations. Where they also differ by scales, the
    weights agree but for rounding, r relative, and the fingerprints are equal but for a chance of about ``32 r /
    precision``: 1e-4 in float32. Networks that differ by less than the precision may share a fingerprint;
    ``ckptzoo.derive.dedupe`` compares the weights, and misses none.
    """
    if not 0 < precision < np.inf:
        raise ValueError(f"fingerprint: precision: expected a positive number, got {precision!r}. Try {PRECISION}.")
    gauge = made.gauge
    usable = made.report.gauged & ~made.report.unresolved
    weights = {name: to_numpy(array) for name, array in made.weights.items()}
    shapes = ";".join(f"{name}{array.shape[1:]}" for name, array in sorted(weights.items()))
    sketched = np.zeros((len(usable), SUMS))
    if usable.any():
        sketched[usable] = sketch({name: array[usable] for name, array in weights.items()})
    with np.errstate(over="ignore"):
        cells = np.round(sketched / precision).astype(np.int64)
    found: list[str | None] = []
    for row, mine in zip(usable.tolist(), cells, strict=True):
        content = shapes.encode() + struct.pack("<d", precision) + mine.astype("<i8").tobytes()
        digest = hashlib.sha256(content).hexdigest()[:32]
        found.append(f"{gauge.name}-{gauge.version}:{precision:g}:{digest}" if row else None)
    return found
