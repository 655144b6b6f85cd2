"""Blocks of published families of networks, small, each with the example that it takes."""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

D, TOKENS, LENGTH = 8, 11, 5


def words() -> torch.Tensor:
    return torch.randint(0, TOKENS, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def pictures() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Queries or keys (B, heads, tokens, k) turned by their places."""
    k = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), 10.0 ** -torch.arange(k // 2, dtype=x.dtype))
    angles = torch.cat([angles, angles], dim=1)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class Attention(nn.Module):
    """Heads of one of the kinds that differ between families."""

    def __init__(
        self,
        d: int = D,
        heads: int = 2,
        kv: int = 2,
        *,
        bias: bool = True,
        out_bias: bool | None = None,
        rotary: bool = False,
        normed: str = "",
        bias_table: bool = False,
        slopes: bool = False,
        packed: bool = False,
        causal: bool = False,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.kv, self.k = heads, kv, d // heads
        self.rotary, self.slopes, self.causal, self.scaled = rotary, slopes, causal, scaled
        width = kv * self.k
        if packed:
            self.qkv = nn.Linear(d, d + 2 * width, bias=bias)
        else:
            self.q, self.key, self.v = (
                nn.Linear(d, d, bias=bias),
                nn.Linear(d, width, bias=bias),
                nn.Linear(d, width, bias=bias),
            )
        self.packed = packed
        self.o = nn.Linear(d, d, bias=bias if out_bias is None else out_bias)
        self.relative = nn.Embedding(2 * LENGTH, heads) if bias_table else None
        self.normed = normed
        if normed:
            self.q_norm, self.k_norm = (
                nn.RMSNorm(self.k if normed == "head" else d),
                nn.RMSNorm(self.k if normed == "head" else width),
            )

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        T, d = x.shape[1:]
        given = x if memory is None else memory
        if self.packed:
            q, key, v = self.qkv(x).split([d, self.kv * self.k, self.kv * self.k], dim=-1)
        else:
            q, key, v = self.q(x), self.key(given), self.v(given)
        if self.normed == "all":
            q, key = self.q_norm(q), self.k_norm(key)
        q, key, v = (item.unflatten(-1, (-1, self.k)).transpose(1, 2) for item in (q, key, v))
        if self.normed == "head":
            q, key = self.q_norm(q), self.k_norm(key)
        if self.rotary:
            q, key = rotated(q), rotated(key)
        if self.kv < self.heads:
            key, v = (item.repeat_interleave(self.heads // self.kv, dim=1) for item in (key, v))
        scores = q @ key.transpose(-1, -2) / (math.sqrt(self.k) if self.scaled else 1.0)
        if self.relative is not None:
            places = torch.arange(T)
            scores = scores + self.relative(places[:, None] - places[None] + LENGTH).permute(2, 0, 1)
        if self.slopes:
            places = torch.arange(T, dtype=x.dtype)
            scores = scores + torch.tensor([0.5, 0.25], dtype=x.dtype)[:, None, None] * (places[None] - places[:, None])
        if self.causal:
            scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Units(nn.Module):
    """Units behind an activation, or gated ones."""

    def __init__(
        self, act: Callable[[torch.Tensor], torch.Tensor], *, gated: bool = False, bias: bool = True, d: int = D
    ) -> None:
        super().__init__()
        self.act, self.gated = act, gated
        self.up, self.down = nn.Linear(d, 6, bias=bias), nn.Linear(6, d, bias=bias)
        if gated:
            self.gate = nn.Linear(d, 6, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x) if self.gated else self.act(self.up(x)))


class Block(nn.Module):
    """Attention and units beside a stream, norms before, behind, around or beside them."""

    def __init__(
        self, attention: nn.Module, units: nn.Module, norm: Callable[[int], nn.Module], order: str = "before"
    ) -> None:
        super().__init__()
        self.attention, self.units, self.order = attention, units, order
        self.first, self.second = norm(D), norm(D)
        if order == "around":
            self.third, self.fourth = norm(D), norm(D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.order == "before":
            x = x + self.attention(self.first(x))
            return x + self.units(self.second(x))
        if self.order == "behind":
            x = self.first(x + self.attention(x))
            return self.second(x + self.units(x))
        if self.order == "on the branch":
            x = x + self.first(self.attention(x))
            return x + self.second(self.units(x))
        if self.order == "around":
            x = x + self.third(self.attention(self.first(x)))
            return x + self.fourth(self.units(self.second(x)))
        if self.order == "one":
            y = self.first(x)
            return x + self.attention(y) + self.units(y)
        return x + self.attention(self.first(x)) + self.units(self.second(x))  # beside each other


class Language(nn.Module):
    """Words, places, blocks and a head."""

    def __init__(
        self,
        blocks: list[nn.Module],
        norm: Callable[[int], nn.Module] | None,
        *,
        tied: bool = False,
        places: bool = False,
        head_bias: bool = False,
        repeats: int = 1,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, D)
        self.places = nn.Embedding(LENGTH, D) if places else None
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm(D) if norm is not None else None
        self.head = None if tied else nn.Linear(D, TOKENS, bias=head_bias)
        self.repeats = repeats

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        if self.places is not None:
            x = x + self.places(torch.arange(words.shape[1]))
        for _ in range(self.repeats):
            for block in self.blocks:
                x = block(x)
        x = x if self.norm is None else self.norm(x)
        return x @ self.words.weight.T if self.head is None else self.head(x)


def rms(d: int) -> nn.Module:
    return nn.RMSNorm(d)


def layer(d: int) -> nn.Module:
    return nn.LayerNorm(d)


def language(
    attention: dict, units: tuple, norm: Callable[[int], nn.Module], order: str = "before", **options
) -> nn.Module:
    act, gated, bias = units
    final = None if order == "behind" else norm
    return Language(
        [
            Block(Attention(**attention), Units(act, gated=gated, bias=bias), norm, order)
            for _ in range(options.pop("layers", 1))
        ],
        final,
        **options,
    )


class Seq2Seq(nn.Module):
    """An encoder and a decoder with attention to it, as in BART, T5 and Whisper."""

    def __init__(
        self, norm: Callable[[int], nn.Module], units: tuple, order: str, *, tied: bool, bias: bool = True, **attention
    ) -> None:
        super().__init__()
        act, gated, unit_bias = units
        self.order = order
        self.words = nn.Embedding(TOKENS, D)
        self.own, self.cross = (
            Attention(bias=bias, causal=True, **attention),
            Attention(bias=bias, **{k: v for k, v in attention.items() if k == "scaled"}),
        )
        self.units = Units(act, gated=gated, bias=unit_bias)
        self.encoder = Block(Attention(bias=bias, **attention), Units(act, gated=gated, bias=unit_bias), norm, order)
        self.n1, self.n2, self.n3 = norm(D), norm(D), norm(D)
        self.norm, self.encoder_norm = (norm(D), norm(D)) if order == "before" else (nn.Identity(), nn.Identity())
        self.head = None if tied else nn.Linear(D, TOKENS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        memory = self.encoder_norm(self.encoder(x))
        if self.order == "before":
            x = x + self.own(self.n1(x))
            x = x + self.cross(self.n2(x), memory)
            x = self.norm(x + self.units(self.n3(x)))
        else:
            x = self.n1(x + self.own(x))
            x = self.n2(x + self.cross(x, memory))
            x = self.n3(x + self.units(x))
        return x @ self.words.weight.T if self.head is None else self.head(x)


class Vision(nn.Module):
    """Patches, a class token, blocks and a head."""

    def __init__(
        self,
        blocks: list[nn.Module],
        norm: Callable[[int], nn.Module],
        *,
        pooled: bool = False,
        patch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, D, 4, 4)
        self.token, self.places = (
            nn.Parameter(torch.randn(1, 1, D)),
            nn.Parameter(torch.randn(1, 4 if pooled else 5, D)),
        )
        self.blocks, self.norm, self.head = nn.Sequential(*blocks), norm(D), nn.Linear(D, 4)
        self.pooled = pooled
        self.before = norm(D) if patch_norm else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        if not self.pooled:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = x + self.places
        if self.before is not None:
            x = self.before(x)
        x = self.norm(self.blocks(x))
        return self.head(x.mean(1) if self.pooled else x[:, 0])


class LayerScale(nn.Module):
    """A branch with a gain for each channel, as in CaiT, DINOv2 and ConvNeXt."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.gain = inner, nn.Parameter(torch.rand(D) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * self.inner(x)


class Mixer(nn.Module):
    """MLP-Mixer: units over tokens, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(D), nn.LayerNorm(D)
        self.tokens, self.channels = Units(F.gelu, d=4), Units(F.gelu)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))


def convnet(kind: str) -> nn.Module:
    return {
        "VGG": vgg,
        "ResNet": lambda: Residual("basic"),
        "ResNet-D": lambda: Residual("bottleneck"),
        "PreAct": lambda: Residual("before"),
        "SENet": lambda: Residual("squeezed"),
        "MobileNetV2": lambda: Residual("inverted"),
        "ConvNeXt": lambda: Residual("next"),
        "DenseNet": dense,
        "ResNeXt": lambda: Residual("groups"),
        "ShuffleNet": lambda: Residual("shuffled"),
    }[kind]()


def bn(c: int) -> nn.Module:
    return nn.BatchNorm2d(c)


def vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1),
        bn(5),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3, padding=1),
        bn(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 4),
    )


class Residual(nn.Module):
    """A stem, a block of one of the kinds and a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), bn(6), nn.ReLU())
        act = nn.ReLU6 if kind == "inverted" else nn.ReLU
        if kind == "basic":
            inner = [
                nn.Conv2d(6, 6, 3, padding=1, bias=False),
                bn(6),
                act(),
                nn.Conv2d(6, 6, 3, padding=1, bias=False),
                bn(6),
            ]
        elif kind == "before":
            inner = [
                bn(6),
                act(),
                nn.Conv2d(6, 5, 3, padding=1, bias=False),
                bn(5),
                act(),
                nn.Conv2d(5, 6, 3, padding=1, bias=False),
            ]
        elif kind == "inverted":
            inner = [
                nn.Conv2d(6, 8, 1, bias=False),
                bn(8),
                act(),
                nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
                bn(8),
                act(),
                nn.Conv2d(8, 6, 1, bias=False),
                bn(6),
            ]
        elif kind == "groups":
            inner = [
                nn.Conv2d(6, 8, 1, bias=False),
                bn(8),
                act(),
                nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False),
                bn(8),
                act(),
                nn.Conv2d(8, 6, 1, bias=False),
                bn(6),
            ]
        elif kind == "shuffled":
            inner = [
                nn.Conv2d(6, 8, 1, groups=2, bias=False),
                bn(8),
                act(),
                nn.ChannelShuffle(2),
                nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
                bn(8),
                nn.Conv2d(8, 6, 1, groups=2, bias=False),
                bn(6),
            ]
        elif kind == "next":
            inner = [
                nn.Conv2d(6, 6, 3, padding=1, groups=6),
                nn.GroupNorm(1, 6),
                nn.Conv2d(6, 10, 1),
                nn.GELU(),
                nn.Conv2d(10, 6, 1),
            ]
        else:
            inner = [
                nn.Conv2d(6, 4, 1, bias=False),
                bn(4),
                act(),
                nn.Conv2d(4, 4, 3, padding=1, bias=False),
                bn(4),
                act(),
                nn.Conv2d(4, 6, 1, bias=False),
                bn(6),
            ]
        self.inner = nn.Sequential(*inner)
        self.squeeze = (
            nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 6), nn.Sigmoid()) if kind == "squeezed" else None
        )
        self.gain = nn.Parameter(torch.rand(6, 1, 1)) if kind == "next" else None
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.inner(x)
        if self.squeeze is not None:
            y = y * self.squeeze(y.mean((2, 3)))[:, :, None, None]
        if self.gain is not None:
            y = y * self.gain
        y = x + y
        return self.head((y if self.kind in ("inverted", "next") else F.relu(y)).mean((2, 3)))


