"""Which parameters are trained, with what weight decay and what share of the learning rate."""

from __future__ import annotations

import re
from typing import Any, Final

import torch
from torch import nn

from zipbrain.errors import OptionError
from zipbrain.models.max_norm import MaxNormLinear
from zipbrain.training.settings import TrainingSettings

# Layer 0 of layer decay: what makes tokens. LaBraM's time embedding is not among them, as in its official code.
_EMBEDDINGS: Final = {
    "LaBraM": ("cls_token", "pos_embed", "patch_embed."),
    "EEGPT": ("target_encoder.proj.", "target_encoder.chan_embed.", "target_encoder.summary_token"),
    "BIOT": ("projection.", "channel_tokens."),
    "CBraMod": ("embed.",),
    "TFM-Tokenizer": ("encoder.eeg_token_embedding.", "encoder.channel_embed.", "encoder.cls_token"),
}
_SPARED: Final = ("pos_embed", "time_embed", "cls_token")
_BLOCK: Final = re.compile(r"(?:target_encoder\.|encoder\.)?blocks\.(\d+)\.")


def freeze(model: nn.Module, frozen: tuple[str, ...]) -> list[nn.Module]:
    """Take gradients from parameters whose names start so, give them to all others; modules that stay in eval mode."""
    names = [name for name, _ in model.named_parameters()]
    for prefix in frozen:
        if not any(name.startswith(prefix) for name in names):
            raise OptionError("frozen", prefix, f"no parameter of {type(model).__name__} starts so, such as {names[0]}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OptionError("frozen", frozen, "nothing is left to train")
    return [module for name, module in model.named_modules() if frozen and f"{name}.".startswith(frozen)]


def layer_of(name: str, model: str, depth: int) -> int:
    """0 for embeddings, 1 to depth for blocks, depth + 1 for the rest."""
    if name.startswith(_EMBEDDINGS.get(model, ())):
        return 0
    block = _BLOCK.match(name)
    return int(block[1]) + 1 if block else depth + 1


def parameter_groups(model: nn.Module, settings: TrainingSettings) -> list[dict[str, Any]]:
    """Groups for the optimiser, each with its `weight_decay` and its factor `share` on the learning rate."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    depth = max((int(block[1]) + 1 for name, _ in trained if (block := _BLOCK.match(name))), default=0)
    decay = settings.applied("layer_decay") or 1.0
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in trained:
        spared = parameter.dim() <= 1 or name.endswith(".bias") or name in _SPARED
        layer = layer_of(name, settings.model, depth) if decay != 1 else depth + 1
        key = layer, spared and not settings.decay_all
        if key not in groups:
            weight_decay = 0.0 if key[1] else settings.weight_decay
            groups[key] = {"params": [], "weight_decay": weight_decay, "share": decay ** (depth + 1 - layer)}
        groups[key]["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """AdamW or Adam over `parameter_groups`, in one fused step."""
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    groups = parameter_groups(model, settings)
    return kind(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)


def clip_weights(layers: list[MaxNormLinear]) -> None:
    """Bring rows back to their largest norm in place, as EEGPT's official layers do before every forward."""
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.renorm(layer.weight, 2, 0, layer.max_norm))
