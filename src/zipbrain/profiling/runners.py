"""What can run a model here, each as a function that answers a batch: PyTorch, ONNX Runtime, OpenVINO; CPU and CUDA."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain.edge.description import INPUT, OUTPUT
from zipbrain.edge.runtimes import OnnxRuntime, OpenVINO
from zipbrain.errors import OptionError
from zipbrain.export.nncf import to_int8_by_nncf
from zipbrain.export.quantise import to_int8
from zipbrain.profiling.graph_map import Marked, marked_graph
from zipbrain.training.cuda_graphs import capture_forward
from zipbrain.training.inference import run_inference

Array = NDArray[np.float32]
Call = Callable[[], object]

# What each one is called in tables, in the order in which they are shown.
TITLES: Final = {
    "torch": "PyTorch eager, float32",
    "torch-compile": "PyTorch compiled, float32",
    "torch-cuda": "PyTorch eager on CUDA, float32",
    "torch-cuda-graph": "PyTorch CUDA graph, float32",
    "ort": "ONNX Runtime, float32",
    "ort-int8": "ONNX Runtime, int8 (dynamic)",
    "ort-int8-static": "ONNX Runtime, int8 (static)",
    "ort-cuda": "ONNX Runtime CUDA, float32",
    "ort-cuda-graph": "ONNX Runtime CUDA graph, float32",
    "openvino": "OpenVINO, float32",
    "openvino-bf16": "OpenVINO, bfloat16",
    "openvino-int8": "OpenVINO, int8 (static)",
    "openvino-nncf": "OpenVINO, int8 (NNCF)",
}
USUAL: Final = ("torch", "ort", "ort-int8", "openvino")
USUAL_CUDA: Final = ("torch-cuda", "torch-cuda-graph", "ort-cuda", "ort-cuda-graph")
_PRECISIONS: Final = {
    "ort-int8": "int8-dynamic", "ort-int8-static": "int8-static", "openvino-int8": "int8-static",
    "openvino-nncf": "int8-nncf",
}  # fmt: skip
REFERENCE: Final = "ort"  # the float32 original in this one is what everything is compared with


@dataclass(eq=False)
class Candidate:
    """A network with the graphs made from it, each when it is first asked for.

    Attributes
    ----------
    name : str
        Such as "original" or "ZIPBrain".
    network : nn.Module
        In evaluation mode, float32, on the CPU.
    shape : (int, int)
        Channels and samples of a window.
    calibration : ndarray (n, C, T)
        Scaled windows that fix the ranges of static int8.
    """

    name: str
    network: nn.Module
    shape: tuple[int, int]
    calibration: Array
    _made: dict[str, Any] = field(default_factory=dict)

    @property
    def marked(self) -> Marked:
        """The float32 graph, with the place of every tensor."""
        if "float32" not in self._made:
            self._made["float32"] = marked_graph(self.network, self.shape)
        found: Marked = self._made["float32"]
        return found

    def graph(self, precision: str) -> Any:
        """The graph in "float32", "int8-dynamic", "int8-static" or "int8-nncf", for any batch."""
        if precision == "float32":
            return self.marked.proto
        if precision not in self._made:
            proto, network = self.marked.proto, self.network
            self._made[precision] = {
                "int8-dynamic": lambda: to_int8(proto, network),
                "int8-static": lambda: to_int8(proto, network, self.calibration),
                "int8-nncf": lambda: to_int8_by_nncf(proto, network, self.calibration),
            }[precision]()
        return self._made[precision]

    def bytes(self, precision: str) -> int:
        """Size of the graph with all of its weights."""
        return int(self.graph(precision).ByteSize())


def precision_of(runtime: str) -> str:
    """Of the graph that a runtime runs."""
    return _PRECISIONS.get(runtime, "float32")


def usual() -> tuple[str, ...]:
    """The runtimes that are shown if nobody asks for others, as far as they can be used here."""
    names = (*USUAL, *USUAL_CUDA) if torch.cuda.is_available() else USUAL
    return tuple(name for name in names if not missing(name))


def missing(runtime: str) -> str:
    """Why a runtime can't be used here, in words; empty if it can."""
    if runtime not in TITLES:
        raise OptionError("runtimes", runtime, f"known ones are {', '.join(TITLES)}")
    if runtime.startswith("torch-cuda") and not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if runtime.startswith("ort-cuda"):
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            return "onnxruntime as installed here has no CUDA provider (onnxruntime-gpu has)"
    if runtime.startswith("openvino"):
        if find_spec("openvino") is None:
            return "it is not installed: pip install 'zipbrain[openvino]'"
        if runtime == "openvino-bf16" and "BF16" not in _openvino_capabilities():
            return "this CPU has no bfloat16 arithmetic"
        if runtime == "openvino-nncf" and find_spec("nncf") is None:
            return "nncf is not installed: pip install 'zipbrain[openvino]'"
    if not runtime.startswith("torch") and (find_spec("onnx") is None or find_spec("onnxscript") is None):
        return "exporting needs onnx and onnxscript: pip install 'zipbrain[export]'"
    return ""


