"""The commands that show, check and clear up zoos; each is one call of the library, imported when it runs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.completion import complete_ids, complete_zoos
from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import (
    ADDRESS,
    AsJson,
    VariantName,
    Where,
    ZooAddress,
    ZooFolder,
    bar,
    console,
    emit,
    expand_dataclasses,
    folder,
    opened,
    print_result,
)
from ckptzoo.cli.rebuilding import RebuildArguments


def info(zoo: ZooAddress, where: Where = None, as_json: AsJson = False) -> None:
    """Say what a zoo is: counts, variants, size, accuracies.

    Of a collection, or of a folder whose folders are zoos, it lists the zoos.
    """
    from ckptzoo.studies.inventory import take_stock

    print_result(take_stock(zoo, where), as_json)


@expand_dataclasses
def verify(
    zoo: ZooFolder,
    shallow: Annotated[bool, typer.Option("--shallow", help="Check documents, indices and rows alone.")] = False,
    *,
    rebuilding: RebuildArguments,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a zoo, or of all zoos of a collection or a folder.

    The card, its pictures and the explorer page have no digest, so that changes there are not found. Prints every
    problem found, with what was expected, what is there and what to do, and exits with 1 if there is one.

    With --rebuild N or --member NAME, members of a sound zoo are trained again from what their rows say, and every bit
    is compared: the command exits with 1 if one differs or cannot be trained. Needs the extra build, and the data set.
    """
    import ckptzoo
    from ckptzoo.format.digests import reference_summary
    from ckptzoo.format.files import Folder
    from ckptzoo.format.reader import read_contents
    from ckptzoo.loader.collection import holds_zoos, verify_collection
    from ckptzoo.recording.units import hint, waiting_units
    from ckptzoo.text import counted, printable

    rebuilding.check()
    root = folder(zoo)
    if rebuilding.wanted and holds_zoos(root):
        raise typer.BadParameter(f"{zoo}: expected one zoo to rebuild members of, got a folder of several.")
    check = verify_collection if holds_zoos(root) else ckptzoo.verify
    with bar("verifying", nbytes=True) as progress:
        problems = check(root, deep=not shallow, progress=progress)
    waiting = waiting_units(root)
    rebuilt = rebuilding.carry_out(zoo) if rebuilding.wanted and not problems else None
    if as_json:
        # the first of a problem's facts is named "where" in this output, though it is an attribute ``location``
        listed = [asdict(problem) for problem in problems]
        described = [{"where": item.pop("location"), **item} for item in listed]
        said = {} if rebuilt is None else {"rebuilt": rebuilt.to_json()}
        emit({"zoo": zoo, "deep": not shallow, "problems": described, "waiting": waiting, **said})
    else:
        for problem in problems:
            print(printable(str(problem)))
        unread = "the card, its pictures and pages/explorer.html, which have no digest"
        read = (
            "documents, indices and rows were checked, and no shard"
            if shallow
            else f"every byte was checked but those of {unread}"
        )
        print(f"{zoo}: {counted(len(problems), 'problem')} found." if problems else f"{zoo}: no problem found; {read}.")
        if not problems and not holds_zoos(root) and (summary := reference_summary(read_contents(Folder(root)))):
            print(f"{zoo}: {summary}.")
        if waiting:
            print(hint(zoo, waiting))
        if rebuilt is not None:
            rebuilt.print(console())
    if rebuilt is not None:
        # what was found in hours of training is printed even where no mark can be written
        rebuilding.write_mark(zoo, rebuilt)
    if problems or (rebuilt is not None and rebuilt.reproduced < len(rebuilt.members)):
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
    merge_parts: Annotated[
        bool, typer.Option("--merge-parts", help="Write a new zoo of few parts instead; needs --to.")
    ] = False,
    to: Annotated[Path | None, typer.Option(metavar="NEWZOO", help="The new zoo's folder.")] = None,
) -> None:
    """Make a zoo of many parts open fast, and ready for a web server.

    Writes rows and index of all parts into one snapshot, and listing.json, which says to readers of a web server which
    files there are. The parts stay as they are. With --merge-parts a new zoo has the same checkpoints, and what was
    derived of them, in few parts; its revision is another, and its card names that of the zoo.
    """
    import ckptzoo
    from ckptzoo.text import counted

    if merge_parts != (to is not None):
        raise typer.BadParameter("expected --merge-parts and --to NEWZOO together: parts of a zoo never change.")
    if to is not None:
        with bar("merging") as progress:
            merged = ckptzoo.merge_parts(folder(zoo), to, progress=progress)
        for tree, (before, after) in merged.items():
            print(f"{to}/{tree}: {counted(after, 'part')} from {before:,}.")
        return
    snapshot = ckptzoo.compact(folder(zoo))
    print(f"{zoo}: no parts, nothing to write." if snapshot is None else snapshot)


