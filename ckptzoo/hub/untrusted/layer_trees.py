"""Layers within one another, as jax and Flax keep parameters, as state dicts with dotted names."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from ckptzoo.hub.untrusted import values
from ckptzoo.hub.untrusted.objects import MAX_DEPTH, MAX_LEAVES, as_dict, is_aside, is_tensor, items_of, number_list
from ckptzoo.hub.untrusted.tensor_forms import holds_numbers
from ckptzoo.hub.untrusted.values import Numbers

# Names of a layer's own tensors in torch, Flax and TensorFlow.
LEAF_NAMES = {
    "weight", "bias", "kernel", "scale", "gamma", "beta", "embedding", "w", "b", "mean", "var",
    "running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance",
}  # fmt: skip
# Keys that hold a whole state dict each: several of them are several networks, and not one with dotted names.
WRAPPER_NAMES = {
    "state_dict", "model_state_dict", "model_state", "model", "net", "network", "weights", "module", "ema",
    "ema_state_dict", "model_ema", "teacher", "student", "generator", "discriminator",
    "swa", "swa_model", "best_state", "best_model",
}  # fmt: skip
_COPY_WORDS = {
    "ema", "target", "targets", "avg", "average", "averaged", "swa", "best", "old", "slow", "fast", "shadow", "polyak",
    "online", "current", "teacher", "student",
}  # fmt: skip
"""Words of keys that hold another copy of the layers beside them, such as an average or a target."""
_PARAMETER_WORDS = {"loc", "scale", "mean", "std", "sigma", "mu", "rho", "var", "logvar"}
"""Keys that hold one parameter of each weight's distribution, where nothing stands beside them: elsewhere they are the
heads of a network, as of a variational autoencoder or a policy."""
_COLLECTIONS = {"batch_stats", "state", "buffers", "stats", "constants", "cache"}
"""Names under which Flax and Haiku keep other parts of a network than its parameters."""
_WORDS = re.compile(r"[^a-z0-9]+")
_OF_A_NETWORK = re.compile(
    r"(?:.*[^a-z])?(?:seed|run|trial|fold|split|repeat|replicate?|net|network|model|member|ensemble|estimator|learner|"
    r"particle|sample|draw|chain|client|agent|worker|island|task|epoch|step|iter|iteration|round|gen|generation|ckpt|"
    r"checkpoint|snapshot)s?[-_= ]?\d+(?:[-_ ].*)?"
    r"|(?:.*[^a-z])?(?:seed|run|trial|fold|replicate?|member|particle|chain|client)[-_ ].+"
)
"""Keys that number or name networks: seeds, members, times of a run."""
_OF_A_LAYER = re.compile(
    r"[A-Z][A-Za-z0-9]*_\d+"  # as Flax names modules: Dense_0
    r"|(?:.*[^a-z])?(?:layers?|blocks?|resblock|stage|h|fc|conv\d?d?|linear|lin|dense|gru|lstm|rnn|cell|attn|attention|mlp|"
    r"hidden)[-_]?\d+"
)
"""Keys that number the layers of a network."""
_KERAS_LEAF = re.compile(r"(?:.+\.)?vars\.\d+")
"""The names of tensors in files of Keras 3, which hold one model each."""
_NUMBERED = re.compile(r"(?=.*\d)(?=.*[^\d.]).*")
"""Names of tensors with numbers in them, besides numbers alone, which are places in a list."""

_KERAS_NORMALIZATION = re.compile(r"((?:.+\.)?batch_normalization(?:_\d+)?\.vars)\.[0-3]")
_MAX_KEY = 100
"""Characters of a key that are looked at."""
MOST_SHARED = 16
"""The largest number of names of a tensor, on average."""
_OF_ONE_LAYER = 3
"""Tensors that one layer of a list may have."""

Tree = dict[str, Any]
"""Leaves by dotted names: tensors, and what else stands beside them in a layer."""


def layer_tree(value: Any, depth: int = 0, *, is_part: bool = False) -> Tree | None:
    """Return the leaves of one network of layers within one another, by dotted names; None where it is anything else.

    A mapping with dotted names is a state dict by itself, and no layer. What is empty is a layer without parameters.
    With ``is_part`` it is known to be no list of networks: other layers of the network stand beside it.
    """
    value = as_dict(value)
    if depth > MAX_DEPTH or not isinstance(value, dict | list | tuple):
        return None
    items = [(key, item) for key, item in items_of(value) if not _is_empty(item)]
    if len(items) > MAX_LEAVES or any(not _is_layer_name(key) or is_aside(key, item) for key, item in items):
        return None
    if len({str(key) for key, _ in items}) < len(items):
        return None
    arrays = [is_tensor(item) for _, item in items]
    has_tensors = any(arrays)
    holding = [entry for entry, is_array in zip(items, arrays, strict=True) if is_array or holds_numbers(entry[1])]
    held = {id(item) for _, item in holding}
    leaves: Tree = {}
    trees: dict[str, Tree] = {}
    for (key, item), is_array in zip(items, arrays, strict=True):
        if is_array or id(item) not in held or (has_tensors and number_list(key, item) is not None):
            leaves[str(key)] = item
            continue
        is_wrapper = key in WRAPPER_NAMES and isinstance(item, dict)
        inner = None if is_wrapper else layer_tree(item, depth + 1, is_part=is_part or has_others(item, holding))
        if inner is None or len(leaves) + len(inner) > MAX_LEAVES:
            return None
        trees[str(key)] = inner
        leaves |= {f"{key}.{name}": leaf for name, leaf in inner.items()}
    # nests that hold one another grow with each level, from one tensor to any number of names
    if len(leaves) > MOST_SHARED and len(leaves) > MOST_SHARED * len(set(map(id, leaves.values()))):
        return None
    is_network = any(map(is_tensor, leaves.values())) and not (len(trees) > 1 and copies(trees, is_part=is_part))
    are_several = _are_in_a_list(value, trees) or (
        not is_part and len(trees) == len(items) and are_networks(trees, of_modules=are_of_modules(holding))
    )
    return leaves if is_network and not are_several else None


def has_others(item: Any, holding: Sequence[tuple[Any, Any]]) -> bool:
    """Tells whether other layers are among entries that hold numbers: parameters of a distribution are none beside
    those of another one.
    """
    beside = (other for key, other in holding if other is not item and key not in _COLLECTIONS)
    return any(not (_are_parameters(other) and _are_parameters(item)) for other in beside)


def are_of_modules(holding: Sequence[tuple[Any, Any]]) -> bool:
    """Tells whether modules of torch gave the entries that hold numbers: they give each an OrderedDict."""
    return all(isinstance(item, values.Mapping) for _, item in holding)


def _are_parameters(value: Any) -> bool:
    """Tells whether a value is a mapping of several parameters of a distribution."""
    value = as_dict(value)
    return isinstance(value, dict) and len(value) > 1 and _PARAMETER_WORDS.issuperset(value)


def _are_in_a_list(value: Any, trees: Mapping[str, Tree]) -> bool:
    """Tells whether trees are the networks of a list: lists of more tensors each than one layer has, all of the same.

    Keys of a mapping of such have numbers, as seeds and epochs have.
    """
    items = value.values() if isinstance(value, dict) else value
    if len(trees) < 2 or len(trees) < len(value) or not all(isinstance(item, list | tuple) for item in items):
        return False
    if isinstance(value, dict) and not all(any(map(str.isdigit, key)) for key in trees):
        return False
    fewest = min(sum(map(is_tensor, tree.values())) for tree in trees.values())
    return fewest > _OF_ONE_LAYER and are_networks(trees)


def copies(trees: Mapping[str, Tree], *, is_part: bool = False) -> list[dict[str, str]]:
    """Find the networks in which one key's layers are a copy of another's, such as an average of them.

    Each result maps the keys of a network to the key that gives its tensors their names; the list is empty where
    no key is a copy. With ``is_part`` other layers stand beside all of them.

    >>> import numpy as np
    >>> layer = {"linear.w": np.ones(2)}
    >>> copies({"params": layer, "ema_params": layer, "batch_stats": {"norm.mean": np.ones(2)}})
    [{'params': 'params', 'batch_stats': 'batch_stats'}, {'ema_params': 'params', 'batch_stats': 'batch_stats'}]
    """
    signatures = {key: _signature(tree) for key, tree in trees.items()}
    groups: dict[Any, list[str]] = {}
    for key, signature in signatures.items():
        groups.setdefault(signature, []).append(key)
    copied = [keys for keys in groups.values() if len(keys) > 1 and any(map(is_copy_name, keys))]
    if not copied and not is_part:
        copied = [keys for keys in groups.values() if len(keys) > 1 and _PARAMETER_WORDS.issuperset(keys)]
        if any(key not in _COLLECTIONS and not any(key in keys for keys in copied) for key in trees):
            return []
    if not copied:
        return []
    shared = [key for key in trees if key in _COLLECTIONS and not any(key in keys for keys in copied)]
    found: list[dict[str, str]] = []
    for keys in copied:
        first = next((key for key in keys if not is_copy_name(key) and key not in _PARAMETER_WORDS), keys[0])
        beside = {key: key for key in shared}
        found += [{key: first, **beside} for key in keys]
    alone = [key for key in trees if key not in shared and not any(key in keys for keys in copied)]
    return found + [{key: key} for key in alone]


def are_networks(trees: Mapping[str, Tree], *, of_modules: bool = False) -> bool:
    """Tell whether layers within one another that stand side by side, by their keys, are a network each.

    All must have the same tensors. In a mapping the keys say it: those that number networks, such as seeds. Where they
    do not, layers of equal shapes are one network, as those of other shapes are. In a list they are networks if they
    have several layers, or with ``of_modules``: modules gave their tensors, and not jax those of a layer.

    >>> layer = {"w": np.ones((3, 3)), "b": np.ones(3)}
    >>> are_networks({"gru": layer, "gru_1": layer}), are_networks({"seed0": layer, "seed1": layer})
    (False, True)
    """
    is_list = all(map(str.isdigit, trees))
    if len(trees) < 2 or not (is_list or all(map(_numbers_network, trees))):
        return False
    if len({_signature(tree) for tree in trees.values()}) > 1:
        return False
    if not is_list:
        return True
    names = {name for tree in trees.values() for name, leaf in tree.items() if is_tensor(leaf)}
    if of_modules or any("." in name for name in names):
        return not all(map(_KERAS_LEAF.fullmatch, names))
    # a layer has a few tensors, in a list or by names without numbers: those of networks without layers are W1, b1, W2
    is_layer = len(names) <= _OF_ONE_LAYER and not any(map(_NUMBERED.fullmatch, names))
    return not is_layer and not names <= LEAF_NAMES


def _numbers_network(key: str) -> bool:
    return _OF_A_NETWORK.fullmatch(key.lower()[:_MAX_KEY]) is not None


def numbers_layer(key: str) -> bool:
    """Tells whether a key numbers the layers of a network.

    >>> numbers_layer("block_3"), numbers_layer("Dense_0"), numbers_layer("encoder")
    (True, True, False)
    """
    return _OF_A_LAYER.fullmatch(key[:_MAX_KEY]) is not None


@lru_cache(maxsize=1024)
def statistics_in(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names of tensors that Flax, Haiku and Keras 3 keep beside parameters.

    >>> sorted(statistics_in(("params.a.w", "batch_stats.b.mean", "batch_normalization.vars.3")))
    ['batch_normalization.vars.3', 'batch_stats.b.mean']
    """
    has_parameters = any(name.startswith("params.") for name in names)
    found = {name for name in names if has_parameters and name.partition(".")[0] in _COLLECTIONS}
    found |= {name for name in names if ".batch_stats." in f".{name}"}
    layers: dict[str, list[str]] = {}
    for name in names:
        if (matched := _KERAS_NORMALIZATION.fullmatch(name)) is not None:
            layers.setdefault(matched[1], []).append(name)
    # gamma and beta, where they are, stand before the mean and the variance
    found |= {name for own in layers.values() for name in sorted(own)[-2:]}
    return frozenset(found)


