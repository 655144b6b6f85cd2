"""Logs of units, and their failures, so that one that makes no progress is set aside.

::

    <unit>.failures.json    the step and the error of each, since the unit last made progress
    <unit>.log              when which process began, stopped and finished it, and tracebacks of failures
"""

import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from builders.checkpointing import BuildFolder
from ckptzoo.format.durable import regular, write_file
from ckptzoo.recording.unit_files import read_small

ATTEMPTS = 5
"""The number of times that a unit may end without progress before it is set aside."""


def log(build_folder: BuildFolder, unit: str, text: str, *, begin: bool = False) -> None:
    """Add a line to a unit's log; only ``begin`` makes the file: another process may have merged the unit since."""
    flags = os.O_WRONLY | os.O_APPEND | (os.O_CREAT if begin else 0)
    try:
        descriptor = regular(str(_log_path(build_folder, unit)), flags)
    except FileNotFoundError:
        return
    try:
        os.write(descriptor, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())
    finally:
        os.close(descriptor)


def note_failure(build_folder: BuildFolder, unit: str, step: int, error: Exception) -> None:
    """Count a failure of a unit, with its traceback in the unit's log."""
    log(build_folder, unit, f"failed at step {step:,}\n{''.join(traceback.format_exception(error))}", begin=True)
    # those at an earlier step do not count: it has made progress since
    before = [item for item in failures_of(build_folder, unit) if item.get("step") == step]
    # a message may have megabytes, such as one with a tensor in it
    noted = [*before, {"step": step, "error": f"{type(error).__name__}: {error}"[:500]}]
    write_file(_path(build_folder, unit), json.dumps(noted).encode())


def failures_of(build_folder: BuildFolder, unit: str) -> list[dict[str, Any]]:
    """Return the failures of a unit that count; none where the file cannot be read."""
    try:
        noted = json.loads(read_small(_path(build_folder, unit)))
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    return [item for item in noted if isinstance(item, dict)] if isinstance(noted, list) else []


def forget_failures(build_folder: BuildFolder, unit: str) -> None:
    """Forget the failures of a unit that is finished."""
    _path(build_folder, unit).unlink(missing_ok=True)


def _log_path(build_folder: BuildFolder, unit: str) -> Path:
    return build_folder.folder / f"{unit}.log"


def _path(build_folder: BuildFolder, unit: str) -> Path:
    return build_folder.folder / f"{unit}.failures.json"
