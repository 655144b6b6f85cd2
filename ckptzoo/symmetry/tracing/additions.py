"""The effect of numbers that are added to a tensor of the state dict, along a module's operations.

An ``Addition`` says which number is added to which entry of a value. Operations move numbers (a transposition), mix
those of one line into others of the same kind (attention weights sum to 1), take them up (a bias behind a matrix), are
invariant under them (a softmax whose arguments all have the same number added), or let them change the outputs.
"""

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ckptzoo.schema.folds import Target, TensorPart
from ckptzoo.symmetry.tracing.exported import SAME, Module, argument, moved, moves, operation, positional, size_of
from ckptzoo.symmetry.tracing.graph import is_cast, schema_of
from ckptzoo.symmetry.tracing.rules.registry import is_check

# e^-10000 is 0 in float64; models for half precision mask with -10,000, whose type ends at -65,504
_MASKED = -1e4
"""Scores of this and less take no part in a softmax."""


@dataclass(frozen=True)
class Addition:
    """Numbers that are added to a value.

    ``ids`` has for each entry of the value the number of the number that is added to it, -1 for none; one tensor for
    each output where an operation has several. Where it is ``plain``, ids are numbers of the source's channels, and
    what is added is what was added there, so that a parameter can take it up. Otherwise equal ids say only that the
    same is added, and ``sources`` are the channels of the source that the numbers depend on. ``gain`` is the parameter
    that has multiplied them, channel by channel.
    """

    ids: Any
    plain: bool = True
    sources: frozenset[int] = frozenset()
    gain: str | None = None

    @property
    def origins(self) -> frozenset[int]:
        """All channels of the source that the addition depends on."""
        if not self.plain:
            return self.sources
        tensors = self.ids if isinstance(self.ids, (tuple, list)) else [self.ids]
        return frozenset(int(item) for tensor in tensors for item in tensor.unique()) - {-1}

    def changed(self, ids: torch.Tensor) -> "Addition":
        """Return other numbers that depend on the same channels of the source."""
        return Addition(ids, plain=False, sources=self.origins, gain=self.gain)


_Handler = Callable[[fx.Node, fx.Node, Addition], Addition | None]


@dataclass
class Walk:
    """The result of following an addition.

    ``seen`` are channels of the source whose numbers change the module's outputs, or may do so; ``taken`` what takes
    the numbers up, and in which operation; ``gains`` parameters that have multiplied what is not seen.
    """

    seen: set[int] = field(default_factory=set)
    taken: list[Target] = field(default_factory=list)
    gains: set[str | None] = field(default_factory=set)