def side_by_side(value: Any) -> dict[str, Tree]:
    """Return the networks of a list whose items are lists of tensors or of layers each, by their places.

    Items with the same tensors are networks where these are more than those of one layer; keys of a mapping of such
    have numbers, as seeds or epochs have. Empty where it is anything else.

    >>> net = [np.ones((2, 3)), np.ones(2), np.ones((1, 2)), np.ones(1)]
    >>> list(side_by_side([net, net])), side_by_side([[np.ones((2, 2)), np.ones(2)]] * 2)
    (['0', '1'], {})
    """
    value = as_dict(value)
    if not isinstance(value, dict | list | tuple) or len(value) < 2:
        return {}
    trees: dict[str, Tree] = {}
    for key, item in items_of(value):
        tree = layer_tree(item, 1) if isinstance(item, list | tuple) else None
        if tree is None:
            return {}
        trees[str(key)] = tree
    return trees if _are_in_a_list(value, trees) else {}


def signature(value: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a state dict or in layers, by their names; of anything else none."""
    value = as_dict(value)
    if not isinstance(value, dict | list | tuple):
        return {}
    items = list(islice(items_of(value), MAX_LEAVES))
    flat = {str(key): tuple(item.shape) for key, item in items if isinstance(item, Numbers | np.ndarray)}
    return flat if len(flat) == len(items) else dict(_signature(layer_tree(value, is_part=True) or {}))


def is_copy_name(key: str) -> bool:
    """Tells whether a key is that of another copy of a network, such as an average of its weights.

    >>> is_copy_name("ema_params"), is_copy_name("params")
    (True, False)
    """
    return bool(_COPY_WORDS.intersection(_WORDS.split(key.lower())))


def _signature(tree: Tree) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, getattr(leaf, "shape", None)) for name, leaf in tree.items() if is_tensor(leaf)))


def _is_layer_name(key: Any) -> bool:
    return isinstance(key, int) or (isinstance(key, str) and "." not in key)


def _is_empty(value: Any) -> bool:
    """Tells whether it is None or an empty container: a layer without parameters."""
    return value is None or (isinstance(value, dict | list | tuple) and not value)
