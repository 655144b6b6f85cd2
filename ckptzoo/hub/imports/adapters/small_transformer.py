"""``small-transformer``: the Small Transformer Zoo (Tran et al. 2024; Fsoft-AIC/Transformer-NFN at c1520e2).

``<run>_<epoch>_<10^4 times the accuracy>.pt``, and tables ``metadata/<set>.csv``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters.adapter import (
    FoundCheckpoints,
    Options,
    all_fit,
    every_state,
    identifier,
    reader,
    side_files,
)
from ckptzoo.hub.imports.facts import merged, row_of
from ckptzoo.hub.imports.sources import ImportSource
from ckptzoo.hub.imports.tables import read_table
from ckptzoo.hub.untrusted import Limits

_CHECKPOINT = re.compile(r"(?:.*/)?(?P<run>[^/]+)_(?P<epoch>\d{1,6})_(?P<accuracy>\d{1,5})\.pt")
_TABLE = re.compile(r"(?:.*/)?metadata/[^/]+\.csv")
_ACCURACY_UNIT = 10**4
"""Accuracies in names of files are in units of 1/10,000."""


class SmallTransformer:
    """Members are runs; the accuracy is in the files' names, other facts are in tables."""

    name = "small-transformer"
    license: str | None = "MIT"
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether all checkpoint files are named so, and there is a table."""
        return all_fit(paths, _CHECKPOINT.fullmatch) and any(_TABLE.fullmatch(path) for path in paths)

    def checkpoints(self, source: ImportSource, options: Options) -> Iterator[FoundCheckpoints]:
        """Yield every file, with its row of the tables where there is one."""
        rows: dict[str, dict[str, Any]] = {}
        texts, _ = side_files(source, lambda path: _TABLE.fullmatch(path) is not None)
        for path, data in texts.items():
            rows |= _rows(data, path)
        for file in source.files():
            if (matched := _CHECKPOINT.fullmatch(file.path)) is None:
                continue
            accuracy = int(matched["accuracy"]) / _ACCURACY_UNIT
            if accuracy > 1:
                step = f"Correct the name: behind the last _ are at most {_ACCURACY_UNIT}."
                raise ZooError(Problem(file.path, "accuracy in the name", "at most 1", f"{accuracy:g}", step))
            epoch = int(matched["epoch"])
            facts = rows.get(file.name.removesuffix(".pt"), {})
            row = row_of(facts, location=file.path, percent=options.percent)
            row = merged({"claimed_test_accuracy": accuracy, "epoch": float(epoch)}, row)
            read = reader(file, Limits().file_bytes)
            yield FoundCheckpoints(
                file.path, identifier(matched["run"]), epoch, dict(row), file.size, read, every_state
            )


def _rows(data: bytes, location: str) -> dict[str, dict[str, Any]]:
    """Return rows by the name of the file that they are about: the first value that is named like one."""
    rows: dict[str, dict[str, Any]] = {}
    for row in read_table(data, location):
        named = [value for value in row.values() if _CHECKPOINT.fullmatch(f"{str(value).removesuffix('.pt')}.pt")]
        for value in named[:1]:
            rows[str(value).removesuffix(".pt").rpartition("/")[2]] = row
    return rows
