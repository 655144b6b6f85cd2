"""Networks whose tensors are cut into several files, ``model-00001-of-00003.safetensors``, put together again."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.imports.opened import OpenedFile
from ckptzoo.hub.imports.sources import SourceFile
from ckptzoo.hub.untrusted import Limits

# huggingface_hub and transformers pad the numbers to five digits.
_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>(?:\.\w+)?\.(?:safetensors|bin|pt|pth|msgpack|h5))",
    re.IGNORECASE,
)
"""Names of shards, as transformers and diffusers write them; the numbers begin at 1."""


@dataclass(frozen=True)
class Whole:
    """A network whose shards are complete.

    ``path`` is that of its shards without their numbers; ``size`` the bytes of all; ``read`` gives the bytes of
    each, in order; ``parts`` are their paths.
    """

    path: str
    size: int
    read: Callable[[], Sequence[bytes]] = field(repr=False)
    parts: Sequence[str] = ()


@dataclass(frozen=True)
class _Shard:
    path: str
    size: int
    read: Callable[[], bytes]


def is_shard(path: str) -> bool:
    """Whether a path is that of a shard."""
    return _SHARD.fullmatch(path) is not None


@dataclass
class Shards:
    """The shards of networks that are not whole yet.

    Their bytes are kept for a source that can be read only once, such as a tar archive; those of all together are
    bounded as those of one file are.
    """

    location: str
    _held: dict[tuple[str, str, int], dict[int, _Shard]] = field(
        default_factory=dict[tuple[str, str, int], dict[int, _Shard]]
    )

    def add(self, file: OpenedFile) -> Whole | None:
        """Return the network, once this shard makes it whole.

        Raises ``IntegrityError`` where its number is not one of its network's, or all shards that are kept are
        too large.
        """
        matched = _SHARD.fullmatch(file.path)
        assert matched is not None
        number, count = int(matched["number"]), int(matched["count"])
        key = (matched["stem"], matched["suffix"], count)
        shards = self._held.setdefault(key, {})
        if not 1 <= number <= count:
            step = "Leave it out, or name it as it was published."
            raise IntegrityError(Problem(file.path, "number of the shard", f"1 to {count}", str(number), step))
        limit = Limits().file_bytes
        if (reopen := file.reopen) is not None:
            again = SourceFile(file.path, file.size, reopen)
            shards[number] = _Shard(file.path, file.size, lambda: again.read(limit))
        else:
            nbytes = file.size + sum(shard.size for network in self._held.values() for shard in network.values())
            if nbytes > limit:
                step = "Import its networks one after another."
                expected = f"at most {limit} bytes"
                raise IntegrityError(Problem(file.path, "shards in memory", expected, str(nbytes), step))
            data = file.read(limit)
            shards[number] = _Shard(file.path, len(data), lambda: data)
        if len(shards) < count:
            return None
        del self._held[key]
        whole = [shards[number] for number in sorted(shards)]
        read = partial(_read_all, whole)
        size = sum(shard.size for shard in whole)
        return Whole(f"{key[0]}{key[1]}", size, read, [shard.path for shard in whole])

    def missing(self) -> Iterator[tuple[IntegrityError, list[str]]]:
        """Yield for each network with missing shards the first of these, and the paths of its other shards."""
        for (stem, suffix, count), shards in self._held.items():
            missing = next(number for number in range(1, count + 1) if number not in shards)
            step = "Fetch the missing ones, or leave this network out."
            location = f"{self.location}: {stem}-{missing:05d}-of-{count:05d}{suffix}"
            error = IntegrityError(Problem(location, "shards", f"{count}", f"{len(shards)} without this one", step))
            yield error, [shard.path for shard in shards.values()]


def _read_all(shards: Sequence[_Shard]) -> list[bytes]:
    return [shard.read() for shard in shards]
