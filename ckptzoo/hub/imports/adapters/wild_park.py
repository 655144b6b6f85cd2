"""``wild-park``: the CNN Wild Park (Kofinas et al. 2024, arXiv 2403.12143; Zenodo 12797219).

mkofinas/neural-graphs at 1f2b671, ``experiments/cnn_generalization/dataset/``.
"""

import re
from collections.abc import Iterator, Sequence

from ckptzoo.hub.imports.adapters.adapter import Found, Options, Picked, all_fit, identifier, reader
from ckptzoo.hub.imports.facts import merged, row_of
from ckptzoo.hub.imports.sources import Source
from ckptzoo.hub.untrusted import Limits, StateDict

_CHECKPOINT = re.compile(r"(?P<trial>.+)/checkpoint_(?P<number>\d{1,9})/checkpoint\.pt")


class WildPark:
    """Trials with ``checkpoint_N/checkpoint.pt``: weights, configuration and last result in one file."""

    name = "wild-park"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether all checkpoint files are a ``checkpoint_N/checkpoint.pt``."""
        return all_fit(paths, _CHECKPOINT.fullmatch)

    def checkpoints(self, source: Source, options: Options) -> Iterator[Found]:
        for file in source.files():
            if (matched := _CHECKPOINT.fullmatch(file.path)) is None:
                continue
            member = identifier(matched["trial"].rpartition("/")[2])

            def pick(states: Sequence[StateDict], path: str = file.path) -> Sequence[Picked]:
                return [_picked(state, path, options) for state in states]

            yield Found(
                file.path, member, int(matched["number"]), {}, file.size, reader(file, Limits().file_bytes), pick
            )


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
