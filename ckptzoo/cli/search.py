"""``ckptzoo search``: zoos on a hub."""

from typing import TYPE_CHECKING, Annotated

import typer

from ckptzoo.cli.options import AsJson
from ckptzoo.cli.output import console, emit

if TYPE_CHECKING:
    from ckptzoo.hub.searching import FoundZoo, Search


def search(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Stands in the repository's name.", show_default=False)
    ] = None,
    arch: Annotated[str | None, typer.Option(metavar="NAME", help="The architecture, such as resnet18.")] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="A data set that members were trained on, such as cifar100.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Another tag; may be given again.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Find zoos on a hub, those changed last first.

    The hub is $HF_ENDPOINT, else huggingface.co. What is shown is what the cards say; opening a zoo checks it.
    """
    from ckptzoo.hub.searching import search as find

    found = find(arch, dataset, tag or (), text, limit)
    if as_json:
        emit(found.to_json())
        return
    if not found.zoos:
        print(_nothing(found))
        return
    from ckptzoo.studies.shown.tables import columns
    from ckptzoo.words import printable

    shown = columns("repository", "architecture", "data set", "checkpoints", "licence", "updated")
    for zoo in found.zoos:
        shown.add_row(*map(printable, _row(zoo)))
    console().print(shown)
    if found.more:
        print(f"and others: --limit {2 * limit} shows more.")


def _row(zoo: "FoundZoo") -> tuple[str, ...]:
    return (
        zoo.repository + (" (private)" if zoo.private else ""),
        ", ".join(zoo.architectures),
        ", ".join(zoo.datasets),
        "" if zoo.checkpoints is None else f"{zoo.checkpoints:,}",
        zoo.license or "",
        "" if zoo.updated is None else zoo.updated.strftime("%Y-%m-%d"),
    )


def _nothing(found: "Search") -> str:
    """That nothing was found, and how to ask for less."""
    from ckptzoo.words import printable

    said = f"{found.endpoint}: no zoo with the tags {', '.join(found.tags)}"
    said += f" and {found.text!r} in its name." if found.text else "."
    asked = len(found.tags) + (found.text is not None) - 1
    step = "Ask for less, or see all of them with ckptzoo search." if asked else "Set HF_ENDPOINT to ask another hub."
    return printable(f"{said} {step}")
