"""Which ToFu is the paper's: the one that prunes in the first half of the blocks, or the one that merges throughout?

    python -m benchmarks.fidelity.tofu run [MODEL_FOLDER...]  # trained on synthetic events; the demo's if none
    python -m benchmarks.fidelity.tofu page  # the stored rows into docs/explanation/method.md

In the paper ToMe and ToFu have the same kappa, weighted F1 and accuracy to four digits on LaBraM and TUEV (29,421 test
windows) with 20 % of the tokens removed, and AUROCs within 0.0002 of each other on BIOT and TUAB at every ratio. Here
both forms of ToFu run beside both of ToMe on networks that are at hand: how many decisions differ, by how much the
scores do, and how often, among draws of 29,421 windows with replacement, kappa, weighted F1 and accuracy would agree to
four digits if neither method were better than the other.

Writes benchmarks/results/tofu.csv; a model of the same name is replaced.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.results import DEMO, RESULTS, fill, read_csv, write_csv

RATIOS = (0.2, 0.8)
TUEV = 29_421  # test windows in the paper
DRAWS = 4000
FORMS = {"prunes in the first half": None, "merges throughout": 1}  # values of `merge_from`
REFERENCES = {"ToMe": True, "ToMe, plain attention": False}  # values of `proportional_attention`


def counts(labels: Any, decisions: Any, classes: int) -> Any:
    """Confusion counts (classes, classes)."""
    return np.bincount(labels * classes + decisions, minlength=classes**2).reshape(classes, classes)


def scores_of(confusion: Any) -> Any:
    """Kappa, weighted F1 and accuracy of confusion counts (..., classes, classes): (..., 3)."""
    total = confusion.sum((-2, -1))
    true, said, hits = confusion.sum(-1), confusion.sum(-2), np.diagonal(confusion, axis1=-2, axis2=-1)
    accuracy, chance = hits.sum(-1) / total, (true * said).sum(-1) / total**2
    f1 = 2 * hits / np.maximum(true + said, 1)
    return np.stack([(accuracy - chance) / (1 - chance), (f1 * true).sum(-1) / total, accuracy], -1)


def auroc(labels: Any, logits: Any) -> float:
    """Area under the curve of each class against the others, mean over classes."""
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    areas = []
    for number in range(logits.shape[1]):
        rank, own = chances[:, number].argsort().argsort(), labels == number
        areas.append((rank[own].sum() - own.sum() * (own.sum() - 1) / 2) / (own.sum() * (~own).sum()))
    return float(np.mean(areas))


def chance_of_equality(labels: Any, one: Any, other: Any, classes: int, seed: int = 0) -> float:
    """How often kappa, weighted F1 and accuracy agree to four digits on draws of the paper's number of windows.

    Labels and pairs of decisions are drawn as they were seen, a pair as often as its reverse.
    """
    triples = np.concatenate([(labels * classes + a) * classes + b for a, b in ((one, other), (other, one))])
    share = np.bincount(triples, minlength=classes**3) / len(triples)
    drawn = np.random.default_rng(seed).multinomial(TUEV, share, DRAWS).reshape(DRAWS, classes, classes, classes)
    both = [np.round(scores_of(drawn.sum(axis)), 4) for axis in (3, 2)]
    return float((both[0] == both[1]).all(1).mean())


def measure(folder: Path, people: int) -> list[dict[str, Any]]:
    """One row for every ratio, form of ToFu and form of ToMe."""
    import torch

    from zipbrain import ToFu, ToMe, compress, from_pretrained, restore
    from zipbrain.data import Synthetic
    from zipbrain.models import model_name
    from zipbrain.paper import MODELS, known_name
    from zipbrain.training import predict

    model = restore(from_pretrained(folder))
    name = known_name(model_name(model), MODELS)
    montage = "bipolar" if name in ("BIOT", "TFM-Tokenizer") else "referential"
    corpus = Synthetic("events", n_subjects=people, windows_per_subject=60, seed=2, montage=montage)  # seen by no model
    windows = corpus.split("test")
    labels, classes = np.asarray(windows.labels), len(windows.classes)

    def decide(method: Any, ratio: float) -> Any:
        if method is not None:
            compress(model, method, ratio=ratio)
        with torch.no_grad():
            logits = np.asarray(predict(model, windows, batch_size=64))
        restore(model)
        return logits

    original = decide(None, 0.0).argmax(1)
    rows = []
    for ratio in RATIOS:
        tofus = {form: decide(ToFu(merge_from=start), ratio) for form, start in FORMS.items()}
        for reference, weighs in REFERENCES.items():
            merged = decide(ToMe(proportional_attention=weighs), ratio)
            tome = merged.argmax(1)
            for form, fused in tofus.items():
                tofu = fused.argmax(1)
                change = scores_of(counts(labels, tofu, classes)) - scores_of(counts(labels, tome, classes))
                rows.append({
                    "model": name, "windows": len(labels), "ratio": ratio, "tofu": form, "against": reference,
                    "kappa original": f"{scores_of(counts(labels, original, classes))[0]:.4f}",
                    "kappa ToMe": f"{scores_of(counts(labels, tome, classes))[0]:.4f}",
                    "kappa ToFu less ToMe": f"{change[0]:+.4f}", "weighted F1 ToFu less ToMe": f"{change[1]:+.4f}",
                    "accuracy ToFu less ToMe": f"{change[2]:+.4f}",
                    "AUROC ToFu less ToMe": f"{auroc(labels, fused) - auroc(labels, merged):+.5f}",
                    "decisions unlike ToMe": f"{(tofu != tome).mean():.4f}",
                    "decisions unlike the original": f"{(tofu != original).mean():.4f}",
                    "equal to four digits": f"{chance_of_equality(labels, tome, tofu, classes):.4f}",
                })  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def table() -> str:
    """Every form of ToFu beside ToMe, by model and ratio."""
    columns = "decisions that differ", "AUROC less ToMe's", "kappa less ToMe's", "equal to four digits"
    out = [f"| model, removed | ToFu | against | {' | '.join(columns)} |", "|---" * 7 + "|"]
    for row in read_csv("tofu"):
        removed = f"{100 * float(row['ratio']):.0f} %"
        share, equal = f"{100 * float(row['decisions unlike ToMe']):.2f} %", f"{float(row['equal to four digits']):.3f}"
        cells = row["tofu"], row["against"], share, row["AUROC ToFu less ToMe"], row["kappa ToFu less ToMe"], equal
        out.append(f"| {row['model']}, {removed} | {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    """Measure and store, or show what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("models", type=Path, nargs="*", default=[DEMO])
    running.add_argument("--people", type=int, default=100, help="made-up subjects, of whom a part is tested")
    verbs.add_parser("page")
    given = parser.parse_args()
    if given.verb == "page":
        fill({"tofu": table})
    else:
        for folder in given.models:
            rows = measure(folder, given.people)
            if (RESULTS / "tofu.csv").exists():
                rows = [row for row in read_csv("tofu") if row["model"] != rows[0]["model"]] + rows
            write_csv("tofu", rows)


if __name__ == "__main__":
    main()
