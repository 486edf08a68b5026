"""Weights by formula, so that test vectors need no stored weights.

``fill({name: shape}, salt="", multiply={})`` returns ``{name: float32 array}``.  Every
tensor depends only on its official name, its shape and the salt:

    seed = crc32((salt + name) in UTF-8)
    z    = numpy.random.Generator(numpy.random.PCG64(seed)).standard_normal(shape)

``z`` is drawn in float64, turned into a value by the first matching rule of
``value`` and cast to float32 last.  Names that ``skip`` answers True for are
left out: integer tables and fixed tables, which the model makes by itself.
``multiply`` maps an exact name to a factor (default 1), applied in float64; a
few "quiet" cases use it to make a normalisation's epsilon visible.
"""

import re
import zlib

import numpy as np

# Fixed or integer tensors: never filled.
SKIP = re.compile(r"(^|\.)(index|pe|freqs|chans_id|relative_position_index|num_batches_tracked)$")

# Scalar * z, for tables and single tokens.
TABLE = [
    (re.compile(r"(^|\.)quantizer\.(embedding\.weight|ema_w)$"), 0.125),
    (re.compile(r"(^|\.)eeg_token_embedding\.weight$"), 0.6),
    (re.compile(r"(^|\.)(channel_tokens|channel_embed|chan_embed)\.weight$"), 0.5),
    (re.compile(r"(^|\.)(pos_embed|time_embed|cls_token|summary_token|mask_token)$"), 0.3),
]

# gain * z / sqrt(fan_in), for matrices and kernels; gain 1 where nothing matches.
GAIN = [
    (re.compile(r"(^|\.)to_[qk]\.weight$"), 3.0),
    (re.compile(r"(^|\.)to_out\.weight$"), 2.0),
    (re.compile(r"(^|\.)attn\.qkv\.weight$"), 1.25),
    (re.compile(r"(^|\.)attn\.proj\.weight$"), 0.7),
    (re.compile(r"(^|\.)(w2|mlp\.fc2)\.weight$"), 2.5),
    (re.compile(r"^biot\.patch_embedding\.projection\.weight$"), 0.12),
    (re.compile(r"^target_encoder\.patch_embed\.proj\.weight$"), 2.0),
    (re.compile(r"^head\.1\.weight$"), 1.5),
]


def skip(name):
    return SKIP.search(name) is not None


def value(name, shape, z):
    """Turn the standard normal draw z (float64) into the tensor called name."""
    if name.endswith("running_var"):
        return 1 + 0.1 * np.abs(z)
    if name.endswith("running_mean"):
        return 0.05 * z
    if name.endswith("cluster_size"):
        return np.abs(z)
    if re.search(r"(^|\.)gamma_[12]$", name):  # layer scale
        return 0.4 * (1 + 0.5 * z)
    if name.endswith("bias"):  # .bias, q_bias, v_bias
        return 0.05 * z
    if re.search(r"(^|\.)[qk]_norm\.weight$", name):  # norm on queries and keys: sharper attention
        return 1.4 + 0.2 * z
    for pattern, scale in TABLE:
        if pattern.search(name):
            return scale * z
    if len(shape) == 1 and name.endswith("weight"):  # every 1-D weight is a norm layer's
        return 1 + 0.1 * z
    if len(shape) >= 2:
        gain = next((g for pattern, g in GAIN if pattern.search(name)), 1.0)
        return gain * z / np.sqrt(np.prod(shape[1:]))
    raise KeyError(f"no rule for {name} of shape {tuple(shape)}")


def fill(shapes, salt="", multiply=None):
    multiply = multiply or {}
    out = {}
    for name, shape in shapes.items():
        if skip(name):
            continue
        shape = tuple(int(s) for s in shape)
        rng = np.random.Generator(np.random.PCG64(zlib.crc32((salt + name).encode("utf-8"))))
        w = value(name, shape, rng.standard_normal(shape)) * multiply.get(name, 1.0)
        out[name] = np.asarray(w, dtype=np.float32)
    return out
