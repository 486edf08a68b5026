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
_WITH_CONSTANTS: Final = ("Add", "Subtract", "Multiply", "Divide", "Power")

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
        # Else four bytes of the file would turn it into ORT's own format, which nobody has looked into.
        options.add_session_config_entry("session.load_model_format", "ONNX")
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
    """See `Runtime`.

    Parameters
    ----------
    content, path, threads
        As for `OnnxRuntime`.
    precision : {"f32", "bf16"}
        What float32 is computed in; a file of another precision has its own.
    """

    def __init__(self, content: bytes, path: str, *, threads: int, precision: str = "f32") -> None:
        try:
            openvino = import_module("openvino")
        except ModuleNotFoundError:
            raise MissingExtra("openvino", "openvino", "runtime 'openvino'") from None
        self._path, self.name = path, f"openvino {openvino.__version__.split('-')[0]}"
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,  # on some CPUs it would take bfloat16 by itself
        }
        try:
            core = openvino.Core()
            model = core.read_model(io.BytesIO(content))
            ends = [(end.any_name, end.partial_shape) for end in (*model.inputs, *model.outputs)]
            self._dtype = model.inputs[0].element_type.to_dtype() if model.inputs else np.float32
            _order_ties(model)
            _shorten(model)
            _keep_from_reductions(model)
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


def _order_ties(model: Any) -> None:
    """Let every TopK of an OpenVINO model put equal values in the order of their indices, as ONNX promises."""
    topk = import_module("openvino.opset11").topk
    for node in model.get_ordered_ops():
        if node.get_type_name() != "TopK":
            continue
        said = node.get_attributes()
        order = "value" if said["sort"] == "none" else said["sort"]  # ties have an order only where values have one
        ends = said["axis"], said["mode"], order, said.get("index_element_type", "i64")
        stable = topk(node.input_value(0), node.input_value(1), *ends, stable=True)
        for before, after in zip(node.outputs(), stable.outputs(), strict=True):
            for reader in before.get_target_inputs():
                reader.replace_source_output(after)


def _shorten(model: Any) -> None:
    """Write sums of squares and means over an axis as reductions, which OpenVINO runs several times faster.

    A graph has them as products for ONNX Runtime, where it is the other way round.
    """
    opset = import_module("openvino.opset11")
    for node in model.get_ordered_ops():
        read = node.input_values()
        if node.get_type_name() == "ReduceSum" and _is_square(read[0]):
            norm = opset.reduce_l2(read[0].get_node().input_value(0), read[1], node.get_attributes()["keep_dims"])
            shorter = opset.multiply(norm, norm)
        elif node.get_type_name() == "MatMul" and _is_mean(node):
            shorter = opset.reduce_mean(read[1], np.array([-2]), keep_dims=True)
        else:
            continue
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(shorter.output(0))


def _is_square(output: Any) -> bool:
    """Whether a value is another one, of floating point, multiplied by itself."""
    node = output.get_node()
    if node.get_type_name() != "Multiply" or not output.get_element_type().is_real():
        return False
    one, other = node.input_values()
    return bool(one == other)


def _is_mean(product: Any) -> bool:
    """Whether a matrix product has a constant row on the left that averages what is on the right."""
    left, rank = product.input_value(0).get_node(), product.get_input_partial_shape(1).rank
    if left.get_type_name() != "Constant" or any(product.get_attributes().values()):
        return False
    row = left.get_data()
    return (
        rank.is_static and rank.get_length() > 1 and row.ndim == 2 and len(row) == 1 and np.allclose(row, 1 / row.size)
    )


def _keep_from_reductions(model: Any) -> None:
    """Let no constant be added to (or multiplied with) a reduction inside the reduction itself.

    OpenVINO 2026.4.1 does so wrongly for batches of more than one window, where the constant differs between tokens or
    is an integer. What has the shape of the whole result is not taken inside.
    """
    opset = import_module("openvino.opset11")
    for node in model.get_ordered_ops():
        if node.get_type_name() not in _WITH_CONSTANTS:
            continue
        for place in (0, 1):
            constant, other = node.input_value(place), node.input_value(1 - place)
            if constant.get_node().get_type_name() != "Constant" or not _is_reduced(other):
                continue
            if constant.get_element_type().is_integral() or np.prod(constant.get_shape()) > 1:
                whole = opset.broadcast(constant, opset.shape_of(other), broadcast_spec="BIDIRECTIONAL")
                node.input(place).replace_source_output(whole.output(0))


def _is_reduced(output: Any) -> bool:
    """Whether a value comes from a reduction through operators that read nothing else but constants."""
    while True:
        node = output.get_node()
        if node.get_type_name().startswith("Reduce"):
            return True
        read = [value for value in node.input_values() if value.get_node().get_type_name() != "Constant"]
        if len(read) != 1:
            return False
        output = read[0]


def _other_ends(path: str, names: list[str]) -> ModelFileError:
    return ModelFileError(
        f"{path}: its inputs and outputs are {', '.join(names)}, not {INPUT} and {OUTPUT}; make it with zipbrain export"
    )


def _failed(path: str, runtime: str, error: Exception) -> ModelFileError:
    words = " ".join(str(error).split())[:200]
    return ModelFileError(f"{path}: {runtime} can't run it ({words}); export it again")
