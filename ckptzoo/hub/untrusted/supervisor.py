"""Starts the warden, hands files to it, and ends it and all it started, whatever happens."""

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
from ckptzoo.hub.untrusted.formats import FileFormat
from ckptzoo.hub.untrusted.limits import AGAIN, Limits, reject, shown

_START = 180.0
_GRACE = 10.0
_MESSAGE = 65536
_CODE = "import sys; sys.path[:] = sys.argv[3:]; from ckptzoo.hub.untrusted.worker import main; main()"
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


class Supervisor:
    """Holds one warden; ``close`` or the end of a ``with`` kills it.

    Parameters
    ----------
    with_torch : whether files of torch.save will come; loading torch takes a second or two.
    """

    def __init__(self, *, with_torch: bool) -> None:
        self.with_torch = with_torch and find_spec("torch") is not None
        self.guards: tuple[str, ...] = ()
        self.is_cut_off = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(self, kind: FileFormat, file: int, *, location: str, limits: Limits) -> tuple[bytes, IO[bytes]]:
        """The report on an open file, and the file of tensors that came with it.

        Raises
        ------
        IntegrityError
            The reading process could not be started or shut in, did not end in time, or was killed.
        MissingExtraError
            torch is needed and not installed.
        """
        if kind == "torch" and find_spec("torch") is None:
            raise MissingExtraError("torch", "torch")
        if self._process is None:
            self._start(location)
        if kind == "torch" and not self.is_cut_off:
            step = "Save the state dict with safetensors.torch.save_file: such files are read everywhere."
            reject(location, "reading process", "no network, before a pickle is read", "; ".join(self.guards), step)
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(tempfile.TemporaryFile())
            report = stack.enter_context(tempfile.TemporaryFile())
            answer = self._ask(kind, file, out.fileno(), report.fileno(), location, limits)
            self._judge(answer, location, limits)
            size = report.seek(0, 2)
            report.seek(0)
            if not size:
                reject(location, "reading process", "a report", "none")
            data = report.read()
            stack.pop_all()
            report.close()
            return data, out

    def close(self) -> None:
        """End the warden, and whatever it started."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()
        self._line = self._process = self._folder = None

    def _start(self, location: str) -> None:
        """Start a warden with nothing of this process: no environment, no descriptors, an empty folder to stand in."""
        self._folder = tempfile.TemporaryDirectory(prefix="ckptzoo-intake-")
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = mine
        home = self._folder.name
        found = [entry for entry in sys.path if Path(entry).is_absolute()]
        root = str(Path(__file__).parents[3])
        environment = {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
        said = tempfile.TemporaryFile()  # noqa: SIM115
        with its, said:
            arguments = [str(its.fileno()), "torch" if self.with_torch else "plain", *dict.fromkeys([root, *found])]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _CODE, *arguments],
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
            its.close()
            try:
                mine.settimeout(_START)
                hello = mine.recv(_MESSAGE)
            except OSError as error:
                hello, reason = b"", str(error)
            else:
                reason = "it ended"
            if not hello:
                self.close()
                said.seek(0)
                lines = said.read(100_000).decode(errors="replace").strip().splitlines()
                reject(location, "reading process", "a start", (lines or [reason])[-1], "Correct the installation.")
        self._told(json.loads(hello))

    def _told(self, hello: dict[str, Any]) -> None:
        """Note what is in force, from the warden, which has not seen a stranger's byte yet."""
        walls = {
            "network": "network namespace without devices",
            "filter": "filter on system calls",
            "limits": "limits on memory, time and bytes written",
        }
        held = [words for key, words in walls.items() if hello.get(key) is None]
        lacking = [f"without: {words} ({shown(hello[key])})" for key, words in walls.items() if hello.get(key)]
        self.guards = ("process of its own", *held, "audit hook", *lacking)
        self.is_cut_off = hello.get("network") is None or hello.get("filter") is None

    def _ask(self, kind: FileFormat, file: int, out: int, report: int, location: str, limits: Limits) -> dict[str, Any]:
        from ckptzoo.hub.untrusted.worker import job_of

        assert self._line is not None
        self._line.settimeout(limits.seconds + _GRACE)
        try:
            socket.send_fds(self._line, [job_of(kind, location, limits)], [file, out, report])
            answer = self._line.recv(_MESSAGE)
        except OSError as error:
            self.close()
            reject(location, "reading process", f"an answer within {limits.seconds:g} s", f"{error}", AGAIN)
        if not answer:
            self.close()
            reject(location, "reading process", "an answer", "its end", "Read the file again by itself.")
        return json.loads(answer)

    @staticmethod
    def _judge(answer: dict[str, Any], location: str, limits: Limits) -> None:
        """Say how a reader ended that did not end by itself."""
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
