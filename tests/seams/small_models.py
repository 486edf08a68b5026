"""Small models in every dialect, and the methods that run on all of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from linear_attention_transformer import LinearAttentionTransformer
from torch import Tensor, nn

from zipbrain import DART, EViT, FreeSlicing, LocalMerging, PiToMe, ToFu, ToMe, ZIPBrain

DIM, HEADS, DEPTH, N = 16, 2, 3, 14

METHODS: dict[str, Any] = {
    "zipbrain": ZIPBrain(),
    "zipbrain-heads": ZIPBrain("vh", "kh", "qh", 0.3),
    "tome": ToMe(),
    "tofu": ToFu(),
    "tofu-prune": ToFu(merge_from=None),
    "evit": EViT(fuse=False),
    "evit-mean": EViT("mean", fuse=False),
    "evit-fuse": EViT(),
    "dart": DART(pivots=3),
    "pitome": PiToMe(),
    "local": LocalMerging(2),
    "free_slicing": FreeSlicing(),
}


def varied(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fill all parameters with random values, norms and scales included, so that no part can hide; eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.copy_(0.7 + 0.3 * noise)
    return model.eval()


def tokens(batch: int = 2, n: int = N, dim: int = DIM, seed: int = 1) -> Tensor:
    """Random tokens, (B, N, D)."""
    return torch.randn(batch, n, dim, generator=torch.Generator().manual_seed(seed))


class Mlp(nn.Module):
    """fc1, GELU, fc2."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Attention(nn.Module):
    """timm's attention, written out with an explicit map."""

    def __init__(self, dim: int = DIM, heads: int = HEADS, norm: bool = False) -> None:
        super().__init__()
        self.num_heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attn_drop, self.proj_drop = nn.Dropout(0.1), nn.Dropout(0.1)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, count, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        weights = self.attn_drop((q * self.scale @ k.transpose(2, 3)).softmax(-1))
        return self.proj_drop(self.proj(self.norm((weights @ v).transpose(1, 2).reshape(x.shape))))


class LabramAttention(Attention):
    """No key bias, a norm on queries and keys, an uncommon scale."""

    def __init__(self, dim: int = DIM, heads: int = HEADS) -> None:
        super().__init__(dim, heads)
        self.qkv, self.scale = nn.Linear(dim, 3 * dim, bias=False), 0.3
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.q_norm, self.k_norm = nn.LayerNorm(dim // heads, eps=1e-6), nn.LayerNorm(dim // heads, eps=1e-6)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, count, dim = x.shape
        bias = torch.cat((self.q_bias, torch.zeros(dim, dtype=x.dtype), self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias)
        q, k, v = qkv.reshape(batch, count, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.q_norm(q), self.k_norm(k), v


class LayerScale(nn.Module):
    """timm's layer scale."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Halve(nn.Module):
    """Stands in for stochastic depth with an effect that eval mode shows."""

    def __init__(self, factor: float = 0.5) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class PlainBlock(nn.Module):
    """norm1, attn, norm2, mlp."""

    def __init__(self, attn: nn.Module | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(DIM), nn.LayerNorm(DIM), Mlp()
        self.attn = attn if attn is not None else Attention()

    def branch1(self, x: Tensor) -> Tensor:
        return x

    branch2 = branch1

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch1(self.attn(self.norm1(x)))
        return x + self.branch2(self.mlp(self.norm2(x)))


class HandWrittenBlock(nn.Module):
    """What people write around nn.MultiheadAttention."""

    def __init__(self, norm_first: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.ln_1, self.attend = nn.LayerNorm(DIM), nn.MultiheadAttention(DIM, HEADS, batch_first=batch_first)
        self.ln_2, self.mlp, self.drop = nn.LayerNorm(DIM), Mlp(), nn.Dropout(0.1)

    def mix(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.attend(x, x, x, need_weights=False)[0]
        return self.drop(mixed)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.mix(self.ln_1(x))
            return x + self.drop(self.mlp(self.ln_2(x)))
        x = self.ln_1(x + self.mix(x))
        return self.ln_2(x + self.drop(self.mlp(x)))


class LayerScaleBlock(PlainBlock):
    """timm: ls1, ls2, drop_path1, drop_path2."""

    def __init__(self) -> None:
        super().__init__(Attention(norm=True))
        self.ls1, self.ls2 = LayerScale(), LayerScale()
        self.drop_path1, self.drop_path2 = Halve(), Halve(0.25)

    def branch1(self, x: Tensor) -> Tensor:
        return self.drop_path1(self.ls1(x))

    def branch2(self, x: Tensor) -> Tensor:
        return self.drop_path2(self.ls2(x))


class LabramBlock(PlainBlock):
    """LaBraM: gamma_1, gamma_2, one drop_path, q_bias, v_bias, q_norm, k_norm."""

    def __init__(self) -> None:
        super().__init__(LabramAttention())
        self.gamma_1, self.gamma_2 = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.ones(DIM))
        self.drop_path = Halve()

    def branch1(self, x: Tensor) -> Tensor:
        return self.drop_path(self.gamma_1 * x)

    def branch2(self, x: Tensor) -> Tensor:
        return self.drop_path(self.gamma_2 * x)


class Stack(nn.Module):
    """Blocks one after the other, with a norm at the end; tokens in, tokens out."""

    def __init__(self, kind: type[nn.Module] = PlainBlock, depth: int = DEPTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([kind() for _ in range(depth)])
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class WithPrefix(nn.Module):
    """A CLS token (or more) in front of a stack; returns all tokens."""

    def __init__(self, prefix: int = 1, **attributes: Any) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, prefix, DIM))
        self.stack = Stack()
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(torch.cat((self.start.expand(x.shape[0], -1, -1), x), dim=1))


class TimeFirst(nn.Module):
    """Turns a (T, B, D) encoder into one that takes (B, T, D)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


def torch_encoder(norm_first: bool, batch_first: bool, depth: int = DEPTH) -> nn.Module:
    """nn.TransformerEncoder over (B, T, D)."""
    layer = nn.TransformerEncoderLayer(
        DIM, HEADS, 2 * DIM, activation="gelu", batch_first=batch_first, norm_first=norm_first
    )
    encoder = nn.TransformerEncoder(
        layer, depth, norm=nn.LayerNorm(DIM), enable_nested_tensor=batch_first and not norm_first
    )
    return encoder if batch_first else TimeFirst(encoder)


def linear_transformer(depth: int = DEPTH, **options: Any) -> LinearAttentionTransformer:
    """The encoder of BIOT and TFM-Tokenizer, small."""
    return LinearAttentionTransformer(dim=DIM, depth=depth, max_seq_len=64, heads=HEADS, **options)


DIALECTS: dict[str, Any] = {
    "plain": Stack,
    "layer-scale": lambda: Stack(LayerScaleBlock),
    "labram": lambda: Stack(LabramBlock),
    "hand-written": lambda: Stack(HandWrittenBlock),
    "hand-written post-norm": lambda: Stack(lambda: HandWrittenBlock(norm_first=False)),
    "linear": linear_transformer,
    "pre-norm": lambda: torch_encoder(True, True),
    "post-norm": lambda: torch_encoder(False, True),
    "pre-norm-time-first": lambda: torch_encoder(True, False),
    "post-norm-time-first": lambda: torch_encoder(False, False),
}


def dialect(name: str) -> nn.Module:
    """A small model of one dialect with varied weights, in eval mode."""
    return varied(DIALECTS[name]())
