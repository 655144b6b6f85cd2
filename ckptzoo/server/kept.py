"""A cache in memory of results computed from stored bytes, which never change: the last used, within a bound."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")
ENTRY_BYTES = 500
"""Bytes of an entry besides its value: its key, of bounded length, and its slot."""


class Kept(Generic[Value]):
    """Values by key; the least used are forgotten where all together would be larger than ``limit`` bytes. ``size``
    maps a value to its bytes. A value that alone is larger is not kept.
    """

    def __init__(self, limit: int, size: Callable[[Value], int]) -> None:
        self._limit, self._size = limit, size
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.held = 0

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made where it is absent; two threads may make the same one."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        size = self._size(value)
        if size > self._limit:
            return value
        with self._lock:
            self.held += size - self._values.pop(key, (value, 0))[1]
            self._values[key] = value, size
            while self.held > self._limit:
                self.held -= self._values.popitem(last=False)[1][1]
        return value
