"""Finds the state dicts in a loaded file: opens wrappers, keeps scalars as facts, and names what it leaves out."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ckptzoo.hub.untrusted.errors import name_error, reject
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.results import Fact
from ckptzoo.text import excerpt

_MAX_DEPTH = 6
"""Levels of containers that are opened."""
_MAX_FACTS = 256
_MAX_TEXT = 1000
"""Characters of a text that is a fact."""
_MAX_LEFT_OUT = 64
_MAX_LEAVES = 10_000
"""Tensors of a state dict that is kept as nested layers."""
# Names beside a state dict that hold the state of training or settings, in the checkpoints of common training programs.
_ASIDE_NAMES = re.compile(
    r"(^|_)(optim\w*|opt|sched\w*|lr_?sched\w*|amp|scaler|grad_scaler|rng|callbacks?|loops|hparams|args|config|cfg)(_|$)"
)
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
class ArrayLibrary:
    """How to recognise a tensor of numpy or torch, and to describe one."""

    is_tensor: Callable[[Any], bool]
    size: Callable[[Any], int]
    scalar: Callable[[Any], Any]
    describe: Callable[[Any], str]


@dataclass(frozen=True)
class StateCandidate:
    """One state dict: the key that led to it, its tensors by name, the scalars beside it and what was left out."""

    key: str
    tensors: dict[str, Any]
    facts: dict[str, Fact]
    left_out: tuple[str, ...]


def find_state_dicts(root: Any, library: ArrayLibrary, *, location: str, limits: Limits) -> list[StateCandidate]:
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
    search = _Search(library, location, limits)
    search.visit(root, (), 0)
    if not search.states:
        left_out = "; ".join(search.left_out[:5])
        got = _describe(root, library) + (f" with {excerpt(left_out)}" if left_out else "")
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
    def __init__(self, kind: ArrayLibrary, location: str, limits: Limits) -> None:
        self.library, self.location, self.limits = kind, location, limits
        self.states: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        self.facts: dict[str, Fact] = {}
        self.left_out: list[str] = []
        self.enclosing: set[int] = set()
        self.contains_known: dict[int, bool] = {}
        self.name_count = self.opened = 0

    def open_container(self, value: Any, path: tuple[str, ...], depth: int) -> None:
        """Open a container: its tensors are a state dict, unless there are state dicts inside it."""
        self.opened += 1
        if self.opened > self.limits.states:
            reject(self.location, "content", f"at most {self.limits.states} containers of state dicts", "more")
        items = list(_items(value))
        aside = {at for at, (key, item) in enumerate(items) if _is_aside(key, item) or id(item) in self.enclosing}
        holding = [at for at, (_, item) in enumerate(items) if at not in aside and self.contains_state(item, depth + 1)]
        trees = [_layer_tree(item, self.library, depth) for _, item in (items[at] for at in holding)]
        is_one_state = len(holding) > 1 and all(tree is not None for tree in trees)
        if is_one_state and not any(items[at][0] in _WRAPPER_NAMES for at in holding):
            layers = zip((self.key_text(items[at][0]) for at in holding), trees, strict=True)
            self.add_state(
                path, [(f"{layer}.{name}", leaf) for layer, tree in layers for name, leaf in (tree or {}).items()]
            )
        elif holding:
            for at in holding:
                self.visit(items[at][1], (*path, self.key_text(items[at][0])), depth + 1)
        elif own_tensors := [(self.key_text(key), item) for key, item in items if self.library.is_tensor(item)]:
            self.add_state(path, own_tensors)
        holding_set = set(holding)
        for at, (key, item) in enumerate(items):
            if at not in holding_set and (holding or not self.library.is_tensor(item)):
                self.add_fact((*path, self.key_text(key)), item)

    def visit(self, value: Any, path: tuple[str, ...], depth: int) -> None:
        """Open what is inside, unless it is too deep."""
        if depth > _MAX_DEPTH:
            self.leave_out(path, f"more than {_MAX_DEPTH} levels deep")
        else:
            self.enclosing.add(id(value))
            layers = _layer_tree(value, self.library, depth)
            if layers is not None and not any(self.library.is_tensor(item) for _, item in _items(value)):
                self.add_state(path, list(layers.items()))
            else:
                self.open_container(value, path, depth)
            self.enclosing.discard(id(value))

    def contains_state(self, value: Any, depth: int) -> bool:
        """Whether there is a state dict in it: a mapping with tensors, or a container of such."""
        if not isinstance(value, Mapping | list | tuple) or depth > _MAX_DEPTH + 1:
            return False
        if id(value) not in self.contains_known:
            self.contains_known[id(value)] = False
            items = [(key, item) for key, item in _items(value) if not _is_aside(key, item)]
            if isinstance(value, Mapping) and any(self.library.is_tensor(item) for _, item in items):
                self.contains_known[id(value)] = True
            elif isinstance(value, Mapping) or all(isinstance(item, Mapping) for _, item in items):
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
        """Note a scalar beside the state dicts, or leave out what is none."""
        if self.library.is_tensor(value) and self.library.size(value) == 1:
            value = self.library.scalar(value)
        name = ".".join(path)
        fits = isinstance(value, bool | float) or (type(value) is int and abs(value) < 2**63)
        fits = fits or (isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable())
        if fits and len(self.facts) < _MAX_FACTS:
            self.facts.setdefault(name, cast(Fact, value))
        else:
            self.leave_out(path, "leads back" if id(value) in self.enclosing else _describe(value, self.library))

    def leave_out(self, path: tuple[str, ...], what: str) -> None:
        """Note what is left out."""
        self.left_out.append(excerpt(f"{'.'.join(path)}: {what}"))


def _layer_tree(value: Any, library: ArrayLibrary, depth: int) -> dict[str, Any] | None:
    """The leaves of a mapping of layers by dotted names; None if it is anything else."""
    if not isinstance(value, Mapping) or not value or depth > _MAX_DEPTH:
        return None
    items = list(cast(Mapping[Any, Any], value).items())
    if any(not isinstance(key, str) for key, _ in items) or len(items) > _MAX_LEAVES:
        return None
    if any(library.is_tensor(item) for _, item in items):
        return dict(items) if all(key in _LEAF_NAMES and library.is_tensor(item) for key, item in items) else None
    leaves: dict[str, Any] = {}
    for key, item in items:
        inner = None if key in _WRAPPER_NAMES else _layer_tree(item, library, depth + 1)
        if inner is None or len(leaves) + len(inner) > _MAX_LEAVES:
            return None
        leaves.update({f"{key}.{name}": leaf for name, leaf in inner.items()})
    return leaves


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from cast(Mapping[Any, Any], value).items()
    elif isinstance(value, list | tuple):
        yield from enumerate(cast(Sequence[Any], value))


def _is_aside(key: Any, value: Any) -> bool:
    """Whether an entry is the state of an optimiser, of a scheduler, or settings."""
    if isinstance(value, Mapping) and "param_groups" in value:
        return True
    return (
        isinstance(key, str)
        and isinstance(value, Mapping | list | tuple)
        and bool(_ASIDE_NAMES.search(key.lower()[:200]))
    )


def _describe(value: Any, library: ArrayLibrary) -> str:
    if library.is_tensor(value):
        return library.describe(value)
    if isinstance(value, Mapping):
        state = value.get("state") if "param_groups" in value else None
        count = len(cast(Mapping[Any, Any], state if isinstance(state, Mapping) and state else value))
        return f"{count} {'entry' if count == 1 else 'entries'}"
    if isinstance(value, str | bytes | bytearray | list | tuple | set):
        unit = {"str": "a text of {} characters", "bytes": "{} bytes", "bytearray": "{} bytes"}
        return unit.get(type(value).__name__, "{} items").format(len(cast(Sequence[Any], value)))
    return "None" if value is None else f"a {type(value).__name__}"
