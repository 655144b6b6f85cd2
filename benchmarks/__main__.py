"""Runs the benchmarks one after the other, and keeps their figures for the documentation in docs/benchmarks/.

What was measured since the last change to the programs, the package and the builders is not measured again; a run that
was interrupted so carries on. ``docs/benchmarks.py`` makes the tables of the documentation from the figures.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import machine

ROOT = Path(__file__).resolve().parent.parent
KEPT, SCRATCH = ROOT / "docs" / "benchmarks", ROOT / "bench-results"
MEASURED = ("ckptzoo", "builders", "benchmarks", "constraints.txt")
"""Folders and files that figures depend on."""


@dataclass(frozen=True)
class Program:
    """One program of this folder in its normal size.

    Parameters
    ----------
    minutes
        That it takes on two idle cores, about; what an earlier run took is better known.
    options
        Of its normal size.
    """

    minutes: float
    options: tuple[str, ...] = ()


PROGRAMS: dict[str, Program] = {
    "layers": Program(6),
    "remote": Program(6),
    "references": Program(3),
    "references_remote": Program(2),
    "train": Program(3),
    "resnet": Program(1),
    "record": Program(4),
    "writing": Program(8),
    "posterior": Program(4),
    "hmc": Program(1),
    "symmetry": Program(6),
    "matrices": Program(8),
    "alignment": Program(2, ("--repeats", "5")),
    "mass": Program(4),
    "curvature": Program(3),
    "mmd": Program(6, ("--repeats", "3")),
    "pairwise_mi": Program(4),
    "predict": Program(1),
    "learning": Program(3),
    "server": Program(2),
    "hosting": Program(6),
    "shared": Program(20, ("--networks", "64")),
    "imports": Program(10),
    "explorer": Program(6),
    "architectures": Program(2),
    "scale": Program(40),
}


def main() -> None:
    """Run what is chosen and not measured yet, or list everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=f"default: all of {', '.join(PROGRAMS)}")
    parser.add_argument("--again", action="store_true", help="also what was measured since the last change")
    parser.add_argument("--list", action="store_true", help="print what each takes and when it was measured")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"expected programs of {', '.join(PROGRAMS)}, got {', '.join(unknown)}.")
    names = chosen.names or list(PROGRAMS)
    if chosen.list:
        for name in names:
            print(listed(name))
        print(f"{sum(minutes(name) for name in names):.0f} minutes in all")
        return
    failed = []
    for name in names:
        if is_measured(name) and not chosen.again:
            print(f"{name}: measured since the last change; --again (make bench AGAIN=1) measures it again")
        elif not run(name):
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; their messages are above, and the others' figures are kept.")


def kept(name: str) -> dict[str, Any]:
    """Return the kept result of a program; empty where there is none."""
    path = KEPT / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def minutes(name: str) -> float:
    """Return the minutes of an earlier run, or the estimate."""
    seconds = kept(name).get("seconds")
    return PROGRAMS[name].minutes if seconds is None else seconds / 60


def listed(name: str) -> str:
    """A line on a program."""
    measured = kept(name).get("measured", "not measured")
    state = "" if is_measured(name) else ", changed since" if measured != "not measured" else ""
    return f"{name:14} {minutes(name):5.1f} minutes   {measured}{state}"


def is_measured(name: str) -> bool:
    """Whether nothing that figures depend on has changed since a program ran."""
    commit = kept(name).get("commit")
    if not commit:
        return False
    return is_at(commit)


def is_at(commit: str) -> bool:
    """Whether what figures depend on is as in a commit, without files that git does not have."""
    same = subprocess.run(["git", "diff", "--quiet", commit, "--", *MEASURED], cwd=ROOT, capture_output=True)
    added = ["git", "ls-files", "--others", "--exclude-standard", "--", *MEASURED]
    return same.returncode == 0 and not subprocess.run(added, cwd=ROOT, capture_output=True).stdout


def commit_of() -> str | None:
    """The commit that is measured; None where files differ from it, or were added."""
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return head.stdout.strip() if head.returncode == 0 and is_at("HEAD") else None


def run(name: str, options: Sequence[str] | None = None, to: Path | None = None) -> bool:
    """Run a program and keep its figures; whether it ended well.

    Parameters
    ----------
    options
        In place of those of its normal size.
    to
        In place of the file in docs/benchmarks/.
    """
    chosen, path = PROGRAMS[name].options if options is None else tuple(options), SCRATCH / f"{name}.json"
    path.unlink(missing_ok=True)  # a program that carries on behind its file would measure nothing
    command, commit, busy = ["-m", f"benchmarks.{name}", *chosen], commit_of(), busy_cores()
    print(f"python {' '.join(command)}   (about {minutes(name):.0f} minutes)", flush=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules would be compiled again in every process
    began = time.monotonic()
    done = subprocess.run([sys.executable, *command, "--json", str(path)], cwd=ROOT, env=environment)
    if done.returncode or not path.exists():
        return False
    facts = machine(ROOT)
    content = {
        "command": f"python {' '.join(command)}",
        "measured": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "seconds": round(time.monotonic() - began, 1),
        "busy": round(busy, 1),
        "machine": {key: facts[key] for key in ("cpu", "cores", "memory_bytes", "system", "python")},
    }
    keep(to or KEPT / f"{name}.json", content, json.loads(path.read_text())["figures"])
    return True


def busy_cores(seconds: float = 2.0) -> float:
    """Return how many cores have work while nothing is measured. Elsewhere than on Linux it is the load average, which
    counts what ended within the last minute, such as the program before.
    """

    def ticks() -> tuple[int, int]:
        _, *counts = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        every = list(map(int, counts[:8]))  # the two that follow are in the first ones already
        return sum(every), every[3] + every[4]  # idle, and waiting for a disk

    if not Path("/proc/stat").exists():
        return os.getloadavg()[0]
    total, idle = ticks()
    time.sleep(seconds)
    more, idle_more = ticks()
    return (os.cpu_count() or 1) * (1 - (idle_more - idle) / max(1, more - total))


def keep(path: Path, content: dict[str, Any], figures: Sequence[dict[str, Any]]) -> None:
    """Write figures, one a line, so that a change shows as the lines that changed."""
    head = json.dumps(content, indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(figure, ensure_ascii=False)}" for figure in figures)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "figures": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
