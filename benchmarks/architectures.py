"""Symmetries of published architectures: which of them ``symmetry.trace`` takes, their tables, counts, canonical forms.

``python -m benchmarks.architectures`` traces small random configurations of the modern ones, counts, brings two random
disguises of each into the canonical gauge, and prints the first table of docs/architectures.md; with ``--families`` the
second one, a row for each family of transformers and timm in a small random configuration, with the nullity of the
Jacobian beside the dimensions. With ``--published`` it traces the networks of torchvision and timm at their own sizes
on small inputs. What does not trace is named with the reason. Nothing is fetched: weights are random. Needs the extra
``architectures``.
"""

import argparse
import importlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.figures import Figure, write
from ckptzoo.errors import ZooError
from ckptzoo.symmetry import GroupElement, apply, canonicalize, count, fold, trace
from ckptzoo.symmetry.tracing.graph import Float64Mode

Made = tuple[nn.Module, Any]
"""A module and an example input."""
ROOT = Path(__file__).resolve().parent.parent
IMAGES = (2, 3, 32, 32)


class LanguageModel(nn.Module):
    """An embedding, two recurrent layers and a linear head."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(11, 6), kind(6, 5, 2, batch_first=True)
        self.head = nn.Linear(5, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next token at every step."""
        return self.head(self.layers(self.embed(ids))[0])


class LowRank(nn.Module):
    """A layer whose weights are frozen, with a low-rank change beside it, between others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(7, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.frozen.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two hidden layers, of which the second is changed."""
        x = self.first(x).relu()
        return self.last((self.frozen(x) + self.up(self.down(x))).relu())


def library(name: str) -> Any:
    """A library of networks. Beside a CPU's torch two operators of torchvision's compiled part are defined first.

    PyPI's torchvision has them for torch with CUDA only, and cannot be imported without; transformers imports it.
    """
    if not hasattr(torch.ops.torchvision, "nms"):
        _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _LIBRARIES[-1].define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return importlib.import_module(name)


def torchvision_models() -> Any:
    """torchvision.models."""
    return library("torchvision.models")


_LIBRARIES: list[torch.library.Library] = []


def _tokens(words: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, words, (2, 7), generator=torch.Generator().manual_seed(0))}


def _gpt2(attention: str) -> Made:
    transformers = library("transformers")

    config = transformers.GPT2Config(
        vocab_size=21,
        n_positions=8,
        n_embd=8,
        n_layer=2,
        n_head=2,
        n_inner=12,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    return transformers.GPT2LMHeadModel(config), _tokens(21)


def _decoder(name: str, attention: str) -> Made:
    transformers = library("transformers")

    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 16}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=40, bos_token_id=0, eos_token_id=0, use_cache=False, attn_implementation=attention, **sizes
    )
    return getattr(transformers, f"{name}ForCausalLM")(config), _tokens(40)


def _encoder(name: str, model: str, example: Any, attention: str, **sizes: Any) -> Made:
    transformers = library("transformers")

    config = getattr(transformers, f"{name}Config")(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=16,
        attn_implementation=attention,
        **sizes,
    )
    return getattr(transformers, model)(config), example


def _timm_vit(**settings: Any) -> Made:
    timm = library("timm")

    sizes = {"img_size": 32, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 3}
    return timm.create_model("vit_tiny_patch16_224", **sizes, **settings), torch.randn(IMAGES)


def _mixer() -> Made:
    return library("timm.models.mlp_mixer").MlpMixer(
        num_classes=3, img_size=32, patch_size=16, num_blocks=2, embed_dim=12
    ), torch.randn(IMAGES)


def _convnext() -> Made:
    blocks = library("torchvision.models.convnext").CNBlockConfig
    return library("torchvision.models.convnext").ConvNeXt(
        [blocks(8, 16, 2), blocks(16, None, 2)], num_classes=3
    ), torch.randn(IMAGES)


