"""The ASGI application: a request is matched with a route, authorized, handled, and every error becomes an answer."""

import errno
import inspect
import logging
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast
from urllib.parse import quote

from anyio import CancelScope, CapacityLimiter, Semaphore, move_on_after, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ckptzoo.server.access import READ, ROLES, role_in
from ckptzoo.server.connections import network_of
from ckptzoo.server.errors import Refusal, lacking, no_repository
from ckptzoo.server.names import KINDS, checked_id, decoded
from ckptzoo.server.pages import html, pulls, settings, signing_in, zoos
from ckptzoo.server.request import Admitted, AuthorizedRequest, Caller
from ckptzoo.server.routes import (
    commits,
    content,
    discussions,
    metrics,
    repositories,
    uploads,
)
from ckptzoo.server.service import Service
from ckptzoo.server.shares import Share, Shares
from ckptzoo.server.store import repositories as stored
from ckptzoo.server.store import sessions
from ckptzoo.server.store.tokens import identify, is_use_due, note_use

Handler = Callable[[AuthorizedRequest], Response] | Callable[[AuthorizedRequest], Awaitable[Response]]

_log = logging.getLogger("ckptzoo.server")
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""A full disk, a used-up quota, and the limit on the size of one file (``RLIMIT_FSIZE``)."""
_THREADS = {"authorize": 4, "read": 24, "list": 4, "write": 16, "costly": 2}
"""Threads of handlers that block. Those that write wait for one another, and for other processes; those that may
compute for long, or list all files of a revision, have few: with threads of their own, none keeps the readers waiting.
No handler delays the check of tokens."""
_PIECE_BYTES = 2**18
"""Longer answers are sent in pieces, each once the connection's buffer has room."""
_MAX_HEADER = 1000
"""Characters of the message in a header."""
_PIECES = {
    "kind": f"(?P<kind>{'|'.join(KINDS)})",
    "prefix": "(?:(?P<prefix>datasets|spaces)/)?",
    "id": "(?P<id>[^/]+/[^/]+?)",
    "path": "(?P<path>.+)",
    "sha256": "(?P<sha256>[0-9a-f]{64})",
    # the page of a repository; nothing of the protocol, and nothing signed
    "page": "(?!api/|_|-/)(?:(?P<prefix>datasets|spaces)/)?(?P<id>[^/]+/[^/]+?)",
    "namespace": "(?P<namespace>[^/]+)",
}
"""Patterns of named pieces of a path; others are one segment."""


@dataclass(frozen=True)
class Route:
    """A method, the pattern of its raw paths, the role that it needs (None: that of reading), handler and threads.

    ``reads_body`` handlers are coroutines, which read their body as it arrives; the others block, and run in a thread.
    ``signed`` addresses need no token of ours. A ``page`` is for people, whom a cookie names instead of a token.
    """

    method: str
    pattern: re.Pattern[str]
    role: str | None
    handler: Handler
    threads: str
    reads_body: bool
    signed: bool
    page: bool = False

    @property
    def name(self) -> str:
        """The name of its handler, for metrics."""
        return f"{self.handler.__module__.rpartition('.')[2]}.{self.handler.__name__}"


def _route(method: str, path: str, role: str | None, handler: Handler, threads: str = "") -> Route:
    def pattern_of(piece: re.Match[str]) -> str:
        return _PIECES.get(piece[1], f"(?P<{piece[1]}>[^/]+)")

    default = "read" if method == "GET" else "write"

    pattern, reads_body = re.compile(re.sub(r"\{(\w+)\}", pattern_of, path)), inspect.iscoroutinefunction(handler)
    return Route(method, pattern, role, handler, threads or default, reads_body, path.startswith("/_"))


def _page(method: str, path: str, role: str | None, handler: Handler, threads: str = "") -> Route:
    return replace(_route(method, path, role, handler, threads), page=True)


