"""The server's application without a socket: one request after another, with any bytes in headers and bodies."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.types import Message

from ckptzoo.server.app import Application
from ckptzoo.server.limits import ServerLimits
from ckptzoo.server.service import Service
from tests.support.hosted import Answer

HOST = "127.0.0.1:8000"
ORIGIN = f"http://{HOST}"


@dataclass(frozen=True)
class InProcess:
    """An application whose requests are answered in this process; sign-ins and forms are not counted."""

    service: Service
    app: Application
    portal: BlockingPortal

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Sequence[tuple[bytes, bytes]] = (),
        *,
        before_body: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Send one request.

        Parameters
        ----------
        path
            as it stands in the request line, query included.
        headers
            besides Host; a Host among them takes its place.
        before_body
            called when the caller was admitted and the application asks for the body.
        """
        raw, _, query = path.partition("?")
        is_named = any(name == b"host" for name, _ in headers)
        scope: dict[str, Any] = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 5), "raw_path": raw.encode("latin-1"), "path": raw, "root_path": "",
            "query_string": query.encode("latin-1"), "state": {},
            "headers": [*([] if is_named else [(b"host", HOST.encode())]), *headers],
        }  # fmt: skip
        sent: list[Message] = []
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            before_body()
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        self.portal.call(self.app, scope, receive, send)
        start, *rest = sent
        found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], found, b"".join(item.get("body", b"") for item in rest))

    def rows(self) -> dict[str, list[Any]]:
        """Everything in the database but when tokens were used, and what contributors are charged."""
        with self.service.database.reading() as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            tables = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in names}
        del tables["usage"]
        return {**tables, "tokens": [{**row, "used": None} for row in tables["tokens"]]}

    @contextmanager
    def undone(self) -> Iterator[Callable[[], None]]:
        """Take back what the block writes into the database: at its end, and whenever it calls what it gets."""
        with (
            closing(sqlite3.connect(":memory:")) as before,
            closing(sqlite3.connect(self.service.root / "hub.sqlite")) as stored,
        ):
            stored.backup(before)
            version = stored.execute("PRAGMA data_version").fetchone()

            def undo() -> None:
                nonlocal version
                if stored.execute("PRAGMA data_version").fetchone() != version:
                    before.backup(stored)
                    version = stored.execute("PRAGMA data_version").fetchone()

            try:
                yield undo
            finally:
                undo()


@contextmanager
def in_process(root: Path, **options: Any) -> Iterator[InProcess]:
    """The application of a folder."""
    service = Service(root, limits=replace(ServerLimits(), rates={}), **options)
    try:
        with start_blocking_portal() as portal:
            yield InProcess(service, Application(service), portal)
    finally:
        service.close()
