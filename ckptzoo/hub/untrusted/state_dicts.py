"""Finds the state dicts in a loaded file: opens wrappers, keeps scalars as facts, and names what it leaves out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from ckptzoo.hub.untrusted.errors import name_error, reject
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.results import Fact
from ckptzoo.hub.untrusted.values import Inert, InertError, Numbers
from ckptzoo.text import excerpt

_MAX_DEPTH = 6
"""Levels of containers that are opened."""
_MAX_MODULES = 64
"""Levels of modules within one another."""
_MAX_FACTS = 256
_MAX_TEXT = 1000
"""Characters of a text that is a fact."""
_MAX_LIST = 64
"""Scalars of a list that is a fact, each of at most ``_MAX_NAME`` characters."""
_MAX_NAME = 100
_MAX_LEFT_OUT = 64
_MAX_LEAVES = 10_000
"""Tensors of a state dict that is kept as nested layers."""
# Names beside a state dict in the checkpoints of common training programs: the state of training, and settings.
_TRAINING_NAMES = re.compile(
    r"(^|_)(optim\w*|opt|sched\w*|lr_?sched\w*|amp|scaler|grad_scaler|rng|callbacks?|loops)(_|$)"
)
_SETTINGS_NAMES = re.compile(r"(^|_)(hparams|hyper_parameters|args|config|cfg)(_|$)")
_CONSTRAINTS = "torch.distributions.constraints."
# Names of a layer's own tensors in torch, Flax and TensorFlow: a mapping of these alone is a layer.
_LEAF_NAMES = {
    "weight", "bias", "kernel", "scale", "gamma", "beta", "embedding", "w", "b", "mean", "var",
    "running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance",
}  # fmt: skip
# Keys that hold a whole state dict each: several of them are several networks, and not one with dotted names.
_WRAPPER_NAMES = {
    "state_dict", "model_state_dict", "model_state", "model", "net", "network", "weights", "module", "ema",
    "ema_state_dict", "model_ema", "teacher", "student", "generator", "discriminator",
    "swa", "swa_model", "best_state", "best_model",
}  # fmt: skip


@dataclass(frozen=True)
class StateCandidate:
    """One state dict: the key that led to it, its tensors by name, the scalars beside it and what was left out."""

    key: str
    tensors: dict[str, Any]
    facts: dict[str, Fact]
    left_out: tuple[str, ...]


def find_state_dicts(root: Any, *, location: str, limits: Limits) -> list[StateCandidate]:
    """The state dicts in a loaded object.

    A mapping of names to tensors is a state dict. A mapping or a sequence of such is opened, with keys joined by dots;
    several layers, each of them a mapping with keys like ``weight`` and ``bias``, are one state dict with dotted names.

    Raises
    ------
    IntegrityError
        There is none, there are too many, or a name cannot be used.

    Notes
    -----
    Looks 6 levels deep, and opens a bounded number of containers, so that cycles and shared containers end. Tested in
    tests/hub/untrusted/test_state_dicts.py.
    """
    search = _Search(location, limits)
    search.visit(root, (), 0)
    if not search.states:
        left_out = "; ".join(search.left_out[:5])
        got = _describe(root) + (f" with {excerpt(left_out)}" if left_out else "")
        reject(location, "content", "a state dict: names and tensors", got, "Save model.state_dict().")
    facts, left_out = search.facts, search.left_out
    if len(left_out) > _MAX_LEFT_OUT:
        left_out = [*left_out[:_MAX_LEFT_OUT], f"and {len(left_out) - _MAX_LEFT_OUT} more"]
    several = len(search.states) > 1
    return [
        StateCandidate(".".join(path) if several else "", tensors, dict(facts), tuple(left_out))
        for path, tensors in search.states
    ]


class _Search:
    def __init__(self, location: str, limits: Limits) -> None:
        self.location, self.limits = location, limits
        self.states: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        self.facts: dict[str, Fact] = {}
        self.left_out: list[str] = []
        self.enclosing: set[int] = set()
        self.modules: set[int] = set()
        self.contains_known: dict[int, bool] = {}
        self.name_count = self.opened = self.mappings_of_facts = 0

    def open_container(self, value: Any, path: tuple[str, ...], depth: int) -> None:
        """Open a container: its tensors are a state dict, unless there are state dicts inside it."""
        self.opened += 1
        if self.opened > self.limits.states:
            reject(self.location, "content", f"at most {self.limits.states} containers of state dicts", "more")
        items = list(_items(value))
        aside = {at for at, (key, item) in enumerate(items) if _is_aside(key, item) or id(item) in self.enclosing}
        holding = [at for at, (_, item) in enumerate(items) if at not in aside and self.contains_state(item, depth + 1)]
        trees = [_layer_tree(item, depth) for _, item in (items[at] for at in holding)]
        is_one_state = len(holding) > 1 and all(tree is not None for tree in trees)
        if is_one_state and not any(items[at][0] in _WRAPPER_NAMES for at in holding):
            layers = zip((self.key_text(items[at][0]) for at in holding), trees, strict=True)
            self.add_state(
                path, [(f"{layer}.{name}", leaf) for layer, tree in layers for name, leaf in (tree or {}).items()]
            )
        elif holding:
            for at in holding:
                self.visit(items[at][1], (*path, self.key_text(items[at][0])), depth + 1)
        elif own_tensors := [(self.key_text(key), item) for key, item in items if _is_tensor(item)]:
            self.add_state(path, own_tensors)
        holding_set = set(holding)
        for at, (key, item) in enumerate(items):
            if at not in holding_set and (holding or not _is_tensor(item)):
                self.add_fact((*path, self.key_text(key)), item)

    def visit(self, value: Any, path: tuple[str, ...], depth: int) -> None:
        """Open what is inside, unless it is too deep."""
        if depth > _MAX_DEPTH:
            self.leave_out(path, f"more than {_MAX_DEPTH} levels deep")
        else:
            self.enclosing.add(id(value))
            layers = _module_tensors(value) if _is_module(value) else _layer_tree(value, depth)
            if _is_module(value):
                if id(value) not in self.modules:  # an object may refer to one module several times
                    self.modules.add(id(value))
                    self.add_state(path, list((layers or {}).items()))
            elif layers is not None and not any(_is_tensor(item) for _, item in _items(value)):
                self.add_state(path, list(layers.items()))
            else:
                self.open_container(value, path, depth)
            self.enclosing.discard(id(value))

    def contains_state(self, value: Any, depth: int) -> bool:
        """Whether there is a state dict in it: a mapping with tensors, or a container of such."""
        if _is_module(value):
            return bool(_module_tensors(value))
        if not isinstance(value, Mapping | list | tuple | Inert) or depth > _MAX_DEPTH + 1:
            return False
        if id(value) not in self.contains_known:
            self.contains_known[id(value)] = False
            items = [(key, item) for key, item in _items(value) if not _is_aside(key, item)]
            if isinstance(value, Mapping) and any(_is_tensor(item) for _, item in items):
                self.contains_known[id(value)] = True
            elif isinstance(value, Mapping | Inert) or all(isinstance(item, Mapping) for _, item in items):
                self.contains_known[id(value)] = any(self.contains_state(item, depth + 1) for _, item in items)
        return self.contains_known[id(value)]

    def key_text(self, key: Any) -> str:
        """A key as a text."""
        text = str(key) if isinstance(key, int) else key
        if (odd := name_error(text)) is not None:
            reject(self.location, "name", "a printable text", odd, "Save it again under plain names.")
        return cast(str, text)

    def add_state(self, path: tuple[str, ...], named: list[tuple[str, Any]]) -> None:
        """Add a state dict."""
        tensors = {self.key_text(name): tensor for name, tensor in named}
        if len(tensors) != len(named):
            reject(self.location, "names", "every name once", "two keys that read the same")
        self.name_count += len(tensors)
        if self.name_count > self.limits.tensors or len(self.states) >= self.limits.states:
            expected = f"at most {self.limits.tensors} names in {self.limits.states} state dicts"
            reject(self.location, "content", expected, f"{self.name_count} names in {len(self.states) + 1}, or more")
        self.states.append((path, tensors))

    def add_fact(self, path: tuple[str, ...], value: Any) -> None:
        """Note a scalar beside the state dicts, or those in mappings of scalars; leave out what is none."""
        value = _plain(value)
        if isinstance(value, list):
            value = [_plain(item) for item in value[: _MAX_LIST + 1]] if len(value) <= _MAX_LIST else value
        if _is_tensor(value) and prod(value.shape) == 1:
            value = self.number(value)
        if self.mappings_of_facts < _MAX_FACTS and self.is_scalars(path, value):
            self.mappings_of_facts += 1
            self.enclosing.add(id(value))
            for key, item in _items(value):
                self.add_fact((*path, self.key_text(key)), item)
            self.enclosing.discard(id(value))
            return
        name = ".".join(path)
        fits = isinstance(value, bool | float) or (type(value) is int and abs(value) < 2**63)
        fits = fits or _is_list_of_scalars(value, path)
        fits = fits or (isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable())
        if fits and len(self.facts) < _MAX_FACTS:
            self.facts.setdefault(name, cast(Fact, tuple(value) if isinstance(value, list) else value))
        else:
            self.leave_out(path, "leads back" if id(value) in self.enclosing else _describe(value))

    def is_scalars(self, path: tuple[str, ...], value: Any) -> bool:
        """Whether a value beside the state dicts is a mapping whose scalars are facts, as settings are."""
        if not isinstance(value, Mapping) or not value or len(path) > _MAX_DEPTH or id(value) in self.enclosing:
            return False
        items = list(_items(value))
        # among settings, those of the optimiser are settings
        is_state = _is_training_state(path[-1] if len(path) == 1 else None, value)
        return (
            not is_state
            and len(items) <= _MAX_FACTS
            and not any(_is_tensor(item) or not isinstance(name, str | int) for name, item in items)
        )

    def number(self, value: Any) -> Any:
        """The number that a tensor with one element holds; the tensor where it is of another kind."""
        try:
            return (value.read() if isinstance(value, Numbers) else value).item()
        except InertError:
            return value

    def leave_out(self, path: tuple[str, ...], what: str) -> None:
        """Note what is left out."""
        self.left_out.append(excerpt(f"{'.'.join(path)}: {what}"))


def _layer_tree(value: Any, depth: int) -> dict[str, Any] | None:
    """The leaves of a mapping of layers by dotted names; None if it is anything else."""
    if not isinstance(value, Mapping) or not value or depth > _MAX_DEPTH:
        return None
    items = list(cast(Mapping[Any, Any], value).items())
    if any(not isinstance(key, str) for key, _ in items) or len(items) > _MAX_LEAVES:
        return None
    if any(_is_tensor(item) for _, item in items):
        return dict(items) if all(key in _LEAF_NAMES and _is_tensor(item) for key, item in items) else None
    leaves: dict[str, Any] = {}
    for key, item in items:
        inner = None if key in _WRAPPER_NAMES else _layer_tree(item, depth + 1)
        if inner is None or len(leaves) + len(inner) > _MAX_LEAVES:
            return None
        leaves.update({f"{key}.{name}": leaf for name, leaf in inner.items()})
    return leaves


def _is_list_of_scalars(value: Any, path: tuple[str, ...]) -> bool:
    """Whether a value is a short list among settings, such as the layers' activations."""
    if len(path) < 2 or not isinstance(value, list | tuple) or not 0 < len(value) <= _MAX_LIST:
        return False
    return all(
        isinstance(item, bool | float)
        or (type(item) is int and abs(item) < 2**63)
        or (isinstance(item, str) and len(item) <= _MAX_NAME and item.isprintable())
        for item in value
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Numbers | np.ndarray)


