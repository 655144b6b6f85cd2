"""``fit``: brings an untrusted state dict to the names, shapes and dtypes of a zoo, or reports why it does not fit.

Names are changed by a table, then by prefixes that all of them share. Where they still do not fit, ``proposed_names``
proposes a table: by the order of the tensors, and a one-to-one assignment by similar names and equal shapes.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, SpecError, require
from ckptzoo.format.header import numpy_dtype
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.text import excerpt

Shape = tuple[int, ...]

_WORDS = re.compile(r"[a-zA-Z]+|\d+")
_PLACE_WEIGHT = 0.1
"""Weight of the distance between two places in the order, from 0 to 1, against that of their names."""
MAX_NAMES = 2_000
"""Names of one shape up to which an assignment is computed: every pair of names is compared."""
COUNTER = "num_batches_tracked"
"""BatchNorm's counter of batches, which no output in evaluation mode depends on."""
WRAPPERS = (
    "module", "_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module", "_forward_module",
    "_module",
)  # fmt: skip
"""Words that ``torch.nn.DataParallel``, ``torch.compile``, FSDP, checkpointed activations, Lightning's strategies and
Opacus put into names, anywhere."""
CONTRIBUTION = "contribution.toml"
State = Mapping[str, NDArray[Any]]


def proposed_names(given: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> list[dict[str, str]]:
    """Return the tables of names that may be right, the likeliest first; none changes a name to itself.

    The first is by order, where both sides have the same shapes in order: what shifts the numbers in names, such as a
    layer of dropout, leaves the order, and may give a tensor's name to another of its shape. The second is by similar
    names, where that is another one. Names and shapes are in order, without counters of BatchNorm.
    """
    proposals: list[dict[str, str]] = []
    if list(given.values()) == list(wanted.values()):
        proposals.append(dict(zip(given, wanted, strict=True)))
    unchanged = {name for name, shape in wanted.items() if given.get(name) == shape}
    rest = ({name: side[name] for name in side if name not in unchanged} for side in (given, wanted))
    proposals.append({**{name: name for name in given if name in unchanged}, **nearest_names(*rest)})
    changes = [{old: new for old, new in names.items() if old != new} for names in proposals]
    return [names for number, names in enumerate(changes) if names and names not in changes[:number]]


def nearest_names(given: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> dict[str, str]:
    """Return for each name of a file the most likely name of a zoo; each is used once, and shapes are equal.

    Within each shape the assignment has the largest sum of similarities, less a tenth of the distance of their places
    in the order; it takes cubic time in the number of names of one shape. The result maps old names to new ones in the
    order of ``given``, without names for which none is left.
    """
    new_names: dict[str, str] = {}
    for shape in dict.fromkeys(given.values()):
        old = [name for name in given if given[name] == shape]
        new = [name for name in wanted if wanted[name] == shape]
        if not new or max(len(old), len(new)) > MAX_NAMES:
            continue
        scores = np.array([[similarity(old_name, new_name) for new_name in new] for old_name in old])
        old_places, new_places = (np.arange(len(names)) / max(1, len(names) - 1) for names in (old, new))
        scores -= _PLACE_WEIGHT * np.abs(old_places[:, None] - new_places)
        new_names.update({old[row]: new[column] for row, column in assignment(scores)})
    return {name: new_names[name] for name in given if name in new_names}


def similarity(left: str, right: str) -> float:
    """Rate the similarity of two names, 0 to 2: ``difflib``'s mean ratio over words and letters, and 1 for the same
    last word.

    >>> similarity("conv1.weight", "conv1.weight")
    2.0
    >>> similarity("conv1.weight", "features.conv1.weight") > similarity("conv1.weight", "fc.weight")
    True
    """
    left_words, right_words = _WORDS.findall(left.lower()), _WORDS.findall(right.lower())
    # autojunk would leave out what is frequent in 200 items or more
    words = difflib.SequenceMatcher(None, left_words, right_words, autojunk=False).ratio()
    letters = difflib.SequenceMatcher(None, left.lower(), right.lower(), autojunk=False).ratio()
    return (words + letters) / 2 + (left_words[-1:] == right_words[-1:])


def assignment(scores: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Assign rows to columns, each at most once, with the largest sum of ``scores`` (R, C); min(R, C) pairs.

    Raises ``MissingExtraError`` where scipy is not installed.
    """
    optimize = require("scipy.optimize", "hub", package="scipy")
    # the largest sum over all pairs; taking the best pair first can leave a bad one for the last
    rows, columns = optimize.linear_sum_assignment(scores, maximize=True)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]


def names_table(names: Mapping[str, str]) -> str:
    """Return a table ``[names]`` for contribution.toml.

    >>> print(names_table({"head.bias": "fc.bias"}))
    [names]
    "head.bias" = "fc.bias"
    """
    return "\n".join(["[names]", *(f"{toml_string(old)} = {toml_string(new)}" for old, new in names.items())])


def toml_string(text: str) -> str:
    """Write a text as a basic string of TOML."""
    # TOML 1.0: a quote and a backslash are escaped, and any character may be, by its code point in eight hex digits
    marks = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(marks.get(mark, mark if mark.isprintable() else f"\\U{ord(mark):08x}") for mark in text) + '"'


class NamesError(SpecError):
    """Names do not fit; ``proposals`` are old names to new ones that may be right, the likeliest first."""

    def __init__(self, problems: Problem | Sequence[Problem], proposals: Sequence[Mapping[str, str]]) -> None:
        super().__init__(problems)
        self.proposals = tuple(proposals)

    @property
    def tables(self) -> str:
        """The first table for contribution.toml, and the others as comments."""
        first, *others = map(names_table, self.proposals)
        lines = [line for table in others for line in ("Or, by similar names:", *table.splitlines())]
        return "\n".join([first, *(f"# {line}" for line in lines)])

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        # pickle would call the class with args alone, which lack the proposals
        return type(self), (self.problems, self.proposals)


def fitting_names(
    shapes: Mapping[str, Shape], arch: Architecture, names: Mapping[str, str]
) -> tuple[str, dict[str, str]] | None:
    """Call ``match_names``; None where names do not fit. Entries of the table may be about other files."""
    renamed_names, _ = rename(tuple(shapes), names)
    fixed = frozenset(_renamed_by_table(names, tuple(shapes)))
    note, by_new, repeated = _first_fitting_change(renamed_names, fixed, arch)
    return (note, by_new) if not repeated and _fits(by_new, arch) else None


def match_names(
    shapes: Mapping[str, Shape],
    arch: Architecture,
    names: Mapping[str, str],
    *,
    location: str,
    table: str = CONTRIBUTION,
) -> tuple[str, dict[str, str]]:
    """Match the names of a file's tensors with the zoo's; return what was done to the names, and the zoo's name of each
    tensor to the file's.

    ``names`` maps old to new, with ``*`` for any text; ``table`` says in messages where such a table is written.
    Raises ``NamesError`` where names do not fit.
    """
    renamed_names, unmatched = rename(tuple(shapes), names)
    problems = [
        Problem(location, f"names: {excerpt(old, 80)!r}", "a tensor of the file", "none", "Correct the table.")
        for old in unmatched
    ]
    note, by_new, repeated = _first_fitting_change(
        renamed_names, frozenset(_renamed_by_table(names, tuple(shapes))), arch
    )
    known = {name for item in arch.tensors for name in (item.name, *item.aliases)}
    unknown = [new for new in by_new if new not in known and not new.endswith(COUNTER)]
    missing = [
        item.name
        for item in arch.tensors
        if not any(name in by_new for name in (item.name, *item.aliases)) and not item.name.endswith(COUNTER)
    ]
    # an entry without a match may be about another of the files, where the names of this one fit
    if unknown or missing or repeated:
        raise _names_error(shapes, arch, location, unknown, missing, repeated, problems, table)
    return note, by_new


def _names_error(
    shapes: Mapping[str, Shape],
    arch: Architecture,
    location: str,
    unknown: list[str],
    missing: list[str],
    repeated: list[str],
    problems: list[Problem],
    table: str,
) -> NamesError:
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith(COUNTER)}
    wanted = {item.name: item.shape for item in arch.tensors if not item.name.endswith(COUNTER)}
    # a table that leaves tensors without a name, or names without a tensor, would not lead on
    known = {name for item in arch.tensors for name in (item.name, *item.aliases)}
    proposals = [
        names
        for names in proposed_names(shapes, wanted)
        if set(wanted) <= {names.get(name, name) for name in shapes} <= known
    ]
    in_order = list(shapes.values()) == list(wanted.values())
    step = _proposal_step(proposals, shapes, table, in_order=in_order) if proposals else _next_step(unknown, missing)
    expected = f"those of {arch.name}: {_first_names(arch.names)}"
    # where all are missing they are listed already
    of = "" if len(missing) == len(arch.names) else f" instead of {_first_names(missing)}"
    parts = [f"{_first_names(unknown)}{of}" if unknown and missing else ""]
    parts += [f"also {_first_names(unknown)}" if unknown and not missing else ""]
    parts += [f"none for {_first_names(missing)}" if missing and not unknown else ""]
    parts += [f"several for {_first_names(repeated)}" if repeated else ""]
    got = "; ".join(item for item in parts if item)
    names_problem = [Problem(location, "names of the tensors", expected, got, step)] if got else []
    return NamesError([*problems, *names_problem], proposals)


def _proposal_step(
    proposals: Sequence[Mapping[str, str]], shapes: Mapping[str, Shape], table: str, *, in_order: bool
) -> str:
    """Return what to add to the table of names, and where it may be wrong."""
    first, *others = map(names_table, proposals)
    if others:
        commented = "\n".join(f"# {line}" for line in others[0].splitlines())
        tell = " With --module FILE.py:NAME of the network that the file came with, its outputs tell which one that is."
        return (
            f"Tensors of equal shapes can be matched in two ways; add the right one to {table}."
            f"{tell if table == CONTRIBUTION else ''}\n# By the order of the tensors:\n{first}\n"
            f"# By similar names:\n{commented}"
        )
    counts, check = Counter(shapes.values()), ""
    if not in_order and (uncertain := [old for old in proposals[0] if counts[shapes[old]] > 1]):
        check = f" Check {_first_names(uncertain)}: the order differs, and other tensors have their shapes."
    return f"If these are the same tensors, add the table [names] to {table}.{check}\n{first}"


def _next_step(unknown: list[str], missing: list[str]) -> str:
    """Return the next step where no proposal of names can be made."""
    if unknown and missing and len(unknown) != len(missing):
        return "These are not the same tensors: bring it to a zoo of its own architecture."
    if unknown and missing:
        return "Add a table [names], if these are the same tensors; check that it is the same architecture."
    if missing:
        return "Bring a file that holds every tensor, or bring it to a zoo of its own architecture."
    if unknown:
        return "Leave them out of the file, or bring it to a zoo of its own architecture."
    return "Correct the table [names]."


def _first_names(names: Sequence[str]) -> str:
    listed = ", ".join(excerpt(name, 60) for name in names[:4])
    return listed + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def rename(old_names: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Map old names to new ones by a table; also return its entries that match no name. Exact names go first."""
    patterns = {old: _compile_pattern(old) for old in names if "*" in old}
    new_names: dict[str, str] = {}
    used: set[str] = set()
    for name in old_names:
        new_names[name] = name
        if name in names and name not in patterns:
            new_names[name] = names[name]
            used.add(name)
            continue
        for old, pattern in patterns.items():
            if (matched := pattern.fullmatch(name)) is not None:
                pieces = iter(matched.groups())
                # a function as replacement is taken as it is; in a text, sub would read backslashes as escapes
                new_names[name] = re.sub(r"\*", lambda _, pieces=pieces: next(pieces), names[old])
                used.add(old)
                break
    return new_names, [old for old in names if old not in used]


def _renamed_by_table(names: Mapping[str, str], old_names: Sequence[str]) -> list[str]:
    patterns = [_compile_pattern(old) for old in names if "*" in old]
    return [name for name in old_names if name in names or any(pattern.fullmatch(name) for pattern in patterns)]


def _compile_pattern(old: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(map(re.escape, old.split("*"))))


def _first_fitting_change(
    renamed_names: Mapping[str, str], fixed: frozenset[str], arch: Architecture
) -> tuple[str, dict[str, str], list[str]]:
    """Try changes of the names that no table renamed, until the names fit; if none does, take the nearest.

    Returns a note, new name to old one, and new names that several old ones have.
    """
    free = [name for name in renamed_names if name not in fixed]
    wanted = {item.name for item in arch.tensors}
    nearest: tuple[int, dict[str, str], list[str]] | None = None
    for note, change in _changes(free, arch):
        by_new: dict[str, str] = {}
        repeated: list[str] = []
        for old, new in renamed_names.items():
            new = change(old) if old not in fixed else new
            if new in by_new:
                repeated.append(new)
            by_new[new] = old
        if not repeated and _fits(by_new, arch):
            return note, by_new, []
        different = len(wanted ^ by_new.keys())
        if nearest is None or (different < nearest[0] and not repeated):
            nearest = different, by_new, repeated
    assert nearest is not None
    return "", *nearest[1:]


def _changes(free: Sequence[str], arch: Architecture) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Yield changes of names with a note on each, from the least to the largest."""
    yield "", lambda name: name
    unwrapped_names = {name: without_wrappers(name) for name in free}
    wrapped = any(old != new for old, new in unwrapped_names.items())
    note = (
        f"{' and '.join(f'{word}.' for word in WRAPPERS if _has_word(free, word))} left out of names" if wrapped else ""
    )
    if wrapped:
        yield note, lambda name: without_wrappers(name)
    for prefix in _shared_prefixes(list(unwrapped_names.values())):
        prefix_note = f"{prefix} left out of names"
        prefix_note = f"{note}; {prefix_note}" if note else prefix_note
        yield prefix_note, lambda name, prefix=prefix: without_wrappers(name).removeprefix(prefix)
    for prefix in _shared_prefixes(list(arch.names)):
        prefix_note = f"{prefix} put in front of names"
        yield prefix_note, lambda name, prefix=prefix: prefix + without_wrappers(name)


def _has_word(names: Sequence[str], word: str) -> bool:
    return any(word in name.split(".")[:-1] for name in names)


def without_wrappers(name: str) -> str:
    """Return a name without the words of ``WRAPPERS``.

    >>> without_wrappers("module.features._orig_mod.conv1.weight")
    'features.conv1.weight'
    """
    *words, last = name.split(".")
    return ".".join([word for word in words if word not in WRAPPERS] + [last])


def _shared_prefixes(names: Sequence[str]) -> Iterator[str]:
    """Yield ``a.``, ``a.b.``, ... for the first words that all names share."""
    split_names = [name.split(".")[:-1] for name in names]
    prefix = ""
    for words in zip(*split_names, strict=False):
        if len(set(words)) > 1:
            return
        prefix += f"{words[0]}."
        yield prefix


def _fits(by_new: Mapping[str, str], arch: Architecture) -> bool:
    known = {name for tensor in arch.tensors for name in (tensor.name, *tensor.aliases)}
    missing = (item for item in arch.tensors if not any(name in by_new for name in (item.name, *item.aliases)))
    return all(name in known or name.endswith(COUNTER) for name in by_new) and all(
        item.name.endswith(COUNTER) for item in missing
    )


@dataclass(frozen=True)
class Fitted:
    """A state dict, or K of them stacked, as the zoo stores it.

    ``weights`` are (K, *shape) of the zoo's dtypes, with K = 1 unless the file held K checkpoints ``stacked``.
    ``notes`` says how it was made to fit; ``rounded`` maps tensors whose values were rounded to the dtype they had.
    """

    weights: dict[str, NDArray[Any]]
    stacked: bool
    notes: tuple[str, ...] = ()
    rounded: Mapping[str, str] = field(default_factory=dict)


def fit(state: State, arch: Architecture, names: Mapping[str, str], *, cast: bool, location: str) -> Fitted:
    """Bring a state dict under an architecture's names.

    The names that a table gives come first. From the others ``module.`` and ``_orig_mod.`` are left out, and a first
    word that all of them share (``model.``, ``net.``) is left out or put in front, if they fit then. BatchNorm's
    counters may be missing, and are then 0, or be too many. Values of other dtypes are taken where none changes, and
    rounded if ``cast`` is true. ``state`` has tied tensors under each of their names; (K, *shape) where K checkpoints
    are stacked. ``names`` maps old to new, ``*`` for any text.

    Raises ``NamesError``: names do not fit. Raises ``SpecError`` with every problem: shapes or dtypes do not, or tied
    tensors differ.
    """
    note, by_new = match_names({name: array.shape for name, array in state.items()}, arch, names, location=location)
    known = {name for item in arch.tensors for name in (item.name, *item.aliases)}
    problems: list[Problem] = []
    leading, stacked = _leading_shape(by_new, state, arch)
    notes = [note] if note else []
    converter = _Converter(location, cast, leading, problems)
    for tensor in arch.tensors:
        given_names = [name for name in (tensor.name, *tensor.aliases) if name in by_new]
        if given_names:
            converter.add(tensor, {name: state[by_new[name]] for name in given_names})
        else:
            converter.weights[tensor.name] = np.zeros((*leading, *tensor.shape), numpy_dtype(tensor.dtype))
    if problems:
        raise SpecError(problems)
    counters = [item.name for item in arch.tensors if item.name.endswith(COUNTER)]
    if missing_counters := [name for name in counters if name not in by_new]:
        notes.append(f"{len(missing_counters)} counters of batches, which the file lacks, are 0")
    if extra_counters := [name for name in by_new if name not in known]:
        notes.append(f"{len(extra_counters)} counters of batches, which the zoo lacks, are left out")
    weights = converter.weights if stacked else {name: array[None] for name, array in converter.weights.items()}
    return Fitted(weights, stacked, (*notes, *converter.notes()), converter.rounded)


@dataclass
class _Converter:
    """Brings tensors to the zoo's shapes and dtypes, and collects what is wrong with them."""

    location: str
    cast: bool
    leading: tuple[int, ...]
    problems: list[Problem]
    weights: dict[str, NDArray[Any]] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def add(self, tensor: Tensor, given: State) -> None:
        """Add a tensor that the file has under one or several of its names."""
        first = next(iter(given.values()))
        expected = (*self.leading, *tensor.shape)
        for name, array in given.items():
            if array.shape != expected:
                step = "Check that it is the same architecture."
                self._report(name, f"shape {expected}", f"{array.shape}", step)
                return
            # by bytes, because NaN differs from itself
            if array.dtype != first.dtype or array.tobytes() != first.tobytes():
                step = "Make a zoo of an architecture in which they are not tied."
                self._report(name, f"the values of {next(iter(given))!r}, which it is tied to", "others", step)
                return
        self.weights[tensor.name] = self._cast(tensor, first)

    def notes(self) -> list[str]:
        """Return notes on the dtypes that were changed."""
        exact = [name for name in self.changed if name not in self.rounded]
        notes = [f"{len(exact)} tensors in another precision that holds the same values"] if exact else []
        return notes + ([f"{len(self.rounded)} tensors rounded, as cast = true allows"] if self.rounded else [])

    def _cast(self, tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
        wanted = numpy_dtype(tensor.dtype)
        if array.dtype == wanted:
            return array
        from_integral, to_integral = array.dtype.kind in "iub", wanted.kind in "iub"
        with np.errstate(over="ignore", invalid="ignore"):
            converted = array.astype(wanted)
            back = converted.astype(array.dtype)
        # NaN differs from itself: one that stays NaN is the same value
        same = bool(np.all((back == array) | ((array != array) & (back != back)))) if array.size else True
        self.changed.append(tensor.name)
        if same:
            return converted
        if not self.cast or (to_integral and not from_integral):
            step = "Say cast = true in contribution.toml if the values may be rounded."
            step = "Check that it is the same architecture." if to_integral and not from_integral else step
            self._report(tensor.name, tensor.dtype, f"{array.dtype} with values that would change", step)
        self.rounded[tensor.name] = str(array.dtype)
        return converted

    def _report(self, name: str, expected: str, got: str, step: str) -> None:
        self.problems.append(Problem(self.location, f"tensor {excerpt(name, 80)!r}", expected, got, step))


def _leading_shape(by_new: Mapping[str, str], state: State, arch: Architecture) -> tuple[tuple[int, ...], bool]:
    """Return ``(K,)`` where every tensor has one more axis in front, of one length; else ``()``."""
    leading: set[tuple[int, ...]] = set()
    for tensor in arch.tensors:
        for name in (tensor.name, *tensor.aliases):
            if name in by_new:
                shape = state[by_new[name]].shape
                leading.add(shape[:1] if shape[1:] == tensor.shape and len(shape) == len(tensor.shape) + 1 else ())
    return (leading.pop(), True) if len(leading) == 1 and () not in leading else ((), False)
