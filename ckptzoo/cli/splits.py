"""``ckptzoo splits``: makes splits of a zoo by member, imports published ones, and shows them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptzoo.cli.options import AsJson, ZooAddress, ZooFolder, console, emit, folder, opened

if TYPE_CHECKING:
    from ckptzoo.loader.zoo import Zoo

splits = typer.Typer(
    name="splits", help="Parts of a zoo to train and test on, by member: make, import, show.", rich_markup_mode=None
)
SplitName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the split, such as main.", show_default=False)
]
_PARTS = ("train", "val", "test")
Fractions = tuple[float, float, float]


@splits.command()
def make(
    zoo: ZooFolder,
    name: SplitName,
    fractions: Annotated[
        Fractions,
        typer.Option(
            metavar="TRAIN VAL TEST", help="The fractions of the parts, which add up to 1; 0 leaves a part out."
        ),
    ] = (
        0.7,
        0.15,
        0.15,
    ),
    seed: Annotated[int, typer.Option(help="The seed; another one gives another split.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Split a zoo's members by their hashes.

    All checkpoints of a member are in one part, and no member moves when the zoo grows. zoo.split("main", "train") reads
    a part in Python.
    """
    import ckptzoo

    ckptzoo.make_split(folder(zoo), name, _by_part(fractions), seed=seed)
    _print(opened(zoo), name, as_json)


@splits.command("import")
def import_(
    zoo: ZooFolder,
    name: SplitName,
    lists: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="[PART=]FILE",
            help="A CSV with split and id, member or path; a JSON object of lists; or train=FILE, once for each part.",
        ),
    ] = None,
    order: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Instead of files: the number of a checkpoint on each line, to be cut into parts."
        ),
    ] = None,
    fractions: Annotated[
        Fractions | None,
        typer.Option(
            metavar="TRAIN VAL TEST", help="With --order: the fraction that each part has.", show_default=False
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="With --order: only cut checkpoints that satisfy it.")
    ] = None,
    header: Annotated[bool, typer.Option("--header", help="With --order: the file's first line is a header.")] = False,
    allow_shared_members: Annotated[
        bool,
        typer.Option("--allow-shared-members", help="Checkpoints of a member may be in several parts; it is recorded."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import a split that a paper published.

    Names are ids, members, or paths in the source that the zoo was imported from. A list that names something twice,
    something that the zoo lacks, or checkpoints of one member in several parts is refused.
    """
    from ckptzoo.hub.imports.split_lists import import_order, import_split

    root = folder(zoo)
    if (lists is None) == (order is None):
        raise typer.BadParameter("expected --from or --order, one of the two.")
    if order is not None:
        if fractions is None:
            raise typer.BadParameter("--order: expected --fractions TRAIN VAL TEST, which say how it is cut.")
        parts = _by_part(fractions)
        import_order(root, name, order, parts, where=where, header=header, allow_shared_members=allow_shared_members)
    else:
        if fractions is not None or where is not None or header:
            raise typer.BadParameter("--fractions, --where and --header are for --order; leave them out.")
        import_split(root, name, _files(lists or []), allow_shared_members=allow_shared_members)
    _print(opened(zoo), name, as_json)


@splits.command("list")
def list_(zoo: ZooAddress, as_json: AsJson = False) -> None:
    """List the splits of a zoo."""
    from ckptzoo.console import columns
    from ckptzoo.format.splits import read_split

    opened_zoo = opened(zoo)
    read = [read_split(opened_zoo.contents.files, name, opened_zoo.contents.identity) for name in opened_zoo.splits]
    if as_json:
        emit({"zoo": opened_zoo.name, "splits": [{"name": item.name, "parts": list(item.parts)} for item in read]})
        return
    table = columns("split", "parts")
    for item in read:
        table.add_row(item.name, ", ".join(item.parts))
    if read:
        console().print(table)
    else:
        print(f"{opened_zoo.name}: no splits; ckptzoo splits make makes one.")


@splits.command()
def show(zoo: ZooAddress, name: SplitName, as_json: AsJson = False) -> None:
    """Show how many members and checkpoints each part of a split has."""
    _print(opened(zoo), name, as_json)


def _by_part(fractions: Fractions) -> dict[str, float]:
    return {part: fraction for part, fraction in zip(_PARTS, fractions, strict=True) if fraction != 0}


def _files(lists: list[str]) -> str | dict[str, str]:
    """Return one file, or that of each part."""
    named = [text.partition("=") for text in lists]
    # a file's name may have = in it
    if len(lists) == 1 and (not named[0][1] or Path(lists[0]).exists()):
        return lists[0]
    files = {part: file for part, _, file in named if file}
    if len(files) < len(lists):
        raise typer.BadParameter("--from: expected one file, or PART=FILE for each part, each part once.")
    return files


def _print(zoo: "Zoo", name: str, as_json: bool) -> None:
    import pyarrow as pa

    from ckptzoo.console import columns
    from ckptzoo.format.splits import COLUMNS, part_counts, read_split
    from ckptzoo.schema.split import HashSplit
    from ckptzoo.text import counted

    split = read_split(zoo.contents.files, name, zoo.contents.identity)
    *counts, rest = part_counts(split, pa.table({column: zoo.column(column) for column in COLUMNS}))
    shared = not isinstance(split, HashSplit) and split.shared_members
    if as_json:
        how = {"by": "hash", "seed": split.seed} if isinstance(split, HashSplit) else {"by": split.by}
        parts = [vars(item) for item in counts]
        in_none = {"members": rest.members, "checkpoints": rest.checkpoints}
        emit({"zoo": zoo.name, "name": name, **how, "shared_members": shared, "parts": parts, "in_no_part": in_none})
        return
    table = columns("part", "members", "checkpoints")
    for item in counts:
        table.add_row(item.part, f"{item.members:,}", f"{item.checkpoints:,}")
    console().print(table)
    how = (
        f"by the hash of each member, seed {split.seed}" if isinstance(split, HashSplit) else f"as listed by {split.by}"
    )
    print(f"{zoo.name}, split {name}: {how}.")
    if rest.checkpoints:
        print(f"In no part: {counted(rest.checkpoints, 'checkpoint')} of {counted(rest.members, 'member')}.")
    if empty := [item.part for item in counts if not item.checkpoints]:
        print(f"Without checkpoints: {', '.join(map(str, empty))}; with so few members another seed may give it some.")
    if shared:
        print("Checkpoints of one member are in several parts: figures on them overstate what is known of others.")
