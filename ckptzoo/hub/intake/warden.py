"""The warden: a process that loads what is needed to read files, then starts one confined process for each file.

It never reads a stranger's byte itself. Files come to it as open descriptors over a socket, with one to write tensors
to and one for the report; the process for the next file is forked, so libraries are loaded once.

::

    ckptzoo  -- job, 3 descriptors -->  warden  -- fork -->  reader (confined, one file, ends)
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
from dataclasses import asdict
from io import BytesIO
from typing import Any, NoReturn

import numpy as np

from ckptzoo.errors import Problem
from ckptzoo.hub.intake.confine import confine, leave_network, probe
from ckptzoo.hub.intake.found import Limits
from ckptzoo.hub.intake.handing import refusal_of
from ckptzoo.hub.intake.kinds import Kind
from ckptzoo.hub.intake.reader import read_one

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
            read_one(kind, file, BytesIO(), where="sample", limits=Limits())


def _sample_archive() -> tuple[Kind, bytes]:
    made = BytesIO()
    np.savez(made, a=np.ones(2))
    return "npz", made.getvalue()


def _sample_checkpoint(zipped: bool) -> tuple[Kind, bytes]:
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


def _read(kind: Kind, where: str, limits: Limits, descriptors: list[int], *, filtered: bool) -> NoReturn:
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
        confine(limits, filtered=filtered)
        with os.fdopen(_FILE, "rb") as file, os.fdopen(_OUT, "wb") as out, os.fdopen(_REPORT, "wb") as report:
            try:
                told = read_one(kind, file, out, where=where, limits=limits)
            except Exception as error:  # whatever a stranger's bytes led a library to raise
                problem = Problem(where, "content", "what can be read", f"{type(error).__name__}: {error}"[:300], "")
                told = refusal_of([problem])
            report.write(told)
        status = 0
    finally:
        os._exit(status)


def job_of(kind: Kind, where: str, limits: Limits) -> bytes:
    """The message that asks for one file."""
    return json.dumps({"kind": kind, "where": where[:1000], "limits": asdict(limits)}).encode()
