"""The reading process: reads files of others, one request after another, with limits on memory, time and size.

It gets bytes over one pipe and answers over another (``protocol``), imports numpy and what reads files, and starts
nothing. What files could still do, with a reader that runs no code of theirs, is to exhaust memory or to crash the
interpreter by nesting: then this process ends, and the file is refused by the one that started it.
"""

import contextlib
import ctypes
import gc
import json
import mmap
import os
import resource
import socket
import sys
import warnings
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.untrusted.errors import reject, reject_without_network
from ckptzoo.hub.untrusted.forms import FORMS
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.objects import is_tensor
from ckptzoo.hub.untrusted.other_contents import MASK, has_statistics, is_mask
from ckptzoo.hub.untrusted.protocol import (
    DESCRIPTORS,
    LENGTH_BYTES,
    FileAnswer,
    Job,
    Place,
    WorkerResult,
    encode_answer,
    padded,
)
from ckptzoo.hub.untrusted.rules import TENSOR_STEP, VIEWS_STEP
from ckptzoo.hub.untrusted.state_dicts import StateCandidate, find_state_dicts
from ckptzoo.hub.untrusted.tensor_forms import Sparse
from ckptzoo.hub.untrusted.torch_files import PLACES, place_of, read_places
from ckptzoo.hub.untrusted.values import InertError, Numbers
from ckptzoo.schema.architecture import ITEMSIZE

_DEATH_SIGNAL, _KILL = 1, 9
"""PR_SET_PDEATHSIG of linux/prctl.h, and SIGKILL: this process ends with the one that started it."""

_MESSAGE_BYTES = 2**20
"""Bytes that this process may write to a file: the error that ends it."""
_LARGEST = max(ITEMSIZE.values())
_REQUEST_BYTES, _EXPANSION = 2**29, 40
"""Memory of a request: a fixed number of bytes, and a multiple of its size. An object of a pickle takes two bytes of
it and up to 70 of memory; files are mostly numbers.
"""


