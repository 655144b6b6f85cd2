"""A folder behind any web server that serves ranges, as a store; ``listing.json`` names its files."""

from collections.abc import Generator
from urllib.parse import quote

from ckptzoo.errors import AbsentError, Problem
from ckptzoo.remote import http
from ckptzoo.remote.http import Connections
from ckptzoo.remote.retry import RetryPolicy, retry
from ckptzoo.remote.stores import LISTING, CancelToken, FileEntry, decode, find_entry


class StaticStore:
    """The files that a listing names below an address without a final slash; ``revision`` is the listing's digest."""

    def __init__(self, address: str, revision: str, entries: dict[str, FileEntry], connections: Connections) -> None:
        self.address, self.revision, self.entries = address, revision, entries
        self._connections = connections

    @classmethod
    def opened(cls, url: str, *, retry_policy: RetryPolicy) -> "StaticStore":
        """Read the listing of the zoo at an address.

        Raises AbsentError: there is no listing. Raises IntegrityError: it is not what its digest says.
        """
        connections, location, cancel = Connections(retry_policy.connection_deadline), f"{url}/{LISTING}", CancelToken()

        def request() -> bytes:
            sent = {"Accept-Encoding": "gzip"}
            with http.get(connections, location, location=location, cancel=cancel, headers=sent) as answer:
                return http.document(answer, location=location, retry_policy=retry_policy)

        try:
            data = retry(request, retry_policy=retry_policy, cancel=cancel)
        except AbsentError as error:
            step = "Write one with ckptzoo compact ZOO --index on the server."
            raise AbsentError(Problem(url, LISTING, "a listing of the zoo", error.problem.got, step)) from None
        entries, digest = decode(data, location=location)
        return cls(url, digest, entries, connections)

    def get(self, name: str, start: int, stop: int, cancel: CancelToken) -> Generator[bytes]:
        size, location = find_entry(self.entries, name, location=self.address).size, f"{self.address}/{name}"
        sent = http.range_header(start, stop, size)
        with http.get(
            self._connections, f"{self.address}/{quote(name)}", location=location, cancel=cancel, headers=sent
        ) as answer:
            yield from http.body(answer, start, stop, size, location=location)
