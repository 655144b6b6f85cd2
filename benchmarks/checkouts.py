"""Tasks of a benchmark timed in this checkout and in another one, in turns, by a process of each.

A benchmark that takes ``--beside CHECKOUT`` has ``TASKS``: functions by name that prepare a task and return a function
that does it once. The module, and all of ``benchmarks``, is this checkout's in both processes; the ckptzoo that it
imports is that of each.
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import ratios, turns

ROOT = Path(__file__).resolve().parent.parent
Task = Callable[[], Callable[[], object]]
_WORKER = """
import importlib.util, os.path, sys, types
package = sys.modules["benchmarks"] = types.ModuleType("benchmarks")
package.__path__ = [os.path.dirname(sys.argv[1])]
spec = importlib.util.spec_from_file_location("checkouts", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.answer(sys.argv[2])
"""


@dataclass
class Timed:
    """Seconds of one task in each checkout, wall clock and processor, one of each a repeat."""

    name: str
    wall: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    processor: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def ratios(self) -> list[float]:
        """Processor seconds of this checkout over the other's, repeat by repeat."""
        return ratios(*self.processor)


def answer(path: str) -> None:
    """Do the tasks whose names come on standard input, and print the seconds of each."""
    spec = importlib.util.spec_from_file_location("tasks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tasks"] = module
    spec.loader.exec_module(module)
    prepared: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in prepared:
            prepared[name] = module.TASKS[name]()
            prepared[name]()
        began, worked = time.perf_counter(), time.process_time()
        prepared[name]()
        print(json.dumps([time.perf_counter() - began, time.process_time() - worked]), flush=True)


def compare(module: Path, names: Sequence[str], checkout: Path, repeats: int) -> list[Timed]:
    """Time tasks in this checkout and in another, in random order within each repeat; the first run of each warms up.

    Parameters
    ----------
    module
        The file that has ``TASKS``.
    names
        Of the tasks.
    checkout
        The other checkout's folder.
    repeats
        Of each task in each checkout.
    """
    found = [Timed(name) for name in names]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _WORKER, __file__, str(module.resolve())],
                    cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for folder in (ROOT, checkout.resolve())
        ]  # fmt: skip
        for timed in found:
            for which in turns(range(len(workers)), repeats):
                wall, processor = _asked(workers[which], timed.name)
                timed.wall[which].append(wall)
                timed.processor[which].append(processor)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
    return found


def _asked(worker: subprocess.Popen[str], name: str) -> tuple[float, float]:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(f"{name}\n")
    worker.stdin.flush()
    said = worker.stdout.readline()
    if not said:
        raise RuntimeError(f"{name}: the process in {worker.args!r} ended with {worker.wait()}")
    wall, processor = json.loads(said)
    return wall, processor


def show(found: Sequence[Timed], checkout: Path, repeats: int) -> None:
    """Print a table of medians with lowest and highest, and of the ratio of processor times."""
    table = Table(
        title=f"this checkout and {checkout.name}, medians of {repeats} alternated runs", title_justify="left"
    )
    for column in ("task", "here, ms", f"{checkout.name}, ms", "processor here, ms", f"{checkout.name}, ms", "ratio"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for timed in found:
        times = [_spread([1e3 * value for value in values]) for values in (*timed.wall, *timed.processor)]
        table.add_row(timed.name, *times, _spread(timed.ratios, 3))
    Console(width=180).print(table)


def _spread(values: Sequence[float], digits: int = 1) -> str:
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:,.{digits}f} [{low:,.{digits}f}-{high:,.{digits}f}]"
