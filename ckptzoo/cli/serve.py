"""``ckptzoo serve``: the hub's protocol from a folder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptzoo.cli.exits import PROBLEMS
from ckptzoo.cli.options import AsJson, bar, complain, console, emit, print_result

if TYPE_CHECKING:
    import sqlite3
    from datetime import timedelta

    from ckptzoo.server.service import Service
    from ckptzoo.server.store.backup import Copied

serve = typer.Typer(name="serve", help="Host zoos: the hub's protocol from a folder.", rich_markup_mode=None)

_SECRET_LETTERS = 16
Root = Annotated[
    Path, typer.Option("--root", metavar="FOLDER", help="The folder of the server; made where there is none.")
]


@serve.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    root: Annotated[Path | None, typer.Option("--root", metavar="FOLDER", help="The folder of the server.")] = None,
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
        str | None,
        typer.Option("--quota", metavar="SIZE", help="The total size that each contributor may upload: 100GB."),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy",
            metavar="ADDRESS",
            help="The address of a proxy whose X-Forwarded-* headers are trusted. Repeatable.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="RATE", help="Requests of one address at most, such as 3000/minute."),
    ] = None,
    metrics_token: Annotated[
        Path | None,
        typer.Option(
            "--metrics-token", metavar="FILE", help="Answer /metrics to clients that send the token in this file."
        ),
    ] = None,
    oidc: Annotated[
        Path | None, typer.Option("--oidc", metavar="FILE", help="Let users sign in with an OpenID provider; TOML.")
    ] = None,
) -> None:
    """Host zoos: the hub's protocol from a folder.

    Clients use it with HF_ENDPOINT=http://127.0.0.1:8000, and to upload large files HF_HUB_DISABLE_XET=1; ckptzoo needs
    neither that nor hf_xet. The protocol is plain HTTP: beyond one machine, put a proxy with TLS in front of it.
    """
    # Typer calls this also before ckptzoo serve token
    if context.invoked_subcommand is not None:
        return
    if root is None:
        raise typer.BadParameter("expected --root FOLDER, got none.")
    _need_server()
    from ckptzoo.server.app import Application
    from ckptzoo.server.limits import ServerLimits
    from ckptzoo.server.oidc import provider_in
    from ckptzoo.server.run import serve as run_server
    from ckptzoo.server.service import Service
    from ckptzoo.text import parse_size

    limits = ServerLimits()
    if connections is not None:
        limits = replace(limits, connections=connections)
    if quota is not None:
        limits = replace(limits, contributor_bytes=parse_size(quota, location="--quota"))
    if rate is not None:
        limits = replace(limits, rates={**limits.rates, "requests": _rate(rate)})
    service = Service(
        root,
        private=private,
        url=url,
        limits=limits,
        metrics_token=None if metrics_token is None else _token_in(metrics_token),
        oidc=None if oidc is None else provider_in(oidc),
    )
    try:
        # Ctrl-C and SIGTERM are how a server ends: once it has answered what it was asked, with exit code 0
        with suppress(KeyboardInterrupt):
            run_server(Application(service), host, port, partial(_ready, service), limits=limits, proxies=proxy or ())
    finally:
        service.close()


def _rate(text: str) -> str:
    from limits import parse

    try:
        parse(text)
    except ValueError:
        raise typer.BadParameter(f"--rate: expected one such as 3000/minute, got {text!r:.100}.") from None
    return text


def _token_in(path: Path) -> str:
    text = path.read_text().strip()
    if len(text) < _SECRET_LETTERS:
        raise typer.BadParameter(f"--metrics-token: {path}: expected {_SECRET_LETTERS} characters or more.")
    return text


def _ready(service: "Service", address: str) -> None:
    """Report the address that is served, and keep it for the links of ``serve user``."""
    from ckptzoo.server.store.database import set_setting

    with service.database.writing() as connection:
        set_setting(connection, "address", (service.url or address).rstrip("/"))
    # what goes to a pipe or a file is kept back otherwise, and whoever started the server waits for this line
    print(f"{service.root}: serving at {address}", flush=True)


@serve.command()
def user(
    root: Root,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The name of the account.", show_default=False)
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke its tokens, memberships and grants.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List all users.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the account of a person, whose name is also the namespace of what they publish.

    It prints a link that signs in to the pages once, within 24 hours; for an account that is there, another one. A name
    stays taken when its account is revoked, because its repositories stay.
    """
    _one_of(name, list_, revoke)
    link = None
    with _writing(root) as connection:
        from ckptzoo.server.store import accounts, sessions
        from ckptzoo.server.store.audit import OPERATOR
        from ckptzoo.server.store.database import setting

        if name is not None and revoke:
            accounts.revoke(connection, name, actor=OPERATOR)
        elif name is not None:
            address = setting(connection, "address") or "http://127.0.0.1:8000"
            link = f"{address}/-/link/{sessions.make_link(connection, name, actor=OPERATOR)}"
        users = [item for item in accounts.listed(connection, accounts.USER) if name in (None, item.name)]
        rows = [{**vars(item), "organisations": accounts.organisations(connection, item.name)} for item in users]
    if as_json:
        emit({"users": rows, "link": link})
        return
    _show("users", rows, as_json, ("name", "disabled", "organisations", "created"))
    if link is not None:
        from ckptzoo.server.store.sessions import LINK_HOURS

        print(f"Signs in once, within {LINK_HOURS} hours: {link}")


