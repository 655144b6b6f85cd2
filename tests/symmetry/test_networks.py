"""Tables of other networks, verified as every table must be: a random element leaves float64 outputs alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ckptzoo.errors import SymmetryError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply


def _out(tensor: str, *segments: Segment, blocks: int = 1) -> AxisAction:
    return AxisAction(tensor, 1 if blocks > 1 else 0, segments, 1, True, "out", blocks)


def _in(tensor: str, *segments: Segment) -> AxisAction:
    return AxisAction(tensor, 1, segments, -1, True, "in")


def _vector(tensor: str, group: str, n: int, exponent: int = 1, role: str = "bias", eps: float = 0.0) -> AxisAction:
    return AxisAction(tensor, 0, (Segment(group, 0, 1, n),), exponent, False, role, eps=eps)


class Flattened(nn.Module):
    """conv (1 -> 3), ReLU, flatten of 4x4 maps, beside their pooled copy: one group twice with two inners."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mid, self.out = nn.Conv2d(1, 3, 3), nn.Linear(3 * 16 + 3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.conv(x))
        both = torch.cat([h.flatten(1), h.amax((2, 3))], 1)
        return self.out(F.leaky_relu(self.mid(both), 0.1))

    table = Symmetry(
        (Group("c", 3, Sym(), "positive"), Group("m", 4, Sym(), "positive")),
        (
            _out("conv.weight", Segment("c", 0, 1, 3)),
            _vector("conv.bias", "c", 3),
            _in("mid.weight", Segment("c", 0, 16, 3), Segment("c", 48, 1, 3)),
            _out("mid.weight", Segment("m", 0, 1, 4)),
            _vector("mid.bias", "m", 4),
            _in("out.weight", Segment("m", 0, 1, 4)),
        ),
    )


class Padded(nn.Module):
    """A residual stream of 4 channels padded to 8, two before and two after: the new group in two runs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide, self.out = nn.Linear(3, 4), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.stem(x))
        return self.out(F.relu(F.pad(h, (2, 2)) + self.wide(h)))

    _stream = (Segment("new", 0, 1, 2), Segment("s", 2, 1, 4), Segment("new", 6, 1, 2))
    table = Symmetry(
        (Group("s", 4, Sym(), "positive"), Group("new", 4, Sym(), "positive")),
        (
            _out("stem.weight", Segment("s", 0, 1, 4)),
            _vector("stem.bias", "s", 4),
            _out("wide.weight", *_stream),
            _in("wide.weight", Segment("s", 0, 1, 4)),
            AxisAction("wide.bias", 0, _stream, 1, False, "bias"),
            _in("out.weight", *_stream),
        ),
    )


class Odd(nn.Module):
    """tanh: signs; GELU: permutations alone."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 5), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(F.gelu(self.b(torch.tanh(self.a(x)))))

    table = Symmetry(
        (Group("t", 5, Sym(), "sign"), Group("g", 6, Sym(), "none")),
        (
            _out("a.weight", Segment("t", 0, 1, 5)),
            _vector("a.bias", "t", 5),
            _in("b.weight", Segment("t", 0, 1, 5)),
            _out("b.weight", Segment("g", 0, 1, 6)),
            _vector("b.bias", "g", 6),
            _in("c.weight", Segment("g", 0, 1, 6)),
        ),
    )


