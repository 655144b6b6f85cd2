"""The folder that is served, open for one process: its store, its limits, and the signer of its addresses."""

import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from ckptzoo.errors import Problem, ZooError
from ckptzoo.server.errors import Refusal
from ckptzoo.server.limits import ServerLimits
from ckptzoo.server.metrics import Metrics
from ckptzoo.server.oidc import Provider
from ckptzoo.server.quotas import Quotas
from ckptzoo.server.rates import Rates
from ckptzoo.server.store.blobs import Blobs
from ckptzoo.server.store.database import VERSION, Database
from ckptzoo.server.store.migrations import migrate
from ckptzoo.server.store.repositories import ATTRIBUTES
from ckptzoo.server.summaries import Summaries


class Signer:
    """Makes and checks queries ``?field=...&expires=...&signature=...``.

    ``signature = HMAC-SHA256(key, purpose + "\\n" + the sorted query without it)``, RFC 2104, in hex.

    ``key`` has 32 secret bytes; ``seconds`` is how long an address is valid, and ``clock`` returns the time in seconds
    since 1970.

    ``test_a_changed_address_is_refused`` in ``tests/server/test_protocol.py`` changes each field in turn.
    """

    def __init__(self, key: bytes, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._key, self._seconds, self._clock = key, seconds, clock

    def query(self, purpose: str, fields: Mapping[str, str | int]) -> str:
        """Return a signed query that expires."""
        content = {
            **{name: str(value) for name, value in fields.items()},
            "expires": f"{self._clock() + self._seconds:.3f}",
        }
        return urlencode({**content, "signature": self._signature(purpose, content)})

    def check(self, purpose: str, query: Mapping[str, str]) -> dict[str, str]:
        """Return the fields of a query that was signed for this purpose and has not expired.

        Raises Refusal with status 403.
        """
        content = {name: value for name, value in query.items() if name != "signature"}
        expected = self._signature(purpose, content).encode()
        # In constant time, so that a signature cannot be guessed byte by byte.
        if not hmac.compare_digest(query.get("signature", "").encode(), expected):
            raise Refusal(403, "The signature of the address does not match.")
        # present and a number, since it is signed
        if float(content.pop("expires")) < self._clock():
            raise Refusal(403, "The address has expired. Ask for a new one.")
        return content

    def code(self, purpose: str, text: str) -> str:
        """Return the HMAC-SHA256 of a text, in hex, which only the key's holder can compute."""
        return self._signature(purpose, {"text": text})

    def _signature(self, purpose: str, content: Mapping[str, str]) -> str:
        # urlencode escapes line breaks, & and =, so that no two queries have the same text
        text = f"{purpose}\n{urlencode(sorted(content.items()))}"
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def database_of(root: Path) -> Database:
    """Open the database of a server's folder, made where there is none; it may be open in several processes.

    Raises ZooError: its tables are of an earlier version.
    """
    root.mkdir(parents=True, exist_ok=True)
    database = Database(root / "hub.sqlite")
    with database.reading() as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        database.close()
        step = "Start ckptzoo serve once: it brings them to it."
        raise ZooError(Problem(str(root), "tables", f"version {VERSION}", f"{version}", step))
    return database


class Service:
    """A server's folder; one process at a time serves it.

    Raises ZooError: another process serves the folder.

    With ``private`` nothing is readable without a token, whatever a repository says. ``url`` is the address under which
    clients reach the server; without it, the one that each names in its request, which has to be an address or the name
    of this machine. The metrics are sent to clients with ``metrics_token``, and without one to nobody. Large files are
    served from ``blobs_url``: another origin, as the hub has it, or the same. ``clock`` returns seconds since 1970, for
    signed addresses.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        private: bool = False,
        limits: ServerLimits | None = None,
        url: str | None = None,
        blobs_url: str | None = None,
        metrics_token: str | None = None,
        oidc: Provider | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root, self.private, self.limits = Path(root).absolute(), private, limits or ServerLimits()
        self.url, self.blobs_url, self.metrics_token, self.oidc = url, blobs_url, metrics_token, oidc
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # The kernel releases the lock when the process ends, however it ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            step = "Stop it, or serve another folder."
            raise ZooError(Problem(str(root), "server", "none", "one that is running", step)) from None
        try:
            self.blobs = Blobs(self.root)
            self.blobs.add(ATTRIBUTES)
            self.database = Database(self.root / "hub.sqlite")
            migrate(self.database, self.blobs)
        except BaseException:
            os.close(self._lock)
            raise
        self.quotas = Quotas(self.database, self.limits)
        self.rates = Rates(self.limits.rates)
        self.summaries = Summaries(self.blobs)
        self.metrics = Metrics()
        self.signer = Signer(self._key(), self.limits.address_seconds, clock)

    def _key(self) -> bytes:
        """Return the secret of this folder, made once, so that addresses stay valid when the server is restarted."""
        with self.database.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO settings VALUES ('key', ?)", (secrets.token_bytes(32),))
            return connection.execute("SELECT value FROM settings WHERE name = 'key'").fetchone()["value"]

    def close(self) -> None:
        """Close the database and release the folder."""
        self.database.close()
        os.close(self._lock)
