"""Finds moments, derivatives and averages beside weights of the same names, and the times of networks in lists."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ckptzoo.hub.untrusted.layer_trees import WRAPPER_NAMES, is_copy_name, signature
from ckptzoo.hub.untrusted.objects import is_container
from ckptzoo.hub.untrusted.values import Numbers
from ckptzoo.schema.architecture import kind_of

Path = tuple[str, ...]
State = tuple[Path, dict[str, Any], frozenset[str]]
"""The keys that lead to a state dict, its tensors, and which of them are known to be buffers."""

OPTIMISER = "the state of an optimiser"
_DIFFERENCES = "differences of weights, and no weights"
_LOSS = "the state of a loss"
_ABOUT = {
    OPTIMISER: r"((sgd|param|optim)_)?momentums?(_buffers?)?|(\w+_)?exp_avg(_sq)?s?|velocit(y|ies)",
    "derivatives, and no weights": r"(?!no_grad)(\w+_)?(grads?|gradients?|hessians?|hessian_diag(onal)?|"
    r"fishers?|fisher_(diag(onal)?|info|information|matrix))",
    _DIFFERENCES: r"(\w+_)?(deltas?|task_vectors?)",
    _LOSS: r"(?!best|min|low)(\w+_)?(loss|criterion)(_fn|_func)?(_state)?(_dict)?",
}
"""Words of keys for numbers about weights, if weights of the same names stand beside them."""
_NAMES = {what: re.compile(pattern) for what, pattern in _ABOUT.items()}
_ANY = re.compile(
    "exp_avg|momentum|velocit|grad|hess|fisher|delta|task_vector|loss|criterion|^(?:mu|m)$", re.IGNORECASE
)
"""Keys without any of these, as most are, say nothing of the kind."""
_PARAMETERS = {"params", "parameters", "weights", "theta"}
_TWO_MOMENTS = (("mu", "nu"), ("m", "v"))
"""Names that optax and other programs give the first and the second moment."""
_TIMES = re.compile(r"(?:\w+_)?(epoch|step|iteration|iter)s?")
_SLOT = re.compile(
    r"(.+?)(?:/(?:Adam|AdamW|LAMBOptimizer|Momentum|RMSProp|Adagrad|Adadelta|Ftrl|adam_[mv])(?:_\d)?(?::0)?|_momentum)"
)
"""The names that an optimiser gives to numbers for the tensor of the first group."""
_OF_SLOTS = re.compile(r"(?:^|/)(?:beta[12]_power(?:_\d+)?|global_step)$|(?:^|/)optimizer/")
_MANY = 4
"""Fewer tensors within one another than these may be a layer of a network."""


def about_weights(items: Sequence[tuple[Any, Any]]) -> dict[int, str]:
    """Return the places of entries that hold numbers about the weights beside them, and what they are.

    >>> weights = {"fc.weight": np.ones((2, 2)), "fc.bias": np.ones(2)}
    >>> about_weights([("model", weights), ("exp_avg", weights), ("ema", weights)])
    {1: 'the state of an optimiser'}
    """
    if not any(isinstance(key, str) and _ANY.search(key[:100]) for key, _ in items):
        return {}
    keys = {
        key.lower()[:100]: at for at, (key, item) in enumerate(items) if isinstance(key, str) and is_container(item)
    }
    named = {at: meaning for key, at in keys.items() if (meaning := _said_of(key))}
    if not _PARAMETERS & keys.keys():  # of flows the velocity is a network
        named = {at: meaning for at, meaning in named.items() if not items[at][0].lower().startswith("velocit")}
    pairs = [(keys[one], keys[other]) for one, other in _TWO_MOMENTS if one in keys and other in keys]
    if not named and not pairs:
        return {}
    shapes = {at: signature(item) for at, (_, item) in enumerate(items) if is_container(item)}
    weights = {key: shapes[at] for key, at in keys.items() if at not in named and shapes[at]}
    about = {at: meaning for at, meaning in named.items() if _is_about(meaning, shapes[at], weights)}
    for first, second in pairs:
        # heads of a network may be called so: their weights are not wrapped, and others stand beside them
        is_alone = items[first][0] == "mu" and len(weights) == 2
        if shapes[first] and shapes[first] == shapes[second] and (is_alone or _have(shapes[first], weights)):
            about |= dict.fromkeys((first, second), OPTIMISER)
    return about


def slots_in(tensors: Mapping[str, Any]) -> dict[str, None]:
    """Return the tensors of a state dict that an optimiser keeps for others there, as programs of TensorFlow and Caffe2
    save them.

    >>> weight = np.ones((2, 3))
    >>> list(slots_in({"fc/w": weight, "fc/w/Adam": weight, "fc/w/Adam_1": weight, "beta1_power": np.array(0.9)}))
    ['fc/w/Adam', 'fc/w/Adam_1', 'beta1_power']
    """
    every = "\0".join(tensors)
    if "/" not in every and "_momentum" not in every:
        return {}  # as in files of torch
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    found = {
        name: None
        for name, shape in shapes.items()
        if ".OPTIMIZER_SLOT/" in name
        or ((matched := _SLOT.fullmatch(name)) is not None and shapes.get(matched[1]) == shape)
    }
    if found:
        found |= {name: None for name, shape in shapes.items() if not shape and _OF_SLOTS.search(name)}
    return found if len(found) < len(shapes) else {}


def said_of_file(stem: str) -> str:
    """Tell what a file's name says about its relation to weights, where it holds none itself; empty where it says
    nothing of the kind.

    >>> said_of_file("grads_3"), said_of_file("model"), said_of_file("val_loss")
    ('derivatives, and no weights', '', '')
    """
    meaning = _said_of(re.sub(r"[-_.]?\d+$", "", stem.lower()[:100]))
    return "" if meaning in (_LOSS, _DIFFERENCES) or stem.lower().startswith("velocit") else meaning


def _said_of(name: str) -> str:
    """Return what a name says of numbers about weights; empty where it says nothing of the kind."""
    return next((meaning for meaning, pattern in _NAMES.items() if pattern.fullmatch(name)), "")


def _is_about(meaning: str, own: Mapping[str, Any], weights: Mapping[str, Mapping[str, Any]]) -> bool:
    is_dotted = any("." in name for name in own)
    if not own or meaning == _LOSS:  # the state of a loss has any tensors
        return bool(own) and any("." in name for other in weights.values() for name in other)
    if meaning != _DIFFERENCES and is_dotted and not weights:
        return True
    return (len(own) >= _MANY or (is_dotted and meaning != _DIFFERENCES)) and _have(own, weights)


def _have(own: Mapping[str, Any], weights: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tells whether one of the entries that wrap weights has tensors; modules of a network beside others are none, and
    state dicts are no modules.
    """
    is_dotted = any("." in name for name in own)
    return any(
        own.items() <= other.items()
        for key, other in weights.items()
        if is_dotted or key in WRAPPER_NAMES | _PARAMETERS
    )


