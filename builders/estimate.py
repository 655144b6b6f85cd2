"""``estimate``: how long a build will take and how large the zoo will be, from real steps on the device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from builders import losses, metadata, sources
from builders.cost import JOULES_PER_KWH
from builders.energy import Counter, Spent, counter_of, spent
from builders.progress import duration, rate
from builders.recipe import Recipe
from builders.state import TrainingState
from builders.train import Trainer, choose_engine, default_unit_size, device_kind, open_trainer
from ckptzoo.console import facts
from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.predictions import DTYPE
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import counted, printable, size

WARM_UP = 2
"""Steps that are taken first and not counted: an engine is compiled, memory is allocated."""
SECONDS = 3.0
"""Seconds for which steps are taken."""
_MEASURED_MEMBERS = 8
"""Members a core that are measured together; ``Trainer.measure`` takes as many."""
_MEASURED_EXAMPLES = 64
"""Examples of each half on which networks are measured first where one is trained at a time."""
_PART_BYTES, _ROW_BYTES = 18_000, 55
"""Approximate metadata and index of a part, and of each checkpoint in it; measured on zoos of 64 to 10,000 networks."""


@dataclass(frozen=True)
class Estimate:
    """The time and disk space of a build.

    ``parameter_bytes`` and ``output_bytes`` are those of the weights and of the stored outputs of one checkpoint.
    ``member_steps`` are the optimiser steps of all members together; ``measuring`` is the seconds that the checkpoints'
    losses and accuracies take. ``unit_members`` are the members of a unit; ``devices`` such as this one train units
    side by side, and an hour of one has the ``price``, in any currency. None means unknown.
    """

    recipe: str
    device: str
    engine: str
    members: int
    checkpoints: int
    parameter_bytes: int
    member_steps: int
    steps_per_second: float
    measuring: float | None = None
    joules_per_step: float | None = None
    output_bytes: int = 0
    unit_members: int | None = None
    devices: int = 1
    price: float | None = None

    @classmethod
    def of(
        cls,
        trainer: Trainer,
        engine: str,
        members: int,
        checkpoints: int,
        steps_per_second: float,
        *,
        measuring: float | None = None,
        joules_per_step: float | None = None,
        examples: int = 0,
        name: str | None = None,
        steps: int | None = None,
    ) -> "Estimate":
        """Estimate a number of members, with this number of checkpoints each, at a measured speed. ``name`` and
        ``steps`` of each member are those of the trainer's recipe where they are not given.
        """
        recipe = trainer.recipe
        return cls(
            name or recipe.prefix,
            metadata.device_name(str(trainer.data_source.device)),
            engine,
            members,
            members * checkpoints,
            recipe.arch.nbytes,
            members * (recipe.steps if steps is None else steps),
            steps_per_second,
            measuring,
            joules_per_step,
            examples * losses.get(recipe.loss).outputs(trainer.source.half("train")[1]) * ITEMSIZE[DTYPE],
        )

    @property
    def device_hours(self) -> float:
        """Hours of a device for training alone, as ``builders.cost`` counts them."""
        return self.member_steps / self.steps_per_second / 3600

    @property
    def hours(self) -> float:
        """Hours from beginning to end: training and, where it is known, measuring."""
        return self.device_hours + (self.measuring or 0.0) / 3600

    @property
    def elapsed_hours(self) -> tuple[float, float]:
        """The least and the most hours that the devices take together, where each takes the next unit when it is free.

        With the work W of all units on one device and the longest unit p, N devices take at least W / N and at most
        W / N + (1 - 1 / N) p (Graham, "Bounds for certain multiprocessing anomalies", 1966). Start-up is not counted.
        """
        least = self.hours / self.devices
        unit = self.hours * min(1.0, (self.unit_members or self.members) / self.members)
        return least, least + (1 - 1 / self.devices) * unit

    @property
    def money(self) -> tuple[float, float] | None:
        """The price of the devices while they train, and the price of all of them to the end at the latest."""
        return (
            None if self.price is None else (self.price * self.hours, self.price * self.devices * self.elapsed_hours[1])
        )

    @property
    def disk_bytes(self) -> int:
        """Approximate bytes during the build: the zoo, the units' files until they are merged, and saved states."""
        # a state holds the weights and as many numbers of momentum
        states = self.devices * (self.unit_members or self.members) * 2 * self.parameter_bytes
        return 2 * self.nbytes + states

    @property
    def members_per_device_hour(self) -> float:
        """Members that a device trains from beginning to end in an hour."""
        return self.members / self.device_hours

    @property
    def kilowatt_hours(self) -> float | None:
        """Kilowatt-hours of training alone."""
        return None if self.joules_per_step is None else self.joules_per_step * self.member_steps / JOULES_PER_KWH

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the new part: raw weights, metadata, index, and the outputs that are stored too."""
        return self.checkpoints * (self.parameter_bytes + _ROW_BYTES + self.output_bytes) + _PART_BYTES

    @property
    def _hourly(self) -> str:
        return f"{rate(self.members_per_device_hour)} members"

    def to_json(self) -> dict[str, Any]:
        derived = ("hours", "device_hours", "members_per_device_hour", "kilowatt_hours", "nbytes")
        derived += ("elapsed_hours", "money", "disk_bytes")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def line(self) -> str:
        """Return what is known when a build has begun, in one sentence."""
        what = f"{counted(self.members, 'member')} on {self.device} with {self.engine}"
        speed = f"{self._hourly} a device-hour, {rate(self.steps_per_second)} member-steps a second"
        return printable(
            f"{what}: about {duration(3600 * self.device_hours)} of training, {size(self.nbytes)} ({speed})"
        )

    def print(self, console: Console | None = None) -> None:
        measuring = "" if self.measuring is None else f", of which {duration(self.measuring)} measuring"
        rows = [
            ("recipe", self.recipe),
            ("device, engine", f"{self.device}, {self.engine}"),
            ("members", f"{self.members:,} ({counted(self.checkpoints, 'checkpoint')})"),
            ("speed", f"{rate(self.steps_per_second)} member-steps a second"),
            ("time", f"{duration(3600 * self.hours)} ({self.hours:,.3g} hours{measuring})"),
            ("training", f"{self.device_hours:,.3g} device-hours, {self._hourly} a device-hour"),
            ("size", f"{size(self.nbytes)}, about; {size(self.disk_bytes)} of disk while it is built"),
        ]
        if self.devices > 1:
            least, most = (duration(3600 * hours) for hours in self.elapsed_hours)
            rows.append((f"on {self.devices:,} devices", f"{least} to {most}"))
        if (money := self.money) is not None:
            rows.append(("price", f"{money[0]:,.2f} to {money[1]:,.2f}"))
        if self.output_bytes:
            outputs = size(self.checkpoints * self.output_bytes)
            rows.append(("predictions", f"{outputs} of these; their forward passes are not timed"))
        if (energy := self.kilowatt_hours) is not None:
            rows.append(("energy", f"{energy:,.3g} kWh"))
        (console or Console()).print(facts(rows), highlight=False)


def estimate(
    recipe: Recipe | str | Path,
    *,
    members: int,
    folder: str | Path | None = None,
    keep_steps: Sequence[int] = (),
    epochs: int | None = None,
    device: str = "cpu",
    unit_size: int | None = None,
    engine: str | None = None,
    threads: int | None = None,
    examples: int = 0,
    devices: int = 1,
    price: float | None = None,
    seconds: float = SECONDS,
) -> Estimate:
    """Train one unit for a few seconds, measure some of it, and report what ``builders.build.build`` would take.

    Nothing is written. The timed steps are the first of a build. Members of a unit are measured on the whole data set,
    more and more of them until that takes a second; with an engine that trains one member at a time, one member for
    each worker, on as many examples as take a second.

    Raises ZooError as in ``builders.build.build``.

    Arguments are those of ``builders.build.build``. ``examples`` are inputs on which the outputs of every checkpoint
    are stored too, in float16, which is not timed; ``devices`` such as this one work side by side, and ``price`` is
    that of an hour of one. Steps are taken for ``seconds``; compiling comes before, and measuring after.
    """
    require_at_least(members=members, unit_size=unit_size, threads=threads, devices=devices)
    require_at_least(0, examples=examples)
    recipe = Recipe.of(recipe, epochs)
    checkpoints = len(recipe.steps_to_keep(keep_steps))
    engine_name = choose_engine(recipe, device_kind(device), engine)
    source = sources.load(recipe, folder)
    seeds = range(min(members, unit_size or default_unit_size(source, device, engine_name, threads)))
    with (
        open_trainer(recipe, source, device=device, engine=engine_name, threads=threads) as trainer,
        counter_of(device) as counter,
    ):
        timed = time_steps(trainer, lambda: trainer.start(seeds), recipe.steps, counter, seconds)
        seconds_per_checkpoint = time_measuring(trainer, timed.state)
    result = Estimate.of(
        trainer,
        engine_name,
        members,
        checkpoints,
        timed.steps_per_second,
        measuring=seconds_per_checkpoint * members * checkpoints,
        joules_per_step=timed.joules_per_step,
        examples=examples,
    )
    return replace(result, unit_members=len(seeds), devices=devices, price=price)


def require_at_least(minimum: int = 1, **values: int | None) -> None:
    """Refuse numbers that are too small."""
    for name, value in values.items():
        if value is not None and value < minimum:
            what = name.replace("_", " ")
            raise ZooError(Problem("build", what, f"at least {minimum}", str(value), "Give a larger one."))


@dataclass(frozen=True, eq=False)
class TimedSteps:
    """Steps that were timed: those of all members together, their time and energy, and the ``state`` at their end."""

    state: TrainingState
    member_steps: int
    spent: Spent

    @property
    def steps_per_second(self) -> float:
        """Member-steps a second."""
        return self.member_steps / self.spent.seconds

    @property
    def joules_per_step(self) -> float | None:
        """Joules of one step of one member; None where unknown."""
        return None if self.spent.joules is None else self.spent.joules / self.member_steps


def time_steps(
    trainer: Trainer, start: Callable[[], TrainingState], steps: int, counter: Counter, seconds: float = SECONDS
) -> TimedSteps:
    """Take steps for some seconds, beginning again where a state has taken all of its ``steps``. The first ``WARM_UP``
    steps are not timed, because they include one-time costs.
    """
    if steps > WARM_UP:
        trainer.advance(start(), WARM_UP)
    taken, total, state, span = 0, Spent(), start(), min(trainer.first_span, steps)
    while total.seconds < seconds:
        first = state.step
        stop = min(steps, first + span)
        used = spent(lambda state=state, stop=stop: trainer.advance(state, stop), counter)
        taken, total = taken + (stop - first) * len(state), total + used
        # at most a third of the time, so that three spans are timed; 1e-6: the clock may not have moved
        span = max(1, round((stop - first) * min(1.0, seconds / 3) / max(used.seconds, 1e-6)))
        if stop == steps:
            state = start()
    return TimedSteps(state, taken, total)


def time_measuring(trainer: Trainer, state: TrainingState) -> float:
    """Return the seconds that it takes to measure a checkpoint. More and more members are measured; where one is
    trained at a time, one by each worker, on more and more examples.
    """
    sizes = [len(trainer.source.half(half)[1]) for half in ("train", "test")]
    count, limit = min(len(state), _MEASURED_MEMBERS * trainer.threads), max(sizes)
    if trainer.one_at_a_time:
        count, limit = min(len(state), trainer.threads), min(limit, _MEASURED_EXAMPLES)
    while True:
        began = time.monotonic()
        trainer.measure({name: tensor[:count] for name, tensor in state.weights.items()}, limit)
        took = time.monotonic() - began
        # below a second the start of threads and of kernels counts too much
        if took >= 1 or (count == len(state) and limit == max(sizes)):
            # in proportion to the examples, where only some were measured
            return took / count * sum(sizes) / sum(min(size, limit) for size in sizes)
        if limit == max(sizes):
            count = min(len(state), 4 * count)
        limit = min(max(sizes), 4 * limit)