@serve.command()
def org(
    root: Root,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The name of the organisation.", show_default=False)
    ] = None,
    member: Annotated[
        str | None, typer.Option("--member", metavar="USER", help="The user whose membership is set or ended.")
    ] = None,
    role: Annotated[
        str, typer.Option("--role", help="The member's role in its namespace: read, contribute, write or admin.")
    ] = "write",
    revoke: Annotated[
        bool, typer.Option("--revoke", help="End the membership of --member, or that of all, and all grants.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List all organisations.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an organisation, or a user a member of it.

    Its name is a namespace, in which its members have their roles.
    """
    _one_of(name, list_, revoke or member is not None)
    with _writing(root) as connection:
        from ckptzoo.server.store import accounts
        from ckptzoo.server.store.audit import OPERATOR

        if name is not None and revoke and member is None:
            accounts.revoke(connection, name, actor=OPERATOR)
        elif name is not None:
            if not revoke:
                accounts.add(connection, name, accounts.ORGANISATION, actor=OPERATOR)
            if member is not None:
                accounts.set_member(connection, name, member, None if revoke else role, actor=OPERATOR)
        organisations = [
            item for item in accounts.listed(connection, accounts.ORGANISATION) if name in (None, item.name)
        ]
        rows = [{**vars(item), "members": accounts.members(connection, item.name)} for item in organisations]
    _show("organisations", rows, as_json, ("name", "disabled", "members", "created"))


@serve.command()
def grant(
    root: Root,
    account: Annotated[
        str | None, typer.Argument(metavar="ACCOUNT", help="A user or an organisation.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="PLACE", help="A namespace, or a repository org/name.", show_default=False)
    ] = None,
    role: Annotated[str, typer.Option("--role", help="read, contribute, write or admin.")] = "read",
    kind: Annotated[
        str, typer.Option("--kind", help="The type of the repository: dataset, model or space.")
    ] = "dataset",
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke the grant.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List all grants.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give an account a role in a namespace or a repository that is not its own.

    An organisation's grant is for all its members, each up to their role in it. Whoever has none reads what is public,
    and opens pull requests there.
    """
    _one_of(account, list_, revoke)
    if account is not None and target is None:
        raise typer.BadParameter("expected ACCOUNT PLACE, such as ada lab/zoo.")
    with _writing(root) as connection:
        from ckptzoo.server.errors import no_repository
        from ckptzoo.server.store import accounts, repositories
        from ckptzoo.server.store.audit import OPERATOR

        if account is not None and target is not None:
            granted: str | int = target
            if "/" in target:
                repository = repositories.find(connection, kind, target)
                if repository is None:
                    raise no_repository(f"{kind} {target}")
                granted = repository.id
            accounts.set_grant(connection, account, granted, None if revoke else role, actor=OPERATOR)
        rows = [vars(item) for item in accounts.grants(connection, account)]
    _show("grants", rows, as_json, ("account", "target", "role"))


@serve.command()
def token(
    root: Root,
    user: Annotated[
        str, typer.Option("--user", help="The owner of the token; the account is made where there is none.")
    ] = "user",
    write: Annotated[bool, typer.Option("--write", help="It may do all that its owner may.")] = False,
    contribute: Annotated[bool, typer.Option("--contribute", help="It may read, and open pull requests.")] = False,
    name: Annotated[str, typer.Option("--name", help="The name that its owner gives it.")] = "",
    scope: Annotated[
        str, typer.Option("--scope", metavar="PLACE", help="A namespace or a repository; it reads others if public.")
    ] = "",
    days: Annotated[float | None, typer.Option("--days", min=0, help="Days until it expires.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Make none; remove every token of the user.")] = False,
    number: Annotated[int | None, typer.Option("--number", help="With --revoke: remove this one alone.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Make none; list those of all users.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it; it may only read, unless an option allows more, and never more than its owner.

    Only its digest is kept, so it cannot be shown again. The server may be running.
    """
    if write + contribute + revoke + list_ > 1:
        raise typer.BadParameter("expected one of --write, --contribute, --revoke and --list, got several.")
    if number is not None and not revoke:
        raise typer.BadParameter("expected --revoke with --number, got none: it is the token to remove.")
    with _writing(root) as connection:
        from datetime import timedelta

        from ckptzoo.server.store import tokens

        if revoke:
            print(f"{user}: {tokens.revoke(connection, user, number)} removed.")
        elif list_:
            rows = [{**vars(item), **vars(item.limits)} for item in tokens.listed(connection)]
            for row in rows:
                del row["limits"]
            _show("tokens", rows, as_json, ("number", "user", "name", "role", "scope", "created", "expires", "used"))
        else:
            role = "write" if write else "contribute" if contribute else "read"
            expires = None if days is None else timedelta(days=days)
            print(tokens.make_token(connection, user, role, name=name, scope=scope, expires=expires))


@serve.command()
def backup(
    root: Root,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The backup's folder, new or an earlier one.")],
    as_json: AsJson = False,
) -> None:
    """Back a server's folder up, while it runs.

    The backup has all that was acknowledged before. Files that it has already are not copied again.
    """
    _need_server()
    from ckptzoo.server.store.backup import back_up

    with bar("backing up") as progress:
        copied = back_up(root, to, progress)
    with _writing(root) as connection:
        from datetime import UTC, datetime

        from ckptzoo.server.doctor import LAST_BACKUP
        from ckptzoo.server.store.database import set_setting

        # after the copy: of one that failed, serve doctor would take this for the last backup
        set_setting(connection, LAST_BACKUP, f"{datetime.now(UTC).isoformat(timespec='seconds')} {to.absolute()}")
    _show_copied(f"{to}", copied, as_json)


@serve.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The backup's folder.", show_default=False)],
    root: Annotated[Path, typer.Option("--root", metavar="FOLDER", help="The server's new folder.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Then read every byte, and exit with 1 if one is wrong.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a server's folder of a backup, which stays as it is."""
    _need_server()
    from ckptzoo.server.store import backup as backups

    with bar("restoring") as progress:
        copied = backups.restore(source, root, progress)
    problems: list[str] = []
    if verify:
        with bar("verifying") as progress:
            problems = [str(problem) for problem in backups.problems(root, progress)]
    _show_copied(f"{root}", copied, as_json, problems)
    if problems:
        raise typer.Exit(PROBLEMS)


@serve.command()
def gc(
    root: Root,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="Keep what was uploaded within this time: 12h, 7d; 1h at least."),
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what nothing names any more: of removed repositories, squashed branches, uploads without a commit.

    The server may be running. Killed at any moment it leaves what it has not come to.
    """
    _need_server()
    from ckptzoo.server.service import database_of
    from ckptzoo.server.store.garbage import collect
    from ckptzoo.text import counted, size

    time = _grace(grace)
    database = database_of(root)
    try:
        with bar("removing") as progress:
            collected = collect(root, database, grace=time, dry_run=dry_run, progress=progress)
    finally:
        database.close()
    if as_json:
        emit({"folder": str(root), "dry_run": dry_run, **vars(collected)})
        return
    commits, folders = counted(collected.commits, "commit"), counted(collected.folders, "folder")
    rows = f"{commits}, {folders}, {counted(collected.files, 'file')}"
    would = "would remove" if dry_run else "removed"
    print(f"{root}: {would} {counted(collected.blobs, 'blob')}, {size(collected.nbytes)}, and the rows of {rows}.")


@serve.command()
def doctor(root: Root, as_json: AsJson = False) -> None:
    """Check a server's folder, its disk and its address, and say what to do; exit with 1 if there is a problem.

    The server may be running. Bytes of files are not read: ckptzoo serve restore --verify does that with a backup.
    """
    _need_server()
    from ckptzoo.doctor import Examination
    from ckptzoo.server.doctor import examine

    examination = Examination(examine(root))
    print_result(examination, as_json)
    if examination.problems:
        raise typer.Exit(PROBLEMS)


def _grace(text: str) -> "timedelta":
    from datetime import timedelta

    # less than an hour is refused, because addresses of uploads are valid for one (ServerLimits.address_seconds)
    units = {"h": 1.0, "d": 24.0, "w": 168.0}
    try:
        hours = float(text[:-1]) * units[text[-1]]
    except (KeyError, IndexError, ValueError):
        hours = 0.0
    if not 1 <= hours < 1e6:
        raise typer.BadParameter(f"{text!r}: expected a time of 1h or more, such as 12h or 7d.", param_hint="--grace")
    return timedelta(hours=hours)


def _show_copied(folder: str, copied: "Copied", as_json: bool, problems: Sequence[str] = ()) -> None:
    from ckptzoo.text import counted, printable, size

    if as_json:
        emit({"folder": folder, **vars(copied), "problems": list(problems)})
        return
    for problem in problems:
        print(printable(problem))
    print(f"{folder}: {counted(copied.blobs, 'file')}, {size(copied.nbytes)}; {copied.added:,} were not there.")


@contextmanager
def _writing(root: Path) -> Iterator["sqlite3.Connection"]:
    """Open the database of a server's folder, at the present version; the server may be running."""
    _need_server()
    from ckptzoo.server.service import database_of

    is_new = not root.exists()
    database = database_of(root)
    if is_new:
        complain("note", f"{root}: a new folder was made, for a server that has nothing yet.")
    try:
        with database.writing() as connection:
            yield connection
    finally:
        database.close()


def _one_of(name: str | None, list_: bool, changes: bool) -> None:
    if (name is None) != list_:
        raise typer.BadParameter("expected a name, or --list.")
    if list_ and changes:
        raise typer.BadParameter("--list changes nothing: expected it alone.")


def _show(name: str, rows: list[dict[str, Any]], as_json: bool, columns: tuple[str, ...]) -> None:
    """Show rows as a table, or as a JSON object that has them under a name."""
    from ckptzoo import console as tables
    from ckptzoo.text import printable

    if as_json:
        emit({name: rows})
        return
    if not rows:
        print("None.")
        return
    table = tables.columns(*columns)
    for row in rows:
        table.add_row(*(printable(_cell(row[column])) for column in columns))
    console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} ({role})" for name, role in value.items())
    return "" if value is None or value is False else "yes" if value is True else str(value)


def _need_server() -> None:
    """Raise unless the server's packages are installed."""
    from ckptzoo.errors import require

    # those that ckptzoo.server imports at its beginning; oidc's are asked for where a provider is made
    for module in ("jinja2", "limits", "markdown_it", "nh3", "prometheus_client", "starlette", "uvicorn", "yaml"):
        require(module, "server")