SMALL: Mapping[str, Callable[[], Made]] = {
    **{
        f"transformers {title}, {attention}": lambda make=make, attention=attention: make(attention)
        for title, make in {
            "GPT2": _gpt2,
            "Llama": lambda attention: _decoder("Llama", attention),
            "Qwen3": lambda attention: _decoder("Qwen3", attention),
            "Bert": lambda attention: _encoder(
                "Bert", "BertModel", _tokens(30), attention, vocab_size=30, max_position_embeddings=16
            ),
            "ViT": lambda attention: _encoder(
                "ViT", "ViTForImageClassification", torch.randn(2, 3, 8, 8), attention, image_size=8, patch_size=4
            ),
        }.items()
        for attention in ("eager", "sdpa")
    },
    "timm ViT": _timm_vit,
    "timm ViT, norms of queries and keys": lambda: _timm_vit(qk_norm=True),
    "timm Mixer": _mixer,
    "torchvision ViT": lambda: (
        torchvision_models().VisionTransformer(32, 16, 2, 3, 12, 16, num_classes=3),
        torch.randn(IMAGES),
    ),
    "torchvision Swin": lambda: (
        torchvision_models().SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], num_classes=3),
        torch.randn(IMAGES),
    ),
    "torchvision efficientnet_b0": lambda: (torchvision_models().efficientnet_b0(), torch.randn(IMAGES)),
    "torchvision ConvNeXt": _convnext,
    "LSTM language model": lambda: (LanguageModel(nn.LSTM), torch.randint(0, 11, (2, 4))),
    "GRU language model": lambda: (LanguageModel(nn.GRU), torch.randint(0, 11, (2, 4))),
    "LoRA over a frozen layer": lambda: (LowRank(), torch.randn(2, 7)),
    "nn.TransformerEncoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 16, batch_first=True), 2, enable_nested_tensor=False),
        torch.randn(2, 5, 12),
    ),
}
"""Small random configurations: what the documentation shows and the tests trace."""


@dataclass(frozen=True)
class Row:
    """What was found of one network.

    Parameters
    ----------
    name
        of the network.
    parameters
        numbers in its state dict.
    groups, permutations, signs
        of its table: groups, decimal logarithm of the permutations, signs.
    continuous
        dimensions of its continuous symmetries by kind.
    apart
        largest relative norm of the difference of the canonical weights of two random disguises.
    seconds
        of the trace, verification included.
    """

    name: str
    parameters: int
    groups: int
    permutations: float
    signs: int
    continuous: tuple[tuple[str, int], ...]
    apart: float
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        short = self.permutations < 12
        permutations = f"{round(10**self.permutations):,}" if short else f"10^{self.permutations:.2f}"
        numbers = (f"{number:,}" for number in (self.parameters, self.groups))
        kinds = dict(self.continuous)
        dimensions = (f"{number:,}" for number in (sum(kinds.values()), *(kinds.get(kind, 0) for kind in KINDS)))
        return (self.name, *numbers, permutations, f"{self.signs:,}", *dimensions, f"{self.apart:.0e}")


KINDS = ("scales", "linear", "orthogonal", "complex", "gains", "folds")
COLUMNS = ("network", "parameters", "groups", "permutations", "signs", "dimensions", *KINDS, "two disguises differ by")


def measured(name: str) -> Row:
    """Trace a small network, count, and compare the canonical forms of two disguises in float64."""
    torch.manual_seed(0)
    module, example = SMALL[name]()
    start = time.perf_counter()
    traced = trace(module, example)
    seconds = time.perf_counter() - start
    counts = count(traced.symmetry)
    state = module.state_dict()
    stack = {tensor.name: state[tensor.name].numpy()[None] for tensor in traced.architecture.tensors}
    stack = {key: value.astype(np.float64) if value.dtype.kind == "f" else value for key, value in stack.items()}
    # Random biases and gains: the initial ones are equal for all channels, which would make every order canonical.
    rng = np.random.default_rng(0)
    for key, value in stack.items():
        if value.dtype.kind == "f":
            stack[key] = (
                np.abs(value + 0.1) if key.endswith("running_var") else value + 0.1 * rng.standard_normal(value.shape)
            )
    if any(group.matrix_shape for group in traced.symmetry.groups):
        stack = fold(stack, traced.symmetry)
    forms = [canonical_form(stack, traced, seed) for seed in (1, 2)]
    apart = max(
        (
            float(np.linalg.norm(value - forms[1][key]) / max(np.linalg.norm(value), 1e-300))
            for key, value in forms[0].items()
            if value.dtype.kind == "f"
        ),
        default=0.0,
    )
    numbers = sum(int(np.prod(tensor.shape)) for tensor in traced.architecture.tensors)
    return Row(
        name,
        numbers,
        len(traced.symmetry.groups),
        counts.log10_permutations,
        counts.signs,
        counts.continuous,
        apart,
        seconds,
    )


