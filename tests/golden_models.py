"""Golden vectors of whole networks, plain and pooled: what `golden.py` does with a file of model configurations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import zipbrain
from zipbrain.models import BIOT, EEGPT, CBraMod, LaBraM, TFMEncoder, TFMTokenizer, load_official, read_checkpoint

BOUND = 2e-5  # 2e-4 would hide the tanh form of GELU

Fill = Callable[..., dict[str, np.ndarray]]


def build(kind: str, config: dict[str, Any], samples: int) -> nn.Module:
    """Our model for one case."""
    if kind == "labram":
        return LaBraM(config["num_classes"], config["channels"], config["patches"] * 200)
    if kind == "cbramod":
        return CBraMod(0, config["channels"], config["patches"] * 200, depth=config["depth"])
    if kind == "biot":
        return BIOT(config["num_classes"], config["n_channels"], samples)
    if kind == "tfm_encoder":
        return TFMEncoder(config["num_classes"], config["channels"], 100 * config["frames"] + 100)
    if kind == "tfm_tokenizer":
        return TFMTokenizer()
    if config.get("in_channels") or config.get("classifier"):
        names = [f"channel {i}" for i in range(config.get("in_channels", 23))]
        return EEGPT(config["num_classes"], names, samples, front_end="tuab")
    return EEGPT(1, config["channels"], samples)


def kind_of(params: dict[str, Any]) -> str:
    """Which network a list of official tensor names belongs to."""
    for name, kind in (
        ("time_embed", "labram"), ("biot.channel_tokens.weight", "biot"), ("target_encoder.summary_token", "eegpt"),
        ("quantizer.embedding.weight", "tfm_tokenizer"), ("eeg_token_embedding.weight", "tfm_encoder"),
        ("patch_embedding.positional_encoding.0.weight", "cbramod"),
    ):  # fmt: skip
        if name in params:
            return kind
    raise SystemExit(f"no model has tensors such as {', '.join(list(params)[:3])}")


def weights(params: dict[str, Any], config: dict[str, Any], fill: Fill, folder: Path) -> dict[str, Tensor] | None:
    """Tensors under official names: by formula, or from the released file; None where that is absent."""
    if "weights_sha256" not in config:
        made = fill(params, config["salt"], config.get("multiply"))
        return {name: torch.from_numpy(value) for name, value in made.items()}
    for path in sorted((folder.parent / "weights").glob("*.pth")):
        if hashlib.sha256(path.read_bytes()).hexdigest() == config["weights_sha256"]:
            return read_checkpoint(path)
    return None


def outputs(kind: str, model: Any, x: Tensor) -> dict[str, Tensor]:
    """What a model gives, under the names of the vectors."""
    if kind == "tfm_tokenizer":
        return {
            "ids": model(x), "quant_in": model.encode(x), "stft": model.stft(x)[:1].transpose(2, 3),
            "reconstruction": model.reconstruct(x)[:1].transpose(2, 3),
        }  # fmt: skip
    if kind == "tfm_encoder":
        return {"logits": model(x)}
    if kind == "cbramod":
        return grid_outputs(model, x)
    if kind == "eegpt" and model.front_end is None:
        return {"output": model.features(x)}
    found = {"logits": model(x), "features": model.features(x)}
    if kind == "eegpt":
        found["features"] = found["features"][:1]
        found["after_chan_conv"] = model.front_end(x)[:1]
    return found


def grid_outputs(model: Any, x: Tensor) -> dict[str, Tensor]:
    """The answer of a model that keeps a grid, its first tokens and the last one behind every block."""
    embedded: list[Tensor] = []
    ended: list[Tensor] = []
    handles = [model.embed.register_forward_hook(lambda _, __, grid: embedded.append(grid[:, 0, :2]))]
    handles += [
        block.register_forward_hook(lambda _, __, grid: ended.append(grid[:, -1, -1])) for block in model.blocks
    ]
    output = model(x)
    for handle in handles:
        handle.remove()
    return {"output": output, "embed_first": embedded[0], "end_last": torch.stack(ended)}


def check_models(file: Any, fill: Fill, folder: Path, error: Callable[..., float]) -> Iterator[tuple[str, float, str]]:
    """Every case of a file of plain or pooled models: (case, largest error, fault)."""
    for case in sorted({key.split("/")[0] for key in file.files if key.endswith("/config")}):
        config = json.loads(str(file[f"{case}/config"]))
        pooled = "z1" in config
        home = case.rsplit("_", 1)[0] if f"{case}/params" not in file.files else case
        params = json.loads(str(file[f"{home}/params"])) if f"{home}/params" in file.files else {}
        if pooled and f"{home}/config" in file.files:
            config = json.loads(str(file[f"{home}/config"])) | config
        kind = kind_of(params)
        x = torch.from_numpy(file[f"{case}/{'ids' if f'{case}/ids' in file.files and kind == 'tfm_encoder' else 'x'}"])
        state = weights(params, config, fill, folder)
        if state is None:
            yield case, 0.0, "the released weights are not here: skipped"
            continue
        model = build(kind, config, int(x.shape[-1])).eval()
        report = load_official(model, state)
        made = ("num_batches_tracked", "head.weight", "head.bias")  # not in EEGPT's vectors
        left = [name for name in report.initial if kind != "eegpt" or not name.endswith(made)]
        fault = f"not loaded: {', '.join(left[:3])}" if left else ""
        x = x.long() if kind == "tfm_encoder" else x
        worst = 0.0
        with torch.no_grad():
            if pooled:
                worst, wrong = check_pooled(kind, model, x, file, case, config, error)
                fault = fault or wrong
            else:
                for name, value in outputs(kind, model, x).items():
                    if name == "ids":
                        if not np.array_equal(value.numpy(), file[f"{case}/ids"]):
                            fault = fault or "ids differ"
                    elif f"{case}/{name}" in file.files:
                        worst = max(worst, error(value, file[f"{case}/{name}"]))
        yield case, worst, fault or ("" if worst <= BOUND else f"over {BOUND:g}")


def check_pooled(
    kind: str, model: nn.Module, x: Tensor, file: Any, case: str, config: dict[str, Any], error: Callable[..., float]
) -> tuple[float, str]:
    """A compressed model end to end: kept tokens at every block, owners, outputs."""
    key = "output" if f"{case}/output" in file.files else "logits"
    worst = (
        error(outputs(kind, model, x)[key], file[f"{case}/{key}_plain"]) if f"{case}/{key}_plain" in file.files else 0.0
    )
    method = zipbrain.ZIPBrain(config["z1"], config["z2"], config["z3"], config["rho"])
    zipbrain.compress(model, method, r=config["r"], layers=config["blocks_with_pooling"])
    with zipbrain.trace(model) as trace:
        found = outputs(kind, model, x)[key]
    worst = max(worst, error(found, file[f"{case}/{key}"]))
    whole = None
    for layer in trace.layers:
        whole = layer.grouping if whole is None else whole.compose(layer.grouping)
        name = f"{case}/kept/{layer.block:02d}"
        if name in file.files:
            first, last = config["protected_leading"], config["protected_trailing"]
            mine = whole.kept[:, first : whole.kept.shape[1] - last] - first
            if not np.array_equal(mine.reshape(file[name].shape).numpy(), file[name]):
                return worst, f"kept tokens differ after block {layer.block}"
    owner = file[f"{case}/owner"]
    if not np.array_equal(trace.source_map().reshape(owner.shape).numpy(), owner):
        return worst, "owners differ"
    return worst, ""
