"""Zoos on other machines: addresses, stores, range requests, retries and a cache.

``open_remote(address)`` gives a ``Remote``: the names of a zoo's files, whole small ones, and blocks of large ones,
each checked against its digest. It knows nothing of what the files hold.
"""

from ckptzoo.environment import cache_limit, cache_root
from ckptzoo.errors import AbsentError, OfflineError, RemoteError
from ckptzoo.remote.address import candidates
from ckptzoo.remote.cache import CacheEntry, Pruned, cached_zoos, prunable, prune
from ckptzoo.remote.remote import Remote, open_remote
from ckptzoo.remote.retry import RetryPolicy

__all__ = [
    "AbsentError",
    "CacheEntry",
    "OfflineError",
    "Pruned",
    "Remote",
    "RemoteError",
    "RetryPolicy",
    "cache_limit",
    "cache_root",
    "cached_zoos",
    "candidates",
    "open_remote",
    "prunable",
    "prune",
]
