"""Templates and the answers made of them, with the headers that keep uploaded content from running."""

import hmac
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ckptzoo.server.access import ROLES
from ckptzoo.server.errors import Refusal
from ckptzoo.server.request import AuthorizedRequest
from ckptzoo.server.service import Service

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    # with no-referrer browsers send Origin: null with forms of our own
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every page. No script runs on it, whatever a card holds."""


def page(
    request: AuthorizedRequest, template: str, status: int = 200, headers: dict[str, str] | None = None, **values: Any
) -> Response:
    """Return a template as the answer to a request; it also gets the caller, and the session's form token."""
    known = {
        "user": "" if request.caller is None else request.user,
        "is_limited": request.is_limited,
        "form_token": form_token(request.service, request),
        "path": request.http_request.scope["path"],
    }
    text = _environment().get_template(template).render(**known, **values)
    return HTMLResponse(text, status, {**HEADERS, **(headers or {})})


def error_page(refusal: Refusal) -> Response:
    """Return the page of an error; the same for everybody."""
    text = (
        _environment()
        .get_template("error.html")
        .render(user=None, form_token="", path="", status=refusal.status, message=refusal.message)
    )
    return HTMLResponse(text, refusal.status, {**refusal.headers, **HEADERS})


def see(address: str) -> Response:
    """Redirect to another address of this server, after a form."""
    # the next request is a GET, whatever this one was (RFC 9110, section 15.4.4)
    return RedirectResponse(address, 303, headers={"Cache-Control": "no-store"})


def form_token(service: Service, request: AuthorizedRequest) -> str:
    """Return the token that every form of a session holds, so that no other site can send one."""
    return "" if request.caller is None else service.signer.code("form", request.caller.session)


def check_form(request: AuthorizedRequest) -> None:
    """Refuse a form that was not made by a page of this server for this session.

    Raises Refusal with status 403: the Origin is absent, null (a sandboxed frame's) or foreign, or the form's token is
    another.
    """
    origin = request.http_request.headers.get("origin", "")
    if origin != request.origin:
        raise Refusal(
            403, f"Origin: expected {request.origin}, got {origin[:100] or 'none'}. Send the form from its page."
        )
    expected = form_token(request.service, request)
    given = _first(request, "form_token")
    if expected and not hmac.compare_digest(given.encode(), expected.encode()):
        raise Refusal(403, "The form is of another session. Go back, reload the page and send it again.")


def field(request: AuthorizedRequest, name: str, limit: int = 1000) -> str:
    """Return a field of a form, without white space around it; empty where it is absent.

    Raises Refusal: it is longer than ``limit`` characters.
    """
    text = _first(request, name).replace("\r\n", "\n").strip()
    if len(text) > limit:
        raise Refusal(413, f"{name}: expected at most {limit:,} characters, got {len(text):,}.")
    return text


def _first(request: AuthorizedRequest, name: str) -> str:
    # a list of a form that came as JSON may be empty
    return next(iter(request.form.get(name, ())), "")


def style(request: AuthorizedRequest) -> Response:
    """Return the style sheet of all pages."""
    headers = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}
    return Response(_file("style.css"), media_type="text/css", headers=headers)


def icon(request: AuthorizedRequest) -> Response:
    """Return the picture beside a page's title."""
    headers = {"Cache-Control": "max-age=86400", "X-Content-Type-Options": "nosniff"}
    return Response(_file("icon.svg"), media_type="image/svg+xml", headers=headers)


@cache
def _file(name: str) -> bytes:
    return files("ckptzoo.server.pages").joinpath("templates", name).read_bytes()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ckptzoo.server.pages"),
        # Jinja's default is not to escape
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["roles"] = ROLES
    environment.filters.update(date=_date, bytes=_bytes, segment=lambda text: quote(text, safe=""), path=quote)
    return environment


def _date(text: str | None) -> str:
    return "never" if text is None else f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"
