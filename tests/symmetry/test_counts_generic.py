"""Counts against generic networks: every tuple of permutations tried, and the rank of the Jacobian."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from ckptzoo import archs
from ckptzoo.archs.draft import Channels, Draft, channels
from ckptzoo.schema.groups import AxisAction, Group, Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import count

INPUTS = np.random.default_rng(0).standard_normal((3, 8))
"""Eight inputs of three features, as columns."""


def _perms(n: int) -> np.ndarray:
    return np.array(list(itertools.permutations(range(n))))


def _tuples(*sites: np.ndarray) -> list[np.ndarray]:
    """Every choice of one row at each site: P rows a site."""
    index = np.indices([len(site) for site in sites]).reshape(len(sites), -1)
    return [site[at] for site, at in zip(sites, index, strict=True)]


def _layer(rng: np.random.Generator, n: int, n_in: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((n, n_in)), rng.standard_normal((n, 1))


def _moved(weight: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return weight[rows[:, :, None], columns[:, None, :]]


def _unchanged(hidden: np.ndarray, reads: np.ndarray, rng: np.random.Generator) -> int:
    """Of P hidden layers (P, n, B), the first as it was, under all orders of the head's columns: how many stay."""
    head = rng.standard_normal(hidden.shape[1])
    made = np.einsum("pnb,qn->pqb", hidden, head[reads])
    return int((np.abs(made - made[0, 0]).max(axis=2) < 1e-9).sum())


def _act(values: np.ndarray) -> np.ndarray:
    """Softplus: an activation under which no unit is ever dead, as permutations do not care which one it is."""
    return np.logaddexp(0, values)


