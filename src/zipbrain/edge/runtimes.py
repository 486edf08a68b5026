"""What runs an exported graph: ONNX Runtime on a CPU or through CUDA, or OpenVINO."""

from __future__ import annotations

import io
import os
from importlib import import_module
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from zipbrain.edge.description import INPUT, OUTPUT
from zipbrain.errors import MissingExtra, ModelFileError, OptionError

RUNTIMES: Final = ("onnxruntime", "openvino")
PROVIDERS: Final = ("cpu", "cuda")

Shape = tuple[int | None, ...]


class Runtime(Protocol):
    """A graph that is ready to run.

    Attributes
    ----------
    name : str
        What runs it, with its version.
    input_shape, output_shape : tuple of (int or None)
        None stands for any size.
    """

    name: str
    input_shape: Shape
    output_shape: Shape

    def run(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Logits (m, K) of scaled windows (m, C, T)."""
        ...


def available_threads() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OnnxRuntime:
    """See `Runtime`.

    Parameters
    ----------
    content : bytes
        An ONNX file that `read_onnx` found to need no other one.
    path : str
        Where it came from, for error messages.
    threads : int
    provider : {"cpu", "cuda"}
    spinning : bool
        Let idle threads wait busily: faster alone, slower beside others.
    """

    def __init__(self, content: bytes, path: str, *, threads: int, provider: str, spinning: bool) -> None:
        import onnxruntime as ort

        self._path = path
        version = f"onnxruntime {ort.__version__}"
        self.name = f"{version} (CUDA)" if provider == "cuda" else version
        wanted = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[provider]
        if wanted not in ort.get_available_providers():
            advice = "install onnxruntime-gpu instead of onnxruntime on a machine with a CUDA device, or take 'cpu'"
            raise OptionError("provider", provider, f"{version} as installed here has none: {advice}")
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4  # what goes wrong is raised too
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
        providers = list(dict.fromkeys([wanted, "CPUExecutionProvider"]))
        try:
            self._session = ort.InferenceSession(content, options, providers=providers)
            ends = (*self._session.get_inputs(), *self._session.get_outputs())
        except Exception as error:  # ONNX Runtime's errors have no common base but this
            raise _failed(path, self.name, error) from None
        if self._session.get_providers()[0] != wanted:
            raise OptionError(
                "provider", provider, "ONNX Runtime could not start CUDA here: check driver and libraries"
            )
        if [end.name for end in ends] != [INPUT, OUTPUT]:
            raise _other_ends(path, [end.name for end in ends])
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        if ends[0].type not in kinds:
            raise ModelFileError(
                f"{path}: its input is {ends[0].type}, not floating point; make it with zipbrain export"
            )
        self._dtype = kinds[ends[0].type]
        self.input_shape, self.output_shape = (
            tuple(size if isinstance(size, int) else None for size in end.shape) for end in ends
        )

    def run(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Logits (m, K) of scaled windows (m, C, T)."""
        try:
            logits = self._session.run([OUTPUT], {INPUT: x.astype(self._dtype, copy=False)})[0]
        except Exception as error:
            raise _failed(self._path, self.name, error) from None
        return np.asarray(logits)


class OpenVINO:
    """See `Runtime`; float32 unless the file itself is of another precision."""

    def __init__(self, content: bytes, path: str, *, threads: int) -> None:
        try:
            openvino = import_module("openvino")
        except ModuleNotFoundError:
            raise MissingExtra("openvino", "openvino", "runtime 'openvino'") from None
        self._path, self.name = path, f"openvino {openvino.__version__.split('-')[0]}"
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # on some CPUs it would take bfloat16 by itself
        }
        try:
            core = openvino.Core()
            model = core.read_model(io.BytesIO(content))
            ends = [(end.any_name, end.partial_shape) for end in (*model.inputs, *model.outputs)]
            self._dtype = model.inputs[0].element_type.to_dtype() if model.inputs else np.float32
            self._compiled: Any = core.compile_model(model, "CPU", settings)
        except Exception as error:
            raise _failed(path, self.name, error) from None
        if [name for name, _ in ends] != [INPUT, OUTPUT]:
            raise _other_ends(path, [name for name, _ in ends])
        self.input_shape, self.output_shape = (
            tuple(size.get_length() if size.is_static else None for size in shape) for _, shape in ends
        )

    def run(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Logits (m, K) of scaled windows (m, C, T)."""
        try:
            logits = self._compiled(x.astype(self._dtype, copy=False))[0]
        except Exception as error:
            raise _failed(self._path, self.name, error) from None
        return np.asarray(logits)


def _other_ends(path: str, names: list[str]) -> ModelFileError:
    return ModelFileError(
        f"{path}: its inputs and outputs are {', '.join(names)}, not {INPUT} and {OUTPUT}; make it with zipbrain export"
    )


def _failed(path: str, runtime: str, error: Exception) -> ModelFileError:
    words = " ".join(str(error).split())[:200]
    return ModelFileError(f"{path}: {runtime} can't run it ({words}); export it again")
