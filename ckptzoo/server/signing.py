"""Addresses that carry their own permission and expire."""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from ckptzoo.server.refusal import Refusal


class Signer:
    """Makes and checks queries ``?field=...&expires=...&signature=...``.

    ``signature = HMAC-SHA256(key, purpose + "\\n" + the sorted query without it)``, RFC 2104, in hex.

    Parameters
    ----------
    key : 32 secret bytes.
    seconds : how long an address is good for.
    clock : the time in seconds since 1970.

    Notes
    -----
    ``test_a_changed_address_is_refused`` changes each field in turn.
    """

    def __init__(self, key: bytes, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._key, self._seconds, self._clock = key, seconds, clock

    def query(self, purpose: str, fields: Mapping[str, str | int]) -> str:
        """A signed query that expires."""
        content = {
            **{name: str(value) for name, value in fields.items()},
            "expires": f"{self._clock() + self._seconds:.3f}",
        }
        return urlencode({**content, "signature": self._signature(purpose, content)})

    def check(self, purpose: str, query: Mapping[str, str]) -> dict[str, str]:
        """The fields of a query that was signed for this purpose and has not expired.

        Raises
        ------
        Refusal
            With status 403.
        """
        content = {name: value for name, value in query.items() if name != "signature"}
        expected = self._signature(purpose, content).encode()
        if not hmac.compare_digest(query.get("signature", "").encode(), expected):
            raise Refusal(403, "The signature of the address does not match.")
        if float(content.pop("expires")) < self._clock():
            raise Refusal(403, "The address has expired. Ask for a new one.")
        return content

    def _signature(self, purpose: str, content: Mapping[str, str]) -> str:
        text = f"{purpose}\n{urlencode(sorted(content.items()))}"
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