def retract(
    zoo: ZooFolder,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False, autocompletion=complete_ids)],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, in a sentence.", show_default=False)],
    contributor: Annotated[str | None, typer.Option(metavar="NAME", help="The person who withdraws them.")] = None,
) -> None:
    """Withdraw checkpoints.

    Readers leave them out from now on and say so; their bytes stay.
    """
    import ckptzoo
    from ckptzoo.text import counted

    count = ckptzoo.retract(folder(zoo), ids, reason=reason, contributor=contributor)
    print(f"{zoo}: {counted(count, 'checkpoint')} retracted.")


def page(
    zoo: ZooAddress,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page; an older one is replaced.")
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option("--layers", metavar="NAME", help="Layers whose weights are shown; repeat it, or join by commas."),
    ] = None,
    where: Where = None,
    max_rows: Annotated[
        int | None, typer.Option("--max-rows", metavar="N", help="Members of the page.  [default: 200,000]", min=1)
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Write pages/explorer.html in the zoo's folder, which push carries.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a page with which to look at a zoo in a browser.

    One file that needs no network: linked histograms, principal components of the weights with and without
    symmetries, marginals, trajectories, a table, and code that selects what is selected there.
    """
    import ckptzoo
    from ckptzoo.explorer import page as write_page
    from ckptzoo.explorer.building import MAX_ROWS
    from ckptzoo.schema import layout

    if (output is None) != in_place:
        got = "both" if in_place else "none"
        raise typer.BadParameter(f"expected one of -o FILE and --in-place, got {got}.")
    target = folder(zoo) / layout.EXPLORER if output is None else output
    opened = ckptzoo.open(zoo)
    if in_place:
        target.parent.mkdir(exist_ok=True)
    named = [name for item in layers or () for name in item.split(",") if name]
    with bar("reading layers") as progress:
        result = write_page(opened, target, layers=named, where=where, max_rows=max_rows or MAX_ROWS, progress=progress)
    print_result(result, as_json)


def collection(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder whose folders are zoos.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Make the zoos in a folder one collection: collection.json and a table of all rows.

    Write it again where zoos have grown. ckptzoo.open_collection(FOLDER).where(...) then opens only the zoos that a
    condition needs.
    """
    from ckptzoo.console import columns
    from ckptzoo.loader.collection import open_collection, write_collection

    write_collection(folder)
    opened = open_collection(folder)
    if as_json:
        emit({"name": opened.name, "checkpoints": len(opened), "zoos": [entry.to_json() for entry in opened.entries]})
        return
    table = columns("zoo", "checkpoints", "name", "revision")
    for entry in opened.entries:
        table.add_row(entry.folder, f"{entry.checkpoints:,}", entry.name, entry.revision[:19])
    console().print(table)


def doctor(
    zoo: Annotated[
        str | None, typer.Argument(metavar="ZOO", help=ADDRESS, show_default=False, autocompletion=complete_zoos)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this installation, its machine and its hub, and a zoo; exit with 1 if there is a problem.

    Nothing is changed, and no token is shown: the output can be sent to others. Of a zoo one block of weights is read;
    ckptzoo verify reads all.
    """
    from ckptzoo.doctor import examine

    examination = examine(zoo)
    print_result(examination, as_json)
    if examination.problems:
        raise typer.Exit(PROBLEMS)


def audit(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE_OR_ZOO...",
            help="Zoos, folders, files, https:// or hf://; 'hf://org/model@step*'; a list of them (.txt).",
            show_default=False,
        ),
    ],
    everything: Annotated[
        bool, typer.Option("--all", help="Read every number: NaN anywhere, and equal weights compared whole.")
    ] = False,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", metavar="PATTERN", help="Only files whose path, name or folder fits."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="No files whose path, name or folder fits."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for steps of training runs that are not what they say they are; exit with 1 if something was found.

    Finds copies of other steps and of other runs, swapped steps, weights that belong to no trajectory, missing steps,
    steps whose files say another step, other tensors, NaN. Nothing is downloaded: of each file the header and a few
    slices are read. The audit log on the pages of ckptzoo serve is something else.
    """
    from ckptzoo.hub.audits import audit as audit_sources

    with bar("looking", nbytes=True) as progress:
        result = audit_sources(
            sources, include=include or (), exclude=exclude or (), everything=everything, progress=progress
        )
    print_result(result, as_json)
    if result.findings:
        raise typer.Exit(PROBLEMS)