def canonical_form(stack: Mapping[str, np.ndarray], traced: Any, seed: int) -> dict[str, np.ndarray]:
    """The canonical weights of a random disguise."""
    element = GroupElement.random(traced.symmetry, 1, np.random.default_rng(seed), spread=0.3)
    normalised = {item.group for act in traced.symmetry.actions if act.exponent == 2 for item in act.segments}
    # Smaller scales than 1 can make a running variance negative.
    scales = {
        name: np.sign(scale) * np.maximum(np.abs(scale), 1 / np.abs(scale)) if name in normalised else scale
        for name, scale in element.scales.items()
    }
    disguised = apply(GroupElement(element.perms, scales, element.matrices), stack, traced.symmetry)
    return canonicalize(disguised, traced).weights


TEXT_FAMILIES = (
    "albert bart bert bert-generation big_bird biogpt bloom camembert clip_text_model cohere cohere2 convbert deberta "
    "distilbert electra ernie esm exaone4 falcon_mamba fnet gemma gemma2 gemma3_text glm gpt2 gpt_bigcode gpt_neox "
    "gptj granite helium hunyuan_v1_dense ibert jamba led llama longformer m2m_100 mamba marian mbart megatron-bert "
    "mistral mixtral modernbert mpnet mpt mra mt5 mvp nemotron nystromformer olmo olmo2 openai-gpt opt pegasus "
    "pegasus_x persimmon phi phi3 plbart qwen2 qwen3 recurrent_gemma roberta roformer rwkv seed_oss smollm3 "
    "squeezebert stablelm starcoder2 t5 umt5 vaultgemma xlm xlm-roberta-xl yoso"
)
IMAGE_FAMILIES = (
    "vit deit beit data2vec-vision dinov2 dinov2_with_registers ijepa siglip_vision_model clip_vision_model vit_msn"
)
"""Families of transformers by the names of their configurations."""
FAMILY_SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "embedding_size", "projection_dim"), 8),
    **dict.fromkeys(("word_embed_proj_dim", "attention_hidden_size"), 8),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 12),
    **dict.fromkeys(("hidden_dim", "ffn_hidden_size", "moe_intermediate_size"), 12),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_attention_heads", "n_head", "n_heads", "num_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "rotary_dim", "type_vocab_size"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "state_size", "patch_size"), 4),
    "num_key_value_heads": 1,
    "vocab_size": 30,
    "n_positions": 16,
    "max_position_embeddings": 16,
    "image_size": 8,
    "num_local_experts": 3,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "conv_kernel": 3,
    "time_step_rank": 2,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
"""Sizes of small configurations; a family takes those that its configuration has."""
TIMM_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    f"{name}_224": sizes
    for names, sizes in (
        (
            "vit_tiny_patch16 deit_tiny_patch16 beit_base_patch16 cait_xxs24",
            {"img_size": 28, "patch_size": 14, "embed_dim": 8, "depth": 2, "num_heads": 2},
        ),
        # these name all their other sizes themselves
        ("mixer_s32 resmlp_12 gmlp_s16", {"img_size": 64}),
    )
    for name in names.split()
}
"""Families of timm by the name of one network, with small sizes."""
_LARGEST_JACOBIAN = 2600
"""Parameters of a network up to which the rank of its Jacobian is computed."""


