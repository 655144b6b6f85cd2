"""``haiku``: samples of ``google-research/bnn_hmc``, plain pickles of Haiku parameters (Izmailov et al. 2021)."""

import re
from collections.abc import Iterator, Sequence

from ckptzoo.hub.imports.adapters.adapter import FoundCheckpoints, Options, Picked, all_fit, numbered_files
from ckptzoo.hub.imports.facts import row_of
from ckptzoo.hub.imports.sources import ImportSource
from ckptzoo.hub.untrusted import StateDict

_CHECKPOINT = re.compile(r"(?:(?P<folder>.+)/)?model_step_(?P<number>\d{1,9})\.pt")


class Haiku:
    """Chains: folders with ``model_step_N.pt``, whose ``iteration`` is the step.

    Tensors keep their names (``conv2_d.w``) and layouts: kernels (height, width, in, out), dense layers (in, out).
    """

    name = "haiku"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether all checkpoint files are a ``model_step_N.pt``."""
        return all_fit(paths, _CHECKPOINT.fullmatch)

    def checkpoints(self, source: ImportSource, options: Options) -> Iterator[FoundCheckpoints]:
        def pick(states: Sequence[StateDict], path: str) -> Sequence[Picked]:
            return [_picked(state, path, options) for state in [*filter(_is_parameters, states)] or states]

        return numbered_files(source, _CHECKPOINT, lambda matched: matched["folder"] or source.name, pick)


def _is_parameters(state: StateDict) -> bool:
    return state.source.partition("#")[2] in ("params", "")


def _picked(state: StateDict, path: str, options: Options) -> Picked:
    row = row_of(state.facts, location=path, percent=options.percent)
    if type(iteration := state.facts.get("iteration")) is int:
        row["step"] = iteration
    suffix = "" if _is_parameters(state) else state.source.partition("#")[2]
    return Picked(suffix, state.tensors, row)
