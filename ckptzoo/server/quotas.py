"""Quotas of contributors, so that an account that may only propose cannot fill the server."""

import sqlite3
import threading
from collections import Counter

from ckptzoo.server.errors import Refusal
from ckptzoo.server.limits import ServerLimits
from ckptzoo.server.store import usage
from ckptzoo.server.store.database import Database


class Quotas:
    """Bytes and open discussions of each contributor; the empty name is anybody who may write, who has no quota.

    Every byte counts that was sent and kept, whether a commit names it or not, and also while it arrives.
    """

    def __init__(self, database: Database, limits: ServerLimits) -> None:
        self._database, self._limits = database, limits
        self._lock = threading.Lock()
        self._arriving: Counter[str] = Counter()

    def room(self, contributor: str) -> int | None:
        """Return the bytes that may still be sent, None for any number."""
        if not contributor:
            return None
        with self._database.reading() as connection:
            sent = usage.sent(connection, contributor)
        return self._limits.contributor_bytes - sent - self._arriving[contributor]

    def take(self, contributor: str, size: int) -> None:
        """Reserve bytes that are about to arrive.

        Raises Refusal with status 413: they would be too many.
        """
        with self._lock:
            room = self.room(contributor)
            if room is not None and size > room:
                raise over_quota(contributor, room, size)
            self._arriving[contributor] += size

    def end(self, contributor: str, size: int) -> None:
        """Release bytes that have arrived and were charged, or will not arrive."""
        with self._lock:
            self._arriving[contributor] -= size

    def charge(self, connection: sqlite3.Connection, contributor: str, size: int) -> None:
        """Note that the bytes were kept."""
        if contributor and size:
            usage.add(connection, contributor, size)

    def charge_rows(self, connection: sqlite3.Connection, contributor: str, size: int) -> None:
        """Charge what a transaction wrote into the database, before it ends.

        Raises Refusal with status 413: it would be too much, so nothing is written.
        """
        room = self._limits.contributor_bytes - usage.sent(connection, contributor) - self._arriving[contributor]
        if contributor and size > room:
            raise over_quota(contributor, room, size)
        self.charge(connection, contributor, size)

    def check_discussions(self, connection: sqlite3.Connection, contributor: str) -> None:
        """Refuse one more discussion or pull request where too many are open."""
        limit = self._limits.contributor_discussions
        if contributor and usage.open_discussions(connection, contributor) >= limit:
            raise Refusal(429, f"{contributor}: expected fewer than {limit} open discussions. Close some first.")


def over_quota(contributor: str, room: int, size: int) -> Refusal:
    """Return the error for more bytes than a contributor may still send."""
    expected = f"expected at most {max(room, 0)} more bytes, got {size}"
    return Refusal(
        413, f"{contributor}: {expected}. The owner may raise the quota (ckptzoo serve --root FOLDER --quota SIZE)."
    )
