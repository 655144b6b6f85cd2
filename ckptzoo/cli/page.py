"""``ckptzoo page``: a zoo as a page for a browser."""

from pathlib import Path
from typing import Annotated

import typer

from ckptzoo.cli.options import AsJson, Where, ZooAddress, bar, folder, print_result


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
