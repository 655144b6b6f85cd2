"""``read`` and ``read_all``: the state dicts in untrusted checkpoint files."""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated

from ckptzoo.arguments import SELF_CHECKED, checked
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import HEAD_BYTES
from ckptzoo.hub.untrusted.forms import read_form
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.process import Content, ReadingProcess
from ckptzoo.hub.untrusted.protocol import Job
from ckptzoo.hub.untrusted.results import FileResult, StateDict
from ckptzoo.hub.untrusted.safetensors import read_state_dict
from ckptzoo.text import excerpt

_CHUNK_BYTES = 2**20
_STEP = "Give the path of a checkpoint file."


@checked
def read(path: str | os.PathLike[str], *, limits: Limits | None = None) -> list[StateDict]:
    """The state dicts in one untrusted file.

    Parameters
    ----------
    path
        a file of safetensors, of torch.save or of numpy.savez, whatever it is called.
    limits
        how much is read; by default ``Limits()``.

    Raises
    ------
    IntegrityError
        The file is refused; the message names what is wrong with it.

    Notes
    -----
    safetensors files are parsed here; all others in a process that is started for them, in a fifth of a second. For
    several files use ``read_all``. torch is not needed.
    """
    (result,) = read_all([path], limits=limits)
    if result.error is not None:
        raise result.error
    return list(result.states)


@checked
def read_all(
    paths: Iterable[Annotated[str | os.PathLike[str], SELF_CHECKED]], *, limits: Limits | None = None
) -> Iterator[FileResult]:
    """The state dicts in many untrusted files, in order; a file that is refused does not stop the others.

    Parameters
    ----------
    paths
        files as ``read`` takes them.
    limits
        for each file; by default ``Limits()``.

    Notes
    -----
    One file is in memory at a time, besides what the caller keeps. Tested in tests/hub/untrusted/test_real.py.
    """
    files = [Path(path) for path in paths]
    limits = limits or Limits()
    with ReadingProcess(limits) as process:
        for path in files:
            try:
                result = FileResult(path, tuple(_read_file(path, process, limits)))
            except ZooError as error:
                result = FileResult(path, error=error)
            yield result


def _read_file(path: Path, process: ReadingProcess, limits: Limits) -> list[StateDict]:
    location, name = excerpt(path, 1000), excerpt(path.name)
    descriptor = _open(path, location)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            reject(location, "file", "a file", _file_type(before.st_mode), _STEP)
        # Checked before a byte is read, and again below by the time of the last change: the file may be replaced.
        if before.st_size > limits.file_bytes:
            reject(location, "size", f"at most {limits.file_bytes} bytes", f"{before.st_size} bytes", "Split the file.")
        form = read_form(os.pread(descriptor, HEAD_BYTES, 0), path.name, location=location, strict=True)
        if form.name == "safetensors":
            with os.fdopen(os.dup(descriptor), "rb") as file:
                states = [read_state_dict(file, location, name, limits)]
        else:
            job = Job(location, form.name, before.st_size, strict=True)
            (answer,), arrays = process.read([job], [_content_of(descriptor, before.st_size, location)])
            if isinstance(answer, IntegrityError):
                raise answer
            states = [result.state_dict(name, arrays) for result in answer]
        after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            got = "a file that changed while it was read"
            reject(location, "file", "the same bytes all the time", got, "Read it again.")
        return states
    except OSError as error:  # of files of the kernel, such as /proc/self/mem, which call themselves regular
        reject(location, "file", "a file that can be read", error.strerror or type(error).__name__, _STEP)
    finally:
        os.close(descriptor)


def _open(path: Path, location: str) -> int:
    """Return a descriptor for reading."""
    # Without O_NONBLOCK, opening a named pipe waits for a writer; O_NOCTTY keeps a terminal from taking control.
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        reject(location, "file", "a file that can be read", reason or type(error).__name__, _STEP)


def _content_of(descriptor: int, length: int, location: str) -> Content:
    """Copy exactly ``length`` bytes of an open file."""

    def copy(stream: IO[bytes]) -> None:
        done = 0
        while done < length:
            if not (chunk := os.pread(descriptor, min(_CHUNK_BYTES, length - done), done)):
                reject(location, "file", f"{length} bytes", f"{done} bytes: it changed", "Read it again.")
            stream.write(chunk)
            done += len(chunk)

    return copy


def _file_type(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
