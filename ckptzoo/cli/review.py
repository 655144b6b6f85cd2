"""``ckptzoo review``: decide on a contribution."""

from typing import Annotated

import typer

from ckptzoo.cli.contribute import Data, Module, stages
from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import AsJson
from ckptzoo.cli.output import console, emit


def review(
    repository: Annotated[str, typer.Argument(metavar="ORG/ZOO", help="The zoo.", show_default=False)],
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Of the pull request.", show_default=False)],
    merge: Annotated[bool, typer.Option("--merge", help="Merge it if no check failed.")] = False,
    module: Module = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Check a pull request from the bytes on the hub.

    It may add new parts and nothing else. Everything is checked against the zoo as it is now, and accuracies are
    measured again where the test set is at hand. Exits with 1 if a check failed.
    """
    from ckptzoo.hub.client.session import quietly
    from ckptzoo.hub.reviewing import review as look

    with quietly(), stages() as progress:
        made = look(repository, number, merge=merge, module=module, data=data, progress=progress)
    if as_json:
        emit(made.to_json())
    else:
        made.print(console())
    if not made.passed:
        raise typer.Exit(PROBLEMS)
