"""Splits of a zoo's checkpoints into parts such as train, val and test, by member and never by checkpoint.

Checkpoints of one run are almost one network: with some of them in training, a test on the others tests nothing. A
split is a sealed document, ``splits/<name>.json``, of one of two kinds: a rule, by which the hash of a member and a
seed decides, or lists, as papers publish them.
"""

import hashlib
import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, cast

from ckptzoo.errors import IntegrityError, Problem, SpecError
from ckptzoo.schema import layout
from ckptzoo.schema.documents import REFETCH, Document, seal, unseal_kind

KIND = "split"
HASH, ID, MEMBER = "hash", "id", "member"
"""The rule of a split: the hash of a member, or lists of ids or of members."""
_TOLERANCE = 1e-9
"""The tolerance of the sum of fractions, which are decimals that binary numbers only approximate."""


@dataclass(frozen=True)
class HashSplit:
    """A split by the hash of each member and a seed: members that come later move nobody.

    Parameters
    ----------
    name
        of the split.
    zoo
        digest of the zoo's ``zoo.json``.
    seed
        from 0 on; another one gives another split.
    fractions
        of the members that each part is expected to have, in order; together 1.

    Raises
    ------
    SpecError
        A name, the seed or the fractions are none.

    Examples
    --------
    >>> split = HashSplit("main", "sha256:00", 0, {"train": 0.7, "val": 0.15, "test": 0.15})
    >>> [split.part_of(member) for member in ("run-6", "run-7", "run-14")]
    ['train', 'val', 'test']
    """

    name: str
    zoo: str
    seed: int
    fractions: Mapping[str, float]

    def __post_init__(self) -> None:
        _check_names(self.name, self.fractions)
        location = f"split {self.name!r}"
        values = list(self.fractions.values())
        if any(type(value) not in (int, float) or not 0 < value <= 1 for value in values):
            got = ", ".join(map(str, values))
            raise SpecError(Problem(location, "fractions", "numbers above 0 and at most 1", got, "Correct them."))
        if abs(math.fsum(values) - 1) > _TOLERANCE:
            got = f"{math.fsum(values):.12g}"
            raise SpecError(Problem(location, "sum of the fractions", "1", got, "Correct them."))
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise SpecError(Problem(location, "seed", "an integer from 0 on", repr(self.seed)[:80], "Correct it."))

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, in order."""
        return tuple(self.fractions)

    def part_of(self, member: str) -> str:
        """The part of one member.

        Parameters
        ----------
        member
            as in the column ``mode``, else ``member``, else ``id``.
        """
        # a hash and no random generator: the part of a member needs no other member
        # the newline ends the seed: no other seed and member give the same text
        digest = hashlib.sha256(f"{self.seed}\n{member}".encode()).digest()
        return self.parts[bisect_right(self._thresholds, int.from_bytes(digest[:8], "big"))]

    @cached_property
    def _thresholds(self) -> list[int]:
        """Where parts end among the integers of 64 bits, but for the last part."""
        # fsum rounds once, so that thresholds are the same on every machine
        sums = (math.fsum(itertools.islice(self.fractions.values(), count)) for count in range(1, len(self.fractions)))
        return [round(fraction * 2**64) for fraction in sums]

    def to_json(self) -> Document:
        """The content of the document."""
        parts = [{"name": name, "fraction": float(fraction)} for name, fraction in self.fractions.items()]
        return {**_head(self.name, self.zoo, HASH), "seed": self.seed, "parts": parts}


@dataclass(frozen=True)
class ListSplit:
    """A split that lists what each part has, as it was published.

    Parameters
    ----------
    name
        of the split.
    zoo
        digest of the zoo's ``zoo.json``.
    by
        ``id``, or ``member`` for all checkpoints of each member.
    lists
        sorted ids or members of every part, in order.
    shared_members
        whether checkpoints of one member are in several parts, which whoever imported it allowed.

    Raises
    ------
    SpecError
        Something is listed twice, or a name is none.
    """

    name: str
    zoo: str
    by: str
    lists: Mapping[str, tuple[str, ...]]
    shared_members: bool = False

    def __post_init__(self) -> None:
        _check_names(self.name, self.lists)
        known: dict[str, str] = {}
        for part, items in self.lists.items():
            for item in items:
                if item in known:
                    where = f"in {part!r}" if known[item] == part else f"in {known[item]!r} and in {part!r}"
                    step = "List it once."
                    raise SpecError(
                        Problem(f"split {self.name!r}", self.by, "each once", f"{item[:80]!r} twice, {where}", step)
                    )
                known[item] = part

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, in order."""
        return tuple(self.lists)

    def to_json(self) -> Document:
        """The content of the document."""
        # sorted: the same lists give the same bytes
        parts = [{"name": name, "items": sorted(items)} for name, items in self.lists.items()]
        return {**_head(self.name, self.zoo, self.by), "parts": parts, "shared_members": self.shared_members}


