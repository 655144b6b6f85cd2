"""``ckptzoo release`` and ``ckptzoo cite``."""

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ckptzoo.cli.options import AsJson, Where, ZooAddress, console, emit

if TYPE_CHECKING:
    from ckptzoo.schema.release import Release

Revision = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A release, stable for the newest one, or a revision.  [default: as it is now]"),
]


def release(
    zoo: ZooAddress,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Of the new release, such as 2026-12; none to list all.", show_default=False
        ),
    ] = None,
    notes: Annotated[str, typer.Option(metavar="TEXT", help="What is to be said about it, in Markdown.")] = "",
    as_json: AsJson = False,
) -> None:
    """Name what a zoo holds now, in a folder or on a hub, or list its releases.

    ckptzoo.open(ZOO, revision=NAME) opens it as it was, revision="stable" the newest release. A name never changes:
    choose another one where the zoo has grown. On a hub a tag of the name stands beside it.
    """
    import ckptzoo

    if name is None:
        if notes:
            raise typer.BadParameter("--notes: expected NAME before it, the name of the new release.")
        _list(zoo, ckptzoo.open(zoo).releases, as_json)
        return
    made = ckptzoo.release(zoo, name, notes)
    if as_json:
        emit({"zoo": zoo, **_facts(made)})
    else:
        print(f"{zoo}: {made.name} is revision {made.revision}.")


def _facts(release: "Release") -> dict[str, str]:
    created = release.created.isoformat()
    return {"name": release.name, "created": created, "revision": release.revision, "notes": release.notes}


def _list(zoo: str, releases: "tuple[Release, ...]", as_json: bool) -> None:
    from ckptzoo.console import columns
    from ckptzoo.text import printable, shortened

    if as_json:
        emit({"zoo": zoo, "releases": [_facts(release) for release in releases]})
        return
    if not releases:
        print(f"{zoo}: no releases; ckptzoo release {quote(zoo)} NAME makes one.")
        return
    table = columns("release", "made (UTC)", "revision")
    table.add_column("notes")
    for release in releases:
        notes = printable(shortened(" ".join(release.notes.split()), 200))
        table.add_row(release.name, f"{release.created:%Y-%m-%d %H:%M}", release.revision[:19], notes)
    console().print(table)


def cite(zoo: ZooAddress, where: Where = None, revision: Revision = None, as_json: AsJson = False) -> None:
    """Print a citation of a zoo, or of some of its checkpoints, in BibTeX.

    It has the zoo's name and title, the newest release that it is at, its revision, the selection, a digest of the
    checkpoints' ids, and authors and DOI where card.toml has them. --json also has the program that opens the same
    checkpoints.
    """
    import ckptzoo

    opened = ckptzoo.open(zoo, revision=revision)
    citation = (opened if where is None else opened.where(where)).cite()
    if as_json:
        emit(citation.to_json())
    else:
        print(citation)
