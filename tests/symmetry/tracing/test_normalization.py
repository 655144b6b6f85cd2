"""Normalisations: as modules, as functions, and written out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.symmetry.tracing.helpers import Net, held, images, lines, net, parameter, rows, text


def test_batch_norm_has_scales_before_and_after_it() -> None:
    for example, kind, axes in (
        (rows(5), nn.BatchNorm1d, ()),
        (torch.randn(2, 5, 4), nn.BatchNorm1d, (2,)),
        (torch.randn(2, 5, 4, 4), nn.BatchNorm2d, (2, 3)),
        (torch.randn(2, 5, 3, 3, 3), nn.BatchNorm3d, (2, 3, 4)),
    ):
        conv = {2: nn.Linear, 3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[example.ndim]
        sizes = (5, 4) if example.ndim == 2 else (5, 4, 2)
        module = net(
            lambda m, x, axes=axes: m.c(F.relu(m.n(m.a(x))).mean(axes) if axes else F.relu(m.n(m.a(x)))),
            a=lambda conv=conv, sizes=sizes: conv(*sizes),
            n=lambda kind=kind: kind(4, eps=1e-3),
            c=lambda: nn.Linear(4, 2),
        )
        traced = held(module, example)
        assert traced.notes == ()
        assert text(traced.symmetry) == lines("""
            a 4 sym positive
            n 4 like(a) positive
            a.weight 0 +1 out a@0+4
            a.bias 0 +1 bias a@0+4
            n.weight 0 +1 gain n@0+4
            n.bias 0 +1 shift n@0+4
            n.running_mean 0 +1 mean a@0+4
            n.running_var 0 +2 variance a@0+4 eps=0.001
            c.weight 1 -1 in n@0+4
        """)


def test_batch_norm_without_gains_leaves_nothing_to_scale_after_it() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.n(m.a(x)))),
        a=lambda: nn.Linear(5, 4),
        n=lambda: nn.BatchNorm1d(4, affine=False),
        c=lambda: nn.Linear(4, 2),
    )
    traced = held(module, rows(5))
    assert text(traced.symmetry) == lines("""
        a 4 sym positive
        a:2 4 like(a) none
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        n.running_mean 0 +1 mean a@0+4
        n.running_var 0 +2 variance a@0+4 eps=1e-05
        c.weight 1 -1 in a:2@0+4
    """)
    assert traced.notes == ("Group 'a:2' is not scaled: no parameter gives it a scale.",)


def test_batch_norm_without_statistics_takes_the_scale_away() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.n(m.a(x)))),
        a=lambda: nn.Linear(5, 4),
        n=lambda: nn.BatchNorm1d(4, track_running_stats=False),
        c=lambda: nn.Linear(4, 2),
    )
    traced = held(module, rows(5))
    assert text(traced.symmetry) == lines("""
        a 4 sym none
        n 4 like(a) positive
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        n.weight 0 +1 gain n@0+4
        n.bias 0 +1 shift n@0+4
        c.weight 1 -1 in n@0+4
    """)
    assert "normalises by the batch's own variance" in traced.notes[0]


def test_batch_norm_of_the_input() -> None:
    module = net(lambda m, x: m.c(m.n(x)), n=lambda: nn.BatchNorm1d(3), c=lambda: nn.Linear(3, 2))
    traced = held(module, rows(3))
    assert text(traced.symmetry) == lines("""
        n 3 fixed positive
        n.weight 0 +1 gain n@0+3
        n.bias 0 +1 shift n@0+3
        c.weight 1 -1 in n@0+3
    """)
    assert traced.notes[0].startswith("Group 'n' stays in place: 'batch_norm' (n, ")


def test_batch_norm_as_a_function() -> None:
    module = net(
        lambda m, x: m.c(
            F.relu(F.batch_norm(m.a(x), m.mean, m.running_var, m.gain, m.shift, training=m.training, eps=0.1))
        ),
        a=lambda: nn.Linear(5, 4),
        mean=lambda: torch.randn(4),
        running_var=lambda: torch.rand(4) + 0.5,
        gain=parameter(4),
        shift=parameter(4),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 4 sym positive
        gain 4 like(a) positive
        gain 0 +1 gain gain@0+4
        shift 0 +1 shift gain@0+4
        mean 0 +1 mean a@0+4
        running_var 0 +2 variance a@0+4 eps=0.1
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        c.weight 1 -1 in gain@0+4
    """)


LAYER = """
    a 4 sym none
    n 4 like(a) positive
    a.weight 0 +1 out a@0+4
    a.bias 0 +1 bias a@0+4
    n.weight 0 +1 gain n@0+4
    n.bias 0 +1 shift n@0+4
    c.weight 1 -1 in n@0+4
"""


