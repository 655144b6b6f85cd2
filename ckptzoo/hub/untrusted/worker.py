"""The warden: a process that loads what is needed to read files, then starts one confined process for each file.

It never reads a stranger's byte itself. Files come to it as open descriptors over a socket, with one to write tensors
to and one for the report; the process for the next file is forked, so libraries are loaded once.

::

    ckptzoo  -- job, 3 descriptors -->  warden  -- fork -->  reader (confined, one file, ends)
             <-- how it ended -------           <-- exit --

Reads one stranger's file in the confined process, from open descriptor to report.
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
from dataclasses import asdict
from io import BytesIO
from typing import IO, Any, NoReturn

import numpy as np

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.untrusted.formats import FileFormat, load_npz, members_of
from ckptzoo.hub.untrusted.formats import FileFormat as Format
from ckptzoo.hub.untrusted.limits import Limits, reject
from ckptzoo.hub.untrusted.protocol import WorkerResult, refusal_of, report_of, write_result
from ckptzoo.hub.untrusted.sandbox import enter_sandbox, leave_network, probe
from ckptzoo.hub.untrusted.state_dicts import ArrayLibrary, StateCandidate, states_of
from ckptzoo.hub.untrusted.torch_files import dense, load_torch

_NUMPY = ArrayLibrary(
    is_tensor=lambda value: isinstance(value, np.ndarray),
    size=lambda value: value.size,
    scalar=lambda value: value.item(),
    describe=lambda value: f"an array of shape {value.shape}",
)


def read_one(kind: Format, file: IO[bytes], out: IO[bytes], *, location: str, limits: Limits) -> bytes:
    """Read a file, write its numbers to ``out`` and return the report; a refusal is a report too."""
    try:
        zipped = file.read(2) == b"PK"
        file.seek(0)
        members = members_of(file, location=location, limits=limits) if zipped or kind == "npz" else None
        if kind == "npz" and members is not None:
            root = load_npz(members, location=location, limits=limits)
            states = states_of(root, _NUMPY, location=location, limits=limits)
            return report_of(_hand_arrays(states, out))
        root = load_torch(file, members, location=location, limits=limits)
        return report_of(
            _hand_tensors(states_of(root, _torch(), location=location, limits=limits), out, location, limits)
        )
    except IntegrityError as error:
        return refusal_of(error.problems)
    except MemoryError:
        step = "Raise Limits.memory_bytes, or split the file."
        return refusal_of(
            [Problem(location, "memory", f"at most {limits.memory_bytes} bytes to read it", "more", step)]
        )
    except RecursionError:
        return refusal_of(
            [Problem(location, "content", "few levels of nesting", "too many", "Save the state dict alone.")]
        )


def _torch() -> ArrayLibrary:
    import torch

    return ArrayLibrary(
        is_tensor=lambda value: isinstance(value, torch.Tensor),
        size=lambda value: value.numel(),
        scalar=lambda value: value.item() if not value.is_complex() else None,
        describe=lambda value: f"a tensor of shape {tuple(value.shape)}",
    )


def _hand_arrays(states: list[StateCandidate], out: IO[bytes]) -> list[WorkerResult]:
    arrays = [array for state in states for array in state.tensors.values()]
    write_result([(array.dtype.name, array.shape) for array in arrays], (_bytes(array) for array in arrays), out)
    made, at = list[WorkerResult](), 0
    for state in states:
        many = len(state.tensors)
        made.append(
            WorkerResult(state.key, tuple(state.tensors), tuple(range(at, at + many)), state.facts, state.left_out)
        )
        at += many
    return made


def _bytes(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")


def _hand_tensors(states: list[StateCandidate], out: IO[bytes], location: str, limits: Limits) -> list[WorkerResult]:
    """Write every distinct tensor once; those that share all their numbers point to one."""
    import torch

    kept: dict[tuple[Any, ...], int] = {}
    tensors: list[Any] = []
    dtypes: list[str] = []
    made: list[WorkerResult] = []
    total = 0
    for state in states:
        places: list[int] = []
        for name, tensor in state.tensors.items():
            dtype = dense(tensor, name, location=location)
            storage = tensor.untyped_storage().data_ptr()
            key = (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), dtype, tensor.is_neg())
            if not tensor.numel() or key not in kept:
                total += tensor.numel() * tensor.element_size()
                if total > limits.tensor_bytes:
                    reject(location, "tensors", f"at most {limits.tensor_bytes} bytes", f"{total} bytes with {name!r}")
                kept[key] = len(tensors)
                tensors.append(tensor)
                dtypes.append(dtype)
            places.append(kept[key])
        made.append(WorkerResult(state.key, tuple(state.tensors), tuple(places), state.facts, state.left_out))
    data = (
        memoryview(tensor.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy())
        if tensor.numel()
        else memoryview(b"")
        for tensor in tensors
    )
    write_result(list(zip(dtypes, (tuple(tensor.shape) for tensor in tensors), strict=True)), data, out)
    return made


_FILE, _OUT, _REPORT = 0, 3, 4
MESSAGE = 65536
"""Bytes of a message between ckptzoo and the warden."""


def main() -> None:
    """Serve jobs from the socket that is descriptor ``sys.argv[1]``, until it is closed."""
    line = socket.socket(fileno=int(sys.argv[1]))
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(2000)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")
    with_torch = sys.argv[2] == "torch"
    _warm(with_torch)
    network = leave_network()
    filtered, limited = probe(Limits())
    line.send(json.dumps({"network": network, "filter": filtered, "limits": limited}).encode())
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        message, descriptors, _, _ = socket.recv_fds(line, MESSAGE, 3)
        if not message:
            return
        job = json.loads(message)
        answer = _serve(job, descriptors, line, filtered=filtered is None)
        for descriptor in descriptors:
            os.close(descriptor)
        if answer is None:
            return
        line.send(json.dumps(answer).encode())


def _warm(with_torch: bool) -> None:
    """Read small files of every kind, so that everything that is imported late is imported before the walls go up."""
    bad = BytesIO()
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00\x04\x00(,,\n")
    whole = _sample_archive()
    samples = [whole, ("npz", whole[1][:-30]), ("npz", bad.getvalue())]
    if with_torch:
        import torch

        torch.set_num_threads(1)
        for zipped in (True, False):
            whole = _sample_checkpoint(zipped)
            samples += [whole, ("torch", whole[1][:-90])]
    for kind, data in samples:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            read_one(kind, file, BytesIO(), location="sample", limits=Limits())


def _sample_archive() -> tuple[FileFormat, bytes]:
    made = BytesIO()
    np.savez(made, a=np.ones(2))
    return "npz", made.getvalue()


def _sample_checkpoint(zipped: bool) -> tuple[FileFormat, bytes]:
    import torch

    made = BytesIO()
    state = {"a": torch.ones(2), "b": torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16).t())}
    content = {"state_dict": state, "epoch": 1, "best": torch.zeros(1)}
    torch.save(content, made, _use_new_zipfile_serialization=zipped)
    return "torch", made.getvalue()


def _serve(
    job: dict[str, Any], descriptors: list[int], line: socket.socket, *, filtered: bool
) -> dict[str, Any] | None:
    """Start a reader and wait until it ends or its time is over; None when ckptzoo has gone."""
    limits = Limits(**job["limits"])
    child = os.fork()
    if child == 0:
        _read(job["kind"], job["where"], limits, descriptors, filtered=filtered)
    end, pause = time.monotonic() + limits.seconds, 0.0005
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return {"exit": os.waitstatus_to_exitcode(status), "late": False}
        late = time.monotonic() > end
        gone = bool(select.select([line], [], [], pause)[0])
        if late or gone:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"exit": -signal.SIGKILL, "late": True} if late else None
        pause = min(pause * 1.5, 0.02)


def _read(kind: FileFormat, location: str, limits: Limits, descriptors: list[int], *, filtered: bool) -> NoReturn:
    """The reader: takes its descriptors, is confined, reads, reports and ends."""
    status = 3
    try:
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in descriptors]
        nothing = os.open(os.devnull, os.O_RDWR)
        wanted = {_FILE: high[0], 1: nothing, 2: nothing, _OUT: high[1], _REPORT: high[2]}
        for descriptor, source in wanted.items():
            os.dup2(source, descriptor)
        for descriptor in map(int, os.listdir("/proc/self/fd")) if sys.platform == "linux" else range(5, 256):  # noqa: PTH208
            if descriptor not in wanted:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        enter_sandbox(limits, filtered=filtered)
        with os.fdopen(_FILE, "rb") as file, os.fdopen(_OUT, "wb") as out, os.fdopen(_REPORT, "wb") as report:
            try:
                told = read_one(kind, file, out, location=location, limits=limits)
            except Exception as error:  # whatever a stranger's bytes led a library to raise
                problem = Problem(location, "content", "what can be read", f"{type(error).__name__}: {error}"[:300], "")
                told = refusal_of([problem])
            report.write(told)
        status = 0
    finally:
        os._exit(status)


def job_of(kind: FileFormat, location: str, limits: Limits) -> bytes:
    """The message that asks for one file."""
    return json.dumps({"kind": kind, "where": location[:1000], "limits": asdict(limits)}).encode()
