"""Recorded checkpoints that wait to be gathered: where they are, and what their files say.

::

    ZOO/.work/recorded/<member>-<8 hex>/recorder.claim-000001    who records the member (``claims.py``)
    ZOO/.work/recorded/<member>-<8 hex>/<step>.kept.safetensors  one checkpoint and its row (``unit_files.py``)

A folder has the files of one member, named by its printable characters and the beginning of the sha256 of its name.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.text import counted, excerpt

WORK_FOLDER = ".work"
"""The folder of unfinished work, in a zoo's folder."""
RECORDED = "recorded"
"""The folder of what was recorded, in the folder of unfinished work."""
RECORDER = "recorder"
"""The name of the claim of a member's recorder."""
_UNIT_FILE = re.compile(r"(\d{6,18})\.kept\.safetensors")
_MAX_SHOWN = 60
"""The number of characters of a member's name that its folder's name begins with."""
Row = dict[str, Any]


def encode_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as JSON; times are texts in ISO 8601."""
    return json.dumps(rows, default=_iso)


def decode_rows(text: str, *, location: str) -> list[Row]:
    """Return the rows of ``encode_rows``; raises IntegrityError where the text is none of them."""
    try:
        rows = json.loads(text)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("no list of objects")
        for row in rows:
            row["created"] = datetime.fromisoformat(row["created"])
            # the column is UTC; a time without a zone would be taken for that of the machine
            if row["created"].tzinfo is None:
                row["created"] = row["created"].replace(tzinfo=UTC)
    # RecursionError: thousands of brackets
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        step = "Remove the file; its checkpoint is recorded or trained again."
        got = excerpt(f"{type(error).__name__}: {error}")
        raise IntegrityError(Problem(location, "rows of the unit", "a list of rows in JSON", got, step)) from error
    return rows


def _iso(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} in a row")


def recorded_folder(root: Path) -> Path:
    """Return the folder of all recorded members of a zoo."""
    return root / WORK_FOLDER / RECORDED


def member_folder(root: Path, member: str) -> Path:
    """Return the folder of a recorded member."""
    shown = re.sub(r"[^A-Za-z0-9_-]+", "-", member)[:_MAX_SHOWN]
    return recorded_folder(root) / f"{shown}-{hashlib.sha256(member.encode()).hexdigest()[:8]}"


def unit_path(folder: Path, step: int) -> Path:
    """Return the file of the checkpoint of a step, in its member's folder."""
    return folder / f"{step:06d}.kept.safetensors"


def checkpoint_id(member: str, step: int) -> str:
    """Return the id of a recorded checkpoint."""
    return f"{member}-{step:06d}"


def recorded_steps(folder: Path) -> dict[int, Path]:
    """Return the files of a member's checkpoints by their rising steps; nothing is read."""
    if not folder.is_dir():
        return {}
    found = ((match, path) for path in folder.iterdir() if (match := _UNIT_FILE.fullmatch(path.name)) is not None)
    return dict(sorted((int(match[1]), path) for match, path in found))


def waiting_units(root: Path) -> int:
    """Return the number of recorded checkpoints that wait to be gathered; nothing of them is read."""
    folder = recorded_folder(root)
    if not folder.is_dir():
        return 0
    return sum(1 for _ in folder.glob("*/*.kept.safetensors"))


def hint(zoo: str, count: int) -> str:
    """Return the sentence on recorded checkpoints that wait."""
    return f"{counted(count, 'recorded checkpoint')} not gathered yet: ckptzoo gather {quote(zoo)}"
