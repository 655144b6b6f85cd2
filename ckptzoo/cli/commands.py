"""The commands that read, check and clear up one zoo; each is one call of the library, imported when it runs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.completion import complete_ids
from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import (
    AsJson,
    VariantName,
    Where,
    ZooAddress,
    ZooFolder,
    bar,
    emit,
    folder,
    opened,
    print_result,
)


def info(zoo: ZooAddress, where: Where = None, as_json: AsJson = False) -> None:
    """Say what a zoo is: counts, variants, size, accuracies.

    Of a collection, or of a folder whose folders are zoos, it lists the zoos.
    """
    from ckptzoo.studies.inventory import take_stock

    print_result(take_stock(zoo, where), as_json)


def verify(
    zoo: ZooFolder,
    shallow: Annotated[bool, typer.Option("--shallow", help="Check everything but the weights.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a zoo, or of all zoos of a collection or a folder.

    The card, its pictures and the explorer page have no digest, so that changes there are not found. Prints every
    problem found, with what was expected, what is there and what to do, and exits with 1 if there is one.
    """
    import ckptzoo
    from ckptzoo.loader.collection import holds_zoos, verify_collection
    from ckptzoo.text import counted, printable

    root = folder(zoo)
    check = verify_collection if holds_zoos(root) else ckptzoo.verify
    with bar("verifying", nbytes=True) as progress:
        problems = check(root, deep=not shallow, progress=progress)
    if as_json:
        # the first of a problem's facts is named "where" in this output, though it is an attribute ``location``
        listed = [asdict(problem) for problem in problems]
        described = [{"where": item.pop("location"), **item} for item in listed]
        emit({"zoo": zoo, "deep": not shallow, "problems": described})
    else:
        for problem in problems:
            print(printable(str(problem)))
        unread = "the card, its pictures and pages/explorer.html, which have no digest"
        read = "everything but the weights was checked" if shallow else f"every byte was checked but those of {unread}"
        print(f"{zoo}: {counted(len(problems), 'problem')} found." if problems else f"{zoo}: no problem found; {read}.")
    if problems:
        raise typer.Exit(PROBLEMS)


def show(
    zoo: ZooAddress,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where the pictures go.  [default: <zoo>-pictures]"),
    ] = None,
    variant: VariantName = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Draw a zoo.

    Writes accuracy.png (histogram), marginals.png (weights per layer, raw against derived), scatter.png (two weights
    of one output neuron) and summary.json.
    """
    from ckptzoo.studies.overview import overview

    chosen = opened(zoo, where)
    with bar("reading weights", nbytes=True) as progress:
        result = overview(chosen, variant, progress=progress)
    print_result(result, as_json, result.plot(output if output is not None else f"{chosen.name}-pictures"))


def compact(
    zoo: ZooFolder,
    index: Annotated[bool, typer.Option("--index", help="Write rows and index of all parts into one file.")] = True,
) -> None:
    """Make a zoo of many parts open fast, and ready for a web server.

    Writes rows and index of all parts into one snapshot, and listing.json, which says to readers of a web server which
    files there are. The parts stay as they are.
    """
    import ckptzoo

    snapshot = ckptzoo.compact(folder(zoo))
    print(f"{zoo}: no parts, nothing to write." if snapshot is None else snapshot)


def retract(
    zoo: ZooFolder,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False, autocompletion=complete_ids)],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, in a sentence.", show_default=False)],
    contributor: Annotated[str | None, typer.Option(metavar="NAME", help="Who withdraws them.")] = None,
) -> None:
    """Withdraw checkpoints.

    Readers leave them out from now on and say so; their bytes stay.
    """
    import ckptzoo
    from ckptzoo.text import counted

    count = ckptzoo.retract(folder(zoo), ids, reason=reason, contributor=contributor)
    print(f"{zoo}: {counted(count, 'checkpoint')} retracted.")
