"""Limits on how often an address or an account does an action: the only place where requests are counted."""

import math
import time
from collections.abc import Mapping

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from ckptzoo.server.errors import Refusal


class Rates:
    """Moving windows in memory, one for each rule and each address or account.

    ``rules`` map names of actions to their limits, such as ``{"sign-in": "10/minute"}``, in the notation of ``limits``.
    """

    def __init__(self, rules: Mapping[str, str]) -> None:
        self._rules: dict[str, RateLimitItem] = {name: parse(rule) for name, rule in rules.items()}
        self._windows = MovingWindowRateLimiter(MemoryStorage())

    def take(self, rule: str, of: str) -> None:
        """Count one more; do nothing where there is no such rule.

        Raises Refusal with status 429, Retry-After, and the header ``RateLimit`` that the hub's clients read.
        """
        item = self._rules.get(rule)
        if item is None or self._windows.hit(item, rule, of):
            return
        seconds = max(math.ceil(self._windows.get_window_stats(item, rule, of).reset_time - time.time()), 1)
        # draft-ietf-httpapi-ratelimit-headers: what is left (r), and after how many seconds there is more (t)
        headers = {"Retry-After": str(seconds), "RateLimit": f'"{rule}";r=0;t={seconds}'}
        raise Refusal(
            429, f"Too many requests ({rule}): expected at most {item}. Try again in {seconds} s.", headers=headers
        )
