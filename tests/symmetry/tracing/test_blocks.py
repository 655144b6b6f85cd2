"""Grouped convolutions: blocks that move, blocks that stay, and whether any permutation is missed."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.symmetry import count, trace
from tests.symmetry.tracing.helpers import Case, Net, check, checked_trace, conv, images, linear, net, part, rows, text


def _resnext(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = F.relu(m.n0(m.a(x)))
    h = F.relu(m.n2(m.c2(F.relu(m.n1(m.c1(x))))))
    return m.fc(F.relu(x + m.n3(m.c3(h))).mean((2, 3)))


CASES = {
    "depthwise convolutions in a row share their block permutation": Case(
        lambda m, x: m.d(F.relu(m.c(F.relu(m.b(F.relu(m.a(x))))))),
        {"a": conv(1, 3, 3), "b": conv(3, 3, 1, groups=3), "c": conv(3, 6, 1, groups=3), "d": conv(6, 2, 1)},
        images(),
        "a 3 wreath(b,3,1) positive | b 3 wreath(b,3,1) positive | c 6 wreath(b,3,2) positive | ...",
        notes=(),
    ),
    "a depthwise convolution beside its own input": Case(
        lambda m, x: (lambda h: m.c(F.relu(h + m.b(h)).mean((2, 3))))(F.relu(m.a(x))),
        {"a": conv(1, 3, 3), "b": conv(3, 3, 3, padding=1, groups=3, bias=False), "c": linear(3, 2)},
        images(),
        "a 3 wreath(b,3,1) positive | a: -> a@0+3 | b/3: a@0+3 -> a@0+3, no bias | c: a@0+3 ->",
    ),
    "blocks of a concatenation stay in place": Case(
        lambda m, x: m.d(F.relu(m.c(torch.cat([F.relu(m.a(x)), F.relu(m.b(x))], 1)))),
        {"a": conv(1, 2, 3), "b": conv(1, 2, 3), "c": conv(4, 6, 1, groups=2), "d": conv(6, 2, 1)},
        images(),
        """
        a 2 sym positive
        b 2 sym positive
        c 3 sym positive
        c:2 3 sym positive
        a: -> a@0+2
        b: -> b@0+2
        c/2: a@0+2 b@2+2 -> c@0+3 c:2@3+3
        d: c@0+3 c:2@3+3 ->
        """,
        notes=("The blocks of 'c' stay in place: the channels on its sides are not one group in order.",),
    ),
    "a depthwise convolution of several groups ties what it writes to what it reads": Case(
        lambda m, x: m.d(F.relu(m.c(torch.cat([F.relu(m.a(x)), F.relu(m.b(x))], 1)))),
        {"a": conv(1, 2, 3), "b": conv(1, 3, 3), "c": conv(5, 5, 3, groups=5), "d": conv(5, 2, 1)},
        images(),
        """
        a 2 sym positive
        b 3 sym positive
        a: -> a@0+2
        b: -> b@0+3
        c.weight 0 0 out a@0+2 b@2+3
        c.bias 0 +1 bias a@0+2 b@2+3
        d: a@0+2 b@2+3 ->
        """,
        notes=("The channels that 'c' writes move with those that it reads*", "..."),
    ),
    "a grouped convolution that reads the input beside channels": Case(
        lambda m, x: m.c(F.relu(m.b(torch.cat([x, F.relu(m.a(x))], 1)))),
        {"a": conv(1, 3, 1), "b": conv(4, 4, 1, groups=2), "c": conv(4, 2, 1)},
        images(),
        """
        a 1 sym positive
        a:2 2 sym positive
        b 1 fixed none
        b:2 2 sym positive
        b:3 2 sym positive
        a: -> a@0+1 a:2@1+2
        b/2: b@0+1 a@1+1 a:2@2+2 -> b:2@0+2 b:3@2+2
        c: b:2@0+2 b:3@2+2 ->
        """,
        notes=("*", "*Group 'b' stays in place: 'conv2d' (b, *", "..."),
    ),
    "a grouped convolution whose channels are in two blocks": Case(
        lambda m, x: (lambda h: m.c(F.relu(m.b(torch.cat([h, h], 1)))))(F.relu(m.a(x))),
        {"a": conv(1, 2, 1), "b": conv(4, 4, 1, groups=2), "c": conv(4, 2, 1)},
        images(),
        "a 2 fixed positive | b 2 sym positive | b:2 2 sym positive | ...",
        notes=("*", "*has a channel in several blocks*", "..."),
    ),
    "group norm over two groups of channels": Case(
        lambda m, x: m.c(F.relu(m.n(torch.cat([m.a(x), m.b(x)], 1)))),
        {"a": conv(1, 4, 1), "b": conv(1, 8, 1), "n": part(nn.GroupNorm, 6, 12), "c": conv(12, 2, 1)},
        images(),
        "a 4 wreath(n,2,2) none | b 8 wreath(n:2,4,2) none | ...",
    ),
    "blocks within blocks stay in place": Case(
        lambda m, x: m.d(F.relu(m.c(F.relu(m.b(F.relu(m.a(x))))))),
        {"a": conv(1, 4, 3), "b": conv(4, 8, 1, groups=2), "c": conv(8, 4, 1, groups=4), "d": conv(4, 2, 1)},
        images(),
        """
        a 2 sym positive | a:2 2 sym positive
        b 2 sym positive | b:2 2 sym positive | b:3 2 sym positive | b:4 2 sym positive
        c 4 fixed positive
        ...
        """,
        notes=(
            "The blocks of 'c' stay in place: 'b' and 'c' have blocks of the same channels.",
            "The blocks of 'b' stay in place: the channels on its sides are not one group in order.",
            "Group 'c' stays in place: each of its channels lies in a block of its own that stays in place.",
        ),
    ),
    "channels that are tied across blocks once these stay in place": Case(
        lambda m, x: (lambda h: m.d(F.relu(m.c(torch.cat([h, F.relu(m.b(h))], 1)))))(F.relu(m.a(x))),
        {"a": conv(1, 4, 1), "b": conv(4, 4, 1, groups=4), "c": conv(8, 4, 1, groups=4), "d": conv(4, 2, 1)},
        images(),
        "a 4 fixed positive | c 4 fixed positive | ...",
        notes=(
            "The blocks of 'c' stay in place:*",
            "The channels that 'b' writes move with those that it reads, and share their scales:*",
            "Group 'a' stays in place:*",
            "Group 'c' stays in place:*",
        ),
    ),
    "a depthwise convolution of the input": Case(
        lambda m, x: m.b(F.relu(m.a(x))),
        {"a": conv(2, 2, 3, groups=2), "b": conv(2, 2, 1)},
        images(2),
        "a 2 fixed positive | ...",
    ),
    "a depthwise convolution of the input with several outputs a channel": Case(
        lambda m, x: m.b(F.relu(m.a(x))),
        {"a": conv(2, 6, 3, groups=2), "b": conv(6, 2, 1)},
        images(2),
        "a 3 sym positive | a:2 3 sym positive | ...",
    ),
    "a block of ResNeXt": Case(
        _resnext,
        {"a": conv(1, 3, 3), "n0": part(nn.BatchNorm2d, 3)}
        | {"c1": conv(3, 4, 1, bias=False), "n1": part(nn.BatchNorm2d, 4)}
        | {"c2": conv(4, 4, 3, padding=1, groups=2, bias=False), "n2": part(nn.BatchNorm2d, 4)}
        | {"c3": conv(4, 3, 1, bias=False), "n3": part(nn.BatchNorm2d, 3), "fc": linear(3, 2)},
        images(),
        """
        a 3 sym nonzero | n0 3 like(a) positive
        c1 4 wreath(c2,2,2) nonzero | n1 4 like(c1) positive
        c2 4 wreath(c2,2,2) nonzero | n2 4 like(c2) positive
        c3 3 like(a) nonzero
        a: -> a@0+3
        n0.weight 0 +1 gain n0@0+3 signs a@0+3
        ...
        """,
        notes=(),
    ),
}
CASES |= {
    f"a depthwise convolution of {times} outputs a channel": Case(
        lambda m, x: m.c(F.relu(m.b(F.relu(m.a(x)))).mean((2, 3))),
        {"a": conv(1, 3, 3), "b": conv(3, 3 * times, 3, groups=3), "c": linear(3 * times, 2)},
        images(),
        f"""
        a 3 wreath(b,3,1) positive
        b {3 * times} wreath(b,3,{times}) positive
        a: -> a@0+3
        b/3: a@0+3 -> b@0+{3 * times}
        c: b@0+{3 * times} ->
        """,
    )
    for times in (1, 2)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_tables(name: str) -> None:
    check(CASES[name])


class Inverted(nn.Module):
    """A block of MobileNet: expand, depthwise, project, and the sum with what came in."""

    def __init__(self, n: int, inner: int) -> None:
        super().__init__()
        self.expand, self.n1 = nn.Conv2d(n, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.depth, self.n2 = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False), nn.BatchNorm2d(inner)
        self.project, self.n3 = nn.Conv2d(inner, n, 1, bias=False), nn.BatchNorm2d(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.n2(self.depth(F.relu(self.n1(self.expand(x))))))
        return x + self.n3(self.project(h))


def test_blocks_of_resnext_are_read_after_their_normalisation() -> None:
    block = CASES["a block of ResNeXt"]
    assert "c2.weight 1/2 -1 in n1@0+4" in text(check(block).symmetry).splitlines()


def test_mobile_networks() -> None:
    module = net(
        lambda m, x: m.c(m.b(m.b0(m.a(x))).mean((2, 3))),
        a=conv(1, 3, 3),
        b0=conv(3, 3, 3, padding=1, groups=3),
        b=lambda: Inverted(3, 4),
        c=linear(3, 2),
    )
    traced = checked_trace(module, images())
    assert text(traced.symmetry).splitlines()[:7] == [
        "a 3 wreath(b0,3,1) positive",
        "b0 3 wreath(b0,3,1) positive",
        "b.expand 4 wreath(b.depth,4,1) nonzero",
        "b.n1 4 like(b.expand) positive",
        "b.depth 4 wreath(b.depth,4,1) nonzero",
        "b.n2 4 like(b.depth) positive",
        "b.project 3 like(b0) nonzero",
    ]
    assert count(traced.symmetry).permutations == 6 * 24 and traced.notes == ()


def _choices(shape: Sequence[int], axis: int, blocks: int) -> np.ndarray:
    """All orders of a weight's rows (choices, rows); or of its columns, within each block of rows on its own."""
    orders = list(itertools.permutations(range(shape[axis])))
    return np.array(orders if axis == 0 else list(itertools.product(orders, repeat=blocks)))


