"""Finds the state dicts in a loaded file: opens wrappers, keeps scalars as facts, and names what it leaves out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from ckptzoo.hub.untrusted.errors import name_error, reject, reject_without_network
from ckptzoo.hub.untrusted.layer_trees import (
    LEAF_NAMES,
    MOST_SHARED,
    WRAPPER_NAMES,
    are_networks,
    are_of_modules,
    copies,
    has_others,
    is_copy_name,
    layer_tree,
    side_by_side,
    signature,
    statistics_in,
)
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.objects import (
    MAX_DEPTH,
    as_dict,
    describe,
    is_aside,
    is_extra_state,
    is_figure_name,
    is_module,
    is_settings_name,
    is_tensor,
    is_training_state,
    items_of,
    module_tensors,
    number_list,
    plain,
)
from ckptzoo.hub.untrusted.other_contents import MOMENTS, other_content
from ckptzoo.hub.untrusted.results import Fact
from ckptzoo.hub.untrusted.rules import TENSOR_STEP, dtype_step
from ckptzoo.hub.untrusted.siblings import (
    OPTIMISER,
    State,
    about_weights,
    completed,
    is_average,
    is_dense,
    is_list_of,
    is_natural,
    is_time_name,
    slots_in,
    times_of,
)
from ckptzoo.hub.untrusted.tensor_forms import holds_numbers, unread_form
from ckptzoo.hub.untrusted.values import Inert, InertError, Numbers
from ckptzoo.schema.architecture import ITEMSIZE
from ckptzoo.text import excerpt

_MAX_FACTS = 256
_MAX_TEXT = 1000
"""Characters of a text that is a fact."""
_MAX_LIST = 64
"""Scalars of a list that is a fact, each of at most ``_MAX_NAME`` characters."""
_MAX_NAME = 100
_MAX_LEFT_OUT = 64
_ALWAYS_NAMED = 4096
"""Names that few tensors may have in any case."""
_IN_A_LIST = (dict, Inert, int, float, str, type(None))
"""Items of lists of networks, and of tuples of a network and what is known about it."""


@dataclass(frozen=True)
class StateCandidate:
    """One state dict: the key that led to it, its tensors by name, the scalars beside it and what was left out.

    ``buffers`` are the names of tensors that a module says are buffers.
    """

    key: str
    tensors: dict[str, Any]
    facts: dict[str, Fact]
    left_out: tuple[str, ...]
    buffers: frozenset[str] = frozenset()


def find_state_dicts(root: Any, *, location: str, limits: Limits, with_moments: bool = False) -> list[StateCandidate]:
    """Find the state dicts in a loaded object.

    A mapping of names to tensors is a state dict. A mapping or a sequence of such is opened, with keys joined by dots;
    layers within one another (``layer_trees``) are one state dict with dotted names. What holds no weights
    (``other_contents``) is left out, and named. With ``with_moments`` the moments of a posterior are taken as a state
    dict, and averages of parameters alone are completed. The search is 6 levels deep, and opens a bounded number of
    containers, so that cycles and shared containers end. A fact belongs to the state dicts that are nearest to it.

    Raises ``NoNetworkError``: there is none, and no weights of another form. Raises ``IntegrityError``: there is none,
    there are too many, a name cannot be used, or a tensor has a form that is not read.
    """
    search = _Search(location, limits, with_moments=with_moments)
    search.visit(root, (), 0)
    search.finish()
    if not search.states:
        left_out = "; ".join(search.left_out[:5])
        if search.other_contents:
            reject_without_network(location, left_out, "Save model.state_dict().")
        got = describe(root) + (f" with {excerpt(left_out)}" if left_out else "")
        if not _may_hold_weights(None, root):
            reject_without_network(location, got, "Save model.state_dict().")
        reject(location, "content", "a state dict: names and tensors", got, "Save model.state_dict().")
    left_out = search.left_out
    if len(left_out) > _MAX_LEFT_OUT:
        left_out = [*left_out[:_MAX_LEFT_OUT], f"and {len(left_out) - _MAX_LEFT_OUT} more"]
    paths = [path for path, *_ in search.states]
    return [
        StateCandidate(
            ".".join(path) if len(paths) > 1 else "",
            tensors,
            _facts_near(search.facts, path, paths),
            tuple(left_out),
            buffers & tensors.keys(),
        )
        for path, tensors, buffers in search.states
    ]


def _may_hold_weights(key: Any, value: Any, depth: int = 0) -> bool:
    """Tells whether there are numbers in an object besides those of training states, settings and figures."""
    if is_tensor(value):
        return not is_figure_name(key)
    if is_aside(key, value) or depth > MAX_DEPTH:
        return depth > MAX_DEPTH
    if isinstance(value, Inert) and not value.attributes:
        return holds_numbers(value)
    return any(_may_hold_weights(name, item, depth + 1) for name, item in items_of(value))


def _may_be_layers(key: Any, value: Any) -> bool:
    """Tells whether an entry is a tensor, or a list of tensors, and no figures."""
    return not is_figure_name(key) and (is_tensor(value) or layer_tree(value, is_part=True) is not None)


def _facts_near(
    facts: Mapping[tuple[str, ...], Fact], path: tuple[str, ...], paths: Sequence[tuple[str, ...]]
) -> dict[str, Fact]:
    """Return the facts to which no other state dict is nearer, by their names below what they share with its path."""
    found: dict[str, Fact] = {}
    for name, value in facts.items():
        shared = _shared(name, path)
        if shared == max(_shared(name, other) for other in paths):
            rest = name[shared:]
            # what stands in a tuple beside the state dict: (state_dict, {"epoch": 3})
            rest = rest[1:] if len(rest) > 1 and rest[0].isdecimal() else rest
            found.setdefault(".".join(rest) or name[-1], value)
    return found


def _shared(name: tuple[str, ...], path: tuple[str, ...]) -> int:
    """Count the keys that two paths begin with together, without the last of the first one."""
    return next(
        (at for at, (one, other) in enumerate(zip(name[:-1], path, strict=False)) if one != other),
        min(len(name) - 1, len(path)),
    )


class _Search:
    def __init__(self, location: str, limits: Limits, *, with_moments: bool) -> None:
        self.location, self.limits, self.with_moments = location, limits, with_moments
        self.states: list[State] = []
        self.tensor_lists: dict[tuple[str, ...], Sequence[Any]] = {}
        self.time_lists: dict[tuple[str, ...], Sequence[Any]] = {}
        self.other_times = set[tuple[str, ...]]()
        self.facts: dict[tuple[str, ...], Fact] = {}
        self.left_out: list[str] = []
        self.enclosing: set[int] = set()
        self.distinct: set[int] = set()
        self.modules: set[int] = set()
        self.contains_known: dict[int, bool] = {}
        self.name_count = self.opened = self.mappings_of_facts = self.other_contents = 0

    def visit(self, value: Any, path: tuple[str, ...], depth: int) -> None:
        """Open what is inside, unless it is too deep."""
        if depth > MAX_DEPTH:
            self.leave_out(path, f"more than {MAX_DEPTH} levels deep")
            return
        value = as_dict(value)
        self.enclosing.add(id(value))
        if is_module(value):
            if id(value) not in self.modules:  # an object may refer to one module several times
                self.modules.add(id(value))
                buffers = set[str]()
                self.add_state(path, module_tensors(value, buffers).items(), frozenset(buffers))
        elif is_training_state(None, value):
            self.leave_out_other(path, OPTIMISER)
        else:
            self.open_container(value, path, depth)
        self.enclosing.discard(id(value))

    def open_container(self, value: Any, path: tuple[str, ...], depth: int) -> None:
        """Open a container: its tensors are a state dict, unless there are state dicts inside it."""
        self.opened += 1
        if self.opened > self.limits.states:
            reject(self.location, "content", f"at most {self.limits.states} containers of state dicts", "more")
        items = list(items_of(value))
        if items and isinstance(value, dict) and all(isinstance(item, Numbers) for _, item in items):
            self.add_state(path, items)  # as torch saves nearly all of them
            return
        aside = {at for at, (key, item) in enumerate(items) if is_aside(key, item) or id(item) in self.enclosing}
        named = about_weights(items) if isinstance(value, dict | Inert) else {}
        for at, what in named.items():
            self.leave_out_other((*path, self.key_text(items[at][0])), what)
        aside |= named.keys()
        if several := side_by_side(value):
            for name, tree in several.items():
                self.add_state((*path, self.key_text(name)), tree.items())
            return
        inside = {at: item for at, (_, item) in enumerate(items) if at not in aside}
        holding = [at for at, item in inside.items() if not is_tensor(item) and self.contains_state(item, depth + 1)]
        taken = self.add_layers(items, inside, holding, path, depth)
        if taken is None and holding:
            before = len(self.states)
            for at in holding:
                self.visit(items[at][1], (*path, self.key_text(items[at][0])), depth + 1)
            # private attributes of an object may be copies of its others
            beside = {
                at
                for at in inside
                if at not in holding
                and _may_be_layers(*items[at])
                and not (isinstance(value, Inert) and str(items[at][0]).startswith("_"))
            }
            taken = set(holding)
            if len(self.states) > before:
                self.refuse_weights_beside([items[at] for at in beside])
            elif beside:  # what was opened holds no weights
                self.add_state(path, [items[at] for at in beside])
                taken |= beside
        elif taken is None and any(is_tensor(item) for item in inside.values()):
            # what else an object has is none of its network
            taken = {at for at in inside if not isinstance(value, Inert) or _may_be_layers(*items[at])}
            self.add_state(path, [items[at] for at in sorted(taken)])
        for at, (key, item) in enumerate(items):
            if key == "callbacks" and at in aside:
                self.add_averages(item, path)
            if at not in (taken or ()) and at not in named:
                self.add_entry(path, key, item)

    def add_averages(self, callbacks: Any, path: tuple[str, ...]) -> None:
        """Add the averages of a network that callbacks of its trainer keep, as those of Lightning."""
        networks = [signature(tensors) for _, tensors, _ in self.states]
        for _, kept in items_of(as_dict(callbacks)):
            for key, item in items_of(as_dict(kept)):
                if isinstance(key, str) and is_copy_name(key) and signature(item) in networks:
                    self.add_state((*path, key), items_of(as_dict(item)))

    def add_layers(
        self,
        items: list[tuple[Any, Any]],
        inside: Mapping[int, Any],
        holding: list[int],
        path: tuple[str, ...],
        depth: int,
    ) -> set[int] | None:
        """Add the networks whose layers the items are; None where they are no layers."""
        keys = {at: str(items[at][0]) for at in holding}
        held = set(holding)
        beside = [(items[at][0], item) for at, item in inside.items() if at in held or is_tensor(item)]
        read = {keys[at]: layer_tree(inside[at], depth + 1, is_part=has_others(inside[at], beside)) for at in holding}
        trees = {key: tree for key, tree in read.items() if tree is not None}
        # one key with layers inside it wraps them where facts stand beside it, and is their name where it is alone
        is_wrapped = len(holding) == 1 < len(inside) and not any(map(is_tensor, inside.values()))
        first = str(items[holding[0]][0]) if holding else ""
        if is_wrapped and first not in WRAPPER_NAMES | {"params", "parameters"} and first[:1] != "_":
            # layers as lists stand beside others as mappings
            is_wrapped = not any(_may_be_layers(*items[at]) for at in inside if at not in holding)
        if len(trees) < len(holding) or is_wrapped:
            return None
        if networks := copies(trees):
            for network in networks:
                first = next(iter(network))
                named = [
                    (f"{name}.{leaf}" if len(network) > 1 else leaf, item)
                    for key, name in network.items()
                    for leaf, item in trees[key].items()
                ]
                self.add_state((*path, first), named)
            return set(holding)
        of_modules = are_of_modules([(key, inside[at]) for at, key in keys.items()])
        if any(items[at][0] in WRAPPER_NAMES for at in holding) or are_networks(trees, of_modules=of_modules):
            return None
        whole = layer_tree({items[at][0]: item for at, item in inside.items()}, depth)
        if whole is None:
            return None
        self.add_state(path, whole.items())
        return set(inside)

    def refuse_weights_beside(self, items: Iterable[tuple[Any, Any]]) -> None:
        """Refuse tensors with names of layers beside whole state dicts: part of which network they are is not known."""
        for key, item in items:
            if (
                is_tensor(item)
                and isinstance(key, str)
                and key.rpartition(".")[2] in LEAF_NAMES - {"mean", "var", "scale"}
            ):
                step = "Save one state dict with all tensors of the network."
                reject(
                    self.location, f"tensor {key!r}", "all tensors of a network in one mapping", describe(item), step
                )

    def contains_state(self, value: Any, depth: int) -> bool:
        """Whether there is a state dict in it: a mapping with tensors, layers, or a container of such."""
        value = as_dict(value)
        if is_module(value):
            return bool(module_tensors(value, set()))
        if not isinstance(value, dict | list | tuple | Inert) or depth > MAX_DEPTH + 1:
            return False
        if id(value) not in self.contains_known:
            # until it is known, so that containers that hold one another end
            self.contains_known[id(value)] = False
            items = [(key, item) for key, item in items_of(value) if not is_aside(key, item)]
            if (isinstance(value, dict) and any(is_tensor(item) for _, item in items)) or side_by_side(value):
                self.contains_known[id(value)] = True
            elif isinstance(value, dict | Inert) or all(isinstance(item, _IN_A_LIST) for _, item in items):
                self.contains_known[id(value)] = any(self.contains_state(item, depth + 1) for _, item in items)
        return self.contains_known[id(value)]

    def key_text(self, key: Any) -> str:
        """Return a key as a text."""
        text = str(key) if isinstance(key, int) else key
        if (odd := name_error(text)) is not None:
            reject(self.location, "name", "a printable text", odd, "Save it again under plain names.")
        return cast(str, text)

    def add_state(
        self, path: tuple[str, ...], items: Iterable[tuple[Any, Any]], buffers: frozenset[str] = frozenset()
    ) -> None:
        """Add the tensors among items as a state dict, the scalars as facts; what holds no weights is left out."""
        tensors: dict[str, Any] = {}
        for key, item in items:
            name = self.key_text(key)
            found = {} if name.endswith("_extra_state") and is_extra_state(name) else self.tensors_of(name, item)
            if not found:
                self.add_fact((*path, name), item)
            if found.keys() & tensors.keys():
                reject(self.location, "names", "every name once", "two keys that read the same")
            tensors |= found
        if slots := slots_in(tensors):
            tensors = {name: tensor for name, tensor in tensors.items() if name not in slots}
            more = f" and {len(slots) - 1} more" if len(slots) > 1 else ""
            self.leave_out_other(path, f"{OPTIMISER}: {next(iter(slots))}{more}")
        dtypes = {name: str(tensor.dtype) for name, tensor in tensors.items()}
        if unknown := next((name for name, dtype in dtypes.items() if dtype not in ITEMSIZE), None):
            expected, dtype = "one of " + ", ".join(ITEMSIZE), dtypes[unknown]
            reject(self.location, f"dtype of {unknown!r}", expected, dtype, dtype_step(dtype))
        what = other_content(dtypes)
        if what is not None and not (self.with_moments and what == MOMENTS):
            self.leave_out_other(path, what)
            return
        # FSDP's FlatParameter: all tensors of a module in one vector, whose shapes are not in the file
        if flat := [name for name in tensors if name.endswith("flat_param")]:
            step = "Save it with FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)."
            reject(
                self.location, f"tensor {flat[0]!r}", "a tensor of one layer", "those of several, as FSDP keeps", step
            )
        buffers |= statistics_in(tuple(tensors))
        self.name_count += len(tensors)
        if self.name_count > self.limits.tensors or len(self.states) >= self.limits.states:
            expected = f"at most {self.limits.tensors} names in {self.limits.states} state dicts"
            reject(self.location, "content", expected, f"{self.name_count} names in {len(self.states) + 1}, or more")
        self.distinct.update(map(id, tensors.values()))
        # nests that hold one another grow with each level, from one tensor to any number of names
        if self.name_count > max(_ALWAYS_NAMED, MOST_SHARED * len(self.distinct)):
            expected = f"at most {MOST_SHARED} names of a tensor on average"
            reject(self.location, "content", expected, f"{self.name_count} names of {len(self.distinct)}")
        self.states.append((path, tensors, buffers))

    def tensors_of(self, name: str, item: Any) -> dict[str, Any]:
        """Return the tensors that an entry of a state dict stands for: itself, a list of numbers, a list of tensors."""
        if (form := unread_form(item)) is not None:
            self.refuse_form(name, form)
        if is_tensor(item):
            return {name: item}
        if isinstance(item, Inert) and holds_numbers(item):
            self.refuse_form(name, f"an object of {item.name}")
        if not isinstance(item, list | tuple) or is_figure_name(name):
            return {}
        if (numbers := number_list(name, item)) is not None:
            return {name: numbers}
        leaves = {
            f"{name}.{inner}": leaf for inner, leaf in (layer_tree(item, is_part=True) or {}).items() if is_tensor(leaf)
        }
        return {inner: leaf for name, item in leaves.items() for inner, leaf in self.tensors_of(name, item).items()}

    def refuse_form(self, name: str, form: str) -> None:
        """Refuse a tensor whose numbers are not read."""
        reject(self.location, f"tensor {name!r}", "dense numbers", form, TENSOR_STEP)

    def add_entry(self, path: tuple[str, ...], key: Any, item: Any) -> None:
        """Note what stands beside state dicts under a key; states of optimisers have tensors as keys."""
        text = str(key) if isinstance(key, int) else key
        if (odd := name_error(text)) is None:
            self.add_fact((*path, text), item)
        else:
            self.leave_out(path, f"{describe(item)} under {odd}")

    def add_fact(self, path: tuple[str, ...], value: Any) -> None:
        """Note a scalar beside the state dicts, or those in mappings of scalars; leave out what is none."""
        value = plain(value, as_settings=any(map(is_settings_name, path)))
        if is_list_of(value, is_dense) and is_average(path):
            self.tensor_lists[path] = value
            return
        if self.is_times(path, value):
            return
        if path[-1] == "shapes" and is_list_of(value, lambda item: is_list_of(item, is_natural)):
            value = [str(tuple(item)) for item in value]  # of the tensors in a vector
        if isinstance(value, list | tuple) and len(value) <= _MAX_LIST:
            value = [plain(item) for item in value]
        is_array = isinstance(value, Numbers | np.ndarray) and len(value.shape) < 2
        if is_array:
            value = self.numbers(value)
        if self.mappings_of_facts < _MAX_FACTS and self.is_scalars(path, value):
            self.mappings_of_facts += 1
            self.enclosing.add(id(value))
            for key, item in items_of(value):
                self.add_entry(path, key, item)
            self.enclosing.discard(id(value))
            return
        fits = isinstance(value, bool | float) or (type(value) is int and abs(value) < 2**63)
        is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        fits = fits or ((is_array or is_texts or len(path) > 1) and _is_list_of_scalars(value))
        fits = fits or (isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable())
        if fits and len(self.facts) < _MAX_FACTS:
            self.facts.setdefault(path, cast(Fact, tuple(value) if isinstance(value, list) else value))
        else:
            self.leave_out(path, "leads back" if id(value) in self.enclosing else describe(value))

    def is_times(self, path: tuple[str, ...], value: Any) -> bool:
        """Note a list of whole numbers that may say when the networks of another list were saved."""
        is_array = isinstance(value, Numbers | np.ndarray)
        is_other = len(path) > 1 or is_array
        if is_other and not any(map(is_time_name, path[-1:])):
            return False
        found: Any = value
        if isinstance(value, Numbers | np.ndarray) and len(value.shape) == 1:
            found = self.numbers(value, self.limits.states)
        if not is_list_of(found, is_natural):
            return False
        times = cast("Sequence[Any]", found)
        if len(times) > self.limits.states:
            return False
        self.time_lists[path] = times
        if is_other:
            self.other_times.add(path)
        return True

    def is_scalars(self, path: tuple[str, ...], value: Any) -> bool:
        """Whether a value beside the state dicts is a mapping whose scalars are facts, as settings are."""
        if not isinstance(value, dict) or not value or len(path) > MAX_DEPTH or id(value) in self.enclosing:
            return False
        items = list(items_of(value))
        # among settings, those of the optimiser are settings
        is_state = is_training_state(path[-1] if len(path) == 1 else None, value)
        return (
            not is_state
            and len(items) <= _MAX_FACTS
            and not any(is_tensor(item) or not isinstance(name, str | int) for name, item in items)
        )

    def finish(self) -> None:
        """Complete averages, and give networks of a list the times that another list has."""
        completed_averages = completed(self.states, self.tensor_lists) if self.with_moments else {}
        for path, of in completed_averages.items():
            self.facts[*path, "buffers_of"] = of
        for path, items in self.tensor_lists.items():
            if path not in completed_averages:
                self.leave_out(path, describe(items))
        times, used = times_of([path for path, *_ in self.states], self.time_lists)
        for path, time in times.items():
            self.facts.setdefault(path, time)
        for path, items in self.time_lists.items():
            if path in used:
                continue
            if path in self.other_times and len(items) <= _MAX_LIST and len(self.facts) < _MAX_FACTS:
                self.facts.setdefault(path, tuple(items))  # a setting, or figures
            else:
                self.leave_out(path, describe(items))

    def numbers(self, value: Any, limit: int = _MAX_LIST) -> Any:
        """Return the numbers of a tensor with one or a few elements, such as means of inputs; else the tensor."""
        if not 0 < prod(value.shape) <= limit:
            return value
        try:
            array = value.read() if isinstance(value, Numbers) else value
        except InertError:
            return value
        if array.dtype.kind not in "fiub":  # bfloat16 is none of numpy's
            return value
        return array.item() if array.size == 1 else array.tolist()

    def leave_out(self, path: tuple[str, ...], what: str) -> None:
        """Note what is left out."""
        self.left_out.append(excerpt(f"{'.'.join(path)}: {what}" if path else what))

    def leave_out_other(self, path: tuple[str, ...], what: str) -> None:
        """Note tensors that are no weights."""
        self.other_contents += 1
        self.leave_out(path, what)


def _is_list_of_scalars(value: Any) -> bool:
    """Whether a value is a short list, such as the layers' activations among settings."""
    if not isinstance(value, list | tuple) or not 0 < len(value) <= _MAX_LIST:
        return False
    return all(
        isinstance(item, bool | float)
        or (type(item) is int and abs(item) < 2**63)
        or (isinstance(item, str) and len(item) <= _MAX_NAME and item.isprintable())
        for item in value
    )
