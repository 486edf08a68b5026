"""The ViT layer of Hugging Face transformers 5: layernorm_before, attention, layernorm_after, mlp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.seams.dialects.base import register_dialect
from zipbrain.seams.dialects.pre_norm import PreNorm
from zipbrain.seams.dialects.recognition import MATCH, NO_MATCH, Recognition, near_miss

if TYPE_CHECKING:
    from zipbrain.seams.forward import Site

_HARMLESS = ("num_items_in_batch", "output_attentions", "output_hidden_states", "return_dict")  # no layer reads them
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@register_dialect
class HuggingFace(PreNorm):
    """``x += dropout(attention(layernorm_before(x)))``, ``x += dropout(mlp(layernorm_after(x)))``."""

    name = "Hugging Face ViT"
    looks_like = "layernorm_before, attention with q_proj, k_proj, v_proj, o_proj, layernorm_after, mlp"

    @classmethod
    def run(cls, host: nn.Module, site: Site, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("output_attentions"):
            raise OptionError("output_attentions", True, "a compressed layer gives no map: use zipbrain.trace")
        kept = {name: value for name, value in kwargs.items() if name not in _HARMLESS}
        return super().run(host, site, x, *args, **kept)

    @classmethod
    def recognise_parts(cls, block: nn.Module) -> Recognition:
        parts: dict[str, Any] = dict(block.named_children())
        if not {"layernorm_before", "attention", "layernorm_after"} <= set(parts):
            return NO_MATCH
        attn = parts["attention"]
        if not all(isinstance(getattr(attn, name, None), nn.Linear) for name in _PROJECTIONS) or "mlp" not in parts:
            return near_miss("its layer has the form of transformers 4; version 5 is known")
        heads = getattr(attn, "num_attention_heads", None)
        return MATCH if isinstance(heads, int) else near_miss("its attention has no num_attention_heads")

    @classmethod
    def project(cls, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attn, normed = block.attention, block.layernorm_before(x)
        return attn.q_proj(normed), attn.k_proj(normed), attn.v_proj(normed)

    @classmethod
    def out(cls, block: Any, mixed: Tensor) -> Tensor:
        out: Tensor = block.attention.o_proj(mixed)
        return _dropped(block, out)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        return x + _dropped(block, block.mlp(block.layernorm_after(x)))

    @classmethod
    def heads(cls, block: Any) -> int:
        return int(block.attention.num_attention_heads)

    @classmethod
    def dropout(cls, block: Any) -> float:
        return float(getattr(block.attention, "attention_dropout", 0.0))

    @classmethod
    def weights(cls, block: Any) -> tuple[nn.Linear, nn.Module]:
        return block.attention.q_proj, block.mlp


def _dropped(block: Any, x: Tensor) -> Tensor:
    drop = getattr(block, "dropout", None)
    return x if drop is None else drop(x)
