"""Whether state dicts are of one architecture, which one that is, and what each is in it.

They are where their tensors have the same names and shapes, apart from what is saved or left out by habit: counters of
BatchNorm, the second name of tied tensors, the precision, and whether one number has an axis.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.contributions.matching import COUNTER, fitting_names, without_wrappers
from ckptzoo.hub.imports.mapped import fetch_heads, is_compared, loaded
from ckptzoo.hub.untrusted.layer_trees import is_copy_name
from ckptzoo.schema.architecture import ITEMSIZE, Architecture, Tensor, kind_of

Shape = tuple[int, ...]
Signature = tuple[tuple[str, Shape, str], ...]
"""Name, shape and dtype of each tensor, in order."""
Tensors = Mapping[str, NDArray[Any]]

_HEADS = re.compile(r"(^|[._])(lm_)?(head|decoder|output|out|logits|classifier|generator|projection)([._]|$)")
"""Words of the layers whose weights are usually tied to an embedding."""
COUNTER_DTYPE = "int64"
"""torch's dtype of BatchNorm's counters."""
_MAX_PAIRS = 10_000
"""Pairs of tensors of one shape that are compared for equality."""


@dataclass(frozen=True)
class Saved:
    """A network as it was saved, under names that a zoo may have, without words of wrappers.

    ``ties`` maps names to earlier names whose numbers they share; ``buffers`` are known to be no parameters.
    """

    tensors: Tensors
    ties: Mapping[str, str] = field(default_factory=dict[str, str])
    buffers: frozenset[str] = frozenset()

    def renamed(self, names: Mapping[str, str]) -> "Saved":
        """Return the same tensors under other names."""
        return Saved(
            {names[name]: array for name, array in self.tensors.items()},
            {names[name]: names[first] for name, first in self.ties.items()},
            frozenset(names[name] for name in self.buffers),
        )


@dataclass(frozen=True)
class Fit:
    """The tensors of an architecture in a state dict.

    ``own_names`` maps the architecture's tensors to names in the state dict, None for a counter that it lacks;
    ``equal`` has pairs of names there that must hold the same numbers; ``counters`` are those that the architecture
    lacks.
    """

    own_names: Mapping[str, str | None]
    equal: tuple[tuple[str, str], ...] = ()
    counters: tuple[str, ...] = ()
    note: str = ""

    def holds(self, tensors: Tensors) -> bool:
        """Tell whether tied tensors are equal in a state dict."""
        return all(are_equal(tensors[one], tensors[other]) for one, other in self.equal)


def signature_of(tensors: Tensors) -> Signature:
    """Return name, shape and dtype of each tensor, in order."""
    return tuple((name, array.shape, _dtype_name(array.dtype)) for name, array in tensors.items())


@lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name from a cache: numpy builds it at every call."""
    return dtype.name


def fit(saved: Saved, arch: Architecture, table: Mapping[str, str]) -> Fit | None:
    """Fit a state dict to an architecture; None where it does not fit. ``table`` maps old to new names."""
    for left_out in _second_names(saved):
        shapes = {name: array.shape for name, array in saved.tensors.items() if name not in left_out}
        names = fitting_names(shapes, arch, table)
        if names is not None and (fitted := _fit(saved, arch, *names, left_out)) is not None:
            return fitted
    return None


def _second_names(saved: Saved) -> list[Mapping[str, str]]:
    """Return what may be left out of a state dict: nothing, or the second names of tied tensors."""
    ties = ties_of([saved])
    return [{}, ties] if ties else [{}]


def _fit(
    saved: Saved, arch: Architecture, note: str, by_new: Mapping[str, str], left_out: Mapping[str, str]
) -> Fit | None:
    own_names: dict[str, str | None] = {}
    equal: list[tuple[str, str]] = list(left_out.items())
    for tensor in arch.tensors:
        given = [by_new[name] for name in (tensor.name, *tensor.aliases) if name in by_new]
        if given and not is_like(saved.tensors[given[0]], tensor):
            return None
        own_names[tensor.name] = given[0] if given else None
        equal += [(given[0], other) for other in given[1:]]
    known = {name for tensor in arch.tensors for name in (tensor.name, *tensor.aliases)}
    counters = tuple(old for new, old in by_new.items() if new not in known)
    fitted = Fit(own_names, tuple(equal), counters, note)
    return fitted if fitted.holds(saved.tensors) else None


def is_like(array: NDArray[Any], tensor: Tensor) -> bool:
    """Whether an array is one of a tensor of a zoo, in this precision or a lower one."""
    if tensor.name.endswith(COUNTER) and _family(tensor.dtype) == "int":
        return _loose(array.shape) == _loose(tensor.shape)  # averaging weights makes counters floats
    dtype = _dtype_name(array.dtype)
    return _loose(array.shape) == _loose(tensor.shape) and widest([dtype, tensor.dtype]) == tensor.dtype


