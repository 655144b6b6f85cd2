"""The metadata of trained checkpoints."""

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ckptzoo
from builders.energy import Spent
from builders.recipe import Recipe
from builders.sources import Source

BUILDER = f"ckptzoo-builders {ckptzoo.__version__}"


def member_id(recipe: Recipe, seed: int) -> str:
    """Return ``<recipe>-<8 digits of its digest>-<seed>``."""
    return f"{recipe.prefix}-{seed:06d}"


def rows(
    recipe: Recipe,
    source: Source,
    measured: dict[str, NDArray[Any]],
    *,
    unit: str,
    seeds: Sequence[int],
    step: int,
    spent: Spent,
    device: str,
    engine: str,
) -> list[dict[str, Any]]:
    """Return one row a member: every column of ``ckptzoo.schema.metadata.COLUMNS`` that is known when training ends.

    ``measured`` is ``{column: (M,)}`` from ``Trainer.measure``. Each member bears an equal share of ``spent``, the time
    and energy of the unit's training; energy is in ``extra``, where it is known.
    """
    energy = {} if spent.joules is None else {"energy_joules": spent.joules / len(seeds)}
    common = {
        "step": step,
        "epoch": step / recipe.epoch_steps,
        "unit": unit,
        "recipe": recipe.name,
        "recipe_digest": recipe.digest,
        "builder": BUILDER,
        "commit": commit(),
        "dataset": source.name,
        "dataset_digest": source.digest,
        "wall_seconds": spent.seconds / len(seeds),
        "device": device_name(device),
        "precision": recipe.precision,
        "source": f"python -m builders build {recipe.name}",
        "created": datetime.now(UTC),
        "extra": {**recipe.facts(), "engine": engine, "trained_together": len(seeds), **energy},
    }
    listed: list[dict[str, Any]] = []
    for number, seed in enumerate(seeds):
        name = member_id(recipe, seed)
        # plain Python numbers, as JSON and Arrow take them
        figures = {column: np.asarray(values)[number].item() for column, values in measured.items()}
        listed.append({"id": f"{name}-{step:06d}", "member": name, "seed": seed, **common, **figures})
    return listed


def device_name(device: str) -> str:
    """Return the device as the metadata names it."""
    return f"cuda: {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else device


@cache
def commit() -> str | None:
    """Return the commit of this checkout, if it is one, with ``+`` where files differ from it. An installation within
    another project's checkout has none, because that checkout does not track these files.
    """
    here = ["git", "-C", str(Path(__file__).parent)]
    try:
        # git finds the checkout around site-packages, too
        own = [*here, "ls-files", "--error-unmatch", Path(__file__).name]
        subprocess.run(own, capture_output=True, check=True, timeout=10)
        head = subprocess.run([*here, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        # untracked files count too: status lists them
        changed = subprocess.run([*here, "status", "--porcelain", "."], capture_output=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
