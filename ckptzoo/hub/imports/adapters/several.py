"""Several networks in one state dict: under prefixes, along a first axis of all tensors, or as vectors."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.contributions.matching import without_wrappers
from ckptzoo.hub.imports.adapters.adapter import Picked
from ckptzoo.hub.imports.mapped import loaded
from ckptzoo.hub.imports.tables import Slice, shape_of
from ckptzoo.hub.untrusted import StateDict
from ckptzoo.hub.untrusted.errors import reject_without_network
from ckptzoo.hub.untrusted.layer_trees import is_copy_name, numbers_layer
from ckptzoo.hub.untrusted.objects import is_figure_name
from ckptzoo.hub.untrusted.other_contents import other_content
from ckptzoo.hub.untrusted.runs import without_suffixes

_SAMPLES = "samples"
"""The method of draws where a file does not say how they were drawn."""
_SAMPLE_NAMES = re.compile(r"(posterior_)?(samples?|draws?|thetas?|chains?|particles|params_hmc)$")
"""Names of one array whose rows are samples."""
_MEMBERS = re.compile(r"((?:(?:members|models|networks|nets|ensemble|estimators|net_list|model_list)\.)?[0-9]+)\.")
"""Names that programs give a list of networks in a module."""
_FIRST_WORD = re.compile(r"([^.]+)\.")
_FLAT_NAMES = re.compile(r"flat(_\w+)?|(\w+_)?(theta|vec|vector)|params|parameters|weights")
"""Names of one array that holds all numbers of a network, or in rows those of several."""
_LAYOUT = "Say with --layout which of its numbers are which tensor"


def networks_of(state: StateDict, prefixes: Sequence[str], path: str) -> Iterator[StateDict]:
    """Yield the networks under prefixes of names, each without its prefix; tensors under none are left out and noted.

    ``prefixes`` are dotted words, with ``*`` for any word: ``members.*``. Raises ``ZooError`` where no name begins with
    one of them.
    """
    state = _dotted(state)
    by_network: dict[str, dict[str, NDArray[Any]]] = {}
    rest: list[str] = []
    pattern = re.compile("|".join(re.escape(prefix.strip(".")).replace(r"\*", r"[^.]+") for prefix in prefixes))
    for name, array in state.tensors.items():
        matched = re.match(rf"({pattern.pattern})\.(?=.)", name)
        if matched is None:
            rest.append(name)
        else:
            by_network.setdefault(matched[1], {})[name[matched.end() :]] = array
    for prefix in prefixes:
        if not any(re.fullmatch(re.escape(prefix.strip(".")).replace(r"\*", r"[^.]+"), name) for name in by_network):
            first = sorted({name.partition(".")[0] for name in state.tensors})
            step = "Name the words that the networks' tensors begin with."
            raise ZooError(
                Problem(path, f"--networks {prefix}", "tensors whose names begin so", ", ".join(first[:8]), step)
            )
    more = f" and {len(rest) - 4} more" if len(rest) > 4 else ""
    left_out = (f"tensors of none of --networks: {', '.join(rest[:4])}{more}",) if rest else ()
    file, _, key = state.source.partition("#")
    for prefix, own in by_network.items():
        aliases = {
            name.removeprefix(f"{prefix}."): first.removeprefix(f"{prefix}.")
            for name, first in state.aliases.items()
            if name.startswith(f"{prefix}.") and first.startswith(f"{prefix}.")
        }
        buffers = frozenset(name.removeprefix(f"{prefix}.") for name in state.buffers if name.startswith(f"{prefix}."))
        yield StateDict(f"{file}#{f'{key}.' if key else ''}{prefix}", own, aliases, state.facts, left_out, buffers)


def copies_of(state: StateDict) -> list[StateDict]:
    """Return a state dict, or the networks in it where one is an average or a target of another.

    All tensors, except counts of the program that keeps the average, must be in networks of the same names and shapes
    under names of copies, such as ``online_model`` and ``ema_model``.
    """
    dotted = _dotted(state)
    if not _has_copies(tuple(dotted.tensors)):
        return [state]
    groups: dict[str, dict[str, tuple[int, ...]]] = {}
    numbers: list[str] = []
    for name, array in dotted.tensors.items():
        first, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(first, {})[rest] = array.shape
        elif array.size == 1:
            numbers.append(name)
        else:
            return [state]
    shapes = list(groups.values())
    # two layers of equal shapes are no networks
    if len(groups) < 2 or any(one != shapes[0] for one in shapes) or not any("." in name for name in shapes[0]):
        return [state]
    if sum(map(is_copy_name, groups)) < len(groups) - 1:
        return [state]
    facts = {**{name: loaded(dotted.tensors[name]).item() for name in numbers}, **state.facts}
    rest = {name: array for name, array in dotted.tensors.items() if name not in numbers}
    return list(networks_of(replace(dotted, facts=facts, tensors=rest), list(groups), ""))


def _dotted(state: StateDict) -> StateDict:
    """Return a state dict with dots for the slashes in its names, as zoos have them, unless two names become one."""
    names = {name: name.replace("/", ".") for name in (*state.tensors, *state.aliases)}
    if not any("/" in name for name in names) or len(set(names.values())) < len(names):
        return state
    return replace(
        state,
        tensors={names[name]: array for name, array in state.tensors.items()},
        aliases={names[name]: names[first] for name, first in state.aliases.items()},
        buffers=frozenset(names[name] for name in state.buffers),
    )


@lru_cache(maxsize=1024)
def _has_copies(names: tuple[str, ...]) -> bool:
    return any(is_copy_name(name) for name in {name.partition(".")[0] for name in names if "." in name})


def side_by_side(tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the note on a state dict of equal networks, which counts as one network by default."""
    described = ((without_wrappers(name.replace("/", ".")), array.shape) for name, array in tensors.items())
    return _side_by_side(tuple(described))


