"""``round``: a copy of a zoo whose weights are rounded to two bytes each, and measured again as they are stored."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ckptzoo
from builders import sources
from builders.build import card_of, write_page
from builders.recipe import Recipe
from builders.train import device_kind, open_trainer
from ckptzoo.cli.options import bar
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.text import counted

DTYPES = ("float16", "bfloat16")
_WIDE = ("float32", "float64")
_MEASURED_BYTES = 64 * 2**20
"""Bytes of the checkpoints that are measured before the progress bar moves."""
_PART = 256
"""Checkpoints of a part: at most as many are measured again after an interrupted copy."""


@dataclass(frozen=True)
class Rounded:
    """The result of rounding. ``added`` and ``held`` count checkpoints that were added, and that the copy holds;
    ``largest_change`` is that of the test accuracy of an added checkpoint, as a fraction, NaN where there is none.
    """

    zoo: Path
    dtype: str
    added: int
    held: int
    largest_change: float

    def line(self) -> str:
        if not self.added:
            return f"{self.zoo}: holds {counted(self.held, 'checkpoint')} already; nothing was added."
        change = f"; test accuracy changed by at most {100 * self.largest_change:.2f} points"
        told = "" if np.isnan(self.largest_change) else change
        return f"{self.zoo}: {counted(self.added, 'checkpoint')} in {self.dtype}{told}."


def round_weights(
    zoo: str | Path,
    recipe: Recipe | str | Path,
    to: str | Path,
    *,
    dtype: str = "float16",
    where: str | None = None,
    folder: str | Path | None = None,
    device: str = "cpu",
) -> Rounded:
    """Copy members of a zoo with their weights rounded to nearest, and measure them again.

    Parameters and buffers of floating point are rounded, counters stay. Training loss, test accuracy and the other
    figures that the recipe's loss gives are those of the rounded weights, computed in float32; ``extra`` keeps the
    dtype before, as ``rounded_from``. Called again after it was stopped, it adds what the copy lacks.

    Raises ZooError: the zoo has other networks, or checkpoints that the recipe did not train; a weight is beyond the
    dtype's range; the copy is another zoo.

    Every copied checkpoint of ``zoo``, a folder or an address, was trained by the recipe; ``where`` is a condition on
    the metadata, such as ``step == 2346``. ``dtype`` is one of ``DTYPES``; the data set is in ``folder``, see
    ``builders.sources.load``.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    if dtype not in DTYPES:
        raise ZooError(Problem("round", "dtype", " or ".join(DTYPES), dtype, "Choose one of them with --dtype."))
    device_kind(device)
    original = ckptzoo.open(zoo)
    chosen = original if where is None else original.where(where)
    _check(chosen, recipe)
    arch = narrowed(recipe.arch, dtype)
    root = Path(to).absolute()
    copy = _open_copy(root, original, recipe, arch)
    # what an interrupted call left behind: parts are whole or absent, so ids say what is missing
    present = set(copy.ids)
    lacking = chosen.take([row for row, name in enumerate(chosen.ids) if name not in present])
    if not len(lacking):
        return Rounded(root, dtype, 0, len(copy), float("nan"))
    changes: list[float] = []
    source = sources.load(recipe, folder)
    with open_trainer(recipe, source, device=device) as trainer, bar("measured again") as progress:
        for start in range(0, len(lacking), _PART):
            some = lacking.take(range(start, min(start + _PART, len(lacking))))
            rows = some.metadata.to_pylist()
            with ckptzoo.append(root) as writer:
                done = 0
                for batch in some.batches(max_bytes=_MEASURED_BYTES):
                    own = rows[done : done + len(batch)]
                    weights = {
                        tensor.name: round_tensor(batch[tensor.name], tensor, str(zoo)) for tensor in arch.tensors
                    }
                    measured = trainer.measure(widened(weights))
                    writer.add(weights, _rows(own, measured))
                    changes += _changes(own, measured)
                    done += len(own)
                    progress(start + done, len(lacking))
    write_page(root)
    return Rounded(root, dtype, len(lacking), len(copy) + len(lacking), max(changes, default=float("nan")))


def narrowed(arch: Architecture, dtype: str) -> Architecture:
    """Return the architecture with its tensors of floating point in another dtype."""
    return replace(
        arch, tensors=tuple(replace(item, dtype=dtype) if item.dtype in _WIDE else item for item in arch.tensors)
    )


