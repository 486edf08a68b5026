"""Check test vectors made with the official implementations: ``python tests/golden.py FILE...``.

Knows the formats by what a file contains: single pooling steps, ToMe, EViT, plain models and pooled models. Prints the
error of every case; exit code 1 if one is out of bounds. Error = largest absolute difference divided by the largest
absolute expected value.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from golden_models import check_models
from zipbrain.pooling import EViT, ToMe, ZIPBrain, pool
from zipbrain.pooling.grouping import take
from zipbrain.pooling.schedule import LinearSchedule, as_schedule
from zipbrain.pooling.tokens import Tokens

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass
class Outcome:
    """One case: its name, the largest error, and what went wrong (empty if nothing did)."""

    case: str
    error: float
    fault: str = ""


def relative_error(found: Tensor | np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference over the largest absolute expected value."""
    found = found.detach().double().numpy() if isinstance(found, Tensor) else found
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-300))


def check_pool(file: Any) -> Iterator[Outcome]:
    """Algorithm 1 alone, in float64 and float32: indices identical, features within bounds."""
    for case in sorted({key.split("/")[0] for key in file.files if key.endswith("/meta")}):
        meta = json.loads(str(file[f"{case}/meta"]))
        method = ZIPBrain(meta["z1"], meta["z2"], meta["z3"], meta["rho"])
        for dtype, bound in BOUNDS.items():
            x = torch.from_numpy(file[f"{case}/x"])[None].to(dtype)
            q, k, v = (torch.from_numpy(file[f"{case}/{n}"]).transpose(0, 1)[None].to(dtype) for n in "qkv")
            pooled = pool(x, q, k, v, r=meta["r"], method=method, protected=meta["protected"])
            grouping = pooled.grouping
            wrong = [
                name
                for name, found in (("kept", grouping.kept), ("src", grouping.source), ("tgt", grouping.target))
                if not np.array_equal(found[0].numpy(), file[f"{case}/{name}"])
            ]
            error = relative_error(pooled.x[0], file[f"{case}/out"])
            fault = f"{', '.join(wrong)} differ" if wrong else "" if error <= bound else f"over {bound:g}"
            yield Outcome(f"{case} {str(dtype).removeprefix('torch.')}", error, fault)


def check_tome(file: Any) -> Iterator[Outcome]:
    """ToMe over three layers: groups, sizes, features and un-merged features; attention; schedules."""
    for case in sorted({key.split("/")[0] for key in file.files if key.endswith("/group0")}):
        meta = json.loads(str(file[f"{case}/meta"]))
        x = torch.from_numpy(file[f"{case}/x"]).double()
        mass = torch.ones(x.shape[:2], dtype=x.dtype)
        owner = torch.arange(x.shape[1]).expand(x.shape[:2])  # place of every original token, in the authors' order
        error, fault = 0.0, ""
        for layer, r in enumerate(meta["r"]):
            metric = torch.from_numpy(file[f"{case}/metric{layer}"]).double()
            asked = min(r, x.shape[1] - meta["class_token"] - 1)
            cls = int(meta["class_token"])
            pooled = pool(x, k=metric[:, None], r=asked, method=ToMe(), mass=mass, protected=cls)
            assert pooled.mass is not None
            if pooled.grouping.removed != meta["removed"][layer]:
                fault = f"layer {layer} removed {pooled.grouping.removed}, not {meta['removed'][layer]}"
                break
            ours = pooled.grouping.places().gather(1, owner)
            owner = torch.from_numpy(file[f"{case}/group{layer}"]).long()
            # Ours stays in the original order, the authors' does not: our place of each of their tokens.
            place = torch.empty(pooled.x.shape[:2], dtype=torch.int64).scatter_(1, owner, ours)
            if not torch.equal(place.gather(1, owner), ours) or len(set(place[0].tolist())) < place.shape[1]:
                fault = f"groups of layer {layer} differ"
                break
            if f"{case}/unmerged{layer}" in file.files:
                spread = pooled.grouping.unmerge(pooled.x)[:1]
                error = max(error, relative_error(spread, file[f"{case}/unmerged{layer}"]))
            # The next layer's parity counts in the authors' order, so it starts from the authors' arrangement.
            x, mass = take(pooled.x, place), pooled.mass.gather(1, place)
            error = max(error, relative_error(x, file[f"{case}/x{layer}"]))
            error = max(error, relative_error(mass, file[f"{case}/size{layer}"]))
        yield Outcome(case, error, fault or ("" if error <= 1e-10 else "over 1e-10"))
    yield from check_tome_attention(file)
    for number, wanted in enumerate(json.loads(str(file["schedules"]))):
        r = wanted["r"]
        schedule = LinearSchedule(r[0], r[1]) if wanted["kind"] == "tuple" else as_schedule(r=r)
        found = list(schedule.requested(10**9, wanted["layers"]))
        fault = "" if found == wanted["per_layer"] else f"{found} instead of {wanted['per_layer']}"
        yield Outcome(f"schedule {number}", 0.0, fault)


