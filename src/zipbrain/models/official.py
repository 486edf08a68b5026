"""Key maps: what the official repositories call a tensor, and what it is called here.

Every map takes the tensors it knows out of the dictionary it is given; what stays there belongs to no model of ours.
"""

from __future__ import annotations

import re

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


def linear_stack(state: State, prefix: str, to: str) -> State:
    """Rename one lucidrains transformer; its three projections become one matrix.

    Parameters
    ----------
    state : dict of str to Tensor
        Official tensors.
    prefix, to : str
        Where the stack stands there and here, each with its final dot.
    """
    found: State = {}
    parts: dict[str, dict[str, str]] = {}
    for name in list(state):
        match = _LAT.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if match is None:
            continue
        block, half, rest = match.groups()
        projection = re.fullmatch(r"fn\.to_([qkv])\.weight", rest)
        if projection:
            parts.setdefault(block, {})[projection[1]] = name
        elif (half, rest) in _LAT_PARTS:
            found[f"{to}{block}.{_LAT_PARTS[half, rest]}"] = state.pop(name)
    for block, three in parts.items():
        if set(three) == set("qkv"):
            found[f"{to}{block}.attn.qkv.weight"] = torch.cat([state.pop(three[part]) for part in "qkv"])
    return found


def labram(state: State) -> State:
    """LaBraM's names are ours; pretraining puts ``student.`` before them."""
    prefix = "student." if any(name.startswith("student.") for name in state) else ""
    return {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}


def biot(state: State) -> State:
    """A whole classifier (``biot.``, ``classifier.``) or a pretrained encoder alone."""
    inside = "biot." if any(name.startswith("biot.") for name in state) else ""
    names = {
        f"{inside}patch_embedding.projection.weight": "projection.weight",
        f"{inside}patch_embedding.projection.bias": "projection.bias",
        f"{inside}channel_tokens.weight": "channel_tokens.weight",
        "classifier.clshead.1.weight": "head.weight",
        "classifier.clshead.1.bias": "head.bias",
    }
    found = {new: state.pop(name) for name, new in names.items() if name in state}
    return found | linear_stack(state, f"{inside}transformer.", "blocks.")


def eegpt(state: State) -> State:
    """The target encoder, the channel convolution of the fine-tuning scripts, and the flat head or the probe."""
    places = {
        "chan_conv.0.": "front_end.mix.", "chan_conv.1.": "front_end.norm1.", "chan_conv.3.": "front_end.conv.",
        "chan_conv.4.": "front_end.norm2.", "chan_conv.": "front_end.mix.", "head.1.": "head.",
        "linear_probe1.": "head.reduce.", "decoder.": "head.decoder.", "cls_token": "head.cls_token",
        "linear_probe2.": "head.classify.", "target_encoder.patch_embed.proj.": "target_encoder.proj.",
        "target_encoder.": "target_encoder.",
    }  # fmt: skip
    matrices = ("front_end.mix.weight", "target_encoder.proj.weight")  # convolutions of width 1, or as wide as a step
    found: State = {}
    for name in list(state):
        old = next((place for place in places if name.startswith(place)), None)
        if old is None:
            continue
        new, value = places[old] + name.removeprefix(old), state.pop(name)
        if new in matrices:
            value = value.flatten(1)
        elif new == "front_end.conv.weight":
            value = value.squeeze(2)
        found[new] = value
    return found


def tfm_tokenizer(state: State) -> State:
    """The tokenizer's own names, with its three transformers renamed."""
    stacks = ("trans_freq_encoder", "trans_temporal_encoder", "trans_decoder")
    found = {name: state.pop(name) for name in list(state) if not name.startswith(stacks)}
    for stack in stacks:
        found |= linear_stack(state, f"{stack}.", f"{stack}.")
    return found


def tfm_encoder(state: State) -> State:
    """The classifier; fixed tables (``index``, sine positions) are made anew."""
    names = {
        "cls_token": "cls_token", "eeg_token_embedding.weight": "eeg_token_embedding.weight",
        "channel_embed.weight": "channel_embed.weight", "classification_head.weight": "head.weight",
        "classification_head.bias": "head.bias",
    }  # fmt: skip
    found = {new: state.pop(name) for name, new in names.items() if name in state}
    return found | linear_stack(state, "LAT.", "blocks.")
