"""Names of a stranger's tensors brought to those of a zoo: by a table, by what is left out of all of them, or not."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ckptzoo.errors import Problem, SpecError
from ckptzoo.hub.contributing.nearest import nearest, pasteable
from ckptzoo.spec.architecture import Architecture
from ckptzoo.words import printable, shortened

COUNTER = "num_batches_tracked"
"""BatchNorm's counter of batches, which no output depends on."""
WRAPPERS = ("module", "_orig_mod")
"""What data parallelism and compilation put into names, anywhere."""

Shape = tuple[int, ...]


class NamesError(SpecError):
    """Names do not fit; ``proposal`` is a table ``[names]`` for contribution.toml with the nearest ones."""

    def __init__(self, problems: Problem | Sequence[Problem], proposal: str) -> None:
        super().__init__(problems)
        self.proposal = proposal

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.problems, self.proposal)


def matched(
    shapes: Mapping[str, Shape], arch: Architecture, names: Mapping[str, str], *, where: str
) -> tuple[str, dict[str, str]]:
    """What was done to the names, and the zoo's name of each tensor to the file's.

    Parameters
    ----------
    shapes : of the file's tensors, by name.
    names : old to new, ``*`` for any text.

    Raises
    ------
    NamesError
        Names do not fit.
    """
    given, unmatched = renamed(tuple(shapes), names)
    problems = [
        Problem(
            where, f"names: {shortened(printable(old), 80)!r}", "a tensor of the file", "none", "Correct the table."
        )
        for old in unmatched
    ]
    note, by_new, twice = _matched(given, frozenset(_names_of(names, tuple(shapes))), arch)
    held = {name for item in arch.tensors for name in (item.name, *item.aliases)}
    unknown = [new for new in by_new if new not in held and not new.endswith(COUNTER)]
    missing = [
        item.name
        for item in arch.tensors
        if not any(name in by_new for name in (item.name, *item.aliases)) and not item.name.endswith(COUNTER)
    ]
    if unknown or missing or twice or problems:
        raise _names_error(shapes, arch, where, unknown, missing, twice, problems)
    return note, by_new


def _names_error(
    shapes: Mapping[str, Shape],
    arch: Architecture,
    where: str,
    unknown: list[str],
    missing: list[str],
    twice: list[str],
    problems: list[Problem],
) -> NamesError:
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith(COUNTER)}
    wanted = {item.name: item.shape for item in arch.tensors if not item.name.endswith(COUNTER)}
    right = {name for name, shape in wanted.items() if shapes.get(name) == shape}
    found = nearest(*({name: held[name] for name in held if name not in right} for held in (shapes, wanted)))
    table = pasteable(found) if found else ""
    step = (
        f"If these are the same tensors, add to contribution.toml:\n{table}" if table else _other_step(unknown, missing)
    )
    expected = f"those of {arch.name}: {_some(arch.names)}"
    told = [f"{_some(unknown)} instead of {_some(missing)}" if unknown and missing else ""]
    told += [f"also {_some(unknown)}" if unknown and not missing else ""]
    told += [f"none for {_some(missing)}" if missing and not unknown else ""]
    told += [f"several for {_some(twice)}" if twice else ""]
    got = "; ".join(item for item in told if item)
    own = [Problem(where, "names of the tensors", expected, got, step)] if got else []
    return NamesError([*problems, *own], table)


def _other_step(unknown: list[str], missing: list[str]) -> str:
    """What to do where no other names would help."""
    if unknown and missing:
        return "Add a table [names], if these are the same tensors; check that it is the same architecture."
    if missing:
        return "Bring a file that holds every tensor, or bring it to a zoo of its own architecture."
    if unknown:
        return "Leave them out of the file, or bring it to a zoo of its own architecture."
    return "Correct the table [names]."


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(shortened(printable(name), 60) for name in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def renamed(found: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Old name to new one by a table, and the entries of the table that match no name; exact ones go first."""
    patterns = {old: _pattern(old) for old in names if "*" in old}
    made: dict[str, str] = {}
    used: set[str] = set()
    for name in found:
        made[name] = name
        if name in names and name not in patterns:
            made[name] = names[name]
            used.add(name)
            continue
        for old, pattern in patterns.items():
            if (matched := pattern.fullmatch(name)) is not None:
                pieces = iter(matched.groups())
                made[name] = re.sub(r"\*", lambda _, pieces=pieces: next(pieces), names[old])
                used.add(old)
                break
    return made, [old for old in names if old not in used]


def _names_of(names: Mapping[str, str], found: Sequence[str]) -> list[str]:
    """The names that a table renames."""
    patterns = [_pattern(old) for old in names if "*" in old]
    return [name for name in found if name in names or any(pattern.fullmatch(name) for pattern in patterns)]


def _pattern(old: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, old.split("*"))))


def _matched(
    given: Mapping[str, str], fixed: frozenset[str], arch: Architecture
) -> tuple[str, dict[str, str], list[str]]:
    """The first way to change the names that no table renamed with which they fit, else the names as they are.

    Returns a note, new name to old one, and new names that several old ones have.
    """
    free = [name for name in given if name not in fixed]
    first: tuple[dict[str, str], list[str]] | None = None
    for note, change in _changes(free, arch):
        made: dict[str, str] = {}
        twice: list[str] = []
        for old, new in given.items():
            new = change(old) if old not in fixed else new
            if new in made:
                twice.append(new)
            made[new] = old
        first = first or (made, twice)
        if not twice and _fits(made, arch):
            return note, made, []
    assert first is not None
    return "", *first


def _changes(free: Sequence[str], arch: Architecture) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Ways to change names, the least first."""
    yield "", lambda name: name
    bare = {name: unwrapped(name) for name in free}
    wrapped = any(old != new for old, new in bare.items())
    note = f"{' and '.join(f'{word}.' for word in WRAPPERS if _has(free, word))} left out of names" if wrapped else ""
    if wrapped:
        yield note, lambda name: unwrapped(name)
    for prefix in _shared(list(bare.values())):
        told = f"{prefix} left out of names"
        told = f"{note}; {told}" if note else told
        yield told, lambda name, prefix=prefix: unwrapped(name).removeprefix(prefix)
    for prefix in _shared(list(arch.names)):
        told = f"{prefix} put in front of names"
        yield told, lambda name, prefix=prefix: prefix + unwrapped(name)


def _has(names: Sequence[str], word: str) -> bool:
    return any(word in name.split(".")[:-1] for name in names)


def unwrapped(name: str) -> str:
    """A name without ``module.`` and ``_orig_mod.``, wherever they stand."""
    *words, last = name.split(".")
    return ".".join([word for word in words if word not in WRAPPERS] + [last])


def _shared(names: Sequence[str]) -> Iterator[str]:
    """``a.``, ``a.b.``, ... for as many first words as all names share."""
    pieces = [name.split(".")[:-1] for name in names]
    prefix = ""
    for words in zip(*pieces, strict=False):
        if len(set(words)) > 1:
            return
        prefix += f"{words[0]}."
        yield prefix


def _fits(by_new: Mapping[str, str], arch: Architecture) -> bool:
    held = {name for tensor in arch.tensors for name in (tensor.name, *tensor.aliases)}
    lacking = (item for item in arch.tensors if not any(name in by_new for name in (item.name, *item.aliases)))
    return all(name in held or name.endswith(COUNTER) for name in by_new) and all(
        item.name.endswith(COUNTER) for item in lacking
    )
