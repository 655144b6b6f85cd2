"""``ckptzoo push``: publish a zoo."""

from typing import Annotated

import typer

from ckptzoo.cli.options import AsJson, ZooFolder, folder
from ckptzoo.cli.output import bar, console, emit


def push(
    zoo: ZooFolder,
    to: Annotated[
        str,
        typer.Argument(metavar="ORG/NAME", help="The repository; also as hf://datasets/org/name.", show_default=False),
    ],
    private: Annotated[bool, typer.Option("--private", help="If it is made, one that is not public.")] = False,
    message: Annotated[str | None, typer.Option(metavar="TEXT", help="The title of the commits.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be uploaded, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish a zoo.

    Uploads what the repository lacks, which is made where there is none. A push that was interrupted is carried on by
    the next: nothing is sent twice. The hub is that of HF_ENDPOINT, the token that of HF_TOKEN or hf auth login.
    """
    from ckptzoo.hub.client.session import quietly
    from ckptzoo.hub.publishing import plan
    from ckptzoo.hub.publishing import push as publish

    root = folder(zoo)
    with quietly():
        if dry_run:
            found = plan(root, to)
        else:
            with bar("uploading", nbytes=True) as progress:
                found = publish(root, to, private=private, message=message, progress=progress)
    if as_json:
        emit(found.to_json())
    else:
        found.print(console())
