"""``safetensors-archive``: archives of one safetensors file a network, as torch-uncertainty/Checkpoints has them.

The networks of arXiv 2310.08287: ``models/<name>/<name>-<from>-<to>.tgz`` with 1,024 float16 files each.
"""

import re
from collections.abc import Iterator, Sequence

from ckptzoo.hub.imports.adapters.adapter import FoundCheckpoints, Options, every_state, identifier, reader
from ckptzoo.hub.imports.shards import is_shard
from ckptzoo.hub.imports.sources import ImportSource
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.runs import run_of

_NUMBERED = re.compile(r"(?:.*/)?[^/]*?(?P<number>\d{1,9})\.safetensors")


class SafetensorsArchive:
    """Members are the numbers in the files' names; there are no facts."""

    name = "safetensors-archive"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether all are numbered safetensors files, none of them a shard or a step of a run."""
        numbers = {matched["number"] for path in paths if (matched := _NUMBERED.fullmatch(path)) is not None}
        is_one_each = len(numbers) == len(paths) > 1
        return is_one_each and not any(is_shard(path) or run_of(path).is_part for path in paths)

    def checkpoints(self, source: ImportSource, options: Options) -> Iterator[FoundCheckpoints]:
        for file in source.files():
            if (matched := _NUMBERED.fullmatch(file.path)) is not None:
                member = identifier(matched["number"])
                yield FoundCheckpoints(
                    file.path, member, None, {}, file.size, reader(file, Limits().file_bytes), every_state
                )
