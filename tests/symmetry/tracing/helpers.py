"""Small networks in one expression, symmetry tables as text, and checks of a trace."""

import copy
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

from ckptzoo.schema.groups import AxisAction, Fixed, Like, Perm, Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply, fold, trace
from ckptzoo.symmetry.matrices.tables import monomial
from ckptzoo.symmetry.traced import Traced
from ckptzoo.symmetry.tracing.graph import Float64Mode

Forward = Callable[[Any, torch.Tensor], Any]


class Net(nn.Module):
    """A module of parts; tensors that are no parameters become buffers, ``constant`` one that is not in the state dict."""

    def __init__(self, forward: Forward, parts: dict[str, Any]) -> None:
        super().__init__()
        self._run = forward
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part, persistent=name != "constant")
            else:
                setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> Any:
        return self._run(self, x)


def net(forward: Forward, seed: int = 0, **parts: Callable[[], Any]) -> Net:
    """A network of parts that are made with this seed."""
    torch.manual_seed(seed)
    return Net(forward, {name: make() for name, make in parts.items()})


def part(kind: Callable[..., Any], *sizes: Any, **options: Any) -> Callable[[], Any]:
    """A part that is made when the network is."""
    return lambda: kind(*sizes, **options)


def linear(*sizes: int, **options: Any) -> Callable[[], nn.Linear]:
    return part(nn.Linear, *sizes, **options)


def conv(*sizes: int, **options: Any) -> Callable[[], nn.Conv2d]:
    return part(nn.Conv2d, *sizes, **options)


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    """A part that is a random parameter."""
    return lambda: nn.Parameter(torch.randn(shape))


def images(channels: int = 1, size: int = 6, count: int = 2) -> torch.Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def rows(features: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(0))


def checked_trace(module: nn.Module, example: torch.Tensor) -> Traced:
    """A trace whose table is checked with other elements and inputs than those of the verification."""
    traced = trace(module, example)
    assert traced.worst < 1e-9
    assert not any("change the outputs" in note for note in traced.notes)
    check_outputs(module, traced.symmetry, example)
    return traced


@dataclass(frozen=True)
class Case:
    """A network and what a trace of it must give.

    Parameters
    ----------
    forward, parts
        of the network.
    example
        its input.
    table
        of permutations and scales alone (``monomial``), as ``text`` writes it; where it ends in ``...``, how it begins.
        tests/symmetry/tracing/test_matrices.py says where there are matrices.
    notes
        a pattern for each note, ``*`` for any text; ``...`` at the end where more may follow, None for any notes.
    """

    forward: Forward
    parts: dict[str, Callable[[], Any]]
    example: torch.Tensor
    table: str
    notes: tuple[str, ...] | None = None


def check(case: Case) -> Traced:
    """Trace the network, and compare table and notes."""
    traced = checked_trace(net(case.forward, **case.parts), case.example)
    found, expected = text(monomial(traced.symmetry)), lines(case.table)
    if expected.endswith("\n..."):
        found, expected = found[: len(expected) - 3], expected[:-3]
    assert found == expected
    if case.notes is not None:
        open_ended = case.notes[-1:] == ("...",)
        patterns = case.notes[:-1] if open_ended else case.notes
        assert len(traced.notes) >= len(patterns) if open_ended else len(traced.notes) == len(patterns), traced.notes
        for note, pattern in zip(traced.notes, patterns, strict=False):
            assert fnmatchcase(note, pattern)
    return traced


def check_outputs(module: nn.Module, table: Symmetry, example: torch.Tensor, seed: int = 1) -> None:
    """Random elements leave float64 outputs alone, with weights near the module's own."""
    double = copy.deepcopy(module).double().eval()
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.standard_normal((5, *example.shape[1:]))) if example.is_floating_point() else example
    stack = {name: value.detach().numpy()[None] for name, value in double.named_buffers()}
    for name, value in [*double.named_parameters(), *double.named_buffers()]:
        if name not in stack or "running" in name:
            stack[name] = (value.detach().numpy() * rng.uniform(0.8, 1.2, value.shape))[None]
    moved = apply(GroupElement.random(table, 1, rng, spread=0.3), fold(stack, table), table)
    expected, found = (_outputs(double, weights, inputs) for weights in (stack, moved))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def _outputs(module: nn.Module, stack: dict[str, np.ndarray], inputs: torch.Tensor) -> np.ndarray:
    state = {name: torch.from_numpy(np.array(value[0])) for name, value in stack.items()}
    with torch.no_grad(), Float64Mode():
        result = torch.func.functional_call(module, state, (inputs,))
    return torch.cat([item.reshape(-1) for item in (result if isinstance(result, tuple) else (result,))]).numpy()