def check_tome_attention(file: Any) -> Iterator[Outcome]:
    """Attention with and without log sizes, through the timm-like seam."""
    from zipbrain.seams.dialects.timm_like import TimmLike

    fill = formula(file)
    for case in sorted({key.split("/")[0] for key in file.files if key.startswith("attn")}):
        meta = json.loads(str(file[f"{case}/meta"]))
        block = PlainBlock(meta["dim"], meta["heads"]).double()
        weights = {f"attn.{n}": w for n, w in fill(meta["params"], meta["salt"]).items()}
        block.load_state_dict({n: torch.from_numpy(w).double() for n, w in weights.items()}, strict=False)
        x = torch.from_numpy(file[f"{case}/x"]).double()
        sizes = torch.from_numpy(file[f"{case}/size"]).double().reshape(x.shape[:2])
        for name, bias in (("out_without_size", None), ("out_with_size", sizes.log())):
            parts = TimmLike.attention(block.attn, x, bias, False)
            error = relative_error(parts.output, file[f"{case}/{name}"])
            error = max(error, relative_error(parts.k.mean(1), file[f"{case}/metric"]))
            yield Outcome(f"{case} {name}", error, "" if error <= 1e-10 else "over 1e-10")


def check_evit(file: Any) -> Iterator[Outcome]:
    """EViT over three blocks: importance, kept sets, stream after the reduction and at the end of each block."""
    from zipbrain.seams.dialects.timm_like import TimmLike

    fill = formula(file)
    for case in sorted({key.split("/")[0] for key in file.files if key.endswith("/meta")}):
        meta = json.loads(str(file[f"{case}/meta"]))
        x = torch.from_numpy(file[f"{case}/x"]).double()
        method = EViT(score="cls", fuse=meta["fuse"])
        error, fault = 0.0, ""
        for layer, salt in enumerate(meta["salt"]):
            block = PlainBlock(meta["dim"], meta["heads"], meta["norm_eps"]).double()
            weights = fill(meta["params"], salt)
            block.load_state_dict({n: torch.from_numpy(w).double() for n, w in weights.items()})
            attended = TimmLike.attend(block, x, None, False)
            n = x.shape[1] - 1
            kept = n if f"{case}/idx{layer}" not in file.files else file[f"{case}/idx{layer}"].shape[1]
            tokens = Tokens(attended.x, 0, attended.q, attended.k, attended.v, leading=1, scale=attended.scale)
            grouping = method.regroup(tokens, n - kept)
            merged = method.merge_rule(tokens)(attended.x, grouping) if kept < n else attended.x
            if kept < n:
                error = max(error, relative_error(method.importance(tokens), file[f"{case}/cls_attn{layer}"]))
                order = torch.from_numpy(file[f"{case}/idx{layer}"]) + 1
                mine = grouping.kept[:, 1 : 1 + kept]
                if not torch.equal(order.sort(1).values, mine):
                    fault = f"kept tokens of block {layer} differ"
                    break
                # The authors' order: CLS, kept by falling score, fused.
                rank = order.argsort(1).argsort(1) + 1
                last = torch.full_like(rank[:, :1], kept + 1)[:, : int(meta["fuse"])]
                rank = torch.cat((torch.zeros_like(rank[:, :1]), rank, last), dim=1)
                merged = merged.gather(1, rank.unsqueeze(2).expand(-1, -1, x.shape[2]))
            error = max(error, relative_error(merged, file[f"{case}/mid{layer}"]))
            x = TimmLike.feed_forward(block, merged)
            error = max(error, relative_error(x, file[f"{case}/out{layer}"]))
        yield Outcome(case, error, fault or ("" if error <= 1e-10 else "over 1e-10"))


class PlainBlock(nn.Module):
    """A pre-norm transformer block with timm's names."""

    def __init__(self, dim: int, heads: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps), nn.LayerNorm(dim, eps)
        self.attn = nn.Module()
        self.attn.num_heads = heads
        self.attn.qkv, self.attn.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = Mlp(dim)


class Mlp(nn.Module):
    """fc1, GELU, fc2."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


def formula(file: Any) -> Any:
    """``fill`` of the ``formula.py`` that lies beside the vectors."""
    path = Path(file.fid.name if file.fid else file.zip.filename).with_name("formula.py")
    spec = importlib.util.spec_from_file_location("golden_formula", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fill


def check(path: Path) -> list[Outcome]:
    """All outcomes of one file, by its format."""
    with np.load(path) as file:
        if any(key.endswith("/config") for key in file.files):
            folder = Path(path).resolve().parent
            return [Outcome(*found) for found in check_models(file, formula(file), folder, relative_error)]
        if "schedules" in file.files:
            return list(check_tome(file))
        if any(key.endswith("/cls_attn1") for key in file.files):
            return list(check_evit(file))
        if any(key.endswith("/tgt") for key in file.files):
            return list(check_pool(file))
    raise SystemExit(f"{path}: not a format of single steps, ToMe, EViT or models")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    failed = 0
    for path in parser.parse_args().files:
        outcomes = check(path)
        for outcome in outcomes:
            print(f"{path.name}  {outcome.case:24s} {outcome.error:9.2e}  {outcome.fault or 'ok'}")
        bad = sum(bool(outcome.fault) for outcome in outcomes)
        worst = max(outcome.error for outcome in outcomes)
        print(f"{path.name}: {len(outcomes) - bad} of {len(outcomes)} ok, largest error {worst:.2e}")
        failed += bad
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
