"""``ray-tune``: folders of Ray Tune, as the Model Zoos publish them.

Schürholt et al. 2022, "Model Zoos" (arXiv 2209.14764); ModelZoos/ModelZooDataset at efccaf3,
``code/checkpoints_to_datasets/dataset_base.py``; the later zoos of the same group.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters.adapter import (
    FoundCheckpoints,
    Options,
    every_state,
    identifier,
    reader,
    side_files,
)
from ckptzoo.hub.imports.facts import merged, row_of
from ckptzoo.hub.imports.sources import ImportSource, SourceFile
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.settings_files import parse_json

_CHECKPOINT = re.compile(r"(?P<trial>.+)/checkpoint_(?P<number>\d{1,9})/checkpoints")
_SIDE = ("params.json", "config.json", "result.json")
_MAX_LINE = 2**20


class RayTune:
    """Trials with ``checkpoint_N/checkpoints``, ``params.json`` and a ``result.json`` of a line an iteration.

    Members are trials, steps iterations. Where dropout is above 0 the names of the tensors shift, so that they are
    matched by order. ``optimizer`` and ``params.pkl`` are never opened.
    """

    name = "ray-tune"
    license: str | None = "CC-BY-4.0"
    by_order = True

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether there is a ``checkpoint_N/checkpoints``."""
        return any(_CHECKPOINT.fullmatch(path) for path in paths)

    def checkpoints(self, source: ImportSource, options: Options) -> Iterator[FoundCheckpoints]:
        """Yield every checkpoint with the facts of its trial and of its iteration."""
        numbers: dict[str, list[int]] = {}

        def wanted(path: str) -> bool:
            if matched := _CHECKPOINT.fullmatch(path):
                numbers.setdefault(matched["trial"], []).append(int(matched["number"]))
            return path.rpartition("/")[2] in _SIDE

        texts, first = side_files(source, wanted, lambda path: _CHECKPOINT.fullmatch(path) is not None)
        trials: dict[str, _TrialFolder] = {}
        if first is not None:
            path, data = first
            yield self._found(SourceFile(path, len(data), lambda: BytesIO(data)), texts, numbers, trials, options)
        for file in source.files():
            if _CHECKPOINT.fullmatch(file.path) is not None and (first is None or file.path != first[0]):
                yield self._found(file, texts, numbers, trials, options)

    def _found(
        self,
        file: SourceFile,
        texts: Mapping[str, bytes],
        numbers: Mapping[str, list[int]],
        trials: dict[str, "_TrialFolder"],
        options: Options,
    ) -> FoundCheckpoints:
        matched = _CHECKPOINT.fullmatch(file.path)
        assert matched is not None
        folder = matched["trial"]
        if folder not in trials:
            trials[folder] = _TrialFolder(folder, texts, numbers.get(folder, []), options)
        trial = trials[folder]
        iteration = int(matched["number"]) + trial.offset
        facts = merged(trial.parameters, trial.results.get(iteration, {}))
        row = row_of(facts, location=file.path, percent=options.percent)
        row.setdefault("epoch", float(iteration))
        read = reader(file, Limits().file_bytes)
        return FoundCheckpoints(file.path, trial.member, iteration, row, file.size, read, every_state)


class _TrialFolder:
    """One folder: its parameters, and results by iteration."""

    def __init__(self, folder: str, texts: Mapping[str, bytes], numbers: Sequence[int], options: Options) -> None:
        self.member = identifier(folder.rpartition("/")[2])
        self.parameters: dict[str, Any] = {}
        for name in ("config.json", "params.json"):
            if (data := texts.get(f"{folder}/{name}")) is not None:
                content = parse_json(data, f"{folder}/{name}")
                self.parameters = merged(self.parameters, content if isinstance(content, dict) else {})
        location = f"{folder}/result.json"
        if (data := texts.get(location)) is None:
            step = "Fetch it again, or give --checkpoint-offset to import without its figures."
            if options.checkpoint_offset is None:
                raise ZooError(Problem(location, "file", "a line of JSON an iteration", "no such file", step))
            data = b""
        self.results = _results(data, location)
        given = options.checkpoint_offset
        self.offset = _offset(sorted(numbers), self.results, location) if given is None else given


def _results(data: bytes, location: str) -> dict[int, dict[str, Any]]:
    """Return a trial's results by iteration, without the parameters that every line repeats."""
    results: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        at = f"{location}, line {number}"
        if len(line) > _MAX_LINE:
            raise ZooError(Problem(at, "line", f"at most {_MAX_LINE} bytes", f"{len(line)}", "Do not use this file."))
        content = parse_json(line, at)
        iteration = content.get("training_iteration") if isinstance(content, dict) else None
        if type(iteration) is not int:
            step = "Fetch the file again: it may be cut."
            raise ZooError(Problem(at, "training_iteration", "an integer", json.dumps(iteration)[:80], step))
        results[iteration] = {name: value for name, value in content.items() if name not in ("config", "done")}
    return results


def _offset(numbers: Sequence[int], results: Mapping[int, Any], location: str) -> int:
    """Return the difference between the number of a checkpoint and its iteration: older versions of Ray number
    checkpoints by iteration, 2.60 from 0.
    """
    if all(number in results for number in numbers):
        return 0
    # Ray counts training_iteration from 1
    if numbers and numbers[0] == 0 and 0 not in results and results and numbers[-1] + 1 == max(results):
        return 1
    got = f"checkpoints {numbers[0]} to {numbers[-1]}" if numbers else "none"
    if results:
        got += f", iterations {min(results)} to {max(results)}"
    step = "Give --checkpoint-offset: 0 if they are iterations, 1 if they count from 0."
    raise ZooError(Problem(location, "numbers of the checkpoints", "iterations, or these less 1", got, step))
