"""A hostile hub: it sends the raw bytes that a test gives it, and records the requests it got."""

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

REPO = "lab/evil"
COMMIT = "badc0de" * 5 + "beefc"
API = f"/api/datasets/{REPO}/revision/"
FILES = f"/datasets/{REPO}/resolve/{COMMIT}/"


@dataclass(frozen=True)
class Asked:
    """One request: what it was for, and its headers with small names."""

    method: str
    path: str
    headers: dict[str, str]


Answer = bytes | Iterator[bytes] | None
"""The raw bytes to send; None for the answer of an honest hub."""


@dataclass
class Evil:
    """A hub with one repository.

    Attributes
    ----------
    files
        what it has, honestly.
    says
        for a request, the raw answer.
    siblings
        what it lists instead of its files.
    asked
        every request.
    """

    files: dict[str, bytes]
    says: Callable[[Asked], Answer] = lambda asked: None
    siblings: list[Any] | None = None
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def listing(self) -> list[Any]:
        """What it would list honestly."""
        return [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
            }
            for name, data in self.files.items()
        ]

    def honest(self, asked: Asked) -> bytes:
        """The answer of an honest hub."""
        path = unquote(urlsplit(asked.path).path)
        if path.startswith(API):
            siblings = self.listing() if self.siblings is None else self.siblings
            return plain(json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode())
        name = path.removeprefix(FILES)
        if not path.startswith(FILES) or name not in self.files:
            return plain(b"{}", status="404 Not Found", X_Error_Code="EntryNotFound")
        data = self.files[name]
        if (wanted := asked.headers.get("range")) is None:
            return plain(data, X_Repo_Commit=COMMIT)
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        ranged = f"bytes {first}-{last}/{len(data)}"
        return plain(data[first : last + 1], status="206 Partial", Content_Range=ranged, X_Repo_Commit=COMMIT)


def plain(data: bytes, *, status: str = "200 OK", **headers: str) -> bytes:
    """An answer with a length."""
    named = {"Content-Length": str(len(data)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    return head(status, named) + data


def head(status: str, headers: dict[str, str]) -> bytes:
    """The lines before a body."""
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


@contextlib.contextmanager
def running(evil: Evil) -> Iterator[Evil]:
    """Serve on a free port of loopback until the end of the block; every connection is closed after one answer."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    evil.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    ended = threading.Event()

    def accept() -> None:
        while True:
            try:
                connected, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(evil, connected, ended), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield evil
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def _answer(evil: Evil, connected: socket.socket, ended: threading.Event) -> None:
    with contextlib.suppress(OSError), connected:
        connected.settimeout(30)
        data = b""
        while b"\r\n\r\n" not in data:
            if not (piece := connected.recv(65536)):
                return
            data += piece
        first, *lines = data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        asked = Asked(method, path, headers)
        evil.asked.append(asked)
        said = evil.says(asked)
        said = evil.honest(asked) if said is None else said
        for piece in [said] if isinstance(said, bytes) else said:
            connected.sendall(piece)
            if ended.is_set():
                return
        connected.shutdown(socket.SHUT_WR)
