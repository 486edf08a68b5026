"""The registry of runtimes: what runs an exported graph, each a class with every fact about itself.

A new one is a subclass of `Runtime` and a call of `register`.
"""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain._lazy import import_extra
from zipbrain.edge.description import INPUT, LOOKED_TWICE, MARGIN, OUTPUT
from zipbrain.edge.limits import UNBOUNDED, Limits, bounded_memory, bounded_time
from zipbrain.edge.openvino_graph import adapt_to_openvino, graphs_within
from zipbrain.errors import ModelFileError, OptionError
from zipbrain.numerals import whole_number
from zipbrain.recipe import Recipe

Shape = tuple[int | None, ...]

MOST_THREADS: Final = 1024  # a session with thousands starts for minutes


class Runtime(ABC):
    """A graph that is ready to run, made as ``kind(content, path, **options)``."""

    name: ClassVar[str]  # as users write it
    title: ClassVar[str]  # as tables show it
    package: ClassVar[str]  # what must be installed
    extra: ClassVar[str] = ""  # zipbrain's extra that brings it; "" if zipbrain always does
    providers: ClassVar[Mapping[str, str]] = {"cpu": ""}
    options: ClassVar[tuple[str, ...]] = ("threads",)

    label: str  # what runs it, with its version
    input_shape: Shape  # of the windows; None stands for any size
    output_shape: Shape  # of the logits
    outputs: tuple[str, ...]  # all outputs of the graph, the logits first
    takes_margin: bool = False  # True if the margin of its second look can be set

    def __init__(self, content: bytes, path: str, **options: Any) -> None:
        raise NotImplementedError

    @abstractmethod
    def run(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Logits (m, K) of scaled windows (m, C, T)."""

    def look(self, x: NDArray[np.float32], margin: float | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
        """Logits (m, K) of a graph with a second look, and (m,) who looked twice; `margin` in place of the graph's."""
        logits, looked = self.answer(x, [OUTPUT, LOOKED_TWICE], margin)
        return logits, looked

    def answer(self, x: NDArray[np.float32], wanted: Sequence[str], margin: float | None = None) -> list[NDArray[Any]]:
        """The outputs of these names, for a graph that has more than logits."""
        raise NotImplementedError

    @classmethod
    def is_installed(cls) -> bool:
        """True if its package can be imported here."""
        return find_spec(cls.package) is not None

    @classmethod
    def name_on(cls, provider: str) -> str:
        """Its name and where it computes: the label without the version, such as ``"onnxruntime (CUDA)"``."""
        return cls.name if provider == "cpu" else f"{cls.name} ({provider.upper()})"

    @classmethod
    def refusal_of(cls, recipe: Recipe) -> str:
        """Why this runtime may compute a compression wrongly; "" if it does not."""
        return ""

    def _set_ends(self, path: str, ends: Sequence[tuple[str, Shape]], inputs: int) -> None:
        names = [name for name, _ in ends]
        if inputs != 1 or names[:2] != [INPUT, OUTPUT]:
            raise other_ends(path, names)
        (_, self.input_shape), (_, self.output_shape), *_ = ends
        self.outputs = tuple(names[1:])


RUNTIMES: Final[dict[str, type[Runtime]]] = {}


def register(runtime: type[Runtime]) -> type[Runtime]:
    """Let `predict`, `EdgeModel` and `profile` know a runtime by its name."""
    RUNTIMES[runtime.name] = runtime
    return runtime


def find_runtime(name: str, threads: int | None = None, provider: str = "cpu") -> type[Runtime]:
    """The runtime of a name; refuses an unknown one, and options that no installation of it could serve."""
    if name not in RUNTIMES:
        raise OptionError("runtime", name, f"it must be one of {', '.join(RUNTIMES)}")
    found = RUNTIMES[name]
    if provider not in found.providers:
        able = [other.name for other in RUNTIMES.values() if provider in other.providers]
        other = f"; take runtime {able[0]!r} for {provider}" if able else ""
        raise OptionError("provider", provider, f"{found.title} runs on {' or '.join(found.providers)}{other}")
    if threads is not None:
        whole_number("threads", threads, 1, MOST_THREADS)
    return found


@register
class OnnxRuntime(Runtime):
    """ONNX Runtime; `spinning` lets idle threads wait busily: faster alone, slower beside others."""

    name, title, package = "onnxruntime", "ONNX Runtime", "onnxruntime"
    providers: ClassVar = {
        "cpu": "",
        "cuda": "zipbrain's developers have never run ONNX Runtime on CUDA: compare its answers with the CPU's",
    }
    options = ("threads", "provider", "spinning", "limits")

    def __init__(
        self,
        content: bytes,
        path: str,
        *,
        threads: int,
        provider: str = "cpu",
        spinning: bool = False,
        limits: Limits = UNBOUNDED,
    ) -> None:
        import onnxruntime as ort

        # CUDA reserves far more memory than it uses, so that a bound would stop any model.
        self._limits = replace(limits, memory=None) if provider == "cuda" else limits
        self._path, self._new_run = path, ort.RunOptions
        version = f"onnxruntime {ort.__version__}"
        self.label = f"{version} (CUDA)" if provider == "cuda" else version
        wanted = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[provider]
        if wanted not in ort.get_available_providers():
            advice = "install onnxruntime-gpu instead of onnxruntime on a machine with a CUDA device, or take 'cpu'"
            raise OptionError("provider", provider, f"{version} as installed here has none: {advice}")
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4  # what goes wrong is raised too
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
        # Else four bytes of the file would turn it into ORT's own format, which `read_onnx` does not check.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        providers = list(dict.fromkeys([wanted, "CPUExecutionProvider"]))
        try:
            with bounded_memory(self._limits):
                self._session = ort.InferenceSession(content, options, providers=providers, enable_fallback=0)
            inputs = self._session.get_inputs()
            found = [(end.name, end.shape, end.type) for end in (*inputs, *self._session.get_outputs())]
        except Exception as error:  # ONNX Runtime's errors have no common base but this
            raise run_failed(path, self.label, error, self._limits) from None
        if self._session.get_providers()[0] != wanted:
            advice = "ONNX Runtime could not start CUDA here: check driver and libraries"
            raise OptionError("provider", provider, advice)
        ends = [(name, tuple(size if isinstance(size, int) else None for size in shape)) for name, shape, _ in found]
        self._set_ends(path, ends, len(inputs))
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        if (kind := found[0][2]) not in kinds:
            kind = f"its input is {kind}, not floating point"
            raise ModelFileError(f"{path}: {kind}; make it with zipbrain export")
        self._dtype = kinds[kind]
        self.takes_margin = MARGIN in (value.name for value in self._session.get_overridable_initializers())

    def run(self, x: NDArray[np.float32]) -> NDArray[Any]:
        return self.answer(x, [OUTPUT])[0]

    def answer(self, x: NDArray[np.float32], wanted: Sequence[str], margin: float | None = None) -> list[NDArray[Any]]:
        feed = {INPUT: x.astype(self._dtype, copy=False)}
        feed |= {} if margin is None else {MARGIN: np.array(margin, dtype=np.float32)}
        how = self._new_run()
        try:
            with bounded_time(self._limits, lambda: setattr(how, "terminate", True)), bounded_memory(self._limits):
                return [np.asarray(found) for found in self._session.run(list(wanted), feed, how)]
        except Exception as error:
            if how.terminate:
                raise too_slow(self._path, self._limits, len(x)) from None
            raise run_failed(self._path, self.label, error, self._limits) from None


@register
class OpenVINO(Runtime):
    """OpenVINO on a CPU; `precision` ("f32" or "bf16") is what float32 is computed in."""

    name, title, package, extra = "openvino", "OpenVINO", "openvino", "openvino"
    options = ("threads", "precision", "limits")
    # Methods that 2026.4.1 was seen to group rightly, without mass; others become operators it gets wrong.
    right_methods: ClassVar = ("zipbrain", "tome", "tofu", "evit", "dart", "free_slicing")

    def __init__(
        self, content: bytes, path: str, *, threads: int, precision: str = "f32", limits: Limits = UNBOUNDED
    ) -> None:
        openvino = import_extra(self.package, self.package, self.extra, "runtime 'openvino'")
        self._path, self._limits, self.label = path, limits, f"openvino {openvino.__version__.split('-')[0]}"
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,  # on some CPUs it would take bfloat16 by itself
        }
        try:
            core = openvino.Core()
            with bounded_memory(limits):
                model = core.read_model(io.BytesIO(content))
            inputs = len(model.inputs)
            ends = [
                (end.any_name, tuple(size.get_length() if size.is_static else None for size in end.partial_shape))
                for end in (*model.inputs, *model.outputs)
            ]
            self._dtype = model.inputs[0].element_type.to_dtype() if model.inputs else np.float32
            with bounded_memory(limits):
                self._margin = adapt_to_openvino(model)
                self._request: Any = core.compile_model(model, "CPU", settings).create_infer_request()
        except Exception as error:
            raise run_failed(path, self.label, error, limits) from None
        kinds = {node.get_type_name() for part in graphs_within(model) for node in part.get_ordered_ops()}
        if (
            kinds & {"Loop", "TensorIterator"} and limits.seconds is not None
        ):  # OpenVINO runs a loop to its end, which may never come
            advice = "take onnxruntime, or --time-limit 0 if you trust it"
            raise ModelFileError(f"{path}: OpenVINO can't be stopped in the loop that it holds; {advice}")
        self._set_ends(path, ends, inputs)
        self.takes_margin = self._margin is not None

    def run(self, x: NDArray[np.float32]) -> NDArray[Any]:
        return self.answer(x, [OUTPUT])[0]

    def answer(self, x: NDArray[np.float32], wanted: Sequence[str], margin: float | None = None) -> list[NDArray[Any]]:
        request, seconds, is_done = self._request, self._limits.seconds, True
        feed = [x.astype(self._dtype, copy=False)]
        if self._margin is not None:
            feed.append(np.array(self._margin if margin is None else margin, dtype=np.float32))
        try:
            with bounded_memory(self._limits):
                request.start_async(feed)
                is_done = seconds is None or request.wait_for(math.ceil(1000 * seconds))
                if not is_done:
                    request.cancel()
                request.wait()
        except Exception as error:
            if not is_done:
                raise too_slow(self._path, self._limits, len(x)) from None
            raise run_failed(self._path, self.label, error, self._limits) from None
        return [np.array(request.get_tensor(name).data) for name in wanted]

    @classmethod
    def refusal_of(cls, recipe: Recipe) -> str:
        name, usual = recipe.method["name"], {"name": "largest_norm"}
        has_mass, is_usual = any(recipe.mass.values()), recipe.method.get("merge", usual) == usual or name != "zipbrain"
        if name in cls.right_methods and is_usual and not has_mass:
            return ""
        what = f"{name} with mass" if has_mass else name if is_usual else f"{name} with another merge"
        return f"OpenVINO may group the tokens of {what} otherwise than PyTorch and ONNX Runtime: take onnxruntime"


def other_ends(path: str, names: Sequence[str]) -> ModelFileError:
    """The refusal of a graph with other inputs and outputs than an exported one."""
    found = f"its inputs and outputs are {', '.join(names)}, not {INPUT} and {OUTPUT}"
    return ModelFileError(f"{path}: {found}; make it with zipbrain export")


def run_failed(path: str, runtime: str, error: Exception, limits: Limits = UNBOUNDED) -> ModelFileError:
    """The refusal of a graph that a runtime can't load or run."""
    words = " ".join(str(error).split())
    return ModelFileError(f"{path}: {runtime} can't run it ({words[:200]}); {limits.advice_on(words)}")


def too_slow(path: str, limits: Limits, count: int) -> ModelFileError:
    """The refusal of a graph that was stopped."""
    found = f"{count} windows took it more than {limits.seconds:g} s, then it was stopped"
    return ModelFileError(f"{path}: {found}; raise --time-limit if you trust it, or export it again")
