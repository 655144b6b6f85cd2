"""Classifies the objects in a loaded file: tensors, modules, settings, the state of training."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from ckptzoo.hub.untrusted.tensor_forms import unread_form
from ckptzoo.hub.untrusted.values import Inert, InertError, Numbers, Objects

MAX_DEPTH = 6
"""Levels of containers that are opened."""
MAX_LEAVES = 10_000
"""Tensors of a state dict that is kept as nested layers or as a module."""
_MAX_MODULES = 64
"""Levels of modules within one another."""
_MAX_NUMBERS = 10**6
"""Numbers of a list that stands for an array."""
# Names beside a state dict in the checkpoints of common training programs: the state of training, and settings.
_TRAINING_NAMES = re.compile(
    r"(^|_)(optim\w*|opt|sched\w*|lr_?sched\w*|amp|scaler|grad_scaler|rng|callbacks?|loops)(_|$)"
)
_SETTINGS_NAMES = re.compile(
    r"(^|_)(hparams|hyper_?parameters|args|arguments|config|cfg|conf|options|opts|settings)(_|$)"
)
_MASK_NAMES = re.compile(r"(^|_)masks?$")
_RANDOM_NAMES = re.compile(r"(^|_)p?rngs?(_|$)")
_KEY_OF_JAX = (2,)
"""The shape of a key of jax's random numbers, which distinguishes it."""
_FIGURE_NAMES = re.compile(
    r"(^|_)(loss|losses|acc|accuracy|accuracies|errors?|epochs?|steps?|iters?|iterations?|times?|lrs?|history|curve|"
    r"metrics?|scores?|rewards?|returns?|sizes?|shapes?|classes|seeds?|activations?)(_|$)"
)
"""Names of lists of numbers that are noted about a network, and no tensors of it."""
_CONSTRAINTS = re.compile(r"(torch|pyro)\.distributions\.constraints\.")


_READ = (Numbers, np.ndarray)
_OPTIMISER_MODULES = ("optax.", "torch.optim.", "chex.")
"""Modules of objects that are states of optimisers."""


def is_tensor(value: Any) -> bool:
    """Tells whether a value is a tensor, be its form one that is read or not."""
    return isinstance(value, _READ) or unread_form(value) is not None


def is_module(value: Any) -> bool:
    """Tells whether an object was a ``torch.nn.Module``."""
    return isinstance(value, Inert) and all(
        isinstance(value.attributes.get(name), dict) for name in ("_parameters", "_buffers", "_modules")
    )


