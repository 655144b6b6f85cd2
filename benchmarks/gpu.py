"""The rare day with a GPU: measures, tests and trains for some minutes, and brings back a few small files.

Nothing is installed and nothing is fetched. Each step is a process of its own with a time limit, whose whole output is
a log and whose result is one file; a later call with the same folders carries on behind what is finished. Where ResNets
are to be trained, measuring stops at 80 % of the time; ``--stages facts,tests`` chooses. Everything is kept in
``--work``; what is worth most of it is packed into OUT after every step, within ``--max-file``, ``--max-files`` and
``--max-total``, for where a machine gives back only a few small files: ``results.json`` to read, and tar files.
"""

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_files import Item, byte_count, join, pack, unpack, write_json

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("facts", "tests", "optunets", "optunet", "resnet", "resnets")
TRAINING = ("optunets", "resnets")
MEASURING_SHARE = 0.8
"""The share of the time after which measuring stops where ResNets are trained in the same call."""
_EARLY, _SAVING, _PACKING = 20.0, 10.0, 4.0
"""Seconds: how early the whole ends, what a stage has to save its state, and what packing takes."""
_LOG_BYTES = 2**20
_BASE = ("torch", "numpy", "pyarrow", "safetensors", "ml_dtypes", "array_api_compat", "rich", "typer")
"""What ``builders`` imports."""
_RESERVE = 2**19
"""Bytes kept free for ``results.json``."""


@dataclass(frozen=True)
class Step:
    """A process of a stage.

    Parameters
    ----------
    name
        of its files; it begins with the stage's.
    stage
        one of ``STAGES``.
    command
        behind the interpreter's name.
    limit
        seconds after which it is asked to stop; None for all there are.
    packages
        that it imports.
    dataset
        that it needs.
    """

    name: str
    stage: str
    command: tuple[str, ...]
    limit: float | None
    packages: tuple[str, ...] = _BASE
    dataset: str | None = None


def steps(device: str, members: int | None, precision: str) -> Iterator[Step]:
    """Everything, in the order in which it is done; on a CPU with sizes that show that it runs."""
    trial = device == "cpu"
    own = ("-m", "benchmarks.gpu_stages")
    yield Step("facts", "facts", (*own, "facts"), 40, ("torch", "numpy"))
    testing = ("torch", "numpy", "ml_dtypes", "pytest", "hypothesis")
    yield Step("tests", "tests", (*own, "tests"), 150, testing)
    yield Step(
        "optunets",
        "optunets",
        (*own, "optunets", "--members", str(members or (64 if trial else 8192))),
        None,
        dataset=None if trial else "mnist",
    )
    train = ("-m", "benchmarks.train", "--repeats", "1" if trial else "3", "--seconds", "0.05" if trial else "0.4")
    if trial:
        yield Step("optunet-fused", "optunet", (*own, "fused"), 90, (*_BASE, "triton"))
        engines = ("--engines", "optunet", "general", "--members", "4")
        yield Step("optunet-cpu", "optunet", (*train, *engines), 90)
    else:
        for engine, counts in (
            ("fused", ("1", "128", "1024", "8192")),
            ("optunet", ("1", "64", "1024", "8192")),
            ("general", ("64",)),
            ("single-graph", ("1",)),
            ("single", ("1",)),
        ):
            packages = (*_BASE, "triton") if engine == "fused" else _BASE
            command = (*train, "--engines", engine, "--members", *counts)
            yield Step(f"optunet-{engine}", "optunet", command, 60, packages, "mnist")
    resnet = ("-m", "benchmarks.resnet")
    if trial:
        small = ("--width", "2", "--batch", "16", "--repeats", "1", "--seconds", "0.05")
        yield Step("resnet-2", "resnet", (*resnet, *small), 60)
    else:
        timing = ("--repeats", "3", "--seconds", "0.5")
        for width, limit in (("64", 100), ("8", 70)):
            yield Step(f"resnet-{width}", "resnet", (*resnet, "--width", width, *timing), limit)
        compiled = (*resnet, "--width", "64", *timing, "--runners", "single-compile")
        yield Step("resnet-64-compile", "resnet", compiled, 150, (*_BASE, "triton"))
    if not trial:
        # each of these compiles for a minute or more
        yield Step("tests-compiled", "tests", (*own, "tests-compiled"), None, (*testing, "triton"))
        command = (*train, "--engines", "single-compile", "--members", "1")
        yield Step("optunet-single-compile", "optunet", command, 120, (*_BASE, "triton"), "mnist")
    yield Step(
        "resnets",
        "resnets",
        (*own, "resnets", "--members", str(members or (2 if trial else 100)), "--precision", precision),
        None,
        dataset=None if trial else "cifar100",
    )


