"""Clients and servers in processes of their own, which start at once because one that has imported everything forks."""

import json
import multiprocessing
import os
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from ckptzoo.errors import ZooError
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.remote.retry import RetryPolicy
from ckptzoo.server.app import Application
from ckptzoo.server.run import serve
from ckptzoo.server.service import Service, database_of
from ckptzoo.server.store.tokens import make_token
from tests.faults.operations import Call
from tests.support.hosted import SMALL
from tests.support.hub_clients import fast_clock
from tests.support.server_layers import (
    AbortableConnections,
    AcknowledgedCommit,
    FaultPlan,
    Faults,
    LoggedRequest,
    RequestLog,
)

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.faults.processes"])
_START = 60.0
HURRIED = (
    RetryPolicy(deadline=4.0, connection_deadline=3.0, first_pause=0.0025),
    HubRetryPolicy(first_pause=0.01, read_timeout=5.0),
)
"""The default policies of clients here, in processes of their own and in that of the tests."""


def defaults_of(like: RetryPolicy | HubRetryPolicy) -> tuple[Any, ...]:
    """The fields of a policy as ``__defaults__`` of its class, in their order."""
    return tuple(getattr(like, name) for name in like.__dataclass_fields__)


class Client:
    """One call in a process of its own.

    Parameters
    ----------
    cache
        the reader's; ``temporary`` is the folder for what is in the making.
    hurried
        as the fixture of that name.
    """

    def __init__(self, call: Call, *, cache: Path, temporary: Path, hurried: bool = True) -> None:
        temporary.mkdir(parents=True, exist_ok=True)
        self._told, telling = _CONTEXT.Pipe(duplex=False)
        self._process: ForkServerProcess = _CONTEXT.Process(
            target=_act, args=(call, str(cache), str(temporary), hurried, telling), daemon=True
        )
        self._process.start()
        telling.close()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.is_alive()

    def kill(self) -> bool:
        """kill -9; returns whether it ran until then."""
        self._process.kill()
        self._process.join()
        return self._process.exitcode == -9

    def result(self, seconds: float) -> str:
        """``done`` or the error's message, once it has ended by itself."""
        assert self._told.poll(seconds), "no end"
        try:
            told: str = self._told.recv()
        except EOFError:
            raise AssertionError(f"it ended with {self._process.exitcode}") from None
        self._process.join()
        return told


def _act(call: Call, cache: str, temporary: str, hurried: bool, telling: Connection) -> None:
    os.environ.update(CKPTZOO_CACHE=cache, TMPDIR=temporary, HF_TOKEN_PATH=f"{cache}/no-token")
    warnings.simplefilter("ignore")
    if hurried:
        from huggingface_hub.utils import _http

        _http.time = fast_clock()  # pyright: ignore[reportAttributeAccessIssue]
        for like in HURRIED:
            type(like).__init__.__defaults__ = defaults_of(like)  # pyright: ignore[reportFunctionMemberAccess]
    function, given, named = call
    try:
        function(*given, **named)
    except (ZooError, OSError) as error:
        telling.send(f"{type(error).__name__}: {error}")
    else:
        telling.send("done")


class _Written(RequestLog):
    """A ledger that is written to a file, whose lines stay when the process is killed."""

    path: Path

    def _write(self, scope: Any, tally: Any) -> None:
        count = len(self.acknowledged)
        super()._write(scope, tally)
        lines = [["entry", vars(self.entries[-1])], *(["commit", vars(item)] for item in self.acknowledged[count:])]
        with self.path.open("a") as file:
            file.write("".join(f"{json.dumps(line)}\n" for line in lines))


@dataclass(frozen=True)
class _Read:
    """What the ledger of a server in another process says, over all its lives."""

    path: Path

    def _lines(self, kind: str) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0].splitlines()  # the last line may still be being written
        return [found for name, found in map(json.loads, whole) if name == kind]

    @property
    def entries(self) -> list[LoggedRequest]:
        return [LoggedRequest(**found) for found in self._lines("entry")]

    @property
    def acknowledged(self) -> list[AcknowledgedCommit]:
        return [AcknowledgedCommit(**found) for found in self._lines("commit")]

    def count(self) -> int:
        """How many lines there are."""
        return self.path.read_bytes().count(b"\n") if self.path.exists() else 0


class Server:
    """A server in a process of its own that can be killed and started again, at the same address.

    It has the attributes of ``tests.support.hosted.Hosted`` that operations use.

    Parameters
    ----------
    limit
        bytes, of any one file that it writes, from its next start on.
    """

    def __init__(self, root: Path, *, limit: int | None = None) -> None:
        self.root, self.limit = root, limit
        self.request_log = _Read(root.with_name(f"{root.name}-ledger"))
        database = database_of(root)
        with database.writing() as connection:
            users = {"read": "reader", "contribute": "stranger", "write": "lab"}
            self.tokens = {role: make_token(connection, user, role) for role, user in users.items()}
        database.close()
        self._port, self.url = 0, ""
        self.start()

    def api(self, role: str | None = "write") -> HfApi:
        """The client library with the token of a role, or with none."""
        return HfApi(endpoint=self.url, token=False if role is None else self.tokens[role])

    def start(self) -> None:
        """Serve, on the port that it had before."""
        told, telling = _CONTEXT.Pipe(duplex=False)
        arguments = (str(self.root), self._port, str(self.request_log.path), self.limit, telling)
        self._process = _CONTEXT.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        telling.close()
        assert told.poll(_START), "no server"
        self.url = told.recv()
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()
        assert self._process.exitcode == -9


def _serve(root: str, port: int, ledger: str, limit: int | None, telling: Connection) -> None:
    if limit is not None:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    written = _Written(Faults(Application(Service(root, limits=SMALL)), FaultPlan()))
    written.path = Path(ledger)
    serve(AbortableConnections(written), "127.0.0.1", port, telling.send)
