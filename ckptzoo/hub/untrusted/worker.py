"""The worker: a process that loads what is needed to read files, then forks one sandboxed process for each file.

The worker never reads an untrusted byte itself. Files come to it as open descriptors over a socket, with one to write
tensors to and one for the report; libraries are loaded once, before it forks.

::

    Supervisor  -- job, 3 descriptors -->  worker  -- fork -->  reading process (sandboxed, one file, ends)
                <-- how it ended -------           <-- exit --
"""

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import warnings
import zipfile
from io import BytesIO
from typing import IO, Any, NoReturn

import numpy as np

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.untrusted.errors import reject
from ckptzoo.hub.untrusted.formats import FileFormat, check_archive, load_npz
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.protocol import MESSAGE_BYTES, WorkerResult, encode_refusal, encode_report, write_result
from ckptzoo.hub.untrusted.sandbox import enter_sandbox, leave_network, probe_sandbox
from ckptzoo.hub.untrusted.state_dicts import ArrayLibrary, StateCandidate, find_state_dicts
from ckptzoo.hub.untrusted.torch_files import dense_dtype, load_torch
from ckptzoo.text import excerpt

_FILE_FD, _OUT_FD, _REPORT_FD = 0, 3, 4
"""Descriptors of the reading process: 1 and 2 are the null device."""

_NUMPY_LIBRARY = ArrayLibrary(
    is_tensor=lambda value: isinstance(value, np.ndarray),
    size=lambda value: value.size,
    scalar=lambda value: value.item(),
    describe=lambda value: f"an array of shape {value.shape}",
)


def read_file(file_format: FileFormat, file: IO[bytes], out: IO[bytes], *, location: str, limits: Limits) -> bytes:
    """Read a file in the reading process, write its numbers to ``out`` and return the report, or that of a refusal."""
    try:
        zipped = file.read(2) == b"PK"
        file.seek(0)
        archive = check_archive(file, location=location, limits=limits) if zipped or file_format == "npz" else None
        if file_format == "npz" and archive is not None:
            root = load_npz(archive, location=location, limits=limits)
            states = find_state_dicts(root, _NUMPY_LIBRARY, location=location, limits=limits)
            return encode_report(_write_arrays(states, out))
        root = load_torch(file, archive, location=location, limits=limits)
        states = find_state_dicts(root, _torch_library(), location=location, limits=limits)
        return encode_report(_write_tensors(states, out, location, limits))
    except IntegrityError as error:
        return encode_refusal(error.problems)
    except MemoryError:
        step = "Raise Limits.memory_bytes, or split the file."
        expected = f"at most {limits.memory_bytes} bytes to read it"
        return encode_refusal([Problem(location, "memory", expected, "more", step)])
    except RecursionError:
        step = "Save the state dict alone."
        return encode_refusal([Problem(location, "content", "few levels of nesting", "too many", step)])


def _torch_library() -> ArrayLibrary:
    import torch

    return ArrayLibrary(
        is_tensor=lambda value: isinstance(value, torch.Tensor),
        size=lambda value: value.numel(),
        scalar=lambda value: value.item() if not value.is_complex() else None,
        describe=lambda value: f"a tensor of shape {tuple(value.shape)}",
    )


def _write_arrays(states: list[StateCandidate], out: IO[bytes]) -> list[WorkerResult]:
    arrays = [array for state in states for array in state.tensors.values()]
    write_result([(array.dtype.name, array.shape) for array in arrays], (_bytes(array) for array in arrays), out)
    results, start = list[WorkerResult](), 0
    for state in states:
        count = len(state.tensors)
        results.append(
            WorkerResult(
                state.key, tuple(state.tensors), tuple(range(start, start + count)), state.facts, state.left_out
            )
        )
        start += count
    return results


def _bytes(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")


def _write_tensors(states: list[StateCandidate], out: IO[bytes], location: str, limits: Limits) -> list[WorkerResult]:
    """Write every distinct tensor once; those that share all their numbers have the same index."""
    import torch

    indices: dict[tuple[Any, ...], int] = {}
    tensors: list[Any] = []
    dtypes: list[str] = []
    results: list[WorkerResult] = []
    total = 0
    for state in states:
        tensor_indices: list[int] = []
        for name, tensor in state.tensors.items():
            dtype = dense_dtype(tensor, name, location=location)
            storage = tensor.untyped_storage().data_ptr()
            key = (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), dtype, tensor.is_neg())
            if not tensor.numel() or key not in indices:
                total += tensor.numel() * tensor.element_size()
                if total > limits.tensor_bytes:
                    reject(location, "tensors", f"at most {limits.tensor_bytes} bytes", f"{total} bytes with {name!r}")
                indices[key] = len(tensors)
                tensors.append(tensor)
                dtypes.append(dtype)
            tensor_indices.append(indices[key])
        results.append(
            WorkerResult(state.key, tuple(state.tensors), tuple(tensor_indices), state.facts, state.left_out)
        )
    data = (
        memoryview(tensor.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy())
        if tensor.numel()
        else memoryview(b"")
        for tensor in tensors
    )
    write_result(list(zip(dtypes, (tuple(tensor.shape) for tensor in tensors), strict=True)), data, out)
    return results


