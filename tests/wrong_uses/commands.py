"""Commands that were asked wrong."""

from __future__ import annotations

from pathlib import Path

from tests.wrong_uses import Answer, command, wrong_use


@wrong_use("a command that does not exist")
def unknown_command(folder: Path) -> Answer:
    return command("compres")


@wrong_use("evaluate a checkpoint that is not there")
def missing_checkpoint(folder: Path) -> Answer:
    return command("evaluate", folder / "model", "--data", folder)


@wrong_use("predict with a model file that is not ONNX")
def text_as_model(folder: Path) -> Answer:
    (folder / "model.onnx").write_text("weights")
    (folder / "night.edf").write_bytes(b"0" * 256)
    return command("predict", folder / "night.edf", "--model", folder / "model.onnx")


@wrong_use("compare a folder that holds no model")
def no_model_in_folder(folder: Path) -> Answer:
    return command("compare", folder, "--data", folder)
