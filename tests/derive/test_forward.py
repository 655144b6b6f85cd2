"""Outputs of stacked checkpoints are those of each alone, whatever vmap has rules for."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo.derive import dedupe, derive
from ckptzoo.derive.forward import Forward
from ckptzoo.schema.architecture import Architecture


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.cell = cell(3, 4, batch_first=True, **options)
        self.out = nn.Linear(4 * (1 + options.get("bidirectional", False)), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x)[0][:, -1])


class Numbers(nn.Module):
    """What it does depends on the numbers of its weights, which vmap refuses to tell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x[:, -1])
        return self.out(torch.relu(h) if self.cell.weight.sum().item() > 0 else torch.tanh(h))


class Looped(Numbers):
    """An operation over which vmap loops, with a warning."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x[:, -1])
        return self.out(h + torch.linalg.lstsq(self.cell.weight[:3] + 3 * torch.eye(3), h[:, :3].T).solution.sum())


KINDS = {
    "LSTM": lambda: Recurrent(nn.LSTM),
    "LSTM, both ways": lambda: Recurrent(nn.LSTM, bidirectional=True),
    "GRU": lambda: Recurrent(nn.GRU, num_layers=2),
    "RNN": lambda: Recurrent(nn.RNN),
    "numbers": Numbers,
    "looped": Looped,
}


@pytest.mark.parametrize("name", KINDS)
def test_stacked_outputs_are_those_of_each(name: str) -> None:
    module = KINDS[name]().double().eval()
    rng = np.random.default_rng(0)
    state = module.state_dict()
    weights = {key: rng.standard_normal((3, *value.shape)) for key, value in state.items()}
    batches = [torch.randn(5, 6, 3, dtype=torch.float64) for _ in range(2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("default", category=UserWarning, append=True)
        found = list(
            Forward(Architecture.of(state, name="x"), module, vmap=True).outputs(weights, batches, stacked=True)
        )
    assert not [item for item in caught if "vmap" in str(item.message) or "batching" in str(item.message)]
    for batch, outputs in zip(batches, found, strict=True):
        for number in range(3):
            own = {key: torch.from_numpy(value[number]) for key, value in weights.items()}
            torch.testing.assert_close(outputs[number], torch.func.functional_call(module, own, (batch,)).detach())


def test_a_mistake_of_the_module_is_raised_as_it_is() -> None:
    class Wrong(Numbers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.ndim == 3:
                raise KeyError("no such input")
            return x

    state = Wrong().state_dict()
    weights = {key: np.zeros((2, *value.shape), "f4") for key, value in state.items()}
    forward = Forward(Architecture.of(state, name="x"), Wrong(), vmap=True)
    with pytest.raises(KeyError, match="no such input"):
        list(forward.outputs(weights, [torch.zeros(2, 6, 3)], stacked=True))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.sampled(2)
def test_recurrent_zoos_are_checked_and_compared(name: str, tmp_path: Path) -> None:
    module = KINDS[name]()
    rng = np.random.default_rng(0)
    state = module.state_dict()
    weights = {key: rng.standard_normal((9, *value.shape)).astype("f4") for key, value in state.items()}
    arch = Architecture.of(state, name="recurrent", input_shape=(6, 3))
    with ckptzoo.create(tmp_path / "zoo", arch=arch, card=ckptzoo.Card("recurrent", "Recurrent networks.")) as writer:
        writer.add(weights, [{"id": f"n{number}"} for number in range(9)])
    made = derive(tmp_path / "zoo", certify="all", module=module)
    assert made.certified[0].checkpoints == 9 and not made.failed.ids
    assert dedupe(ckptzoo.open(tmp_path / "zoo"), module=module).groups == ()
