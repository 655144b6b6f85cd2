"""Checkpoints drawn from the Gaussians of a zoo of ``gaussian-<base>``, as an ordinary zoo of the base."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptzoo
from ckptzoo import archs
from ckptzoo.archs.gaussian_spec import STD
from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.header import rounded
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import Card
from ckptzoo.schema.documents import digest_of
from ckptzoo.text import Progress

METHOD = "gaussian"
"""The method of draws where the row of a Gaussian names none."""
_KEPT = ("recipe", "recipe_digest", "dataset", "dataset_digest", "license", "contributor")
"""Columns that a draw takes from the Gaussian's row."""
_BATCH_BYTES = 32 * 2**20
"""Bytes of draws that are in memory at a time, unless one has more."""


@checked
def draws(
    zoo: Zoo,
    n: int,
    seed: int,
    *,
    to: str | os.PathLike[str],
    card: Card | None = None,
    batch_bytes: int = _BATCH_BYTES,
    progress: Progress | None = None,
) -> Zoo:
    """Draw networks from Gaussians with independent weights: ``theta = mean + std * z``.

    Parameters
    ----------
    zoo
        of an architecture ``gaussian-<base>``; or a selection of one.
    n
        draws of each checkpoint.
    seed
        0 or more.
    to
        the folder of the new zoo, which does not exist or is empty.
    card
        of the new zoo.
    batch_bytes
        draws that are in memory at a time, at least one; no byte of the result depends on it.
    progress
        called with the number of draws.

    Returns
    -------
    Zoo
        The new zoo, of the base architecture: for each checkpoint n draws, one behind the other. Their rows have the
        ``method`` of the checkpoint's row, or ``gaussian``, its id as ``mode``, and the number of the ``draw``. Buffers
        are those of the checkpoint.

    Raises
    ------
    ZooError
        The architecture is another one, a standard deviation is negative or not finite, or ``to`` is taken; nothing is
        written then.

    Notes
    -----
    z is standard normal in float64, of a generator that follows from seed, the checkpoint's id and the draw's number,
    so the first draws are the same for any n; one rounding to the dtype of the mean. Time: that of the random numbers,
    8 ns an element. Tested in tests/derive/test_draws.py.

    Examples
    --------
    >>> arch, rows = archs.architecture("gaussian-mlp-4-8-2"), [{"id": "a"}, {"id": "b"}]
    >>> with ckptzoo.create("gaussians", arch=arch) as writer:
    ...     writer.add({tensor.name: np.ones((2, *tensor.shape), np.float32) for tensor in arch.tensors}, rows)
    >>> draws(ckptzoo.open("gaussians"), 100, seed=0, to="draws")["fc1.weight"].shape
    (200, 8, 4)
    """
    arch, base = base_architecture(zoo), archs.base_of(zoo.arch.forward)
    assert base is not None
    if n < 1 or seed < 0:
        step = "Ask for one draw or more, with a seed from 0."
        raise ZooError(Problem(zoo.name, "n and seed", "n from 1, seed from 0", f"{n} and {seed}", step))
    table = archs.symmetry(base)
    table.check(arch)
    if card is None:
        card = Card(Path(to).name, f"{n} draws from each of {len(zoo)} Gaussians of {zoo.name}.")
    _check_deviations(zoo)
    rows = iter(zoo.metadata.to_pylist())
    count = max(1, batch_bytes // arch.nbytes)
    with ckptzoo.create(Path(to), arch=arch, card=card, symmetry=table) as writer:
        done = 0
        for batch in zoo.batches(max_bytes=batch_bytes):
            for place in range(len(batch.ids)):
                row = next(rows)
                gaussian = {name: array[place] for name, array in batch.tensors.items()}
                unit = digest_of([zoo.revision, row["id"], n, seed])
                for start in range(0, n, count):
                    numbers = range(start, min(start + count, n))
                    listed = [_row(row, zoo, number, seed, unit) for number in numbers]
                    writer.add(_drawn(gaussian, arch, row["id"], numbers, seed), listed)
                    done += len(numbers)
                    if progress is not None:
                        progress(done, n * len(zoo))
    return ckptzoo.open(to)


def base_architecture(zoo: Zoo) -> Architecture:
    """The architecture of a zoo of Gaussians without the standard deviations.

    Raises ``ZooError`` if the zoo's forward function is no ``gaussian-<base>`` of ``ckptzoo.archs``.
    """
    base = archs.base_of(zoo.arch.forward)
    if base is None:
        step = "Write the zoo with arch=ckptzoo.archs.architecture('gaussian-...')."
        raise ZooError(Problem(zoo.name, "forward function", "gaussian-<base>", repr(zoo.arch.forward), step))
    tensors = tuple(tensor for tensor in zoo.arch.tensors if not _is_deviation(tensor.name, zoo.arch))
    return Architecture(base, tensors, base, zoo.arch.input_shape)


def _is_deviation(name: str, arch: Architecture) -> bool:
    return name.endswith(STD) and name.removesuffix(STD) in arch


def _check_deviations(zoo: Zoo) -> None:
    names = [name for name in zoo.arch.names if _is_deviation(name, zoo.arch)]
    for batch in zoo.batches(*names):
        for name in names:
            values = batch.tensors[name].reshape(len(batch.ids), -1).astype(np.float64)
            # NaN fails both comparisons
            wrong = ~((values >= 0) & (values < np.inf)).all(axis=1)
            if wrong.any():
                where = f"{name} of {batch.ids[int(np.argmax(wrong))]}"
                step = "Leave it out with zoo.where or zoo.take."
                expected = "finite standard deviations, 0 or more"
                raise ZooError(Problem(zoo.name, where, expected, "others", step))


def _drawn(
    gaussian: Mapping[str, NDArray[Any]], arch: Architecture, id: str, numbers: range, seed: int
) -> dict[str, NDArray[Any]]:
    """Some draws of one checkpoint, stacked."""
    stacked = {t.name: np.empty((len(numbers), *t.shape), gaussian[t.name].dtype) for t in arch.tensors}
    words = np.frombuffer(hashlib.sha256(id.encode()).digest(), "<u4").tolist()
    for place, number in enumerate(numbers):
        rng = np.random.default_rng([seed, number, *words])
        for name, out in stacked.items():
            mean, deviation = gaussian[name], gaussian.get(f"{name}{STD}")
            if deviation is None:
                out[place] = mean
                continue
            z = rng.standard_normal(mean.shape)
            out[place] = rounded(mean.astype(np.float64) + deviation.astype(np.float64) * z, mean.dtype)
    return stacked


def _row(row: Mapping[str, Any], zoo: Zoo, number: int, seed: int, unit: str) -> dict[str, Any]:
    kept = {name: row[name] for name in _KEPT}
    drawn = {"method": row["method"] or METHOD, "mode": row["id"], "draw": number}
    facts = {"id": f"{row['id']}-draw-{number}", "unit": unit, "source": zoo.name, "extra": {"draws_seed": seed}}
    return {**kept, **facts, **drawn}
