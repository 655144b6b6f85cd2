"""Resources that all callers share, such as memory and threads, limited for each address, so that one leaves room for
others.

Used on the event loop alone, and therefore without a lock.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ckptzoo.server.errors import Refusal


class Shares:
    """A resource of which each address may hold up to ``each`` units, and all together up to ``total``, None for any
    amount.

    Refusals call it ``name``.
    """

    def __init__(self, name: str, each: int, total: int | None = None) -> None:
        self._name, self._each, self._total = name, each, total
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Units that all hold."""
        return self._held.total()

    @contextmanager
    def of(self, address: str) -> "Iterator[Share]":
        """Yield the share of one request, which is given back at the end."""
        share = Share(self, address)
        try:
            yield share
        finally:
            self._held[address] -= share.size
            if self._held[address] <= 0:
                del self._held[address]

    def take(self, address: str, size: int) -> None:
        """Reserve ``size`` more units; see ``Share.take``."""
        is_full = self._total is not None and self.held + size > self._total
        if is_full or self._held[address] + size > self._each:
            raise Refusal(503, f"Too many requests at once ({self._name}). Try again.", headers={"Retry-After": "1"})
        self._held[address] += size


class Share:
    """The units of a resource that one request holds."""

    def __init__(self, shares: Shares, address: str) -> None:
        self._shares, self._address = shares, address
        self.size = 0

    def take(self, size: int) -> None:
        """Reserve ``size`` more units.

        Raises Refusal with status 503 and Retry-After: the address, or all together, would hold too much.
        """
        self._shares.take(self._address, size)
        self.size += size

    def hold(self, size: int) -> None:
        """Reserve units until the request holds at least ``size``; see ``take``."""
        if size > self.size:
            self.take(size - self.size)
