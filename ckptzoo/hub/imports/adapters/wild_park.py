"""``wild-park``: the CNN Wild Park (Kofinas et al. 2024, arXiv 2403.12143; Zenodo 12797219).

mkofinas/neural-graphs at 1f2b671, ``experiments/cnn_generalization/dataset/``.
"""

import re
from collections.abc import Iterator, Sequence

from ckptzoo.hub.imports.adapters.adapter import FoundCheckpoints, Options, Picked, all_fit, numbered_files
from ckptzoo.hub.imports.facts import merged, row_of
from ckptzoo.hub.imports.sources import ImportSource
from ckptzoo.hub.untrusted import StateDict

_CHECKPOINT = re.compile(r"(?P<trial>.+)/checkpoint_(?P<number>\d{1,9})/checkpoint\.pt")


class WildPark:
    """Trials with ``checkpoint_N/checkpoint.pt``: weights, configuration and last result in one file."""

    name = "wild-park"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether all checkpoint files are a ``checkpoint_N/checkpoint.pt``."""
        return all_fit(paths, _CHECKPOINT.fullmatch)

    def checkpoints(self, source: ImportSource, options: Options) -> Iterator[FoundCheckpoints]:
        def pick(states: Sequence[StateDict], path: str) -> Sequence[Picked]:
            return [_picked(state, path, options) for state in states]

        return numbered_files(source, _CHECKPOINT, lambda matched: matched["trial"].rpartition("/")[2], pick)


def _picked(state: StateDict, path: str, options: Options) -> Picked:
    # Ray writes a trial's last result, which repeats the configuration, beside the weights
    last = {name[12:]: value for name, value in state.facts.items() if name.startswith("last_result.")}
    own = {name: value for name, value in state.facts.items() if not name.startswith("last_result.")}
    settings = {name.removeprefix("config."): value for name, value in own.items() if name.startswith("config.")}
    rest = {name: value for name, value in own.items() if not name.startswith("config.")}
    last = {name: value for name, value in last.items() if not name.startswith("config.")}
    row = row_of(merged(last, rest, settings), location=path, percent=options.percent)
    if type(iteration := state.facts.get("iteration")) is int:
        row["step"] = iteration
    return Picked(state.source.partition("#")[2], state.tensors, row)
