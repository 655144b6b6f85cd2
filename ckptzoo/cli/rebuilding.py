"""``ckptzoo rebuild``, and the options of ``ckptzoo verify`` with which members are trained again."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.options import AsJson, ZooAddress, bar, emit, expand_dataclasses, opened

if TYPE_CHECKING:
    from ckptzoo.loader.rebuilding import Rebuilt

Recipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        help="The recipe that trained them, a name or a .toml file.  [default: made from each row]",
        show_default=False,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FOLDER", exists=True, help="The folder of data sets.  [default: that of CKPTZOO_DATA]"
    ),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(
        "--max-seconds",
        metavar="S",
        min=0.0,
        help="The most seconds of training; what would take longer is refused after half a second.  [default: 600]",
        show_default=False,
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory", metavar="SIZE", help="The most memory of training.  [default: 8GiB]", show_default=False
    ),
]


@dataclass(frozen=True)
class TrainingArguments:
    """The options of everything that trains members again."""

    recipe: Recipe = None
    data: Data = None
    max_seconds: MaxSeconds = None
    max_memory: MaxMemory = None

    def given(self) -> dict[str, Any]:
        """Return those that were given, as keyword arguments of ``Zoo.at`` and ``Zoo.rebuild``."""
        from ckptzoo.text import parse_size

        nbytes = None if self.max_memory is None else parse_size(self.max_memory, location="--max-memory")
        values = {"recipe": self.recipe, "data": self.data, "max_seconds": self.max_seconds, "max_bytes": nbytes}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class RebuildArguments(TrainingArguments):
    """The options of ``ckptzoo verify`` that are for members that are trained again."""

    rebuild: Annotated[
        int | None,
        typer.Option(
            "--rebuild", metavar="N", min=1, help="Train N members again, drawn at random, and compare all bits."
        ),
    ] = None
    member: Annotated[
        list[str] | None, typer.Option("--member", metavar="NAME", help="Train this member again; repeat it.")
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            help="Of the draw of --rebuild.  [default: another one each time]",
            show_default=False,
        ),
    ] = None
    mark: Annotated[
        str | None,
        typer.Option(
            "--mark",
            metavar="NAME",
            help="Write into the zoo that you, of this name, trained those again whose bits came out.",
        ),
    ] = None

    def check(self) -> None:
        """Refuse options that have no effect together, and a name that no mark can have, before anything is trained."""
        from ckptzoo.schema.reproduction import check_name

        if self.mark is not None:
            check_name(self.mark)
        if self.rebuild is not None and self.member:
            raise typer.BadParameter("expected one of --rebuild N and --member NAME, got both.")
        if self.seed is not None and self.rebuild is None:
            raise typer.BadParameter("--seed: expected --rebuild N, whose draw it is for, got none.")
        if not self.wanted and (self.mark is not None or self.given()):
            raise typer.BadParameter("expected --rebuild N or --member NAME with options of training, got none.")

    @property
    def wanted(self) -> bool:
        """Whether members are to be trained again."""
        return self.rebuild is not None or bool(self.member)

    def carry_out(self, zoo: str) -> "Rebuilt":
        """Train members of a zoo's folder again."""
        chosen = self.member or self.rebuild or 1
        with bar("training") as progress:
            return opened(zoo).rebuild(chosen, seed=self.seed, progress=progress, **self.given())

    def write_mark(self, zoo: str, rebuilt: "Rebuilt") -> None:
        """Mark the checkpoints that are reproduced where that is asked for."""
        from ckptzoo.format.reproductions import add_reproduction

        if self.mark is not None:
            add_reproduction(zoo, rebuilt.ids, by=self.mark, on=rebuilt.environment)


@expand_dataclasses
def rebuild(
    zoo: ZooAddress,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="As in the column member.", show_default=False)],
    step: Annotated[int, typer.Option("--step", metavar="N", min=0, help="Optimiser steps taken.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="A .safetensors or a .pt file, of which an older one is replaced; or a folder.",
            show_default=False,
        ),
    ],
    options: TrainingArguments,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Go on to the next kept step, whose bits must come out.")
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a folder that is not empty, with everything in it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a member at any step of its training, kept or not.

    Where the step was not kept, the member is trained again from the nearest kept step before it, or from the beginning
    where its optimiser has more state than the weights. Needs the extra build, and the data set.
    """
    from ckptzoo.hub.exports import check_target
    from ckptzoo.hub.exports import export as write

    whole = opened(zoo)
    check_target(output, zoo=whole, force=force)
    checkpoint = whole.at(member, step=step, check=check, **options.given())
    files = write(checkpoint, output, zoo=whole, facts={}, force=force)
    if as_json:
        emit({"zoo": zoo, "id": checkpoint.id, "step": step, "files": [str(path) for path in files]})
        return
    print(output)
