"""``ckptzoo catalogue``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ckptzoo.cli.completion import complete_catalogue
from ckptzoo.cli.options import AsJson, console, emit

if TYPE_CHECKING:
    from ckptzoo.schema.catalogue import PublishedSet


def catalogue(
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="WORD",
            help="The name of one, to see all of it; or text that occurs anywhere in those to be listed.",
            show_default=False,
            autocompletion=complete_catalogue,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List public sets of checkpoints that others published, and how to import them.

    Says of each how many checkpoints it has, its size, licence, addresses and papers, the commands that import it, and
    when that was last tried. The list comes with the package: no network is needed.
    """
    import ckptzoo

    found = ckptzoo.catalogue(word)
    if as_json:
        emit({"entries": [entry.to_json() for entry in found]})
    elif word is not None and [entry.name for entry in found] == [word.casefold()]:
        _show(found[0])
    else:
        _list(found)


def _list(entries: tuple["PublishedSet", ...]) -> None:
    from ckptzoo.console import columns, say
    from ckptzoo.text import counted

    table = columns("name", "checkpoints", "size")
    for title in ("licence", "what"):
        table.add_column(title)
    for entry in entries:
        table.add_row(entry.name, entry.count(entry.checkpoints), entry.size, entry.license, entry.what)
    out = console()
    out.print(table)
    say(out, "", f"{counted(len(entries), 'set')}. ckptzoo catalogue NAME shows one with its addresses and commands.")


def _show(entry: "PublishedSet") -> None:
    from ckptzoo.console import facts, say

    out = console()
    out.print(facts(_facts(entry)))
    if entry.commands:
        say(out, "", *entry.commands)


def _facts(entry: "PublishedSet") -> Iterator[tuple[str, str]]:
    """Yield titles and texts; what has several texts has its title before the first."""
    for title, texts in {
        "name": [entry.name],
        "what": [entry.what],
        "architectures": [entry.architectures],
        "networks": [entry.count(entry.networks)],
        "checkpoints": [entry.count(entry.checkpoints)],
        "size": [entry.size],
        "licence": [entry.license],
        "addresses": entry.addresses,
        "papers": [f"{paper.title}, {paper.address}" for paper in entry.papers],
        "form": [entry.form],
        "notes": [entry.notes],
        "tried": [entry.tried],
        "tests read": [entry.tested],
        "to import": entry.before,
    }.items():
        for place, text in enumerate(filter(None, texts)):
            yield ("" if place else title), text
