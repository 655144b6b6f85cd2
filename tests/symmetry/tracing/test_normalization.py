"""Normalisations: as modules, as functions, and written out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.symmetry import trace
from tests.symmetry.tracing.helpers import Case, Net, check, conv, images, linear, net, parameter, part, rows


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


def _divided_by_mean(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x)
    return m.c(F.relu(h / h.abs().mean((2, 3), keepdim=True) * m.gain))


LAYER = """
    a 4 sym none
    n 4 like(a) positive
    a: -> a@0+4
    n.weight 0 +1 gain n@0+4
    n.bias 0 +1 shift n@0+4
    c: n@0+4 ->
"""
ALONE = LAYER.replace("sym none", "sym sign").replace("gain n@0+4", "gain n@0+4 signs a@0+4")
"""The same where every channel is normalised alone, so that its gain can take its sign."""
FILTERED = ("n@0+4", "n:2@0+4")
CASES = {
    "batch norm without gains leaves nothing to scale after it": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x)))),
        {"a": linear(5, 4), "n": part(nn.BatchNorm1d, 4, affine=False), "c": linear(4, 2)},
        rows(5),
        """
        a 4 sym positive
        a:2 4 like(a) none
        a: -> a@0+4
        n.running_mean 0 +1 mean a@0+4
        n.running_var 0 +2 variance a@0+4 eps=1e-05
        c: a:2@0+4 ->
        """,
        notes=("Group 'a:2' is not scaled: no parameter gives it a scale.",),
    ),
    "batch norm without statistics leaves signs alone": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x)))),
        {"a": linear(5, 4), "n": part(nn.BatchNorm1d, 4, track_running_stats=False), "c": linear(4, 2)},
        rows(5),
        """
        a 4 sym sign
        n 4 like(a) positive
        a: -> a@0+4
        n.weight 0 +1 gain n@0+4 signs a@0+4
        n.bias 0 +1 shift n@0+4
        c: n@0+4 ->
        """,
        notes=(),
    ),
    "batch norm of the input": Case(
        lambda m, x: m.c(m.n(x)),
        {"n": part(nn.BatchNorm1d, 3), "c": linear(3, 2)},
        rows(3),
        "n 3 fixed positive | n.weight 0 +1 gain n@0+3 | n.bias 0 +1 shift n@0+3 | c: n@0+3 ->",
        notes=("Group 'n' stays in place: 'batch_norm' (n, *", "..."),
    ),
    "batch norm as a function": Case(
        lambda m, x: m.c(
            F.relu(F.batch_norm(m.a(x), m.mean, m.running_var, m.gain, m.shift, training=m.training, eps=0.1))
        ),
        {
            "a": linear(5, 4),
            "mean": lambda: torch.randn(4),
            "running_var": lambda: torch.rand(4) + 0.5,
            "gain": parameter(4),
            "shift": parameter(4),
            "c": linear(4, 2),
        },
        rows(5),
        """
        a 4 sym nonzero
        gain 4 like(a) positive
        gain 0 +1 gain gain@0+4 signs a@0+4
        shift 0 +1 shift gain@0+4
        mean 0 +1 mean a@0+4
        running_var 0 +2 variance a@0+4 eps=0.1
        a: -> a@0+4
        c: gain@0+4 ->
        """,
    ),
    "layer norm as a function and rms norm": Case(
        lambda m, x: m.c(F.relu(F.rms_norm(F.layer_norm(m.a(x), (4,), m.w, m.b), (4,), m.v))),
        {"a": linear(5, 4), "w": parameter(4), "b": parameter(4), "v": parameter(4), "c": linear(4, 2)},
        rows(5),
        """
        a 4 sym none
        v 4 like(a) positive
        w 0 +1 gain a@0+4
        b 0 +1 shift a@0+4
        v 0 +1 gain v@0+4
        a: -> a@0+4
        c: v@0+4 ->
        """,
    ),
    "layer norm over space alone has no gain for channels": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).mean((2, 3))),
        {"a": conv(1, 4, 3), "n": part(nn.LayerNorm, (4, 4)), "c": linear(4, 2)},
        images(),
        "a 4 sym none | a: -> a@0+4 | c: a@0+4 ->",
    ),
    "a normalisation without eps keeps the scale before it": Case(
        _divided_by_mean,
        {"a": conv(1, 4, 3), "gain": parameter(4, 1, 1), "c": conv(4, 2, 1)},
        images(),
        "a 4 sym positive | gain 4 like(a) positive | gain 0 +1 gain gain@0+4 | a: -> a@0+4 | c: gain@0+4 ->",
    ),
    "layer norm over channels and space": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).mean((2, 3))),
        {"a": conv(1, 4, 3), "n": part(nn.LayerNorm, (4, 4, 4)), "c": linear(4, 2)},
        images(),
        LAYER,
    ),
    "instance norm treats channels apart": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).amax((2, 3))),
        {"a": conv(1, 4, 3), "n": part(nn.InstanceNorm2d, 4, affine=True), "c": linear(4, 2)},
        images(),
        ALONE,
    ),
}
DENSE = {"a": linear(5, 4), "n": part(nn.BatchNorm1d, 4, eps=1e-3), "c": linear(4, 2)}
NORMALISED = """
    a 4 sym {}
    n 4 like(a) positive
    a: -> a@0+4
    n.weight 0 +1 gain n@0+4{}
    n.bias 0 +1 shift n@0+4
    n.running_mean 0 +1 mean a@0+4
    n.running_var 0 +2 variance a@0+4 eps=0.001
    c: n@0+4 ->