def completed(states: list[State], lists: Mapping[Path, Sequence[Any]]) -> dict[Path, str]:
    """Complete averages that were kept of parameters alone: their buffers are those of the network beside them.

    ``states`` are all of a file: averages are replaced, and those of ``lists`` added, which are tensors in the
    order of ``module.parameters()``, as torch-ema and its likes keep averages. The result maps the keys of each
    average that was completed or added to those of its network.
    """
    networks = [state for state in states if not any(is_copy_name(key) and "online" not in key for key in state[0])]
    networks_by_average: dict[Path, str] = {}
    for at, (path, tensors, buffers) in enumerate(states):
        if not any(map(is_copy_name, path)):
            continue
        of = [state for state in networks if tensors.keys() < state[1].keys() and _is_part(tensors, state)]
        if len(of) == 1:
            states[at] = (path, {name: tensors.get(name, item) for name, item in of[0][1].items()}, buffers | of[0][2])
            networks_by_average[path] = ".".join(of[0][0])
    for path, items in lists.items():
        wanted = [tuple(item.shape) for item in items]
        of = [state for state in networks if [tuple(state[1][name].shape) for name in _parameters(state)] == wanted]
        if is_average(path) and len(of) == 1:
            own = dict(zip(_parameters(of[0]), items, strict=True))
            states.append((path, {name: own.get(name, item) for name, item in of[0][1].items()}, of[0][2]))
            networks_by_average[path] = ".".join(of[0][0])
    return networks_by_average


def is_average(path: Path) -> bool:
    """Tells whether keys lead to the parameters of an average: ``ema.shadow_params``, ``ema.params``."""
    return is_copy_name(path[-1]) or (path[-1] in ("params", "parameters") and any(map(is_copy_name, path)))


def _is_part(tensors: Mapping[str, Any], whole: State) -> bool:
    missing = whole[1].keys() - tensors.keys()
    return missing.isdisjoint(_parameters(whole)) and all(
        item.shape == whole[1][name].shape for name, item in tensors.items()
    )


def _parameters(state: State) -> list[str]:
    _, tensors, buffers = state
    return [
        name
        for name, item in tensors.items()
        if name not in buffers and kind_of(name, str(item.dtype), tensors) == "parameter"
    ]


def times_of(paths: Sequence[Path], lists: Mapping[Path, Sequence[Any]]) -> tuple[dict[Path, int], set[Path]]:
    """Return facts of networks in a list where another list says when each was saved, and the lists that say it.

    >>> times_of([("saved", "0"), ("saved", "1")], {("epochs",): [0, 50]})
    ({('saved', '0', 'epoch'): 0, ('saved', '1', 'epoch'): 50}, {('epochs',)})
    """
    groups: dict[Path, list[Path]] = {}
    for path in paths:
        if path and path[-1].isdecimal():
            groups.setdefault(path[:-1], []).append(path)
    facts: dict[Path, int] = {}
    used = set[Path]()
    for path, numbers in lists.items():
        word = _TIMES.fullmatch(path[-1].lower())
        fitting = [
            group
            for parent, group in groups.items()
            if parent[:-1] == path[:-1] and len(group) == len(numbers) == len(set(numbers)) > 1
        ]
        if word is not None and len(fitting) == 1:
            facts |= {(*item, word[1]): number for item, number in zip(fitting[0], numbers, strict=True)}
            used.add(path)
    return facts, used


def is_time_name(key: str) -> bool:
    """Tells whether a key is that of a list of steps or epochs."""
    return _TIMES.fullmatch(key.lower()) is not None


def is_list_of(value: Any, kind: Callable[[Any], bool]) -> bool:
    """Tells whether a value is a list, not empty, of one kind of items."""
    return isinstance(value, list | tuple) and bool(value) and all(map(kind, value))


def is_dense(item: Any) -> bool:
    """Tells whether an item is a tensor that is read."""
    return isinstance(item, Numbers | np.ndarray)


def is_natural(item: Any) -> bool:
    """Tells whether an item is a number of steps or epochs."""
    # bool is a subclass of int, and steps are int64
    return type(item) is int and 0 <= item < 2**63