@pytest.mark.parametrize("hidden", [(6,), (3, 3), (2, 4), (3, 2, 2)])
def test_dense_networks(hidden: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    layers = [_layer(rng, n, n_in) for n_in, n in itertools.pairwise((3, *hidden))]
    sites = [_perms(hidden[0])]
    for n_in, n in itertools.pairwise(hidden):
        sites += [_perms(n_in), _perms(n)]
    first, *others = _tuples(*sites)
    values = _act((layers[0][0] @ INPUTS + layers[0][1])[first])
    for (weight, bias), columns, rows in zip(layers[1:], others[::2], others[1::2], strict=True):
        values = _act(_moved(weight, rows, columns) @ values + bias[rows])
    name = "-".join(map(str, ("mlp", 3, *hidden, 1)))
    found = _unchanged(values, _perms(hidden[-1]), rng)
    assert found == count(name).permutations == math.prod(map(math.factorial, hidden))


@pytest.mark.slow
@pytest.mark.parametrize(("g", "k_in", "k"), [(2, 2, 2), (2, 1, 3), (3, 1, 1), (3, 1, 2), (2, 3, 1)])
@pytest.mark.sampled(2)
def test_grouped_convolutions(g: int, k_in: int, k: int) -> None:
    """1x1 kernels on one pixel: a stem, a convolution in g groups, a head.

    All orders of the stem's rows, of the convolution's rows, of its columns within each group, of the head's columns.
    """
    rng = np.random.default_rng(2)
    n_in, n = g * k_in, g * k
    (stem, bias), (grouped, shift) = _layer(rng, n_in, 3), _layer(rng, n, k_in)
    within = [np.concatenate(item) for item in itertools.product(_perms(k_in), repeat=g)]
    first, rows, inside = _tuples(_perms(n_in), _perms(n), np.array(within).reshape(-1, g, k_in))
    columns = np.repeat(inside, k, axis=1)
    blocks = _act((stem @ INPUTS + bias)[first]).reshape(len(first), g, k_in, -1)
    kernels = np.take_along_axis(grouped[rows], columns, axis=2).reshape(len(rows), g, k, k_in)
    values = _act((kernels @ blocks).reshape(len(rows), n, -1) + shift[rows])
    table = Symmetry(
        (Group("in", n_in, Wreath("o", g, k_in), "positive"), Group("out", n, Wreath("o", g, k), "positive")),
        (
            AxisAction("stem", 0, (Segment("in", 0, 1, n_in),), 1, True, "out"),
            AxisAction("conv", 0, (Segment("out", 0, 1, n),), 1, True, "out"),
            AxisAction("conv", 1, (Segment("in", 0, 1, n_in),), -1, True, "in", blocks=g),
            AxisAction("head", 1, (Segment("out", 0, 1, n),), -1, True, "in"),
        ),
    )
    expected = math.factorial(g) * math.factorial(k_in) ** g * math.factorial(k) ** g
    assert _unchanged(values, _perms(n), rng) == count(table).permutations == expected


def test_residual_networks() -> None:
    """A stream of 3 that a stem and a block of 2 inner channels write, and that the block and a head read."""
    rng = np.random.default_rng(3)
    (stem, a), (inner, b), (back, c) = _layer(rng, 3, 3), _layer(rng, 2, 3), _layer(rng, 3, 2)
    written, read, rows, columns, joined = _tuples(*map(_perms, (3, 3, 2, 2, 3)))
    stream = _act((stem @ INPUTS + a)[written])
    hidden = _act(_moved(inner, rows, read) @ stream + b[rows])
    values = _act(stream + _moved(back, joined, columns) @ hidden + c[joined])
    draft = Draft()
    draft.linear("stem", Channels(3), channels("stream", 3))
    draft.linear("inner", channels("stream", 3), channels("inner", 2))
    draft.linear("back", channels("inner", 2), channels("stream", 3))
    draft.linear("head", channels("stream", 3), Channels(1))
    table = draft.finish("residual", (3,))[1]
    assert _unchanged(values, _perms(3), rng) == count(table).permutations == 12


def _nullity(model: nn.Module, *batches: torch.Tensor, softmax: bool) -> int:
    """Dimension of the changes of all weights and statistics under which the outputs stay to first order.

    Generic where every unit is on for some inputs and off for others, as under the seeds below.
    """
    state = {key: value for key, value in model.state_dict().items() if value.is_floating_point()}

    def outputs(*values: torch.Tensor) -> torch.Tensor:
        copies = {key: value * 1 for key, value in zip(state, values, strict=True)}
        made = torch.cat([torch.func.functional_call(model, copies, (batch,)) for batch in batches])
        return (made.log_softmax(1) if softmax else made).ravel()

    parts = torch.autograd.functional.jacobian(outputs, tuple(state.values()), vectorize=True)
    matrix = torch.cat([part.flatten(1) for part in parts], 1)
    assert matrix.shape[0] > matrix.shape[1]
    values = torch.linalg.svdvals(matrix / (matrix.norm(dim=0) + 1e-300))
    small = int((values < 1e-10 * values[0]).sum())
    assert values[-small - 1] > 1e-6 * values[0]
    return small


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp-4-3", "mlp-4-5-3", "mlp-4-5-4-3", "mlp-tanh-4-5-3"])
def test_scales_and_softmax_of_perceptrons_are_the_null_space_of_the_jacobian(name: str) -> None:
    torch.manual_seed(1)
    model, inputs = archs.get(name)().double(), torch.randn(200, 4, dtype=torch.float64)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    found = count(name)
    assert _nullity(model, inputs, softmax=False) == found.scaling_train
    assert _nullity(model, inputs, softmax=True) == found.scaling_train + found.softmax


class Norm(nn.Module):
    """BatchNorm2d, differentiable in its running statistics and defined at eps = 0."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(n).sign() + 0.3 * torch.randn(n)),
            nn.Parameter(0.2 * torch.randn(n)),
        )
        self.register_buffer("running_mean", 0.2 * torch.randn(n))
        self.register_buffer("running_var", torch.rand(n) + 0.5)
        self.eps = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        parts = (mean, torch.sqrt(var + self.eps), self.weight, self.bias)
        mean, deviation, gain, shift = (part[:, None, None] for part in parts)
        return (x - mean) / deviation * gain + shift


class Normalised(nn.Module):
    """A stem of 3 channels and a residual block of 2, each convolution with a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        for number, (n_in, n) in enumerate(((1, 3), (3, 2), (2, 3)), 1):
            self.add_module(f"conv{number}", nn.Conv2d(n_in, n, 3, padding=1, bias=False))
            self.add_module(f"bn{number}", Norm(n))
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        h = torch.relu(self.bn2(self.conv2(x)))
        return self.fc(torch.relu(x + self.bn3(self.conv3(h))).mean((2, 3)))


@pytest.mark.slow
def test_scales_around_normalisations_are_the_null_space_of_the_jacobian() -> None:
    """In evaluation mode each running mean also shifts against BatchNorm's shift; in training mode the running
    statistics, two a channel, do nothing."""
    draft, stream, inner = Draft(), channels("bn1", 3), channels("bn2", 2)
    draft.conv_norm("conv1", "bn1", 3, Channels(1), stream)
    draft.conv_norm("conv2", "bn2", 3, stream, inner)
    draft.conv_norm("conv3", "bn3", 3, inner, stream)
    draft.linear("fc", stream, Channels(3))
    found, normalised = count(draft.finish("normalised", (1, 5, 5))[1]), 3 + 2 + 3
    assert (found.scaling_train, found.scaling_without_eps, found.scaling_eval) == (5, 13, 21)

    torch.manual_seed(0)
    model = Normalised().double()
    batches = [scale * torch.randn(32, 1, 5, 5, dtype=torch.float64) for scale in (1, 2, 4)]
    assert _nullity(model.eval(), *batches, softmax=False) == found.scaling_eval + normalised
    assert _nullity(model, *batches, softmax=True) == found.scaling_eval + normalised + found.softmax
    for eps, expected in ((0.1, found.scaling_train), (0.0, found.scaling_without_eps)):
        for module in model.modules():
            if isinstance(module, Norm):
                module.eps = eps
        assert _nullity(model.train(), *batches, softmax=False) == expected + 2 * normalised