def text(table: Symmetry) -> str:
    """A table as lines: ``group n perm scale``, then ``tensor axis exponent role group@offset+count*inner^exponent ...``.

    In brackets is a group that acts inside channels; ``absolute`` are moduli of scales. Behind ``signs`` are the channels whose signs a gain takes, behind
    ``gates`` those that multiply others.
    """
    groups = [f"{group.id} {group.n} {_perm(group.perm)} {group.scale}" for group in table.groups]
    return "\n".join([*groups, *map(_action, table.actions)])


_LAYER = re.compile(r"([^\s:/]+)(/\d+)?:(?: (.+?))? ->(?: (.+?))?(, no bias)?")


def lines(expected: str) -> str:
    """Such lines as a test has them, one a line or with ``|`` between them.

    A layer may be one line, ``name/blocks: what it reads -> what it writes``, for up to three actions.
    """
    return "\n".join(action for line in re.split(r"\n|\|", expected.strip()) for action in _expanded(line.strip()))


def _expanded(line: str) -> Iterator[str]:
    if (layer := _LAYER.fullmatch(line)) is None:
        yield line
        return
    name, blocks, read, written, without_bias = layer.groups()
    if written:
        yield f"{name}.weight 0 +1 out {written}"
    if read:
        yield f"{name}.weight 1{blocks or ''} -1 in {read}"
    if written and not without_bias:
        yield f"{name}.bias 0 +1 bias {written}"


def _perm(perm: Perm) -> str:
    if isinstance(perm, Wreath):
        inner = "" if perm.inner == "free" else f",{perm.inner}"
        return f"wreath({perm.outer},{perm.g},{perm.k}{inner})"
    if isinstance(perm, Like):
        return f"like({perm.group})"
    return "fixed" if isinstance(perm, Fixed) else "sym"


def _action(action: AxisAction) -> str:
    assert action.in_mass == (action.role in ("out", "in") or (action.role == "gain" and action.in_mass))
    blocks = f"/{action.blocks}" if action.blocks > 1 else ""
    exponent = f"{action.exponent:+d}" if action.exponent else "0"
    eps = f" eps={action.eps:g}" if action.eps else ""
    signs = f" signs {_segments(action.signs)}" if action.signs else ""
    gates = f" gates {_segments(action.gates)}" if action.gates else ""
    acting = f"{_segments(action.segments)}{signs}{gates}"
    absolute = " absolute" if action.absolute else ""
    return f"{action.tensor} {action.axis}{blocks} {exponent} {action.role} {acting}{absolute}{eps}"


def _segments(segments: tuple[Segment, ...]) -> str:
    return " ".join(
        item.group
        + (f"({item.within})" if item.within else "")
        + f"@{item.offset}+{item.count}"
        + (f"*{item.inner}" if item.inner > 1 else "")
        + (f"^{item.exponent}" if item.exponent else "")
        for item in segments
    )


def signed_permutations_kept(
    module: nn.Module, sites: Sequence[Sequence[tuple[str, int]]], example: torch.Tensor
) -> int:
    """How many choices of signed permutations leave a module's outputs as they are, by brute force.

    Parameters
    ----------
    module
        with any weights: generic ones are drawn for its parameters.
    sites
        each entry gets a signed permutation of its own, which acts on all of its tensors' axes.
    example
        its input, as random rows for floats.
    """
    module = copy.deepcopy(module).double().eval()
    rng = np.random.default_rng(3)
    state = {name: value.detach() for name, value in module.state_dict().items()}
    for name, value in module.named_parameters():
        state[name] = torch.from_numpy(rng.uniform(0.3, 1.0, value.shape) * rng.choice([-1, 1], value.shape))
    inputs = torch.from_numpy(rng.standard_normal(example.shape)) if example.is_floating_point() else example
    choices = [_signed_permutations(state[site[0][0]].shape[site[0][1]]) for site in sites]
    index = np.indices([len(item) for item in choices]).reshape(len(choices), -1)
    stack = {name: value.expand(index.shape[1], *value.shape) for name, value in state.items()}
    for site, choice, at in zip(sites, choices, index, strict=True):
        matrices = choice[torch.from_numpy(at)]
        for tensor, axis in site:
            moved = stack[tensor].movedim(axis + 1, 1)
            product = torch.einsum("kij,kj...->ki...", matrices, moved)
            stack[tensor] = product.movedim(1, axis + 1)

    def run(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(module, weights, (inputs,))

    with torch.no_grad():
        outputs = torch.func.vmap(run)({name: value.clone() for name, value in stack.items()}).flatten(1)
        expected = torch.func.functional_call(module, state, (inputs,)).flatten()
    return int(((outputs - expected).abs().amax(1) < 1e-9).sum())


def _signed_permutations(n: int) -> torch.Tensor:
    """All signed permutation matrices (2^n n!, n, n)."""
    return torch.stack(
        [
            torch.diag(torch.tensor(signs, dtype=torch.float64))[list(order)]
            for order in itertools.permutations(range(n))
            for signs in itertools.product([1.0, -1.0], repeat=n)
        ]
    )