def module_tensors(module: Inert, buffers: set[str], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return the tensors that ``module.state_dict()`` would give; add the names of its buffers to ``buffers``.

    Raises ``InertError`` for more tensors or levels than bounds allow: modules may contain one another.
    """
    attributes = module.attributes
    # buffers of register_buffer(persistent=False), which state_dict() leaves out; older modules lack the set
    dropped = attributes.get("_non_persistent_buffers_set")
    own = {**attributes["_parameters"], **attributes["_buffers"]}
    found = {
        f"{prefix}{name}": value
        for name, value in own.items()
        if is_tensor(value) and not (isinstance(dropped, set) and name in attributes["_buffers"] and name in dropped)
    }
    buffers.update(name for name in found if name.removeprefix(prefix) in attributes["_buffers"])
    for name, inner in attributes["_modules"].items():
        if is_module(inner):
            if depth >= _MAX_MODULES or len(found) >= MAX_LEAVES:
                raise InertError("module", f"at most {MAX_LEAVES} tensors in {_MAX_MODULES} levels", "more")
            found |= module_tensors(inner, buffers, f"{prefix}{name}.", depth + 1)
    return found


def is_figure_name(key: Any) -> bool:
    """Tells whether a name is that of figures about a network, such as its losses."""
    return isinstance(key, str) and bool(_FIGURE_NAMES.search(key.lower()[:200]))


def number_list(key: Any, value: Any) -> np.ndarray[Any, Any] | None:
    """Return the array that a list of numbers beside tensors stands for; None for figures, and for any other value.

    >>> number_list("bias", [0.5, 1.0]), number_list("train_losses", [0.5, 1.0])
    (array([0.5, 1. ]), None)
    """
    if not isinstance(value, list | tuple) or is_figure_name(key):
        return None
    flat, count = [cast(Sequence[Any], value)], 0
    while flat:
        items = flat.pop()
        count += len(items)
        inner = [item for item in items if isinstance(item, list | tuple)]
        # of integers beyond 64 bits numpy makes an array of objects
        are_numbers = all(type(item) in (int, float) and abs(item) < 2.0**63 for item in items)
        if not items or count > _MAX_NUMBERS or not (len(inner) == len(items) or are_numbers):
            return None
        flat += inner
    try:
        return np.array(value)
    except ValueError:  # rows of several lengths
        return None


def plain(value: Any, *, as_settings: bool = False) -> Any:
    """Convert the containers of settings into plain values.

    These are dicts of their own classes, what OmegaConf, ml_collections, pydantic, argparse and
    ``types.SimpleNamespace`` keep, dataclasses, enumerations and paths; a class or a function becomes its name,
    and so does a constraint of torch. With ``as_settings`` an object is settings because of its key; otherwise it
    is if all its attributes are plain values.
    """
    for _ in range(MAX_DEPTH):
        if isinstance(value, type) and issubclass(value, Inert):
            return value.name
        if not isinstance(value, Inert) or is_module(value) or unread_form(value) is not None:
            break
        attributes, args = value.attributes, value.args
        if (module := _CONSTRAINTS.match(value.name)) is not None:
            arguments = [f"{name}={item!r}" for name, item in attributes.items() if isinstance(item, int | float)]
            return f"{value.name[module.end() :]}({', '.join(arguments)})"
        if value.pairs is not None:
            return _described(value.pairs)
        inner = next((attributes[name] for name in _INSIDE if name in attributes), None)
        if inner is None and attributes:
            return attributes if as_settings or _are_plain(attributes) or value.name in _NAMESPACES else value
        if inner is None and value.name.startswith("pathlib.") and all(isinstance(part, str) for part in args):
            return "/".join(args)
        is_member = len(args) == 1 and isinstance(args[0], str | int | float) and not _LIBRARIES.match(value.name)
        if inner is None and not is_member:
            break
        value = args[0] if inner is None else inner
    return _described(value)


def _described(value: Any) -> Any:
    """Return a setting as Weights & Biases keeps it, with its description, as the setting alone."""
    return value["value"] if isinstance(value, dict) and value.keys() == {"desc", "value"} else value


_INSIDE = ("_val", "_content", "_fields", "__dict__")
"""Attributes in which OmegaConf, ml_collections and pydantic keep values."""
_LIBRARIES = re.compile(r"(torch|numpy|builtins|os|posix|nt|io|datetime)\.")
"""Modules whose objects with one argument are no members of enumerations."""
_NAMESPACES = {"argparse.Namespace", "types.SimpleNamespace"}


def _are_plain(attributes: dict[Any, Any]) -> bool:
    """Whether all attributes are values that settings have, as those of a dataclass are."""
    return all(
        isinstance(name, str)
        and (item is None or isinstance(item, str | int | float | list | tuple | dict | type) or _is_value(item))
        for name, item in attributes.items()
    )


def _is_value(item: Any) -> bool:
    """Whether it is a member of an enumeration, a path or the like."""
    return isinstance(item, Inert) and not item.attributes and item.pairs is None and item.items is None


def items_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield keys and values of a mapping, a sequence, or an object's attributes; named tuples have arguments."""
    if isinstance(value, Inert):
        named = value.attributes if value.pairs is None else value.pairs
        is_tuple = not named and any(isinstance(item, dict | list | tuple | Inert) for item in value.args)
        pairs = enumerate(value.args) if is_tuple else named.items()
    elif isinstance(value, dict):
        pairs = cast(dict[Any, Any], value).items()
    else:
        pairs = enumerate(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else ()
    if Objects in set(map(type, value.values() if isinstance(value, dict) else ())) or isinstance(
        value, Inert | list | tuple
    ):
        yield from ((key, item.value if isinstance(item, Objects) else item) for key, item in pairs)
    else:
        yield from pairs


def as_dict(value: Any) -> Any:
    """Return a dict of a class of its own as a plain one, a list of names and values as a dict, an array of objects
    as a list, and any other value as it is.
    """
    value = value.value if isinstance(value, Objects) else value
    if isinstance(value, list | tuple) and value and all(map(_is_pair, value)):
        named = dict(cast(Sequence[tuple[str, Any]], value))
        return named if len(named) == len(value) else value
    return value.pairs if isinstance(value, Inert) and value.pairs is not None else value


def _is_pair(item: Any) -> bool:
    return (
        isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str) and not isinstance(item[1], str)
    )


def is_container(value: Any) -> bool:
    """Tells whether a value is opened."""
    return isinstance(value, dict | list | tuple | Inert) and not is_module(value)


def is_aside(key: Any, value: Any) -> bool:
    """Tells whether an entry is the state of an optimiser or of a scheduler, settings, masks, or beside the tensors."""
    if is_extra_state(key):
        return True
    if isinstance(value, _READ):  # most entries
        if not isinstance(key, str) or str(value.dtype) not in ("uint8", "uint32"):
            return False
        name = key.lower()[:200]
        return _RANDOM_NAMES.search(name) is not None or (name == "key" and tuple(value.shape) == _KEY_OF_JAX)
    if is_training_state(key, value):
        return True
    name = key.lower()[:200] if isinstance(key, str) else ""
    return is_container(value) and (is_settings_name(name) or bool(_MASK_NAMES.search(name)))


def is_extra_state(key: Any) -> bool:
    """Tells whether torch keeps under a key what ``Module.get_extra_state`` gives, which is any object."""
    return isinstance(key, str) and key.endswith("_extra_state") and key.rpartition(".")[2] == "_extra_state"


def is_settings_name(key: str) -> bool:
    """Tells whether a key is that of settings."""
    return bool(_SETTINGS_NAMES.search(key.lower()[:200]))


def is_training_state(key: Any, value: Any) -> bool:
    """Tells whether an entry is the state of an optimiser or of a scheduler."""
    value = as_dict(value)
    if isinstance(value, Inert) and value.name.startswith(_OPTIMISER_MODULES):
        return True
    # state_dict() of torch's optimisers has the keys state and param_groups
    if "param_groups" in (value.attributes if isinstance(value, Inert) else value if isinstance(value, dict) else ()):
        return True
    # an optimiser may keep its state by the tensors that it changes
    if isinstance(value, dict) and is_tensor(next(iter(cast(dict[Any, Any], value)), None)):
        return True
    return is_container(value) and isinstance(key, str) and bool(_TRAINING_NAMES.search(key.lower()[:200]))


def describe(value: Any) -> str:
    """Return an untrusted value in a few words."""
    if (form := unread_form(value)) is not None:
        return form
    value = as_dict(value)
    if is_tensor(value):
        return f"{'a tensor' if isinstance(value, Numbers) else 'an array'} of shape {value.shape}"
    if isinstance(value, dict):
        state = value.get("state") if "param_groups" in value else None
        count = len(cast(dict[Any, Any], state if isinstance(state, dict) and state else value))
        return f"{count} {'entry' if count == 1 else 'entries'}"
    if isinstance(value, str | bytes | bytearray | list | tuple | set):
        unit = {"str": "a text of {} characters", "bytes": "{} bytes", "bytearray": "{} bytes"}
        return unit.get(type(value).__name__, "{} items").format(len(cast(Sequence[Any], value)))
    return "None" if value is None else f"a {value.name if isinstance(value, Inert) else type(value).__name__}"
