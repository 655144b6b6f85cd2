"""Which engine trains more of a zoo's members or draws: the one that made those that it has.

Ids follow from recipe and seed, and so do all random numbers, but engines round differently: of those for CPUs no two
were found to give the same bits (``tests/builders/test_zoo_engines.py``; ``single`` has those of a plain PyTorch loop,
which is no engine), and those for GPUs alone were not compared and count as different. A zoo whose members were made by
several engines would hold weights that no single command makes again. Ids that named the engine would change those of
published zoos, so a zoo goes on with the engine that it has, named by ``engine`` in ``extra``, and another one is
refused. Rows that name none, as of other writers, decide nothing. Two zoos may have other weights of two engines under
the same ids: ``append`` refuses to bring them together, and a collection keeps them apart by their zoos.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from builders import engines
from builders.metadata import member_id
from builders.recipe import Recipe
from builders.train import choose_engine, device_kind
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.reader import Contents
from ckptzoo.text import excerpt


def engines_held(contents: Contents, recipe: Recipe) -> Counter[str]:
    """Count the engines that made a recipe's members in a zoo, retracted ones too."""
    columns = contents.raw.rows.select(["member", "recipe_digest", "seed", "extra"]).columns
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return engines_of(
        extra
        for member, digest, seed, extra in rows
        if digest == recipe.digest and seed is not None and member == member_id(recipe, seed)
    )


def engines_of(extras: Iterable[str | None]) -> Counter[str]:
    """Count the engines that rows name in their ``extra``."""
    counts: Counter[str] = Counter()
    # the rows of a unit have one text
    for text, count in Counter(extras).items():
        extra = json.loads(text or "{}")
        # other writers put any JSON into this column
        name = extra.get("engine") if isinstance(extra, dict) else None
        if isinstance(name, str):
            counts[name] += count
    return counts


def engine_for(
    held: Mapping[str, int], *, recipe: Recipe, device: str, location: str, asked: str | None, unfinished: str | None
) -> str:
    """Return the engine that trains more members or draws.

    ``held`` is the result of ``engines_of`` for the rows of the recipe; ``asked`` is the requested engine,
    ``unfinished`` that of the unfinished build.

    Raises ZooError: the zoo's are by another one; or this machine cannot train by that.
    """
    name = asked or unfinished
    if name is not None or not held:
        name = name or choose_engine(recipe, device_kind(device), None)
        require_engine(held, name, location=location, prefix=recipe.prefix)
        return name
    usable = engines.usable(recipe, device)
    # of a zoo that was begun before engines were compared the one of most members
    for name in sorted(held, key=lambda item: (-held[item], item)):
        if name in usable:
            return name
    raise _refusal(held, f"{engines.fastest(recipe, device)}, the one that trains here", location, recipe.prefix)


def require_engine(held: Mapping[str, int], name: str, *, location: str, prefix: str) -> None:
    """Refuse an engine where a zoo's members or draws are by another one."""
    if held and name not in held:
        raise _refusal(held, name, location, prefix)


def _refusal(held: Mapping[str, int], got: str, location: str, prefix: str) -> ZooError:
    names = excerpt(" or ".join(sorted(held)))
    step = (
        f"Train with --engine {names} where it is installed, or build into another zoo: "
        "engines round differently, so that the same ids would have other weights."
    )
    return ZooError(Problem(location, f"engine of {prefix}", f"{names}, which made those of the zoo", got, step))
