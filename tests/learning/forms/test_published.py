"""Tokens and tuples are those that the published code makes of the same networks."""

import numpy as np
import torch

from ckptzoo import archs
from ckptzoo.learning.forms import TokensForm, TuplesForm
from ckptzoo.schema.architecture import Architecture, Tensor

LAYERS = Architecture(
    "worked",
    (
        Tensor("conv.weight", (2, 1, 1, 3)),
        Tensor("conv.bias", (2,)),
        Tensor("bn.weight", (2,)),
        Tensor("bn.bias", (2,)),
        Tensor("bn.running_mean", (2,), kind="buffer"),
        Tensor("bn.running_var", (2,), kind="buffer"),
        Tensor("bn.num_batches_tracked", (), "int64", "buffer"),
        Tensor("fc.weight", (1, 2)),
    ),
)
WEIGHTS = {
    "conv.weight": [[[[1, 2, 3]]], [[[4, 5, 6]]]],
    "conv.bias": [7, 8],
    "bn.weight": [9, 10],
    "bn.bias": [11, 12],
    "bn.running_mean": [13, 14],
    "bn.running_var": [15, 16],
    "bn.num_batches_tracked": 17,
    "fc.weight": [[18, 19]],
}
TOKENS = [
    [1, 2, 3], [7, 0, 0], [4, 5, 6], [8, 0, 0],
    [9, 11, 0], [10, 12, 0],
    [13, 0, 0], [14, 0, 0],
    [15, 0, 0], [16, 0, 0],
    [18, 19, 0],
]  # fmt: skip
"""What tokenize_checkpoint(WEIGHTS, 3) of HSG-AIML/SANE@4a9a57a gives; the counter, which it leaves out, follows."""
POSITIONS = [
    [0, 0, 0], [1, 0, 0], [2, 0, 1], [3, 0, 1],
    [4, 1, 0], [5, 1, 1],
    [6, 2, 0], [7, 2, 1],
    [8, 3, 0], [9, 3, 1],
    [10, 4, 0],
]  # fmt: skip


def test_tokens_are_sanes():
    weights = {tensor.name: np.asarray(WEIGHTS[tensor.name], tensor.dtype)[None] for tensor in LAYERS.tensors}
    found = TokensForm(LAYERS, 3).encode(weights)
    assert found.tokens[0].tolist() == [*TOKENS, [17, 0, 0]]
    assert found.positions.dtype == np.int16 and found.positions.tolist() == [*POSITIONS, [11, 5, 0]]
    assert found.mask.dtype == bool and found.mask.tolist() == (found.tokens[0] != 0).tolist()
    held = TokensForm(LAYERS, 3).encode({name: torch.from_numpy(value) for name, value in weights.items()})
    for ours, theirs in zip(held, found, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_long_sequences_have_wider_positions():
    arch = Architecture("long", (Tensor("fc.weight", (32_769, 1)),))
    weights = {"fc.weight": np.zeros((1, 32_769, 1), np.float32)}
    found = TokensForm(arch).encode(weights)
    assert found.positions.dtype == np.int32 and found.positions[-1].tolist() == [32_768, 0, 32_768]


def test_tuples_are_nfns():
    arch = Architecture(
        "cnn",
        (
            Tensor("0.weight", (8, 3, 5, 5)),
            Tensor("0.bias", (8,)),
            Tensor("1.weight", (10, 8)),
            Tensor("1.bias", (10,)),
        ),
    )
    rng = np.random.default_rng(0)
    weights = {tensor.name: torch.from_numpy(rng.normal(size=(4, *tensor.shape))) for tensor in arch.tensors}
    found = TuplesForm(arch).encode(weights)
    # network_spec_from_wsfeat takes weights of 4 axes, and of 6 for convolutions, behind (batch, channels)
    assert [tuple(one.shape) for one in found.weights] == [(4, 1, 8, 3, 5, 5), (4, 1, 10, 8)]
    assert [tuple(one.shape) for one in found.biases] == [(4, 1, 8), (4, 1, 10)]
    # state_dict_to_tensors of each network, and a DataLoader's stack of them
    for at, name in enumerate(("0.weight", "1.weight")):
        assert torch.equal(found.weights[at], torch.stack([value[None] for value in weights[name]]))


def test_tuples_are_those_of_dwsnets():
    arch = archs.architecture("mlp-2-32-32-1")
    rng = np.random.default_rng(0)
    weights = {tensor.name: torch.from_numpy(rng.normal(size=(4, *tensor.shape))) for tensor in arch.tensors}
    found = TuplesForm(arch, "dwsnets").encode(weights)
    # the shapes of its README: weight_shapes=((2, 32), (32, 32), (32, 1)), bias_shapes=((32,), (32,), (1,))
    assert [tuple(one.shape) for one in found.weights] == [(4, 2, 32, 1), (4, 32, 32, 1), (4, 32, 1, 1)]
    assert [tuple(one.shape) for one in found.biases] == [(4, 32, 1), (4, 32, 1), (4, 1, 1)]
    for at in range(3):
        one_by_one = [value.permute(1, 0).unsqueeze(-1) for value in weights[f"fc{at + 1}.weight"]]
        assert torch.equal(found.weights[at], torch.stack(one_by_one))
