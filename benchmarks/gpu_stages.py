"""What stages of ``benchmarks.gpu`` do that no other program does: ``python -m benchmarks.gpu_stages STAGE``.

Each stage is a process that writes one file of figures, and ends by itself before its seconds are over.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu_files import write_json

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "triton", "numba", "numpy", "pyarrow", "safetensors", "array-api-compat", "ml-dtypes", "pytest")
_TRIAL_IMAGES = 256
"""Random images that stand for CIFAR-100 where this is tried on a CPU."""


@dataclass(frozen=True)
class Job:
    """What a stage is asked for; see ``main``."""

    device: str
    json: Path
    seconds: float
    work: Path
    data: Path | None
    members: int
    engine: str | None
    precision: str

    @property
    def is_trial(self) -> bool:
        """Whether there is no GPU, so that small sizes show that all of it runs."""
        return self.device == "cpu"


def measure_facts(job: Job) -> dict[str, Any]:
    """The machine: versions, and the rates of matrix products and copies in each precision."""
    import torch

    # nothing of builders, whose packages may be missing
    from benchmarks.train_limits import copy_rate, product_rate

    facts: dict[str, Any] = {
        "versions": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
    }
    if job.is_trial:
        torch.set_num_threads(1)
    facts["gpu"] = None if job.is_trial else torch.cuda.get_device_name(job.device)
    facts["cores"] = os.cpu_count()
    facts["cuda"], facts["cudnn"] = torch.version.cuda, torch.backends.cudnn.version()
    try:
        listed = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        listed = str(error)
    facts["nvidia_smi"] = listed.splitlines()
    # a CPU without instructions for bfloat16 takes minutes for what a GPU does in a millisecond
    side = 256 if job.is_trial else None
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    rates = {name: product_rate(job.device, dtype, side) for name, dtype in kinds.items()}
    if not job.is_trial:
        torch.backends.cuda.matmul.allow_tf32 = True
        rates["tf32"] = product_rate(job.device)
    return {**facts, "product_flop_a_second": rates, "copy_bytes_a_second": copy_rate(job.device)}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def run_tests(job: Job, chosen: str = "not single-compile") -> dict[str, Any]:
    """The tests marked ``gpu`` whose names fit, by whatever pytest the machine has: counts, and what failed."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    # settings of their own, because those of the project name plug-ins that may be missing
    settings = job.work / "gpu-pytest.ini"
    markers = "".join(f"\n    {name}" for name in ("gpu", "slow", "exhaustive", "network", "sampled", "timeout"))
    settings.write_text(f"[pytest]\naddopts = --import-mode=importlib\npythonpath = {ROOT}\nmarkers ={markers}\n")
    report = job.work / "gpu-tests.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-k",
        chosen,
        "-c",
        str(settings),
        f"--rootdir={ROOT}",
        "-ra",
    ]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors", f"--junitxml={report}", *map(str, files)]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not report.exists():
        return {"exit_code": code, "error": "pytest wrote no report; the log says why"}
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    found: dict[str, list[dict[str, str]]] = {"failure": [], "error": [], "skipped": []}
    for case in cases:
        for kind, listed in found.items():
            for outcome in case.findall(kind):
                name = f"{case.get('classname')}::{case.get('name')}"
                listed.append({"test": name, "text": (outcome.text or outcome.get("message") or "")[-6000:]})
    passed = len(cases) - sum(map(len, found.values()))
    return {"exit_code": code, "tests": len(cases), "passed": passed, **found}


def interpret_fused(job: Job) -> dict[str, Any]:
    """A step of the Triton engine in Triton's interpreter, beside the engine ``general``."""
    # before Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"
    from builders import data, engines
    from builders.data_source import DataSource
    from builders.recipe import Recipe
    from builders.state import TrainingState

    recipe = replace(Recipe.load("digits-optunet"), batch=8)
    images = DataSource.of(recipe, data.load(recipe), "cpu")
    states = [TrainingState.initial(recipe, [0], "cpu") for _ in range(2)]
    for name, state in zip(("fused", "general"), states, strict=True):
        engines.get(name)(images, state, 1)
    gaps = {name: float((tensor - states[1].weights[name]).abs().max()) for name, tensor in states[0].weights.items()}
    if max(gaps.values()) > 1e-5:
        raise SystemExit(f"fused: weights after a step: expected those of general to 1e-5, got {gaps} apart.")
    return {"interpreted": True, "steps": 1, "largest_difference": gaps}


def build_optunets(job: Job) -> dict[str, Any]:
    """Members by the full recipe, in as large units as end in time; what does not end is saved."""
    from builders.recipe import Recipe

    name = "digits-optunet" if job.is_trial else "mnist-optunet"
    recipe = Recipe.of(name, 1) if job.is_trial else Recipe.load(name)
    return _Rounds(job, recipe, job.work / "optunets", job.data).build()


def build_resnets(job: Job) -> dict[str, Any]:
    """Members of the ResNet recipe, one after another, and their outputs on the test set."""
    from builders import predicting
    from builders.recipe import ImageRecipe, Recipe

    loaded, folder = Recipe.load("cifar100-resnet18"), job.data
    assert isinstance(loaded, ImageRecipe)
    recipe = replace(loaded, precision=job.precision, ood=None)
    if job.is_trial:
        folder = _write_random_images(job.work / "trial-data")
        sizes = {"train": _TRIAL_IMAGES, "test": _TRIAL_IMAGES, "epochs": 2, "milestones": (1,)}
        recipe = replace(recipe, name="trial-resnet18", architecture="resnet18-2-100", **sizes)
    sets = predicting.input_sets(recipe, folder)

    def predict(zoo: Path) -> None:
        from rich.console import Console

        predicting.predict(zoo, sets, Console(), device=job.device)

    return _Rounds(job, recipe, job.work / "resnets", folder, predict).build()


