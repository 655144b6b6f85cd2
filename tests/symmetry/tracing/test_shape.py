"""What moves entries and changes none: where channels come to lie, and which of them stay alike."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo import archs
from tests.symmetry.tracing.helpers import Net, held, images, lines, net, parameter, rows, text

CONV = """
    a 3 sym positive
    a.weight 0 +1 out a@0+3
    a.bias 0 +1 bias a@0+3
"""


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
def test_where_channels_lie_when_they_are_read(flat, read: str) -> None:
    conv = nn.Conv2d(1, 3, 3)
    size = flat(conv(images())).flatten(1).shape[1]
    module = net(
        lambda m, x: m.c(m.flat(F.relu(m.a(x)))), a=lambda: conv, flat=lambda: flat, c=lambda: nn.Linear(size, 2)
    )
    assert text(held(module, images()).symmetry) == lines(f"{CONV}    c.weight 1 -1 in {read}")


def test_zeros_between_channels_are_channels_of_their_own() -> None:
    for padded in (
        lambda h: F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 2, 1)),
        lambda h: torch.cat([h.new_zeros(h.shape[0], 2, 2, 2), h[:, :, ::2, ::2], h.new_zeros(h.shape[0], 1, 2, 2)], 1),
    ):
        module = net(
            lambda m, x, padded=padded: (lambda h: m.c(F.relu(m.b(h) + padded(h)).mean((2, 3))))(F.relu(m.a(x))),
            a=lambda: nn.Conv2d(1, 3, 3),
            b=lambda: nn.Conv2d(3, 6, 3, stride=2, padding=1),
            c=lambda: nn.Linear(6, 2),
        )
        assert text(held(module, images()).symmetry) == lines("""
            a 3 sym positive
            b 3 sym positive
            a.weight 0 +1 out a@0+3
            a.bias 0 +1 bias a@0+3
            b.weight 0 +1 out b@0+2 a@2+3 b@5+1
            b.weight 1 -1 in a@0+3
            b.bias 0 +1 bias b@0+2 a@2+3 b@5+1
            c.weight 1 -1 in b@0+2 a@2+3 b@5+1
        """)


def test_padding_with_a_number_takes_the_scale_away() -> None:
    module = net(
        lambda m, x: m.c(F.pad(F.relu(m.a(x)), (1, 1), value=2.0).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 3, 3),
        c=lambda: nn.Linear(3, 2),
    )
    traced = held(module, images())
    assert traced.symmetry["a"].scale == "none" and "pads with a constant" in traced.notes[0]


def test_halves_that_are_treated_alike_are_one_group() -> None:
    def split(m: Net, x: torch.Tensor) -> torch.Tensor:
        first, second = m.a(x).chunk(2, 1)
        return m.c(torch.cat([F.relu(second), F.relu(first)], 1))

    module = net(split, a=lambda: nn.Linear(5, 6), c=lambda: nn.Linear(6, 2))
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 6 sym positive
        a.weight 0 +1 out a@0+6
        a.bias 0 +1 bias a@0+6
        c.weight 1 -1 in a@3+3 a@0+3
    """)


def test_halves_that_are_treated_apart_are_two_groups() -> None:
    def split(m: Net, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.split(m.a(x), [2, 4], dim=1)
        return m.c(torch.cat([F.relu(first), F.leaky_relu(second)], 1))

    module = net(split, a=lambda: nn.Linear(5, 6), c=lambda: nn.Linear(6, 2))
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 2 sym positive
        a:2 4 sym positive
        a.weight 0 +1 out a@0+2 a:2@2+4
        a.bias 0 +1 bias a@0+2 a:2@2+4
        c.weight 1 -1 in a@0+2 a:2@2+4
    """)


def test_channels_that_are_shifted_in_space_are_groups_by_shift() -> None:
    def shift(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(m.a(x))
        return m.c(torch.cat([h[:, :2, 1:, :-1], h[:, 2:5, :-1, 1:], h[:, 5:, 1:, :-1]], 1).mean((2, 3)))

    module = net(shift, a=lambda: nn.Conv2d(1, 6, 3), c=lambda: nn.Linear(6, 2))
    assert text(held(module, images()).symmetry).splitlines()[:2] == ["a 3 sym positive", "a:2 3 sym positive"]


def test_gated_linear_units_by_hand() -> None:
    def gated(m: Net, x: torch.Tensor) -> torch.Tensor:
        value, gate = m.a(x).tensor_split(2, dim=-1)
        return m.c(value * gate.sigmoid())

    module = net(gated, a=lambda: nn.Linear(5, 6), c=lambda: nn.Linear(3, 2))
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 3 sym positive
        a:2 3 like(a) none
        a.weight 0 +1 out a@0+3 a:2@3+3
        a.bias 0 +1 bias a@0+3 a:2@3+3
        c.weight 1 -1 in a@0+3
    """)


