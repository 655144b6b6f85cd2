"""``model-j``: the Model Jungle (Horwitz et al. 2024, ProbeX; eliahuhorwitz/ProbeX at e0b29aa, ``probex_datasets.py``).

A repository a model: ``model.safetensors`` with what it was trained for in its header.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from ckptzoo.hub.imports.adapters.adapter import (
    FoundCheckpoints,
    Options,
    PassedOver,
    Picked,
    all_fit,
    every_state,
    identifier,
    reader,
)
from ckptzoo.hub.imports.adapters.side_files import SideFiles
from ckptzoo.hub.imports.facts import row_of, together
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.untrusted import Limits, StateDict
from ckptzoo.hub.untrusted.runs import run_of

_MODEL = "model.safetensors"
_MAX_LITERAL = 100_000


class ModelJungle:
    """Members are repositories, here folders."""

    name = "model-j"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether all checkpoint files are a ``model.safetensors`` in folders of other names, and no steps of a run."""
        models = [path for path in paths if path.rpartition("/")[2] == _MODEL]
        folders = {path.split("/")[-2] if "/" in path else "" for path in models}
        is_one_each = len(folders) == len(models) and not any(run_of(path).is_part for path in models)
        return is_one_each and all_fit(paths, lambda path: path.rpartition("/")[2] == _MODEL)

    def checkpoints(self, source: OpenedSource, options: Options) -> Iterator[FoundCheckpoints | PassedOver]:
        """Yield every ``model.safetensors``; the header's texts are facts, read as Python's literals."""
        beside = SideFiles(source)
        yield from beside.passed_over
        for file in source.files():
            if file.name != _MODEL:
                continue
            member = identifier(file.folder.rpartition("/")[2] or source.name)
            row = together(row_of(beside.of(file.path), location=file.path), beside.exported(file.path) or {})

            def pick(states: Sequence[StateDict], path: str = file.path) -> Sequence[Picked]:
                return [
                    Picked(picked.suffix, picked.tensors, row_of(_facts(state), location=path, percent=options.percent))
                    for picked, state in zip(every_state(states), states, strict=True)
                ]

            yield FoundCheckpoints(file.path, member, None, row, file.size, reader(file, Limits().file_bytes), pick)


def _facts(state: StateDict) -> dict[str, Any]:
    # safetensors keeps texts alone: lists and numbers are there as Python writes them
    return {name: _literal(value) if isinstance(value, str) else value for name, value in state.facts.items()}


def _literal(text: str) -> Any:
    """Return a text as the literal that it is; another text as it is."""
    # literal_eval recurses, and deep nesting can exhaust the stack of the interpreter
    if len(text) > _MAX_LITERAL or text.count("(") + text.count("[") + text.count("{") > 1000:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
