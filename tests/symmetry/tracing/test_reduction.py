"""Sums, means, maxima and pooling, over space and over channels."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.symmetry.tracing.helpers import Case, Net, check, checked_trace, conv, images, linear, lines, net, rows, text

OVER_SPACE = {
    "mean": lambda h: h.mean((2, 3)),
    "mean by name": lambda h: torch.mean(h, dim=(-2, -1)),
    "mean of means": lambda h: h.mean(3).mean(2),
    "sum": lambda h: h.sum(dim=[2, 3]),
    "amax": lambda h: h.amax((2, 3)),
    "amin": lambda h: torch.amin(h, dim=(2, 3)),
    "max": lambda h: h.max(3)[0].max(dim=2).values,
    "std": lambda h: h.std((2, 3)),
    "norm": lambda h: h.norm(dim=(2, 3)),
    "MaxPool2d": nn.Sequential(nn.MaxPool2d(2), nn.Flatten(2), nn.MaxPool1d(4), nn.Flatten()),
    "AvgPool2d": nn.Sequential(nn.AvgPool2d(4), nn.Flatten()),
    "AdaptiveMaxPool2d": nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten()),
    "AdaptiveAvgPool2d": nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten()),
    "F.max_pool2d": lambda h: F.max_pool2d(h, 4).flatten(1),
    "torch.max_pool2d": lambda h: torch.max_pool2d(h, 4).flatten(1),
    "F.avg_pool2d": lambda h: F.avg_pool2d(h, h.size()[3]).view(h.size(0), -1),
    "F.adaptive_max_pool2d": lambda h: F.adaptive_max_pool2d(h, 1).flatten(1),
    "interpolate": lambda h: F.interpolate(h, scale_factor=2, mode="bilinear").mean((2, 3)),
    "Upsample": nn.Sequential(nn.Upsample(scale_factor=2), nn.AvgPool2d(8), nn.Flatten()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OVER_SPACE)
@pytest.mark.sampled(4)
def test_scales_pass_over_space(name: str) -> None:
    module = net(
        lambda m, x: m.c(m.pool(F.relu(m.a(x)))), a=conv(1, 3, 3), pool=lambda: OVER_SPACE[name], c=linear(3, 2)
    )
    assert text(checked_trace(module, images()).symmetry) == lines("a 3 sym positive | a: -> a@0+3 | c: a@0+3 ->")


def test_pooling_in_one_and_three_dimensions() -> None:
    for example, layer, pools in (
        (torch.randn(2, 1, 6), nn.Conv1d, (nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(1))),
        (torch.randn(2, 1, 6, 6, 6), nn.Conv3d, (nn.MaxPool3d(2), nn.AvgPool3d(2), nn.AdaptiveMaxPool3d(1))),
    ):
        module = nn.Sequential(layer(1, 3, 3), *pools, nn.Flatten(), nn.Linear(3, 2))
        assert text(checked_trace(module, example).symmetry).splitlines()[0] == "0 3 sym positive"


@pytest.mark.parametrize(
    "summed",
    [
        lambda h: h.mean(1, keepdim=True),
        lambda h: h.sum(1, keepdim=True),
        lambda h: h.amax(1, keepdim=True),
        lambda h: h.mean(),
    ],
)
def test_over_channels_none_passes_and_all_are_alike(summed) -> None:
    module = net(lambda m, x: (lambda h: m.c(h - summed(h)))(m.a(x)), a=linear(5, 4), c=linear(4, 2))
    traced = checked_trace(module, rows(5))
    assert text(traced.symmetry) == lines("a 4 sym none | a: -> a@0+4 | c: a@0+4 ->")
    assert "sums over channels" in traced.notes[0]


def test_a_norm_over_channels_leaves_what_keeps_it() -> None:
    """Orthogonal matrices that keep the vector along which it is taken away."""
    module = net(lambda m, x: (lambda h: m.c(h - h.norm(2, 1, keepdim=True)))(m.a(x)), a=linear(5, 4), c=linear(4, 2))
    assert text(checked_trace(module, rows(5)).symmetry) == lines("a 4 sym orthogonal_mean | a: -> a@0+4 | c: a@0+4 ->")


def _over_spread(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x)
    return m.c(h / (h.var((2, 3), keepdim=True) + h.pow(2).mean((2, 3), keepdim=True)).sqrt())


CASES = {
    "squares are scaled by squares": Case(
        _over_spread,
        {"a": conv(1, 3, 3), "c": conv(3, 1, 1)},
        images(),
        "a 3 sym positive | a:2 3 like(a) none | a: -> a@0+3 | c: a:2@0+3 ->",
    ),
    "squares that are read keep signs alone": Case(
        lambda m, x: m.c(m.a(x).var((2, 3))),
        {"a": conv(1, 3, 3), "c": linear(3, 2)},
        images(),
        "a 3 sym sign | a:2 3 like(a) none | a: -> a@0+3 | c: a:2@0+3 ->",
        notes=("Group 'a:2' is not scaled*",),
    ),
    "inverses are read with the opposite exponent": Case(
        lambda m, x: m.c(1 / m.a(x)),
        {"a": linear(5, 3), "c": linear(3, 2)},
        rows(5),
        "a 3 sym positive | a: -> a@0+3 | c.weight 1 +1 in a@0+3",
    ),
    "a sum over some channels tells them from the others": Case(
        lambda m, x: (lambda h: m.c(h * torch.sigmoid(h[:, :3].mean(1, keepdim=True))))(F.relu(m.a(x))),
        {"a": linear(5, 5), "c": linear(5, 2)},
        rows(5),
        "a 3 sym none | a:2 2 sym positive | ...",
    ),
    "a sum over stacked values ties them": Case(
        lambda m, x: m.c(torch.stack([F.relu(m.a(x)), F.relu(m.b(x))]).sum(0)),
        {"a": linear(5, 3), "b": linear(5, 3), "c": linear(3, 2)},
        rows(5),
        "a 3 sym positive | a: -> a@0+3 | b: -> a@0+3 | c: a@0+3 ->",
    ),
    "channels that are pooled together move together": Case(
        lambda m, x: m.c(F.max_pool1d(F.relu(m.a(x))[:, None], 2)[:, 0]),
        {"a": linear(5, 4), "c": linear(2, 2)},
        rows(5),
        "a 1 sym positive | a: -> a@0+1*4 | c: a@0+1*2 ->",
        notes=("Channels that 'max_pool1d' (test_reduction.py line *", "..."),
    ),
    "maxout ties the pieces of a unit": Case(
        lambda m, x: m.c(m.a(x).view(-1, 3, 2).amax(2)),
        {"a": linear(5, 6), "c": linear(3, 2)},
        rows(5),
        "a 3 sym positive | a: -> a@0+3*2 | c: a@0+3 ->",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_tables(name: str) -> None:
    check(CASES[name])