Split = HashSplit | ListSplit


def _head(name: str, zoo: str, by: str) -> Document:
    return {"format": layout.FORMAT, "version": layout.VERSION, "kind": KIND, "name": name, "zoo": zoo, "by": by}


def _check_names(name: str, parts: Mapping[str, Any]) -> None:
    step = "Use small letters, digits and hyphens."
    for what, text in (("name of a split", name), *(("name of a part", part) for part in parts)):
        if not layout.DERIVED_NAME.fullmatch(text):
            raise SpecError(Problem(f"split {name[:80]!r}", what, "as train or fold-3", repr(text)[:80], step))
    if not parts:
        raise SpecError(Problem(f"split {name!r}", "parts", "one or more", "none", "Name them."))


def encode(split: Split) -> bytes:
    """The bytes of its document: equal splits give equal bytes."""
    return seal(split.to_json())


def decode(data: bytes, *, location: str) -> Split:
    """Read the document of a split, which may be anyone's; raises ``IntegrityError`` if it is damaged, or no split."""
    content = unseal_kind(data, KIND, location=location)

    def wrong(what: str, expected: str, got: object) -> NoReturn:
        raise IntegrityError(Problem(location, what, expected, repr(got)[:160], REFETCH))

    name, zoo, by, parts = (content.get(key) for key in ("name", "zoo", "by", "parts"))
    if not isinstance(name, str) or not isinstance(zoo, str) or by not in (HASH, ID, MEMBER):
        wrong("name, zoo, by", "three texts that docs/format.md describes", (name, zoo, by))
    value = "fraction" if by == HASH else "items"
    found: dict[str, Any] = {}
    for item in cast(list[Any], parts) if isinstance(parts, list) else []:
        part = cast(Document, item) if isinstance(item, dict) else {}
        if set(part) != {"name", value}:
            wrong("part", f"name and {value}", part)
        if not isinstance(part["name"], str) or part["name"] in found:
            wrong("name of a part", "a text, each once", part["name"])
        found[part["name"]] = part[value]
    rest = "seed" if by == HASH else "shared_members"
    if set(content) != {*_head("", "", ""), "parts", rest}:
        wrong("fields", ", ".join([*_head("", "", ""), "parts", rest]), sorted(content))
    try:
        if by == HASH:
            return HashSplit(name, zoo, content["seed"], found)
        for items in found.values():
            texts = cast(list[Any], items) if isinstance(items, list) else [None]
            if not all(isinstance(text, str) for text in texts):
                wrong("items", "a list of texts", texts)
        if type(content["shared_members"]) is not bool:
            wrong("shared_members", "true or false", content["shared_members"])
        lists = {part: tuple(sorted(items)) for part, items in found.items()}
        return ListSplit(name, zoo, by, lists, content["shared_members"])
    except SpecError as error:
        problem = error.problems[0]
        raise IntegrityError(Problem(location, problem.what, problem.expected, problem.got, REFETCH)) from error