class Day:
    """One call: its clock and its folders."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.began = time.monotonic()
        self.chosen, self.out, self.work = chosen, chosen.out.resolve(), chosen.work.resolve()
        self.end = self.began + 60 * chosen.minutes - _EARLY
        self.stopped = False
        self.notes: list[str] = []
        for name in ("results", "figures", "logs"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        # steps inherit it, so that a killed call leaves it locked until the step that it ran has saved and ended
        self.lock = (self.work / "lock").open("ab")

    def wait_for_other_calls(self) -> None:
        """Take the work folder, from which the step of a call that was killed may still have to go."""
        end = time.monotonic() + 2 * _SAVING
        while True:
            try:
                return fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise SystemExit(f"{self.work}: another call works there. Wait for it, or stop it.") from None
                time.sleep(0.1)

    def say(self, text: str) -> None:
        """Print a line with the time."""
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def stop(self, *_: object) -> None:
        """Let the step that runs save and end, and begin no other."""
        self.stopped = True

    def result(self, name: str) -> dict[str, Any]:
        """What a step left; empty where it left nothing."""
        path = self.work / "results" / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def fetch(self) -> None:
        """Bring back what earlier calls packed, and join the data that travelled in pieces."""
        for path in unpack([self.out, *self.chosen.from_folders], self.work):
            self.notes.append(f"{path}: a part is missing or damaged; what it held is made again")
        for path, count in join(self.chosen.data, self.work / "data").items():
            self.notes.append(f"{path}: {count} of its pieces are missing or damaged")
        for note in self.notes:
            self.say(note)

    def data_folder(self, dataset: str) -> Path | None:
        """The first folder that has a data set, all of whose files are whole."""
        if not any(note.startswith(f"{dataset}/") for note in self.notes):
            for folder in (self.work / "data", *self.chosen.data):
                if (folder / dataset).is_dir():
                    return folder.resolve()
        return None

    def obstacle(self, step: Step, has_device: bool) -> str | None:
        """Why a step cannot run; None where it can."""
        missing = [name for name in step.packages if find_spec(name) is None]
        if missing:
            return "not installed: " + ", ".join(missing)
        if not has_device:
            return "torch finds no CUDA device; --device cpu tries everything in small sizes"
        if step.dataset is not None and self.data_folder(step.dataset) is None:
            return f"no folder of --data has {step.dataset}/ whole"
        return None

    def run(self, step: Step, seconds: float) -> None:
        """Run a step, at most so long; its result says how it ended."""
        figures, log = self.work / "figures" / f"{step.name}.json", self.work / "logs" / f"{step.name}.log"
        command = [sys.executable, *step.command, "--json", str(figures)]
        if "benchmarks.gpu_stages" in step.command:
            command += ["--work", str(self.work), "--seconds", f"{seconds:.0f}"]
        if step.stage != "tests":
            command += ["--device", self.chosen.device]
        if step.stage == "resnet":
            command += ["--budget", f"{max(1.0, seconds - 15):.0f}"]
        if step.dataset is not None:
            command += ["--data", str(self.data_folder(step.dataset))]
        if step.stage in TRAINING and (engine := self.best_engine(step.stage)):
            command += ["--engine", engine]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_inherited_path()])}
        began = time.monotonic()
        with log.open("ab") as file:
            # a session of its own, so that whatever it starts can be ended with it
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self.lock.fileno(),),
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
            status = self.wait(process, seconds)
        found = json.loads(figures.read_text()) if figures.exists() else None
        if status == "ended":
            good = process.returncode == 0 and found is not None
            status = "failed" if not good else "finished" if found.get("finished", True) else "unfinished"
        taken = time.monotonic() - began
        facts = {"step": step.name, "status": status, "exit_code": process.returncode, "seconds": taken}
        tail = log.read_text(errors="replace")[-3000:].splitlines() if status == "failed" else []
        write_json(self.work / "results" / f"{step.name}.json", {**facts, "log_tail": tail, "result": found})
        self.say(f"{step.name}: {status} after {taken:.1f} s")

    def wait(self, process: "subprocess.Popen[bytes]", seconds: float) -> str:
        """Wait for the end, ask for it, force it; ``ended``, ``out of time`` or ``stopped``."""
        end, status = time.monotonic() + seconds, "ended"
        while process.poll() is None and time.monotonic() < end and not self.stopped:
            time.sleep(0.1)
        if process.poll() is None:
            status = "stopped" if self.stopped else "out of time"
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SAVING)
        # what the process itself started may still run
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        return status

    def best_engine(self, stage: str) -> str | None:
        """The fastest engine for ResNets that an earlier step measured; None leaves the choice to the builders."""
        found: dict[str, float] = {}
        rows = (self.result("resnet-64").get("result") or {}).get("rows", ()) if stage == "resnets" else ()
        for row in rows:
            way = row["way"]
            if "median" in row and way["precision"] == self.chosen.precision and way["runner"].startswith("single"):
                found[way["runner"]] = max(row["median"], found.get(way["runner"], 0.0))
        return max(found, key=lambda name: found[name]) if found and self.chosen.device != "cpu" else None

    def pack(self) -> None:
        """Put what is worth most into OUT."""
        chosen, results = self.chosen, sorted((self.work / "results").glob("*.json"))
        items = [
            Item(path.relative_to(self.work).as_posix(), path.stat().st_size, rank)
            for path in self.work.rglob("*")
            if path.is_file() and (rank := rank_of(path.relative_to(self.work))) is not None
        ]
        limits = {"max_file": chosen.max_file, "max_files": chosen.max_files - 1}
        packed = pack(self.work, items, self.out, **limits, max_total=chosen.max_total - _RESERVE)
        summary = {
            "notes": self.notes,
            "left_out": packed.left_out[:1000],
            "steps": {path.stem: json.loads(path.read_text()) for path in results},
        }
        if len(json.dumps(summary, indent=1)) >= min(_RESERVE, chosen.max_file):
            # the volumes have them whole
            for step in summary["steps"].values():
                step["result"] = "see volume-0.tar"
        write_json(self.out / "results.json", summary)

    def spend(self) -> None:
        """Run what is chosen and not finished, until the time is up."""
        self.wait_for_other_calls()
        self.fetch()
        wanted: tuple[str, ...] = self.chosen.stages
        share = MEASURING_SHARE if "resnets" in wanted else 1.0
        measuring_end = self.began + share * (self.end - self.began)
        has_device = self.chosen.device == "cpu" or _has_cuda()
        for step in steps(self.chosen.device, self.chosen.members, self.chosen.precision):
            if self.stopped or step.stage not in wanted or self.result(step.name).get("status") == "finished":
                continue
            if (reason := self.obstacle(step, has_device)) is not None:
                write_json(
                    self.work / "results" / f"{step.name}.json",
                    {"step": step.name, "status": "skipped", "reason": reason},
                )
                self.say(f"{step.name}: skipped, {reason}")
                continue
            end = self.end - _SAVING - _PACKING if step.stage in TRAINING else measuring_end
            seconds = min(end - time.monotonic(), self.end - _SAVING - _PACKING - time.monotonic(), step.limit or 1e9)
            if seconds < 5:
                self.say(f"{step.name}: not begun, the time for it is up")
                continue
            self.run(step, seconds)
            self.pack()
        self.pack()
        self.say(f"{self.out}: results.json and {len(list(self.out.glob('volume-*.tar')))} volumes")


def rank_of(path: Path) -> int | None:
    """How valuable a file of the work folder is, 0 the most; None for what is not to travel."""
    first = path.parts[0]
    if path.name.startswith(".") or path.name == "lock" or first in ("data", "trial-data"):
        return None
    if first in ("results", "figures"):
        return 0
    if first == "logs":
        return 1
    if first not in TRAINING:
        return None
    if ".work" in path.parts:
        return 5
    if first == "optunets":
        return 2
    return 4 if path.suffix == ".safetensors" and "weights" in path.parts else 3


def _inherited_path() -> list[str]:
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _end_with_parent() -> None:
    """Let the kernel ask this process to stop when the one that started it is killed (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _has_cuda() -> bool:
    if find_spec("torch") is None:
        return False
    command = [sys.executable, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    return subprocess.run(command, check=False, timeout=60, capture_output=True).returncode == 0


def _stages(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.replace(",", " ").split() if name)
    if unknown := [name for name in names if name not in STAGES]:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(STAGES)}, got {', '.join(unknown)}")
    return names or STAGES


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="what is to be brought back")
    parser.add_argument("--work", type=Path, help="everything (default: beside OUT, OUT.work)")
    parser.add_argument(
        "--from",
        dest="from_folders",
        type=Path,
        nargs="*",
        default=[],
        help="what earlier calls gave, newest first",
    )
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="folders of data sets, or of their pieces")
    parser.add_argument("--minutes", type=float, default=8.0, help="until the end, which comes 20 seconds early (8)")
    parser.add_argument("--stages", type=_stages, default=STAGES, help=f"default: {','.join(STAGES)}")
    parser.add_argument("--device", default="cuda", help="cuda; cpu tries everything in small sizes")
    parser.add_argument("--members", type=int, help="of a zoo (8192 OptuNets, as many ResNets as there is time for)")
    parser.add_argument("--precision", default="bfloat16", help="of ResNets that are trained (bfloat16)")
    parser.add_argument("--max-file", type=byte_count, default=16 * 2**20, help="bytes of a file in OUT (16MiB)")
    parser.add_argument("--max-files", type=int, default=8, help="files in OUT (8)")
    parser.add_argument("--max-total", type=byte_count, default=64 * 2**20, help="bytes of all of them (64MiB)")
    chosen = parser.parse_args()
    if chosen.max_files < 2 or chosen.max_file < _RESERVE or chosen.max_total < 2 * _RESERVE:
        parser.error("expected at least 2 files of 512KiB, and 1MiB of all together.")
    if chosen.minutes * 60 <= _EARLY + _SAVING + _PACKING:
        parser.error("--minutes: expected more than 0.6.")
    chosen.work = chosen.work or chosen.out.resolve().with_name(f"{chosen.out.resolve().name}.work")
    return chosen


def main() -> None:
    """Spend the time."""
    day = Day(arguments())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, day.stop)
    day.spend()


if __name__ == "__main__":
    main()
