"""Signing in with an OpenID Connect provider: authorization code flow with PKCE (RFC 7636).

The package Authlib makes the requests and checks the answers. A user who signs in for the first time gets an account of
the name that the provider says, where the provider's file allows it and no account has the name.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from ckptzoo.errors import Problem, SpecError, require
from ckptzoo.schema.documents import read_toml
from ckptzoo.server.errors import Refusal

_SECONDS, _ATTEMPTS = 600, 10_000
"""Seconds that a user may take at the provider, and the largest number of users there at once; the oldest attempts end.
"""
_TIMEOUT = 10.0
_KEYS = {"issuer": str, "client_id": str, "client_secret": str, "name": str, "create": bool, "claim": str}
_REQUIRED = ("issuer", "client_id", "client_secret")
# Hosts for which plain HTTP is allowed, because requests do not leave this machine.
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class SignedInUser:
    """A user whom a provider has signed in.

    ``subject`` is the provider's name for the user, which never changes; ``name`` is the name that the user prefers,
    which may be empty. ``following`` is the page that is shown next.
    """

    issuer: str
    subject: str
    name: str
    following: str


@dataclass(frozen=True)
class _SignInAttempt:
    verifier: str
    nonce: str
    browser: str
    following: str
    ends: float


class Provider:
    """An OpenID Connect provider, and the users who are there at the moment.

    ``issuer`` is its address, and ``name`` is shown on the button. With ``create`` a user who signs in for the first
    time gets an account, whose name is the claim ``claim``.
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str,
        *,
        name: str = "",
        create: bool = False,
        claim: str = "preferred_username",
    ) -> None:
        require("authlib", "oidc")
        require("requests", "oidc")
        self.issuer, self.create, self.claim = issuer.rstrip("/"), create, claim
        self.name = name or urlsplit(issuer).hostname or issuer
        self._client = (client_id, client_secret)
        self._attempts: OrderedDict[str, _SignInAttempt] = OrderedDict()
        self._lock = Lock()
        self._metadata: dict[str, Any] | None = None

    def start(self, redirect: str, browser: str, following: str) -> str:
        """Return the provider's address to send a user to.

        The provider sends the user back to ``redirect``, an address of this server. ``browser`` is a secret of the
        user's browser that ``finish`` checks; ``following`` is the page that is shown next.
        """
        # 32 bytes are 43 characters, the least for a verifier (RFC 7636, section 4.1)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        attempt = _SignInAttempt(verifier, nonce, browser, following, time.monotonic() + _SECONDS)
        with self._lock:
            self._attempts[state] = attempt
            while len(self._attempts) > _ATTEMPTS:
                self._attempts.popitem(last=False)
        with self._session(redirect) as session:
            address = self._discovered()["authorization_endpoint"]
            url, _ = session.create_authorization_url(address, state=state, nonce=nonce, code_verifier=verifier)
        return url

    def finish(self, redirect: str, browser: str, query: Mapping[str, str]) -> SignedInUser:
        """Return the user whom the provider has signed in, from the query with which it sent the user back.

        Raises Refusal with status 400: the state is not of this browser, was used already or is too old, or the
        provider says no; with 502 where the provider gives no sound answer.
        """
        with self._lock:
            # taken out: a state that was seen by others is of no use a second time
            attempt = self._attempts.pop(query.get("state", ""), None)
        # as bytes, because text has to be ASCII
        # an answer that belongs to another browser would sign its user in to somebody else's account
        is_own = attempt is not None and secrets.compare_digest(attempt.browser.encode(), browser.encode())
        if attempt is None or not is_own or attempt.ends < time.monotonic():
            raise Refusal(400, "Signing in: expected a fresh answer of the provider to this browser. Start again.")
        if "code" not in query:
            raise Refusal(400, f"Signing in: the provider says {query.get('error', 'nothing')[:100]!r}.")
        claims = self._claims(redirect, query["code"], attempt)
        subject, name = claims.get("sub"), claims.get(self.claim)
        if not isinstance(subject, str) or not subject:
            raise Refusal(502, "Signing in: expected the provider to name the user, it does not.")
        return SignedInUser(self.issuer, subject, name if isinstance(name, str) else "", attempt.following)

    def _claims(self, redirect: str, code: str, attempt: _SignInAttempt) -> Mapping[str, Any]:
        """Return the claims of the ID token, checked against the provider's keys, this client, and the attempt."""
        import requests
        from authlib.common.errors import AuthlibBaseError
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            metadata = self._discovered()
            with self._session(redirect) as session:
                address = metadata["token_endpoint"]
                token = session.fetch_token(address, code=code, code_verifier=attempt.verifier, timeout=_TIMEOUT)
                # the claims of the scope profile may be there alone (OpenID Connect Core 1.0, section 5.4)
                about = session.get(metadata["userinfo_endpoint"], timeout=_TIMEOUT)
                about.raise_for_status()
            keys = _json(metadata["jwks_uri"])
            # without algorithms given, joserfc takes those it recommends, none of them "none"
            decoded = jwt.decode(token["id_token"], KeySet.import_key_set(keys))
            options = {"iss": {"essential": True, "values": [self.issuer, metadata["issuer"]]}}
            claims = CodeIDToken(
                decoded.claims, decoded.header, options, {"nonce": attempt.nonce, "client_id": self._client[0]}
            )
            # seconds that the clocks of the provider and this machine may differ
            claims.validate(leeway=60)
            user: dict[str, Any] = about.json()
            if user["sub"] != claims["sub"]:  # to be checked by section 5.3.2
                raise ValueError("userinfo: it is about another user")
        except (AuthlibBaseError, JoseError) as error:
            raise Refusal(400, f"Signing in: the provider's answer was refused: {error!s:.200}") from None
        except (requests.RequestException, KeyError, ValueError, TypeError) as error:
            raise self._no_answer(error) from None
        return {**user, **claims}

    def _discovered(self) -> dict[str, Any]:
        """Return the provider's metadata (OpenID Connect Discovery 1.0), requested once."""
        import requests

        if self._metadata is None:
            address = f"{self.issuer}/.well-known/openid-configuration"
            try:
                document: dict[str, Any] = _json(address)
                # has to be checked by OpenID Connect Discovery 1.0, section 4.3
                if document["issuer"].rstrip("/") != self.issuer:
                    raise ValueError(f"issuer: expected {self.issuer}, got {document['issuer']!r:.100}")
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
                    _ = document[name]
            except (requests.RequestException, KeyError, ValueError, TypeError, AttributeError) as error:
                raise self._no_answer(error) from None
            self._metadata = document
        return self._metadata

    def _session(self, redirect: str) -> Any:
        from authlib.integrations.requests_client import OAuth2Session

        scope = "openid profile"
        # plain would show the verifier to whoever sees the first request (RFC 7636, section 7.2)
        return OAuth2Session(*self._client, scope=scope, redirect_uri=redirect, code_challenge_method="S256")

    def _no_answer(self, error: Exception) -> Refusal:
        return Refusal(502, f"{self.issuer}: expected a sound answer, got {type(error).__name__}: {error!s:.200}")


