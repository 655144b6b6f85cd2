"""Zoos on other machines: stores, ranges, a cache.

``open_remote(address)`` gives a ``Remote``: the names of a zoo's files, whole small ones, and blocks of large ones,
each checked against its digest. It knows nothing of what the files hold.
"""

from ckptzoo.errors import AbsentError, OfflineError, RemoteError
from ckptzoo.remote.address import candidates
from ckptzoo.remote.held import Held, Pruned, bytes_of, cache_limit, cache_root, held, prunable, prune
from ckptzoo.remote.opening import open_remote
from ckptzoo.remote.remote import Remote

__all__ = [
    "AbsentError",
    "Held",
    "OfflineError",
    "Pruned",
    "Remote",
    "RemoteError",
    "bytes_of",
    "cache_limit",
    "cache_root",
    "candidates",
    "held",
    "open_remote",
    "prunable",
    "prune",
]
