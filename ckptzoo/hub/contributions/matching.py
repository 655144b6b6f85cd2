"""Names of a stranger's tensors brought to those of a zoo: by a table, by what is left out of all of them, or not.

A stranger's state dict under the names, shapes and dtypes of a zoo, or everything that keeps it from fitting.

Which name of a zoo is the nearest to a stranger's: a one-to-one assignment, by names and equal shapes.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SpecError
from ckptzoo.format.header import numpy_dtype
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.text import printable, shortened

Shape = tuple[int, ...]

_WORDS = re.compile(r"[a-zA-Z]+|\d+")
_IN_ORDER = 0.1
"""How much standing at the same place of the order counts beside the names."""
MOST = 2_000
"""Names of one shape up to which an assignment is sought."""


def nearest(found: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> dict[str, str]:
    """For each stranger's name the name of the zoo's that it most likely is; each is used once, shapes are equal.

    Within each shape it is the assignment with the largest sum of similarities: that of the words of both names
    (``difflib``'s ratio over words and numbers, and the share of the same last word), and of their places in the
    order.

    Parameters
    ----------
    found, wanted : names and shapes, in order.

    Returns
    -------
    Old name to new one, in the order of ``found``; names for which none is left are not in it.

    Notes
    -----
    Cubic in the number of names of one shape. Law: tests/hub/contributions/test_nearest_names.py.
    """
    made: dict[str, str] = {}
    for shape in dict.fromkeys(found.values()):
        old = [name for name in found if found[name] == shape]
        new = [name for name in wanted if wanted[name] == shape]
        if not new or max(len(old), len(new)) > MOST:
            continue
        gain = np.array([[similarity(one, two) for two in new] for one in old])
        places = (np.arange(len(names)) / max(1, len(names) - 1) for names in (old, new))
        first, second = places
        gain -= _IN_ORDER * np.abs(first[:, None] - second)
        made.update({old[row]: new[column] for row, column in assignment(gain)})
    return {name: made[name] for name in found if name in made}


def similarity(one: str, two: str) -> float:
    """How alike two names are, 0 to 2: ``conv1.weight`` is more like ``features.conv1.weight`` than ``fc.weight``."""
    first, second = _WORDS.findall(one.lower()), _WORDS.findall(two.lower())
    ratio = difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
    letters = difflib.SequenceMatcher(None, one.lower(), two.lower(), autojunk=False).ratio()
    return (ratio + letters) / 2 + (first[-1:] == second[-1:])


def assignment(gain: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs of rows and columns, each in at most one, with the largest sum of gains.

    The Hungarian method by shortest augmenting paths (Jonker and Volgenant 1987), cubic in the larger side.

    Parameters
    ----------
    gain : (R, C); as many pairs are made as the smaller side has places.
    """
    if gain.shape[0] > gain.shape[1]:
        return sorted((row, column) for column, row in assignment(gain.T))
    rows, columns = gain.shape
    cost = -gain
    u, v = np.zeros(rows + 1), np.zeros(columns + 1)
    owner = np.zeros(columns + 1, np.int64)
    for row in range(1, rows + 1):
        owner[0], at = row, 0
        least = np.full(columns + 1, np.inf)
        before = np.zeros(columns + 1, np.int64)
        used = np.zeros(columns + 1, bool)
        while owner[at]:
            used[at] = True
            free = ~used[1:]
            reduced = cost[owner[at] - 1] - u[owner[at]] - v[1:]
            better = free & (reduced < least[1:])
            least[1:][better], before[1:][better] = reduced[better], at
            following = 1 + int(np.argmin(np.where(free, least[1:], np.inf)))
            step = least[following]
            u[owner[used]] += step
            v[used] -= step
            least[1:][free] -= step
            at = following
        while at:
            owner[at], at = owner[before[at]], before[at]
    return sorted((int(owner[column]) - 1, column - 1) for column in range(1, columns + 1) if owner[column])


def pasteable(names: Mapping[str, str]) -> str:
    """A table ``[names]`` for contribution.toml."""
    return "\n".join(["[names]", *(f"{quoted(old)} = {quoted(new)}" for old, new in names.items())])


def quoted(text: str) -> str:
    """A basic string of TOML."""
    marks = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(marks.get(mark, mark if mark.isprintable() else f"\\U{ord(mark):08x}") for mark in text) + '"'


COUNTER = "num_batches_tracked"
"""BatchNorm's counter of batches, which no output depends on."""
WRAPPERS = ("module", "_orig_mod")
"""What data parallelism and compilation put into names, anywhere."""


class NamesError(SpecError):
    """Names do not fit; ``proposal`` is a table ``[names]`` for contribution.toml with the nearest ones."""

    def __init__(self, problems: Problem | Sequence[Problem], proposal: str) -> None:
        super().__init__(problems)
        self.proposal = proposal

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.problems, self.proposal)