def kinds_of(items: Sequence[tuple[str, Shape, str]]) -> list[tuple[Shape, str]]:
    """Return shape and family of dtypes of each tensor besides counters, in order."""
    return [(_loose(shape), _family(dtype)) for name, shape, dtype in items if not name.endswith(COUNTER)]


def in_architecture(
    tensors: Tensors, fitted: Fit, arch: Architecture
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the tensors of a zoo that a state dict has, and what was changed, for ``extra``."""
    arrays: dict[str, NDArray[Any]] = {}
    stored: dict[str, str] = {}
    missing: list[str] = []
    for tensor in arch.tensors:
        own = fitted.own_names[tensor.name]
        dtype = numpy_dtype(tensor.dtype)
        if own is None:
            missing.append(tensor.name)
            arrays[tensor.name] = np.zeros(tensor.shape, dtype)
            continue
        array = tensors[own]
        if array.dtype != dtype:
            stored[tensor.name] = _dtype_name(array.dtype)
            # the cast of NaN to an integer is undefined in C
            array = (np.nan_to_num(np.rint(array)) if dtype.kind in "iu" else array).astype(dtype)
        arrays[tensor.name] = array if array.shape == tensor.shape else array.reshape(tensor.shape)
    facts: dict[str, Any] = {}
    if stored:
        is_whole = len(set(stored.values())) == 1
        facts["stored_dtype"] = next(iter(stored.values())) if is_whole else stored
    if missing:
        facts["counters_set_to_0"] = missing
    if fitted.counters:
        facts["counters"] = {
            name: int(loaded(tensors[name]).reshape(-1)[0]) for name in fitted.counters if tensors[name].size
        }
    return arrays, facts


def architecture_of(several: Sequence[Saved], name: str, input_shape: Shape | None) -> Architecture:
    """Return the architecture of state dicts that ``are_one`` says are of one: every tensor that one of them has.

    Each has the widest dtype of all; names are tied that are in every state dict that has both.
    """
    examples = _every_tensor(several)
    tied: dict[str, list[str]] = {}
    for other, first in ties_of(several).items():
        tied.setdefault(first, [first]).append(other)
    aliases: dict[str, list[str]] = {}
    for group in tied.values():
        # the name that every state dict has; else that of the embedding, as transformers keeps it
        group.sort(key=lambda name: (sum(name not in one.tensors for one in several), bool(_HEADS.search(name))))
        aliases[group[0]] = group[1:]
    fetch_heads(examples.values())
    second = {name for group in aliases.values() for name in group}
    names = [name for name in examples if name not in second]
    tensors: list[Tensor] = []
    for own in names:
        have = [saved for saved in several if own in saved.tensors]
        dtypes = [_dtype_name(saved.tensors[own].dtype) for saved in have]
        dtype = widest(dtypes) or (COUNTER_DTYPE if own.endswith(COUNTER) else None)
        assert dtype is not None
        is_buffer = any(own in saved.buffers for saved in several) or all(is_causal(one.tensors[own]) for one in have)
        kind = "buffer" if is_buffer else kind_of(own, dtype, examples)
        tensors.append(Tensor(own, examples[own].shape, dtype, kind, tuple(aliases.get(own, ()))))
    return Architecture(name, tuple(tensors), None, input_shape)


def is_causal(array: NDArray[Any]) -> bool:
    """Tells a table of which positions each one attends to, which is no parameter whatever its dtype and its name.

    Its matrix is square, has at least two rows, and holds one value up to the diagonal and another one above it, of
    which one is 0 or minus infinity.

    >>> is_causal(np.tril(np.ones((1, 1, 4, 4)))), is_causal(np.eye(4))
    (True, False)
    """
    if (
        array.ndim < 2
        or array.shape[-1] != array.shape[-2]
        or array.shape[-1] < 2
        or array.size != array.shape[-1] ** 2
    ):
        return False
    below, above = loaded(array[(0,) * (array.ndim - 1)][:2])
    if below == above or not any(value == 0 or value == -np.inf for value in (below, above)):
        return False
    table = loaded(array).reshape(array.shape[-2:])
    return bool(np.array_equal(table, np.where(np.tri(len(table), dtype=bool), below, above)))


def _every_tensor(several: Sequence[Saved]) -> dict[str, NDArray[Any]]:
    """Return an example of each tensor, in the order of the largest state dict; others keep their place in theirs."""
    ordered = sorted(several, key=lambda saved: -len(saved.tensors))
    examples = dict(ordered[0].tensors)
    for saved in ordered[1:]:
        if saved.tensors.keys() <= examples.keys():
            continue
        names, before = list(examples), ""
        for name, array in saved.tensors.items():
            if name not in examples:
                names.insert(names.index(before) + 1 if before else 0, name)
                examples[name] = array
            before = name
        examples = {name: examples[name] for name in names}
    return examples


def of_one(first: Saved, others: Sequence[Saved]) -> list[Saved]:
    """Return the first state dict and those that are of its architecture; names are those of the zoo."""
    whole, core = _core(first, {}), _core(first, ties_of([first]))
    return [first, *(item for item in others if _core(item, {}) == whole or _core(item, ties_of([item])) == core)]


def _core(saved: Saved, left_out: Mapping[str, str]) -> dict[str, tuple[Shape, str]]:
    return {
        name: (_loose(array.shape), _family(_dtype_name(array.dtype)))
        for name, array in saved.tensors.items()
        if name not in left_out and not name.endswith(COUNTER)
    }


def ties_of(several: Sequence[Saved]) -> dict[str, str]:
    """Return names to earlier names whose numbers they share in every state dict that has both.

    Storage that is shared says so. Where it cannot be seen, as in safetensors, it is matrices of equal numbers in two
    modules that share no others: networks that are copies of one another, such as an average and what it averages
    before the first step, are equal in all their tensors.
    """
    ties: dict[str, str] = {}
    for saved in several:
        for name, first in (*saved.ties.items(), *_equal_matrices(saved.tensors).items()):
            ties.setdefault(name, first)
    for name, first in list(ties.items()):
        both = [saved.tensors for saved in several if name in saved.tensors and first in saved.tensors]
        if not both or not all(are_equal(tensors[name], tensors[first]) for tensors in both):
            del ties[name]
    # of three names, the third is tied to the first
    return {name: ties.get(first, first) for name, first in ties.items()}


def _equal_matrices(tensors: Tensors) -> dict[str, str]:
    by_shape: dict[tuple[Shape, str], list[str]] = {}
    for name, array in tensors.items():
        dtype = _dtype_name(array.dtype)
        if array.ndim > 1 and array.size > 1 and kind_of(name, dtype) == "parameter" and is_compared(array):
            by_shape.setdefault((array.shape, dtype), []).append(name)
    fetch_heads(tensors[name] for names in by_shape.values() if len(names) > 1 for name in names)
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {}
    looked_at = 0
    for names in by_shape.values():
        heads = {name: loaded(tensors[name][(slice(0, 1),) * tensors[name].ndim]).item() for name in names}
        for first, other in combinations(names, 2):
            looked_at += 1
            if looked_at > _MAX_PAIRS:
                return {}
            is_equal = heads[first] == heads[other] and are_equal(tensors[first], tensors[other])
            one = loaded(tensors[first]) if is_equal else tensors[first]
            # tables of zeros and ones, such as causal masks, and what was not trained yet are alike in many layers
            if is_equal and not bool(((one == 0) | (one == 1) | (one == one.flat[0])).all()):
                pairs.setdefault(_where(first, other), []).append((first, other))
    ties: dict[str, str] = {}
    for (one, two), equal in pairs.items():
        if len(equal) == 1 and not is_copy_name(one) and not is_copy_name(two):
            ties.setdefault(equal[0][1], equal[0][0])
    return ties


def _where(first: str, other: str) -> tuple[str, str]:
    """Return two names without the last words that they share."""
    words, other_words = first.split("."), other.split(".")
    while words and other_words and words[-1] == other_words[-1]:
        words.pop()
        other_words.pop()
    return ".".join(words), ".".join(other_words)


def are_equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether arrays are the same to the bit: NaN differs from itself."""
    if one is other:
        return True
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return loaded(one).tobytes() == loaded(other).tobytes()


def widest(dtypes: Sequence[str]) -> str | None:
    """Return the dtype that holds the numbers of all; None where that is none of zoos, or they are of several families.

    >>> widest(["float16", "float32"]), widest(["float16", "bfloat16"]), widest(["int64", "float32"])
    ('float32', 'float32', None)
    """
    names = list(dict.fromkeys(dtypes))
    if len(names) == 1:
        return names[0]
    if len({_family(name) for name in names}) > 1:
        return None
    if _family(names[0]) == "float":
        # neither of float16 and bfloat16 holds the numbers of the other
        return "float64" if "float64" in names else "float32"
    # numpy takes int64 and uint64 together to float64, which holds neither
    common = np.result_type(*names).name
    return common if common in ITEMSIZE and _family(common) == "int" else None


@lru_cache(maxsize=64)
def _family(dtype: str) -> str:
    return "float" if "float" in dtype else "bool" if dtype == "bool" else "int"


def _loose(shape: Shape) -> Shape:
    """Return a shape, where one number may have an axis."""
    return () if shape == (1,) else tuple(shape)


def table_without_wrappers(table: Mapping[str, str]) -> dict[str, str]:
    """Return a table of names whose old names are as state dicts have them here."""
    return {without_wrappers(old): new for old, new in table.items()}