def _of_transformers(kind: str) -> Made:
    """A family's base model, in a small configuration."""
    transformers = library("transformers")
    own = transformers.CONFIG_MAPPING[kind]
    default = own()
    sizes = {key: value for key, value in FAMILY_SIZES.items() if isinstance(getattr(default, key, None), (int, float))}
    config = own(**sizes)
    config._attn_implementation = "eager"
    module = transformers.AutoModel.from_config(config)
    if kind in IMAGE_FAMILIES.split():
        return module, {"pixel_values": torch.randn(2, 3, 8, 8)}
    tokens = torch.randint(3, 30, (2, 14))
    return module, {"input_ids": tokens} | ({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})


def families() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Families of transformers and timm by name."""
    for kind in (*TEXT_FAMILIES.split(), *IMAGE_FAMILIES.split()):
        yield f"transformers {kind}", lambda kind=kind: _of_transformers(kind)
    for name, sizes in TIMM_FAMILIES.items():
        size = sizes["img_size"]
        yield (
            f"timm {name}",
            lambda name=name, sizes=sizes, size=size: (
                library("timm").create_model(name, num_classes=3, **sizes),
                torch.randn(2, 3, size, size),
            ),
        )


def nullity(module: nn.Module, example: Any) -> tuple[int, int]:
    """The dimension of the directions in which no output changes, at random weights and on random inputs.

    The second number is how many entries rows of embeddings have that none of the inputs takes, which are all free.
    """
    module = module.double().eval()
    rng = np.random.default_rng(0)
    names = [name for name, _ in module.named_parameters()]
    values = [torch.from_numpy(rng.uniform(-1, 1, module.get_parameter(name).shape)) for name in names]
    flat = torch.cat([value.ravel() for value in values]).requires_grad_()
    pieces = flat.split([value.numel() for value in values])
    state = {name: piece.view_as(value) for name, piece, value in zip(names, pieces, values, strict=True)}
    rows: list[torch.Tensor] = []  # the token 0 is padding, whose gradient torch leaves out
    while sum(map(len, rows)) < 2 * len(flat):
        given = {
            key: torch.from_numpy(
                rng.standard_normal(item.shape) if item.is_floating_point() else rng.integers(1, 30, item.shape)
            )
            for key, item in (example if isinstance(example, Mapping) else {"": example}).items()
        }
        args, kwargs = ((given[""],), {}) if "" in given else ((), given)
        with Float64Mode():
            outputs = torch.func.functional_call(module, state, args, kwargs, tie_weights=True)
        leaves = [item for item in pytree.tree_leaves(outputs) if isinstance(item, torch.Tensor) and item.requires_grad]
        result = torch.cat([item.flatten() for item in leaves])
        chosen = torch.from_numpy(rng.permutation(len(result))[: len(flat)])
        rows += torch.autograd.grad(
            result[chosen], flat, torch.eye(len(chosen), dtype=torch.float64), is_grads_batched=True
        )
    lines = torch.cat([row if row.ndim == 2 else row[None] for row in rows])
    singular = torch.linalg.svdvals(lines)
    used = lines.abs().amax(0).split([value.numel() for value in values])
    tables = {f"{name}.weight" for name, item in module.named_modules() if isinstance(item, nn.Embedding)}
    rows_used = {name: item.view_as(value) for name, item, value in zip(names, used, values, strict=True)}
    unused = sum(int((rows_used[name] == 0).all(1).sum()) * rows_used[name].shape[1] for name in tables & set(names))
    return len(flat) - int((singular > 1e-10 * singular[0]).sum()), unused


def _print_families(only: str) -> None:
    columns = ["family", "parameters", "groups", "permutations", "signs", "dimensions"]
    print("| " + " | ".join([*columns, "nullity of the Jacobian", "of it unused embeddings"]) + " |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, make in families():
        if only not in name:
            continue
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                module, example = make()
                module(**example) if isinstance(example, dict) else module(example)
            # these sizes are no sizes of every family: what its constructor or its first call then raises is its own
            except Exception as error:
                _print_reason(name, f"not made in these sizes: {type(error).__name__}: {error}")
                continue
            try:
                traced = trace(module, example)
            except ZooError as error:
                (problem, *_) = error.problems
                _print_reason(name, f"refused: {problem.what}: expected {problem.expected}, got {problem.got}")
                continue
        counts = count(traced.symmetry)
        numbers = sum(value.numel() for value in module.parameters())
        free = nullity(module, example) if numbers <= _LARGEST_JACOBIAN else ()
        permutations = f"10^{counts.log10_permutations:.2f}"
        cells = [name, f"{numbers:,}", str(len(traced.symmetry.groups)), permutations, f"{counts.signs:,}"]
        cells += [f"{counts.dimensions:,}", *(f"{number:,}" for number in free or ()), *([] if free else ["", ""])]
        print("| " + " | ".join(cells) + " |", flush=True)


def _print_reason(name: str, reason: str) -> None:
    line = " ".join(reason.replace("|", r"\|").split())
    print(f"| {name} | {line[:160]} | | | | | | |", flush=True)


VISION = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet1_0 "
    "mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d "
    "shufflenet_v2_x1_0 squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn vit_b_16 wide_resnet50_2"
)
TIMM = (
    "beit_base_patch16_224 cait_xxs24_224 coatnet_nano_rw_224 convit_tiny convmixer_768_32 convnextv2_atto "
    "crossvit_tiny_240 deit_tiny_patch16_224 deit3_small_patch16_224 densenet121 dla34 dpn68 edgenext_xx_small "
    "efficientformer_l1 "
    "eva02_tiny_patch14_224 ghostnet_100 gmlp_s16_224 hrnet_w18_small inception_resnet_v2 levit_128s mixer_s32_224 "
    "mobilevit_xxs nf_resnet50 nfnet_l0 pit_ti_224 poolformer_s12 pvt_v2_b0 regnetx_002 repvgg_a0 res2net50_26w_4s "
    "resmlp_12_224 resnet18 resnetv2_50 rexnet_100 selecsls42 seresnet50 skresnet18 swin_tiny_patch4_window7_224 "
    "tresnet_m twins_pcpvt_small vit_tiny_patch16_224 volo_d1_224 xcit_nano_12_p16_224"
)


def published() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Networks of torchvision and timm by name, with random weights, on inputs of their own sizes."""
    for name in VISION.split():
        size = {"inception_v3": 96, "maxvit_t": 224, "vit_b_16": 224}.get(name, 64)
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        yield (
            f"torchvision {name}",
            lambda name=name, size=size, options=options: (
                torchvision_models().get_model(name, **options),
                torch.randn(2, 3, size, size),
            ),
        )
    for name in TIMM.split():
        yield f"timm {name}", lambda name=name: _of_timm(name)


