"""``ckptzoo mmd``: two sets of checkpoints compared layer by layer."""

import warnings
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.options import AsJson, VariantName, Where, opened
from ckptzoo.cli.output import bar, console, emit


class Kernels(StrEnum):
    """Which distances the bandwidths come from."""

    paper = "paper"
    fixed = "fixed"


def complete_others(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Names of the variants of the second zoo on the line, or of the first where there is no second."""
    given = [context.params.get("zoo"), context.params.get("other"), *context.args]
    address = [name for name in given if name][-1:]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [name for zoo in address for name in opened(str(zoo)).variants if name.startswith(incomplete)]
    except Exception:
        return []


def mmd(
    zoo: Annotated[str, typer.Argument(metavar="ZOO_X", help="The target's folder.", show_default=False)],
    other: Annotated[
        str, typer.Argument(metavar="ZOO_Y", help="The folder of the zoo to compare with it.", show_default=False)
    ],
    variant: VariantName = None,
    variant_y: Annotated[
        str | None,
        typer.Option(
            "--variant-y",
            metavar="NAME",
            help="The gauge of the second zoo's weights.  [default: that of the first]",
            autocompletion=complete_others,
        ),
    ] = None,
    where: Where = None,
    where_y: Annotated[
        str | None, typer.Option("--where-y", metavar="CONDITION", help="The same for the second zoo.")
    ] = None,
    bandwidths: Annotated[
        Kernels,
        typer.Option(
            help="paper: from distances between both; fixed: within the first, so that several can be compared with it."
        ),
    ] = Kernels.paper,
    permutations: Annotated[
        int, typer.Option(metavar="N", min=0, help="Exchange checkpoints so often for p-values.")
    ] = 0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the exchanges.")] = 0,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compute in torch there, such as cuda or cpu.  [default: numpy]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Where mmd.png and mmd.json go.  [default: mmd; nowhere without matplotlib]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how far apart two sets of checkpoints are.

    The maximum mean discrepancy of every layer, with twenty kernels, and its average over layers, as arXiv 2310.08287
    computes them: of each member's last step, in a gauge or as trained.
    """
    from ckptzoo.errors import MissingExtraError
    from ckptzoo.studies.discrepancy import mmd as compare
    from ckptzoo.studies.shown.drawn import need_matplotlib

    drawn = True
    try:
        need_matplotlib()
    except MissingExtraError:
        if output is not None:
            raise
        drawn = False
    first, second = opened(zoo, where), opened(other, where_y)
    with bar("reading weights", nbytes=True) as progress:
        found = compare(
            first,
            second,
            variant or "raw",
            variant_y,
            bandwidths=bandwidths.value,
            permutations=permutations,
            seed=seed,
            device=device,
            progress=progress,
        )
    files = found.plot(output or "mmd") if drawn else []
    if as_json:
        emit({**found.to_json(), "files": [str(path) for path in files]})
        return
    found.print(console())
    if files:
        print()
    for path in files:
        print(path)
