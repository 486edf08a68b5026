"""Peak memory of a model that answers one batch, in a process of its own.

Run as a file, so that a process that only needs ONNX Runtime does not import torch:

    python footprint.py FILE RUNTIME BATCH CHANNELS SAMPLES THREADS
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_LONGEST = 300  # seconds


def footprint(file: Path, runtime: str, batch: int, shape: tuple[int, int], threads: int) -> int | None:
    """Bytes of memory that a process takes at its peak for loading a model and answering one batch.

    Beyond what the process needs with the runtime imported and no model: weights, packed weights and activations.

    Parameters
    ----------
    file : Path
        An .onnx file; for "torch", a network saved whole with torch.save.
    runtime : {"torch", "ort", "openvino"}
    batch : int
    shape : (int, int)
        Channels and samples of a window.
    threads : int

    Returns
    -------
    bytes : int or None
        None where the system does not tell (it is Linux that does) or the process failed.
    """
    if not _RESET.exists():
        return None
    numbers = [str(number) for number in (batch, *shape, threads)]
    # -P: else modules beside this file would stand for the standard library's, such as profile.
    command = [sys.executable, "-P", str(Path(__file__)), str(file), runtime, *numbers]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST)
    except subprocess.TimeoutExpired:
        return None
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else None


def _kilobytes(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


def _measured(file: str, runtime: str, batch: int, channels: int, samples: int, threads: int) -> int:
    import numpy as np

    answer: Any
    if runtime == "torch":
        import torch

        import zipbrain.models
        import zipbrain.seams  # noqa: F401 - what a saved network needs

        torch.set_num_threads(threads)
    elif runtime == "openvino":
        openvino = import_module("openvino")
    else:
        import onnxruntime
    x = np.zeros((batch, channels, samples), np.float32)
    x += np.random.default_rng(0).standard_normal(x.shape, np.float32)
    _RESET.write_text("5")  # the high-water mark becomes the present size
    before = _kilobytes("VmRSS")
    if runtime == "torch":
        network = torch.load(file, weights_only=False)  # written by the process that asks
        with torch.inference_mode():
            answer = network(torch.from_numpy(x))
    elif runtime == "openvino":
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        answer = openvino.Core().compile_model(file, "CPU", settings)(x)
    else:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        answer = session.run(None, {session.get_inputs()[0].name: x})
    assert answer is not None
    return (_kilobytes("VmHWM") - before) * 1024


if __name__ == "__main__":
    print(_measured(*sys.argv[1:3], *map(int, sys.argv[3:])))  # type: ignore[arg-type]
