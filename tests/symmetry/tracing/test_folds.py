"""Folds that the tracer finds: how many dimensions they have, beside the nullity of the Jacobian; functions are kept."""

import copy
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.architectures import SMALL, library
from ckptzoo.schema.folds import Fold, dimensions
from ckptzoo.symmetry import Traced, apply, count, fold, trace
from ckptzoo.symmetry.element import GroupElement
from ckptzoo.symmetry.matrix_action import with_unit_gains
from ckptzoo.symmetry.tracing import trace as tracing
from ckptzoo.symmetry.tracing.graph import Float64Mode
from tests.symmetry.tracing.helpers import Net, linear, net, part, rows

pytestmark = pytest.mark.filterwarnings("ignore")
D, FF, WORDS, LENGTH = 8, 12, 21, 6


class Decoder(nn.Module):
    """A language model as GPT-2 is: LayerNorms first, queries, keys and values of one layer."""

    def __init__(self, layers: int, *, tied: bool = False, qkv_bias: bool = True) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, D), nn.Embedding(LENGTH, D)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln1": nn.LayerNorm(D),
                    "qkv": nn.Linear(D, 3 * D, bias=qkv_bias),
                    "out": nn.Linear(D, D),
                    "ln2": nn.LayerNorm(D),
                    "up": nn.Linear(D, FF),
                    "down": nn.Linear(FF, D),
                }
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            q, k, v = block["qkv"](block["ln1"](x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["out"](heads.transpose(1, 2).flatten(2))
            x = x + block["down"](F.gelu(block["up"](block["ln2"](x))))
        return self.head(self.norm(x))


def gpt2(layers: int, *, tied: bool, attention: str = "sdpa") -> tuple[nn.Module, Any]:
    """The same of transformers."""
    transformers = library("transformers")
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=D,
        n_layer=layers,
        n_head=2,
        n_inner=FF,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens(2)}


def tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def stream(count: int, seed: int = 0) -> torch.Tensor:
    return 1.5 * torch.randn(count, 5, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def folded_dimensions(traced: Traced) -> int:
    assert not any("not folded" in note for note in traced.notes)
    assert sum(number for _, number in count(traced.symmetry).folds) == sum(dimensions(traced.symmetry.folds))
    return sum(dimensions(traced.symmetry.folds))


def outputs(module: nn.Module, weights: dict[str, np.ndarray], example: Any) -> torch.Tensor:
    """Of a module in float64 with the first of stacked weights."""
    state = {name: torch.from_numpy(np.array(value[0])) for name, value in weights.items()}
    args, kwargs = ((), example) if isinstance(example, dict) else ((example,), {})
    with Float64Mode():
        result = torch.func.functional_call(module, state, args, kwargs)
    return torch.cat([item.flatten() for item in (result.values() if isinstance(result, dict) else [result])])


def generic(module: nn.Module, traced: Traced, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights, gains away from 0, biases so small that no ReLU is the same for all inputs."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, value in module.state_dict().items():
        if name not in traced.architecture or not value.is_floating_point():
            continue
        gain = value.ndim == 1 and name.endswith("weight")
        wide = (
            rng.uniform(0.5, 1.5, value.shape)
            if gain
            else rng.normal(size=value.shape) * (0.3 if value.ndim == 1 else 1)
        )
        made[name] = (wide / np.sqrt(value.shape[-1]) if value.ndim > 1 else wide)[None]
    return made


def check_fold(module: nn.Module, traced: Traced, example: Any) -> None:
    """Every fold keeps the outputs to 1e-12, all of them after each other too, and folding again changes nothing."""
    module = copy.deepcopy(module).double().eval()
    weights = generic(module, traced)
    with torch.no_grad():
        expected = outputs(module, weights, example)
        folded = fold(weights, traced.symmetry)
        assert not all(np.array_equal(folded[name], weights[name]) for name in weights)
        found = outputs(module, folded, example)
    assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()
    for name, value in fold(folded, traced.symmetry).items():
        np.testing.assert_allclose(value, folded[name], rtol=1e-12, atol=1e-13)


def nullity(module: nn.Module, traced: Traced, examples: Any) -> int:
    """The dimension of the directions in which no output changes, at random weights."""
    module = copy.deepcopy(module).double().eval()
    weights = generic(module, traced)
    sizes = {name: value[0].size for name, value in weights.items()}
    flat = torch.from_numpy(np.concatenate([value.ravel() for value in weights.values()])).requires_grad_()
    pieces = dict(zip(sizes, flat.split(list(sizes.values())), strict=True))
    state = {name: pieces[name].reshape(weights[name].shape[1:]) for name in sizes}
    result = torch.func.functional_call(module, state, (examples,)).flatten()
    (lines,) = torch.autograd.grad(result, flat, torch.eye(len(result), dtype=torch.float64), is_grads_batched=True)
    singular = np.linalg.svd(lines.numpy(), compute_uv=False)
    rank = int((singular > 1e-12 * singular[0]).sum())
    # What is rank is apart from what is rounding; columns are never normalised, as that would make rank of rounding.
    assert rank == len(singular) or singular[rank] < 1e-5 * singular[rank - 1]
    return len(flat) - rank


BLOCK = 2 * D + 8 * D - 2 * D + 2 * FF + 2
"""Biases of keys and values, shifts, rows, and what writes the stream, without gains."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("layers", "tied", "parameters", "total"),
    [(1, False, 932, 241), (2, False, 1464, 411), (1, True, 764, 176), (2, True, 1296, 346)],
)
@pytest.mark.sampled(4)
def test_a_decoder_has_as_many_free_dimensions_as_its_jacobian(
    layers: int, tied: bool, parameters: int, total: int
) -> None:
    module = Decoder(layers, tied=tied)
    assert sum(item.numel() for item in module.parameters()) == parameters
    traced = trace(module, tokens(2))
    folds = layers * BLOCK + (LENGTH if tied else D + WORDS + LENGTH + D - 1)
    assert folded_dimensions(traced) == folds
    matrices = layers * 2 * 2 * 4**2 + (0 if tied else (D - 1) * (D - 2) // 2)
    gains = layers * 2 * D + (0 if tied else D)
    assert folds + gains + matrices == total
    check_fold(module, traced, tokens(3, 1))
    if layers == 1:
        assert nullity(module, traced, tokens(20, 2)) == total


@pytest.mark.exhaustive
def test_rows_without_a_bias_hold_the_constants() -> None:
    """Shifts go into the means of the rows of queries; those of keys and values are free as their biases were."""
    module = Decoder(1, qkv_bias=False)
    traced = trace(module, tokens(2))
    assert nullity(module, traced, tokens(20, 2)) == folded_dimensions(traced) + 3 * D + 2 * 2 * 4**2 + 21
    check_fold(module, traced, tokens(3, 1))
    kinds = [(item.kind, item.part.tensor) for item in traced.symmetry.folds]
    assert kinds[:3] == [("match", "blocks.0.ln1.bias"), *[("centre", "blocks.0.qkv.weight")] * 2]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.sampled(4)
def test_layers_of_torch(norm_first: bool, bias: bool) -> None:
    module = net(
        lambda m, x: m.layer(x),
        layer=part(nn.TransformerEncoderLayer, D, 2, FF, batch_first=True, norm_first=norm_first, bias=bias),
    )
    traced = trace(module, stream(2))
    gains, relu, matrices = (2 * D if norm_first else 0), FF, 2 * 2 * 4**2
    # The mean of the first bias of the stream may move into that of the second: one dimension that no fold has.
    lacking = int(norm_first and bias)
    assert nullity(module, traced, stream(60, 1)) == folded_dimensions(traced) + gains + relu + matrices + lacking
    check_fold(module, traced, stream(3, 2))


@pytest.mark.exhaustive
def test_a_tied_table_of_which_one_name_is_not_used() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.shared = nn.Embedding(WORDS, D)
            self.layer = nn.TransformerEncoderLayer(D, 2, FF, batch_first=True)
            self.tokens = self.shared

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.layer(self.tokens(ids))

    traced = trace(Tied(), tokens(2))
    assert folded_dimensions(traced) > 0
    check_fold(Tied(), traced, tokens(3, 1))


class Recurrent(nn.Module):
    """A recurrent layer with or without an embedding in front of it."""

    def __init__(self, kind: type[nn.RNNBase], *, embedded: bool, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, 3) if embedded else nn.Identity()
        self.recurrent = kind(3, 3, batch_first=True, **options)
        directions = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(directions * (options.get("proj_size") or 3), 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embedding(values))[0])


@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.parametrize(
    ("kind", "options", "summed"),
    [
        (nn.LSTM, {}, 12),
        (nn.LSTM, {"num_layers": 2}, 24),
        (nn.LSTM, {"bidirectional": True}, 24),
        (nn.LSTM, {"proj_size": 2}, 12),
        (nn.LSTM, {"bias": False}, 0),
        (nn.GRU, {}, 6),
        (nn.GRU, {"num_layers": 2}, 12),
        (nn.GRU, {"bias": False}, 0),
        (nn.RNN, {}, 3),
        (nn.RNN, {"bidirectional": True}, 6),
    ],
)
@pytest.mark.sampled(6)
def test_recurrent_layers_have_two_biases_that_are_summed(
    kind: type[nn.RNNBase], options: dict[str, Any], summed: int, embedded: bool
) -> None:
    """4, 2 and 1 numbers a unit of LSTM, GRU and plain layers; embeddings in front move into biases of inputs."""
    module = Recurrent(kind, embedded=embedded, **options)
    examples = [tokens(20, seed) if embedded else 1.5 * stream(20, seed)[..., :3] for seed in (1, 2)]
    traced = trace(module, examples[0][:2].float() if not embedded else examples[0][:2])
    biased = options.get("bias", True)
    assert folded_dimensions(traced) == summed + 3 * (embedded and biased)
    assert nullity(module, traced, examples[0]) == count(traced.symmetry).dimensions
    if biased:
        check_fold(module, traced, examples[1])


def test_positions_have_mean_zero_and_keys_no_bias() -> None:
    module = Decoder(1)
    traced = trace(module, tokens(2))
    weights = fold(generic(module, traced), traced.symmetry)
    np.testing.assert_allclose(weights["positions.weight"].mean(1), 0, atol=1e-15)
    assert (weights["blocks.0.qkv.bias"][:, D:] == 0).all() and (weights["blocks.0.qkv.bias"][:, :D] != 0).all()
    assert (weights["norm.bias"] == weights["norm.weight"]).all()


@pytest.mark.exhaustive
def test_folds_after_group_elements_are_group_elements_after_folds() -> None:
    module = Decoder(1)
    table = trace(module, tokens(2)).symmetry
    weights = with_unit_gains(generic(module, trace(module, tokens(2))), table)
    element = GroupElement.random(table, 1, np.random.default_rng(0), spread=0.5)
    one, other = fold(apply(element, weights, table), table), apply(element, fold(weights, table), table)
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tokens_of_the_norm", ["all", "padded"])
def test_a_reader_of_other_values_too_is_not_centred(tokens_of_the_norm: str) -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        values = m.norm(x)
        return m.b(F.gelu(m.a(values if tokens_of_the_norm == "all" else F.pad(values, (0, 0, 1, 0)))))

    table = trace(net(forward, norm=part(nn.LayerNorm, 6), a=linear(6, 4), b=linear(4, 3)), rows(6)[:, None]).symmetry
    centred = tokens_of_the_norm == "all"
    assert [item.part.tensor for item in table.folds] == (["norm.bias", "a.weight"] if centred else [])


def test_a_bias_under_a_rotation_is_not_free() -> None:
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x)[:, None] for layer in (m.q, m.k, m.v))
        angles = torch.arange(x.shape[1])[:, None] * 0.3 ** torch.arange(2)
        k = torch.stack([k[..., :2] * angles.cos() - k[..., 2:] * angles.sin(), k[..., 2:]], -1).flatten(-2)
        return m.o(F.scaled_dot_product_attention(q, k, v)[:, 0])

    parts = {name: linear(D, 4) for name in "qkv"} | {"o": linear(4, D)}
    folds = trace(net(forward, **parts), stream(2)).symmetry.folds
    assert [(item.kind, item.part.tensor) for item in folds] == [("shift", "v.bias")]


def test_an_example_of_one_token_frees_no_query() -> None:
    folds = trace(Decoder(1), tokens(2)[:, :1]).symmetry.folds
    assert not any(item.kind == "zero" for item in folds)


def test_networks_without_norms_attention_and_recurrence_have_none() -> None:
    module = net(lambda m, x: m.c(torch.relu(m.a(x) + m.b(x))), a=linear(6, 4), b=linear(6, 4), c=linear(4, 2))
    assert trace(module, rows(6)).symmetry.folds == ()


def test_a_false_candidate_is_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    find = tracing.candidate_folds

    def with_a_false_one(*arguments: Any) -> tuple[Fold, ...]:
        true = find(*arguments)
        (first, *_) = (item for item in true if item.part.tensor == "blocks.0.up.weight")
        (bias, *_) = (target.into for target in first.targets)
        assert bias is not None
        return (*true, Fold("zero", bias))

    expected = trace(Decoder(1), tokens(2)).symmetry.folds
    monkeypatch.setattr(tracing, "candidate_folds", with_a_false_one)
    traced = trace(Decoder(1), tokens(2))
    assert traced.symmetry.folds == expected
    assert any(
        note.startswith("'blocks.0.up.bias' is not folded (zero): the outputs change by") for note in traced.notes
    )


needs_libraries = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("timm", "torchvision", "transformers")),
    reason="needs the extra architectures",
)


@needs_libraries
@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("layers", "tied", "folds"), [(1, False, 132), (2, False, 222), (1, True, 96), (2, True, 186)])
@pytest.mark.sampled(2)
def test_gpt2(layers: int, tied: bool, folds: int, attention: str) -> None:
    assert folded_dimensions(trace(*gpt2(layers, tied=tied, attention=attention))) == folds


# By hand, at width d, f hidden units, p inputs of a patch, T tokens, L layers: of a ViT L (10 d + 2 f + 2) for the
# blocks (as of GPT-2 without gains, for h k = d), the class token and the patch's bias 2 d, positions T, patches p,
# the last shift d, and a row for each class; of Bert also its own norm, tables and pooler.
@needs_libraries
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folds"),
    [
        ("transformers Llama, sdpa", 0),
        ("transformers Qwen3, eager", 0),
        ("timm ViT", 2 * (8 * 12 + 2 * 48 + 2) + 2 * 12 + 5 + 768 + 12 + 3),
        ("transformers ViT, eager", 2 * (8 * 12 + 2 * 16 + 2) + 2 * 12 + 5 + 48 + 12 + 2),
        ("transformers Bert, sdpa", 2 * (8 * 12 + 2 * 16 + 2) + 12 + (2 * 11 + 30 + 16 + 2)),
    ],
)
@pytest.mark.sampled(2)
def test_published_architectures(name: str, folds: int) -> None:
    module, example = SMALL[name]()
    traced = trace(module, example)
    assert folded_dimensions(traced) == folds


@needs_libraries
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "others"),
    [
        ({"depth": 2}, 0),
        ({"depth": 2, "qkv_bias": False}, 0),
        ({"depth": 2, "init_values": 0.5}, 4 * 6),  # gains behind the layers, which the table does not scale
        ({"depth": 1, "class_token": False, "global_pool": "avg"}, 0),
    ],
)
def test_vision_transformers_have_as_many_as_their_jacobian(settings: dict[str, Any], others: int) -> None:
    models = library("timm.models.vision_transformer")
    sizes = {"img_size": 6, "patch_size": 2, "in_chans": 2, "embed_dim": 6, "num_heads": 2, "mlp_ratio": 1.5}
    torch.manual_seed(0)
    module = models.VisionTransformer(num_classes=5, **sizes, **settings)
    generator = torch.Generator().manual_seed(1)
    images = 1.5 * torch.randn(300, 2, 6, 6, generator=generator, dtype=torch.float64)
    traced = trace(module, images[:2])
    layers = settings["depth"]
    gains, matrices = (2 * layers + 1) * 6, layers * 2 * 2 * 3**2 + 5 * 4 // 2
    assert nullity(module, traced, images) == folded_dimensions(traced) + gains + matrices + others
    check_fold(module, traced, images[:4])
