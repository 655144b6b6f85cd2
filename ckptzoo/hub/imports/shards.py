"""Networks whose tensors are cut into several files, ``model-00001-of-00003.safetensors``, put together again."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.imports.sources import SourceFile
from ckptzoo.hub.untrusted import Limits

_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.(?:safetensors|bin|pt|pth))", re.IGNORECASE
)
"""Names of shards, as transformers and diffusers write them; the numbers begin at 1."""


def is_shard(path: str) -> bool:
    """Whether a path is that of a shard."""
    return _SHARD.fullmatch(path) is not None


@dataclass
class Shards:
    """The shards of networks that are not whole yet.

    Their bytes are kept, because a tar archive cannot be read backwards; those of all together are bounded as those of
    one file are.
    """

    location: str
    _held: dict[tuple[str, str, int], dict[int, bytes]] = field(
        default_factory=dict[tuple[str, str, int], dict[int, bytes]]
    )

    def add(self, file: SourceFile) -> tuple[str, list[bytes]] | None:
        """The network's path and the bytes of its shards in order, once this one makes it whole.

        Raises
        ------
        IntegrityError
            Its number is not one of its network's, or all shards that are kept are too large.
        """
        matched = _SHARD.fullmatch(file.path)
        assert matched is not None
        number, count = int(matched["number"]), int(matched["count"])
        key = (matched["stem"], matched["suffix"], count)
        shards = self._held.setdefault(key, {})
        if not 1 <= number <= count:
            step = "Leave it out, or name it as it was published."
            raise IntegrityError(Problem(file.path, "number of the shard", f"1 to {count}", str(number), step))
        limit, nbytes = Limits().file_bytes, file.size + sum(self._sizes())
        if nbytes > limit:
            step = "Import its networks one after another."
            raise IntegrityError(Problem(file.path, "shards in memory", f"at most {limit} bytes", str(nbytes), step))
        shards[number] = file.read(limit)
        if len(shards) < count:
            return None
        del self._held[key]
        return f"{key[0]}{key[1]}", [shards[number] for number in sorted(shards)]

    def check_whole(self) -> None:
        """Refuse networks of which shards are missing.

        Raises
        ------
        IntegrityError
            There are some; the first is named.
        """
        for (stem, suffix, count), shards in self._held.items():
            missing = next(number for number in range(1, count + 1) if number not in shards)
            step = "Fetch the missing ones, or leave this network out."
            location = f"{self.location}: {stem}-{missing:05d}-of-{count:05d}{suffix}"
            raise IntegrityError(Problem(location, "shards", f"{count}", f"{len(shards)} without this one", step))

    def _sizes(self) -> Iterator[int]:
        return (len(data) for shards in self._held.values() for data in shards.values())