_REPO = "/api/{kind}/{id}"
ROUTES = (
    _route("GET", "/api/whoami-v2", "read", repositories.whoami),
    _route("GET", "/api/settings/repositories", "read", repositories.owned, "costly"),
    _route("GET", "/api/organizations/{namespace}/settings/repositories", "read", repositories.owned, "costly"),
    _route("POST", "/api/validate-yaml", None, repositories.validate_yaml, "costly"),
    _route("POST", "/api/repos/create", "write", repositories.create),
    _route("DELETE", "/api/repos/delete", "write", repositories.delete),
    _route("POST", "/api/repos/move", "write", repositories.move),
    _route("GET", "/api/{kind}", None, repositories.listing, "costly"),
    _route("GET", _REPO, None, repositories.info, "list"),
    _route("GET", _REPO + "/revision/{revision}", None, repositories.info, "list"),
    _route("PUT", _REPO + "/settings", "admin", repositories.settings),
    _route("GET", _REPO + "/auth-check", None, repositories.auth_check),
    _route("GET", _REPO + "/auth-check/write", "write", repositories.auth_check),
    _route("GET", _REPO + "/tree/{revision}", None, content.tree),
    _route("GET", _REPO + "/tree/{revision}/{path}", None, content.tree),
    _route("POST", _REPO + "/paths-info/{revision}", None, content.paths_info, "read"),
    _route("GET", _REPO + "/xet-(?:read|write)-token/{path}", None, uploads.xet_token),
    _route("POST", _REPO + "/preupload/{revision}", "contribute", uploads.preupload, "read"),
    _route("POST", _REPO + "/commit/{revision}", "contribute", commits.commit),
    _route("GET", _REPO + "/refs", None, repositories.refs),
    _route("GET", _REPO + "/commits/{revision}", None, repositories.commits),
    _route("POST", _REPO + "/branch/{name}", "write", repositories.create_branch),
    _route("DELETE", _REPO + "/branch/{name}", "write", repositories.delete_branch),
    _route("POST", _REPO + "/tag/{name}", "write", repositories.create_tag),
    _route("DELETE", _REPO + "/tag/{name}", "write", repositories.delete_tag),
    _route("POST", _REPO + "/super-squash/{name}", "write", repositories.super_squash),
    _route("GET", _REPO + "/discussions", None, discussions.listing),
    _route("POST", _REPO + "/discussions", "contribute", discussions.create),
    _route("GET", _REPO + "/discussions/{number}", None, discussions.details, "costly"),
    _route("POST", _REPO + "/discussions/{number}/comment", "contribute", discussions.comment),
    _route("POST", _REPO + "/discussions/{number}/comment/{comment}/edit", "contribute", discussions.edit_comment),
    _route("POST", _REPO + "/discussions/{number}/comment/{comment}/hide", "contribute", discussions.hide_comment),
    _route("POST", _REPO + "/discussions/{number}/title", "contribute", discussions.rename),
    _route("POST", _REPO + "/discussions/{number}/status", "contribute", discussions.change_status),
    _route("POST", _REPO + "/discussions/{number}/merge", "write", discussions.merge_pull),
    _route("GET", "/{prefix}{id}/resolve/{revision}/{path}", None, content.resolve),
    _route("POST", r"/{prefix}{id}\.git/info/lfs/objects/batch", "contribute", uploads.batch),
    _route("POST", r"/{prefix}{id}\.git/info/lfs/verify", "contribute", uploads.verify, "read"),
    _route("GET", "/_blobs/{sha256}", None, content.blob),
    _route("PUT", "/_uploads/{sha256}", None, uploads.receive),
    _route("PUT", "/_uploads/{sha256}/part", None, uploads.receive_part),
    _route("POST", "/_uploads/{sha256}/join", None, uploads.join),
)
"""All calls of the protocol. Addresses below ``/_`` are signed, and need no token."""
PAGES = (
    _page("GET", "/", None, zoos.listing),
    _page("GET", "/-/style.css", None, html.style),
    _page("GET", "/-/icon.svg", None, html.icon),
    _page("GET", "/-/sign-in", None, signing_in.sign_in),
    _page("POST", "/-/sign-in", None, signing_in.sign_in_with_token),
    _page("GET", "/-/link/{code}", None, signing_in.link),
    _page("POST", "/-/link/{code}", None, signing_in.use_link),
    _page("POST", "/-/sign-out", None, signing_in.sign_out),
    _page("POST", "/-/oidc/start", None, signing_in.oidc_start),
    _page("GET", "/-/oidc/callback", None, signing_in.oidc_callback, "write"),
    _page("GET", "/-/tokens", "read", settings.own_tokens),
    _page("POST", "/-/tokens", "read", settings.make_token),
    _page("POST", "/-/tokens/{number}/revoke", "read", settings.revoke_token),
    _page("POST", "/-/identities/disconnect", "read", settings.disconnect_identity),
    _page("GET", "/-/audit", "read", settings.audit_log),
    _page("GET", "/{page}", None, zoos.zoo, "list"),
    _page("GET", "/{page}/explorer/{revision}", None, zoos.explorer),
    _page("GET", "/{page}/explorer/{revision}/frame", None, zoos.explorer_frame),
    _page("GET", "/{page}/tree/{revision}", None, zoos.files),
    _page("GET", "/{page}/tree/{revision}/{path}", None, zoos.files),
    _page("GET", "/{page}/blob/{revision}/{path}", None, zoos.file),
    _page("GET", "/{page}/raw/{revision}/{path}", None, zoos.raw),
    _page("GET", "/{page}/commits/{revision}", None, zoos.history),
    _page("GET", "/{page}/commit/{revision}", None, zoos.change, "costly"),
    _page("GET", "/{page}/discussions", None, pulls.listing),
    _page("GET", "/{page}/discussions/{number}", None, pulls.details, "costly"),
    _page("GET", "/{page}/discussions/{number}/files", None, pulls.changes, "costly"),
    _page("POST", "/{page}/discussions/{number}/comment", "contribute", pulls.comment),
    _page("POST", "/{page}/discussions/{number}/status", "contribute", pulls.status),
    _page("POST", "/{page}/discussions/{number}/merge", "write", pulls.merge),
    _page("GET", "/{page}/settings", "admin", settings.repository),
    _page("POST", "/{page}/settings", "admin", settings.change_repository),
    _page("POST", "/{namespace}/members", "read", settings.change_members),
    # before namespaces, of which one may have this name: its zoos have two names
    replace(_route("GET", "/metrics", None, metrics.answer), signed=True),
    _page("GET", "/{namespace}", None, zoos.namespace),
)
"""All pages and their forms. Without a session, those with a role lead to signing in."""
_PUBLIC_PAGES = (html.style, html.icon, *signing_in.FORMS)
"""Pages of a private server that are for everybody."""
_EXPANDING = frozenset({content.tree, content.paths_info})
"""Handlers that compute for long where the last commit of each entry is requested."""


class Application:
    """The ASGI application of one service.

    Paths are matched as they came, before percent-decoding, because clients send ``refs%2Fpr%2F1`` as one piece. A HEAD
    request is handled as GET; its answer has no body.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._threads = {name: CapacityLimiter(count) for name, count in _THREADS.items()}
        self._authorizing = Semaphore(_THREADS["authorize"])
        limits = service.limits
        self._costly = Shares("long computations", limits.costly_requests)
        self._memory = Shares("memory", limits.address_bytes, limits.held_bytes)
        service.metrics.watch(
            {
                "ckptzoo_held_bytes": ("Bodies and answers in memory.", lambda: self._memory.held),
                "ckptzoo_costly_requests": ("Long computations.", lambda: self._costly.held),
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # what a request holds is given back however it ends
        request = Request(scope, receive)
        with self._memory.of(_address(request)) as memory:
            await self._respond(request, memory, send)

    async def _respond(self, request: Request, memory: Share, send: Send) -> None:
        """Answer one request, or report its error."""
        scope, receive, started = request.scope, request.receive, time.perf_counter()
        try:
            response = await self._answer(request, memory)
            if not isinstance(response, StreamingResponse) and len(response.body) > _PIECE_BYTES:
                memory.take(len(response.body))
                response = _in_pieces(response)
        except ClientDisconnect:
            return
        except Refusal as refusal:
            await self._drain(request)
            response = _refused(request, refusal)
        except (OSError, sqlite3.OperationalError) as error:
            if "locked" in str(error) and isinstance(error, sqlite3.OperationalError):  # SQLITE_BUSY
                await self._drain(request)
                message = "Another process has locked the database. Try again."
                await _refused(request, Refusal(503, message, headers={"Retry-After": "5"}))(scope, receive, send)
                return
            # SQLite says "database or disk is full" (SQLITE_FULL), without an errno.
            full = "full" in str(error) if isinstance(error, sqlite3.OperationalError) else error.errno in _DISK_FULL
            await self._drain(request)
            if not full:
                _log.exception("%s %s", request.method, request.scope["path"])
            message = "The server's disk is full." if full else "The server could not read or write its disk."
            # 507: RFC 4918, 11.5
            response = _refused(request, Refusal(507 if full else 500, message))
        # a mistake of a handler: the log gets the traceback, and the client an answer as for every other error
        except Exception:
            _log.exception("%s %s", request.method, request.scope["path"])
            response = _refused(request, Refusal(500, "The server made a mistake."))
        handler = scope.get("state", {}).get("handler", "none")
        self.service.metrics.note(handler, response.status_code, started)
        await response(scope, receive, send)

    async def _answer(self, request: Request, memory: Share) -> Response:
        # any byte is a character of latin-1; what is not UTF-8 is refused when a piece is decoded
        raw = request.scope["raw_path"].decode("latin-1")
        method = "GET" if request.method == "HEAD" else request.method
        route, pieces = _matched(method, raw)
        threads = self._threads[route.threads]
        request.scope.setdefault("state", {})["handler"] = route.name
        if not route.page:
            self.service.rates.take("requests", _address(request))
        # before the body is read, so that nobody sends much without a token
        async with self._authorizing:
            # while it waited: Connections says so
            if request.scope.get("state", {}).get("gone"):
                raise ClientDisconnect
            limiter = self._threads["authorize"]
            caller, repository = await to_thread.run_sync(self._authorize, request, route, pieces, limiter=limiter)
        limits, body = self.service.limits, b""
        if not route.reads_body:
            is_small = caller is None or route.handler is content.paths_info
            body = await self._body(request, limits.small_json_bytes if is_small else limits.json_bytes, memory)
        admit = partial(self._admitted, request, route, pieces)
        authorized = AuthorizedRequest(self.service, request, pieces, caller, repository, admit, threads, memory, body)
        if route.page and route.method == "POST":
            html.check_form(authorized)
            self.service.rates.take("forms", authorized.network if caller is None else authorized.user)
        if route.reads_body:
            return await cast(Awaitable[Response], route.handler(authorized))
        if route.threads == "write":
            response = await authorized.in_thread(route.handler, authorized)
        elif route.threads != "costly" and not (route.handler in _EXPANDING and authorized.expands):
            response = await self._watched(route.handler, authorized)
        else:
            with self._costly.of(_address(request)) as share:
                share.take(1)
                costly = replace(authorized, threads=self._threads["costly"])
                response = await self._watched(route.handler, costly)
        assert isinstance(response, Response)
        return response

    async def _watched(self, handler: Handler, authorized: AuthorizedRequest) -> object:
        """Call a handler for as long as its client is connected."""
        state = authorized.http_request.scope.setdefault("state", {})
        with CancelScope() as scope:

            def leave() -> None:
                # at once where the request waits for a thread, else as its handler notices
                authorized.gone.set()
                scope.cancel()

            # Connections calls it; a task that waits for the disconnection would cost as much as a small answer
            state["on_gone"] = leave
            try:
                return await authorized.in_thread(handler, authorized)
            finally:
                del state["on_gone"]
        raise ClientDisconnect

    async def _body(self, request: Request, limit: int, memory: Share) -> bytes:
        body, seconds = bytearray(), self.service.limits.json_seconds
        with move_on_after(seconds):
            async for data in request.stream():
                memory.take(len(data))
                body += data
                if len(body) > limit:
                    raise Refusal(413, f"Body: expected at most {limit} bytes.")
            return bytes(body)
        raise Refusal(408, f"Body: expected all of it within {seconds:g} s.")

    def _authorize(self, request: Request, route: Route, pieces: dict[str, str]) -> Admitted:
        """Return caller and repository, as ``_admitted``; the use of a token is noted, also where it is refused."""
        with self.service.database.reading() as connection:
            caller, repository = self._named(request, route, pieces, connection)
        if caller is not None and caller.token is not None and is_use_due(caller.token):
            with self.service.database.writing() as connection:
                note_use(connection, caller.token.number)
        self._check(route, pieces, caller, repository)
        return caller, repository

    def _admitted(
        self, request: Request, route: Route, pieces: dict[str, str], connection: sqlite3.Connection
    ) -> Admitted:
        """Return the caller, and the repository that the path names; refuse unless the caller has the required role."""
        caller, repository = self._named(request, route, pieces, connection)
        self._check(route, pieces, caller, repository)
        return caller, repository

    def _named(
        self, request: Request, route: Route, pieces: dict[str, str], connection: sqlite3.Connection
    ) -> Admitted:
        """Return the account that a token or a cookie names, and the repository that the path names."""
        caller = self._session(connection, request) if route.page else self._bearer(connection, request, route)
        if "id" not in pieces:
            return caller, None
        kind = KINDS[pieces.get("kind") or pieces.get("prefix") or "models"]
        return caller, stored.find(connection, kind, checked_id(decoded(pieces["id"])))

    def _check(
        self, route: Route, pieces: dict[str, str], caller: Caller | None, repository: stored.Repository | None
    ) -> None:
        """Refuse unless the caller has the required role. A repository that the caller may not read is answered like
        one that does not exist, so that its name is not given away.
        """
        is_private = self.service.private and not route.signed and route.handler not in _PUBLIC_PAGES
        if caller is None and (route.role is not None or is_private):
            raise _unauthorized("Expected a token, got none.")
        needed = route.role or READ
        if "id" not in pieces:
            limits = None if caller is None else caller.subject.token
            if limits is not None and ROLES.index(limits.role) < ROLES.index(needed):
                raise lacking(needed, limits.role)
            return
        role = None if repository is None else role_in(None if caller is None else caller.subject, repository.target)
        if role is None:
            raise no_repository(decoded(pieces["id"]))
        if ROLES.index(role) < ROLES.index(needed):
            raise lacking(needed, role)

    def _bearer(self, connection: sqlite3.Connection, request: Request, route: Route) -> Caller | None:
        """Return the owner of the token that came with a request; None without one."""
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if not scheme or route.signed:
            return None
        # names of schemes do not depend on case (RFC 9110, 11.1)
        known = identify(connection, text.strip()) if scheme.lower() == "bearer" else None
        if known is None:
            # the hub's words: any other 401 at a repository's address is RepositoryNotFoundError in huggingface_hub
            raise _unauthorized("Invalid credentials in Authorization header")
        return Caller(known[1], token=known[0])

    def _session(self, connection: sqlite3.Connection, request: Request) -> Caller | None:
        """Return the signed-in account that requests a page; None for anybody else."""
        secret = request.cookies.get(signing_in.cookie_name(signing_in.is_secure(self.service, request)))
        session = None if secret is None else sessions.find(connection, secret)
        return None if session is None else Caller(session.subject, session.token, session.digest)

    async def _drain(self, request: Request) -> None:
        """Read the rest of a refused body, because clients read the answer only after they have sent everything."""
        remaining = self.service.limits.drain_bytes
        try:
            with move_on_after(self.service.limits.body_seconds):
                async for data in request.stream():
                    remaining -= len(data)
                    if remaining < 0:
                        return
        except (RuntimeError, ClientDisconnect):  # the handler has read the body, or the client has gone away
            return


def _matched(method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
    """Return the route of a request, and the named pieces of its path."""
    for route in (*ROUTES, *PAGES):
        if route.method == method and (match := route.pattern.fullmatch(raw_path)) is not None:
            return route, match.groupdict()
    if any(route.pattern.fullmatch(raw_path) for route in (*ROUTES, *PAGES)):
        raise Refusal(405, "Method not allowed.")
    raise Refusal(404, "There is nothing at this address.")


def _address(request: Request) -> str:
    return network_of("" if request.client is None else request.client.host)


def _in_pieces(response: Response) -> Response:
    """Return the same answer as one that is sent only as fast as the client reads it."""
    body = bytes(response.body)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), _PIECE_BYTES):
            yield body[start : start + _PIECE_BYTES]

    return StreamingResponse(pieces(), response.status_code, response.headers)


def _unauthorized(message: str) -> Refusal:
    # a 401 must name a scheme (RFC 9110, section 15.5.2)
    return Refusal(401, message, headers={"WWW-Authenticate": 'Bearer realm="ckptzoo"'})


def _refused(request: Request, refusal: Refusal) -> Response:
    """Return the answer to an error: for browsers a page, or the way to sign in, and JSON for all others."""
    # no client of the protocol asks for HTML
    if "text/html" not in request.headers.get("accept", ""):
        return _error_response(refusal)
    if refusal.status != 401:
        return html.error_page(refusal)
    address = quote(request.scope["path"], safe="") if request.method == "GET" else ""
    return html.see(f"/-/sign-in?next={address}")


def _error_response(refusal: Refusal) -> Response:
    # Headers hold printable ASCII alone; the body has the message as it is.
    text = "".join(letter if " " <= letter <= "~" else "?" for letter in refusal.message)[:_MAX_HEADER]
    headers = {**refusal.headers, "X-Error-Message": text}
    if refusal.code is not None:
        # huggingface_hub chooses the exception by this header, and shows X-Error-Message in it
        headers["X-Error-Code"] = refusal.code
    return JSONResponse({"error": refusal.message}, refusal.status, headers)
