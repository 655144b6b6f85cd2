"""The quickstart: train OptuNets on handwritten digits, derive, verify, stream them back, draw, and compare."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import ckptzoo
from builders import data
from builders.build import build, write_page
from builders.recipe import Recipe
from ckptzoo.derive import derive
from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.studies import mmd
from ckptzoo.studies.discrepancy import Discrepancy
from ckptzoo.studies.marginals import marginals
from ckptzoo.studies.overview import overview

RECIPE = "digits-optunet"
GAUGE = "canonical"
BATCH = 64
LEAST_MEMBERS = 4
"""The smallest number of members: two halves of them are compared, and a sample of MMD needs two."""
_T = TypeVar("_T")


@dataclass
class _Steps:
    """The steps that were done, with their amount and their time."""

    console: Console
    rows: list[tuple[str, str, float, str]] = field(default_factory=list)

    def run(self, name: str, work: Callable[[], _T], describe: Callable[[_T, float], tuple[str, str]]) -> _T:
        """Do one step and note its result and speed."""
        self.console.print(f"[bold]{name}[/bold]")
        started = time.perf_counter()
        outcome = work()
        seconds = time.perf_counter() - started
        what, speed = describe(outcome, seconds)
        self.rows.append((name, what, seconds, speed))
        return outcome

    def table(self) -> Table:
        table = Table(title="What was done", title_justify="left", box=None, pad_edge=False)
        table.add_column("step")
        table.add_column("what", overflow="fold")
        table.add_column("seconds", justify="right")
        table.add_column("speed", justify="right")
        for name, what, seconds, speed in self.rows:
            table.add_row(name, what, f"{seconds:.2f}", speed)
        return table


def run(*, members: int, to: str | Path, console: Console | None = None) -> None:
    """Make a zoo of ``members`` OptuNets in the folder ``to`` and show its content; pictures go to ``<to>-pictures``.

    Raises ZooError: fewer than ``LEAST_MEMBERS`` members; nothing is trained. Raises IntegrityError: verification found
    problems.
    """
    if members < LEAST_MEMBERS:
        expected, step = f"{LEAST_MEMBERS} or more, because two halves are compared", "Choose another number."
        raise ZooError(Problem("quickstart", "members", expected, str(members), step))
    console = console or Console()
    recipe, root = Recipe.load(RECIPE), Path(to)
    steps = _Steps(console)
    _write(steps, recipe, root, members)
    zoo = steps.run(
        "open",
        lambda: ckptzoo.open(root),
        lambda zoo, seconds: (f"{len(zoo):,} checkpoints", f"{1e3 * seconds:.1f} ms"),
    )
    for layer in zoo.layers:
        steps.run(
            f"stream {layer}",
            lambda layer=layer: _streamed(zoo, layer),
            lambda nbytes, seconds, layer=layer: (
                f"{', '.join(zoo.layers[layer])}, raw and {GAUGE}, shuffled",
                f"{nbytes / seconds / 1e6:,.0f} MB/s",
            ),
        )
    pictures = root.with_name(f"{root.name}-pictures")
    summary = overview(zoo, GAUGE)
    files = steps.run("draw", lambda: summary.plot(pictures), lambda result, _: (f"{len(result)} files", ""))
    compared = steps.run(
        "mmd", lambda: _compared(zoo), lambda result, _: (f"{len(result)} comparisons of two halves", "")
    )
    studied = steps.run(
        "marginals", lambda: marginals(zoo, GAUGE), lambda result, _: ("within and across orbits of permutations", "")
    )
    files += compared[-1].plot(pictures / "mmd") + studied.plot(pictures / "marginals")
    console.print()
    summary.print(console)
    console.print()
    console.print(steps.table())
    console.print()
    console.print(_discrepancies(compared))
    console.print()
    studied.print(console)
    console.print()
    for file in files:
        console.print(str(file), highlight=False, soft_wrap=True)
    console.print(
        f"\nNext: ckptzoo info {quote(str(root))}, or ckptzoo.open({str(root)!r}) in Python.",
        highlight=False,
        soft_wrap=True,
    )


def _write(steps: _Steps, recipe: Recipe, root: Path, members: int) -> None:
    """Train the members, derive their variant, write the page and verify the zoo."""
    console = steps.console
    steps.run(
        "train",
        lambda: build(recipe, root, members=members, console=console),
        lambda built, _: (
            f"{built.members:,} OptuNets, {recipe.epochs} epochs on {recipe.train:,} digits",
            f"{built.member_steps / max(built.seconds, 1e-9):,.0f} member-steps/s" if built.member_steps else "",
        ),
    )
    images = data.inputs(recipe, data.load(recipe).test_images[:BATCH])
    with _bar(console, "checkpoints") as bar:
        task = bar.add_task("derive", total=None)
        steps.run(
            "derive",
            lambda: derive(
                root,
                gauge=GAUGE,
                inputs=images,
                progress=lambda done, all_: bar.update(task, completed=done, total=all_),
            ),
            lambda result, seconds: (
                f"{result.checkpoints:,} checkpoints in {GAUGE}, largest difference of outputs {_worst(root)}",
                f"{result.checkpoints / seconds:,.0f} checkpoints/s",
            ),
        )
    write_page(root)
    with _bar(console, "bytes") as bar:
        task = bar.add_task("verify", total=None)
        problems = steps.run(
            "verify",
            lambda: ckptzoo.verify(root, progress=lambda done, all_: bar.update(task, completed=done, total=all_)),
            lambda problems, seconds: (
                f"{len(problems)} problems in {_size(root) / 1e6:.1f} MB",
                f"{_size(root) / seconds / 1e6:,.0f} MB/s",
            ),
        )
    if problems:
        raise IntegrityError(problems)


def _streamed(zoo: ckptzoo.Zoo, layer: str) -> int:
    """Stream a layer of all members, raw and derived, and look at every number; return the bytes."""
    total = 0
    for variant in ("raw", GAUGE):
        for batch in zoo.stream(layer, variant=variant, batch_size=BATCH, shuffle=True, seed=0):
            # the sum reads every number: of a memory map nothing else would be read
            total += sum(tensor.nbytes for tensor in batch.tensors.values() if not np.isnan(tensor.sum()))
    return total


def _compared(zoo: ckptzoo.Zoo) -> list[Discrepancy]:
    """Compare one half of the members with the other: as trained, in the gauge, and as trained against the gauge."""
    even, odd = zoo.take(slice(0, None, 2)), zoo.take(slice(1, None, 2))
    return [mmd(even, odd, left, right) for left, right in (("raw", "raw"), (GAUGE, GAUGE), ("raw", GAUGE))]


def _discrepancies(compared: list[Discrepancy]) -> Table:
    """Return the comparisons side by side, a layer a row."""
    title = "100 x MMD^2, one half of the members against the other"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("layer")
    for item in compared:
        table.add_column(" against ".join(dict.fromkeys((item.x.variant, item.y.variant))), justify="right")
    for number, layer in enumerate(compared[0].layers):
        table.add_row(layer.name, *(f"{100 * item.layers[number].median:.2f}" for item in compared))
    table.add_row("all layers, by parameters", *(f"{100 * item.median:.2f}" for item in compared))
    return table


def _worst(root: Path) -> str:
    """Return the largest certificate of the variant."""
    zoo = ckptzoo.open(root)
    table = zoo.variant_metadata(GAUGE)
    values = [
        value
        for column in ("certificate_random", "certificate_real")
        for value in table[column].to_pylist()
        if value is not None
    ]
    return f"{max(values):.1e}" if values else "not measured"


def _size(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def _bar(console: Console, unit: str) -> Progress:
    """Return a progress bar that goes away when it is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}} {unit}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)
