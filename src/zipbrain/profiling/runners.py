"""The runtimes of a profile, each with what opens a network in it: PyTorch, ONNX Runtime, OpenVINO; CPU and CUDA."""

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
from zipbrain.edge.runtimes import RUNTIMES, OnnxRuntime, OpenVINO, Runtime
from zipbrain.errors import OptionError
from zipbrain.export.nncf import to_int8_by_nncf
from zipbrain.export.onnx_graph import fix_batch
from zipbrain.export.quantise import to_int8
from zipbrain.profiling.graph_map import MappedGraph, map_graph
from zipbrain.training.cuda_graphs import capture_forward
from zipbrain.training.inference import run_inference

Array = NDArray[np.float32]
Call = Callable[[], object]


@dataclass(eq=False)
class Candidate:
    """A float32 network on the CPU, for windows of `shape`, with the graphs made from it when they are first needed.

    `calibration` (n, C, T) are scaled windows that fix the ranges of static int8.
    """

    name: str
    network: nn.Module
    shape: tuple[int, int]
    calibration: Array
    _made: dict[str, Any] = field(default_factory=dict)

    @property
    def mapped(self) -> MappedGraph:
        """The float32 graph, with the place of every tensor."""
        if "float32" not in self._made:
            self._made["float32"] = map_graph(self.network, self.shape)
        found: MappedGraph = self._made["float32"]
        return found

    def graph(self, precision: str) -> Any:
        """The graph in "float32", "int8-dynamic", "int8-static" or "int8-nncf", for any batch."""
        proto = self.mapped.proto
        if precision == "float32":
            return proto
        if precision not in self._made:
            make = to_int8_by_nncf if precision == "int8-nncf" else to_int8
            ranges = () if precision == "int8-dynamic" else (self.calibration,)
            self._made[precision] = make(proto, self.network, *ranges)
        return self._made[precision]

    def content(self, precision: str, batch: int) -> bytes:
        """The file of a graph whose batch is fixed."""
        content: bytes = fix_batch(self.graph(precision), batch).SerializeToString()
        return content


@dataclass(frozen=True)
class Runner:
    """A runtime in a profile; `open` gives a function that answers scaled windows (batch, C, T) with some threads."""

    title: str  # in tables
    open: Callable[[Candidate, Array, int], Call]
    find_missing: Callable[[], str]  # why it can't be used here; empty if it can
    precision: str = "float32"  # of the graph it runs
    process: str = ""  # what `process_memory` runs to measure its memory; empty where that is not possible
    has_file: bool = True  # it opens an exported file
    is_coarse: bool = False  # few bits may decide over tokens otherwise


def usual() -> tuple[str, ...]:
    """The runtimes that are shown by default, as far as they can be used here."""
    names = (*USUAL, *USUAL_CUDA) if torch.cuda.is_available() else USUAL
    return tuple(name for name in names if not RUNNERS[name].find_missing())


def find_runner(name: str) -> Runner:
    """The runner of a name; a runtime of `zipbrain.edge` that has none here runs float32 under its own name."""
    others = {other: kind for other, kind in RUNTIMES.items() if kind not in (OnnxRuntime, OpenVINO)}
    if name not in RUNNERS and name in others:
        RUNNERS[name] = _file_runner(others[name])
    if name not in RUNNERS:
        raise OptionError("runtimes", name, f"known ones are {', '.join(dict.fromkeys((*RUNNERS, *others)))}")
    return RUNNERS[name]


def read_runtimes(given: Sequence[str]) -> tuple[str, ...]:
    """Names without repeats, refused if one can't be used here."""
    names = tuple(dict.fromkeys(given))
    for name in names:
        reason = find_runner(name).find_missing()
        if reason:
            raise OptionError("runtimes", name, reason)
    if not names:
        raise OptionError("runtimes", [], f"at least one is needed of {', '.join(RUNNERS)}")
    return names


def _open_eager(candidate: Candidate, x: Array, threads: int) -> Call:
    return partial(run_inference, candidate.network, torch.from_numpy(x))


def _open_compiled(candidate: Candidate, x: Array, threads: int) -> Call:
    call = torch.no_grad()(partial(torch.compile(candidate.network, dynamic=False), torch.from_numpy(x)))
    call()  # compiles
    return call


def _open_cuda(candidate: Candidate, x: Array, threads: int) -> Call:
    return partial(run_inference, copy.deepcopy(candidate.network).cuda(), torch.from_numpy(x).cuda())


def _open_cuda_graph(candidate: Candidate, x: Array, threads: int) -> Call:
    forward = partial(run_inference, copy.deepcopy(candidate.network).cuda())
    return capture_forward(forward, torch.from_numpy(x).cuda())


def _no_cuda() -> str:
    return "" if torch.cuda.is_available() else "torch sees no CUDA device"


