"""Starts the worker process, sends files to it, and ends it and whatever it started."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ckptzoo.errors import MissingExtraError
from ckptzoo.hub.untrusted.errors import SAVE_AGAIN, reject
from ckptzoo.hub.untrusted.formats import FileFormat
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.protocol import MESSAGE_BYTES, encode_job
from ckptzoo.text import excerpt

_START_SECONDS = 180.0
"""Until the worker has imported numpy and torch, which may come from a slow disk."""
_GRACE_SECONDS = 10.0
"""For the worker to answer after it has killed a reading process."""
# ``-I`` leaves out PYTHONPATH and the working folder, so this program's own path is passed on as arguments.
_WORKER_CODE = "import sys; sys.path[:] = sys.argv[3:]; from ckptzoo.hub.untrusted.worker import main; main()"
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


class Supervisor:
    """Runs one worker process; ``close`` or the end of a ``with`` kills it.

    Parameters
    ----------
    with_torch : whether files of torch.save will come; loading torch takes a second or two.

    Attributes
    ----------
    guards : the sandbox of reading processes, known once the worker has started; see ``StateDict.guards``.
    has_no_network : whether at least one guard cuts off the network, without which no pickle is read.
    """

    def __init__(self, *, with_torch: bool) -> None:
        self.with_torch = with_torch and find_spec("torch") is not None
        self.guards: tuple[str, ...] = ()
        self.has_no_network = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(self, file_format: FileFormat, file: int, *, location: str, limits: Limits) -> tuple[bytes, IO[bytes]]:
        """The report on an open file, and the file of tensors that came with it.

        Raises
        ------
        IntegrityError
            The reading process could not be started or shut in, did not end in time, or was killed.
        MissingExtraError
            torch is needed and not installed.
        """
        if file_format == "torch" and find_spec("torch") is None:
            raise MissingExtraError("torch", "torch")
        if self._process is None:
            self._start(location)
        if file_format == "torch" and not self.has_no_network:
            step = "Save the state dict with safetensors.torch.save_file: such files are read everywhere."
            reject(location, "reading process", "no network, before a pickle is read", "; ".join(self.guards), step)
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(tempfile.TemporaryFile())
            report = stack.enter_context(tempfile.TemporaryFile())
            answer = self._request(file_format, file, out.fileno(), report.fileno(), location, limits)
            self._check_exit(answer, location, limits)
            size = report.seek(0, 2)
            report.seek(0)
            if not size:
                reject(location, "reading process", "a report", "none")
            data = report.read()
            stack.pop_all()
            report.close()
            return data, out

    def close(self) -> None:
        """Kill the worker and whatever it started: it leads a session, and so a process group, of its own."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()
        self._socket = self._process = self._folder = None

    def _start(self, location: str) -> None:
        """Start a worker without this process's environment and descriptors, in an empty folder."""
        self._folder = tempfile.TemporaryDirectory(prefix="ckptzoo-untrusted-")
        own_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = own_end
        home = self._folder.name
        paths = [entry for entry in sys.path if Path(entry).is_absolute()]
        root = str(Path(__file__).parents[3])
        environment = {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment |= {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        stderr = tempfile.TemporaryFile()  # noqa: SIM115
        with worker_end, stderr:
            arguments = [
                str(worker_end.fileno()),
                "torch" if self.with_torch else "plain",
                *dict.fromkeys([root, *paths]),
            ]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _WORKER_CODE, *arguments],
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[worker_end.fileno()],
                start_new_session=True,
            )
            worker_end.close()
            try:
                own_end.settimeout(_START_SECONDS)
                hello = own_end.recv(MESSAGE_BYTES)
            except OSError as error:
                hello, reason = b"", str(error)
            else:
                reason = "it ended"
            if not hello:
                self.close()
                stderr.seek(0)
                lines = stderr.read(100_000).decode(errors="replace").strip().splitlines()
                reject(location, "reading process", "a start", (lines or [reason])[-1], "Correct the installation.")
        self._note_guards(json.loads(hello))

    def _note_guards(self, hello: dict[str, Any]) -> None:
        """Note the guards that are in force, as the worker says, which has not read an untrusted byte yet."""
        guards = {
            "network": "network namespace without devices",
            "filter": "filter on system calls",
            "limits": "limits on memory, time and bytes written",
        }
        in_force = [words for key, words in guards.items() if hello.get(key) is None]
        missing = [f"without: {words} ({excerpt(hello[key])})" for key, words in guards.items() if hello.get(key)]
        self.guards = ("process of its own", *in_force, "audit hook", *missing)
        self.has_no_network = hello.get("network") is None or hello.get("filter") is None

    def _request(
        self, file_format: FileFormat, file: int, out: int, report: int, location: str, limits: Limits
    ) -> dict[str, Any]:

        assert self._socket is not None
        self._socket.settimeout(limits.seconds + _GRACE_SECONDS)
        try:
            socket.send_fds(self._socket, [encode_job(file_format, location, limits)], [file, out, report])
            answer = self._socket.recv(MESSAGE_BYTES)
        except OSError as error:
            self.close()
            reject(location, "reading process", f"an answer within {limits.seconds:g} s", f"{error}", SAVE_AGAIN)
        if not answer:
            self.close()
            reject(location, "reading process", "an answer", "its end", "Read the file again by itself.")
        return json.loads(answer)

    @staticmethod
    def _check_exit(answer: dict[str, Any], location: str, limits: Limits) -> None:
        """Refuse the file where its reading process did not end by itself, or failed."""
        code = int(answer["exit"])
        if answer["late"]:
            step = "Raise Limits.seconds if the file is sound."
            reject(location, "reading process", f"an end within {limits.seconds:g} s", "none: it was killed", step)
        if code == -signal.SIGXCPU:
            step = "Raise Limits.cpu_seconds if the file is sound."
            reject(location, "reading process", f"at most {limits.cpu_seconds} s of the processor", "more", step)
        if code == -signal.SIGKILL:
            step = "If this machine ran out of memory, read the file on another; else do not use it."
            reject(location, "reading process", "an end of its own", "SIGKILL: it was killed", step)
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            reject(location, "reading process", "an end of its own", f"{name}: it was killed", "Do not use this file.")
        if code:
            reject(location, "reading process", "an end with status 0", f"status {code}", "Do not use this file.")
