"""``ckptzoo collection``."""

from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.options import AsJson, console, emit


def collection(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Whose folders are zoos.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Make the zoos in a folder one collection: collection.json and a table of all rows.

    Write it again where zoos have grown. ckptzoo.open_collection(FOLDER).where(...) then opens only the zoos that a
    condition needs.
    """
    from ckptzoo.console import columns
    from ckptzoo.loader.collection import open_collection, write_collection

    write_collection(folder)
    found = open_collection(folder)
    if as_json:
        emit({"name": found.name, "checkpoints": len(found), "zoos": [entry.to_json() for entry in found.entries]})
        return
    table = columns("zoo", "checkpoints", "name", "revision")
    for entry in found.entries:
        table.add_row(entry.folder, f"{entry.checkpoints:,}", entry.name, entry.revision[:19])
    console().print(table)
