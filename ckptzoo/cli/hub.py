"""The commands that need a hub: card, push, search, pull, contribute and review, as the README goes through them."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.completion import complete_layers, complete_variants, complete_zoos
from ckptzoo.cli.exits import PROBLEMS, InterruptedCommand
from ckptzoo.cli.options import (
    AsJson,
    Data,
    Module,
    Where,
    ZooAddress,
    ZooFolder,
    bar,
    console,
    emit,
    folder,
    print_result,
    proposing_names,
)
from ckptzoo.progress import progress_bars

if TYPE_CHECKING:
    from ckptzoo.hub.contributions.result import Contribution
    from ckptzoo.hub.pull import Pulled
    from ckptzoo.hub.search import FoundZoo, SearchResult

OwnTestSet = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.npz",
        help="Measure all accuracies on your own test set, as the networks take it: arrays inputs (N, ...), and "
        "targets (N,), labels from 0.  [default: the test sets that rows name]",
    ),
]
MAX_LINES = 60
"""Changed lines of a card that are printed; --json has them all."""


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
        bool, typer.Option("--check", help="Change nothing; exit with 1 where a file is not as it would be made.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the README.md of a zoo or a collection, and the croissant.json of a zoo, in a folder or on a hub.

    It says what the zoo holds, how to load it, how good the checkpoints are and how they were trained, with what
    card.toml adds; of a collection it has a line for each zoo, and card.toml may be left out. Prints what changed. On a
    hub its snapshot, or the collection's table, is brought up to date too, in the same commit.
    cards/template/card.toml shows every key.
    """
    from ckptzoo.schema.card import Card

    declared = None if facts is None else Card.from_toml(facts)
    if Path(zoo).is_dir():
        from ckptzoo.hub.card import write

        written = write(zoo, declared, check=check)
        described: dict[str, Any] = {"path": str(written.path), "notes": []}
        location, changes = str(written.path), written.changes
    else:
        from ckptzoo.hub.client.quiet import quietly
        from ckptzoo.hub.push import rewrite

        with quietly():
            rewritten = rewrite(_repository(zoo), declared, check=check)
        described = {"repository": rewritten.repository, "commit": rewritten.commit, "notes": list(rewritten.notes)}
        location, changes = rewritten.repository, rewritten.changes
    if as_json:
        emit({"zoo": zoo, **described, "written": not check, "changes": list(changes)})
    else:
        _print_changes(zoo, location, changes, check)
        for note in described["notes"]:
            print(f"note: {note}")
    if check and changes:
        raise typer.Exit(PROBLEMS)


def _repository(address: str) -> str:
    """Return an address that may be that of a repository; others are a folder's that is not there."""
    from ckptzoo.remote import candidates
    from ckptzoo.remote.address import HubAddress

    if not any(isinstance(place, HubAddress) for place in candidates(address)):
        folder(address)
    return address


def _print_changes(zoo: str, location: str, changes: Sequence[str], check: bool) -> None:
    """Print the changes, line by line, and the action."""
    from ckptzoo.schema import layout
    from ckptzoo.text import counted, printable

    for line in changes[:MAX_LINES]:
        print(printable(line))
    if len(changes) > MAX_LINES:
        print(f"... and {len(changes) - MAX_LINES:,} more lines")
    # the first two lines of a unified diff name the files
    named = [f"{sign} {name}" for name in (layout.README, layout.CROISSANT) for sign in ("---", "+++")]
    heads = {*named, *(f"{line}, generated" for line in named)}
    added, removed = (sum(line.startswith(sign) and line not in heads for line in changes) for sign in "+-")
    if not changes:
        print(f"{zoo}: the page is as it should be.")
    elif check:
        print(f"{zoo}: the page differs: {added:,} lines to add, {removed:,} to remove. Run ckptzoo card {quote(zoo)}.")
    else:
        print(f"{location}: written, {counted(added, 'line')} added, {removed:,} removed.")


