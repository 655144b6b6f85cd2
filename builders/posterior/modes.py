"""The modes that draws are taken around: members of a zoo or chains, and the draws of each that a zoo holds."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ckptzoo
from builders.posterior.method import Method
from builders.rounding import dtypes_of, rounded_dtype
from builders.state import Tensors
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.text import excerpt

MODE_WEIGHTS = "mode_weights"
"""In ``extra`` of a draw: the digest of the weights of the member that it is taken around."""
# 64 bits tell the members of a zoo apart, and stand in each row
_DIGITS = 16


@dataclass(frozen=True)
class FoundModes:
    """The modes around which draws are taken.

    ``names`` of members of a zoo, or of chains, are values of the column ``mode``. ``weights`` are ``{name: (M,
    *shape)}`` of the members; None where chains start at random weights.
    """

    names: tuple[str, ...]
    seeds: tuple[int, ...]
    weights: dict[str, NDArray[Any]] | None

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Digests of every member's weights, with which draws tell what they were taken around; none of chains."""
        if self.weights is None:
            return ()
        return tuple(
            hashlib.sha256(b"".join(array[mode].tobytes() for array in self.weights.values())).hexdigest()[:_DIGITS]
            for mode in range(len(self.names))
        )

    def weights_of(self, modes: list[int], device: torch.device) -> Tensors | None:
        """Those of some modes on a device."""
        if self.weights is None:
            return None
        return {name: torch.from_numpy(array[modes]).to(device) for name, array in self.weights.items()}


def find_modes(model: Method, count: int, start: str | Path | None) -> FoundModes:
    """Return ``count`` members of the zoo ``start``, or the names and seeds of chains.

    Raises ZooError: the method starts otherwise, or the zoo has too few members of the recipe that are finite and did
    not diverge.
    """
    if model.modes_are == "chain":
        if start is not None:
            expected, step = "no zoo to start from, because it trains chains of its own", "Leave out --from."
            raise ZooError(Problem("posterior", f"method {model.name}", expected, str(start), step))
        seeds = tuple(range(count))
        return FoundModes(tuple(f"{model.prefix}-{seed:06d}" for seed in seeds), seeds, None)
    if start is None:
        expected, step = "a zoo of members to start from", "Name one with --from."
        raise ZooError(Problem("posterior", f"method {model.name}", expected, "none", step))
    zoo = ckptzoo.open(start).last_steps()
    return _members(model, zoo, count, str(start))


def _members(model: Method, zoo: ckptzoo.Zoo, count: int, location: str) -> FoundModes:
    """The first members of a zoo, which may be rounded, that are finite, did not diverge, and were trained by the
    recipe.
    """
    recipe = model.recipe
    if zoo.arch.digest != recipe.arch.digest and rounded_dtype(recipe.arch, zoo.arch) is None:
        expected, got = (f"{found.name} in {', '.join(dtypes_of(found))}" for found in (recipe.arch, zoo.arch))
        step = "Name a zoo of the recipe's networks with --from."
        raise ZooError(Problem(location, "architecture", f"{expected}, the recipe's", got, step))
    columns = ["member", "seed", "recipe", "recipe_digest", "finite", "diverged", "method"]
    table = zoo.metadata.select(columns).to_pylist()
    of_recipe = [(number, row) for number, row in enumerate(table) if row["recipe_digest"] == recipe.digest]
    if not of_recipe:
        others = sorted({f"{row['recipe']} {str(row['recipe_digest'])[:15]}" for row in table})[:3]
        expected = f"{recipe.name} {recipe.digest[:15]}"
        step = (
            "Name a zoo that this recipe trained with --from, or the recipe, and its --epochs, that trained this one."
        )
        raise ZooError(Problem(location, "recipe of the members", expected, ", ".join(others) or "no members", step))
    usable = [
        (number, row)
        for number, row in of_recipe
        if row["finite"] and not row["diverged"] and row["seed"] is not None and row["method"] is None
    ]
    if len(usable) < count:
        got = f"{len(usable):,} of {len(of_recipe):,}"
        step = "Ask for fewer modes, or train more members."
        raise ZooError(
            Problem(location, "members that are finite and did not diverge", f"at least {count:,}", got, step)
        )
    chosen = usable[:count]
    places = [number for number, _ in chosen]
    members = zoo.take(places)
    # rounded weights are those of the zoo, in the recipe's dtypes
    weights = {
        tensor.name: np.array(members[tensor.name][:]).astype(numpy_dtype(tensor.dtype))
        for tensor in recipe.arch.tensors
    }
    return FoundModes(tuple(row["member"] for _, row in chosen), tuple(row["seed"] for _, row in chosen), weights)


def present_draws(table: Any, model: Method, modes: FoundModes) -> tuple[int, ...]:
    """How many draws of each mode, from 0 on, the zoo holds; retracted ones count."""
    present = draws_of(table, model)
    counts: list[int] = []
    for name in modes.names:
        count = 0
        # up to the first gap: draws are taken in order, and a mode is run again from its start
        while (name, count) in present:
            count += 1
        counts.append(count)
    return tuple(counts)


def draws_of(table: Any, model: Method) -> dict[tuple[str, int], str]:
    """``extra`` of the draws of a method in a zoo's rows, by mode and number.

    Other writers may write any digest into their rows; an id that goes with the rest is a draw of the method.
    """
    columns = zip(
        *(table[name].to_pylist() for name in ("id", "recipe_digest", "mode", "draw", "seed", "extra")), strict=True
    )
    return {
        (mode, draw): extra
        for name, digest, mode, draw, seed, extra in columns
        if digest == model.digest and None not in (draw, seed) and name == draw_id(model, seed, draw)
    }


def check_starts(table: Any, model: Method, modes: FoundModes, *, location: str) -> None:
    """Refuse members that have the names of those that a zoo's draws were taken around, and other weights.

    Engines and devices round differently, so that two zoos may have members with the same ids and other weights.
    """
    # chains have names and no digests
    digests = dict(zip(modes.names, modes.digests, strict=False))
    for (mode, _), text in draws_of(table, model).items():
        extra = json.loads(text or "{}")
        had = extra.get(MODE_WEIGHTS) if isinstance(extra, dict) else None
        if had is not None and digests.get(mode, had) != had:
            got = f"{digests[mode]} of a member trained otherwise, such as by another engine"
            step = "Name the zoo of the members that the draws were taken around with --from, or draw into another zoo."
            raise ZooError(Problem(location, f"weights of mode {excerpt(mode)}", excerpt(had), got, step))


def draw_id(model: Method, seed: int, number: int) -> str:
    """The id of a draw of the mode with a seed."""
    return f"{model.prefix}-{seed:06d}-d{number:05d}"
