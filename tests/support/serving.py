"""Real servers on loopback: static files with ranges and faults on demand, and the part of a hub that readers use."""

import contextlib
import gzip
import hashlib
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" * 6 + "beef"


@dataclass
class Fault:
    """A fault in the next ``times`` answers to requests whose path contains ``path``; ``wait`` is in seconds."""

    kind: str
    times: int = 1
    path: str = ""
    wait: str = "0"


@dataclass
class Seen:
    """One request: path, range, headers, and the body bytes that were sent for it."""

    path: str
    range: str | None
    headers: dict[str, str]
    sent: int = 0


@dataclass
class Served:
    """The files of a server, the faults it has to make, and the requests it got."""

    files: dict[str, bytes]
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def sent(self) -> int:
        return sum(item.sent for item in self.seen)

    def fault(self, path: str) -> Fault | None:
        with self.lock:
            for item in self.faults:
                if item.times and item.path in path:
                    item.times -= 1
                    return item
        return None


class RangeHandler(BaseHTTPRequestHandler):
    """GET with single ranges, as a static server answers, or with a fault."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    served: Served
    log: Seen

    def finish(self) -> None:
        for file in (self.wfile, self.rfile):
            with contextlib.suppress(OSError):  # of a client that has disconnected
                file.close()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.log = Seen(self.path, self.headers.get("Range"), dict(self.headers.items()))
        with self.served.lock:
            self.served.seen.append(self.log)
        with contextlib.suppress(ConnectionError):
            self.answer(path)

    def answer(self, path: str) -> None:
        if path not in self.served.files:
            self.plain(404, b"nothing here")
        else:
            self.file(self.served.files[path], self.served.fault(path))

    def plain(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.log.sent += len(data)
        self.wfile.write(data)
        self.wfile.flush()

    def file(self, data: bytes, fault: Fault | None, **headers: str) -> None:
        kind = fault.kind if fault else ""
        wait = fault.wait if fault else ""
        match kind:
            case "forbidden":
                return self.plain(403, b"no")
            case "busy":
                return self.plain(429, b"busy", Retry_After=wait)
            case "limited":
                return self.plain(429, b"busy", ratelimit=f'"resolvers";r=0;t={wait}')
            case "down":
                return self.plain(503, b"down")
            case "hangup":
                return self.close(reset=False)
            case "packed":
                return self.plain(200, gzip.compress(data), Content_Encoding="gzip")
        start, stop, status = 0, len(data), 200
        if self.log.range and kind != "whole":
            first, last = self.log.range.removeprefix("bytes=").split("-")
            start, stop, status = int(first), min(int(last) + 1, len(data)) if last else len(data), 206
            if start >= len(data):
                return self.plain(416, b"", Content_Range=f"bytes */{len(data)}")
        body = data[start:stop]
        if kind == "wrong":
            body = body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 1]) + body[len(body) // 2 + 1 :]
        self.send_response(status)
        if status == 206:
            shift = 1 if kind == "shifted" else 0
            self.send_header("Content-Range", f"bytes {start + shift}-{stop - 1 + shift}/{len(data)}")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) - 1 if kind == "less" else len(body)))
        self.end_headers()
        match kind:
            case "short" | "reset":
                self.write(body[: len(body) // 2])
                return self.close(reset=kind == "reset")
            case "stall":
                self.write(body[: len(body) // 2])
                return time.sleep(float(wait))
            case "trickle":
                for index in range(len(body)):
                    self.write(body[index : index + 1])
                    time.sleep(float(wait))
            case "less":
                self.write(body[:-1])
            case _:
                self.write(body)

    def write(self, body: bytes) -> None:
        for start in range(0, len(body), 2**18):
            piece = body[start : start + 2**18]
            self.log.sent += len(piece)  # first: a test may read it as soon as the client has the bytes
            self.wfile.write(piece)
            self.wfile.flush()

    def close(self, *, reset: bool) -> None:
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.close() if reset else self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class HubHandler(RangeHandler):
    """The listing of one dataset repository, ``org/zoo``, and its files: small ones direct, others by redirect."""

    small = 512
    elsewhere: Served
    sizes = True
    token = "hf_secret"
    private = False

    def answer(self, path: str) -> None:
        if self.private and self.headers.get("Authorization") != f"Bearer {self.token}":
            return self.plain(401, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        route = urlsplit(self.path).path
        if route.startswith("/api/datasets/org/zoo/revision/"):
            revision = unquote(route.rpartition("/")[2])
            if revision not in ("main", "refs/pr/1", COMMIT):
                return self.plain(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
            if fault := self.served.fault(path):
                return self.file(b"", fault)
            siblings = [self.sibling(name) for name in self.served.files]
            return self.plain(200, json.dumps({"id": "org/zoo", "sha": COMMIT, "siblings": siblings}).encode())
        if route == f"/api/datasets/org/zoo/tree/{COMMIT}":
            return self.tree(int(parse_qs(urlsplit(self.path).query).get("page", ["0"])[0]))
        prefix = f"/datasets/org/zoo/resolve/{COMMIT}/"
        name = path.removeprefix(prefix)
        if not path.startswith(prefix) or name not in self.served.files:
            return self.plain(404, b"{}", X_Error_Code="RepoNotFound" if "resolve" not in path else "EntryNotFound")
        data = self.served.files[name]
        fault = self.served.fault(path)
        if fault is not None or len(data) <= self.small:
            return self.file(data, fault, X_Repo_Commit=COMMIT)
        signed = f"{self.elsewhere.url}/{hashlib.sha256(data).hexdigest()}?Expires={time.time() + 3600:.0f}&Signature=x"
        return self.plain(302, b"moved", Location=signed, X_Repo_Commit=COMMIT)

    def sibling(self, name: str) -> dict[str, object]:
        data = self.served.files[name]
        if not self.sizes:
            return {"rfilename": name}
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if len(data) <= self.small:
            return {"rfilename": name, "size": len(data), "blobId": git}
        facts = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return {"rfilename": name, "size": len(data), "blobId": git, "lfs": facts}

    def tree(self, page: int) -> None:
        names = sorted(self.served.files)
        items = [{"type": "directory", "path": "parts", "oid": "0" * 40, "size": 0}] if page == 0 else []
        for name in names[page * 2 : page * 2 + 2]:
            data = self.served.files[name]
            item = {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
            facts = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            items.append({**item, "lfs": facts})
        more = page * 2 + 2 < len(names)
        route = urlsplit(self.path).path
        link = {"Link": f'<{self.served.url}{route}?recursive=true&page={page + 1}>; rel="next"'} if more else {}
        self.plain(200, json.dumps(items).encode(), **link)


class Server(ThreadingHTTPServer):
    """A server that prints nothing about clients that disconnect."""

    daemon_threads = True

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # that of HTTPServer looks up the machine's name, which may be slow
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def running(
    served: Served, handler: type[RangeHandler] = RangeHandler, *, certificate: Path | None = None, **kinds: object
) -> Iterator[Served]:
    """Serve on a free port of loopback until the end of the block, encrypted if there is a certificate."""
    handler_class = type("Handler", (handler,), {"served": served, **kinds})
    server = Server(("127.0.0.1", 0), handler_class)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    served.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def hub(files: dict[str, bytes], **kinds: object) -> Iterator[tuple[Served, Served]]:
    """A hub with the repository ``org/zoo``, and the other server to which it redirects large files."""
    other = Served({f"/{hashlib.sha256(data).hexdigest()}": data for data in files.values()})
    with running(other), running(Served(dict(files)), HubHandler, elsewhere=other, **kinds) as front:
        yield front, other