def push(
    zoo: ZooFolder,
    to: Annotated[
        str,
        typer.Argument(metavar="ORG/NAME", help="The repository; also as hf://datasets/org/name.", show_default=False),
    ],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, if it is made.")] = False,
    message: Annotated[str | None, typer.Option(metavar="TEXT", help="The title of the commits.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be uploaded, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish a zoo or a collection.

    Uploads what the repository lacks, which is made where there is none. Of a collection each zoo goes into a folder of
    the repository; the table of all rows and the page follow. A push that was interrupted is carried on by
    the next: nothing is sent twice. The hub is that of HF_ENDPOINT, the token that of HF_TOKEN or hf auth login.
    """
    from ckptzoo.hub.client.quiet import quietly
    from ckptzoo.hub.push import plan, push_collection
    from ckptzoo.hub.push import push as push_zoo
    from ckptzoo.loader.collection import holds_zoos

    root = folder(zoo)
    with quietly():
        if dry_run:
            result = plan(root, to)
        else:
            with bar("uploading", nbytes=True) as progress:
                publish = push_collection if holds_zoos(root) else push_zoo
                result = publish(root, to, private=private, message=message, progress=progress)
    print_result(result, as_json)


def search(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Part of the repository's name.", show_default=False)
    ] = None,
    arch: Annotated[str | None, typer.Option(metavar="NAME", help="The architecture, such as resnet18.")] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="A data set that members were trained on, such as cifar100.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Another tag; may be given again.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many zoos to list, at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Find zoos and collections on a hub, those changed last first.

    The hub is $HF_ENDPOINT, else huggingface.co. What is shown is what the cards say; opening a zoo checks it.
    """
    from ckptzoo.hub.search import search as find

    result = find(arch, dataset, tag or (), text, limit)
    if as_json:
        emit(result.to_json())
        return
    if not result.zoos:
        print(_nothing(result))
        return
    from ckptzoo.console import columns
    from ckptzoo.text import printable

    shown = columns("repository", "architecture", "data set", "checkpoints", "licence", "updated")
    for zoo in result.zoos:
        shown.add_row(*map(printable, _row(zoo)))
    console().print(shown)
    if result.more:
        print(f"and others: --limit {2 * limit} shows more.")


def _row(zoo: "FoundZoo") -> tuple[str, ...]:
    from ckptzoo.text import counted

    return (
        zoo.repository + (" (private)" if zoo.private else ""),
        ", ".join(zoo.architectures),
        ", ".join(zoo.datasets),
        ("" if zoo.checkpoints is None else f"{zoo.checkpoints:,}")
        + ("" if zoo.zoos is None else f" in {counted(zoo.zoos, 'zoo')}"),
        zoo.license or "",
        "" if zoo.updated is None else zoo.updated.strftime("%Y-%m-%d"),
    )


def _nothing(result: "SearchResult") -> str:
    """Return that nothing was found, and how to relax the search."""
    from ckptzoo.text import printable

    nothing = f"{result.endpoint}: no zoo with the tags {', '.join(result.tags)}"
    nothing += f" and {result.text!r} in its name." if result.text else "."
    # one tag is that of all zoos, which every search asks for
    asked = len(result.tags) + (result.text is not None) - 1
    step = "Ask for less, or see all of them with ckptzoo search." if asked else "Set HF_ENDPOINT to ask another hub."
    return printable(f"{nothing} {step}")


def pull(
    zoo: Annotated[
        str,
        typer.Argument(
            metavar="ZOO",
            help="org/zoo, hf://datasets/org/zoo@revision, https://host/path/zoo, s3://bucket/zoo, or a folder.",
            show_default=False,
            autocompletion=complete_zoos,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="The folder to write; new, empty, or an earlier pull.",
            show_default=False,
        ),
    ],
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME",
            help="Only this gauge, or raw; may be given again. Without raw the weights as trained stay behind.",
            autocompletion=complete_variants,
        ),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            "--layers",
            metavar="NAMES",
            help="Only these tensors, layers or modules of layers: conv1,fc.",
            autocompletion=complete_layers,
        ),
    ] = None,
    where: Where = None,
    predictions: Annotated[
        list[str] | None,
        typer.Option(
            "--predictions",
            metavar="SETS",
            help="Keep the outputs on these sets, mnist/test,fashion-mnist/test, or all.  "
            "[default: all where nothing else is left out]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a zoo, a part of one that is itself a zoo, or all zoos of a collection.

    Every byte is checked. A pull that was interrupted is carried on by the same command, which fetches only what is
    missing; repeated later it brings what has been added since.
    """
    from ckptzoo.errors import IntegrityError
    from ckptzoo.hub.pull import pull as fetch
    from ckptzoo.hub.pull import pull_collection
    from ckptzoo.schema import layout

    options = {"variants": _split(variant), "where": where, "predictions": _split(predictions)}
    try:
        with bar("pulling", nbytes=True) as progress:
            try:
                results = (fetch(zoo, output, layers=_split(layers), progress=progress, **options),)
            # a repository is a zoo or a collection of zoos, which only its files tell
            except IntegrityError as error:
                if error.problem.what != layout.ZOO or layers is not None:
                    raise
                try:
                    results = pull_collection(zoo, output, progress=progress, **options)
                except IntegrityError as other:
                    # it is neither
                    raise (error if other.problem.location.endswith(layout.COLLECTION) else other) from None
    except KeyboardInterrupt:
        raise InterruptedCommand("what was fetched is kept; carry on with the same command.") from None
    if as_json:
        emit(results[0].to_json() if len(results) == 1 else {"zoos": [result.to_json() for result in results]})
        return
    if not results:
        print("No zoo of the collection has such checkpoints; nothing was fetched.")
    for result in results:
        several = len(results) > 1
        folder = output / os.path.relpath(result.folder, output.absolute())
        source = result.address.replace(str(Path(zoo).absolute()), zoo, 1)
        _print_pulled(result, *((str(folder), source) if several else (str(output), zoo)))


def materialize(
    zoo: ZooFolder,
    to: Annotated[
        Path,
        typer.Option("--to", metavar="ZOO", help="The new zoo's folder, or an earlier copy.", show_default=False),
    ],
    layers: Annotated[
        list[str] | None,
        typer.Option(
            "--layers",
            metavar="NAMES",
            help="Only these tensors, layers or modules of layers: conv1,fc.",
            autocompletion=complete_layers,
        ),
    ] = None,
    where: Where = None,
    follow: Annotated[
        str | None,
        typer.Option(
            "--follow",
            metavar="PLACE",
            help="Of a zoo that was not linked here: the folder of its files; public for public servers by https and "
            "the hub with your token; or a server, http://host.  [default: what ckptzoo link recorded here]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy the weights that a zoo refers to, or some of them, into a zoo that holds them.

    The zoo is one that ckptzoo link made. Every file is compared with what was linked, and with the digests that it
    has. A copy that was interrupted is carried on by the same command.
    """
    import ckptzoo
    from ckptzoo.text import counted, printable, size

    try:
        with bar("copying", nbytes=True) as progress:
            done = ckptzoo.materialize(
                folder(zoo),
                to,
                layers=_split(layers),
                where=where,
                follow=True if follow == "public" else follow,
                progress=progress,
            )
    except KeyboardInterrupt:
        raise InterruptedCommand("parts that were written are kept; carry on with the same command.") from None
    if as_json:
        emit(done.to_json())
        return
    counts = f"{counted(len(done.parts), 'part')} written, {done.there:,} were there; {size(done.nbytes)} copied."
    print(printable(f"{to}: {counted(done.checkpoints, 'checkpoint')} of {zoo}."))
    print(counts)


def _print_pulled(result: "Pulled", output: str, zoo: str) -> None:
    from ckptzoo.text import counted, printable, size

    counts = f"{counted(len(result.parts), 'part')} came, {result.there:,} were there"
    new_parts = counts if result.parts else "nothing was missing"
    print(printable(f"{output}: {counted(result.checkpoints, 'checkpoint')} ({', '.join(result.variants)}) of {zoo}."))
    print(f"{new_parts}; {size(result.fetched)} fetched.")
    print(printable(f"revision {result.revision}"))
    if result.left_out:
        step = f"--predictions {','.join(result.left_out)} brings them"
        print(printable(f"outputs on {', '.join(result.left_out)} were left out; {step}, into another folder."))


def _split(names: list[str] | None) -> list[str] | None:
    return [part.strip() for name in names for part in name.split(",") if part.strip()] if names else None


def contribute(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...", help="Files of safetensors, torch.save or numpy.savez, or a zoo.", show_default=False
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="ORG/ZOO", help="The zoo.", show_default=False)],
    card: Annotated[
        Path,
        typer.Option(
            "--card",
            metavar="FILE",
            help="contribution.toml; see cards/template/contribution.toml.",
            show_default=False,
        ),
    ],
    names: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="TOML with old and new names of tensors.")
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            metavar="FILE.py:NAME",
            help="A file of your own, which is executed here; NAME() makes the network, with the names of the zoo's "
            "tensors. Where names do not fit: with those of the files, to choose the right table [names].  "
            "[default: that of ckptzoo.archs]",
        ),
    ] = None,
    data: Data = None,
    inputs: OwnTestSet = None,
    new: Annotated[
        Path | None, typer.Option("--new", metavar="FOLDER", help="Where a new zoo is made.  [default: its name]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do everything but the upload.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring checkpoints to a zoo by a pull request.

    Reads the files as data, brings names, shapes and dtypes to the zoo's, measures accuracies where the test set is
    available, checks everything that a reviewer will check, and opens a pull request with one new part. Exits with 1
    if a check failed; nothing is uploaded then. Where there is no such zoo yet, a table [zoo] in the card begins one.
    """
    result = _brought(
        files, to=to, card=card, map=names, module=module, data=data, inputs=inputs, new=new, dry_run=dry_run
    )
    print_result(result, as_json)
    if result.status == "refused":
        raise typer.Exit(PROBLEMS)


def gather(
    zoo: ZooFolder,
    to: Annotated[
        str | None,
        typer.Option("--contribute", metavar="ORG/ZOO", help="Open a pull request with the parts; needs --card."),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option("--card", metavar="FILE", help="contribution.toml; see cards/template/contribution.toml."),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module", metavar="FILE.py:NAME", help="For --contribute: a file of your own, which is executed here."
        ),
    ] = None,
    data: Data = None,
    inputs: OwnTestSet = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="For --contribute: do everything but the upload.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make parts of what training loops recorded by ckptzoo.record.

    Runs that still record go on; what they save later is gathered by a later call. Files that are damaged, or not of
    this zoo, stay and are named, with exit code 1; the others are added. With --contribute the parts of the zoo that
    were not proposed to a zoo on a hub go there in one pull request, as by ckptzoo contribute; where that fails, the
    same command tries again with the same parts.
    """
    from ckptzoo.hub.contributions.submission import Submission
    from ckptzoo.recording.gathering import gather as make_parts
    from ckptzoo.recording.gathering import note_proposed, parts_alone, parts_to_propose

    if (to is None) != (card is None):
        raise typer.BadParameter("expected --contribute and --card together: the card says who brings the checkpoints.")
    if to is None and (module or data or inputs or dry_run):
        raise typer.BadParameter("expected --contribute with --module, --data, --inputs and --dry-run.")
    # a card that is not valid is said before anything is done
    submission = None if card is None else Submission.from_toml(card)
    root = folder(zoo)
    with bar("gathering") as progress:
        gathered = make_parts(root, progress=progress)
    result = None
    if to is not None and submission is not None and (parts := parts_to_propose(root, to)):
        with parts_alone(root, parts) as brought:
            result = _brought(
                [brought], to=to, card=submission, module=module, data=data, inputs=inputs, dry_run=dry_run
            )
        if result.status not in ("refused", "dry run"):
            note_proposed(root, to, parts)
    if as_json:
        emit({**gathered.to_json(), **({} if result is None else {"contribution": result.to_json()})})
    else:
        gathered.print(console())
        if result is not None:
            result.print(console())
        elif to is not None:
            print(f"{zoo}: every part was proposed to {to} before.")
    if gathered.problems or (result is not None and result.status == "refused"):
        raise typer.Exit(PROBLEMS)


def _brought(files: Sequence[Path], **options: Any) -> "Contribution":
    """Contribute files; a dry run leaves nothing behind."""
    from ckptzoo.hub.client.quiet import quietly
    from ckptzoo.hub.contributions.contribute import contribute as submit

    with proposing_names("the card, or to a file for --map"), quietly(), progress_bars() as progress:
        result = submit(files, progress=progress, **options)
    # without --new the part lies in a temporary folder
    if options.get("dry_run") and options.get("new") is None and result.folder is not None:
        shutil.rmtree(result.folder.parent, ignore_errors=True)
        result = replace(result, folder=None)
    return result


def review(
    repository: Annotated[str, typer.Argument(metavar="ORG/ZOO", help="The zoo.", show_default=False)],
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", min=1, help="The number of the pull request.", show_default=False)
    ],
    merge: Annotated[bool, typer.Option("--merge", help="Merge it if no check failed.")] = False,
    derive: Annotated[
        bool,
        typer.Option("--derive", help="With --merge: also add the variants and predictions that the zoo has."),
    ] = False,
    post: Annotated[bool, typer.Option("--post", help="Write the checks as a comment.")] = False,
    finish: Annotated[
        bool,
        typer.Option(
            "--finish", help="It was merged on the hub's page: do all of --merge --derive but the merge, and no check."
        ),
    ] = False,
    accept_near_copies: Annotated[
        bool,
        typer.Option(
            "--accept-near-copies",
            help="You have looked at checkpoints that compute nearly the same, and they are different networks.",
        ),
    ] = False,
    rebuild: Annotated[
        int | None,
        typer.Option(
            "--rebuild",
            metavar="N",
            min=1,
            help="Train N of the contributed members again, drawn at random, and compare all bits.",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds", metavar="S", min=0.0, help="The most seconds of training for --rebuild.  [default: 600]"
        ),
    ] = None,
    module: Module = None,
    data: Data = None,
    inputs: OwnTestSet = None,
    as_json: AsJson = False,
) -> None:
    """Check a pull request from the bytes on the hub.

    It may add new parts and nothing else. Everything is checked against the zoo as it is now, and accuracies are
    measured again where the test set is available. Exits with 1 if a check failed.
    """
    from ckptzoo.hub.client.quiet import quietly
    from ckptzoo.hub.contributions.finish import finish as finish_merged
    from ckptzoo.hub.contributions.review import review as check_pull_request
    from ckptzoo.loader.rebuilding import MAX_SECONDS

    if finish and (merge or derive or post or accept_near_copies or rebuild is not None):
        raise typer.BadParameter("it stands alone: the pull request is merged already", param_hint="--finish")
    if max_seconds is not None and rebuild is None:
        raise typer.BadParameter("add --rebuild N: it bounds the training of that", param_hint="--max-seconds")
    if derive and not merge:
        raise typer.BadParameter("add --merge: nothing is derived before a merge", param_hint="--derive")

    with quietly(), progress_bars() as progress:
        if finish:
            result = finish_merged(repository, number, module=module, data=data, inputs=inputs, progress=progress)
        else:
            result = check_pull_request(
                repository,
                number,
                merge=merge,
                derive=derive,
                post=post,
                accept_near_copies=accept_near_copies,
                module=module,
                data=data,
                inputs=inputs,
                rebuild=rebuild or 0,
                rebuild_seconds=MAX_SECONDS if max_seconds is None else max_seconds,
                progress=progress,
            )
    print_result(result, as_json)
    if not result.passed or (merge and result.merged is None):
        raise typer.Exit(PROBLEMS)