class _Answer:
    """The arrays of one answer, each distinct one once."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.arrays, self.nbytes = limits, list[NDArray[Any]](), 0
        self.places = dict[int, Place]()
        self.files = 0
        self._mapped: tuple[int, int] | None = None

    def add(self, job: Job, data: bytes | memoryview) -> FileAnswer:
        """Read a file; its arrays are kept where nothing of it is refused."""
        before, nbytes = len(self.arrays), self.nbytes
        self._mapped = None
        if isinstance(data, memoryview):
            first = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
            self._mapped = first, first + len(data)
        self.files += 1
        try:
            root = _load(job, data, self.limits)
            found = find_state_dicts(root, location=job.location, limits=self.limits, with_moments=not job.strict)
            _check_views(found, job.location, self.limits)
            indices: dict[tuple[Any, ...], int] = {}
            if job.file_format == PLACES:
                return [self._add_places(state) for state in found]
            return self._without_masks([self._add_state(state, indices, job.location) for state in found], job.location)
        except IntegrityError as error:
            answer = error
        except MemoryError:
            expected = f"at most {self.limits.memory_bytes} bytes to read it"
            step = "Raise Limits.memory_bytes, or split the file."
            answer = IntegrityError(Problem(job.location, "memory", expected, "more", step))
        except RecursionError:
            step = "Save the state dict alone."
            answer = IntegrityError(Problem(job.location, "content", "few levels of nesting", "too many", step))
        except Exception as error:  # whatever untrusted bytes led a library to raise
            got = f"{type(error).__name__}: {error}"[:300]
            answer = IntegrityError(Problem(job.location, "content", "what can be read", got, ""))
        del self.arrays[before:]
        self.places = {at: place for at, place in self.places.items() if at < before}
        self.nbytes = nbytes
        return answer

    def _add_state(self, state: StateCandidate, indices: dict[tuple[Any, ...], int], location: str) -> WorkerResult:
        """Return names with the indices of their arrays; tensors that share all their numbers have the same one."""
        at: list[int] = []
        for name, tensor in state.tensors.items():
            key = tensor.identity if isinstance(tensor, Numbers) else (id(tensor),)
            if key not in indices:
                indices[key] = len(self.arrays)
                self.arrays.append(array := self._array(tensor, name, location))
                if self._mapped is not None and array.size:
                    first = array.__array_interface__["data"][0]
                    if self._mapped[0] <= first and first + array.nbytes <= self._mapped[1]:
                        self.places[indices[key]] = self.files - 1, first - self._mapped[0]
            at.append(indices[key])
        buffers = tuple(place for place, name in enumerate(state.tensors) if name in state.buffers)
        return WorkerResult(state.key, tuple(state.tensors), tuple(at), state.facts, state.left_out, buffers)

    def _add_places(self, state: StateCandidate) -> WorkerResult:
        """Return names with the indices of arrays that say where tensors are (``torch_files.place_of``)."""
        at = range(len(self.arrays), len(self.arrays) + len(state.tensors))
        self.arrays += [place_of(tensor) for tensor in state.tensors.values()]
        return WorkerResult(state.key, tuple(state.tensors), tuple(at), state.facts, state.left_out, ())

    def _without_masks(self, results: list[WorkerResult], location: str) -> list[WorkerResult]:
        """Return the state dicts that are no masks; the others name these as left out."""
        name = location.rpartition("/")[2]
        masks = [
            item
            for item in results
            if not has_statistics(item.names) and is_mask([self.arrays[at] for at in item.tensor_indices], name)
        ]
        if not masks:
            return results
        left_out = tuple(f"{item.key}: {MASK}" if item.key else MASK for item in masks)
        if len(masks) == len(results):
            reject_without_network(location, "; ".join(left_out[:5]), "Leave it out.")
        return [replace(item, left_out=item.left_out + left_out) for item in results if item not in masks]

    def _array(self, tensor: Any, name: str, location: str) -> NDArray[Any]:
        limit, got = f"at most {self.limits.tensor_bytes} bytes", f"more with {name!r}"
        self.nbytes += prod(tensor.shape) * ITEMSIZE[str(tensor.dtype)]
        if self.nbytes > self.limits.tensor_bytes:
            reject(location, "tensors", limit, got)
        try:
            array = tensor.read() if isinstance(tensor, Numbers) else tensor
        except InertError as error:
            reject(location, f"tensor {name!r}: {error.what}", error.expected, error.got, TENSOR_STEP)
        return np.ascontiguousarray(array).reshape(tensor.shape)


def _check_views(states: list[StateCandidate], location: str, limits: Limits) -> None:
    """Refuse tensors that take many times what is stored, before any is made, whatever they are stored in."""
    tensors = [tensor for state in states for tensor in state.tensors.values() if isinstance(tensor, Numbers)]
    if _LARGEST * sum(prod(tensor.shape) for tensor in tensors) <= limits.always_allowed:
        return  # nearly all files
    dense = [tensor for tensor in tensors if not isinstance(tensor, Sparse)]
    sparse = [tensor for tensor in tensors if isinstance(tensor, Sparse)]
    for kind, times in ((dense, limits.views), (sparse, limits.expansion)):
        shown = {tensor.identity: prod(tensor.shape) * ITEMSIZE.get(str(tensor.dtype), 1) for tensor in kind}
        made, there = sum(shown.values()), sum(dict(tensor.stored for tensor in kind).values())
        if made > max(limits.always_allowed, times * there):
            got = f"{made} bytes from their shapes, of {there} stored"
            reject(location, "tensors", f"at most {times} times what is stored of them written out", got, VIEWS_STEP)


def _load(job: Job, data: bytes | memoryview, limits: Limits) -> Any:
    if job.file_format == PLACES:
        return read_places(bytes(data), location=job.location, limits=limits)
    form = FORMS[job.file_format]
    assert form.read is not None
    root = form.read(data, job.location, limits, job.strict)
    # vectors or samples, which those who import may cut
    return {"array": root} if is_tensor(root) and not job.strict else root


def set_limits(memory_bytes: int, *, file_bytes: int = _MESSAGE_BYTES) -> int:
    """Bound this process's memory above what it uses now, and the size of a file that it writes; it ends with its
    parent.

    The result is the bound on its address space in bytes, which ``bound_memory`` lowers for each request.
    """
    most = _used_bytes() + memory_bytes
    for kind, bound in (
        (resource.RLIMIT_AS, most),
        (resource.RLIMIT_FSIZE, file_bytes),
        # a crash leaves no file with the bytes of others
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        with contextlib.suppress(OSError, ValueError):  # macOS does not bound address spaces
            most_allowed = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(kind, (most_allowed, most_allowed))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_DEATH_SIGNAL, _KILL, 0, 0, 0)
        with contextlib.suppress(OSError):
            # where memory runs out, the kernel ends this process first
            Path("/proc/self/oom_score_adj").write_text("1000")
    return most


def bound_memory(request_bytes: int, most: int) -> None:
    """Bound what one request may take by its size: a small pickle can ask for gigabytes."""
    allowed = _used_bytes() + _REQUEST_BYTES + _EXPANSION * request_bytes
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        # RLIM_INFINITY is below 0
        resource.setrlimit(resource.RLIMIT_AS, (min(allowed, most, hard if hard > 0 else most), hard))


def _used_bytes() -> int:
    """Return this process's address space in bytes; 0 without /proc (macOS)."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0


def main() -> None:
    """Answer requests from standard input on standard output until the input ends."""
    # the last line on the standard error is taken for the error that ended this process
    warnings.simplefilter("ignore")
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    most = 0
    while head := requests.read(LENGTH_BYTES):
        request = json.loads(requests.read(int.from_bytes(head, "little")))
        limits = Limits(**request["limits"])
        jobs = [Job(**item) for item in request["files"]]
        if not most:
            most = set_limits(limits.memory_bytes)
            # what was imported need not be searched in each collection
            gc.freeze()
        bound_memory(sum(job.length for job in jobs), most)
        answer, files = _Answer(limits), list[FileAnswer]()
        for job in jobs:
            files.append(answer.add(job, _mapped(job) if job.mapped else requests.read(job.length)))
        _write(answers, files, answer)


def _mapped(job: Job) -> memoryview:
    """Map the file whose descriptor comes next over the socket."""
    number = int(os.environ[DESCRIPTORS])
    with socket.socket(fileno=os.dup(number)) as descriptors:
        _, (file, *_), *_ = socket.recv_fds(descriptors, 1, 1)
    try:
        # a map begins at a page
        first = job.base // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        before = job.base - first
        return memoryview(mmap.mmap(file, before + job.length, access=mmap.ACCESS_READ, offset=first))[before:]
    finally:
        os.close(file)


def _write(answers: IO[bytes], files: list[FileAnswer], answer: _Answer) -> None:
    answers.write(encode_answer(files, answer.arrays, answer.places))
    for piece in padded(array for at, array in enumerate(answer.arrays) if at not in answer.places):
        answers.write(piece)
    answers.flush()
