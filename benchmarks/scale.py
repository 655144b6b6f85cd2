"""What each verb costs as a zoo grows: seconds, memory, and over HTTP requests and bytes.

Each zoo has tiny weights, and the columns and values that the builders write; it is made by the writer, in
parts of ``ROWS_A_PART`` rows. Each verb runs in a process of its own, which has opened the zoo before the clock starts;
memory is the largest anonymous memory of that process. Over HTTP the same zoo lies on a ``ckptzoo serve``, behind a
relay that counts, and nothing is cached. Then zoos of one-row parts. Sizes beyond the largest that is measured are
reckoned on the line through the two largest.

``--rows 1e5 --remote 1e5 --parts 100`` takes three minutes. The folder takes 170 bytes a row.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ckptzoo
from benchmarks.figures import Figure, figure, machine, turns, write
from benchmarks.mmd_contenders import Watch

ROOT = Path(__file__).resolve().parent.parent
ROWS_A_PART, BATCH, UNIT = 2**17, 4096, 64
REACH = (10**7, 10**8)
"""Sizes that are reckoned where they are not measured."""
FAR = 100
"""Times the largest size that is measured: nothing beyond is reckoned."""
SLOW_SECONDS = 20.0
"""A verb that takes longer runs once."""
ZOO, SPLIT = "lab/scale", "main"
ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("a", (4,)),))
SAME: dict[str, Any] = {
    "step": 56_280, "epoch": 60.0, "recipe": "mnist-optunet", "recipe_digest": f"sha256:{'2c' * 32}",
    "builder": "ckptzoo 0.1.0", "commit": "9e2a231" * 5, "dataset": "mnist", "dataset_digest": f"sha256:{'ab' * 32}",
    "diverged": False, "wall_seconds": 1.25, "device": "cpu", "precision": "float32", "license": "CC-BY-4.0",
    "created": datetime(2026, 1, 1, tzinfo=UTC),
    "extra": {"engine": "compiled", "optimizer": "sgd", "lr": 0.05, "mean": [0.1307], "std": [0.3081], "batch": 64},
}  # fmt: skip
"""What all rows of a build have in common."""
MEASURES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "test_nll", "test_brier", "test_ece")
Spent = dict[str, Any]
Act = Callable[[], object]


def added(writer: Any, start: int, stop: int, unit: int) -> None:
    """Add rows to a writer, ``BATCH`` at a time, in units of ``BATCH`` rows."""
    rng = np.random.default_rng(start)
    for first in range(start, stop, BATCH):
        numbers = range(first, min(stop, first + BATCH))
        weights = np.repeat(np.asarray(numbers, np.float32)[:, None], 4, axis=1)
        rows = [
            {
                **SAME,
                **dict(zip(MEASURES, values, strict=True)),
                "id": f"mnist-optunet-2cdbd75c-{number:08d}-056280",
                "member": f"mnist-optunet-2cdbd75c-{number:08d}",
                "unit": f"mnist-optunet-2cdbd75c-{number // unit * unit:08d}-{unit:06d}",
                "seed": number,
            }
            for number, values in zip(numbers, rng.random((len(numbers), len(MEASURES))).tolist(), strict=True)
        ]
        writer.add({"a": weights}, rows)


def made(folder: str, rows: int, rows_a_part: int) -> None:
    """Make a zoo; one that is there already gets these rows more."""
    path = Path(folder)
    held = len(ckptzoo.open(path)) if path.exists() else 0
    writer = ckptzoo.append(path) if held else ckptzoo.create(path, arch=ARCH)
    for start in range(held, held + rows, rows_a_part):
        added(writer, start, min(held + rows, start + rows_a_part), min(UNIT, rows_a_part))
        writer.commit()


def streamed(zoo: Any, batches: int | None, **options: Any) -> int:
    """Take batches of a stream; how many checkpoints came."""
    count = 0
    for number, batch in enumerate(zoo.stream("a", **options), start=1):
        count += len(batch)
        if number == batches:
            break
    return count


def inventory(zoo: Any) -> object:
    """What ``ckptzoo info`` prints."""
    from ckptzoo.studies.inventory import inventory as taken

    return taken(zoo)


READS: dict[str, Callable[[Any], object]] = {
    "where test_accuracy > 0.9": lambda zoo: len(zoo.where("test_accuracy > 0.9")),
    "where recipe == ... and seed < 1000": lambda zoo: len(zoo.where("recipe == 'mnist-optunet' and seed < 1000")),
    "where extra.lr == 0.05": lambda zoo: len(zoo.where("extra.lr == 0.05")),
    "zoo[i], weights and row": lambda zoo: (zoo[len(zoo) // 2]["a"], zoo[len(zoo) // 2].row["id"]),
    "zoo[name], one layer of everyone": lambda zoo: np.asarray(zoo["a"]),
    "stream, in order, all rows": lambda zoo: streamed(zoo, None, batch_size=BATCH),
    "stream, shuffled, 50 batches of 256": lambda zoo: streamed(zoo, 50, batch_size=256, shuffle=True),
    "last_steps": lambda zoo: len(zoo.last_steps()),
    "split, one of three parts": lambda zoo: len(zoo.split(SPLIT, "train")),
    "info": inventory,
}
"""What is asked of an open zoo."""
ON_PATHS: dict[str, Callable[[str], object]] = {
    "open": ckptzoo.open,
    "open without a snapshot": ckptzoo.open,
    "compact": ckptzoo.compact,
    "verify": ckptzoo.verify,
    "append one row": lambda path: made(path, 1, 1),
}
REMOTE = ("open", *(name for name in READS if not name.startswith(("stream, in order", "info"))))
"""Verbs that are measured over HTTP."""


def prepared(verb: str, place: str, endpoint: str | None) -> Act:
    """A verb whose zoo is open, and the act that is timed."""
    kind, *sizes = verb.split("/")
    if kind == "make":
        rows, rows_a_part = map(int, sizes)
        return lambda: made(place, rows, rows_a_part)
    if verb in READS:
        zoo = ckptzoo.open(place) if endpoint is None else ckptzoo.open(place, endpoint=endpoint)
        return lambda: READS[verb](zoo)
    if endpoint is not None:
        return lambda: ckptzoo.open(place, endpoint=endpoint)
    return lambda: ON_PATHS[verb](place)


def answer(verb: str, place: str, endpoint: str | None) -> None:
    """The process of a verb: say when it is ready, wait, act, print what was spent."""
    act = prepared(verb, place, endpoint)
    print("ready", flush=True)
    sys.stdin.readline()
    with Watch() as watch:
        began, worked = time.perf_counter(), time.process_time()
        act()
        seconds, processor = time.perf_counter() - began, time.process_time() - worked
    print(json.dumps({"seconds": seconds, "processor": processor, "memory": watch.peak}), flush=True)


def spent(verb: str, place: Path | str, endpoint: str | None = None, counted: Callable[[], Any] | None = None) -> Spent:
    """What a verb takes in a process of its own.

    Parameters
    ----------
    counted
        Says what went over a link since it was last asked.
    """
    command = [sys.executable, "-m", "benchmarks.scale", "--run", verb, str(place), *([endpoint] if endpoint else [])]
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        environment = {**os.environ, "CKPTZOO_CACHE": cache, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        child = stack.enter_context(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        if counted is not None:
            counted()
        child.stdin.write("go\n")
        child.stdin.flush()
        said = child.stdout.read().splitlines()
        if child.wait():
            raise RuntimeError(f"{verb}: expected an end with 0, got {child.returncode}; its message is above.")
        link = {} if counted is None else asdict(counted())
    return {**json.loads(said[-1]), **link}


def local(folder: Path, rows: int, repeats: int) -> Iterator[tuple[str, list[Spent]]]:
    """Measure every verb on a zoo of ``rows`` rows, which stays in the folder."""
    zoo = folder / "zoo"
    yield "write", [spent(f"make/{rows}/{ROWS_A_PART}", zoo)]
    yield "open without a snapshot", [spent("open without a snapshot", zoo) for _ in range(repeats)]
    yield "compact", [spent("compact", zoo)]
    ckptzoo.make_split(zoo, SPLIT)
    verbs = ["open", *READS, "verify"]
    found: dict[str, list[Spent]] = {verb: [] for verb in verbs}
    for verb in turns(verbs, repeats):
        if not found[verb] or found[verb][0]["seconds"] < SLOW_SECONDS:
            found[verb].append(spent(verb, zoo))
    yield from found.items()


def of_parts(folder: Path, parts: int, repeats: int) -> Iterator[tuple[str, list[Spent]]]:
    """A zoo of one-row parts."""
    zoo = folder / "parts"
    yield "write, all parts in one process", [spent(f"make/{parts}/1", zoo)]
    for verb in ("open without a snapshot", "verify"):
        yield verb, [spent(verb, zoo) for _ in range(repeats)]
    yield "compact", [spent("compact", zoo)]
    yield "open", [spent("open", zoo) for _ in range(repeats)]
    yield "append one row", [spent("append one row", zoo) for _ in range(repeats)]
    shutil.rmtree(zoo)


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """A hub behind a relay without delay: its address, a token that may write, and what says what went over it."""
    from benchmarks.remote_material import hub
    from benchmarks.remote_relay import Relay

    with hub(folder / "hub") as (port, token), Relay((port,)) as relay:
        yield f"http://127.0.0.1:{relay.ports[0]}", token, relay.counted


def remote(folder: Path) -> Iterator[tuple[str, list[Spent]]]:
    """Verbs over HTTP on the zoo in the folder: requests and bytes do not differ from run to run."""
    with served(folder) as (url, token, counted):
        ckptzoo.push(folder / "zoo", ZOO, endpoint=url, token=token)
        for verb in REMOTE:
            yield verb, [spent(verb, ZOO, url, counted)]


def reckoned(rows: Sequence[int], values: Sequence[float], at: int) -> float:
    """The value on the line through the two largest sizes, and not less than the last."""
    (one, first), (two, last) = sorted(zip(rows, values, strict=True))[-2:]
    return max(last, last + (last - first) * (at - two) / (two - one))


def figures(found: dict[str, dict[int, dict[str, list[Spent]]]]) -> Iterator[Figure]:
    """Seconds, memory, requests and bytes, by verb and size; sizes of ``REACH`` beyond all others are reckoned."""
    tables = (
        ("rows", "seconds", "seconds", "s", "rows"),
        ("rows", "processor", "processor", "s", "rows"),
        ("rows", "memory", "memory", "bytes", "rows"),
        ("remote", "requests", "requests", "requests", "rows"),
        ("remote", "received", "received", "bytes", "rows"),
        ("parts", "parts", "seconds", "s", "parts"),
        ("parts", "parts processor", "processor", "s", "parts"),
    )
    for kind, table, key, unit, of in tables:
        sizes = sorted(found[kind])
        for size in sizes:
            for verb, runs in found[kind][size].items():
                column = f"{size:,} {of if size > 1 else of[:-1]}"
                yield figure(table, verb, column, [run[key] for run in runs], unit)
        beyond = [at for at in REACH if of == "rows" and len(sizes) > 1 and sizes[-1] < at <= FAR * sizes[-1]]
        for at in beyond:
            for verb in found[kind][sizes[-1]]:
                values = [median(run[key] for run in found[kind][size][verb]) for size in sizes]
                yield figure(table, verb, f"{at:,} rows, reckoned", [reckoned(sizes, values, at)], unit)


def keep(path: Path, found: dict[str, dict[int, dict[str, list[Spent]]]]) -> None:
    """Write what is measured so far."""
    write(path, list(figures(found)), {"machine": machine(ROOT), "found": found})


def size(text: str) -> int:
    """A number of rows such as ``1e5``."""
    return int(float(text))


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", type=size, default=[10**power for power in range(3, 8)], help="1e3 to 1e7")
    parser.add_argument("--remote", nargs="*", type=size, default=[10**3, 10**5, 10**6], help="of --rows, over HTTP")
    parser.add_argument("--parts", nargs="*", type=size, default=[1, 100, 1000], help="one-row parts (1 100 1000)")
    parser.add_argument("--repeats", type=int, default=3, help="of verbs that take less than 20 s (3)")
    parser.add_argument("--folder", type=Path, help="where to make the scratch folder (default: zoos/)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "scale.json", help="where figures go")
    parser.add_argument("--run", nargs="+", metavar=("VERB", "PLACE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        answer(chosen.run[0], chosen.run[1], chosen.run[2] if len(chosen.run) > 2 else None)
        return
    if chosen.repeats < 1 or min([*chosen.rows, *chosen.parts], default=1) < 1:
        parser.error("--rows, --parts and --repeats: expected more than 0.")
    scratch = chosen.folder or ROOT / "zoos"
    scratch.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[int, dict[str, list[Spent]]]] = {"rows": {}, "remote": {}, "parts": {}}
    for rows in sorted(chosen.rows):
        with tempfile.TemporaryDirectory(prefix="bench-scale-", dir=scratch) as folder:
            found["rows"][rows] = printed(f"{rows:,} rows", local(Path(folder), rows, chosen.repeats))
            if rows in chosen.remote:
                found["remote"][rows] = printed(f"{rows:,} rows over HTTP", remote(Path(folder)))
        # the largest may take an hour: what is measured is kept where it does not end
        keep(chosen.json, found)
    for parts in sorted(chosen.parts):
        with tempfile.TemporaryDirectory(prefix="bench-scale-", dir=scratch) as folder:
            found["parts"][parts] = printed(f"{parts:,} parts", of_parts(Path(folder), parts, chosen.repeats))
        keep(chosen.json, found)


def printed(title: str, steps: Iterator[tuple[str, list[Spent]]]) -> dict[str, list[Spent]]:
    """Return what the steps found, and print it as it comes."""
    found: dict[str, list[Spent]] = {}
    for verb, runs in steps:
        found[verb] = runs
        seconds, processor, memory = (median(run[key] for run in runs) for key in ("seconds", "processor", "memory"))
        link = f", {runs[0]['requests']} requests, {runs[0]['received'] / 1e3:,.0f} kB" if "requests" in runs[0] else ""
        line = f"{title}: {verb}: {seconds:,.4g} s, {processor:,.4g} s of processors, {memory / 1e6:,.0f} MB{link}"
        print(line, flush=True)
    return found


if __name__ == "__main__":
    main()
