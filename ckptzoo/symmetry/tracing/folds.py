"""Candidates for the folds of a module: numbers that can be added to its tensors without a change of its outputs.

There are three kinds: vectors and tables that can be moved into other parameters, or have no effect at all (key biases,
value biases, shifts of LayerNorms, class tokens, positions); weights that may have the same number added along an axis
(what writes a stream that only LayerNorms read); and matrices that read a LayerNorm, whose values sum to a constant.
The candidates are verified with numbers, in ``verify``.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx

from ckptzoo.schema.folds import Fold, Target, TensorPart
from ckptzoo.symmetry.tracing.additions import Addition, Walk, Walker, same_along
from ckptzoo.symmetry.tracing.exported import SAME, MatrixProduct, Module, argument, moved, moves, operation, size_of
from ckptzoo.symmetry.tracing.graph import Operations

_WITH_FOLDS = frozenset(
    {"layer_norm", "scaled_dot_product_attention", "softmax", "lstm", "gru", "rnn_tanh", "rnn_relu"}
)


def candidate_folds(found: Operations, names: Mapping[str, str]) -> tuple[Fold, ...]:
    """Return candidates for folds of a module, in an order in which each keeps what those before it have fixed.
    ``names`` maps each name of a tensor in the state dict to its name in the architecture.
    """
    module = Module(found, names)
    # Other networks have additive freedoms too (biases that are summed). Their tables stay those that zoos have.
    if not any(operation(node) in _WITH_FOLDS for node in module.nodes):
        return ()
    # What is added is followed entry by entry, which needs sizes that do not depend on the input's numbers.
    if not all(isinstance(size, int) for node in module.nodes for size in size_of(node)):
        return ()
    readers = list(_readers(module))
    by_node = _moved_vectors(module, readers)
    for node, folds in _unseen_vectors(module):
        by_node.setdefault(node, []).extend(folds)
    fixed = {fold.part.tensor for folds in by_node.values() for fold in folds}
    for reader in readers:
        by_node[reader.node] = [*_centred_rows(module, reader, fixed), *by_node.get(reader.node, ())]
    in_order = [fold for node in sorted(by_node, key=module.number.__getitem__) for fold in by_node[node]]
    # Positions come after the vectors that move into them, and the means along channels after all that changes them.
    tables = list(_moved_tables(module, fixed))
    return (*in_order, *tables, *_centred_writers(module, fixed))


@dataclass(frozen=True)
class _Reader:
    """A product with a matrix whose argument is a LayerNorm's result, channel by channel."""

    norm: fx.Node
    node: fx.Node
    layer: MatrixProduct


def _readers(module: Module) -> Iterator[_Reader]:
    for norm in module.nodes:
        if operation(norm) != "layer_norm" or len(argument(norm, "normalized_shape")) != 1:
            continue
        # a gain that is computed, such as 1 + w, is no tensor that a fold could name
        if any(item is not None and item not in module.parameters for item in _affine(norm)):
            continue
        values = {norm: torch.arange(size_of(norm)[-1]).expand(size_of(norm))}
        for node in module.nodes[module.number[norm] :]:
            layer = module.layer(node)
            if layer is not None and layer.value in values and layer.weight not in values:
                ids = values[layer.value]
                if ids.shape[-1] == size_of(norm)[-1] and bool((ids == torch.arange(ids.shape[-1])).all()):
                    yield _Reader(norm, node, layer)
                continue
            if any(item in values for item in node.all_input_nodes) and (ids := _rearranged(node, values)) is not None:
                values[node] = ids


