"""Networks whose tensors are cut into several files, ``model-00001-of-00003.safetensors``, put together again."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.imports.opened import OpenedFile
from ckptzoo.hub.imports.sources import SourceFile
from ckptzoo.hub.untrusted import Limits

_SHARD = re.compile(
    r"(?P<stem>.+)(?P<separator>[-_])(?P<number>\d{5,7})-of-(?P<count>\d{5,7})"
    r"(?P<suffix>(?:\.\w+)?\.(?:safetensors|bin|pt|pth|msgpack|h5))",
    re.IGNORECASE,
)
"""Names of shards, as transformers and diffusers write them, with numbers from 1, padded to five digits.

BLOOM has ``model_00001-of-00072``, DeepSeek ``model-00001-of-000163``.
"""
_INDEX = re.compile(r"(?P<whole>.+)\.index(?P<variant>\.\w+)?\.json", re.IGNORECASE)
"""Names of indices: ``model.safetensors.index.json``, and with a precision as diffusers writes it."""


@dataclass(frozen=True)
class ShardIndex:
    """The index of a network's shards: the paths of these, in order, with the names of the tensors of each."""

    path: str
    names: Mapping[str, frozenset[str]] = field(repr=False)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The number of each shard, from 1, by its path."""
        return {path: number for number, path in enumerate(self.names, start=1)}

    @property
    def whole(self) -> str:
        """The path of the network: its shards' without their numbers, else that of the index without its suffix."""
        if (shard := _SHARD.fullmatch(next(iter(self.names)))) is not None:
            return f"{shard['stem']}{shard['suffix']}"
        matched = _INDEX.fullmatch(self.path)
        assert matched is not None
        return matched["whole"]


def read_index(path: str, content: Any) -> ShardIndex | None:
    """Return the index of shards in a file of JSON; None where it is none.

    >>> index = read_index("net.safetensors.index.json", {"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}})
    >>> index.whole, list(index.names)
    ('net.safetensors', ['1.safetensors', '2.safetensors'])
    """
    files = cast("dict[str, Any]", content).get("weight_map") if isinstance(content, dict) else None
    if _INDEX.fullmatch(path) is None or not isinstance(files, dict) or not files:
        return None
    folder = path.rpartition("/")[0]
    names: dict[str, set[str]] = {}
    for name, file in cast("dict[str, Any]", files).items():
        if not isinstance(file, str) or not file or file.startswith("/") or ".." in file.split("/"):
            return None
        names.setdefault(f"{folder}/{file}" if folder else file, set()).add(name)
    return ShardIndex(path, {file: frozenset(names[file]) for file in sorted(names)})


@dataclass(frozen=True)
class Whole:
    """A network whose shards are complete.

    ``path`` is that of its shards without their numbers; ``size`` the bytes of all; ``read`` gives the bytes of
    each, in order; ``parts`` are their paths. ``index`` says which tensors they have, where there is one.
    """

    path: str
    size: int
    read: Callable[[], Sequence[bytes]] = field(repr=False)
    parts: Sequence[str] = ()
    index: ShardIndex | None = None


@dataclass(frozen=True)
class _Network:
    """A network that is not whole yet: its path, how many shards it has, and the form of their paths or an index."""

    whole: str
    count: int
    pattern: str = ""
    index: ShardIndex | None = None

    @property
    def key(self) -> str:
        return self.pattern if self.index is None else self.index.path

    def shard(self, number: int) -> str:
        """The path of a shard, by its number from 1."""
        return self.pattern.format(number) if self.index is None else list(self.index.names)[number - 1]


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
    indices: Mapping[str, ShardIndex] = field(default_factory=dict[str, ShardIndex])
    _held: dict[str, tuple[_Network, dict[int, _Shard]]] = field(
        default_factory=dict[str, tuple[_Network, dict[int, _Shard]]]
    )

    def has(self, path: str) -> bool:
        """Whether a path is that of a shard: an index names it, or its own name says so."""
        return path in self.indices or is_shard(path)

    def add(self, file: OpenedFile) -> Whole | None:
        """Return the network, once this shard makes it whole.

        Raises ``IntegrityError`` where its number is not one of its network's, or all shards that are kept are
        too large.
        """
        network, number = self._network(file.path)
        _, shards = self._held.setdefault(network.key, (network, {}))
        limit = Limits().file_bytes
        if (reopen := file.reopen) is not None:
            again = SourceFile(file.path, file.size, reopen)
            shards[number] = _Shard(file.path, file.size, lambda: again.read(limit))
        else:
            nbytes = file.size + sum(shard.size for _, held in self._held.values() for shard in held.values())
            if nbytes > limit:
                step = "Import its networks one after another."
                expected = f"at most {limit} bytes"
                raise IntegrityError(Problem(file.path, "shards in memory", expected, str(nbytes), step))
            data = file.read(limit)
            shards[number] = _Shard(file.path, len(data), lambda: data)
        if len(shards) < network.count:
            return None
        del self._held[network.key]
        whole = [shards[number] for number in sorted(shards)]
        read = partial(_read_all, whole)
        size = sum(shard.size for shard in whole)
        return Whole(network.whole, size, read, [shard.path for shard in whole], network.index)

    def _network(self, path: str) -> tuple[_Network, int]:
        """Return the network of a shard, and the number of the shard, from 1."""
        if (index := self.indices.get(path)) is not None:
            return _Network(index.whole, len(index.names), index=index), index.numbers[path]
        matched = _SHARD.fullmatch(path)
        assert matched is not None
        number, count, stem = int(matched["number"]), int(matched["count"]), matched["stem"]
        if not 1 <= number <= count:
            step = "Leave it out, name it as it was published, or fetch the index beside it (.index.json)."
            raise IntegrityError(Problem(path, "number of the shard", f"1 to {count}", str(number), step))
        digits = len(matched["number"])
        before, after = f"{stem}{matched['separator']}", f"-of-{matched['count']}{matched['suffix']}"
        pattern = f"{_literal(before)}{{:0{digits}d}}{_literal(after)}"
        return _Network(f"{stem}{matched['suffix']}", count, pattern), number

    def missing(self) -> Iterator[tuple[IntegrityError, list[str]]]:
        """Yield for each network with missing shards the first of these, and the paths of its other shards."""
        for network, shards in self._held.values():
            missing = next(number for number in range(1, network.count + 1) if number not in shards)
            step = "Fetch the missing ones, or leave this network out."
            location = f"{self.location}: {network.shard(missing)}"
            got = f"{len(shards)} without this one"
            error = IntegrityError(Problem(location, "shards", f"{network.count}", got, step))
            yield error, [shard.path for shard in shards.values()]


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _read_all(shards: Sequence[_Shard]) -> list[bytes]:
    return [shard.read() for shard in shards]
