"""A second look in an ONNX graph: doubtful windows run again uncompressed inside an `If`, with the same weights.

The file is one graph: the first pass, which windows are doubtful, and the second pass as a branch that runs for these
windows alone. The branch reads the weights of the first pass from outside, so that the file holds them once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from zipbrain.edge.description import INPUT, MARGIN, OUTPUT

TOKENS: Final = "tokens"  # at the first reduction: output of the first pass and input of the second
_SHARED: Final = 128  # bytes from which on both passes share a constant; runtimes fuse small ones where they stand

# ONNX's TopK has no order for NaN, so that a sum tells whether there is one.
_MARGIN_OF_CLASSES: Final = """
    look_values, look_indices = TopK <axis = 1> (look_first, look_two)
    look_best = Gather <axis = 1> (look_values, look_0)
    look_next = Gather <axis = 1> (look_values, look_1)
    look_margin = Sub (look_best, look_next)
    look_sum = ReduceSum <keepdims = 0> (look_first, look_axis)
    look_nan = IsNaN (look_sum)
    look_enough = GreaterOrEqual (look_margin, second_look_margin)
    look_close = Not (look_enough)
    looked_twice = Or (look_close, look_nan)
"""
_MARGIN_OF_ONE_OUTPUT: Final = """
    look_size = Abs (look_first)
    look_margin = Squeeze (look_size, look_axis)
    look_enough = GreaterOrEqual (look_margin, second_look_margin)
    looked_twice = Not (look_enough)
"""
_LOOK: Final = """
look (float[{ends}] look_first, float second_look_margin) => (float[{ends}] logits, bool[{batch}] looked_twice)
    <int64[1] look_two = {2}, int64[1] look_axis = {1}, int64 look_0 = {0}, int64 look_1 = {1}>
{{margin}
    look_marks = Cast <to = 6> (looked_twice)
    look_most = ReduceMax <keepdims = 0> (look_marks)
    look_any = Cast <to = 9> (look_most)
    logits = If (look_any) <
        then_branch = look_again () => (float[{ends}] look_answers)
        <int64[2] look_column = {-1, 1}, int64[1] look_flat = {-1}>
        {
            look_found = NonZero (looked_twice)
            look_rows = Reshape (look_found, look_flat)
            look_places = Reshape (look_found, look_column)
            look_answers = ScatterND (look_first, look_places, look_logits)
        },
        else_branch = look_once () => (float[{ends}] look_same) { look_same = Identity (look_first) }
    >
}
"""
_EEG_ROWS: Final = "rows () => (float[n] look_eeg) { look_eeg = Gather <axis = 0> (eeg, look_rows) }"
_TOKEN_ROWS: Final = """
rows () => (float[n] look_tokens)
    <int64[4] look_apart = {-1, {patches}, {count}, {width}}, int64[3] look_joined = {-1, {count}, {width}}>
{
    look_patches = Reshape (tokens, look_apart)
    look_taken = Gather <axis = 0> (look_patches, look_rows)
    look_tokens = Reshape (look_taken, look_joined)
}
"""


def join_passes(first: Any, second: Any, margin: float, patches: int = 1) -> Any:
    """One graph of two passes: ``eeg`` -> ``logits``, what else the first pass gives, and ``looked_twice``.

    `first` gives ``logits`` and ``tokens``, of which a window has so many `patches`; `second` gives ``logits`` for rows
    of both ``eeg`` and ``tokens``. The margin below which a window is doubtful is a constant that a caller may feed.
    """
    import onnx
    from onnx import numpy_helper

    joined = type(first)()
    joined.CopyFrom(first)
    graph = joined.graph
    logits, tokens, others = _ends_of(graph)
    batch, classes = (size.dim_value or size.dim_param for size in logits.type.tensor_type.shape.dim)
    _rename(graph.node, {OUTPUT: "look_first"})
    text = _MARGIN_OF_ONE_OUTPUT if classes == 1 else _MARGIN_OF_CLASSES
    look = _parse(_LOOK, ends=f"{batch}, {classes}", batch=batch, margin=text)
    branch = next(part.g for part in look.node[-1].attribute if part.name == "then_branch")
    _, count, width = (size.dim_value for size in tokens.type.tensor_type.shape.dim)
    rows = [_parse(_TOKEN_ROWS, patches=patches, count=count, width=width)]
    if INPUT in {name for node in second.graph.node for name in node.input}:
        rows.append(_parse(_EEG_ROWS))
    _fill_branch(branch, rows, second.graph, {_content(value): value.name for value in graph.initializer})
    margin_value = numpy_helper.from_array(np.array(margin, dtype=np.float32), MARGIN)
    read = {name for node in look.node for name in node.input}
    graph.initializer.extend([margin_value, *(value for value in look.initializer if value.name in read)])
    graph.node.extend(look.node)
    graph.input.append(look.input[1])
    graph.value_info.extend([look.input[0], tokens])
    del graph.output[:]
    graph.output.extend([logits, *others, look.output[1]])
    known = {entry.domain for entry in joined.opset_import}
    joined.opset_import.extend(entry for entry in second.opset_import if entry.domain not in known)
    onnx.checker.check_model(joined, full_check=True)
    return joined


def _ends_of(graph: Any) -> tuple[Any, Any, list[Any]]:
    """Logits, tokens and all other outputs of a first pass."""
    ends = {value.name: type(value).FromString(value.SerializeToString()) for value in graph.output}
    return ends.pop(OUTPUT), ends.pop(TOKENS), list(ends.values())


def _parse(text: str, **values: object) -> Any:
    """The graph of ONNX's text form, with values in the place of ``{name}``."""
    from onnx import parser

    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return parser.parse_graph(text.strip())


