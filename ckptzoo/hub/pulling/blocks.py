"""Where a pull keeps the blocks that it has fetched, until the part that needs them is there."""

import shutil
import threading
from pathlib import Path

from ckptzoo.remote.cache import Cache

_NO_LIMIT = 2**62


class Blocks(Cache):
    """A cache for one pull, without bound, below which lies the cache that all readers share.

    Parameters
    ----------
    root : a folder of the pull's own.
    shared : what was read from afar before may be here; nothing is added to it.
    keeps : whether blocks are kept here; a reader that puts every block in its place at once needs none kept.

    Attributes
    ----------
    fetched : bytes that came from afar.
    """

    def __init__(self, root: Path, shared: Cache | None, *, keeps: bool) -> None:
        super().__init__(root, "pull", limit=_NO_LIMIT, evicts=False)
        self._shared, self._keeps = shared, keeps
        self._lock = threading.Lock()
        self.fetched = 0

    def read(self, digest: str) -> bytes | None:
        """The bytes of a digest, from either cache, or None."""
        own = super().read(digest)
        return self._shared.read(digest) if own is None and self._shared is not None else own

    def holds(self, digest: str) -> bool:
        """Whether either cache has bytes under this digest, right or wrong."""
        return super().holds(digest) or (self._shared is not None and self._shared.holds(digest))

    def write(self, digest: str, data: bytes | memoryview) -> None:
        """Count bytes that came from afar, and keep them."""
        self.count(len(data))
        if self._keeps:
            super().write(digest, data)

    def _unwritten(self, error: OSError) -> None:
        """A pull ends here: what it fetches and does not keep it would have to fetch again."""
        raise error

    def count(self, nbytes: int) -> None:
        """So many bytes more came from afar."""
        with self._lock:
            self.fetched += nbytes

    def clear(self) -> None:
        """Forget what is kept here; what is being written meanwhile is lost, which harms nobody."""
        shutil.rmtree(self.root, ignore_errors=True)