class Grouped(nn.Module):
    """A transposed convolution in two groups (outputs within blocks), then a depthwise one: two outputs a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 2)
        self.up = nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.deep = nn.Conv2d(6, 12, 2, groups=6)
        self.out = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.up(F.relu(self.stem(x))))
        return self.out(F.relu(self.deep(h)).mean((2, 3)))

    table = Symmetry(
        (Group("s", 4, Wreath("up", 2, 2), "positive"), Group("u", 6, Wreath("up", 2, 3), "positive")),
        (
            _out("stem.weight", Segment("s", 0, 1, 4)),
            _vector("stem.bias", "s", 4),
            AxisAction("up.weight", 0, (Segment("s", 0, 1, 4),), -1, True, "in"),
            _out("up.weight", Segment("u", 0, 1, 6), blocks=2),
            _vector("up.bias", "u", 6),
            AxisAction("deep.weight", 0, (Segment("u", 0, 2, 6),), -1, True, "in"),
            AxisAction("deep.bias", 0, (Segment("u", 0, 2, 6),), 0, False, "bias"),
            AxisAction("out.weight", 1, (Segment("u", 0, 2, 6),), 0, True, "in"),
        ),
    )


class Normalised(nn.Module):
    """Evaluation-mode BatchNorm: scales before it, of any sign, and after it; one permutation for both."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        nn.init.normal_(self.norm.running_mean)
        nn.init.constant_(self.norm.running_var, 3e-6)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.relu(self.norm(self.conv(x))).mean((2, 3)))

    table = Symmetry(
        (Group("pre", 4, Wreath("norm", 4, 1), "nonzero"), Group("post", 4, Wreath("norm", 4, 1), "positive")),
        (
            _out("conv.weight", Segment("pre", 0, 1, 4)),
            _vector("conv.bias", "pre", 4),
            _vector("norm.running_mean", "pre", 4, role="mean"),
            _vector("norm.running_var", "pre", 4, 2, "variance", 1e-5),
            replace(_vector("norm.weight", "post", 4, role="gain"), signs=(Segment("pre", 0, 1, 4),)),
            _vector("norm.bias", "post", 4, role="shift"),
            _in("out.weight", Segment("post", 0, 1, 4)),
        ),
    )


INPUTS = {Flattened: (1, 6, 6), Padded: (3,), Odd: (3,), Grouped: (1, 4, 4), Normalised: (1, 6, 6)}


def _model(kind: type[nn.Module], seed: int) -> tuple[nn.Module, dict[str, np.ndarray], torch.Tensor]:
    torch.manual_seed(seed)
    model = kind().double()
    stack = {name: value.numpy()[None] for name, value in model.state_dict().items()}
    return model, stack, torch.randn(16, *INPUTS[kind], dtype=torch.float64)


def _outputs(model: nn.Module, stack: dict[str, np.ndarray], x: torch.Tensor) -> np.ndarray:
    state = {name: torch.from_numpy(np.array(value[0])) for name, value in stack.items()}
    with torch.no_grad():
        return torch.func.functional_call(model, state, (x,)).numpy()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", [Flattened, Padded, Odd, Grouped, Normalised])
@pytest.mark.sampled(2)
def test_a_random_element_leaves_the_function_alone(kind: type[nn.Module], seed: int) -> None:
    model, stack, x = _model(kind, seed)
    kind.table.check(Architecture.of(model.state_dict(), name="network"))
    rng = np.random.default_rng(seed)
    element = GroupElement.random(kind.table, 1, rng)
    if kind is Normalised:
        element.scales["pre"][:] = np.exp(rng.uniform(-0.1, 2.0, (1, 4)))
    moved = apply(element, stack, kind.table)
    assert any((moved[name] != stack[name]).any() for name in stack)
    expected, found = _outputs(model, stack, x), _outputs(model, moved, x)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_integer_tensors_are_permuted_and_never_scaled() -> None:
    table = Symmetry(
        (Group("a", 3, Sym(), "positive"),),
        (
            _out("w", Segment("a", 0, 1, 3)),
            AxisAction("count", 0, (Segment("a", 0, 1, 3),), 0, False, "mean"),
        ),
    )
    element = GroupElement({"a": np.array([[2, 0, 1]])}, {"a": np.array([[2.0, 3.0, 4.0]])})
    made = apply(element, {"w": np.ones((1, 3, 1), np.float16), "count": np.array([[10, 11, 12]])}, table)
    assert made["count"].tolist() == [[12, 10, 11]] and made["count"].dtype == np.int64
    assert made["w"].ravel().tolist() == [2, 3, 4] and made["w"].dtype == np.float32


def test_a_scale_that_would_make_a_running_variance_negative_is_refused() -> None:
    _, stack, _ = _model(Normalised, 0)
    element = GroupElement.identity(Normalised.table, 1)
    element.scales["pre"][:] = 0.1
    with pytest.raises(SymmetryError, match=r"running_var.*at least sqrt"):
        apply(element, stack, Normalised.table)