def _unchanged(module: nn.Module, sites: Sequence[tuple[str, int, int]], example: torch.Tensor) -> int:
    """How many of all choices of an order at each site (tensor, axis, blocks) leave the outputs as they are."""
    module = module.double().eval()
    rng = np.random.default_rng(3)
    state = {name: rng.uniform(-1, 1, value.shape) for name, value in module.state_dict().items()}
    choices = [_choices(state[tensor].shape, axis, blocks) for tensor, axis, blocks in sites]
    index = np.indices([len(item) for item in choices]).reshape(len(choices), -1)
    stack = {name: np.broadcast_to(value, (index.shape[1], *value.shape)) for name, value in state.items()}
    for (tensor, axis, blocks), choice, at in sorted(zip(sites, choices, index, strict=True), key=lambda item: item[0]):
        weight, order = stack[tensor], choice[at]
        if axis == 0:
            bias = f"{tensor.removesuffix('weight')}bias"
            stack[tensor] = np.take_along_axis(weight, order.reshape(*order.shape, *[1] * (weight.ndim - 2)), 1)
            if bias in stack:
                stack[bias] = np.take_along_axis(stack[bias], order, 1)
        else:
            order = np.repeat(order, weight.shape[1] // blocks, axis=1)
            stack[tensor] = np.take_along_axis(weight, order.reshape(*order.shape, *[1] * (weight.ndim - 3)), 2)
    inputs = torch.from_numpy(rng.standard_normal((3, *example.shape[1:])))

    def run(state: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(module, state, (inputs,))

    with torch.no_grad():
        outputs = torch.func.vmap(run)({name: torch.from_numpy(value.copy()) for name, value in stack.items()}).flatten(
            1
        )
        expected = torch.func.functional_call(
            module, {name: torch.from_numpy(value) for name, value in state.items()}, (inputs,)
        )
    return int(((outputs - expected.flatten()).abs().amax(1) < 1e-9).sum())


def _soft(h: torch.Tensor) -> torch.Tensor:
    """An activation under which no channel is ever dead, as permutations do not care which one it is."""
    return F.softplus(h)


COMPLETE = {
    "dense": (
        lambda m, x: m.c(_soft(m.b(_soft(m.a(x))))),
        {"a": linear(2, 3), "b": linear(3, 3), "c": linear(3, 2)},
        [("a.weight", 0, 1), ("b.weight", 0, 1), ("b.weight", 1, 1), ("c.weight", 1, 1)],
        36,
    ),
    "grouped": (
        lambda m, x: m.c(_soft(m.b(_soft(m.a(x))))).flatten(1),
        {"a": conv(2, 4, 1), "b": conv(4, 4, 1, groups=2), "c": conv(4, 1, 1)},
        [("a.weight", 0, 1), ("b.weight", 0, 1), ("b.weight", 1, 2), ("c.weight", 1, 1)],
        2 * 2**2 * 2**2,
    ),
    "depthwise": (
        lambda m, x: m.c(_soft(m.b(_soft(m.a(x))))).flatten(1),
        {"a": conv(2, 3, 1), "b": conv(3, 3, 1, groups=3), "c": conv(3, 1, 1)},
        [("a.weight", 0, 1), ("b.weight", 0, 1), ("c.weight", 1, 1)],
        6,
    ),
    "depthwise, two outputs": (
        lambda m, x: m.c(_soft(m.b(_soft(m.a(x))))).flatten(1),
        {"a": conv(2, 2, 1), "b": conv(2, 4, 1, groups=2), "c": conv(4, 1, 1)},
        [("a.weight", 0, 1), ("b.weight", 0, 1), ("c.weight", 1, 1)],
        2 * 2**2,
    ),
    "grouped, of a concatenation": (
        lambda m, x: m.c(_soft(m.d(torch.cat([_soft(m.a(x)), _soft(m.b(x))], 1)))).flatten(1),
        {"a": conv(2, 2, 1), "b": conv(2, 2, 1), "d": conv(4, 4, 1, groups=2), "c": conv(4, 1, 1)},
        [("a.weight", 0, 1), ("b.weight", 0, 1), ("d.weight", 0, 1), ("d.weight", 1, 2), ("c.weight", 1, 1)],
        2**4,
    ),
    "concatenated with itself": (
        lambda m, x: (lambda h: m.c(torch.cat([h, h.exp()], 1)))(_soft(m.a(x))),
        {"a": linear(2, 3), "c": linear(6, 2)},
        [("a.weight", 0, 1), ("c.weight", 1, 1)],
        6,
    ),
    "concatenated": (
        lambda m, x: m.c(torch.cat([_soft(m.a(x)), _soft(m.b(x)), x], 1)),
        {"a": linear(2, 2), "b": linear(2, 3), "c": linear(7, 2)},
        [("a.weight", 0, 1), ("b.weight", 0, 1), ("c.weight", 1, 1)],
        2 * 6,
    ),
    "residual": (
        lambda m, x: (lambda h: m.c(_soft(h + m.b(h))))(_soft(m.a(x))),
        {"a": linear(2, 3), "b": linear(3, 3), "c": linear(3, 2)},
        [("a.weight", 0, 1), ("b.weight", 0, 1), ("b.weight", 1, 1), ("c.weight", 1, 1)],
        6,
    ),
    "halves": (
        lambda m, x: (lambda h: m.c(h[:, :2] * torch.tanh(h[:, 2:])))(m.a(x)),
        {"a": linear(2, 4), "c": linear(2, 2)},
        [("a.weight", 0, 1), ("c.weight", 1, 1)],
        2,
    ),
    "in blocks": (
        lambda m, x: m.c(_soft(F.group_norm(m.a(x), 2))).flatten(1),
        {"a": conv(2, 4, 1), "c": conv(4, 1, 1)},
        [("a.weight", 0, 1), ("c.weight", 1, 1)],
        2 * 2**2,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.sampled(4)
def test_no_permutation_is_missed(name: str) -> None:
    forward, parts, sites, expected = COMPLETE[name]
    module = net(forward, **parts)
    example = rows(2) if isinstance(module.a, nn.Linear) else images(2, 2)
    found = count(trace(module, example).symmetry).permutations
    assert found == expected == _unchanged(module, sites, example)


class Grouped(nn.Module):
    """Convolutions in groups with BatchNorms: ``c>o/g`` one, ``n`` a norm, ``+g`` a residual branch, ``c>o/g*2`` two."""

    def __init__(self, text: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kinds, width = text.split(), 4
        self.stem, self.parts = nn.Conv2d(3, width, 1), nn.ModuleList()
        for kind in self.kinds:
            if kind == "n":
                self.parts.append(nn.BatchNorm2d(width))
            elif kind == "r":
                self.parts.append(nn.ReLU())
            elif kind[0] == "+":
                conv = nn.Conv2d(width, width, 1, groups=int(kind[1:]))
                self.parts.append(nn.Sequential(conv, nn.BatchNorm2d(width)))
            else:
                sizes, _, groups = kind.removesuffix("*2").partition("/")
                width = int(sizes)
                before = next((item for item in reversed(list(self.modules())) if isinstance(item, nn.Conv2d)), None)
                assert before is not None
                made = [
                    nn.Sequential(nn.Conv2d(before.out_channels, width, 1, groups=int(groups)), nn.BatchNorm2d(width))
                    for _ in range(2)
                ]
                self.parts.append(nn.ModuleList(made) if kind.endswith("*2") else made[0][0])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for kind, made in zip(self.kinds, self.parts, strict=True):
            if isinstance(made, nn.ModuleList):
                x = made[0](x) + made[1](x)
            else:
                x = x + made(x) if kind[0] == "+" else made(x)
        return self.head(x)


MULTIPLIED = ("8/4 16/8 n", "8/4 n 8/4 r", "8/4 +2", "8/4*2 n 16/2", "8/4 8/8 n +2", "8/4*2 +8 n r", "n r 8/4 16/8*2")


@pytest.mark.parametrize("text", MULTIPLIED)
@pytest.mark.sampled(3)
def test_depthwise_convolutions_with_a_multiplier_and_norms_behind(text: str) -> None:
    module = Grouped(text).eval()
    traced = checked_trace(module, images(3, 3))
    assert any(group.flips or group.resizes for group in traced.symmetry.groups)
