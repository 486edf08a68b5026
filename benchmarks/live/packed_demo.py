"""Export the demo's model with its tuned recipe, and pack what is not in its weights for `zipbrain live --demo`.

python -m benchmarks.live.packed_demo
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from zipbrain.data.synthetic import Synthetic
from zipbrain.evaluation.demo import TUNED, copy_model
from zipbrain.export import convention_of, export
from zipbrain.live.demo_model import GRAPH, WEIGHTS, pack_demo
from zipbrain.pretrained import from_pretrained
from zipbrain.recipe import Recipe

TARGET = Path(__file__).parents[2] / "src" / "zipbrain" / "demo_model" / GRAPH


def main() -> None:
    """Export, pack, and say how large both are."""
    with TemporaryDirectory() as home:
        folder, path = copy_model(Path(home) / "model"), Path(home) / "demo.onnx"
        model, windows = from_pretrained(folder), Synthetic("events", n_subjects=3, windows_per_subject=6).split("test")
        recipe, convention = Recipe.load(folder / TUNED), convention_of(model, windows)
        export(model, windows, path, convention=convention, recipe=recipe, checkpoint="demo_model", groups=True)
        content = path.read_bytes()
        packed = pack_demo(content, (folder / WEIGHTS).read_bytes())
    TARGET.write_bytes(packed)
    print(f"{TARGET}: {len(packed):,} of {len(content):,} bytes")


if __name__ == "__main__":
    main()
