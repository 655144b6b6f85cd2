"""A zoo of which only the cache can be asked."""

from collections.abc import Generator

from ckptzoo.errors import OfflineError, Problem
from ckptzoo.remote.store import Entry, Halt


class KeptStore:
    """What was remembered of a zoo; it hands out nothing.

    Parameters
    ----------
    address, revision, entries : as a store had them.
    """

    def __init__(self, address: str, revision: str, entries: dict[str, Entry]) -> None:
        self.address, self.revision, self.entries = address, revision, entries

    def get(self, name: str, start: int, stop: int, halt: Halt) -> Generator[bytes]:
        """Raise OfflineError."""
        step = "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to fetch it."
        raise OfflineError(Problem(self.address, name, "in the cache", f"{stop - start} bytes missing", step))
        yield b""
