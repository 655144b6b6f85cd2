"""``ckptzoo card``: the page of a zoo, made from what a person wrote and from the zoo itself."""

from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import AsJson, ZooAddress, folder
from ckptzoo.cli.output import emit

MAX_LINES = 60
"""Changed lines that are printed; --json has them all."""


def card(
    zoo: ZooAddress,
    facts: Annotated[
        Path | None,
        typer.Option(
            "--card",
            metavar="FILE",
            help="What a person says about the zoo, a card.toml; it is kept in the zoo.  [default: the zoo's own]",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 where README.md is not as it would be made.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a zoo's README.md.

    It says what the zoo holds, how to load it, how good the checkpoints are and how they were trained, with what
    card.toml adds. Prints what changed. cards/template/card.toml shows every key.
    """
    from ckptzoo.hub.card import write
    from ckptzoo.spec.card import Card
    from ckptzoo.words import counted, printable

    made = write(folder(zoo), None if facts is None else Card.from_toml(facts), check=check)
    if as_json:
        emit({"zoo": zoo, "path": str(made.path), "written": not check, "changes": list(made.changes)})
    else:
        for line in made.changes[:MAX_LINES]:
            print(printable(line))
        if len(made.changes) > MAX_LINES:
            print(f"... and {len(made.changes) - MAX_LINES:,} more lines")
        added, removed = (sum(line.startswith(sign) for line in made.changes[2:]) for sign in "+-")
        if not made.changes:
            print(f"{zoo}: README.md is as it should be.")
        elif check:
            print(f"{zoo}: README.md differs: {added:,} lines to add, {removed:,} to remove. Run ckptzoo card {zoo}.")
        else:
            print(f"{made.path}: written, {counted(added, 'line')} added, {removed:,} removed.")
    if check and made.changes:
        raise typer.Exit(PROBLEMS)