def main() -> None:
    """Serve jobs from the socket that is descriptor ``sys.argv[1]``, until it is closed."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(2000)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")  # the highest score: where memory runs out, the kernel kills this process first
    with_torch = sys.argv[2] == "torch"
    _import_everything(with_torch)
    network = leave_network()
    filtered, limited = probe_sandbox(Limits())
    connection.send(json.dumps({"network": network, "filter": filtered, "limits": limited}).encode())
    # What is loaded now is never collected, so that forked processes share its pages instead of copying them.
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 3)
        if not message:
            return
        job = json.loads(message)
        answer = _run_reader(job, descriptors, connection, filtered=filtered is None)
        for descriptor in descriptors:
            os.close(descriptor)
        if answer is None:
            return
        connection.send(json.dumps(answer).encode())


def _import_everything(with_torch: bool) -> None:
    """Read small files of every kind, sound and damaged: what libraries import late cannot be opened in the sandbox."""
    excerpt("\n")  # Python loads the codec that escapes it from a file
    damaged = BytesIO()
    with zipfile.ZipFile(damaged, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00\x04\x00(,,\n")
    sample = _sample_archive()
    samples = [sample, ("npz", sample[1][:-30]), ("npz", damaged.getvalue())]
    if with_torch:
        import torch

        torch.set_num_threads(1)
        for zipped in (True, False):
            sample = _sample_checkpoint(zipped)
            samples += [sample, ("torch", sample[1][:-90])]
    for kind, data in samples:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            read_file(kind, file, BytesIO(), location="sample", limits=Limits())


def _sample_archive() -> tuple[FileFormat, bytes]:
    buffer = BytesIO()
    np.savez(buffer, a=np.ones(2))
    return "npz", buffer.getvalue()


def _sample_checkpoint(zipped: bool) -> tuple[FileFormat, bytes]:
    import torch

    buffer = BytesIO()
    state = {"a": torch.ones(2), "b": torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16).t())}
    content = {"state_dict": state, "epoch": 1, "best": torch.zeros(1)}
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return "torch", buffer.getvalue()


def _run_reader(
    job: dict[str, Any], descriptors: list[int], connection: socket.socket, *, filtered: bool
) -> dict[str, Any] | None:
    """Fork a reading process and wait until it ends or its time is over; None when the supervisor has gone."""
    limits = Limits(**job["limits"])
    child = os.fork()
    if child == 0:
        _reader_main(job["kind"], job["location"], limits, descriptors, filtered=filtered)
    deadline, pause = time.monotonic() + limits.seconds, 0.0005
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return {"exit": os.waitstatus_to_exitcode(status), "late": False}
        late = time.monotonic() > deadline
        gone = bool(select.select([connection], [], [], pause)[0])
        if late or gone:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"exit": -signal.SIGKILL, "late": True} if late else None
        pause = min(pause * 1.5, 0.02)


def _reader_main(
    file_format: FileFormat, location: str, limits: Limits, descriptors: list[int], *, filtered: bool
) -> NoReturn:
    """The reading process: moves its descriptors, enters the sandbox, reads, reports and ends."""
    status = 3
    try:
        copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in descriptors]
        nothing = os.open(os.devnull, os.O_RDWR)
        wanted = {_FILE_FD: copies[0], 1: nothing, 2: nothing, _OUT_FD: copies[1], _REPORT_FD: copies[2]}
        for descriptor, source in wanted.items():
            os.dup2(source, descriptor)
        for descriptor in map(int, os.listdir("/proc/self/fd")) if sys.platform == "linux" else range(5, 256):  # noqa: PTH208
            if descriptor not in wanted:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        enter_sandbox(limits, filtered=filtered)
        with os.fdopen(_FILE_FD, "rb") as file, os.fdopen(_OUT_FD, "wb") as out, os.fdopen(_REPORT_FD, "wb") as report:
            try:
                answer = read_file(file_format, file, out, location=location, limits=limits)
            except Exception as error:  # whatever untrusted bytes led a library to raise
                problem = Problem(location, "content", "what can be read", f"{type(error).__name__}: {error}"[:300], "")
                answer = encode_refusal([problem])
            report.write(answer)
        status = 0
    finally:
        os._exit(status)
