"""Key maps from the official repositories' names of tensors to ours.

Every map takes the tensors it knows out of the dictionary it is given; what stays there belongs to no model of ours.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

State = dict[str, Tensor]

_LAT = re.compile(r"(?:transformer\.)?layers\.layers\.(\d+)\.([01])\.(.*)")
_LAT_LAYERS = [("0", "norm", "norm1"), ("0", "fn.to_out", "attn.proj"), ("1", "norm", "norm2")]
_LAT_LAYERS += [("1", "fn.fn.w1", "mlp.fc1"), ("1", "fn.fn.w2", "mlp.fc2")]
_LAT_PARTS = {(half, f"{old}.{part}"): f"{new}.{part}" for half, old, new in _LAT_LAYERS for part in ("weight", "bias")}

_CBRAMOD_BLOCK = re.compile(r"encoder\.layers\.(\d+)\.(.*?)(weight|bias)")
_CBRAMOD_EMBED = {"positional_encoding.0": "position", "spectral_proj.0": "spectral"}
_CBRAMOD_EMBED |= {f"proj_in.{3 * i}": f"conv{i + 1}" for i in range(3)}
_CBRAMOD_EMBED |= {f"proj_in.{3 * i + 1}": f"norm{i + 1}" for i in range(3)}
_CBRAMOD_PARTS = {"linear1.": "mlp.fc1.", "linear2.": "mlp.fc2.", "norm1.": "norm1.", "norm2.": "norm2."}
for _old, _new in (("self_attn_s", "spatial"), ("self_attn_t", "temporal")):
    _CBRAMOD_PARTS |= {f"{_old}.in_proj_": f"{_new}.qkv.", f"{_old}.out_proj.": f"{_new}.proj."}


def linear_stack(state: State, prefix: str, to: str) -> State:
    """Rename one lucidrains transformer from `prefix` to `to`; its three projections become one matrix."""
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
    names = {f"{inside}channel_tokens.weight": "channel_tokens.weight"}
    for part in ("weight", "bias"):
        names[f"{inside}patch_embedding.projection.{part}"] = f"projection.{part}"
        names[f"classifier.clshead.1.{part}"] = f"head.{part}"
    found = {new: state.pop(name) for name, new in names.items() if name in state}
    return found | linear_stack(state, f"{inside}transformer.", "blocks.")


def eegpt(state: State) -> State:
    """The target encoder, the channel convolution of the fine-tuning scripts, and the flat head or the probe."""
    places = {"chan_conv.0.": "front_end.mix.", "chan_conv.1.": "front_end.norm1.", "chan_conv.3.": "front_end.conv."}
    places |= {"chan_conv.4.": "front_end.norm2.", "chan_conv.": "front_end.mix.", "head.1.": "head."}
    places |= {"linear_probe1.": "head.reduce.", "decoder.": "head.decoder.", "cls_token": "head.cls_token"}
    places |= {"linear_probe2.": "head.classify.", "target_encoder.patch_embed.proj.": "target_encoder.proj."}
    places |= {"target_encoder.": "target_encoder."}
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
    names = {name: name for name in ("cls_token", "eeg_token_embedding.weight", "channel_embed.weight")}
    names |= {f"classification_head.{part}": f"head.{part}" for part in ("weight", "bias")}
    found = {new: state.pop(name) for name, new in names.items() if name in state}
    return found | linear_stack(state, "LAT.", "blocks.")


def cbramod(state: State) -> State:
    """The pretrained model, or a fine-tuned one (``backbone.``, ``classifier.``) with any of the official heads."""
    inside = "backbone." if any(name.startswith("backbone.") for name in state) else ""
    places = {f"{inside}patch_embedding.{old}.": f"embed.{new}." for old, new in _CBRAMOD_EMBED.items()}
    places |= {f"{inside}proj_out.0.": "proj_out."}
    linear = sorted({int(name.split(".")[1]) for name in state if re.match(r"classifier\.\d+\.", name)})
    for number, layer in enumerate(linear):
        places[f"classifier.{layer}."] = "head." if len(linear) == 1 else f"head.{3 * number}."
    found: State = {}
    for name in list(state):
        block = _CBRAMOD_BLOCK.fullmatch(name.removeprefix(inside))
        if block and block[2] in _CBRAMOD_PARTS:
            found[f"blocks.{block[1]}.{_CBRAMOD_PARTS[block[2]]}{block[3]}"] = state.pop(name)
        elif old := next((place for place in places if name.startswith(place)), None):
            found[places[old] + name.removeprefix(old)] = state.pop(name)
    return found
