"""Finds the state dicts in what a file holds: wrappers opened, scalars kept as facts, the rest left out and named."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ckptzoo.hub.untrusted.limits import Fact, Limits, odd_name, reject, shown

_DEPTH = 6
_FACTS = 256
_TEXT = 1000
_LEFT = 64
_ASIDE = re.compile(
    r"(^|_)(optim\w*|opt|sched\w*|lr_?sched\w*|amp|scaler|grad_scaler|rng|callbacks?|loops|hparams|args|config|cfg)(_|$)"
)
_LEAVES = {
    "weight", "bias", "kernel", "scale", "gamma", "beta", "embedding", "w", "b", "mean", "var",
    "running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance",
}  # fmt: skip

_WRAPPERS = {
    "state_dict", "model_state_dict", "model_state", "model", "net", "network", "weights", "module", "ema",
    "ema_state_dict", "model_ema", "teacher", "student", "generator", "discriminator",
    "swa", "swa_model", "best_state", "best_model",
}  # fmt: skip
_WIDE = 10_000


@dataclass(frozen=True)
class ArrayLibrary:
    """How to tell a tensor, and what to say of one."""

    is_tensor: Callable[[Any], bool]
    size: Callable[[Any], int]
    scalar: Callable[[Any], Any]
    describe: Callable[[Any], str]


@dataclass(frozen=True)
class StateCandidate:
    """One state dict: where it stood, its tensors by name, the scalars beside it and what was left."""

    key: str
    tensors: dict[str, Any]
    facts: dict[str, Fact]
    left_out: tuple[str, ...]


def states_of(root: Any, kind: ArrayLibrary, *, location: str, limits: Limits) -> list[StateCandidate]:
    """The state dicts in a loaded object.

    A mapping of names to tensors is a state dict. A mapping or a sequence of such is opened, with keys joined by dots;
    several layers, each of them a mapping with keys like ``weight`` and ``bias``, are one state dict with dotted names.

    Raises
    ------
    IntegrityError
        There is none, there are too many, or a name cannot be used.

    Notes
    -----
    Looks 6 levels deep, and opens a bounded number of containers: cycles and shared nests end. Held by
    tests/hub/untrusted/test_state_dicts.py.
    """
    search = _Search(kind, location, limits)
    search.enter(root, (), 0)
    if not search.states:
        left = "; ".join(search.left_out[:5])
        got = _described(root, kind) + (f" with {shown(left)}" if left else "")
        reject(location, "content", "a state dict: names and tensors", got, "Save model.state_dict().")
    facts, left = search.facts, search.left_out
    if len(left) > _LEFT:
        left = [*left[:_LEFT], f"and {len(left) - _LEFT} more"]
    several = len(search.states) > 1
    return [
        StateCandidate(".".join(path) if several else "", tensors, dict(facts), tuple(left))
        for path, tensors in search.states
    ]


class _Search:
    def __init__(self, kind: ArrayLibrary, location: str, limits: Limits) -> None:
        self.kind, self.where, self.limits = kind, location, limits
        self.states: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        self.facts: dict[str, Fact] = {}
        self.left_out: list[str] = []
        self.around: set[int] = set()
        self.known: dict[int, bool] = {}
        self.names = self.opened = 0

    def open(self, value: Any, path: tuple[str, ...], depth: int) -> None:
        """Open a container: its tensors are a state, unless there are states inside it."""
        self.opened += 1
        if self.opened > self.limits.states:
            reject(self.where, "content", f"at most {self.limits.states} containers of state dicts", "more")
        items = list(_items(value))
        aside = {at for at, (key, item) in enumerate(items) if _is_aside(key, item) or id(item) in self.around}
        holding = [at for at, (_, item) in enumerate(items) if at not in aside and self.holds(item, depth + 1)]
        trees = [_tree(item, self.kind, depth) for _, item in (items[at] for at in holding)]
        flat = len(holding) > 1 and all(tree is not None for tree in trees)
        if flat and not any(items[at][0] in _WRAPPERS for at in holding):
            self.add(path, [(f"{self.key(items[at][0])}.{name}", leaf) for at, tree in zip(holding, trees, strict=True)
                            for name, leaf in (tree or {}).items()])  # fmt: skip
        elif holding:
            for at in holding:
                self.enter(items[at][1], (*path, self.key(items[at][0])), depth + 1)
        elif own := [(self.key(key), item) for key, item in items if self.kind.is_tensor(item)]:
            self.add(path, own)
        kept = set(holding)
        for at, (key, item) in enumerate(items):
            if at not in kept and (holding or not self.kind.is_tensor(item)):
                self.fact((*path, self.key(key)), item)

    def enter(self, value: Any, path: tuple[str, ...], depth: int) -> None:
        """Open what is inside, unless it is too deep."""
        if depth > _DEPTH:
            self.leave(path, f"more than {_DEPTH} levels deep")
        else:
            self.around.add(id(value))
            flat = _tree(value, self.kind, depth)
            if flat is not None and not any(self.kind.is_tensor(item) for _, item in _items(value)):
                self.add(path, list(flat.items()))
            else:
                self.open(value, path, depth)
            self.around.discard(id(value))

    def holds(self, value: Any, depth: int) -> bool:
        """Whether there is a state in it: a mapping with tensors, or a container of such."""
        if not isinstance(value, Mapping | list | tuple) or depth > _DEPTH + 1:
            return False
        if id(value) not in self.known:
            self.known[id(value)] = False
            items = [(key, item) for key, item in _items(value) if not _is_aside(key, item)]
            if isinstance(value, Mapping) and any(self.kind.is_tensor(item) for _, item in items):
                self.known[id(value)] = True
            elif isinstance(value, Mapping) or all(isinstance(item, Mapping) for _, item in items):
                self.known[id(value)] = any(self.holds(item, depth + 1) for _, item in items)
        return self.known[id(value)]

    def key(self, key: Any) -> str:
        """A key as a text."""
        text = str(key) if isinstance(key, int) else key
        if (odd := odd_name(text)) is not None:
            reject(self.where, "name", "a printable text", odd, "Save it again under plain names.")
        return cast(str, text)

    def add(self, path: tuple[str, ...], named: list[tuple[str, Any]]) -> None:
        """One more state."""
        tensors = {self.key(name): tensor for name, tensor in named}
        if len(tensors) != len(named):
            reject(self.where, "names", "every name once", "two keys that read the same")
        self.names += len(tensors)
        if self.names > self.limits.tensors or len(self.states) >= self.limits.states:
            expected = f"at most {self.limits.tensors} names in {self.limits.states} state dicts"
            reject(self.where, "content", expected, f"{self.names} names in {len(self.states) + 1}, or more")
        self.states.append((path, tensors))

    def fact(self, path: tuple[str, ...], value: Any) -> None:
        """A scalar beside the states, or what was left there."""
        if self.kind.is_tensor(value) and self.kind.size(value) == 1:
            value = self.kind.scalar(value)
        name = ".".join(path)
        fits = isinstance(value, bool | float) or (type(value) is int and abs(value) < 2**63)
        fits = fits or (isinstance(value, str) and len(value) <= _TEXT and value.isprintable())
        if fits and len(self.facts) < _FACTS:
            self.facts.setdefault(name, cast(Fact, value))
        else:
            self.leave(path, "leads back" if id(value) in self.around else _described(value, self.kind))

    def leave(self, path: tuple[str, ...], what: str) -> None:
        """Say what was left."""
        self.left_out.append(shown(f"{'.'.join(path)}: {what}"))


def _tree(value: Any, kind: ArrayLibrary, depth: int) -> dict[str, Any] | None:
    """The leaves of a mapping of layers by dotted names; None if it is anything else."""
    if not isinstance(value, Mapping) or not value or depth > _DEPTH:
        return None
    items = list(cast(Mapping[Any, Any], value).items())
    if any(not isinstance(key, str) for key, _ in items) or len(items) > _WIDE:
        return None
    if any(kind.is_tensor(item) for _, item in items):
        return dict(items) if all(key in _LEAVES and kind.is_tensor(item) for key, item in items) else None
    made: dict[str, Any] = {}
    for key, item in items:
        inner = None if key in _WRAPPERS else _tree(item, kind, depth + 1)
        if inner is None or len(made) + len(inner) > _WIDE:
            return None
        made.update({f"{key}.{name}": leaf for name, leaf in inner.items()})
    return made


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from cast(Mapping[Any, Any], value).items()
    elif isinstance(value, list | tuple):
        yield from enumerate(cast(Sequence[Any], value))


def _is_aside(key: Any, value: Any) -> bool:
    """Whether an entry is the state of an optimiser, of a scheduler, or settings."""
    if isinstance(value, Mapping) and "param_groups" in value:
        return True
    return isinstance(key, str) and isinstance(value, Mapping | list | tuple) and bool(_ASIDE.search(key.lower()[:200]))


def _described(value: Any, kind: ArrayLibrary) -> str:
    if kind.is_tensor(value):
        return kind.describe(value)
    if isinstance(value, Mapping):
        state = value.get("state") if "param_groups" in value else None
        many = len(cast(Mapping[Any, Any], state if isinstance(state, Mapping) and state else value))
        return f"{many} {'entry' if many == 1 else 'entries'}"
    if isinstance(value, str | bytes | bytearray | list | tuple | set):
        unit = {"str": "a text of {} characters", "bytes": "{} bytes", "bytearray": "{} bytes"}
        return unit.get(type(value).__name__, "{} items").format(len(cast(Sequence[Any], value)))
    return "None" if value is None else f"a {type(value).__name__}"
