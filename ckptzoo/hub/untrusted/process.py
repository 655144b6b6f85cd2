"""``ReadingProcess``: starts the process that reads files of others, sends files to it, and ends it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted.errors import SAVE_AGAIN, reject
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.protocol import DESCRIPTORS, FileAnswer, Job, encode_request, read_answer
from ckptzoo.text import excerpt

# ``-I`` leaves out PYTHONPATH and the working folder, so this program's own path is passed on as arguments.
_CODE = "import sys; sys.path[:] = sys.argv[1:]; from ckptzoo.hub.untrusted.reader import main; main()"
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


@dataclass(frozen=True)
class MappedContent:
    """A file that is mapped: its bytes, and what opens it again; the caller closes the descriptor."""

    view: memoryview
    reopen: Callable[[], int]


Content = bytes | memoryview | MappedContent | Callable[[IO[bytes]], None]
"""A file's bytes, or what writes them to a stream: exactly as many as its ``Job`` says; or the file, where it is to be
mapped.
"""


class ReadingProcess:
    """One process that reads files; ``close`` or the end of a ``with`` kills it, and the next request starts another.

    It has none of this process's environment variables and descriptors, and an empty working folder.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._errors: IO[bytes] | None = None
        self._descriptors: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def read(self, jobs: Sequence[Job], contents: Sequence[Content]) -> tuple[list[FileAnswer], list[Any]]:
        """Return for every file its state dicts or the error, and the arrays that state dicts point to.

        Where the process ends or takes too long, the files of the request are read again one by one, so that only
        the one that it cannot read is refused.
        """
        answer = self._request(jobs, contents)
        if not isinstance(answer, IntegrityError):
            return answer
        if len(jobs) == 1:
            return [answer], []
        files, arrays = list[FileAnswer](), list[Any]()
        for job, content in zip(jobs, contents, strict=True):
            one = self._request([job], [content])
            if isinstance(one, IntegrityError):
                files.append(one)
                continue
            shift = len(arrays)
            arrays += one[1]
            files += [file if isinstance(file, IntegrityError) else [s.shifted(shift) for s in file] for file in one[0]]
        return files, arrays

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            for stream in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):  # what was not sent yet
                    stream.close()  # pyright: ignore[reportOptionalMemberAccess]
            # a process that has ended stays in the system's table until somebody waits for it (wait(2))
            self._process.wait()
        if self._descriptors is not None:
            self._descriptors.close()
        if self._errors is not None:
            self._errors.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._process = self._folder = self._errors = self._descriptors = None

    def _request(
        self, jobs: Sequence[Job], contents: Sequence[Content]
    ) -> tuple[list[FileAnswer], list[Any]] | IntegrityError:
        process = self._process or self._start()
        requests, answers, descriptors = process.stdin, process.stdout, self._descriptors
        assert requests is not None and answers is not None and descriptors is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.limits.seconds, end)
        timer.daemon = True
        timer.start()
        try:
            requests.write(encode_request(jobs, self.limits))
            for content in contents:
                if isinstance(content, MappedContent):
                    file = content.reopen()
                    try:
                        # what was written before is to be read before the socket is full
                        requests.flush()
                        socket.send_fds(descriptors, [b"m"], [file])
                    finally:
                        os.close(file)
                elif callable(content):
                    content(requests)
                else:
                    requests.write(content)
            requests.flush()
            mapped = {at: content.view for at, content in enumerate(contents) if isinstance(content, MappedContent)}
            return read_answer(answers, [job.location for job in jobs], self.limits, mapped)
        except (EOFError, BrokenPipeError):
            return self._ended(jobs[0].location, process, late=late.is_set())
        except BaseException as error:
            self.close()
            if isinstance(error, IntegrityError):
                return error
            raise
        finally:
            timer.cancel()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._folder = tempfile.TemporaryDirectory(prefix="ckptzoo-untrusted-")
        # not a pipe: one that is full and that nobody reads would stop the process
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        home = self._folder.name
        paths = [entry for entry in sys.path if Path(entry).is_absolute()]
        environment = {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
        # threads of BLAS, which nothing here needs, take address space, and that is bounded
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment |= {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._descriptors, other = socket.socketpair()
        environment[DESCRIPTORS] = str(other.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CODE, *dict.fromkeys([str(Path(__file__).parents[3]), *paths])],
            env=environment,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C at a terminal reaches this process alone, which ends the other one itself
            start_new_session=True,
            pass_fds=[other.fileno()],
        )
        other.close()
        return self._process

    def _ended(self, location: str, process: "subprocess.Popen[bytes]", *, late: bool) -> IntegrityError:
        """Say why there is no answer."""
        code = process.wait()
        errors = b""
        if self._errors is not None:
            self._errors.seek(0)
            errors = self._errors.read(100_000)
        self.close()
        lines = errors.decode(errors="replace").strip().splitlines()
        expected, step = "an end of its own", "Do not use this file."
        if late:
            expected, got = f"an answer within {self.limits.seconds:g} s", "none: it was killed"
            step = "Raise Limits.seconds if the file is sound."
        elif code == -signal.SIGKILL:
            got = "SIGKILL: it was killed"
            step = "If this machine ran out of memory, read the file on another; else do not use it."
        elif code == -signal.SIGBUS:  # of a mapped file (mmap(2))
            expected, got = "the same file all the time", "SIGBUS: it became shorter"
            step = "Read it when nothing is written to it."
        elif code < 0:
            got = f"{signal.Signals(-code).name if -code in set(signal.Signals) else -code}: it was killed"
        else:
            expected, got, step = "an answer", excerpt((lines or [f"status {code}"])[-1]), SAVE_AGAIN
        try:
            reject(location, "reading process", expected, got, step)
        except IntegrityError as error:
            return error
