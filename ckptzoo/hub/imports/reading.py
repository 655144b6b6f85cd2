"""Reads files of checkpoints, many by one request to the reading process, and compares what two of them hold.

Why a file is refused is worded in ``hub/untrusted`` (``state_dicts.py``, ``other_contents.py``); ``run.py`` prints it.
"""

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import cast

import numpy as np

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.hub.imports.adapters import FoundCheckpoints
from ckptzoo.hub.imports.mapped import MappedFile, loaded
from ckptzoo.hub.untrusted import Limits, StateDict
from ckptzoo.hub.untrusted.formats import HEAD_BYTES
from ckptzoo.hub.untrusted.forms import read_form
from ckptzoo.hub.untrusted.process import Content, MappedContent, ReadingProcess
from ckptzoo.hub.untrusted.protocol import Job
from ckptzoo.hub.untrusted.safetensors import read_state_dict

States = list[StateDict]
Contents = tuple[FoundCheckpoints, Sequence[bytes]]
"""A file of checkpoints, or several that hold one together, and the bytes of each."""


_CUT = (
    "mp_world_size", "args.model_parallel_size", "args.tensor_model_parallel_size", "args.pipeline_model_parallel_size",
)  # fmt: skip
"""Keys by which DeepSpeed and Megatron say in every part for how many devices a network was cut."""


class Reader:
    """Reads files of one source; ``forms`` counts what files were taken for."""

    def __init__(self, process: ReadingProcess, address: str) -> None:
        self._process, self._address = process, address
        self.forms: dict[str, int] = {}

    def read(self, files: Sequence[Contents]) -> list[States | ZooError]:
        """Return the state dicts of every file, or its error; those of shards put together."""
        made: list[list[States | ZooError]] = [[] for _ in files]
        jobs: list[tuple[list[States | ZooError], str, Job, Content]] = []
        for (file, contents), parts in zip(files, made, strict=True):
            location, name = f"{self._address}: {file.path}", file.path.rpartition("/")[2]
            for data in contents:
                try:
                    head = loaded(np.frombuffer(data[:HEAD_BYTES], np.uint8)).tobytes()
                    form = read_form(head, name, location=location)
                    self.forms[form.words] = self.forms.get(form.words, 0) + 1
                    # JSON and plain numbers: nothing in it needs the process that reads what may be hostile
                    if form.name == "safetensors":
                        parts.append(
                            [
                                read_state_dict(
                                    data if isinstance(data, memoryview) else BytesIO(data),
                                    location,
                                    name,
                                    Limits(),
                                    with_moments=True,
                                    loaded=loaded,
                                )
                            ]
                        )
                    else:
                        job = Job(location, form.name, len(data), strict=False)
                        content: Content = data
                        if isinstance(data, memoryview):
                            file = cast(MappedFile, data.obj)
                            job = replace(job, mapped=True, base=file.offset_of(data))
                            content = MappedContent(data, file.reopen)
                        jobs.append((parts, name, job, content))
                except ZooError as error:
                    parts.append(error)
        if jobs:
            answers, arrays = self._process.read([job for _, _, job, _ in jobs], [data for *_, data in jobs])
            for (parts, name, *_), answer in zip(jobs, answers, strict=True):
                parts.append(
                    answer if isinstance(answer, IntegrityError) else [item.state_dict(name, arrays) for item in answer]
                )
        return [_whole(parts, f"{self._address}: {file.path}") for (file, _), parts in zip(files, made, strict=True)]


def _whole(parts: Sequence[States | ZooError], path: str) -> States | ZooError:
    """Return the state dicts of a file, or the one that shards hold together."""
    if len(parts) == 1:
        (answer,) = parts
        cut = None if isinstance(answer, ZooError) else next(filter(None, map(_devices, answer)), None)
        if cut is None:
            return answer
        step = "Put the parts together with the program that wrote them, and import that."
        return IntegrityError(
            Problem(path, "content", "a whole network", f"1 of {cut} parts, for several devices", step)
        )
    states: States = []
    for part in parts:
        if isinstance(part, ZooError):
            return part
        states += part
    tensors = {name: array for state in states for name, array in state.tensors.items()}
    if len(states) != len(parts) or len(tensors) != sum(len(state.tensors) for state in states):
        step = "Fetch the shards again, from one release."
        return ZooError(Problem(path, "shards", "one network, each tensor once", "others", step))
    aliases = {name: first for state in states for name, first in state.aliases.items()}
    left_out = tuple(text for state in states for text in state.left_out)
    return [StateDict(path.rpartition("/")[2], tensors, aliases, states[0].facts, left_out)]


def _devices(state: StateDict) -> int | None:
    """Return for how many devices the network of this part was cut, as the part says; None where it is whole."""
    if not state.facts:
        return None
    counts = [state.facts.get(name) for name in _CUT]
    return next((count for count in counts if type(count) is int and count > 1), None)


def differences(kept: States, other: States) -> tuple[int, int]:
    """Count the tensors of a file that differ from those of another one of its network, and those that can be
    compared.

    Tensors of the same name and shape can be; numbers are compared in the precision of the other file.
    """
    pairs = [
        (one.tensors[name], array)
        for one, two in zip(kept, other, strict=False)
        for name, array in two.tensors.items()
        if name in one.tensors and one.tensors[name].shape == array.shape
    ]
    # by bytes, because NaN differs from itself
    loaded_pairs = ((loaded(one), loaded(two)) for one, two in pairs)
    return sum(one.astype(two.dtype, copy=False).tobytes() != two.tobytes() for one, two in loaded_pairs), len(pairs)
