"""Sign in with a token or a one-time link, sign out; the cookie of a session."""

import secrets
import sqlite3

from starlette.requests import Request
from starlette.responses import Response

from ckptzoo.server.errors import Refusal
from ckptzoo.server.oidc import Provider, SignedInUser
from ckptzoo.server.pages.html import field, page, see
from ckptzoo.server.request import AuthorizedRequest
from ckptzoo.server.service import Service
from ckptzoo.server.store import accounts, audit, sessions

_SECONDS = sessions.SESSION_DAYS * 86400


def cookie_name(secure: bool, what: str = "session") -> str:
    """Return the name of a session's cookie, or of that of a browser that is at the provider (``oidc``). Browsers take
    ``__Host-`` with TLS alone, from this host, for all paths (RFC 6265bis).
    """
    return f"__Host-{what}" if secure else what


def sign_in(request: AuthorizedRequest) -> Response:
    """Show the form that requests a token; with OpenID Connect also the way to the provider."""
    return page(
        request, "sign_in.html", next=_next(request.query.get("next", "")), problem="", oidc=request.service.oidc
    )


def sign_in_with_token(request: AuthorizedRequest) -> Response:
    """Begin a session with a token."""
    _count(request)
    following, text = _next(field(request, "next")), field(request, "token")
    with request.service.database.writing() as connection:
        secret = sessions.use_token(connection, text)
    if secret is None:
        problem = "There is no such token, or it has ended."
        return page(request, "sign_in.html", 403, next=following, problem=problem, oidc=request.service.oidc)
    return begun(request, secret, following)


def link(request: AuthorizedRequest) -> Response:
    """Show whom a one-time link is for. Programs that open links in messages do not use it up: its form does."""
    _count(request)
    with request.service.database.reading() as connection:
        account = sessions.user_of_link(connection, request.piece("code"))
    if account is None:
        return page(request, "link.html", 404, account=None)
    return page(request, "link.html", account=account)


def use_link(request: AuthorizedRequest) -> Response:
    """Begin a session with a one-time link."""
    _count(request)
    with request.service.database.writing() as connection:
        secret = sessions.use_link(connection, request.piece("code"))
    return page(request, "link.html", 404, account=None) if secret is None else begun(request, secret, "/")


def oidc_start(request: AuthorizedRequest) -> Response:
    """Send a user to the provider, by a page that redirects there: browsers follow no redirect of a form that leads to
    another site than our policy (``form-action``) names, and only the provider's own answer names the site where it
    signs users in.
    """
    _count(request)
    browser, provider = secrets.token_urlsafe(32), _provider(request)
    following = _next(field(request, "next"))
    address = provider.start(_redirect(request), _bound(request, browser), following)
    response = page(request, "go_on.html", address=address, provider=provider.name)
    secure = is_secure(request.service, request.http_request)
    name = cookie_name(secure, "oidc")
    # the provider sends people back from another site, with which browsers send Lax cookies
    response.set_cookie(name, browser, max_age=600, path="/", secure=secure, httponly=True, samesite="lax")
    return response


def oidc_callback(request: AuthorizedRequest) -> Response:
    """Begin a session of the user whom the provider has signed in. An unconnected identity is connected to the account
    that is signed in, and gets all its rights.
    """
    _count(request)
    provider, name = _provider(request), cookie_name(is_secure(request.service, request.http_request), "oidc")
    browser = request.http_request.cookies.get(name, "")
    identity = provider.finish(_redirect(request), _bound(request, browser), request.query)
    with request.writing() as connection:
        user = sessions.user_of_identity(connection, identity.issuer, identity.subject)
        if user is None and request.caller is not None:
            request.require_account("Connecting an identity")
            user = request.user
            sessions.set_identity(connection, identity.issuer, identity.subject, user)
        elif user is None:
            user = _new_user(connection, provider, identity)
        secret = sessions.begin(connection, user)
    return begun(request, secret, identity.following)


def _bound(request: AuthorizedRequest, browser: str) -> str:
    """Return what an attempt at the provider is bound to: a browser, and the session in which it was started."""
    return f"{browser} {'' if request.caller is None else request.caller.session}"


def _new_user(connection: sqlite3.Connection, provider: Provider, identity: SignedInUser) -> str:
    step = "Sign in with a one-time link of the operator, and then with the provider, which connects the two."
    if not provider.create:
        raise Refusal(403, f"{identity.name[:100] or 'You'}: there is no account yet. {step}")
    # the name may be somebody's who is not the same person
    if accounts.is_taken(connection, identity.name):
        raise Refusal(403, f"{identity.name[:100]}: there is an account of this name already. {step}")
    accounts.add(connection, identity.name, accounts.USER, actor=audit.OPERATOR)
    sessions.set_identity(connection, identity.issuer, identity.subject, identity.name)
    return identity.name


def _provider(request: AuthorizedRequest) -> Provider:
    if request.service.oidc is None:
        raise Refusal(404, "There is nothing at this address.")
    return request.service.oidc


def _redirect(request: AuthorizedRequest) -> str:
    return f"{request.origin}/-/oidc/callback"


def sign_out(request: AuthorizedRequest) -> Response:
    """End the session, or all of the user."""
    if request.caller is not None:
        with request.writing() as connection:
            if field(request, "everywhere"):
                request.require_account("Signing out everywhere")
                sessions.end_all(connection, request.user)
            else:
                sessions.end(connection, request.caller.session)
    response = see("/")
    secure = is_secure(request.service, request.http_request)
    response.delete_cookie(cookie_name(secure), path="/", secure=secure, httponly=True, samesite="lax")
    return response


def begun(request: AuthorizedRequest, secret: str, following: str) -> Response:
    """Return the answer that begins a session and leads to the next page."""
    response, secure = see(following), is_secure(request.service, request.http_request)
    # Lax: forms of other sites come without it
    response.set_cookie(
        cookie_name(secure), secret, max_age=_SECONDS, path="/", secure=secure, httponly=True, samesite="lax"
    )
    return response


def is_secure(service: Service, request: Request) -> bool:
    """Return whether clients connect by TLS."""
    return (service.url or request.scope["scheme"]).startswith("https")


def _count(request: AuthorizedRequest) -> None:
    request.service.rates.take("sign-in", request.network)


def _next(address: str) -> str:
    """Return a page of this server to show next; never another site's."""
    # browsers take // and /\ for the beginning of another host, and leave out line ends (URL Standard, section 4.4)
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\")) and "\n" not in address
    return address if is_ours and len(address) < 2000 else "/"


FORMS = (sign_in, sign_in_with_token, link, use_link, sign_out, oidc_start, oidc_callback)
"""The pages and forms that are open to users who have not signed in."""
