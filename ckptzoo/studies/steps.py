"""How far are the kept steps of training from the last one: in transpositions, in distance, and in loss?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from ckptzoo import symmetry
from ckptzoo.arguments import NETWORK, checked
from ckptzoo.console import columns, facts
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import Problem, ZooError
from ckptzoo.loader.flags import usable_networks
from ckptzoo.loader.zoo import Zoo
from ckptzoo.studies.shared.networks import (
    ALIGNED,
    RAW,
    distances,
    evaluator_of,
    line_barriers,
    pairs_at_once,
    read_networks,
)
from ckptzoo.studies.shared.result import Spread, StudyResult, mean_and_sd
from ckptzoo.studies.shared.selection import own_table
from ckptzoo.symmetry.transpositions import most_transpositions, transpositions_in_total
from ckptzoo.text import Progress, counted, counter

POINTS = 11
"""The number of points of a line, with its ends."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Steps(StudyResult):
    """Kept steps against the last one of each member; drawn as ``steps.png``.

    ``pairs`` has the (P,) earlier steps of pairs of a kept step and its member's last; ``found`` has the (P,)
    transpositions of the permutation that brings the earlier network closest to the last; ``distances`` maps ways to
    (P,), as trained and aligned. Barriers were measured on ``inputs`` inputs of ``set``, None and 0 without;
    ``barriers`` maps ways to (P,), of the loss in nats, and is empty without inputs.
    """

    file: ClassVar[str] = "steps.json"

    name: str
    members: int
    most: int
    pairs: NDArray[np.int64]
    found: NDArray[np.int64]
    distances: dict[str, Values]
    set: str | None
    inputs: int
    barriers: dict[str, Values]

    @property
    def steps(self) -> list[int]:
        """The earlier steps, ascending."""
        return np.unique(self.pairs).tolist()

    def at(self, values: NDArray[Any], step: int) -> Spread | None:
        """The spread over the members of the values that belong to one step."""
        return Spread.of(values[self.pairs == step])

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, as spreads over the members for each step."""
        listed: list[dict[str, Any]] = []
        for step in self.steps:
            figures = {"transpositions": self.found}
            figures |= {f"distance, {way}": values for way, values in self.distances.items()}
            figures |= {f"barrier, {way}": values for way, values in self.barriers.items()}
            spreads = {name: self.at(values, step) for name, values in figures.items()}
            listed.append({"step": step, **{name: item and item.to_json() for name, item in spreads.items()}})
        names = ("name", "members", "most", "set", "inputs")
        return {**{name: getattr(self, name) for name in names}, "steps": listed}

    def _lines(self) -> Iterator[RenderableType]:
        rows = [("zoo", f"{self.name}: {counted(self.members, 'member')}, {counted(len(self.steps), 'earlier step')}")]
        if self.set is not None:
            rows.append(("barriers", f"in nats, on {self.set}: {counted(self.inputs, 'input')}"))
        yield facts([*rows, ("transpositions", f"at most {self.most:,}")])
        yield ""
        yield "from a kept step to the last one of the same member"
        yield self._table()

    def _table(self) -> Table:
        ways = {f"distance, {way}": (values, 2) for way, values in self.distances.items()}
        ways |= {f"barrier, {way}": (values, 3) for way, values in self.barriers.items()}
        table = columns("step", "members", "transpositions", *ways)
        for step in self.steps:
            cells = [mean_and_sd(self.at(self.found, step), 1)]
            cells += [mean_and_sd(self.at(values, step), digits) for values, digits in ways.values()]
            table.add_row(f"{step:,}", f"{(self.pairs == step).sum():,}", *cells)
        return table


@checked
def steps(
    zoo: Zoo, labelled: Labelled | None = None, *, module: NETWORK | None = None, progress: Progress | None = None
) -> Steps:
    """Compare every kept step of each member with its last one.

    A permutation that training still makes shows as transpositions; where there are none and a barrier is left, the
    network has moved on in other ways (arXiv 2401.00611 counts transpositions so).

    Parameters
    ----------
    zoo
        with members that have several usable steps: build them with ``--keep-steps``.
    labelled
        what losses on the lines between networks are measured on; None for no barriers.
    module
        the network as a torch module, for architectures that are not in ``ckptzoo.archs``.
    progress
        called with the steps compared, and all of them.

    Raises
    ------
    ZooError
        No member has two usable steps, or losses of Gaussians were asked for.
    SymmetryError
        No table of symmetries is known.

    Notes
    -----
    Time: that of an alignment and of ``POINTS`` evaluations a step and member, twice as many where alignment permutes
    it. Memory: pairs of 64 MiB with copies. Tested in tests/studies/test_steps.py.

    Examples
    --------
    >>> from ckptzoo.studies.steps import steps
    >>> found = steps(ckptzoo.open("cards/mnist-optunet-trajectories").where("seed < 4"))
    >>> {step: found.at(found.found, step).mean for step in (0, 300, 938, 46900)}
    {0: 1.5, 300: 1.0, 938: 0.25, 46900: 0.0}
    """
    evaluator = None if labelled is None else evaluator_of(zoo, labelled, module)
    rows_of: dict[str, dict[int, int]] = {}
    usable = usable_networks(zoo)
    for row, entry in enumerate(zoo.metadata.select(["id", "member", "step"]).to_pylist()):
        if usable[row]:
            # a row without a member is a member of its own
            rows_of.setdefault(entry["member"] or entry["id"], {})[entry["step"] or 0] = row
    followed = [rows for rows in rows_of.values() if len(rows) > 1]
    if not followed:
        step = "Write several values of step for one member, or build with --keep-steps 0,100,938."
        got = "rows without a step" if zoo.column("step").null_count == len(zoo) else "none"
        raise ZooError(Problem(zoo.name, "members with two usable steps", "one or more", got, step))
    table, points, size = own_table(zoo), np.linspace(0, 1, POINTS), pairs_at_once(zoo.arch)
    pairs = [(step, row, rows[max(rows)]) for rows in followed for step, row in rows.items() if step < max(rows)]
    found = np.zeros(len(pairs), np.int64)
    apart = {way: np.zeros(len(pairs)) for way in (RAW, ALIGNED)}
    heights = {way: np.zeros(len(pairs)) for way in (apart if labelled else ())}
    advance = counter(len(pairs), progress)
    for start in range(0, len(pairs), size):
        some = slice(start, start + size)
        _, earlier, last = np.array(pairs[some]).T
        first, second = read_networks(zoo, last), read_networks(zoo, earlier)
        aligned = symmetry.align(second, first, table)
        found[some] = transpositions_in_total(aligned.element, table)
        for way, weights in ((RAW, second), (ALIGNED, aligned.weights)):
            apart[way][some] = distances(zoo.arch, first, weights)
        if evaluator is not None:
            # where alignment moves nothing both lines are the same
            heights[RAW][some] = heights[ALIGNED][some] = line_barriers(evaluator, first, second, points)
            moved = found[some] > 0
            if moved.any():
                first, second = (
                    {key: array[moved] for key, array in item.items()} for item in (first, aligned.weights)
                )
                heights[ALIGNED][start + np.flatnonzero(moved)] = line_barriers(evaluator, first, second, points)
        advance(len(earlier))
    return Steps(
        name=zoo.name,
        members=len(followed),
        most=most_transpositions(table),
        pairs=np.array([step for step, _, _ in pairs]),
        found=found,
        distances=apart,
        set=None if labelled is None else labelled.set,
        inputs=0 if labelled is None else len(labelled.inputs),
        barriers=heights,
    )