def _rearranged(node: fx.Node, values: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """Return the channels of a LayerNorm's values after an operation that moves them or averages over tokens."""
    given = [item for item in node.all_input_nodes if item in values]
    ids = values[given[0]]
    if operation(node) == "mean":
        axes = argument(node, "dim") or ()
        if not axes or not all(same_along(ids, axis) for axis in axes):
            return None
        for axis in axes:
            ids = ids.narrow(axis, 0, 1)
        return ids.reshape(size_of(node))
    if not moves(operation(node)) or len(node.all_input_nodes) > 1:
        return None
    result = ids if operation(node) in SAME else moved(node, given[0], ids)
    return result if isinstance(result, torch.Tensor) else None


def _affine(norm: fx.Node) -> tuple[fx.Node | None, fx.Node | None]:
    """Return gain and shift of a LayerNorm."""
    return argument(norm, "weight"), argument(norm, "bias")


def _moved_vectors(module: Module, readers: list[_Reader]) -> dict[fx.Node, list[Fold]]:
    """Return folds of vectors, by the operations that use them, in their order."""
    rows = {
        reader.node
        for reader in readers
        if reader.layer.bias is None and module.used_once(reader.layer.weight) and _affine(reader.norm)[1] is not None
    }
    by_node: dict[fx.Node, list[Fold]] = {}
    kept: set[str] = set()
    vectors = [item for item in module.parameters if module.used_once(item) and _is_vector(module, item)]
    for vector in sorted(vectors, key=lambda item: module.number[next(iter(item.users))]):
        (user,) = vector.users
        name = module.parameters[vector]
        own_rows = rows if operation(user) == "layer_norm" and vector is _affine(user)[1] else ()
        part = module.whole(vector, _long_axis(module.shapes[name]))
        ids = torch.arange(part.channels).reshape(part.shape)
        addition = Addition(ids)
        seen = Walker(module).follow(vector, addition).seen
        if seen:
            walk = Walker(module, taking=True, kept=kept | {name}, rows=own_rows).follow(vector, addition)
        else:
            walk = Walk()
        walk.seen &= seen
        if folds := list(_folds_of_vector(module, part, walk, seen, user)):
            by_node.setdefault(user, []).extend(folds)
            kept.add(name)
    return by_node


def _unseen_vectors(module: Module) -> Iterator[tuple[fx.Node, list[Fold]]]:
    """Yield folds of vectors without effect that several operations use, with the first of these."""
    nodes: dict[str, list[fx.Node]] = {}
    for node, name in module.parameters.items():
        if not module.used_once(node) and _is_vector(module, node):
            nodes.setdefault(name, []).append(node)
    for name, several in nodes.items():
        users = [user for node in several for user in node.users]
        part = module.whole(several[0], _long_axis(module.shapes[name]))
        addition = Addition(torch.arange(part.channels).reshape(part.shape))
        seen = set[int]().union(*(Walker(module).follow(node, addition).seen for node in several))
        if users and len(seen) < part.channels:
            folds = [
                Fold("zero", _along(part, part.axis, first, stop))
                for first, stop, _ in _runs_of_takers(Walk(seen=seen), set(), part.channels)
            ]
            yield min(users, key=module.number.__getitem__), folds


def _is_vector(module: Module, node: fx.Node) -> bool:
    sizes = module.shapes[module.parameters[node]]
    return bool(sizes) and math.prod(sizes) == max(sizes)


def _long_axis(sizes: tuple[int, ...]) -> int:
    return max(range(len(sizes)), key=lambda axis: (sizes[axis], axis))


def _folds_of_vector(module: Module, part: TensorPart, walk: Walk, seen: set[int], user: fx.Node) -> Iterator[Fold]:
    """Yield runs of channels that nothing sees, or that nothing sees but those that the walk has found take up."""
    if any(target.into is None for target in walk.taken):
        if not walk.seen:
            gain = _affine(user)[0]
            yield Fold("match", part, tuple(walk.taken), None if gain is None else module.whole(gain, 0))
        return
    for first, stop, targets in _runs_of_takers(walk, seen, part.channels):
        yield Fold("shift" if targets else "zero", _along(part, part.axis, first, stop), targets)


def _runs_of_takers(walk: Walk, seen: set[int], channels: int) -> Iterator[tuple[int, int, tuple[Target, ...]]]:
    """Yield runs of channels that the same targets take up, and their parts of these; none without effect."""
    takers: list[tuple[int, ...] | None] = [
        None
        if channel in walk.seen
        else tuple(
            number
            for number, item in enumerate(walk.taken)
            if channel in seen and item.offset <= channel < item.offset + item.channels
        )
        for channel in range(channels)
    ]
    first = 0
    for channel in range(1, channels + 1):
        if channel < channels and takers[channel] == takers[first]:
            continue
        if (numbers := takers[first]) is not None:
            yield first, channel, tuple(_cut(walk.taken[number], first, channel) for number in numbers)
        first = channel


def _along(part: TensorPart, axis: int, first: int, stop: int) -> TensorPart:
    """Return the part's positions from ``first`` to ``stop`` along an axis."""
    start, shape = list(part.start), list(part.shape)
    start[axis] += first
    shape[axis] = stop - first
    return replace(part, start=tuple(start), shape=tuple(shape))


def _cut(target: Target, first: int, stop: int) -> Target:
    """Return the target of the channels from ``first`` to ``stop`` alone."""
    low, high = max(first, target.offset), min(stop, target.offset + target.channels)
    if target.weight is not None:
        return replace(
            target,
            weight=_along(target.weight, target.weight.axis, low - target.offset, high - target.offset),
            offset=low - first,
        )
    assert target.into is not None
    return replace(
        target,
        into=_along(target.into, target.into.axis, low - target.offset, high - target.offset),
        offset=low - first,
    )


def _moved_tables(module: Module, fixed: set[str]) -> Iterator[Fold]:
    """Yield tables whose mean over the rows can be moved into other parameters: positions against tokens."""
    tables: list[tuple[bool, int, int, fx.Node]] = []
    for number, node in enumerate(module.parameters):
        sizes = module.shapes[module.parameters[node]]
        if not module.used_once(node) or sum(size > 1 for size in sizes) < 2:
            continue
        (user,) = node.users
        if module.layer(user) is not None or operation(user).startswith("conv"):
            continue
        # Those of tokens come last, so that what is moved is what the inputs do not choose.
        chosen = operation(user) == "embedding" and module.constant(argument(user, "indices")) is None
        tables.append((chosen, len(tables) and sizes[0] * chosen, number, node))
    kept = set(fixed)
    for _, _, _, node in sorted(tables, key=lambda item: item[:3]):
        part = module.whole(node, -1)
        ids = torch.arange(part.channels).expand(part.shape)
        walk = Walker(module, taking=True, kept=kept | {part.tensor}).follow(node, Addition(ids))
        if not walk.seen and walk.taken:
            kept.add(part.tensor)
            yield Fold("shift", part, tuple(walk.taken))


def _centred_writers(module: Module, fixed: set[str]) -> Iterator[Fold]:
    """Yield tensors that may have the same number added along an axis, in each line another one."""
    nodes: dict[str, list[fx.Node]] = {}
    for node, name in module.parameters.items():
        nodes.setdefault(name, []).append(node)
    for name, several in nodes.items():
        sizes = module.shapes[name]
        vector = math.prod(sizes) == max(sizes, default=0)
        for axis, size in enumerate(sizes):
            if size < 2 or (vector and name in fixed):
                continue
            short = [1 if at == axis else many for at, many in enumerate(sizes)]
            ids = torch.arange(math.prod(short)).reshape(short).expand(sizes)
            addition = Addition(ids, plain=False, sources=frozenset((0,)))  # seen, or not: whichever line it is
            walks = [Walker(module).follow(node, addition) for node in several]
            gains = set[str | None]().union(*(walk.gains for walk in walks))
            if any(walk.seen for walk in walks) or len(gains) != 1:
                continue
            (gain,) = gains
            part = module.whole(several[0], axis)
            if gain is None:
                yield Fold("centre", part)
            elif math.prod(module.shapes[gain]) == size:
                node = nodes[gain][0]
                yield Fold("centre", part, gain=module.whole(node, _long_axis(module.shapes[gain])))


def _centred_rows(module: Module, reader: _Reader, kept: set[str]) -> Iterator[Fold]:
    """Yield the centring of a matrix that reads a LayerNorm, where something takes what the matrix loses."""
    layer = reader.layer
    if not module.used_once(layer.weight):
        return
    gain, shift = (None if item is None else module.whole(item, 0) for item in _affine(reader.norm))
    centred = Fold("centre", module.whole(layer.weight, layer.axis), gain=gain)
    if shift is None:
        yield centred
    elif layer.bias is not None and module.used_once(layer.bias):
        yield replace(centred, shift=shift, targets=(Target(module.whole(layer.bias, 0)),))
    else:
        size = size_of(reader.node)
        addition = Addition(torch.arange(size[-1]).expand(size))
        seen = Walker(module).follow(reader.node, addition).seen
        walk = Walker(module, taking=True, kept=kept).follow(reader.node, addition)
        walk.seen &= seen
        for first, stop, targets in _runs_of_takers(walk, seen, size[-1]):
            part = _along(centred.part, 1 - layer.axis, first, stop)
            yield replace(centred, part=part, shift=shift if targets else None, targets=targets)