def _json(address: str) -> Any:
    import requests

    answer = requests.get(address, timeout=_TIMEOUT)
    answer.raise_for_status()
    return answer.json()


def provider_in(path: Path) -> Provider:
    """Return the provider that a TOML file describes, with the parameters of ``Provider`` as its keys.

    Raises SpecError: a key is missing, not known, or of another type; the issuer is neither https nor on this machine.
    """
    content = read_toml(path, expected="TOML", step="Correct it; docs/hosting.md has one.")
    problems = [
        Problem(str(path), name, kind.__name__, repr(content.get(name))[:100], "Correct it; docs/hosting.md has one.")
        for name, kind in _KEYS.items()
        if not isinstance(content.get(name, None if name in _REQUIRED else kind()), kind)
    ]
    known = ", ".join(_KEYS)
    problems += [
        Problem(str(path), "key", f"one of {known}", name[:100], "Remove it.") for name in content.keys() - _KEYS.keys()
    ]
    if not problems:
        parts = urlsplit(content["issuer"])
        # the client's secret goes to the token endpoint (RFC 6749, section 3.2)
        if parts.scheme != "https" and parts.hostname not in _LOCAL:
            problems.append(Problem(str(path), "issuer", "an https address", content["issuer"][:100], "Use https."))
    if problems:
        raise SpecError(problems)
    return Provider(**content)
