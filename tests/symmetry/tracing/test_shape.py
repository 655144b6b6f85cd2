"""What moves entries and changes none: where channels are after it, and which of them stay alike."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo import archs
from tests.symmetry.tracing.helpers import (
    Case,
    Net,
    check,
    checked_trace,
    conv,
    images,
    linear,
    lines,
    net,
    parameter,
    part,
    rows,
    text,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flat", "read"),
    [
        (lambda h: h.flatten(1), "a@0+3*16"),
        (lambda h: torch.flatten(h, 1), "a@0+3*16"),
        (nn.Flatten(), "a@0+3*16"),
        (lambda h: h.view(-1, 48), "a@0+3*16"),
        (lambda h: h.view(h.size(0), -1), "a@0+3*16"),
        (lambda h: h.reshape(h.shape[0], h.shape[1] * h.shape[2] * h.shape[3]), "a@0+3*16"),
        (lambda h: h.flatten(2).flatten(1), "a@0+3*16"),
        (lambda h: h.permute(0, 2, 3, 1).reshape(h.shape[0], -1), " ".join(f"a@{3 * at}+3" for at in range(16))),
        (lambda h: h.transpose(1, 2).flatten(1), " ".join(f"a@{12 * at}+3*4" for at in range(4))),
        (lambda h: h.amax((2, 3)), "a@0+3"),
        (lambda h: h.mean((2, 3), keepdim=True).squeeze(3).squeeze(-1), "a@0+3"),
        (lambda h: F.adaptive_avg_pool2d(h, 1).squeeze(), "a@0+3"),
        (lambda h: h[:, :, 0, -1], "a@0+3"),
        (lambda h: h[..., 1].select(2, 0), "a@0+3"),
        (lambda h: h.flip(1).mean((2, 3)), "a@2+1 a@1+1 a@0+1"),
        (lambda h: h.roll(1, 1).mean((2, 3)), "a@1+2 a@0+1"),
        (lambda h: h[:, [2, 0, 1]].mean((2, 3)), "a@1+2 a@0+1"),
        (lambda h: h.movedim(1, -1).unflatten(1, (2, 2)).flatten(1, 2).sum((1, 2)), "a@0+3"),
        (lambda h: torch.cat([h, h], 1).mean((2, 3)), "a@0+3 a@3+3"),
        (lambda h: torch.cat([h.flatten(1), h.amax((2, 3))], 1), "a@0+3*16 a@48+3"),
        (lambda h: h.repeat_interleave(2, 1).mean((2, 3)), "a@0+3*2"),
        (lambda h: h.repeat(1, 2, 1, 1).mean((2, 3)), "a@0+3 a@3+3"),
        (lambda h: torch.stack([h, h], 2).mean((3, 4)).flatten(1), "a@0+3*2"),
        (lambda h: F.pad(h, (1, 1, 1, 1), mode="reflect").flatten(1), "a@0+3*36"),
        (lambda h: F.pad(h, (1, 0, 0, 1)).flatten(1), "a@0+3*25"),
        (lambda h: torch.unbind(h, 3)[1].flatten(1), "a@0+3*4"),
        (lambda h: h.narrow(2, 1, 2).chunk(2, 2)[0].flatten(1), "a@0+3*4"),
    ],
)
@pytest.mark.sampled(4)
def test_where_channels_are_when_they_are_read(flat, read: str) -> None:
    layer = nn.Conv2d(1, 3, 3)
    size = flat(layer(images())).flatten(1).shape[1]
    module = net(lambda m, x: m.c(m.flat(F.relu(m.a(x)))), a=lambda: layer, flat=lambda: flat, c=linear(size, 2))
    assert text(checked_trace(module, images()).symmetry) == lines(f"a 3 sym positive | a: -> a@0+3 | c: {read} ->")


def _swapped_halves(m: Net, x: torch.Tensor) -> torch.Tensor:
    first, second = m.a(x).chunk(2, 1)
    return m.c(torch.cat([F.relu(second), F.relu(first)], 1))


def _unlike_halves(m: Net, x: torch.Tensor) -> torch.Tensor:
    first, second = torch.split(m.a(x), [2, 4], dim=1)
    return m.c(torch.cat([F.relu(first), F.leaky_relu(second)], 1))


def _shift(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = F.relu(m.a(x))
    return m.c(torch.cat([h[:, :2, 1:, :-1], h[:, 2:5, :-1, 1:], h[:, 5:, 1:, :-1]], 1).mean((2, 3)))


def _gated(m: Net, x: torch.Tensor) -> torch.Tensor:
    value, gate = m.a(x).tensor_split(2, dim=-1)
    return m.c(value * gate.sigmoid())


def _dense(m: Net, x: torch.Tensor) -> torch.Tensor:
    features = [x]
    for layer in (m.a, m.b):
        features.append(F.relu(layer(torch.cat(features, dim=1))))
    return m.c(torch.concat(features, 1).mean((2, 3)))


def _vision(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x).flatten(2).transpose(1, 2)
    h = torch.cat([m.token.expand(h.shape[0], -1, -1), h], dim=1) + m.positions
    h = h + m.up(F.gelu(m.down(m.norm(h))))
    return m.c(h[:, 0])


def _channels_shuffled(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = F.relu(m.a(x))
    b, c, height, width = h.size()
    h = h.view(b, 2, c // 2, height, width).transpose(1, 2).contiguous().view(b, -1, height, width)
    return m.c(F.channel_shuffle(h, 3))


CASES = {
    "halves that are treated alike are one group": Case(
        _swapped_halves,
        {"a": linear(5, 6), "c": linear(6, 2)},
        rows(5),
        "a 6 sym positive | a: -> a@0+6 | c: a@3+3 a@0+3 ->",
    ),
    "halves that are treated apart are two groups": Case(
        _unlike_halves,
        {"a": linear(5, 6), "c": linear(6, 2)},
        rows(5),
        "a 2 sym positive | a:2 4 sym positive | a: -> a@0+2 a:2@2+4 | c: a@0+2 a:2@2+4 ->",
    ),
    "channels that are shifted in space are groups by shift": Case(
        _shift, {"a": conv(1, 6, 3), "c": linear(6, 2)}, images(), "a 3 sym positive | a:2 3 sym positive | ..."
    ),
    "gated linear units by hand": Case(
        _gated,
        {"a": linear(5, 6), "c": linear(3, 2)},
        rows(5),
        "a 3 sym positive | a:2 3 like(a) none | a: -> a@0+3 a:2@3+3 | c: a@0+3 ->",
    ),
    "concatenation with the input and with other groups": Case(
        _dense,
        {"a": conv(2, 3, 1), "b": conv(5, 4, 1), "c": linear(9, 2)},
        images(2),
        "a 3 sym positive | b 4 sym positive | a: -> a@0+3 | b: a@2+3 -> b@0+4 | c: a@2+3 b@5+4 ->",
    ),
    "a linear layer that makes images": Case(
        lambda m, x: m.c(F.relu(m.a(x)).view(-1, 3, 2, 2)),
        {"a": linear(5, 12), "c": part(nn.ConvTranspose2d, 3, 1, 2)},
        rows(5),
        "a 3 sym positive | a: -> a@0+3*4 | c.weight 0 -1 in a@0+3",
    ),
    "tokens of images with a class token and positions": Case(
        _vision,
        {
            "a": conv(1, 4, 3, stride=3),
            "token": parameter(1, 1, 4),
            "positions": parameter(1, 5, 4),
            "norm": part(nn.LayerNorm, 4),
            "down": linear(4, 3),
            "up": linear(3, 4),
            "c": linear(4, 2),
        },
        images(),
        """
        a 4 sym none
        norm 4 like(a) nonzero
        down 3 sym none
        token 2 +1 bias a@0+4
        positions 2 +1 bias a@0+4
        a: -> a@0+4
        norm.weight 0 +1 gain norm@0+4
        norm.bias 0 +1 shift norm@0+4
        down: norm@0+4 -> down@0+3
        up: down@0+3 -> a@0+4
        c: a@0+4 ->
        """,
    ),
    "padding with a number takes the scale away": Case(
        lambda m, x: m.c(F.pad(F.relu(m.a(x)), (1, 1), value=2.0).mean((2, 3))),
        {"a": conv(1, 3, 3), "c": linear(3, 2)},
        images(),
        "a 3 sym none | ...",
        notes=("*pads with a constant*", "..."),
    ),
    "a channel shuffle is a permutation": Case(
        _channels_shuffled, {"a": conv(1, 6, 3), "c": conv(6, 2, 1)}, images(), "a 6 sym positive | ..."
    ),
}
PADDED = (
    lambda h: F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 2, 1)),
    lambda h: torch.cat([h.new_zeros(h.shape[0], 2, 2, 2), h[:, :, ::2, ::2], h.new_zeros(h.shape[0], 1, 2, 2)], 1),
)
CASES |= {
    f"zeros between channels are channels of their own {number}": Case(
        lambda m, x, padded=padded: (lambda h: m.c(F.relu(m.b(h) + padded(h)).mean((2, 3))))(F.relu(m.a(x))),
        {"a": conv(1, 3, 3), "b": conv(3, 6, 3, stride=2, padding=1), "c": linear(6, 2)},
        images(),
        """
        a 3 sym positive | b 3 sym positive
        a: -> a@0+3
        b: a@0+3 -> b@0+2 a@2+3 b@5+1
        c: b@0+2 a@2+3 b@5+1 ->
        """,
    )
    for number, padded in enumerate(PADDED)
}
CASES |= {
    f"channels that become pixels move together {number}": Case(
        lambda m, x: m.c(m.shuffled(F.relu(m.a(x)))),
        {"a": conv(1, 8, 3), "shuffled": lambda shuffled=shuffled: shuffled, "c": conv(2, 1, 3)},
        images(),
        "a 2 sym positive | a: -> a@0+2*4 | c: a@0+2 ->",
    )
    for number, shuffled in enumerate((nn.PixelShuffle(2), lambda h: F.pixel_shuffle(h, 2)))
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_tables(name: str) -> None:
    check(CASES[name])


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_joined_with_nothing_is_as_it_was(axis: int) -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x)
        return m.b(torch.relu(torch.cat([h.new_zeros((*h.shape[:axis], 0, *h.shape[axis + 1 :])), h], axis)))

    found = checked_trace(net(forward, a=linear(5, 4), b=linear(4, 2)), rows(5)).symmetry
    assert text(found) == lines("a 4 sym positive | a: -> a@0+4 | b: a@0+4 ->")


def test_changes_in_place_through_a_view_are_followed() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x)
        h.view(-1).relu_()
        h[:, 2:] = 0
        mask = torch.ones(5)
        mask[1:].fill_(2)
        return m.c(h * mask)

    traced = checked_trace(net(forward, a=linear(5, 5), c=linear(5, 2)), rows(5))
    assert text(traced.symmetry) == lines("""
        a 2 fixed positive
        a:2 3 sym positive
        a: -> a@0+2 a:2@2+3
        c: a@0+2 ->
    """)


@pytest.mark.exhaustive
def test_a_shortcut_padded_in_a_residual_network() -> None:
    traced = checked_trace(archs.get("resnet8-pad-3")(), images(3, 8))
    sizes = {group.id: group.n for group in traced.symmetry.groups if traced.symmetry.leader(group.id) == group}
    assert list(sizes.values()) == [16, 16, 32, 16, 64, 32]
    assert traced.notes == ()