def _is_module(value: Any) -> bool:
    """Whether an object was a ``torch.nn.Module``."""
    return isinstance(value, Inert) and all(
        isinstance(value.attributes.get(name), dict) for name in ("_parameters", "_buffers", "_modules")
    )


def _module_tensors(module: Inert, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """What ``module.state_dict()`` would give."""
    attributes = module.attributes
    dropped = attributes.get("_non_persistent_buffers_set")
    own = {**attributes["_parameters"], **attributes["_buffers"]}
    found = {
        f"{prefix}{name}": value
        for name, value in own.items()
        if _is_tensor(value) and not (isinstance(dropped, set) and name in attributes["_buffers"] and name in dropped)
    }
    for name, inner in attributes["_modules"].items():
        if _is_module(inner) and depth < _MAX_MODULES and len(found) < _MAX_LEAVES:
            found |= _module_tensors(inner, f"{prefix}{name}.", depth + 1)
    return found


def _plain(value: Any) -> Any:
    """What OmegaConf and argparse keep settings in, as plain values; a constraint of torch as its name."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(value, Inert):
            break
        attributes = value.attributes
        if value.name.startswith(_CONSTRAINTS):
            arguments = [f"{name}={item!r}" for name, item in attributes.items() if isinstance(item, int | float)]
            return f"{value.name.removeprefix(_CONSTRAINTS)}({', '.join(arguments)})"
        whole = attributes if value.name == "argparse.Namespace" else value
        inner = attributes.get("_val", attributes.get("_content", whole))
        if inner is value:
            break
        value = inner
    return value


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Inert):
        yield from value.attributes.items()
    elif isinstance(value, Mapping):
        yield from cast(Mapping[Any, Any], value).items()
    elif isinstance(value, list | tuple):
        yield from enumerate(cast(Sequence[Any], value))


def _is_aside(key: Any, value: Any) -> bool:
    """Whether an entry is the state of an optimiser, of a scheduler, or settings."""
    is_container = isinstance(value, Mapping | list | tuple | Inert) and not _is_module(value)
    is_settings = isinstance(key, str) and bool(_SETTINGS_NAMES.search(key.lower()[:200]))
    return _is_training_state(key, value) or (is_settings and is_container)


def _is_training_state(key: Any, value: Any) -> bool:
    if isinstance(value, Mapping) and "param_groups" in value:
        return True
    is_container = isinstance(value, Mapping | list | tuple | Inert) and not _is_module(value)
    return is_container and isinstance(key, str) and bool(_TRAINING_NAMES.search(key.lower()[:200]))


def _describe(value: Any) -> str:
    if _is_tensor(value):
        return f"{'a tensor' if isinstance(value, Numbers) else 'an array'} of shape {value.shape}"
    if isinstance(value, Mapping):
        state = value.get("state") if "param_groups" in value else None
        count = len(cast(Mapping[Any, Any], state if isinstance(state, Mapping) and state else value))
        return f"{count} {'entry' if count == 1 else 'entries'}"
    if isinstance(value, str | bytes | bytearray | list | tuple | set):
        unit = {"str": "a text of {} characters", "bytes": "{} bytes", "bytearray": "{} bytes"}
        return unit.get(type(value).__name__, "{} items").format(len(cast(Sequence[Any], value)))
    return "None" if value is None else f"a {value.name if isinstance(value, Inert) else type(value).__name__}"
