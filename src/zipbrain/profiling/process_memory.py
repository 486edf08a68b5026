"""Peak memory of a model that answers one batch, in a process of its own.

Run as a file, so that a process that only needs ONNX Runtime does not import torch:

    python process_memory.py FILE RUNTIME BATCH CHANNELS SAMPLES THREADS
"""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_LONGEST = 300  # seconds that a process may take


def peak_of_process(file: Path, runtime: str, batch: int, shape: tuple[int, int], threads: int) -> int | None:
    """Bytes that a process takes at its peak for loading a model file and answering one batch of windows of `shape`.

    Beyond what it needs with the runtime imported and no model. The file is an .onnx file or, for "torch", a network
    saved whole. None where the system is not Linux or the process failed.
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


def peak_of_call(call: Callable[[], object]) -> int:
    """Bytes by which this process's resident set grows at the peak of a call (Linux)."""
    if not _RESET.exists():
        raise OSError(f"peak memory on a CPU needs {_RESET}, which only Linux has")
    _RESET.write_text("5")  # the high-water mark becomes the present size
    before = _kilobytes("VmRSS")
    kept = call()
    peak = _kilobytes("VmHWM")
    del kept
    return max(0, peak - before) * 1024


def _kilobytes(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])


def _measure(file: str, runtime: str, batch: int, channels: int, samples: int, threads: int) -> int:
    """Import a runtime, then load and run a model in it."""
    import numpy as np

    x = np.random.default_rng(0).standard_normal((batch, channels, samples), np.float32)
    call: Callable[[], Any]
    if runtime == "torch":
        import torch

        import zipbrain.models
        import zipbrain.seams  # noqa: F401 - what a saved network needs

        torch.set_num_threads(threads)

        @torch.inference_mode()
        def call() -> Any:
            return torch.load(file, weights_only=False)(torch.from_numpy(x))  # written by the process that asks

    elif runtime == "openvino":
        openvino = import_module("openvino")
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}

        def call() -> Any:
            return openvino.Core().compile_model(file, "CPU", settings)(x)

    else:
        import onnxruntime

        def call() -> Any:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = threads, 4
            session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            return session, session.run(None, {session.get_inputs()[0].name: x})

    return peak_of_call(call)


if __name__ == "__main__":
    print(_measure(*sys.argv[1:3], *map(int, sys.argv[3:])))  # type: ignore[arg-type]