class Walker:
    """Follows additions through a module. ``taking`` says whether parameters may take numbers up, ``kept`` are tensors
    that must not, and ``rows`` operations without a bias, in which the rows of the weight may.
    """

    def __init__(
        self, module: Module, *, taking: bool = False, kept: Iterable[str] = (), rows: Iterable[fx.Node] = ()
    ) -> None:
        self._module, self._taking, self._kept, self._rows = module, taking, frozenset(kept), frozenset(rows)
        self._walk = Walk()
        by_names: dict[str, _Handler] = {
            "linear addmm mm matmul bmm": self._layer,
            "scaled_dot_product_attention": self._attention,
            "layer_norm": self._norm,
            "softmax log_softmax": self._softmax,
            "add sub": self._sum,
            "mul div": self._multiple,
            "mean": self._mean,
            "index": self._index,
            "embedding": self._embedding,
            "conv1d conv2d conv3d": self._convolution,
            "masked_fill where": self._masked,
            "lstm gru rnn_tanh rnn_relu": self._recurrent,
        }
        self._handlers = {name: handler for names, handler in by_names.items() for name in names.split()}

    def follow(self, start: fx.Node, addition: Addition) -> Walk:
        """Return what becomes of numbers that are added to a node's value; it ends where all of them are seen."""
        walk = self._walk = Walk()
        origins = addition.origins
        added: dict[fx.Node, list[Addition]] = {start: [addition]}
        waiting: list[int] = []

        def go_on(node: fx.Node) -> None:
            for user in node.users:
                if self._module.number[user] not in waiting:
                    heapq.heappush(waiting, self._module.number[user])

        go_on(start)
        # in the order of the graph: all arguments of an operation have been followed when its turn comes
        while waiting and not origins <= walk.seen:
            node = self._module.nodes[heapq.heappop(waiting)]
            results: list[Addition] = []
            for given in dict.fromkeys(node.all_input_nodes):
                for item in added.get(given, ()):
                    if (result := self._through(node, given, item)) is not None:
                        results.append(result)
            if results:
                added[node] = results
                go_on(node)
        return walk

    def _seen(self, addition: Addition) -> None:
        self._walk.seen |= addition.origins

    def _not_seen(self, addition: Addition) -> None:
        self._walk.gains.add(addition.gain)

    def _through(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        """Return what an operation makes of one argument's numbers; None where they end there, seen or not."""
        name = operation(node)
        if name == "getitem":
            return replace(addition, ids=addition.ids[positional(node)[1]])
        if is_check(name):
            return None
        schema = schema_of(node.target) if node.op == "call_function" else None
        handler = self._handlers.get(name)
        if schema is None or schema.is_mutable or (handler is None and not moves(name)):
            return self._seen(addition)
        if is_cast(name) and given is not positional(node)[0]:  # the dtype alone is taken from it
            return None
        if name in SAME or is_cast(name):
            return addition
        if handler is None:
            return replace(addition, ids=moved(node, given, addition.ids))
        return handler(node, given, addition)

    def _layer(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        layer, ids, size = self._module.layer(node), addition.ids, size_of(node)
        if layer is None:
            return self._product(node, given, addition)
        if given is layer.bias and given not in (layer.value, layer.weight):
            return replace(addition, ids=ids.expand(size))
        # numbers added to a whole line of the weight, times inputs that are not known
        if given is layer.weight and given is not layer.value:
            return self._of_lines(addition, ids, 1 - layer.axis, size, -1)
        columns = _line(ids)
        if given is not layer.value or not addition.plain or columns is None:
            return self._seen(addition)
        if self._taking and self._can_take(layer.bias):
            assert layer.bias is not None
            self._take(columns, layer.weight, layer.axis, layer.bias)
            return None
        made = addition.changed(torch.arange(size[-1]).expand(size))
        if node in self._rows:
            inner = Walker(self._module).follow(node, replace(made, plain=True))
            if inner.seen:
                self._walk.taken.append(Target(None, self._module.whole(layer.weight, layer.axis)))
                return None
        return made

    def _take(self, columns: torch.Tensor, weight: fx.Node, axis: int, bias: fx.Node) -> None:
        """Let a bias take what a weight of two axes reads on one of them."""
        for start, first, count in _runs(columns):
            part = self._module.whole(weight, axis)
            box = [(0, part.shape[0]), (0, part.shape[1])]
            box[axis] = (start, count)
            part = replace(part, start=tuple(at for at, _ in box), shape=tuple(many for _, many in box))
            self._walk.taken.append(Target(self._module.whole(bias, 0), part, first))

    def _recurrent(self, node: fx.Node, given: fx.Node, addition: Addition) -> None:
        """Follow numbers into a recurrent layer, where two biases are summed, but in the last gate of a GRU. In all
        other gates the bias of the input takes up the other one, and inputs.
        """
        columns = _line(addition.ids)
        if not (self._taking and addition.plain and argument(node, "has_biases")) or columns is None:
            return self._seen(addition)
        params, directions = list(argument(node, "params")), 2 if argument(node, "bidirectional") else 1
        each = len(params) // (int(argument(node, "num_layers")) * directions)
        sets = [params[at : at + each] for at in range(0, len(params), each)]
        if given is argument(node, "input") and all(self._can_take(item[2]) for item in sets[:directions]):
            for weight, _, bias, *_ in sets[:directions]:
                self._take(columns, weight, 1, bias)
            return None
        for _, _, bias, hidden, *_ in sets:
            if given is hidden and self._can_take(bias):
                # n = tanh(W x + b + r (U h + c)): the reset gate multiplies c, so that b cannot take it (torch.nn.GRU)
                summed = columns[: len(columns) * 2 // 3] if operation(node) == "gru" else columns
                part = self._module.whole(bias, 0)
                for start, first, count in _runs(summed):
                    self._walk.taken.append(Target(replace(part, start=(start,), shape=(count,)), None, first))
                self._walk.seen |= addition.origins - set(summed.tolist())
                return None
        return self._seen(addition)

    def _product(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        """Follow numbers through a product of two values: attention weights with values, or queries with keys."""
        left, right = positional(node)[:2]
        ids, size = addition.ids, size_of(node)
        # a product of a value with itself would change by a square
        if left is right or ids.ndim < 2 or not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            return self._seen(addition)
        # rows that sum to 1 keep what all tokens have in common
        if given is right and same_along(ids, -2) and _sums_to_one(left):
            return replace(addition, ids=ids[..., :1, :].expand(size).clone())
        if given is right and same_along(ids, -1):
            return addition.changed(_lines(size, -1))
        if given is left and same_along(ids, -2):
            return addition.changed(_lines(size, -2))
        return self._seen(addition)

    def _attention(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        query, key, value, mask = (argument(node, name) for name in ("query", "key", "value", "attn_mask"))
        ids, size = addition.ids, size_of(node)
        if given is query or [key, value, mask].count(given) != 1 or argument(node, "dropout_p"):
            return self._seen(addition)
        if size_of(key)[-2] == 1:  # one token has the weight 1, whatever the scores are: others need not
            return self._seen(addition)
        if given is mask:
            return self._not_seen(addition) if ids.ndim and same_along(ids, -1) else self._seen(addition)
        if argument(node, "enable_gqa"):
            ids = ids.repeat_interleave(size[-3] // ids.shape[-3], -3)
        # what all keys have in common adds the same number to a row of scores, which a softmax does not change
        if given is key:
            return self._not_seen(addition) if same_along(ids, -2) else self._seen(addition)
        if same_along(ids, -2):
            return replace(addition, ids=ids[..., :1, :].expand(size).clone())
        return addition.changed(_lines(size, -1)) if same_along(ids, -1) else self._seen(addition)

    def _norm(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        value, shift = positional(node)[0], argument(node, "bias")
        if given is shift and given is not value:
            return replace(addition, ids=addition.ids.expand(size_of(node)))
        ids, axes = addition.ids, len(argument(node, "normalized_shape"))
        if given is value and given is not argument(node, "weight") and same_along(ids.flatten(-axes), -1):
            return self._not_seen(addition)
        return self._seen(addition)

    def _softmax(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        ids, axis = addition.ids, int(argument(node, "dim"))
        if ids.shape[axis] == 1:  # as in an attention to one token
            return self._seen(addition)
        return self._not_seen(addition) if same_along(ids, axis) else self._seen(addition)

    def _sum(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        left, right = positional(node)[:2]
        if left is right or (argument(node, "alpha") or 1) != 1:
            return self._seen(addition)
        other = right if given is left else left
        ids = addition.ids.expand(size_of(node))
        if operation(node) != "add" and given is right:
            addition = addition.changed(ids)
        elif operation(node) == "add" and addition.plain and self._taking and isinstance(other, fx.Node):
            targets = self._taken(other, ids)
            if targets is not None:
                self._walk.taken += targets
                return None
        return replace(addition, ids=ids)

    def _multiple(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        left, right = positional(node)[:2]
        other = right if given is left else left
        if left is right or (operation(node) == "div" and given is right):
            return self._seen(addition)
        ids = addition.ids.expand(size_of(node))
        if not isinstance(other, fx.Node) or math.prod(size_of(other)) == 1:
            return addition.changed(ids)
        sizes = [size for size in size_of(other) if size > 1]
        if other in self._module.parameters and len(sizes) == 1 and addition.gain is None and operation(node) == "mul":
            axis = next(axis for axis, size in enumerate(size_of(other)[::-1]) if size > 1)
            if same_along(ids, -1 - axis):
                return replace(addition.changed(ids), gain=self._module.parameters[other])
        return self._seen(addition)

    def _mean(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        axes, ids, size = argument(node, "dim") or (), addition.ids, size_of(node)
        axes = [axis % ids.ndim for axis in axes]
        if axes and all(same_along(ids, axis) for axis in axes):
            for axis in axes:
                ids = ids.narrow(axis, 0, 1)
            return replace(addition, ids=ids.reshape(size))
        # Means over tokens of what is the same along the channels are so too.
        if axes and ids.ndim - 1 not in axes and same_along(ids, -1):
            return addition.changed(_lines(size, -1))
        return self._seen(addition)

    def _index(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        indices = [self._module.constant(item) for item in argument(node, "indices")]
        known = all(item is not None or given is None for item, given in zip(indices, positional(node)[1], strict=True))
        if given is not positional(node)[0] or not known:
            return self._seen(addition)
        target: Any = node.target
        return replace(addition, ids=target(addition.ids, indices))

    def _embedding(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        ids, size = addition.ids, size_of(node)
        if given is not positional(node)[0]:
            return self._seen(addition)
        if same_along(ids, 0):
            return replace(addition, ids=ids[0].expand(size))
        return addition.changed(_lines(size, -1)) if same_along(ids, 1) else self._seen(addition)

    def _convolution(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        value, weight, bias = (argument(node, key) for key in ("input", "weight", "bias"))
        ids, size = addition.ids, size_of(node)
        # the channels' axis, also of images without an axis of examples
        axis = len(size) - len(size_of(weight)) + 1
        if [value, weight, bias].count(given) != 1 or given is value:
            return self._seen(addition)
        if given is bias:
            return replace(addition, ids=ids.reshape(-1, *[1] * (len(size) - axis - 1)).expand(size))
        return self._of_lines(addition, ids, 0, size, axis) if argument(node, "groups") == 1 else self._seen(addition)

    def _of_lines(
        self, addition: Addition, ids: torch.Tensor, axis: int, size: tuple[int, ...], channels: int
    ) -> Addition | None:
        """Follow the same number along the axis that a weight writes: every token has it too, along its channels."""
        return addition.changed(_lines(size, channels)) if same_along(ids, axis) else self._seen(addition)

    def _masked(self, node: fx.Node, given: fx.Node, addition: Addition) -> Addition | None:
        """Follow scores of which some are replaced by large negative numbers, which a softmax makes 0."""
        if operation(node) == "masked_fill":
            value, other = positional(node)[0], positional(node)[2]
        else:
            value, other = positional(node)[1:3]
        number = self._module.constant(other)
        low = isinstance(number, (int, float, torch.Tensor)) and bool((torch.as_tensor(number) <= _MASKED).all())
        if given is not value or not low:
            return self._seen(addition)
        return replace(addition, ids=addition.ids.expand(size_of(node)))

    def _can_take(self, node: fx.Node | None) -> bool:
        return node is not None and self._module.used_once(node) and self._module.parameters[node] not in self._kept

    def _taken(self, node: fx.Node, ids: torch.Tensor) -> list[Target] | None:
        """Return what takes up numbers added to a node's value, where nothing else uses it; None where nothing can.
        ``ids`` are those of the numbers, of the shape of the value or one that it is broadcast to.
        """
        size = size_of(node)
        wide = (1,) * (ids.ndim - len(size)) + size
        for axis, length in enumerate(wide):
            if length == 1 and ids.shape[axis] > 1:
                if not same_along(ids, axis):
                    return None
                ids = ids.narrow(axis, 0, 1)
        ids = ids.reshape(size)
        if len(node.users) != 1:
            return None
        if node in self._module.parameters:
            return _in_part(self._module.whole(node, -1), ids) if self._can_take(node) else None
        name = operation(node)
        layer = self._module.layer(node)
        if layer is not None or name == "layer_norm":
            bias: Any = layer.bias if layer is not None else argument(node, "bias")
            line = _line(ids)
            return _in_part(self._module.whole(bias, 0), line) if self._can_take(bias) and line is not None else None
        if name in ("conv1d", "conv2d", "conv3d"):
            bias, line = argument(node, "bias"), _line(ids.movedim(1, -1))
            return _in_part(self._module.whole(bias, 0), line) if self._can_take(bias) and line is not None else None
        if name == "embedding":
            line = _line(ids)
            if not self._can_take(positional(node)[0]) or line is None:
                return None
            table = self._module.whole(positional(node)[0], 1)
            return _in_part(table, line.expand(table.shape))
        if name == "add" and (argument(node, "alpha") or 1) == 1:
            for item in positional(node)[:2]:
                if isinstance(item, fx.Node) and (targets := self._taken(item, ids)) is not None:
                    return targets
            return None
        if name in SAME or is_cast(name):
            return self._taken(node.all_input_nodes[0], ids)
        return self._taken_before(node, ids) if moves(name) else None

    def _taken_before(self, node: fx.Node, ids: torch.Tensor) -> list[Target] | None:
        """Return ``_taken`` where the operation moves entries of its arguments."""
        targets: list[Target] = []
        arguments = list(dict.fromkeys(node.all_input_nodes))
        for given in arguments:
            places = torch.arange(math.prod(size_of(given))).reshape(size_of(given))
            result = moved(node, given, places)
            if not isinstance(result, torch.Tensor):
                return None
            there = result >= 0
            # -1 are entries to which nothing is added, -2 those that the result does not show
            own = torch.full((places.numel(),), -2)
            own[result[there]] = ids[there]
            # An entry that is nowhere, as behind the tokens of the example, has no number that fits all examples.
            if (own == -2).any() or (own[result[there]] != ids[there]).any():
                return None
            if (own >= 0).any():
                found = self._taken(given, own.reshape(size_of(given)))
                if found is None:
                    return None
                targets += found
        return targets


def same_along(ids: torch.Tensor, axis: int) -> bool:
    """Whether the ids do not change along an axis."""
    return bool((ids == ids.narrow(axis, 0, 1)).all())


def _lines(size: tuple[int, ...], axis: int) -> torch.Tensor:
    """Return ids that are the same along one axis, and others in every line."""
    short = list(size)
    short[axis] = 1
    return torch.arange(math.prod(short)).reshape(short).expand(size)


def _line(ids: torch.Tensor) -> torch.Tensor | None:
    """Return the ids along the last axis, where they are the same along all others."""
    rows = ids.reshape(-1, ids.shape[-1])
    return rows[0] if same_along(rows, 0) else None


def _runs(line: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return runs of consecutive ids: the first position, the first id, and how many there are; -1 are left out."""
    found: list[tuple[int, int, int]] = []
    for position, number in enumerate(line.tolist()):
        if number < 0:
            continue
        if found and (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]) == (position, number):
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((position, number, 1))
    return found


def _in_part(part: TensorPart, ids: torch.Tensor) -> list[Target] | None:
    """Return the boxes of a parameter in which channels have these numbers; None where there is no box."""
    there = ids >= 0
    places = there.nonzero()
    start, stop = places.amin(0).tolist(), (places.amax(0) + 1).tolist()
    inside = ids[tuple(slice(first, last) for first, last in zip(start, stop, strict=True))]
    line = _line(inside.movedim(part.axis, -1))
    if line is None or (line < 0).any():
        return None
    found: list[Target] = []
    for first, number, count in _runs(line):
        begin, size = list(start), list(inside.shape)
        begin[part.axis], size[part.axis] = start[part.axis] + first, count
        found.append(Target(replace(part, start=tuple(begin), shape=tuple(size)), None, number))
    return found


def _sums_to_one(node: fx.Node) -> bool:
    """Whether the entries of each row of the value sum to 1: a softmax over its last axis."""
    while operation(node) in SAME or is_cast(operation(node)):
        node = node.all_input_nodes[0]
    return operation(node) == "softmax" and argument(node, "dim") in (-1, len(size_of(node)) - 1)
