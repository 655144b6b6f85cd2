"""``--on ray``: a command that takes ``--share I/N``, run by tasks of Ray on nodes that share its folders."""

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.errors import Problem, ZooError

On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray[://HOST:PORT]",
        help="Share the work among the cores or GPUs of a cluster of Ray, whose nodes share the folders named here.",
    ),
]
_SHARES_A_DEVICE = 4
"""Shares for each core, or GPU; more than one, because some take longer than others."""
_OWN = "CKPTZOO_"
"""Environment variables that tasks get from this process."""


def work_on_ray(context: typer.Context, on: str, device: str = "cpu") -> None:
    """Have all shares of this command done by a cluster; the command itself then finds them done. ``device`` is the
    need of each share: ``cpu`` one core, ``cuda`` one GPU. Raises MissingExtraError where Ray is not installed, and
    ZooError where there is no such cluster, or a share failed, with the message of its command.
    """
    from ckptzoo.cli.options import bar
    from ckptzoo.ray_cluster import connected

    scheme, separator, address = on.partition("://")
    if scheme != "ray" or bool(separator) != bool(address):
        raise typer.BadParameter(f"{on!r}: expected ray or ray://HOST:PORT.", param_hint="--on")
    if any(word == "--share" or word.startswith("--share=") for word in context.obj.arguments):
        raise typer.BadParameter("expected one of --share and --on, got both.")
    command = _without(context.obj.arguments, "--on")
    # a worker has the environment of its node
    own = {name: value for name, value in os.environ.items() if name.startswith(_OWN)}
    with connected(address or None) as ray, bar("shares", nbytes=False) as progress:
        resource, needs = ("GPU", {"num_gpus": 1}) if device.startswith("cuda") else ("CPU", {"num_cpus": 1})
        count = _SHARES_A_DEVICE * max(1, int(ray.cluster_resources().get(resource, 1)))
        task = ray.remote(**needs, runtime_env={"env_vars": own} if own else None)(run_share)
        here, run = str(Path.cwd()), context.obj.run
        waiting = [task.remote(run, [*command, "--share", f"{number}/{count}"], here) for number in range(count)]
        while waiting:
            done, waiting = ray.wait(waiting)
            try:
                code, said = ray.get(done[0])
            except ray.exceptions.RayError as error:
                code, said = 1, " ".join(str(error).split())[-500:]
            if code:
                for reference in waiting:
                    # without force Ray raises KeyboardInterrupt in the task, which compiled code notices at its end
                    ray.cancel(reference, force=True)
                step = "Shares that are done stay; the same command goes on."
                name = context.command_path
                raise ZooError(Problem("ray", f"a share of {name}", "done", said.strip() or f"exit code {code}", step))
            progress(count - len(waiting), count)


def run_share(run: Callable[[Sequence[str]], int], arguments: Sequence[str], folder: str) -> tuple[int, str]:
    """Run a command line in a folder; return its exit code, and its output on the standard error."""
    # streams of a task are those of a worker on another machine
    said = io.StringIO()
    try:
        os.chdir(folder)
    except OSError as error:
        return 1, f"{folder}: {error.strerror}. The nodes need to share the folders."
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = run(arguments)
    return code, said.getvalue()


def _without(arguments: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option and its value."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == option:
            next(words, None)
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept
