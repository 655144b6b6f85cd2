"""A request as the handlers see it, with its pieces, query and body checked as they are read."""

import json
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qs

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from ckptzoo.server.access import ROLES, AccessTarget, Subject, may, role_in
from ckptzoo.server.connections import network_of
from ckptzoo.server.errors import Refusal, lacking, no_repository
from ckptzoo.server.names import decoded
from ckptzoo.server.service import Service
from ckptzoo.server.shares import Share
from ckptzoo.server.store.repositories import Repository
from ckptzoo.server.store.tokens import StoredToken

Result = TypeVar("Result")
_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d+)?")
"""A name or an IPv4 address, or an IPv6 address in brackets, with or without a port (RFC 3986, section 3.2.2)."""
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", socket.gethostname().lower()})
"""Names of the machine that the server runs on."""
_MAX_SHOWN = 100
"""Characters of untrusted text in a message."""


@dataclass(frozen=True)
class Caller:
    """The account that sends a request, and its rights.

    ``token`` came with the request, or began the session of a user who requests a page; it is None where a one-time
    link or an identity began the session, whose digest is ``session``.
    """

    subject: Subject
    token: StoredToken | None = None
    session: str = ""


@dataclass(frozen=True)
class AuthorizedRequest:
    """A request whose route, caller and repository are known, and whose access was granted.

    ``raw_pieces`` are the named pieces of the path before percent-decoding. ``caller`` is None without a token,
    ``found_repository`` for paths that name no repository. ``admit`` finds both again, and raises where the request is
    no longer allowed. ``body`` is empty for handlers that read it as it arrives; ``threads`` do the request's blocking
    work, and ``memory`` is its share of memory.
    """

    service: Service
    http_request: Request
    raw_pieces: Mapping[str, str]
    caller: Caller | None
    found_repository: Repository | None
    admit: Callable[[sqlite3.Connection], "Admitted"] = field(repr=False)
    threads: CapacityLimiter
    memory: Share
    body: bytes = field(default=b"", repr=False)

    @cached_property
    def gone(self) -> threading.Event:
        """An event that is set once the client has disconnected, for handlers that are watched."""
        return threading.Event()

    @property
    def repository(self) -> Repository:
        """The repository that the path names."""
        assert self.found_repository is not None
        return self.found_repository

    @property
    def user(self) -> str:
        """The caller's name."""
        assert self.caller is not None
        return self.caller.subject.user

    @property
    def subject(self) -> Subject | None:
        """The caller with its rights; None without a token."""
        return None if self.caller is None else self.caller.subject

    @property
    def query(self) -> Mapping[str, str]:
        """The query; the last value of a repeated name."""
        return self.http_request.query_params

    @cached_property
    def origin(self) -> str:
        """The address under which the client reaches the server, without a final slash."""
        if self.service.url is not None:
            return self.service.url.rstrip("/")
        # The header goes into addresses that files are sent to, so it has to name this machine and no other.
        host = self.http_request.headers.get("host", "")
        match = _HOST.fullmatch(host)
        if match is None:
            raise Refusal(400, f"Host: expected a name and a port, got {host[:_MAX_SHOWN]!r}.")
        address = (self.http_request.scope.get("server") or ("",))[0]
        if match[1].lower() not in {*_OWN_NAMES, address, f"[{address}]"}:
            step = "Start it with --url where clients know it by another name."
            # Misdirected Request (RFC 9110, section 15.5.20)
            raise Refusal(421, f"Host: expected a name of the server's machine, got {host[:_MAX_SHOWN]!r}. {step}")
        return f"{self.http_request.scope['scheme']}://{host}"

    @property
    def network(self) -> str:
        """The client's address, or for IPv6 its network."""
        client = self.http_request.client
        return network_of("" if client is None else client.host)

    @cached_property
    def address(self) -> str:
        """The address of the repository's page."""
        prefix = "" if self.repository.kind == "model" else f"{self.repository.kind}s/"
        return f"{self.origin}/{prefix}{self.repository.name}"

    @property
    def contributor(self) -> str:
        """The caller's name where it has a quota, empty for those who may write."""
        return "" if self.may("write") else self.user

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function that blocks."""
        return await to_thread.run_sync(function, *arguments, limiter=self.threads)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open the database for writing, as ``Database.writing``, if the caller still has its rights.

        A body may arrive for minutes after the caller was admitted. Tokens that were revoked and roles that were taken
        meanwhile are of no use in the transaction that writes.

        Raises Refusal as when the request began; with status 409 where the caller's roles are others by now, or the
        repository is.
        """
        with self.service.database.writing() as connection:
            caller, repository = self.admit(connection)
            known = self.subject, self.found_repository and self.found_repository.id
            if (caller and caller.subject, repository and repository.id) != known:
                raise Refusal(409, "Roles or repositories have changed since the request began. Try again.")
            yield connection

    def may(self, role: str) -> bool:
        """Return whether the caller has at least this role in the repository that the path names."""
        return may(self.subject, role, self.repository.target)

    @property
    def role(self) -> str:
        """The caller's role in the repository that the path names, token included."""
        role = role_in(self.subject, self.repository.target)
        assert role is not None
        return role

    @property
    def is_limited(self) -> bool:
        """Whether a token limits the caller, and not the account alone."""
        return self.caller is not None and self.caller.token is not None

    def require_account(self, what: str) -> None:
        """Refuse ``what`` in a session that began with a token, which may be somebody else's by now, and is to end with
        it.

        Raises Refusal with status 403.
        """
        if self.is_limited:
            expected = "expected a session that a one-time link or an identity provider began, got one of a token"
            raise Refusal(
                403, f"{what}: {expected}. Ask the operator for a link (ckptzoo serve user --root FOLDER NAME)."
            )

    def require(self, role: str, target: AccessTarget) -> None:
        """Refuse unless the caller has at least this role in another repository, or in a namespace.

        Raises Refusal with status 404 for a repository that the caller may not read, else with 403.
        """
        held = role_in(self.subject, target)
        if held is None and target.number is not None:
            raise no_repository(target.name)
        if held is None or ROLES.index(held) < ROLES.index(role):
            raise lacking(role, held, f"in {target.name}")

    def piece(self, name: str) -> str:
        """Return a piece of the path, decoded; empty where it is absent."""
        return decoded(self.raw_pieces.get(name) or "")

    def path_number(self, name: str) -> int:
        """Return a piece of the path that is a number from 1."""
        text = self.piece(name)
        if not re.fullmatch(r"[1-9]\d{0,8}", text):
            raise Refusal(404, f"Expected a number, got {text[:_MAX_SHOWN]!r}.")
        return int(text)

    def is_set(self, name: str) -> bool:
        """Return whether the query switches something on."""
        return self.query.get(name, "").lower() in ("1", "true")

    @property
    def expands(self) -> bool:
        """Whether the query or the body requests the last commit of each entry."""
        values = self.form.get("expand") if self.http_request.method == "POST" else None
        return (values or [self.query.get("expand", "")])[0].lower() in ("1", "true")

    def query_number(self, name: str, default: int, limit: int) -> int:
        """Return a number of the query, clipped to 1 to ``limit``."""
        text = self.query.get(name, str(default))
        return min(max(int(text), 1), limit) if re.fullmatch(r"\d{1,9}", text) else default

    def page(self) -> int:
        """Return the page that the query requests, from 0."""
        text = self.query.get("p", "")
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object."""
        try:
            value = parsed_json(self.body or b"{}")
        except ValueError as error:
            raise Refusal(400, f"Body: expected JSON, got something else ({error!s:.{_MAX_SHOWN}}).") from None
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise Refusal(400, f"Body: expected a JSON object, got {type(value).__name__}.")
        return value

    @cached_property
    def form(self) -> dict[str, list[str]]:
        """The body as a form, or as the JSON object that some clients send instead."""
        if self.http_request.headers.get("content-type", "").startswith("application/json"):
            return {name: self._texts(name, value) for name, value in self.json().items()}
        try:
            # max_num_fields is checked before anything is parsed
            return parse_qs(self.body.decode(), errors="strict", max_num_fields=self.service.limits.batch_files + 10)
        except ValueError:
            raise Refusal(400, "Body: expected a form of bounded size in UTF-8.") from None

    def _texts(self, name: str, value: Any) -> list[str]:
        """Return a value of a JSON object as a form has it: text, a number or a boolean, or a list of them."""
        items, limit = value if isinstance(value, list) else [value], self.service.limits.batch_files
        # parse_qs is given the same bound
        if len(items) > limit:
            raise Refusal(413, f"{name:.{_MAX_SHOWN}}: expected at most {limit}, got {len(items)}.")
        if not all(isinstance(item, str | int) for item in items):
            raise Refusal(400, f"{name:.{_MAX_SHOWN}}: expected strings.")
        return [str(item) for item in items]


Admitted = tuple[Caller | None, Repository | None]
"""The caller of a request, and the repository that its path names."""


def parsed_json(data: bytes) -> Any:
    r"""Parse JSON in UTF-8.

    Raises ValueError: it is not JSON, is nested too deep, or holds what cannot be written again: NaN, infinities, lone
    surrogates (``"\ud800"``), which are no characters and which no answer could hold.
    """
    try:
        # given bytes, json.loads would guess the encoding and let surrogates pass
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
        # a surrogate can only have been written as an escape
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise ValueError("not Unicode") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def text_of(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a string of a JSON object."""
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise Refusal(400, f"{name}: expected a string, got {type(value).__name__}.")
    return value


def list_of(body: Mapping[str, Any], name: str, limit: int) -> list[dict[str, Any]]:
    """Return a list of JSON objects of bounded length."""
    value = body.get(name)
    if not isinstance(value, list) or len(value) > limit or not all(isinstance(item, dict) for item in value):
        raise Refusal(400, f"{name}: expected a list of at most {limit} objects.")
    return value


def integer_of(body: Mapping[str, Any], name: str) -> int:
    """Return an integer, zero or more, of a JSON object."""
    value = body.get(name)
    # True is an instance of int
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refusal(400, f"{name}: expected a whole number, got {value!r:.100}.")
    return value


def digest_of(body: Mapping[str, Any], name: str) -> str:
    """Return a sha256 in hex of a JSON object."""
    value = text_of(body, name)
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise Refusal(400, f"{name}: expected a sha256 in hex, got {value[:_MAX_SHOWN]!r}.")
    return value
