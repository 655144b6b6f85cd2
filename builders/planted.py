r"""``planted``: networks that are trained from :math:`\theta_0` and from :math:`g \theta_0`, in other orders.

How far apart do two trainings end that began at networks with the same function (Xiao, Liu and Bamler, arXiv
2401.00611)? Each run has one reference, trained from freshly initialised weights :math:`\theta_0`, and for every number
of transpositions t a member that is trained from :math:`g \theta_0`. There g is a permutation of hidden neurons, drawn
uniformly among those with t transpositions; of a network with several layers t is the sum over the layers, and g is
uniform among all with that sum (``ckptzoo.symmetry.transpositions.random_element``). All members of a run are trained
alike, except that each has its own random numbers: the order of the examples, crops, and what dropout drops. With the
same random numbers a planted member would end at g of where the reference ends (arXiv 2310.08287, Proposition 3).

Members are those of a recipe of its own, the given one under the name ``<name>-planted``, and have seeds. Where the
architecture has m transpositions at most, those of run r are r (m + 2) for the reference and r (m + 2) + 1 + t for the
others: a member is a function of recipe, run and t, whatever else is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from rich.console import Console

from builders import rng
from builders.build import SAVE_SECONDS, BuildRequest, Built, MemberTraining, TrainingOptions, build_requested
from builders.checkpointing import Unit
from builders.energy import Counter, Spent
from builders.estimate import require_at_least
from builders.metadata import member_id
from builders.recipe import Recipe
from builders.state import TrainingState
from ckptzoo import archs
from ckptzoo.errors import Problem, ZooError
from ckptzoo.symmetry import GroupElement, apply
from ckptzoo.symmetry.transpositions import most_transpositions, random_element, transpositions_by_group

_PLANTED = 1
"""Keeps the permutations apart from all else that is drawn from a seed; raised when others would be drawn."""


@dataclass(frozen=True)
class PlantedMember:
    """One member of a run, which is numbered from 0; the reference has None in place of planted transpositions."""

    run: int
    transpositions: int | None

    @classmethod
    def of(cls, seed: int, most: int) -> "PlantedMember":
        """Return the member with a seed, where ``most`` is the largest number of transpositions."""
        # most + 2 places a run: the reference, and 0 to ``most`` transpositions
        run, within = divmod(seed, most + 2)
        return cls(run, within - 1 if within else None)

    def seed(self, most: int) -> int:
        """Return its seed, where there are ``most`` transpositions at most."""
        return self.run * (most + 2) + (0 if self.transpositions is None else 1 + self.transpositions)


def planted_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of the members: the same under another name, so that it has a digest and ids of its own."""
    return replace(recipe, name=f"{recipe.name}-planted")


def initial_weights(recipe: Recipe, seeds: Sequence[int]) -> tuple[dict[str, Any], GroupElement]:
    """Return weights ``{name: (M, *shape)}`` at which members with these seeds start, and g of each: that of a
    reference is 1. ``recipe`` is that of ``planted_recipe``.
    """
    table = archs.symmetry(recipe.architecture)
    most = most_transpositions(table)
    members = [PlantedMember.of(seed, most) for seed in seeds]
    references = [PlantedMember(member.run, None).seed(most) for member in members]
    # drawn from the reference's key, so that all members of a run start at the same network
    weights = rng.initial_weights(recipe.arch, rng.member_keys(recipe.digest, references))
    # one generator a member: another choice of members draws the same permutations
    drawn = [
        random_element(table, member.transpositions or 0, 1, np.random.default_rng([_PLANTED, int(key)]))
        for member, key in zip(members, rng.member_keys(recipe.digest, seeds), strict=True)
    ]
    perms = {name: np.concatenate([element.perms[name] for element in drawn]) for name in drawn[0].perms}
    scales = {name: np.concatenate([element.scales[name] for element in drawn]) for name in drawn[0].scales}
    element = GroupElement(perms, scales)
    return apply(element, weights, table), element