def _fill_branch(branch: Any, rows: list[Any], second: Any, outside: Mapping[bytes, str]) -> None:
    """Put the second pass between the rows that it reads and the answers that it gives."""
    names = {INPUT: "look_eeg", TOKENS: "look_tokens", OUTPUT: "look_logits"}
    shared = {v.name: outside[key] for v in second.initializer if (key := _content(v)) in outside and _is_large(v)}
    made = [*(name for node in second.node for name in node.output), *(value.name for value in second.initializer)]
    names = {name: f"again_{name}" for name in made} | names | shared
    last = branch.node.pop()
    for graph in rows:
        branch.node.extend(graph.node)
        branch.initializer.extend(graph.initializer)
    start = len(branch.node)
    branch.node.extend([*second.node, last])
    for node in branch.node[start:-1]:
        node.name = node.name and f"again/{node.name}"  # unnamed ones must stay so
    _rename(branch.node[start:-1], names)
    for value in second.initializer:
        if value.name not in shared:
            branch.initializer.add().CopyFrom(value)
            branch.initializer[-1].name = names[value.name]
    for value in second.value_info:
        if value.name in names:
            branch.value_info.add().CopyFrom(value)
            branch.value_info[-1].name = names[value.name]
            for size in branch.value_info[-1].type.tensor_type.shape.dim:
                if size.dim_param:  # of all windows outside, of the doubtful ones here
                    size.dim_param = f"doubtful_{size.dim_param}"


def _rename(nodes: Any, names: Mapping[str, str]) -> None:
    for node in nodes:
        for ends in (node.input, node.output):
            for place, name in enumerate(ends):
                ends[place] = names.get(name, name)


def _content(value: Any) -> bytes:
    """Type, shape and bytes of a constant."""
    from onnx import numpy_helper

    return repr((value.data_type, list(value.dims))).encode() + numpy_helper.to_array(value).tobytes()


def _is_large(value: Any) -> bool:
    from onnx import numpy_helper

    return bool(numpy_helper.to_array(value).nbytes > _SHARED)