def dense() -> nn.Module:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3, padding=1)
            self.one = nn.Sequential(bn(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1, bias=False))
            self.two = nn.Sequential(bn(7), nn.ReLU(), nn.Conv2d(7, 3, 3, padding=1, bias=False))
            self.head = nn.Linear(10, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for part in (self.one, self.two):
                x = torch.cat([x, part(x)], dim=1)
            return self.head(F.relu(x).mean((2, 3)))

    return Dense()


class Experts(nn.Module):
    """A mixture of experts that all are run, weighed by a softmax, as in Mixtral."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, 3, bias=False)
        self.gate, self.up, self.down = (nn.Parameter(torch.randn(3, *shape) / 3) for shape in ((D, 6), (D, 6), (6, D)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        h = F.silu(torch.einsum("btd,edh->bteh", x, self.gate)) * torch.einsum("btd,edh->bteh", x, self.up)
        return torch.einsum("bted,bte->btd", torch.einsum("bteh,ehd->bted", h, self.down), weights)


plain, biased = {"bias": False, "causal": True}, {"causal": True}
swiglu = (F.silu, True, False)
FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "GPT-2": (
        lambda: language({**biased, "packed": True}, (F.gelu, False, True), layer, tied=True, places=True),
        words,
    ),
    "BERT": (lambda: language({}, (F.gelu, False, True), layer, "behind", places=True, head_bias=True), words),
    "ALBERT": (lambda: language({}, (F.gelu, False, True), layer, "behind", places=True, repeats=2), words),
    "Llama": (lambda: language({**plain, "rotary": True}, swiglu, rms), words),
    "Mistral": (lambda: language({**plain, "rotary": True, "kv": 1}, swiglu, rms), words),
    "Qwen2, tied": (
        lambda: language({"causal": True, "rotary": True, "kv": 1, "out_bias": False}, swiglu, rms, tied=True),
        words,
    ),
    "Qwen3": (lambda: language({**plain, "rotary": True, "normed": "head"}, swiglu, rms), words),
    "OLMo2": (lambda: language({**plain, "rotary": True, "normed": "all"}, swiglu, rms, "on the branch"), words),
    "Gemma2, tied": (
        lambda: language({**plain, "rotary": True, "kv": 1}, (F.gelu, True, False), rms, "around", tied=True),
        words,
    ),
    "Phi-2": (lambda: language({**biased, "rotary": True}, (F.gelu, False, True), layer, "one"), words),
    "GPT-NeoX": (
        lambda: language({**biased, "rotary": True, "packed": True}, (F.gelu, False, True), layer, "beside"),
        words,
    ),
    "Falcon": (lambda: language({**plain, "rotary": True, "kv": 1}, (F.gelu, False, False), layer, "one"), words),
    "Bloom": (
        lambda: language({**biased, "slopes": True, "packed": True}, (F.gelu, False, True), layer, tied=True),
        words,
    ),
    "MPT": (
        lambda: language({**plain, "slopes": True, "packed": True}, (F.gelu, False, False), layer, tied=True),
        words,
    ),
    "OPT": (lambda: language(biased, (F.relu, False, True), layer, places=True), words),
    "Mixtral": (lambda: Language([Block(Attention(bias=False, causal=True, rotary=True), Experts(), rms)], rms), words),
    "T5": (
        lambda: Seq2Seq(rms, (F.relu, False, False), "before", tied=True, bias=False, bias_table=True, scaled=False),
        words,
    ),
    "T5 v1.1": (
        lambda: Seq2Seq(rms, (F.gelu, True, False), "before", tied=False, bias=False, bias_table=True, scaled=False),
        words,
    ),
    "BART": (lambda: Seq2Seq(layer, (F.gelu, False, True), "behind", tied=True), words),
    "Whisper": (lambda: Seq2Seq(layer, (F.gelu, False, True), "before", tied=True), words),
    "ViT": (lambda: Vision([Block(Attention(packed=True), Units(F.gelu), layer)], layer), pictures),
    "DeiT III": (
        lambda: Vision([Block(LayerScale(Attention(packed=True)), LayerScale(Units(F.gelu)), layer)], layer),
        pictures,
    ),
    "CLIP vision": (
        lambda: Vision(
            [Block(Attention(), Units(lambda x: x * torch.sigmoid(1.702 * x)), layer)], layer, patch_norm=True
        ),
        pictures,
    ),
    "DINOv2, SwiGLU": (
        lambda: Vision([Block(LayerScale(Attention()), LayerScale(Units(F.silu, gated=True)), layer)], layer),
        pictures,
    ),
    "SigLIP": (lambda: Vision([Block(Attention(), Units(F.gelu), layer)], layer, pooled=True), pictures),
    "MLP-Mixer": (lambda: Vision([Mixer()], layer, pooled=True), pictures),
    **{
        kind: ((lambda kind=kind: convnet(kind)), pictures)
        for kind in (
            "VGG",
            "ResNet",
            "ResNet-D",
            "PreAct",
            "SENet",
            "MobileNetV2",
            "ConvNeXt",
            "DenseNet",
            "ResNeXt",
            "ShuffleNet",
        )
    },
}
