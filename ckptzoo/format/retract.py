"""Withdraw checkpoints: a tombstone is added, the loader leaves them out, the bytes stay."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ckptzoo.errors import UnknownNameError
from ckptzoo.format import table
from ckptzoo.format.files import Folder
from ckptzoo.format.part import PartWriter
from ckptzoo.format.reader import read_contents
from ckptzoo.spec.layout import DERIVED, RETRACTED
from ckptzoo.spec.metadata import RETRACTED_COLUMNS


def retract(path: str | Path, ids: Sequence[str], *, reason: str, contributor: str | None = None) -> int:
    """Withdraw checkpoints from a zoo.

    Parameters
    ----------
    path : the zoo's folder.
    ids : the checkpoints' ids; those withdrawn before are left as they are.
    reason : why, in a sentence; everyone who opens the zoo sees it.

    Returns
    -------
    How many were newly withdrawn.

    Raises
    ------
    UnknownNameError
        The zoo has no such checkpoint; nothing is withdrawn.
    """
    root = Path(path).absolute()
    contents = read_contents(Folder(root))
    held = contents.ids.to_pylist()
    known = set(held)
    for name in ids:
        if name not in known:
            raise UnknownNameError(root.name, "checkpoint", name, held)
    gone = set(contents.retracted.rows["id"].to_pylist())
    fresh = [name for name in dict.fromkeys(ids) if name not in gone]
    if not fresh:
        return 0
    now = datetime.now(UTC)
    rows: list[dict[str, Any]] = [
        {"id": name, "reason": reason, "contributor": contributor, "created": now} for name in fresh
    ]
    part = PartWriter(
        root / DERIVED / RETRACTED,
        sets={},
        schema=table.schema_of(RETRACTED_COLUMNS),
        facts={"kind": "retracted"},
    )
    try:
        part.add({}, rows)
        part.commit(root, refuse=lambda _: None)
    except BaseException:
        part.discard()
        raise
    return len(rows)
