"""Failures of units: noted beside them, so that one that makes no progress is set aside.

::

    <unit>.failures.json    the step and the error of each, since the unit last made progress
    <unit>.log              tracebacks
"""

import json
import time
import traceback
from pathlib import Path
from typing import Any

from builders.checkpointing import BuildFolder
from ckptzoo.format.durable import write_file

ATTEMPTS = 5
"""How often a unit may end without progress before it is set aside."""


def note_failure(build_folder: BuildFolder, unit: str, step: int, error: Exception) -> None:
    """Count a failure of a unit, with its traceback in the unit's log."""
    text = "".join(traceback.format_exception(error))
    with (build_folder.folder / f"{unit}.log").open("a") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} at step {step}\n{text}\n")
    # those at an earlier step do not count: it has made progress since
    before = [item for item in failures_of(build_folder, unit) if item.get("step") == step]
    noted = [*before, {"step": step, "error": f"{type(error).__name__}: {error}"[:500]}]
    write_file(_path(build_folder, unit), json.dumps(noted).encode())


def failures_of(build_folder: BuildFolder, unit: str) -> list[dict[str, Any]]:
    """The failures of a unit that count; none where the file cannot be read."""
    try:
        noted = json.loads(_path(build_folder, unit).read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    return [item for item in noted if isinstance(item, dict)] if isinstance(noted, list) else []


def forget_failures(build_folder: BuildFolder, unit: str) -> None:
    """Forget those of a unit that is finished."""
    _path(build_folder, unit).unlink(missing_ok=True)


def _path(build_folder: BuildFolder, unit: str) -> Path:
    return build_folder.folder / f"{unit}.failures.json"