@lru_cache(maxsize=1024)
def _side_by_side(described: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    groups: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in described:
        matched = _MEMBERS.match(name) or _FIRST_WORD.match(name)
        if matched is not None:
            groups.setdefault(matched[1], {})[name[matched.end() :]] = shape
    for first, own in groups.items():
        equal = [word for word in groups if groups[word] == own]
        # two layers of equal shapes are no networks
        is_network = any("." in name for name in own) and len(own) > 1
        is_list = len(equal) == len(groups) and _MEMBERS.match(f"{first}.") is not None
        is_all = len(equal) == len(groups) and not all(map(numbers_layer, equal))
        if len(equal) > 1 and is_network and (is_list or is_all or any(map(_is_of_a_pair, equal))):
            word = f"{first.rpartition('.')[0]}.".lstrip(".")
            names, prefixes = f"{word}*" if is_list else ".* and ".join(equal) + ".*", ",".join(equal)
            prefixes = f"{word}*" if is_list else prefixes
            return (
                f"{names} are networks of equal shapes in one; --networks '{prefixes}' makes each of them a checkpoint"
            )
    return ""


def _is_of_a_pair(word: str) -> bool:
    """Tells whether a word is that of one of two networks of which one follows the other: MoCo's are q and k."""
    return is_copy_name(word) or word.lower().endswith(("encoder_k", "momentum_encoder"))


def layout_in(state: StateDict) -> tuple[Slice, ...] | None:
    """Return each tensor's place in the rows of a file's one array, from lists of names and shapes beside it."""
    names, shapes = state.facts.get("names"), state.facts.get("shapes")
    if len(state.tensors) != 1 or not isinstance(names, tuple) or not isinstance(shapes, tuple):
        return None
    (array,) = state.tensors.values()
    slices: list[Slice] = []
    for name, text in zip(names, shapes, strict=False):
        shape = shape_of(text)
        if shape is None or not isinstance(name, str):
            return None
        start = slices[-1].stop if slices else 0
        slices.append(Slice(name, start, start + math.prod(shape), shape))
    is_whole = bool(slices) and len(names) == len(shapes) == len(set(names))
    return tuple(slices) if is_whole and array.shape[-1:] == (slices[-1].stop,) else None


def refuse_vectors(tensors: Mapping[str, NDArray[Any]], path: str) -> None:
    """Refuse arrays that are no tensors of a network: one without a name, or vectors of one length without names.

    Raises ``NoNetworkError`` where the file's name says that its one array is something else, else ``ZooError``.
    """
    figures = {name: array for name, array in tensors.items() if is_figure_name(name) and "." not in name}
    if figures and len(figures) < len(tensors):
        tensors = {name: array for name, array in tensors.items() if name not in figures}
    shapes = {array.shape for array in tensors.values()}
    (name, *others), shape = tensors, next(iter(shapes))
    is_flat = not others and len(shape) < 3 and _FLAT_NAMES.fullmatch(name.lower()) is not None
    if (
        is_flat
        or (not others and name == "array")
        or (not others and (len(shape) > 1 and _SAMPLE_NAMES.search(name.lower())))
    ):
        stem = without_suffixes(path).rpartition("/")[2]
        if name == "array" and (what := other_content({stem: tensors[name].dtype.name})) is not None:
            reject_without_network(path, what, "Leave it out.")
        got = f"one array of shape {shape} {'without a name' if name == 'array' else f'named {name!r}'}"
    elif others and len(shapes) == 1 and len(shape) == 1 and (
        all(map(str.isdigit, tensors)) or any(map(_SAMPLE_NAMES.search, tensors))
    ):  # fmt: skip
        got = f"{len(tensors)} vectors of {shape[0]} numbers without names"
    else:
        return
    step = f"{_LAYOUT}; tensors in files of their own belong into one .npz."
    raise ZooError(Problem(path, "tensors", "those of a network, by name", got, step))


def refuse_stacked(tensors: Mapping[str, NDArray[Any]], path: str) -> None:
    """Refuse tensors whose first axis may count samples: weights and biases share it, and no bias has one axis."""
    shapes = {array.shape for array in tensors.values()}
    # a number for each sample, such as the noise of the outputs, has no further axis
    several = tuple([array.shape for array in tensors.values() if array.ndim > 1])
    if several and len({shape[:1] for shape in shapes}) == 1 and _share_an_axis(several):
        got = f"one of {several[0][0]} in all of them, as of samples"
        step = "Give --stacked where it counts samples of one network, --no-stacked where it does not."
        raise ZooError(Problem(path, "first axis of the tensors", "one that is clear", got, step))


@lru_cache(maxsize=1024)
def _share_an_axis(shapes: tuple[tuple[int, ...], ...]) -> bool:
    lengths = {shape[0] if shape else None for shape in shapes}
    fewest = min(map(len, shapes))
    biases = {shape for shape in shapes if len(shape) == fewest}
    return (
        len(shapes) > 1
        and len(lengths) == 1
        and fewest >= 2
        # of (sample, out, in) or, in JAX, (sample, in, out) the bias is (sample, out)
        and any(
            len(shape) > fewest and (shape[:fewest] in biases or (*shape[: fewest - 1], shape[-1]) in biases)
            for shape in shapes
        )
    )


def unstacked(picked: Picked, path: str, *, by_chain: bool = False) -> Iterator[Picked]:
    """Yield the samples along the first axis of every tensor, or along the first two, of chains and their samples.

    With ``by_chain`` they are known to be chains; else the shapes decide.
    """
    shapes = [array.shape for array in picked.tensors.values()]
    lengths = {shape[:1] for shape in shapes}
    if len(lengths) != 1 or lengths == {()}:
        got = ", ".join(str(shape) for shape in shapes[:5])
        expected, step = "one first axis for all tensors, as --stacked says", "Leave --stacked out."
        raise ZooError(Problem(path, "shapes", expected, got, step))
    inner = tuple(shape[1:] for shape in shapes)
    has_chains = by_chain or (len({shape[:2] for shape in shapes}) == 1 and _share_an_axis(inner))
    for number in range(next(iter(lengths))[0]):
        tensors = {name: array[number] for name, array in picked.tensors.items()}
        suffix = "-".join(part for part in (picked.suffix, str(number)) if part)
        if has_chains:
            chain = replace(picked, suffix=suffix, tensors=tensors, row={**picked.row, "mode": f"chain-{number}"})
            yield from _samples_of(chain)
        else:
            yield replace(picked, suffix=suffix, tensors=tensors, row=_draw(picked.row, number))


def _samples_of(chain: Picked) -> Iterator[Picked]:
    for number in range(len(next(iter(chain.tensors.values())))):
        tensors = {name: array[number] for name, array in chain.tensors.items()}
        yield replace(chain, suffix=f"{chain.suffix}-{number}", tensors=tensors, row=_draw(chain.row, number))


def _draw(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {**row, "method": _SAMPLES, "draw": number}


def cut(picked: Picked, slices: Sequence[Slice], path: str, *, are_samples: bool) -> Iterator[Picked]:
    """Cut vectors, the rows of a matrix, or those of several chains, into tensors.

    With ``are_samples`` they are draws of one posterior, and no networks of their own.
    """
    draw = 0
    for name, array in picked.tensors.items():
        if not array.ndim or array.shape[-1] != slices[-1].stop:
            expected = f"vectors of {slices[-1].stop} numbers, as --layout says"
            raise ZooError(Problem(path, f"array {name!r}", expected, f"shape {array.shape}", "Give its own layout."))
        before = array.shape[:-1]
        matrix = array.reshape(math.prod(before), array.shape[-1])
        several = len(matrix) > 1 or len(picked.tensors) > 1
        for number, vector in enumerate(matrix):
            position = "-".join(map(str, np.unravel_index(number, before))) if len(matrix) > 1 else ""
            parts = [picked.suffix, name if len(picked.tensors) > 1 else "", position]
            tensors = {item.name: vector[item.start : item.stop].reshape(item.shape) for item in slices}
            row = _draw(picked.row, draw if len(before) < 2 else number % before[-1]) if are_samples else {}
            if are_samples and len(before) > 1:
                row["mode"] = f"chain-{'-'.join(map(str, np.unravel_index(number, before)[:-1]))}"
            draw += 1
            yield Picked("-".join(part for part in parts if part) if several else picked.suffix, tensors, row)
