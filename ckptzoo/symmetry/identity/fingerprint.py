"""Fingerprints: a short digest of a checkpoint's canonical weights at a declared precision, which a zoo stores.

Equal fingerprints do not decide whether two checkpoints are one network: ``comparison.py`` does, weight by weight.
Where the table has matrices rounding moves canonical weights too far for a digest; ``sketches`` are numbers that stay.
"""

import hashlib
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SymmetryError
from ckptzoo.symmetry.arrays import is_float, to_numpy
from ckptzoo.symmetry.gauges import Canonical
from ckptzoo.symmetry.identity.forms import OPEN
from ckptzoo.symmetry.identity.invariants import invariants
from ckptzoo.symmetry.tables import Arch, table_of

SUMS = 16
"""Numbers in a sketch."""
PRECISION = 2.0**-6
"""Width of the cells to which a fingerprint rounds the numbers of a sketch."""
LANE = 1024
"""Sums that are kept while a large tensor is read, a multiple of ``SUMS``."""
PIECE = 2**16
"""Elements that are taken at a time, a multiple of ``LANE``."""


def _sketch(weights: Mapping[str, Any]) -> np.ndarray:
    """Return sixteen numbers for each of K checkpoints (K, 16), close for close weights and far for others.

    ``z_k = sum_t sum_j s_t(16 j + k) w_t[16 j + k] / ||w_t||`` over the floating tensors t in the order of their names,
    with random signs s_t that follow from the tensor's name: weights that differ by a relative norm of d in one tensor
    give numbers that differ by about d / 4.
    """
    K = len(next(iter(weights.values())))
    sums = np.zeros((K, SUMS))
    for name in sorted(weights):
        array = to_numpy(weights[name])
        if not is_float(array) or not array.size:
            continue
        flat = array.reshape(K, -1)
        step = max(1, PIECE // min(PIECE, _padded(flat.shape[1])))
        for start in range(0, K, step):
            sums[start : start + step] += _sums(flat[start : start + step], _signs(name, flat.shape[1]))
    return sums


def _padded(size: int) -> int:
    return -(-size // LANE) * LANE if size > LANE else -(-size // SUMS) * SUMS


def _sums(flat: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return the sixteen sums of one tensor (k, size), over its norms."""
    k, size = flat.shape
    width = min(PIECE, _padded(size))
    lane = min(LANE, width)
    buffer, sums, squares = np.zeros((k, width)), np.zeros((k, lane)), np.zeros(k)
    for start in range(0, size, width):
        count = min(width, size - start)
        np.multiply(flat[:, start : start + count], signs[start : start + count], out=buffer[:, :count])
        buffer[:, count:] = 0
        sums += buffer.reshape(k, -1, lane).sum(axis=1)
        squares += np.square(buffer, out=buffer).sum(axis=1)
    norms = np.sqrt(squares)
    return sums.reshape(k, -1, SUMS).sum(axis=1) / np.where(norms == 0, 1, norms)[:, None]


@lru_cache(maxsize=4096)
def _signs(name: str, size: int) -> np.ndarray:
    """Return random signs that follow from a tensor's name: (size,) int8, 1 or -1."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    bits = np.frombuffer(np.random.default_rng(seed).bytes(-(-size // 8)), np.uint8)
    return 1 - 2 * np.unpackbits(bits, count=size).view(np.int8)


@checked
def fingerprint(canonical: Canonical, *, precision: float = PRECISION) -> list[str | None]:
    """A digest of each checkpoint's canonical form at a declared precision.

    The sketch of the weights, rounded to multiples of ``precision``, with the names and shapes of the tensors.

    Parameters
    ----------
    canonical
        what ``canonicalize`` returned, in a complete gauge.
    precision
        positive; the larger, the more different the networks that share a fingerprint.

    Returns
    -------
    list[str | None]
        K texts ``"canonical-4:<precision>:<32 hex>"``; None where the checkpoint is not in the gauge, or where its
        order is not resolved; and for all where the table has matrices, see ``sketches``.

    Raises
    ------
    SymmetryError
        The gauge is not complete.
    ValueError
        The precision is not positive and finite.

    Notes
    -----
    Equal, for certain, for checkpoints that differ by permutations. Where they also differ by scales, the
    weights agree but for rounding, r relative, and the fingerprints are equal but for a chance of about ``32 r /
    precision``: 1e-4 in float32, and unless rounding exchanges channels whose keys are almost equal, which is frequent
    in layers of more than 500 channels. Networks that differ by less than the precision may share a fingerprint.
    ``ckptzoo.derive.dedupe`` depends on neither: its candidates come from invariants, and weights decide.
    """
    if not 0 < precision < np.inf:
        raise ValueError(f"fingerprint: precision: expected a positive number, got {precision!r}. Try {PRECISION}.")
    gauge = canonical.gauge
    _require_complete("fingerprint", canonical)
    usable = canonical.report.gauged & ~canonical.report.unresolved
    if canonical.element.matrices:
        return [None] * len(usable)
    weights = {name: to_numpy(array) for name, array in canonical.weights.items()}
    shapes = ";".join(f"{name}{array.shape[1:]}" for name, array in sorted(weights.items()))
    sketched = np.zeros((len(usable), SUMS))
    if usable.all():
        sketched = _sketch(weights)
    elif usable.any():
        sketched[usable] = _sketch({name: array[usable] for name, array in weights.items()})
    with np.errstate(over="ignore"):
        cells = np.round(sketched / precision).astype(np.int64)
    texts: list[str | None] = []
    for defined, numbers in zip(usable.tolist(), cells, strict=True):
        content = shapes.encode() + struct.pack("<d", precision) + numbers.astype("<i8").tobytes()
        digest = hashlib.sha256(content).hexdigest()[:32]
        texts.append(f"{gauge.name}-{gauge.version}:{precision:g}:{digest}" if defined else None)
    return texts


@checked
def sketches(canonical: Canonical, arch: Arch) -> np.ndarray:
    """Sixteen numbers for each checkpoint that are the same for all of its orbit, but for rounding.

    They are smooth in the weights: rounding to the dtype in which weights are stored moves each by at most 1e-12 in
    float64, 1e-6 in float32, 1e-3 in float16 and 1e-2 in bfloat16; other networks are some tenths away. What they are
    is in ``ckptzoo.symmetry.identity.invariants.invariants``.

    Parameters
    ----------
    canonical
        what ``canonicalize`` returned, in a complete gauge.
    arch
        as ``canonicalize`` took it.

    Returns
    -------
    np.ndarray
        (K, 16) float64; NaN where the checkpoint is not in the gauge.

    Raises
    ------
    SymmetryError
        The gauge is not complete.

    Notes
    -----
    Checkpoints with close sketches may be one network, of any table; ``ckptzoo.derive.dedupe`` compares their weights.
    Tested in tests/symmetry/identity/test_matrix_invariants.py.
    """
    _require_complete("sketches", canonical)
    usable = canonical.report.gauged
    found = np.full((len(usable), OPEN.features), np.nan)
    if usable.any():
        weights = {name: to_numpy(array)[usable] for name, array in canonical.weights.items()}
        found[usable] = invariants(weights, table_of(arch), OPEN).sketches
    return found


def _require_complete(where: str, canonical: Canonical) -> None:
    gauge = canonical.gauge
    if not gauge.complete:
        expected = "one in which every checkpoint of an orbit has the same weights"
        raise SymmetryError(Problem(where, f"gauge {gauge.name!r}", expected, "another", "Use canonical."))
