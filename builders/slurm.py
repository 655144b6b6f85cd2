"""``submit``: units of a plan trained by the array tasks of a Slurm cluster.

Each task runs ``work`` for a while, and asks Slurm to start it again where units are left; what is done, by whom, is in
the zoo's folder, so that tasks may be killed, started again and added at any moment. Slurm itself starts tasks again
that it preempted or whose node failed.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.checkpointing import WORK_FOLDER
from builders.recipe import Recipe
from builders.shared import Worked, find_plan, work
from ckptzoo.errors import MissingExtraError, Problem, ZooError

TURN_SECONDS = 3600.0
"""Seconds that a task works before it makes room for others."""
MARGIN_MINUTES = 10
"""Minutes of a task's time limit beyond its turn: to import, to load the data, and to end the current steps and save.
"""
_RETRY_SECONDS = 30.0
"""Seconds that a task waits before it tries failed units again."""


@dataclass(frozen=True)
class Submitted:
    """The job's number, that of its tasks, and the folder of its logs, ``<job>_<task>_0_log.out`` and ``.err``."""

    job: str
    tasks: int
    folder: Path


@dataclass(frozen=True)
class ArrayTask:
    """The work of one task of the array; submitit stores it as a file, which the task reads. ``seconds`` is the length
    of one turn; ``options`` are further arguments of ``builders.shared.work``.
    """

    to: Path
    recipe: Recipe
    seconds: float
    options: Mapping[str, Any]

    def __call__(self) -> int:
        """Work for one turn; return how many units were finished. Where units are left, Slurm starts the task again."""
        from submitit import JobEnvironment

        end = time.monotonic() + self.seconds
        units, done = 0, self._work(end)
        while done.failed and (left := end - time.monotonic()) > 0:
            units += done.units
            time.sleep(min(_RETRY_SECONDS, left))
            done = self._work(end)
        if done.left and time.monotonic() >= end:
            subprocess.run(["scontrol", "requeue", JobEnvironment().job_id], check=True)
        return units + done.units

    def checkpoint(self) -> Any:
        """Return what submitit submits where Slurm announces the end of the task's time (SIGUSR2): the same task."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _work(self, end: float) -> Worked:
        return work(self.to, self.recipe, seconds=max(0.0, end - time.monotonic()), **self.options)


def submit(
    to: str | Path,
    recipe: Recipe | str | Path | None = None,
    *,
    tasks: int,
    seconds: float = TURN_SECONDS,
    sbatch: Mapping[str, str] | None = None,
    **options: Any,
) -> Submitted:
    """Submit an array of tasks to Slurm, each of which runs ``work``.

    Raises MissingExtraError: submitit is not installed. Raises ZooError: there is no plan, or no Slurm; or it refuses
    the job, in its own words.

    Parameters
    ----------
    to
        the zoo's folder, which the nodes share with this machine, as they do this Python.
    tasks
        how many; more than there are units serve nothing.
    seconds
        of one turn of a task. Its time limit is ten minutes more.
    sbatch
        options of ``sbatch``, such as ``{"partition": "gpu"}``. A plan for ``cuda`` asks for one GPU a task.
    options
        further arguments of ``builders.shared.work``: ``folder``, ``device``, ``threads``, ``save_seconds``.

    Examples
    --------
    ::

        plan("cifar100-resnet18", "zoo", members=2000, device="cuda")
        submit("zoo", tasks=50, sbatch={"partition": "gpu"})
        # later, as often as one likes
        merge("zoo")
    """
    try:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError
    except ModuleNotFoundError:
        raise MissingExtraError("submitit", "slurm") from None
    root = Path(to).absolute()
    recipe, _, settled = find_plan(root, recipe)
    device = options.get("device") or settled.device
    # beside the build's folder, which merge removes while the last tasks may still be writing
    folder = root / WORK_FOLDER / f"{recipe.prefix}-slurm"
    parameters: dict[str, Any] = {"gpus_per_task": 1} if device == "cuda" else {}
    if (threads := options.get("threads")) is not None and device == "cpu":
        parameters["cpus_per_task"] = threads
    try:
        # submitit gives a task up after three time-outs by default, and here a turn may end in one
        executor = SlurmExecutor(folder, max_num_timeout=sys.maxsize)
    except RuntimeError:
        step = "Run this where sbatch is, or see `python -m builders submit --print` for other schedulers."
        raise ZooError(Problem(str(root), "Slurm", "sbatch and srun on this machine", "none", step)) from None
    executor.update_parameters(
        job_name=f"builders {recipe.prefix}",
        time=int(seconds // 60) + MARGIN_MINUTES,
        array_parallelism=tasks,
        # options of sbatch, as they are; "requeue" is needed for what the task asks for itself
        additional_parameters={"requeue": True, **(sbatch or {})},
        **parameters,
    )
    task = ArrayTask(root, recipe, seconds, options)
    try:
        with executor.batch():
            jobs = [executor.submit(task) for _ in range(tasks)]
    except (FailedJobError, subprocess.SubprocessError, OSError) as error:
        step = "See sbatch(1); options go to it by --sbatch KEY=VALUE."
        raise ZooError(
            Problem(str(root), "sbatch", "a job that it accepts", " ".join(str(error).split()), step)
        ) from None
    return Submitted(jobs[0].job_id.partition("_")[0], tasks, folder)


def command(zoo: str, seconds: float, options: Mapping[str, Any]) -> str:
    """Return the shell command that any scheduler may run any number of times at once. ``options`` are those of
    ``work`` with their values; those that are None are left out.
    """
    words = [sys.executable, "-m", "builders", "work", zoo, "--for", f"{seconds:.0f}s"]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    return shlex.join(words)