"""
ONE_SCALE = """
    a 4 sym positive
    a: -> a@0+4
    n.weight 0 +1 gain a@0+4
    n.bias 0 +1 shift a@0+4
    n.running_mean 0 +1 mean a@0+4
    n.running_var 0 +2 variance a@0+4 eps=0.001
    c: a@0+4 ->
"""
"""What the batch norm reads and what it writes are scaled together."""
CASES |= {
    "what a ReLU writes has no sign that a batch norm could take": Case(
        lambda m, x: m.c(m.n(F.relu(m.a(x)))), DENSE, rows(5), NORMALISED.format("positive", "")
    ),
    "what a tanh writes has a sign alone, which the batch norm behind it takes": Case(
        lambda m, x: m.c(m.n(torch.tanh(m.a(x)))), DENSE, rows(5), NORMALISED.format("sign", " signs a@0+4")
    ),
    "a gain that is also used elsewhere takes no sign": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x)) * m.n.weight)),
        DENSE,
        rows(5),
        NORMALISED.replace("n 4 like(a) positive", "n 4 like(a) none").format("positive", ""),
    ),
    "a batch norm that is used twice ties the signs of both": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x))) + F.relu(m.n(m.b(x)))),
        DENSE | {"b": linear(5, 4)},
        rows(5),
        """
        a 4 sym nonzero
        n 4 like(a) positive
        a: -> a@0+4
        n.weight 0 +1 gain n@0+4 signs a@0+4
        n.bias 0 +1 shift n@0+4
        n.running_mean 0 +1 mean a@0+4
        n.running_var 0 +2 variance a@0+4 eps=0.001
        c: n@0+4 ->
        b: -> a@0+4
        """,
    ),
    "what a batch norm writes beside what it reads has one scale": Case(
        lambda m, x: m.c(m.n(h := m.a(x)) + h),
        DENSE,
        rows(5),
        ONE_SCALE,
    ),
    "a batch norm of its own results": Case(
        lambda m, x: m.c(m.n(m.n(m.a(x)))),
        DENSE,
        rows(5),
        ONE_SCALE,
    ),
    "channels of zeros in front of a batch norm without statistics": Case(
        lambda m, x: m.c(F.relu(m.n(F.pad(m.a(x), (0, 2))))),
        {"a": linear(5, 4), "n": part(nn.BatchNorm1d, 6, track_running_stats=False), "c": linear(6, 2)},
        rows(5),
        "a 4 sym sign | n 4 like(a) positive\n...",
    ),
    "features that two batch norms read, one of them beside others": Case(
        lambda m, x: m.c(F.relu(m.m(torch.cat([h := m.a(x), m.b(F.relu(m.n(h)))], 1)))),
        DENSE | {"b": linear(4, 3), "m": part(nn.BatchNorm1d, 7, eps=1e-3), "c": linear(7, 2)},
        rows(5),
        """
        a 4 sym nonzero | n 4 like(a) positive | b 3 sym nonzero | m 4 like(a) positive | m:2 3 like(b) positive
        a: -> a@0+4
        n.weight 0 +1 gain n@0+4 signs a@0+4
        n.bias 0 +1 shift n@0+4
        n.running_mean 0 +1 mean a@0+4
        n.running_var 0 +2 variance a@0+4 eps=0.001
        c: m@0+4 m:2@4+3 ->
        b: n@0+4 -> b@0+3
        m.weight 0 +1 gain m@0+4 m:2@4+3 signs a@0+4 b@4+3
        m.bias 0 +1 shift m@0+4 m:2@4+3
        m.running_mean 0 +1 mean a@0+4 b@4+3
        m.running_var 0 +2 variance a@0+4 b@4+3 eps=0.001
        """,
    ),
}
CASES |= {
    f"layer norm over features of {example.ndim} axes": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x)))),
        {"a": linear(5, 4), "n": part(nn.LayerNorm, 4), "c": linear(4, 2)},
        example,
        LAYER,
        notes=("*'layer_norm' (n, *normalises beside eps*", "..."),
    )
    for example in (rows(5), torch.randn(2, 3, 5))
}
CASES |= {
    f"group norm of {groups} groups": Case(
        lambda m, x: m.c(F.relu(m.n(m.a(x))).mean((2, 3))),
        {"a": conv(1, 4, 3), "n": part(nn.GroupNorm, groups, 4), "c": linear(4, 2)},
        images(),
        table,
    )
    for groups, table in ((1, LAYER), (2, LAYER.replace("sym", "wreath(n,2,2)")), (4, ALONE))
}
BATCH = (
    (rows(5), part(nn.Linear, 5, 4), nn.BatchNorm1d, lambda h: h),
    (torch.randn(2, 5, 4), part(nn.Conv1d, 5, 4, 2), nn.BatchNorm1d, lambda h: h.mean(2)),
    (torch.randn(2, 5, 4, 4), part(nn.Conv2d, 5, 4, 2), nn.BatchNorm2d, lambda h: h.mean((2, 3))),
    (torch.randn(2, 5, 3, 3, 3), part(nn.Conv3d, 5, 4, 2), nn.BatchNorm3d, lambda h: h.mean((2, 3, 4))),
)
CASES |= {
    f"batch norm of {example.ndim} axes has scales before and after it": Case(
        lambda m, x, pooled=pooled: m.c(pooled(F.relu(m.n(m.a(x))))),
        {"a": layer, "n": part(kind, 4, eps=1e-3), "c": linear(4, 2)},
        example,
        """
        a 4 sym nonzero
        n 4 like(a) positive
        a: -> a@0+4
        n.weight 0 +1 gain n@0+4 signs a@0+4
        n.bias 0 +1 shift n@0+4
        n.running_mean 0 +1 mean a@0+4
        n.running_var 0 +2 variance a@0+4 eps=0.001
        c: n@0+4 ->
        """,
        notes=(),
    )
    for example, layer, kind, pooled in BATCH
}
CASES |= {
    f"filter response normalisation {spelling}": Case(
        lambda m, x: m.c(m.n(m.a(x)).mean((2, 3))),
        {"a": conv(1, 4, 3), "n": part(FilterResponse, 4, spelling), "c": linear(4, 2)},
        images(),
        f"""
        a 4 sym sign
        {"n 4 like(a) none | n:2 4 like(a) positive" if spelling % 2 else "n 4 like(a) positive"}
        a: -> a@0+4
        n.gamma 1 +1 gain {FILTERED[spelling % 2]} signs a@0+4
        n.beta 1 +1 bias {FILTERED[spelling % 2]}
        n.tau 1 +1 bias {FILTERED[spelling % 2]}{" | n.eps 1 +1 bias n@0+4" if spelling % 2 else ""}
        c: {FILTERED[spelling % 2]} ->
        """,
    )
    for spelling in range(4)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(4)
def test_tables(name: str) -> None:
    check(CASES[name])


def test_one_channel_that_a_batch_norm_takes_twice() -> None:
    """Two gains take its sign; nothing permutes it."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x)
        return m.c(m.bn(torch.cat([h, -2 * h], 1)).mean((2, 3)))

    made = net(forward, a=conv(2, 1, 3, padding=1), bn=part(nn.BatchNorm2d, 2), c=linear(2, 2))
    table = trace(made, torch.randn(2, 2, 4, 4)).symmetry
    assert [(group.n, group.scale) for group in table.groups] == [(1, "nonzero"), (1, "positive"), (1, "positive")]
    (gain,) = (action for action in table.actions if action.signs)
    assert (gain.tensor, sum(segment.inner * segment.count for segment in gain.signs)) == ("bn.weight", 2)
