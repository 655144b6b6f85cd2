"""The chains of draws in the rows of a zoo, each in the order in which it was made: ``chains_of``."""

from collections.abc import Mapping, Sequence
from typing import Any

from ckptzoo.errors import Problem, ZooError

OF_CHAINS = ("method", "mode", "draw", "step", "recipe_digest")
"""The columns that tell chains and the order of their draws."""


def chains_of(rows: Sequence[Mapping[str, Any]], location: str) -> dict[str, list[int]]:
    """The positions of the draws of each chain, which the column ``mode`` names, in the order in which it made them.

    That is the order of steps, where each draw of a chain has one of its own, and else that of the column ``draw``:
    draws may be numbered so that the first of them are spread over the chain. ``rows`` have the columns ``OF_CHAINS``.
    Raises ``ZooError`` where they are not draws of one method, those of a chain not of one recipe, or nothing tells the
    order.
    """
    methods = dict.fromkeys(row["method"] for row in rows)
    if len(methods) != 1 or None in methods:
        found = ", ".join("independent runs" if name is None else name for name in methods) or "no checkpoints"
        known = next((name for name in methods if name is not None), "hmc")
        step = f"Select some: zoo.where([('method', '==', {known!r})])."
        raise ZooError(Problem(location, "chains", "draws of one method", found, step))
    by_mode: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        by_mode.setdefault("" if row["mode"] is None else row["mode"], []).append(position)
    recipe = rows[0]["recipe_digest"]
    step = f"Select those of one recipe: zoo.where([('recipe_digest', '==', {recipe!r})])."
    for mode, own in by_mode.items():
        if (count := len({rows[position]["recipe_digest"] for position in own})) > 1:
            raise ZooError(Problem(location, f"chain {mode!r}", "draws of one recipe", f"of {count}", step))
    keys = [name for name in ("step", "draw") if tells(name, rows, by_mode)]
    if not keys:
        expected = "a step or a number (the column draw) of its own for each draw of a chain"
        raise ZooError(Problem(location, "chains", expected, "none, or one twice", step))
    return {mode: sorted(own, key=lambda position: rows[position][keys[0]]) for mode, own in by_mode.items()}


def tells(name: str, rows: Sequence[Mapping[str, Any]], chains: Mapping[str, Sequence[int]]) -> bool:
    """Whether the draws of each chain have values of their own in a column."""
    groups = ([rows[position][name] for position in own] for own in chains.values())
    return all(None not in values and len({*values}) == len(values) for values in groups)