def test_layer_norm_over_features() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.n(m.a(x)))),
        a=lambda: nn.Linear(5, 4),
        n=lambda: nn.LayerNorm(4),
        c=lambda: nn.Linear(4, 2),
    )
    for example in (rows(5), torch.randn(2, 3, 5)):
        traced = held(module, example)
        assert text(traced.symmetry) == lines(LAYER)
        assert "'layer_norm' (n, " in traced.notes[0] and "normalises beside eps" in traced.notes[0]


def test_layer_norm_as_a_function_and_rms_norm() -> None:
    module = net(
        lambda m, x: m.c(F.relu(F.rms_norm(F.layer_norm(m.a(x), (4,), m.w, m.b), (4,), m.v))),
        a=lambda: nn.Linear(5, 4),
        w=parameter(4),
        b=parameter(4),
        v=parameter(4),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, rows(5)).symmetry) == lines("""
        a 4 sym none
        v 4 like(a) positive
        w 0 +1 gain a@0+4
        b 0 +1 shift a@0+4
        v 0 +1 gain v@0+4
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        c.weight 1 -1 in v@0+4
    """)


def test_layer_norm_over_channels_and_space() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        n=lambda: nn.LayerNorm((4, 4, 4)),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, images()).symmetry) == lines(LAYER)


def test_layer_norm_over_space_alone_has_no_gain_for_channels() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        n=lambda: nn.LayerNorm((4, 4)),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, images()).symmetry) == lines("""
        a 4 sym none
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        c.weight 1 -1 in a@0+4
    """)


@pytest.mark.parametrize(("groups", "perm"), [(1, "sym"), (2, "wreath(n,2,2)"), (4, "sym")])
def test_group_norm_holds_blocks_together(groups: int, perm: str) -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        n=lambda: nn.GroupNorm(groups, 4),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, images()).symmetry) == lines(LAYER.replace("sym", perm))


def test_instance_norm_treats_channels_apart() -> None:
    module = net(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).amax((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        n=lambda: nn.InstanceNorm2d(4, affine=True),
        c=lambda: nn.Linear(4, 2),
    )
    assert text(held(module, images()).symmetry) == lines(LAYER)


class FilterResponse(nn.Module):
    """Filter response normalisation and its thresholded linear unit (arXiv 1911.09737, equations 1 to 4)."""

    def __init__(self, n: int, spelling: int) -> None:
        super().__init__()
        shape = (1, n, 1, 1)
        self.gamma, self.beta, self.tau = (nn.Parameter(torch.randn(shape)) for _ in range(3))
        self.eps = nn.Parameter(torch.full(shape, 1e-3)) if spelling % 2 else 1e-3
        self.spelling = spelling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = (x.pow(2), x * x, torch.square(x), x**2)[self.spelling]
        nu = square.mean(dim=[2, 3], keepdim=True)
        eps = self.eps.abs() + 1e-6 if isinstance(self.eps, nn.Parameter) else self.eps
        if self.spelling == 0:
            y = x * torch.rsqrt(nu + eps)
        elif self.spelling == 1:
            y = x / torch.sqrt(nu + eps)
        elif self.spelling == 2:
            y = x / (nu + eps).sqrt()
        else:
            y = x * (nu + eps) ** -0.5
        return torch.max(self.gamma * y + self.beta, self.tau)


@pytest.mark.parametrize("spelling", range(4))
def test_filter_response_normalisation(spelling: int) -> None:
    module = net(
        lambda m, x: m.c(m.n(m.a(x)).mean((2, 3))),
        a=lambda: nn.Conv2d(1, 4, 3),
        n=lambda: FilterResponse(4, spelling),
        c=lambda: nn.Linear(4, 2),
    )
    learned = "n.eps 1 +1 bias a@0+4" if spelling % 2 else ""
    expected = lines(f"""
        a 4 sym none
        n 4 like(a) positive
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        n.gamma 1 +1 gain n@0+4
        n.beta 1 +1 bias n@0+4
        n.tau 1 +1 bias n@0+4
        {learned}
        c.weight 1 -1 in n@0+4
    """)
    assert text(held(module, images()).symmetry) == expected.replace("\n\n", "\n")


def test_a_normalisation_without_eps_keeps_the_scale_before_it() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x)
        return m.c(F.relu(h / h.abs().mean((2, 3), keepdim=True) * m.gain))

    module = net(forward, a=lambda: nn.Conv2d(1, 4, 3), gain=parameter(4, 1, 1), c=lambda: nn.Conv2d(4, 2, 1))
    assert text(held(module, images()).symmetry) == lines("""
        a 4 sym positive
        gain 4 like(a) positive
        gain 0 +1 gain gain@0+4
        a.weight 0 +1 out a@0+4
        a.bias 0 +1 bias a@0+4
        c.weight 1 -1 in gain@0+4
    """)