def _file_runner(kind: type[Runtime], precision: str = "float32", words: str = "", hint: str = "f32") -> Runner:
    """A runtime of `zipbrain.edge` on a graph of one precision; `hint` is what float32 is computed in."""
    coarse = precision != "float32" or hint != "f32"
    needs = ("nncf",) if precision == "int8-nncf" else ()

    def open_file(candidate: Candidate, x: Array, threads: int) -> Call:
        # Idle threads of many sessions in one process must not wait busily: they would take the cores from each other.
        given = {"threads": threads, "provider": "cpu", "spinning": False, "precision": hint}
        options = {name: value for name, value in given.items() if name in kind.options}
        return partial(kind(candidate.content(precision, len(x)), candidate.name, **options).run, x)

    def find_missing() -> str:
        for package in (kind.package, *needs):
            if find_spec(package) is None:
                wanted = f"'zipbrain[{kind.extra}]'" if kind.extra else package
                return f"{package} is not installed: pip install {wanted}"
        return _no_bfloat16() if hint == "bf16" else _no_export()

    process = kind.name if kind in (OnnxRuntime, OpenVINO) and hint == "f32" else ""
    return Runner(f"{kind.title}, {words or precision}", open_file, find_missing, precision, process, is_coarse=coarse)


def _open_ort_cuda(captured: bool, candidate: Candidate, x: Array, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    provider = ("CUDAExecutionProvider", {"enable_cuda_graph": "1" if captured else "0"})
    content = candidate.content("float32", len(x))
    session = onnxruntime.InferenceSession(content, options, providers=[provider, "CPUExecutionProvider"])
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise OptionError("runtimes", "ort-cuda", "ONNX Runtime could not start CUDA here: check driver and libraries")
    binding = session.io_binding()  # input and output stay on the GPU, at one address, as a captured graph needs
    binding.bind_ortvalue_input(INPUT, onnxruntime.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
    binding.bind_output(OUTPUT, "cuda")
    session.run_with_iobinding(binding)
    out = binding.get_outputs()[0]
    binding.bind_ortvalue_output(OUTPUT, out)

    def call() -> object:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return out.numpy()

    return call


def _no_export() -> str:
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        return "exporting needs onnx and onnxscript: pip install 'zipbrain[export]'"
    return ""


def _no_ort_cuda() -> str:
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "onnxruntime as installed here has no CUDA provider (onnxruntime-gpu has)"
    return _no_export()


def _no_bfloat16() -> str:
    try:
        able = import_module("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    except Exception as error:  # OpenVINO's errors have no common base but this
        logging.getLogger("zipbrain").debug("OpenVINO tells nothing about this CPU: %s", error)
        able = []
    return _no_export() if "BF16" in able else "this CPU has no bfloat16 arithmetic"


def _torch_runner(title: str, opened: Callable[[Candidate, Array, int], Call], missing: Callable[[], str]) -> Runner:
    return Runner(title, opened, missing, has_file=False, process="torch" if opened is _open_eager else "")


# In the order in which they are shown.
RUNNERS: Final[dict[str, Runner]] = {
    "torch": _torch_runner("PyTorch eager, float32", _open_eager, lambda: ""),
    "torch-compile": _torch_runner("PyTorch compiled, float32", _open_compiled, lambda: ""),
    "torch-cuda": _torch_runner("PyTorch eager on CUDA, float32", _open_cuda, _no_cuda),
    "torch-cuda-graph": _torch_runner("PyTorch CUDA graph, float32", _open_cuda_graph, _no_cuda),
    "ort": _file_runner(OnnxRuntime),
    "ort-int8": _file_runner(OnnxRuntime, "int8-dynamic", "int8 (dynamic)"),
    "ort-int8-static": _file_runner(OnnxRuntime, "int8-static", "int8 (static)"),
    "ort-cuda": Runner("ONNX Runtime CUDA, float32", partial(_open_ort_cuda, False), _no_ort_cuda),
    "ort-cuda-graph": Runner("ONNX Runtime CUDA graph, float32", partial(_open_ort_cuda, True), _no_ort_cuda),
    "openvino": _file_runner(OpenVINO),
    "openvino-bf16": _file_runner(OpenVINO, words="bfloat16", hint="bf16"),
    "openvino-int8": _file_runner(OpenVINO, "int8-static", "int8 (static)"),
    "openvino-nncf": _file_runner(OpenVINO, "int8-nncf", "int8 (NNCF)"),
}
USUAL: Final = ("torch", "ort", "ort-int8", "openvino")
USUAL_CUDA: Final = ("torch-cuda", "torch-cuda-graph", "ort-cuda", "ort-cuda-graph")
REFERENCE: Final = "ort"  # everything is compared with the float32 original in this one