def build(
    recipe: Recipe | str | Path,
    to: str | Path,
    *,
    runs: int,
    transpositions: Sequence[int],
    save_seconds: float = SAVE_SECONDS,
    counter: Counter | None = None,
    console: Console | None = None,
    **options: Unpack[TrainingOptions],
) -> Built:
    """Train references and planted members until a zoo holds those of ``runs`` runs, and add them as one part. Called
    again after it was stopped or killed, with the same arguments, it continues from the last saved state. Further runs
    or numbers are added to the existing ones.

    Each run has other initial weights, and a member for each number of ``transpositions``, 0 to the most that the
    architecture has (n - 1 for one layer of n hidden neurons), in any order. Other arguments are those of
    ``builders.build.build``.

    Raises Interrupted on Ctrl-C or SIGTERM, after the state was saved. Raises ZooError: the architecture has no
    permutation with one of the numbers; or the arguments do not fit each other, the zoo, or an unfinished build there.
    """
    wanted = planted_recipe(Recipe.of(recipe, options.pop("epochs", None)))
    require_at_least(runs=runs)
    numbers, most = tuple(sorted(set(transpositions))), most_transpositions(archs.symmetry(wanted.architecture))
    wrong = [number for number in numbers if not 0 <= number <= most]
    if wrong or not numbers:
        expected, got = f"numbers from 0 to {most} for {wanted.architecture}", str(wrong[0]) if wrong else "none"
        step = "Choose others, such as --transpositions 0,1."
        raise ZooError(Problem("planted", "transpositions", expected, got, step))
    request = BuildRequest.of(wanted, to, members=runs * (1 + len(numbers)), first_seed=0, **options)
    planted = _PlantedRequest(**vars(request), runs=runs, numbers=numbers, most=most)
    return build_requested(planted, save_seconds=save_seconds, counter=counter, console=console)


@dataclass(frozen=True, eq=False)
class _PlantedRequest(BuildRequest):
    """The arguments of ``build``: ``transpositions`` in rising order, ``most`` the architecture's largest number."""

    runs: int
    numbers: tuple[int, ...]
    most: int

    @property
    def transpositions(self) -> tuple[int, ...]:
        return self.numbers

    def lacking_seeds(self, present: set[int], taken: set[int]) -> tuple[int, ...]:
        """Return the seeds to train; ids of other checkpoints are found when units are compared with the zoo."""
        members = [PlantedMember(run, number) for run in range(self.runs) for number in (None, *self.numbers)]
        return tuple(seed for member in members if (seed := member.seed(self.most)) not in present)

    def training(self, *arguments: Any) -> MemberTraining:
        return _PlantedTraining(*arguments)


@dataclass(frozen=True, eq=False)
class _PlantedTraining(MemberTraining):
    """The training of references and planted members."""

    def start(self, unit: Unit) -> TrainingState:
        weights, _ = initial_weights(self.trainer.recipe, unit.seeds)
        return self.trainer.start(unit.seeds, weights)

    def rows(self, unit: Unit, state: TrainingState, total: Spent) -> list[dict[str, Any]]:
        """Return rows with ``planted`` in ``extra``, see docs/format.md."""
        recipe = self.trainer.recipe
        table = archs.symmetry(recipe.architecture)
        most, leaders = most_transpositions(table), {table.leader(group.id).id for group in table.groups}
        _, element = initial_weights(recipe, unit.seeds)
        by_group = transpositions_by_group(element)
        rows = super().rows(unit, state, total)
        for place, (row, seed) in enumerate(zip(rows, unit.seeds, strict=True)):
            member = PlantedMember.of(seed, most)
            planted: dict[str, Any] = {"run": member.run}
            if member.transpositions is not None:
                moved = [name for name in leaders if by_group[name][place]]
                planted |= {
                    "of": member_id(recipe, PlantedMember(member.run, None).seed(most)),
                    "transpositions": member.transpositions,
                    "groups": {name: int(by_group[name][place]) for name in moved},
                    "permutations": {name: element.perms[name][place].tolist() for name in moved},
                }
            row["extra"] = {**row["extra"], "planted": planted}  # the members of a unit share one
            row["source"] = f"python -m builders planted {recipe.name.removesuffix('-planted')}"
        return rows
