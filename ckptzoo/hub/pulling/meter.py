"""How far a pull is, counted by several threads."""

import threading
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the bytes that this call brought to their place, and the bytes that it has to bring in all."""


class Meter:
    """Bytes of a pull.

    Parameters
    ----------
    total : of all that is to come to its place.
    progress : is told whenever that changes.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()
        self._tell()

    def moved(self, nbytes: int) -> None:
        """So many bytes more are in their place."""
        with self._lock:
            self._done += nbytes
            self._tell()

    def there(self, nbytes: int) -> None:
        """So many bytes need not come, because an earlier call brought them."""
        with self._lock:
            self._total -= nbytes
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)
