"""``ckptzoo study``: questions that are put to a whole zoo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptzoo.cli.options import AsJson, Where, ZooAddress, complete_variants, opened
from ckptzoo.cli.output import bar, console, emit

if TYPE_CHECKING:
    from ckptzoo.studies.permutations import Permutations
    from ckptzoo.studies.symmetries import Symmetries

Studied = Annotated[
    str,
    typer.Option("--variant", metavar="NAME", help="The derived variant to study.", autocompletion=complete_variants),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write pictures and a JSON file there.")
]

study = typer.Typer(name="study", help="Put a question to a zoo.", rich_markup_mode=None)


@study.command()
def symmetries(
    zoo: ZooAddress,
    variant: Studied = "canonical",
    output: Output = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """How much of a zoo is symmetry?

    Counts of the symmetries, how well the gauge is defined, and how far raw checkpoints are from it.
    """
    from ckptzoo.studies.symmetries import symmetries as ask

    chosen = opened(zoo, where)
    with bar("reading weights", nbytes=True) as progress:
        found = ask(chosen, variant, progress=progress)
    _told(found, output, as_json)


@study.command()
def permutations(
    zoo: ZooAddress,
    variant: Studied = "canonical",
    output: Output = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """How does the order of the neurons move during training?

    Follows members from kept step to kept step; build them with --keep-steps.
    """
    from ckptzoo.studies.permutations import permutations as ask

    chosen = opened(zoo, where)
    with bar("following members") as progress:
        found = ask(chosen, variant, progress=progress)
    _told(found, output, as_json)


def _told(found: "Symmetries | Permutations", output: Path | None, as_json: bool) -> None:
    files = [] if output is None else found.plot(output)
    if as_json:
        emit({**found.to_json(), "files": [str(path) for path in files]})
        return
    found.print(console())
    if files:
        print()
    for path in files:
        print(path)
