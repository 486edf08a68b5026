"""Key maps: what the official repositories call a tensor, and what it is called here."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

State = dict[str, Tensor]

_LAT = re.compile(r"(?:transformer\.)?layers\.layers\.(\d+)\.([01])\.(.*)")
_LAT_PARTS = {
    ("0", "norm.weight"): "norm1.weight",
    ("0", "norm.bias"): "norm1.bias",
    ("0", "fn.to_out.weight"): "attn.proj.weight",
    ("0", "fn.to_out.bias"): "attn.proj.bias",
    ("1", "norm.weight"): "norm2.weight",
    ("1", "norm.bias"): "norm2.bias",
    ("1", "fn.fn.w1.weight"): "mlp.fc1.weight",
    ("1", "fn.fn.w1.bias"): "mlp.fc1.bias",
    ("1", "fn.fn.w2.weight"): "mlp.fc2.weight",
    ("1", "fn.fn.w2.bias"): "mlp.fc2.bias",
}


def linear_stack(state: Mapping[str, Tensor], prefix: str, to: str) -> State:
    """Rename one lucidrains transformer; its three projections become one matrix.

    Parameters
    ----------
    state : mapping of str to Tensor
        Official tensors.
    prefix, to : str
        Where the stack stands there and here, each with its final dot.
    """
    found: State = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        match = _LAT.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if match is None:
            continue
        block, half, rest = match.groups()
        projection = re.fullmatch(r"fn\.to_([qkv])\.weight", rest)
        if projection:
            parts.setdefault(block, {})[projection[1]] = value
        elif (half, rest) in _LAT_PARTS:
            found[f"{to}{block}.{_LAT_PARTS[half, rest]}"] = value
    for block, three in parts.items():
        if set(three) == set("qkv"):
            found[f"{to}{block}.attn.qkv.weight"] = torch.cat([three[name] for name in "qkv"])
    return found


def labram(state: Mapping[str, Tensor]) -> State:
    """LaBraM's names are ours; pretraining puts ``student.`` before them."""
    prefixed = any(name.startswith("student.") for name in state)
    return {
        name.removeprefix("student."): value
        for name, value in state.items()
        if name.startswith("student.") or not prefixed
    }


def biot(state: Mapping[str, Tensor]) -> State:
    """A whole classifier (``biot.``, ``classifier.``) or a pretrained encoder alone."""
    inside = "biot." if any(name.startswith("biot.") for name in state) else ""
    names = {
        f"{inside}patch_embedding.projection.weight": "projection.weight",
        f"{inside}patch_embedding.projection.bias": "projection.bias",
        f"{inside}channel_tokens.weight": "channel_tokens.weight",
        "classifier.clshead.1.weight": "head.weight",
        "classifier.clshead.1.bias": "head.bias",
    }
    found = {names[name]: value for name, value in state.items() if name in names}
    return found | linear_stack(state, f"{inside}transformer.", "blocks.")


def eegpt(state: Mapping[str, Tensor]) -> State:
    """The target encoder, the channel convolution of the fine-tuning scripts, and the flat head."""
    front = {
        "chan_conv.0": "front_end.mix", "chan_conv.1": "front_end.norm1", "chan_conv.3": "front_end.conv",
        "chan_conv.4": "front_end.norm2",
    }  # fmt: skip
    found: State = {}
    for name, value in state.items():
        if name.startswith("target_encoder."):
            new = name.replace("patch_embed.proj.", "proj.")
            found[new] = value.flatten(1) if new == "target_encoder.proj.weight" else value
        elif name.startswith("head.1."):
            found[name.replace("head.1.", "head.")] = value
        elif (place := ".".join(name.split(".")[:2])) in front:
            new = name.replace(place, front[place])
            if new == "front_end.mix.weight":
                value = value.flatten(1)  # a 1x1 convolution is a matrix
            elif new == "front_end.conv.weight":
                value = value.squeeze(2)
            found[new] = value
    return found


def tfm_tokenizer(state: Mapping[str, Tensor]) -> State:
    """The tokenizer's own names, with its three transformers renamed."""
    stacks = ("trans_freq_encoder", "trans_temporal_encoder", "trans_decoder")
    found = {name: value for name, value in state.items() if not name.startswith(stacks)}
    for stack in stacks:
        found |= linear_stack(state, f"{stack}.", f"{stack}.")
    return found


def tfm_encoder(state: Mapping[str, Tensor]) -> State:
    """The classifier; fixed tables (``index``, sine positions) are made anew."""
    names = {
        "cls_token": "cls_token", "eeg_token_embedding.weight": "eeg_token_embedding.weight",
        "channel_embed.weight": "channel_embed.weight", "classification_head.weight": "head.weight",
        "classification_head.bias": "head.bias",
    }  # fmt: skip
    found = {names[name]: value for name, value in state.items() if name in names}
    return found | linear_stack(state, "LAT.", "blocks.")