def read_runtimes(given: Sequence[str]) -> tuple[str, ...]:
    """Names without repeats, refused if one can't be used here."""
    names = tuple(dict.fromkeys(given))
    for name in names:
        reason = missing(name)
        if reason:
            raise OptionError("runtimes", name, reason)
    if not names:
        raise OptionError("runtimes", [], f"at least one is needed of {', '.join(TITLES)}")
    return names


def ready(runtime: str, candidate: Candidate, x: Array, threads: int) -> Call:
    """A function that answers a batch in a runtime; its result is the logits.

    Parameters
    ----------
    runtime : str
        A key of `TITLES` for which `missing` says nothing.
    candidate : Candidate
    x : ndarray (batch, C, T)
        Scaled windows. The graph is fixed to their number.
    threads : int
        Of ONNX Runtime and OpenVINO; torch's own number is the caller's to set.
    """
    if runtime == "torch":
        return _eager(candidate.network, torch.from_numpy(x))
    if runtime == "torch-compile":
        return _compiled(candidate.network, torch.from_numpy(x))
    if runtime == "torch-cuda":
        return _eager(_on_cuda(candidate.network), torch.from_numpy(x).cuda())
    if runtime == "torch-cuda-graph":
        return capture_forward(partial(run_inference, _on_cuda(candidate.network)), torch.from_numpy(x).cuda())
    proto = with_batch(candidate.graph(precision_of(runtime)), len(x))
    content = proto.SerializeToString()
    if runtime.startswith("ort-cuda"):
        return _ort_cuda(content, x, captured=runtime.endswith("graph"))
    # Idle threads of many sessions in one process must not wait busily: they would take the cores from each other.
    session: OnnxRuntime | OpenVINO = (
        OpenVINO(content, candidate.name, threads=threads, precision="bf16" if runtime.endswith("bf16") else "f32")
        if runtime.startswith("openvino")
        else OnnxRuntime(content, candidate.name, threads=threads, provider="cpu", spinning=False)
    )
    return lambda: session.run(x)


def with_batch(proto: Any, batch: int) -> Any:
    """A copy of a graph whose batch is fixed, so that runtimes know every shape."""
    fixed = type(proto)()
    fixed.CopyFrom(proto)
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return fixed


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def _eager(network: nn.Module, x: torch.Tensor) -> Call:
    return partial(run_inference, network, x)


def _compiled(network: nn.Module, x: torch.Tensor) -> Call:
    run = torch.compile(network, dynamic=False)

    def call() -> object:
        with torch.no_grad():
            return run(x)

    call()  # compiles
    return call


def _on_cuda(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network).cuda()


# -- ONNX Runtime through CUDA -----------------------------------------------------------------------------------------


def _ort_cuda(content: bytes, x: Array, captured: bool) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    provider = ("CUDAExecutionProvider", {"enable_cuda_graph": "1" if captured else "0"})
    session = onnxruntime.InferenceSession(content, options, providers=[provider, "CPUExecutionProvider"])
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise OptionError("runtimes", "ort-cuda", "ONNX Runtime could not start CUDA here: check driver and libraries")
    binding = session.io_binding()  # input and output stay on the GPU, at one address, as a captured graph needs
    given = onnxruntime.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
    binding.bind_ortvalue_input(INPUT, given)
    binding.bind_output(OUTPUT, "cuda")
    session.run_with_iobinding(binding)
    out = binding.get_outputs()[0]
    binding.bind_ortvalue_output(OUTPUT, out)

    def call() -> object:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return out.numpy()

    return call


def _openvino_capabilities() -> list[str]:
    try:
        return list(import_module("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    except Exception as error:  # OpenVINO's errors have no common base but this
        logging.getLogger("zipbrain").debug("OpenVINO tells nothing about this CPU: %s", error)
        return []
