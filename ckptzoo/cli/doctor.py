"""``ckptzoo doctor``: what is wrong with an installation, its machine, its hub or a zoo, and what to do."""

from typing import Annotated

import typer

from ckptzoo.cli.completion import complete_zoos
from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import ADDRESS, AsJson, print_result


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