def test_concatenation_with_the_input_and_with_other_groups() -> None:
    def dense(m: Net, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in (m.a, m.b):
            features.append(F.relu(layer(torch.cat(features, dim=1))))
        return m.c(torch.concat(features, 1).mean((2, 3)))

    module = net(dense, a=lambda: nn.Conv2d(2, 3, 1), b=lambda: nn.Conv2d(5, 4, 1), c=lambda: nn.Linear(9, 2))
    assert text(held(module, images(2)).symmetry) == lines("""
        a 3 sym positive
        b 4 sym positive
        a.weight 0 +1 out a@0+3
        a.bias 0 +1 bias a@0+3
        b.weight 0 +1 out b@0+4
        b.weight 1 -1 in a@2+3
        b.bias 0 +1 bias b@0+4
        c.weight 1 -1 in a@2+3 b@5+4
    """)


def test_a_linear_layer_that_makes_images() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.a(x)).view(-1, 3, 2, 2)),
        a=lambda: nn.Linear(5, 12),
        c=lambda: nn.ConvTranspose2d(3, 1, 2),
    )
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 3 sym positive
        a.weight 0 +1 out a@0+3*4
        a.bias 0 +1 bias a@0+3*4
        c.weight 0 -1 in a@0+3
    """)


def test_channels_that_become_pixels_move_together() -> None:
    for shuffled in (nn.PixelShuffle(2), lambda h: F.pixel_shuffle(h, 2)):
        module = net(
            lambda m, x: m.c(m.shuffled(F.relu(m.a(x)))),
            a=lambda: nn.Conv2d(1, 8, 3),
            shuffled=lambda shuffled=shuffled: shuffled,
            c=lambda: nn.Conv2d(2, 1, 3),
        )
        assert text(held(module, images()).symmetry) == lines("""
            a 2 sym positive
            a.weight 0 +1 out a@0+2*4
            a.bias 0 +1 bias a@0+2*4
            c.weight 1 -1 in a@0+2
        """)


def test_a_channel_shuffle_is_a_permutation() -> None:
    def shuffled(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(m.a(x))
        b, c, height, width = h.size()
        h = h.view(b, 2, c // 2, height, width).transpose(1, 2).contiguous().view(b, -1, height, width)
        return m.c(F.channel_shuffle(h, 3))

    module = net(shuffled, a=lambda: nn.Conv2d(1, 6, 3), c=lambda: nn.Conv2d(6, 2, 1))
    found = text(held(module, images()).symmetry).splitlines()
    assert found[0] == "a 6 sym positive"


def test_tokens_of_images_with_a_class_token_and_positions() -> None:
    def vision(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x).flatten(2).transpose(1, 2)
        h = torch.cat([m.token.expand(h.shape[0], -1, -1), h], dim=1) + m.positions
        h = h + m.up(F.gelu(m.down(m.norm(h))))
        return m.c(h[:, 0])

    module = net(
        vision,
        a=lambda: nn.Conv2d(1, 4, 3, stride=3),
        token=parameter(1, 1, 4),
        positions=parameter(1, 5, 4),
        norm=lambda: nn.LayerNorm(4),
        down=lambda: nn.Linear(4, 3),
        up=lambda: nn.Linear(3, 4),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, images()).symmetry) == lines("""
        a 4 sym none
        norm 4 like(a) positive
        down 3 sym none
        token 2 +1 bias a@0+4
        positions 2 +1 bias a@0+4
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        norm.weight 0 +1 gain norm@0+4
        norm.bias 0 +1 shift norm@0+4
        down.weight 0 +1 out down@0+3
        down.weight 1 -1 in norm@0+4
        down.bias 0 +1 bias down@0+3
        up.weight 0 +1 out a@0+4
        up.weight 1 -1 in down@0+3
        up.bias 0 +1 bias a@0+4
        c.weight 1 -1 in a@0+4
    """)


def test_a_shortcut_padded_in_a_residual_network() -> None:
    traced = held(archs.get("resnet8-pad-3")(), images(3, 8))
    sizes = {group.id: group.n for group in traced.symmetry.groups if traced.symmetry.leader(group.id) == group}
    assert list(sizes.values()) == [16, 16, 32, 16, 64, 32]
    assert traced.notes == ()