def _write_random_images(folder: Path) -> Path:
    import numpy as np

    (folder / "cifar100").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for half in ("train", "test"):
        images = rng.integers(0, 256, (_TRIAL_IMAGES, 32, 32, 3), np.uint8)
        np.savez(folder / "cifar100" / f"cifar100_{half}.npz", images=images, labels=np.arange(_TRIAL_IMAGES) % 100)
    return folder


class _Rounds:
    """Builds of a zoo, one after another, each of a unit that ends in time and each a part of its own.

    A build adds its members when all of its units have ended, so that each round is a build of one unit.
    """

    def __init__(
        self, job: Job, recipe: Any, zoo: Path, folder: Path | None, then: Callable[[Path], None] | None = None
    ) -> None:
        self.job, self.recipe, self.zoo, self.folder, self.then = job, recipe, zoo, folder, then
        self.end = time.monotonic() + job.seconds
        self.rounds: list[dict[str, Any]] = []
        self.rate = 0.0

    @property
    def remaining(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def build(self) -> dict[str, Any]:
        """Build until there are enough members, the time is up, or the process is asked to stop."""
        from builders.build import build
        from builders.checkpointing import Interrupted

        finished = False
        # as if it were stopped from outside: a build saves its state then
        timer = threading.Timer(self.job.seconds, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
        try:
            while True:
                unfinished = self._unfinished()
                held = self._held()
                if unfinished is None and held >= self.job.members:
                    finished = True
                    break
                if unfinished is None:
                    unit, engine = self._unit(self.job.members - held)
                    members = held + unit
                else:
                    unit, engine, members = unfinished.unit_size, unfinished.engine, unfinished.members
                if not unit:
                    break
                began = time.monotonic()
                options: dict[str, Any] = {"device": self.job.device, "unit_size": unit, "engine": engine}
                built = build(self.recipe, self.zoo, members=members, folder=self.folder, **options)
                if self.then is not None:
                    self.then(self.zoo)
                seconds = time.monotonic() - began
                made = {"members": built.members, "member_steps": built.member_steps, "seconds": seconds}
                self.rounds.append({**made, "engine": engine})
                self.rate = built.members * self.recipe.steps / seconds
                self._write(finished)
        except Interrupted as error:
            print(error)
        finally:
            timer.cancel()
        return self._figures(finished)

    def _figures(self, finished: bool) -> dict[str, Any]:
        facts = {"recipe": self.recipe.prefix, "precision": self.recipe.precision, "held": self._held()}
        return {"finished": finished, **facts, "rounds": self.rounds}

    def _write(self, finished: bool) -> None:
        write_json(self.job.json, self._figures(finished))

    def _held(self) -> int:
        import ckptzoo

        return len(ckptzoo.open(self.zoo).ids) if (self.zoo / "zoo.json").exists() else 0

    def _unfinished(self) -> Any:
        """The plan of a build that did not end; it ends first, as it was begun."""
        from builders.checkpointing import BuildPlan, locked_build_folder

        if not (self.zoo / ".work" / self.recipe.prefix / "plan.json").exists():
            return None
        with locked_build_folder(self.zoo, self.recipe.prefix) as folder:
            return folder.settle_plan(None, BuildPlan)

    def _unit(self, missing: int) -> tuple[int, str]:
        """Members of the next unit, and the engine: as many as end in 85 % of the time that is left; 0 for none."""
        from builders.train import choose_engine

        engine = choose_engine(self.recipe, self.job.device, self.job.engine)
        from builders.engines import is_one_at_a_time

        if not self.rate:
            self.rate = self._measured_rate(1 if is_one_at_a_time(engine) else missing, engine)
        fitting = int(0.85 * self.remaining * self.rate / self.recipe.steps)
        if is_one_at_a_time(engine):
            # the state of one that does not end carries on in a later call, if it finds its way there
            return (1 if fitting or not self.rounds else 0), engine
        # a smaller unit is not faster for each of its members, so that halves bound the loss
        unit = missing
        while unit > max(1, fitting):
            unit //= 2
        return (unit if fitting else 0), engine

    def _measured_rate(self, members: int, engine: str) -> float:
        """Member-steps a second of a unit, training and measuring at the end included."""
        from builders import sources
        from builders.energy import counter_of
        from builders.estimate import time_measuring, time_steps
        from builders.train import open_trainer

        source, device = sources.load(self.recipe, self.folder), self.job.device
        with open_trainer(self.recipe, source, device=device, engine=engine) as trainer, counter_of(device) as counter:
            seconds = 0.2 if self.job.is_trial else 2.0
            timed = time_steps(trainer, lambda: trainer.start(range(members)), self.recipe.steps, counter, seconds)
            measuring = time_measuring(trainer, timed.state)
        return 1 / (1 / timed.steps_per_second + measuring / self.recipe.steps)


STAGES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "facts": measure_facts,
    "tests": run_tests,
    "tests-compiled": partial(run_tests, chosen="single-compile"),
    "fused": interpret_fused,
    "optunets": build_optunets,
    "resnets": build_resnets,
}


def main() -> None:
    """Run a stage and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--json", type=Path, required=True, help="where figures go")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything else")
    parser.add_argument("--seconds", type=float, default=300.0, help="until the stage is to end (300)")
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--members", type=int, default=8192, help="of the zoo (8192)")
    parser.add_argument("--engine", help="default: the fastest that was measured")
    parser.add_argument("--precision", default="bfloat16", help="of ResNets (bfloat16)")
    chosen = vars(parser.parse_args())
    stage = STAGES[chosen.pop("stage")]
    job = Job(**chosen)
    write_json(job.json, stage(job))


if __name__ == "__main__":
    main()
