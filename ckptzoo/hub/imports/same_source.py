"""Tells a source that a zoo has checkpoints of from another one of the same name.

A zoo keeps the names of its sources, and no paths of the machine that imported them. So a folder that was moved, or
packed into an archive, is still the same source, and another one is recognised by its numbers.
"""

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters import Adapter, FoundCheckpoints, Options
from ckptzoo.hub.imports.adapters.adapter import FoundArrays, Picked
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.imports.reading import Reader
from ckptzoo.hub.imports.target import TargetZoos, unit_of
from ckptzoo.hub.untrusted.runs import identifier

_COMPARED, _COMPARED_AFAR, _IN_ORDER = 32, 4, 64
"""Files that are compared one after another before only the 64th, 128th, ... are; files that are fetched; files that
are read in an archive that is read in order.
"""
_COMPARED_BYTES = 64 * 2**20
"""Bytes of a file that is compared where others were."""


def label_of(source: OpenedSource, adapter: Adapter, options: Options, target: TargetZoos, reader: Reader) -> str:
    """Return the name that a source has in a zoo, or one that no other source has there.

    It is the last part of the source's address; with the one before it where another source has that; then with a
    number. Sources are one where most of their files that the zoo has hold the numbers that it has of them.

    Raises ``ZooError`` where files are those of a source by their names, and nothing tells whether they hold its
    numbers: the files that were linked are not there, and have no digests.
    """
    ending = re.compile(rf"(.*/)?{re.escape(source.name)}(-\d+)?")
    unclear: Problem | None = None
    for label in sorted(filter(ending.fullmatch, target.sources), key=lambda name: (len(name), name)):
        repositories = target.repositories(label)
        if source.repository in repositories:
            return label
        others = source.repository and {_repository(other) for other in repositories}
        if others and _repository(source.repository) not in others:
            continue
        target.unclear = None
        is_same = _is_same(source, label, adapter, options, target, reader)
        if is_same or (is_same is None and label == source.name and target.unclear is None):
            return label
        unclear = unclear or (target.unclear if is_same is None else None)
    own_name = source.name
    for label in target.labels_here():
        # what a member is called may depend on the name that the folder had
        last = label.rpartition("/")[2]
        for source.name in dict.fromkeys((last, re.sub(r"-\d+$", "", last) if "/" in label else last)):
            target.unclear = None
            if is_same := _is_same(source, label, adapter, options, target, reader):
                return label
            unclear = unclear or (target.unclear if is_same is None else None)
    source.name = own_name
    if unclear is not None:
        raise ZooError(unclear)
    # two names may be one in ids
    taken = {identifier(other) for other in target.sources}
    return next(label for label in _labels(source) if identifier(label) not in taken)


def _repository(address: str) -> str:
    """Return the address of a repository without its revision, which may contain slashes."""
    repository, at, hub = address.partition(" at ")
    return repository.partition("@")[0] + at + hub


def _labels(source: OpenedSource) -> Iterator[str]:
    yield source.name
    repository = source.repository.partition(" at ")[0].partition("@")[0] or source.address.partition("?")[0]
    parts = [part for part in repository.partition("://")[2].split("/") if part]
    parent = Path(repository).resolve().parent.name if "://" not in repository else parts[-2] if len(parts) > 1 else ""
    longer = f"{parent.partition('@')[0]}/{source.name}" if parent else source.name
    yield longer
    yield from (f"{longer}-{number}" for number in count(2))


def _is_same(
    source: OpenedSource, label: str, adapter: Adapter, options: Options, target: TargetZoos, reader: Reader
) -> bool | None:
    """Whether a source is the one that a label stands for; None where they have no file in common."""
    equal = differing = met = 0
    try:
        for entry in adapter.checkpoints(source, options):
            if not isinstance(entry, FoundCheckpoints | FoundArrays):
                continue
            for item in _items(entry, label, target):
                met += 1
                most = _COMPARED if source.is_local else _COMPARED_AFAR
                # a power of two shares no bit with the number before it
                if met > most and (not source.is_local or met & (met - 1)):
                    continue
                if isinstance(entry, FoundCheckpoints) and entry.size > _COMPARED_BYTES and equal + differing:
                    continue
                is_equal = _holds(entry, item, label, target, reader)
                equal, differing = equal + (is_equal is True), differing + (is_equal is False)
            if source.in_order and met >= _IN_ORDER:
                break
    except ZooError:  # the import itself meets it again
        pass
    source.broken.clear()
    return equal > differing if equal + differing else None


def _items(entry: FoundCheckpoints | FoundArrays, label: str, target: TargetZoos) -> Iterator[int]:
    """Yield the places of the checkpoints in a file, or of those in arrays, that a zoo has under a label."""
    if isinstance(entry, FoundCheckpoints):
        if file_unit(entry, label) in target.units:
            yield 0
        return
    for at, (member, step) in enumerate(zip(entry.members, entry.steps, strict=True)):
        if unit_of(label, member, step) in target.units:
            yield at


def _holds(
    entry: FoundCheckpoints | FoundArrays, at: int, label: str, target: TargetZoos, reader: Reader
) -> bool | None:
    """Whether the zoo has the numbers of a file; None where that is unknown."""
    if isinstance(entry, FoundArrays):
        picked = Picked("", {name: array[at] for name, array in entry.tensors.items()})
        return target.holds(picked, unit_of(label, entry.members[at], entry.steps[at]))
    try:
        (states,) = reader.read([(entry, entry.read())])
        if isinstance(states, ZooError):
            return None
        results = [target.holds(picked, unit_with(file_unit(entry, label), picked)) for picked in entry.pick(states)]
    except ZooError:
        return None
    return None if all(result is None for result in results) else False not in results


def file_unit(file: FoundCheckpoints, label: str) -> str:
    """Return the unit of a file: that of the same file in another archive of the same name is the same."""
    return unit_of(label, file.id or file.member, None if file.id else file.step)


def unit_with(unit: str, picked: Picked) -> str:
    """Return the unit of one checkpoint of a file."""
    return f"{unit}/{identifier(picked.suffix)}" if picked.suffix else unit