def matched(
    shapes: Mapping[str, Shape], arch: Architecture, names: Mapping[str, str], *, location: str
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
            location, f"names: {shortened(printable(old), 80)!r}", "a tensor of the file", "none", "Correct the table."
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
        raise _names_error(shapes, arch, location, unknown, missing, twice, problems)
    return note, by_new


def _names_error(
    shapes: Mapping[str, Shape],
    arch: Architecture,
    location: str,
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
    own = [Problem(location, "names of the tensors", expected, got, step)] if got else []
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


State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Fitted:
    """A state dict, or K of them stacked, as the zoo stores it.

    Parameters
    ----------
    weights : tensor name to (K, *shape) of the zoo's dtypes.
    stacked : whether the file held K checkpoints stacked; else K is 1.
    notes : what was done to make it fit.
    rounded : tensors whose values were rounded, to the dtype they had.
    """

    weights: dict[str, NDArray[Any]]
    stacked: bool
    notes: tuple[str, ...] = ()
    rounded: Mapping[str, str] = field(default_factory=dict)


def fit(state: State, arch: Architecture, names: Mapping[str, str], *, cast: bool, location: str) -> Fitted:
    """Bring a state dict under an architecture's names.

    The names that a table gives come first. Of the others ``module.`` and ``_orig_mod.`` are left out wherever they
    stand, and a first word that all of them share (``model.``, ``net.``) is left out or put in front, if they fit
    then. BatchNorm's counters may be lacking, which makes them 0, or be too many. Values of other dtypes are taken
    where none changes, and rounded if ``cast`` says so.

    Parameters
    ----------
    state : names to arrays, tied ones under each of their names; or to (K, *shape), K checkpoints stacked.
    names : old to new, ``*`` for any text.

    Raises
    ------
    NamesError
        Names do not fit.
    SpecError
        Shapes or dtypes do not, or tied tensors differ; with every problem.
    """
    note, by_new = matched({name: array.shape for name, array in state.items()}, arch, names, location=location)
    held = {name for item in arch.tensors for name in (item.name, *item.aliases)}
    problems: list[Problem] = []
    lead, stacked = _lead(by_new, state, arch)
    notes = [note] if note else []
    made = _Made(location, cast, lead, problems)
    for tensor in arch.tensors:
        own = [name for name in (tensor.name, *tensor.aliases) if name in by_new]
        if own:
            made.add(tensor, {name: state[by_new[name]] for name in own})
        else:
            made.weights[tensor.name] = np.zeros((*lead, *tensor.shape), numpy_dtype(tensor.dtype))
    if problems:
        raise SpecError(problems)
    counters = [item.name for item in arch.tensors if item.name.endswith(COUNTER)]
    if lacking := [name for name in counters if name not in by_new]:
        notes.append(f"{len(lacking)} counters of batches, which the file lacks, are 0")
    if extra := [name for name in by_new if name not in held]:
        notes.append(f"{len(extra)} counters of batches, which the zoo lacks, are left out")
    weights = made.weights if stacked else {name: array[None] for name, array in made.weights.items()}
    return Fitted(weights, stacked, (*notes, *made.notes()), made.rounded)


@dataclass
class _Made:
    """Tensors of the zoo's shapes and dtypes, and what was wrong with the others."""

    location: str
    cast: bool
    lead: tuple[int, ...]
    problems: list[Problem]
    weights: dict[str, NDArray[Any]] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def add(self, tensor: Tensor, given: State) -> None:
        """Take a tensor that the file has under one or several of its names."""
        first = next(iter(given.values()))
        expected = (*self.lead, *tensor.shape)
        for name, array in given.items():
            if array.shape != expected:
                step = "Check that it is the same architecture."
                self._wrong(name, f"shape {expected}", f"{array.shape}", step)
                return
            if array.dtype != first.dtype or array.tobytes() != first.tobytes():
                step = "Make a zoo of an architecture in which they are not tied."
                self._wrong(name, f"the values of {next(iter(given))!r}, which it is tied to", "others", step)
                return
        self.weights[tensor.name] = self._cast(tensor, first)

    def notes(self) -> list[str]:
        """What was done to dtypes."""
        exact = [name for name in self.changed if name not in self.rounded]
        told = [f"{len(exact)} tensors in another precision that holds the same values"] if exact else []
        return told + ([f"{len(self.rounded)} tensors rounded, as cast = true allows"] if self.rounded else [])

    def _cast(self, tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
        wanted = numpy_dtype(tensor.dtype)
        if array.dtype == wanted:
            return array
        integral, whole = array.dtype.kind in "iub", wanted.kind in "iub"
        with np.errstate(over="ignore", invalid="ignore"):
            made = array.astype(wanted)
            back = made.astype(array.dtype)
        same = bool(np.all((back == array) | ((array != array) & (back != back)))) if array.size else True
        self.changed.append(tensor.name)
        if same:
            return made
        if not self.cast or (whole and not integral):
            step = "Say cast = true in contribution.toml if the values may be rounded."
            step = "Check that it is the same architecture." if whole and not integral else step
            self._wrong(tensor.name, tensor.dtype, f"{array.dtype} with values that would change", step)
        self.rounded[tensor.name] = str(array.dtype)
        return made

    def _wrong(self, name: str, expected: str, got: str, step: str) -> None:
        shown = shortened(printable(name), 80)
        self.problems.append(Problem(self.location, f"tensor {shown!r}", expected, got, step))


def _lead(by_new: Mapping[str, str], state: State, arch: Architecture) -> tuple[tuple[int, ...], bool]:
    """``(K,)`` where every tensor has one more axis in front, of one length; else ``()``."""
    leads: set[tuple[int, ...]] = set()
    for tensor in arch.tensors:
        for name in (tensor.name, *tensor.aliases):
            if name in by_new:
                shape = state[by_new[name]].shape
                leads.add(shape[:1] if shape[1:] == tensor.shape and len(shape) == len(tensor.shape) + 1 else ())
    return (leads.pop(), True) if len(leads) == 1 and () not in leads else ((), False)
