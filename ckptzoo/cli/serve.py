"""``ckptzoo serve``: the hub's protocol from a folder."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

serve = typer.Typer(name="serve", help="Host zoos: the hub's protocol from a folder.", rich_markup_mode=None)

Root = Annotated[
    Path, typer.Option("--root", metavar="FOLDER", help="Where everything is kept; made where there is none.")
]


@serve.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    root: Annotated[Path | None, typer.Option("--root", metavar="FOLDER", help="Where everything is kept.")] = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 is any free one.")] = 8000,
    private: Annotated[bool, typer.Option("--private", help="Nothing is readable without a token.")] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", help="The address that clients know, where it is not this machine's own."),
    ] = None,
    connections: Annotated[
        int | None,
        typer.Option("--connections", min=1, help="How many connections one address may hold; more behind a proxy."),
    ] = None,
    quota: Annotated[
        str | None, typer.Option("--quota", metavar="SIZE", help="What each contributor may send in all: 100GB.")
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="PLAN",
            help="For tests: go wrong on purpose, such as seed=1,rate=0.1,kinds=reset+broken,operations=blob.",
        ),
    ] = None,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="For tests: answer GET /_ledger on this machine with what was asked.")
    ] = False,
) -> None:
    """Host zoos: the hub's protocol from a folder.

    Clients use it with HF_ENDPOINT=http://127.0.0.1:8000 and HF_HUB_DISABLE_XET=1. The protocol is plain HTTP: beyond
    one machine, put a proxy with TLS in front of it.
    """
    # Typer calls this also before ckptzoo serve token
    if context.invoked_subcommand is not None:
        return
    if root is None:
        raise typer.BadParameter("expected --root FOLDER, got none.")
    _need_server()
    from ckptzoo.server.app import Application
    from ckptzoo.server.errors import ServerLimits
    from ckptzoo.server.run import serve as run_server
    from ckptzoo.server.service import Service
    from ckptzoo.server.testing import FaultPlan, layered
    from ckptzoo.text import parse_size

    plan = None if faults is None else FaultPlan.parse(faults)
    limits = ServerLimits()
    if connections is not None:
        limits = replace(limits, connections=connections)
    if quota is not None:
        limits = replace(limits, contributor_bytes=parse_size(quota, location="--quota"))
    service = Service(root, private=private, url=url, limits=limits)
    try:
        app = layered(Application(service), plan=plan, readable=ledger).app if plan or ledger else Application(service)
        run_server(app, host, port, lambda address: print(f"{root}: serving at {address}", flush=True), limits=limits)
    finally:
        service.close()


@serve.command()
def token(
    root: Root,
    user: Annotated[str, typer.Option("--user", help="Whose it is; also the namespace of what they create.")] = "user",
    write: Annotated[bool, typer.Option("--write", help="It may change everything.")] = False,
    contribute: Annotated[bool, typer.Option("--contribute", help="It may read, and open pull requests.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Make none; remove every token of the user.")] = False,
) -> None:
    """Make a token and print it; it may only read, unless an option allows more.

    Only its digest is kept, so it cannot be shown again. The server may be running.
    """
    if write + contribute + revoke > 1:
        raise typer.BadParameter("expected one of --write, --contribute and --revoke, got several.")
    _need_server()
    from ckptzoo.server.service import database_of
    from ckptzoo.server.store import tokens

    database = database_of(root)
    try:
        with database.writing() as connection:
            if revoke:
                print(f"{user}: {tokens.revoke(connection, user)} removed.")
            else:
                role = "write" if write else "contribute" if contribute else "read"
                print(tokens.make_token(connection, user, role))
    finally:
        database.close()


def _need_server() -> None:
    """Raise unless what the server is made of is installed."""
    from ckptzoo.errors import require

    for module in ("starlette", "uvicorn", "yaml"):
        require(module, "server")
