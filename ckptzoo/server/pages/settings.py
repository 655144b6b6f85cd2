"""Pages on which owners set permissions: of repositories, organisations, tokens; and the audit log."""

from datetime import timedelta
from itertools import islice

from starlette.responses import Response

from ckptzoo.server.access import ADMIN, ROLES, TOKEN_ROLES, AccessTarget, may
from ckptzoo.server.errors import Refusal
from ckptzoo.server.names import checked_user
from ckptzoo.server.pages.html import field, page, see
from ckptzoo.server.pages.zoos import address_of, context_of
from ckptzoo.server.request import AuthorizedRequest
from ckptzoo.server.store import accounts, audit, repositories, sessions, tokens

_DAYS = ("30", "90", "365", "")
"""Days for which tokens of the form are valid; the empty one is without limit."""
_ENTRIES, _READ_ENTRIES = 200, 50_000
"""Entries that the audit log shows, and how many it reads at most."""


def repository(request: AuthorizedRequest) -> Response:
    """Show who may see a repository, propose changes and write to it."""
    with request.service.database.reading() as connection:
        context = context_of(request, connection, "settings")
        place = f"{request.repository.kind} {request.repository.name}"
        grants = [item for item in accounts.grants(connection) if item.target == place]
    return page(request, "settings.html", **context, grants=grants)


def change_repository(request: AuthorizedRequest) -> Response:
    """Carry out a form of the page of settings."""
    repository, action = request.repository, field(request, "action")
    following = f"{address_of(repository)}/settings"
    with request.writing() as connection:
        if action in ("hide", "show"):
            repositories.set_private(connection, repository, action == "hide")
            audit.note(connection, request.user, action, repository.name)
        elif action in ("close", "open"):
            repositories.set_closed(connection, repository, action == "close")
            audit.note(connection, request.user, action, repository.name)
        elif action in ("grant", "revoke"):
            role = _role(request) if action == "grant" else None
            accounts.set_grant(connection, field(request, "account", 100), repository.id, role, actor=request.user)
        elif action == "delete":
            if field(request, "name") != repository.name:
                raise Refusal(400, f"Name: expected {repository.name}, to confirm. Nothing was deleted.")
            repositories.remove(connection, repository)
            audit.note(connection, request.user, f"delete {repository.kind}", repository.name)
            following = "/"
        else:
            raise _unknown(action)
    return see(following)


def change_members(request: AuthorizedRequest) -> Response:
    """Make somebody a member of an organisation, change the role, or end the membership."""
    name = checked_user(request.piece("namespace"))
    if not may(request.subject, ADMIN, AccessTarget(name)):
        raise Refusal(404, "There is nothing at this address.")
    role = None if field(request, "action") == "remove" else _role(request)
    member = field(request, "account", 100)
    with request.writing() as connection:
        if member == request.user and role != ADMIN:
            raise Refusal(400, "Member: expected another than yourself, so that somebody may still change it.")
        accounts.set_member(connection, name, member, role, actor=request.user)
    return see(f"/{name}")


def own_tokens(request: AuthorizedRequest) -> Response:
    """Show the caller's tokens, and a form for another one; in a session of a token that one alone."""
    return _tokens(request, made=None)


def make_token(request: AuthorizedRequest) -> Response:
    """Make a token and show it, once; it would outlive the session of another token, and exceed its limits."""
    request.require_account("Making tokens")
    role, scope, days = field(request, "role"), field(request, "scope", 200), field(request, "days")
    if role not in TOKEN_ROLES or days not in _DAYS:
        raise Refusal(400, f"Token: expected a role of {', '.join(TOKEN_ROLES)} and one of the times of the form.")
    expires = timedelta(days=int(days)) if days else None
    with request.writing() as connection:
        text = tokens.make_token(
            connection,
            request.user,
            role,
            name=field(request, "name", 100),
            scope=scope,
            expires=expires,
            actor=request.user,
        )
    return _tokens(request, made=text)


def revoke_token(request: AuthorizedRequest) -> Response:
    """Remove one of the caller's tokens, and the sessions that began with it."""
    number = request.path_number("number")
    assert request.caller is not None
    if request.caller.token is not None and request.caller.token.number != number:
        request.require_account("Revoking other tokens")
    with request.writing() as connection:
        if not tokens.revoke(connection, request.user, number, actor=request.user):
            raise Refusal(404, "Expected one of your tokens, got none. It was revoked already.")
    return see("/-/tokens")


def disconnect_identity(request: AuthorizedRequest) -> Response:
    """Disconnect an identity from the caller's account; one that is not connected is left as it is."""
    request.require_account("Disconnecting an identity")
    assert request.caller is not None
    issuer, subject = field(request, "issuer"), field(request, "subject")
    with request.writing() as connection:
        sessions.remove_identity(connection, issuer, subject, request.user, session=request.caller.session)
    return see("/-/tokens")


def audit_log(request: AuthorizedRequest) -> Response:
    """Show the last changes that the caller made, and those in namespaces that the caller administers."""
    # it names tokens, identities and repositories, wherever they are
    request.require_account("The audit log")

    def concerns(entry: audit.AuditEntry) -> bool:
        place = entry.target.removeprefix("dataset ").removeprefix("model ").removeprefix("space ").partition("/")[0]
        return entry.actor == request.user or may(request.subject, ADMIN, AccessTarget(place))

    with request.service.database.reading() as connection:
        read = islice(audit.entries(connection), _READ_ENTRIES)
        entries = list(islice((entry for entry in read if concerns(entry)), _ENTRIES))
    return page(request, "audit.html", entries=entries)


def _tokens(request: AuthorizedRequest, made: str | None) -> Response:
    assert request.caller is not None
    with request.service.database.reading() as connection:
        listed = tokens.listed(connection, request.user)
        identities = [] if request.is_limited else sessions.identities_of(connection, request.user)
    if request.caller.token is not None:
        listed = [item for item in listed if item.number == request.caller.token.number]
    values = {"tokens": listed, "made": made, "token_roles": TOKEN_ROLES, "identities": identities}
    return page(request, "tokens.html", oidc=request.service.oidc, **values)


def _role(request: AuthorizedRequest) -> str:
    role = field(request, "role")
    if role not in ROLES:
        raise Refusal(400, f"Role: expected one of {', '.join(ROLES)}, got {role[:100]!r}.")
    return role


def _unknown(action: str) -> Refusal:
    return Refusal(400, f"Action: expected one of the page's forms, got {action[:100]!r}.")