def rounded_dtype(trained: Architecture, stored: Architecture) -> str | None:
    """Return the dtype to which trained networks were rounded, None where ``stored`` are no such networks."""
    return next((dtype for dtype in DTYPES if narrowed(trained, dtype).digest == stored.digest), None)


def dtypes_of(arch: Architecture) -> list[str]:
    """Return the dtypes of all tensors, each once."""
    return sorted({item.dtype for item in arch.tensors})


def _check(zoo: ckptzoo.Zoo, recipe: Recipe) -> None:
    """Check that the networks are the recipe's, and were trained by it."""
    if zoo.arch.digest != recipe.arch.digest:
        expected, got = (f"{found.name} in {', '.join(dtypes_of(found))}" for found in (recipe.arch, zoo.arch))
        step = "Name the recipe of the zoo's networks."
        raise ZooError(Problem(zoo.name, "architecture", f"{expected}, the recipe's", got, step))
    digests = zoo.column("recipe_digest").to_pylist()
    others = sorted({str(digest)[:15] for digest in digests if digest != recipe.digest})
    if others:
        step = "Name the recipe that trained them, as a .toml file where settings such as --epochs were given."
        if recipe.digest in digests:
            step = f"Choose checkpoints with --where, such as \"recipe_digest == '{recipe.digest}'\"."
        expected = f"{recipe.digest[:15]} of {recipe.name} for every checkpoint, because they are measured as it says"
        raise ZooError(Problem(zoo.name, "recipe", expected, ", ".join(others[:3]), step))


def _open_copy(root: Path, original: ckptzoo.Zoo, recipe: Recipe, arch: Architecture) -> ckptzoo.Zoo:
    """Open the zoo of rounded weights, made where there is none."""
    if not (root / layout.ZOO).exists():
        ckptzoo.create(root, arch=arch, card=card_of(root, recipe), symmetry=original.symmetry)
    copy = ckptzoo.open(root)
    if copy.arch.digest != arch.digest:
        expected, got = (f"{found.name} in {', '.join(dtypes_of(found))}" for found in (arch, copy.arch))
        raise IntegrityError(Problem(root.name, "architecture", expected, got, "Write into another folder."))
    return copy


def round_tensor(values: NDArray[Any], tensor: Tensor, location: str) -> NDArray[Any]:
    """Round a stacked tensor (K, *shape) to its new dtype, to nearest; finite numbers stay finite."""
    # an overflow to infinity is reported below as an error, with the tensor's name
    with np.errstate(over="ignore"):
        rounded = np.asarray(values).astype(numpy_dtype(tensor.dtype))
    if tensor.dtype in DTYPES and bool((np.isfinite(values) & ~np.isfinite(rounded.astype(np.float32))).any()):
        got = f"{np.abs(values[np.isfinite(values)]).max():.3g}"
        expected, step = f"numbers in the range of {tensor.dtype}", "Round to bfloat16, which has the range of float32."
        raise ZooError(Problem(location, f"tensor {tensor.name!r}", expected, got, step))
    return rounded


def widened(weights: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    """Convert floating point to float32, with the same values, for measuring."""
    return {
        # numpy has no bfloat16 of its own, and torch.from_numpy refuses that of ml_dtypes
        name: torch.from_numpy(values if values.dtype.kind in "iub" else values.astype(np.float32))
        for name, values in weights.items()
    }


def _rows(rows: list[dict[str, Any]], measured: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """Return the metadata of checkpoints with the measures of their rounded weights; ``diverged`` stays."""
    measured = {column: values for column, values in measured.items() if column != "diverged"}
    return [
        {
            **row,
            **{column: values[number].item() for column, values in measured.items()},
            # checkpoints of a unit may be copied by several calls, and a part takes no unit that another has
            "unit": None,
            "extra": {**json.loads(row["extra"] or "{}"), "rounded_from": "float32"},
        }
        for number, row in enumerate(rows)
    ]


def _changes(rows: list[dict[str, Any]], measured: dict[str, NDArray[Any]]) -> list[float]:
    """Return the changes of the test accuracy of checkpoints, where it was measured before."""
    if "test_accuracy" not in measured:
        return []
    pairs = zip((row["test_accuracy"] for row in rows), measured["test_accuracy"].tolist(), strict=True)
    return [abs(after - before) for before, after in pairs if before is not None]
