"""A request as the handlers see it, with its pieces, query and body checked as they are read."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request

from ckptzoo.server.errors import Refusal
from ckptzoo.server.names import decoded
from ckptzoo.server.service import Service
from ckptzoo.server.store.repositories import Repository
from ckptzoo.server.store.tokens import Caller

_HOST = re.compile(r"[A-Za-z0-9.-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?")
"""A name or an IPv4 address, or an IPv6 address in brackets, with or without a port (RFC 3986, section 3.2.2)."""
_MAX_SHOWN = 100
"""Characters of untrusted text in a message."""


@dataclass(frozen=True)
class AuthorizedRequest:
    """A request whose route, caller and repository are known, and whose access was granted.

    Parameters
    ----------
    raw_pieces : the named pieces of the path as they came, before percent-decoding.
    caller : None without a token.
    found_repository : None for paths that name no repository.
    body : empty for handlers that read it as it arrives.
    """

    service: Service
    http_request: Request
    raw_pieces: Mapping[str, str]
    caller: Caller | None
    found_repository: Repository | None
    body: bytes = field(default=b"", repr=False)

    @property
    def repository(self) -> Repository:
        """The repository that the path names."""
        assert self.found_repository is not None
        return self.found_repository

    @property
    def user(self) -> str:
        """The caller's name."""
        assert self.caller is not None
        return self.caller.user

    @property
    def query(self) -> Mapping[str, str]:
        """The query; of a repeated name the last value."""
        return self.http_request.query_params

    @property
    def origin(self) -> str:
        """The address under which the client reaches the server, without a final slash."""
        if self.service.url is not None:
            return self.service.url.rstrip("/")
        # The header goes into addresses that are sent to clients, so it has to be a plain name.
        host = self.http_request.headers.get("host", "")
        if not _HOST.fullmatch(host):
            raise Refusal(400, f"Host: expected a name and a port, got {host[:_MAX_SHOWN]!r}.")
        return f"{self.http_request.url.scheme}://{host}"

    @property
    def address(self) -> str:
        """The address of the repository's page."""
        prefix = "" if self.repository.kind == "model" else f"{self.repository.kind}s/"
        return f"{self.origin}/{prefix}{self.repository.name}"

    def may(self, role: str) -> bool:
        """Whether the caller has at least this role."""
        return self.caller is not None and self.caller.may(role)

    def piece(self, name: str) -> str:
        """A piece of the path, decoded; empty where it is absent."""
        return decoded(self.raw_pieces.get(name) or "")

    def path_number(self, name: str) -> int:
        """A piece of the path that is a number from 1."""
        text = self.piece(name)
        if not re.fullmatch(r"[1-9]\d{0,8}", text):
            raise Refusal(404, f"Expected a number, got {text[:_MAX_SHOWN]!r}.")
        return int(text)

    def is_set(self, name: str) -> bool:
        """Whether the query switches something on."""
        return self.query.get(name, "").lower() in ("1", "true")

    def query_number(self, name: str, default: int, limit: int) -> int:
        """A number of the query, brought between 1 and ``limit``."""
        text = self.query.get(name, str(default))
        return min(max(int(text), 1), limit) if re.fullmatch(r"\d{1,9}", text) else default

    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        try:
            # json raises RecursionError where brackets are nested too deep
            value = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            raise Refusal(400, "Body: expected JSON, got something else.") from None
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise Refusal(400, f"Body: expected a JSON object, got {type(value).__name__}.")
        return value

    def form(self) -> dict[str, list[str]]:
        """The body as a form, or as the JSON object that some clients send instead."""
        if self.http_request.headers.get("content-type", "").startswith("application/json"):
            return {
                name: [item if isinstance(item, str) else json.dumps(item) for item in value]
                if isinstance(value, list)
                else [str(value)]
                for name, value in self.json().items()
            }
        try:
            # max_num_fields is checked before anything is parsed
            return parse_qs(self.body.decode(), errors="strict", max_num_fields=self.service.limits.batch_files + 10)
        except ValueError:
            raise Refusal(400, "Body: expected a form of bounded size in UTF-8.") from None


def text_of(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A string of a JSON object."""
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise Refusal(400, f"{name}: expected a string, got {type(value).__name__}.")
    return value


def list_of(body: Mapping[str, Any], name: str, limit: int) -> list[dict[str, Any]]:
    """A list of JSON objects of bounded length."""
    value = body.get(name)
    if not isinstance(value, list) or len(value) > limit or not all(isinstance(item, dict) for item in value):
        raise Refusal(400, f"{name}: expected a list of at most {limit} objects.")
    return value


def integer_of(body: Mapping[str, Any], name: str) -> int:
    """An integer, zero or more, of a JSON object."""
    value = body.get(name)
    # True is an instance of int
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refusal(400, f"{name}: expected a whole number, got {value!r:.100}.")
    return value


def digest_of(body: Mapping[str, Any], name: str) -> str:
    """A sha256 in hex of a JSON object."""
    value = text_of(body, name)
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise Refusal(400, f"{name}: expected a sha256 in hex, got {value[:_MAX_SHOWN]!r}.")
    return value