def _of_timm(name: str) -> Made:
    timm = library("timm")

    module = timm.create_model(name)
    config: Any = module.default_cfg
    return module, torch.randn(2, *config["input_size"])


def _print_published(only: str) -> None:
    found = failed = 0
    for name, make in published():
        if only not in name:
            continue
        torch.manual_seed(0)
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                traced = trace(*make())
        except ZooError as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
        else:
            found += 1
            permutations = count(traced.symmetry).log10_permutations
            seconds = time.perf_counter() - start
            print(f"{name}: 10^{permutations:.2f} permutations, {traced.worst:.0e}, {seconds:.1f} s", flush=True)
    print(f"{found} of {found + failed} trace.")


def main() -> None:
    """Print the table of the documentation, or which published networks trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", action="store_true", help="which networks of torchvision and timm trace")
    parser.add_argument("--families", action="store_true", help="the table of families of transformers and timm")
    parser.add_argument("--only", default="", help="networks whose names have this in them")
    parser.add_argument("--json", type=Path, default=ROOT / "bench-results" / "architectures.json", help="of the table")
    chosen = parser.parse_args()
    if chosen.published:
        _print_published(chosen.only)
        return
    if chosen.families:
        _print_families(chosen.only)
        return
    figures: list[Figure] = []
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---|" + "--:|" * (len(COLUMNS) - 1))
    for name in SMALL:
        if chosen.only in name:
            cells = measured(name).cells
            print("| " + " | ".join(cells) + " |", flush=True)
            figures += [
                {"table": "counts", "row": cells[0], "column": column, "text": text}
                for column, text in zip(COLUMNS[1:], cells[1:], strict=True)
            ]
    write(chosen.json, figures, {})


if __name__ == "__main__":
    main()
