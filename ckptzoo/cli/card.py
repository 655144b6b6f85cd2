"""``ckptzoo card``: the page of a zoo, made from what a person wrote and from the zoo itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

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
    """Make a zoo's README.md, in a folder or on a hub.

    It says what the zoo holds, how to load it, how good the checkpoints are and how they were trained, with what
    card.toml adds. Prints what changed. On a hub its snapshot is brought up to date too, in the same commit.
    cards/template/card.toml shows every key.
    """
    from ckptzoo.spec.card import Card

    said = None if facts is None else Card.from_toml(facts)
    if Path(zoo).is_dir():
        from ckptzoo.hub.card import write

        made = write(zoo, said, check=check)
        found: dict[str, Any] = {"path": str(made.path), "notes": []}
        where, changes = str(made.path), made.changes
    else:
        from ckptzoo.hub.client.session import quietly
        from ckptzoo.hub.publishing import rewrite

        with quietly():
            done = rewrite(_repository(zoo), said, check=check)
        found = {"repository": done.repository, "commit": done.commit, "notes": list(done.notes)}
        where, changes = done.repository, done.changes
    if as_json:
        emit({"zoo": zoo, **found, "written": not check, "changes": list(changes)})
    else:
        _tell(zoo, where, changes, check)
        for note in found["notes"]:
            print(f"note: {note}")
    if check and changes:
        raise typer.Exit(PROBLEMS)


def _repository(address: str) -> str:
    """An address that may be that of a repository; others are a folder's that is not there."""
    from ckptzoo.remote import candidates
    from ckptzoo.remote.address import HubAddress

    if not any(isinstance(place, HubAddress) for place in candidates(address)):
        folder(address)
    return address


def _tell(zoo: str, where: str, changes: Sequence[str], check: bool) -> None:
    """What changed, line by line, and what was done."""
    from ckptzoo.words import counted, printable

    for line in changes[:MAX_LINES]:
        print(printable(line))
    if len(changes) > MAX_LINES:
        print(f"... and {len(changes) - MAX_LINES:,} more lines")
    added, removed = (sum(line.startswith(sign) for line in changes[2:]) for sign in "+-")
    if not changes:
        print(f"{zoo}: README.md is as it should be.")
    elif check:
        print(f"{zoo}: README.md differs: {added:,} lines to add, {removed:,} to remove. Run ckptzoo card {zoo}.")
    else:
        print(f"{where}: written, {counted(added, 'line')} added, {removed:,} removed.")
