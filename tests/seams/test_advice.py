"""What options don't say and a model shows is said by `compress`, by the first window that tells, and by `summary`."""

from __future__ import annotations

import copy
import pickle
import re
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import zipbrain
from seams.small_models import DIALECTS, DIM, N, Stack, dialect, tokens, varied
from zipbrain import Mass, OptionError, Twins
from zipbrain.models import BIOT, EEGPT, TFM, LaBraM, TokenEncoder
from zipbrain.pooling import as_method
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.registry import names
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams.forward import plan_of

CHANNELS = ["FP1", "FP2", "F3", "F4", "C3", "C4", "P3", "P4"]


@pytest.fixture
def silent() -> Iterator[None]:
    """A warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(x)
    return result


def said(call: Any) -> list[str]:
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        call()
    return [str(remark.message) for remark in remarks]


class Reader(nn.Module):
    """Tokens, perhaps some in front or behind, a stack of blocks, and one of several heads."""

    def __init__(self, head: str, front: int = 0, behind: int = 0) -> None:
        super().__init__()
        self.kind = head
        self.front = nn.Parameter(torch.zeros(1, front, DIM)) if front else None
        self.behind = nn.Parameter(torch.zeros(1, behind, DIM)) if behind else None
        self.stack = Stack()
        total = N + front + behind
        self.head = nn.Linear({"flatten": DIM * total, "first and mean": 2 * DIM}.get(head, DIM), 3)
        self.lstm = nn.LSTM(DIM, DIM, batch_first=True) if head == "lstm" else None

    def forward(self, x: Tensor) -> Any:
        ends = [None if end is None else end.expand(x.shape[0], -1, -1) for end in (self.front, self.behind)]
        x = self.stack(torch.cat([part for part in (ends[0], x, ends[1]) if part is not None], dim=1))
        if self.kind == "tokens":
            return x
        return {"logits": self.head(self.read(x)).softmax(-1)}

    def read(self, x: Tensor) -> Tensor:
        if self.kind in ("first", "last"):
            return x[:, 0 if self.kind == "first" else -1]
        if self.kind == "last two":
            return x[:, -2:].mean(1)
        if self.kind == "flatten":
            return x.flatten(1)
        if self.kind == "mean of the others":
            return x[:, 1:].mean(1)
        if self.kind == "first and mean":
            return torch.cat((x[:, 0], x[:, 1:].mean(1)), dim=1)
        if self.lstm is not None:
            return self.lstm(x)[0][:, -1]
        if self.kind == "attention":
            return (x[..., :1].softmax(1) * x).sum(1)
        return x.mean(1)


def reader(head: str, **options: int) -> nn.Module:
    return varied(Reader(head, **options))


# -- protected tokens --------------------------------------------------------------------------------------------------


class Foreign(nn.Module):
    """A CLS token, or a parameter that looks like one, under any name, and a head that reads the first token."""

    def __init__(self, name: str, shape: tuple[int, ...] = (1, 1, DIM), **attributes: Any) -> None:
        super().__init__()
        for attribute, value in attributes.items():
            setattr(self, attribute, value)
        self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
        self.stack, self.head = Stack(), nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stack(x)[:, 0])
        return logits


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cls", (1, 1, DIM)), ("start", (1, 1, DIM)), ("class_embedding", (DIM,)), ("cls", (1, DIM))],
)
def test_a_parameter_that_looks_like_a_cls_token_is_said(name: str, shape: tuple[int, ...]) -> None:
    remark = f"nothing is protected, but {name} has the shape .*protected=1"
    with pytest.warns(UserWarning, match=remark):
        zipbrain.compress(Foreign(name, shape), ratio=0.5)


def test_an_embedding_of_one_class_token_is_said() -> None:
    model = nn.ModuleDict({"cls_embedding": nn.Embedding(1, DIM), "stack": Stack()})
    assert len(said(lambda: zipbrain.compress(model, ratio=0.5))) == 1
    model = nn.ModuleDict({"cls_head": nn.Linear(DIM, 1), "stack": Stack()})
    assert said(lambda: zipbrain.compress(model, ratio=0.5)) == []


@pytest.mark.parametrize("order", [["embedding", "stack"], ["stack", "head"]])
def test_a_parameter_before_the_blocks_is_a_token_and_one_behind_is_not(order: list[str]) -> None:
    parts = {
        name: Stack() if name == "stack" else nn.ParameterDict({"first": torch.zeros(1, 1, DIM)}) for name in order
    }
    remarks = said(lambda: zipbrain.compress(nn.ModuleDict(parts), ratio=0.5))
    assert [remark.split()[4] for remark in remarks] == (["embedding.first"] if "embedding" in order else [])


@pytest.mark.parametrize("form", ["parameter", "buffer", "embedding"])
def test_a_table_with_one_position_more_than_tokens_is_said(form: str) -> None:
    model = Stack()
    if form == "parameter":
        model.pos_embed = nn.Parameter(torch.zeros(1, N + 1, DIM))
    elif form == "buffer":
        model.register_buffer("positions", torch.zeros(N + 1, DIM))
    else:
        model.position_embeddings = nn.Embedding(N + 1, DIM)
    with pytest.warns(UserWarning, match=rf"pos.* has {N + 1} rows.*protected=1"):
        zipbrain.compress(model, ratio=0.5, tokens=N)
    model.num_patches = N
    with pytest.warns(UserWarning, match=rf"pos.* has {N + 1} rows.*protected=1"):
        zipbrain.compress(model, ratio=0.5)


@pytest.mark.parametrize(
    "model",
    [
        Foreign("mask_token"),
        Foreign("cls_query_token"),
        Foreign("layer_scale"),
        Foreign("cls", (1, 1, 2 * DIM)),
        Foreign("cls", (1, 5, DIM)),
        Foreign("cls", num_prefix_tokens=0),
        Foreign("cls", prefix_tokens=0),
        Foreign("cls", cls_token=nn.Parameter(torch.zeros(1, 1, DIM))),
        Foreign("pos_embed", (1, N, DIM), num_patches=N),
        Foreign("table", (N + 1, DIM), num_patches=N),
    ],
    ids=lambda model: next(iter(model._parameters)),
)
def test_what_is_no_cls_token_or_is_declared_is_not_said(model: nn.Module, silent: None) -> None:
    zipbrain.compress(model, ratio=0.5)


def test_nothing_is_said_where_nothing_goes(silent: None) -> None:
    for options in ({"r": 0}, {"ratio": 0}, {"r": [0, 0]}):
        zipbrain.compress(Foreign("cls"), **options)
        zipbrain.compress(reader("flatten"), **options, example=tokens())


@pytest.mark.parametrize("given", [0, (0, 0), 1, (0, 1)])
def test_protection_that_was_given_is_believed(given: Any, silent: None) -> None:
    zipbrain.compress(Foreign("cls"), ratio=0.5, protected=given)
    zipbrain.compress(Foreign("cls"), ratio=0.5, protected=given, example=tokens())


@pytest.mark.parametrize(
    ("head", "ends", "option"),
    [
        ("first", {}, "protected=1"),
        ("mean of the others", {}, "protected=1"),
        ("last", {}, "protected=(0, 1)"),
        ("last two", {}, "protected=(0, 2)"),
        ("mean", {"front": 1}, "protected=1"),
        ("mean", {"front": 3}, "protected=3"),
        ("mean", {"behind": 2}, "protected=(0, 2)"),
        ("mean", {"front": 1, "behind": 2}, "protected=(1, 2)"),
        ("first and mean", {"front": 1}, "protected=1"),
    ],
)
@pytest.mark.parametrize("fill", [None, 0.0])
def test_an_example_shows_which_tokens_to_protect(
    head: str, ends: dict[str, int], option: str, fill: float | None
) -> None:
    model, x = reader(head, **ends), tokens(2) if fill is None else torch.full((1, N, DIM), fill)
    remarks = said(lambda: zipbrain.compress(model, ratio=0.5, example=x))
    assert len(remarks) == 1
    assert remarks[0].startswith("nothing is protected, but ")
    assert f"give {option}, " in remarks[0]
    given = eval(option.removeprefix("protected="))
    assert said(lambda: zipbrain.compress(model, ratio=0.5, example=x, protected=given)) == []


def test_an_example_shows_that_a_parameter_is_no_token(silent: None) -> None:
    """The head's query has the shape of a CLS token; what enters the blocks shows that it is none."""

    class Query(Foreign):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stack(x)
            logits: Tensor = self.head(((x @ self.asking.transpose(1, 2)).softmax(1) * x).sum(1))
            return logits

    zipbrain.compress(varied(Query("asking")), ratio=0.5, example=tokens())


def test_the_review_s_model_is_better_where_the_warning_is_followed() -> None:
    torch.manual_seed(0)
    model = varied(Reader("first", front=1))
    x = tokens(16, N)
    expected = run(model, x)["logits"]
    with pytest.warns(UserWarning, match="protected=1"):
        zipbrain.compress(model, ratio=0.8)
    alone = (run(model, x)["logits"] - expected).abs().mean()
    zipbrain.compress(model, ratio=0.8, protected=1)
    assert (run(model, x)["logits"] - expected).abs().mean() < alone


# -- the head ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("first", "reads the first token only"),
        ("last two", "reads the last 2 tokens only"),
        ("mean", "reads all tokens alike"),
        ("attention", "reads all tokens alike"),
        ("flatten", "reads every token in its place"),
        ("lstm", "reads every token in its place"),
        ("tokens", "gives the tokens on"),
    ],
)
def test_summary_tells_what_the_head_read(head: str, words: str) -> None:
    model = reader(head)
    said(lambda: zipbrain.compress(model, ratio=0.5, example=tokens()))
    assert zipbrain.summary(model).head == words
    assert words in str(zipbrain.summary(model))


@pytest.mark.parametrize("head", ["flatten", "lstm"])
def test_an_example_shows_a_head_that_needs_the_readout(head: str) -> None:
    model, x = reader(head), tokens()
    with pytest.warns(UserWarning, match=r"mass=Mass\(readout=True\)"):
        zipbrain.compress(model, ratio=0.5, example=x)
    assert said(lambda: zipbrain.compress(model, ratio=0.5, example=x, mass=Mass(readout=True))) == []
    assert said(lambda: zipbrain.compress(model, Twins(), ratio=0.5, example=x)) == []
    assert run(model, x)["logits"].shape == (2, 3)


@pytest.mark.parametrize("form", ["as it is", "copied", "pickled", "part of another"])
def test_a_flatten_head_that_fails_names_the_readout(form: str) -> None:
    x, model = tokens(), zipbrain.compress(reader("flatten"), ratio=0.5)
    if form == "copied":
        model = copy.deepcopy(model)
    elif form == "pickled":
        model = pickle.loads(pickle.dumps(model))
    elif form == "part of another":
        model = nn.Sequential(model)
    with pytest.raises(OptionError, match=r"fails on 8 of 14 tokens.*mass=Mass\(readout=True\)") as refused:
        run(model, x)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value.__cause__, RuntimeError)
    zipbrain.compress(model, ratio=0.5, mass=Mass(readout=True))
    assert run(model, x)["logits"].shape == (2, 3)


@pytest.mark.parametrize("where", ["before the blocks", "in the head, of another kind", "with nothing removed"])
def test_other_failures_stay_what_they_are(where: str) -> None:
    model, x = reader("mean"), tokens()
    zipbrain.compress(model, r=0 if where == "with nothing removed" else 2)
    run(model, x)
    if where == "before the blocks":
        with pytest.raises(RuntimeError, match="size"):
            run(model, torch.zeros(1, N, DIM + 1))
    elif where == "with nothing removed":
        model.get_submodule("head").register_forward_pre_hook(lambda *_: torch.zeros(2, 3) @ torch.zeros(2, 3))
        with pytest.raises(RuntimeError, match="mat1"):
            run(model, x)
    else:
        model.get_submodule("head").register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(model, x)


def test_the_class_keeps_its_name_and_its_forward_s_signature() -> None:
    import inspect

    model = reader("mean")
    kind = type(model)
    zipbrain.compress(model, ratio=0.5)
    assert isinstance(model, kind)
    assert type(model).__qualname__ == kind.__qualname__
    assert inspect.signature(model.forward) == inspect.signature(kind(head="mean").forward)
    assert zipbrain.summary(model).model == "Reader"
    assert type(zipbrain.restore(model)) is kind


def test_a_head_that_can_t_be_followed_is_left_alone(silent: None) -> None:
    class Rounded(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean(1).argmax(1)

    model = varied(Rounded())
    zipbrain.compress(model, ratio=0.5, example=tokens())
    assert zipbrain.summary(model).head == ""


def test_an_example_leaves_no_trace_and_takes_the_plain_model() -> None:
    model, x = reader("flatten"), tokens()
    model.get_submodule("stack.blocks.0").forward = model.get_submodule("stack.blocks.0").forward
    own = model.get_submodule("stack.blocks.0").__dict__["forward"]
    model.get_submodule("stack.blocks.0").__dict__["forward"] = own
    expected = run(model, x)["logits"]
    state, keys = torch.get_rng_state(), [sorted(module.__dict__) for module in model.modules()]
    said(lambda: zipbrain.compress(model, ratio=0.5, example=x))
    said(lambda: zipbrain.compress(model, ratio=0.5, example=x))  # compressed, it could not run the head
    assert torch.equal(torch.get_rng_state(), state)
    zipbrain.restore(model)
    assert [sorted(module.__dict__) for module in model.modules()] == keys
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(run(model, x)["logits"], expected)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_the_head_is_read_in_every_gradient_mode(mode: Any, silent: None) -> None:
    model = reader("mean")
    with mode():
        zipbrain.compress(model, ratio=0.5, example=tokens())
    assert zipbrain.summary(model).head == "reads all tokens alike"
    assert torch.is_grad_enabled()


# -- no warning without a cause ----------------------------------------------------------------------------------------

MODELS: dict[str, Any] = {
    "LaBraM": lambda: (LaBraM(2, CHANNELS, 1000), (2, 8, 1000)),
    "EEGPT": lambda: (EEGPT(2, CHANNELS, 256), (1, 8, 256)),
    "EEGPT probe": lambda: (EEGPT(2, CHANNELS, 512, head="probe"), (1, 8, 512)),
    "BIOT": lambda: (BIOT(2, 8, 1000), (1, 8, 1000)),
    "TFM": lambda: (TFM(2, 8, 1000), (1, 8, 1000)),
    "TokenEncoder": lambda: (TokenEncoder(DIM, 2, 2), (1, N, DIM)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["zipbrain", "twins"])
def test_our_models_give_no_cause(name: str, method: str, silent: None) -> None:
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    model.eval()
    for options in ({}, {"example": torch.randn(shape)}, {"example": torch.zeros(shape)}):
        zipbrain.compress(model, method, ratio=0.6, **options)
        run(model, torch.randn(shape))
    assert zipbrain.summary(model).head
    assert plan_of(model).reads_protected == name.startswith(("EEGPT", "TFM"))


@pytest.mark.parametrize("name", DIALECTS)
def test_bare_encoders_give_no_cause(name: str, silent: None) -> None:
    model = dialect(name)
    for options in ({}, {"example": tokens()}, {"example": tokens(), "tokens": N}, {"example": tokens(N)}):
        zipbrain.compress(model, ratio=0.5, **options)
        run(model, tokens())
    assert zipbrain.summary(model).head == "gives the tokens on"


# -- windows of another length -----------------------------------------------------------------------------------------


def counts(model: nn.Module, n: int) -> list[int]:
    with zipbrain.trace(model) as traced:
        run(model, tokens(1, n))
    return traced.token_counts


@pytest.mark.parametrize("declared", [{"tokens": 120}, {"example": tokens(1, 120)}], ids=["tokens", "example"])
def test_a_window_of_another_length_gets_its_own_r(declared: dict[str, Any]) -> None:
    model = varied(Stack())
    free = zipbrain.compress(varied(Stack()), ratio=0.5)
    assert said(lambda: zipbrain.compress(model, ratio=0.5, **declared)) == []
    assert said(lambda: run(model, tokens(1, 120))) == []
    remarks = said(lambda: run(model, tokens(1, 30)))
    assert len(remarks) == 1
    assert {"30", "120"} <= {*re.findall(r"\d+", remarks[0])}
    for n in (30, 12, 120, 30, 353):
        assert said(lambda: run(model, tokens(1, n))) == []  # noqa: B023 - called at once
        assert counts(model, n) == counts(free, n)
        assert zipbrain.summary(model).token_counts == counts(free, n)


def test_summary_shows_the_tokens_that_were_seen() -> None:
    model = zipbrain.compress(varied(Stack()), ratio=0.5, tokens=10)
    assert zipbrain.summary(model).token_counts == [10, 8, 6, 4]
    with pytest.warns(UserWarning, match=r"353 tokens, but 10 were declared"):
        run(model, tokens(1, 353))
    found = zipbrain.summary(model)
    assert found.token_counts == [353, 294, 235, 176]
    assert (found.declared, found.leading) == (10, 0)
    assert "10 were declared" in str(found)
    assert zipbrain.summary(copy.deepcopy(model)).token_counts == found.token_counts
    run(model, tokens(1, 10))
    assert zipbrain.summary(model).token_counts == [10, 8, 6, 4]
    assert "declared" not in str(zipbrain.summary(model))


def test_a_copy_does_not_warn_again() -> None:
    model = zipbrain.compress(varied(Stack()), ratio=0.5, tokens=20)
    fresh = copy.deepcopy(model)
    assert len(said(lambda: run(model, tokens(1, 30)))) == 1
    assert said(lambda: run(copy.deepcopy(model), tokens(1, 40))) == []
    assert said(lambda: run(pickle.loads(pickle.dumps(model)), tokens(1, 40))) == []
    assert len(said(lambda: run(fresh, tokens(1, 30)))) == 1


def test_of_many_threads_one_warns() -> None:
    model = zipbrain.compress(varied(Stack()), ratio=0.5, tokens=20)
    start = threading.Barrier(8)

    def window(n: int) -> None:
        start.wait()
        run(model, tokens(1, n))

    def together() -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(window, [30, 31, 32, 33] * 2))

    assert len(said(together)) == 1


def test_asking_for_a_summary_is_no_window() -> None:
    model = zipbrain.compress(varied(Stack()), ratio=0.5, tokens=20)
    assert said(lambda: zipbrain.summary(model, tokens=30)) == []
    assert len(said(lambda: run(model, tokens(1, 30)))) == 1


def test_an_example_that_is_not_what_was_declared_is_said() -> None:
    with pytest.warns(UserWarning, match=r"example has 14 tokens, but tokens=20"):
        zipbrain.compress(varied(Stack()), ratio=0.5, tokens=20, example=tokens())


def test_a_list_of_r_that_does_not_fit_is_said() -> None:
    model = varied(Stack())
    with pytest.warns(UserWarning, match=r"r=\[9, 9, 1\] does not fit 14 tokens: it is cut to \[9, 4, 0\]"):
        zipbrain.compress(model, r=[9, 9, 1], tokens=14)
    assert said(lambda: zipbrain.compress(model, r=[9, 3, 1], tokens=14)) == []
    remarks = said(lambda: run(model, tokens(1, 10)))
    assert len(remarks) == 2
    assert "10 tokens, but 14 were declared" in remarks[0]
    assert "r=[9, 3, 1] does not fit 10 tokens: it is cut to [9, 0, 0]" in remarks[1]
    assert counts(model, 10) == [10, 1, 1, 1]


@pytest.mark.parametrize("kind", ["compile", "export", "trace"])
def test_a_graph_does_not_warn_and_the_first_window_behind_it_does(kind: str) -> None:
    model, x = zipbrain.compress(varied(Reader("mean")), ratio=0.5, tokens=20), tokens(1, 30)
    graphs: list[Any] = []

    def capture() -> None:
        if kind == "compile":
            torch.compiler.reset()
            graphs.append(torch.compile(model, fullgraph=True, backend="eager"))
            run(graphs[0], x)
        elif kind == "export":
            graphs.append(torch.export.export(model, (x,)).module())
        else:
            graphs.append(torch.jit.trace(model, (x,), strict=False, check_trace=False))

    assert not [remark for remark in said(capture) if "declared" in remark]
    remarks = said(lambda: run(model, x))
    assert len(remarks) == 1
    assert "30 tokens, but 20 were declared" in remarks[0]
    torch.testing.assert_close(run(graphs[0], x)["logits"], run(model, x)["logits"])


# -- asked, removed, worth ---------------------------------------------------------------------------------------------


def test_summary_shows_what_was_asked_and_what_goes() -> None:
    model = zipbrain.compress(LaBraM(2, CHANNELS, 2000), ratio=0.8)
    found = zipbrain.summary(model)
    assert (found.asked, found.removed) == (0.8, 0.75)
    assert "(75.0% removed), 80.0% asked" in str(found)
    found = zipbrain.summary(zipbrain.compress(varied(Stack()), r=3, tokens=30))
    assert (found.asked, found.removed) == (0.3, 0.3)


@pytest.mark.parametrize("make", [lambda: EEGPT(2, CHANNELS, 256), lambda: TFM(2, 8, 1000)], ids=["EEGPT", "TFM"])
def test_the_last_reduction_is_worth_nothing_where_the_head_reads_protected_tokens(make: Any) -> None:
    torch.manual_seed(0)
    model = make().eval()
    found = zipbrain.summary(zipbrain.compress(model, ratio=0.6))
    assert found.token_counts is not None
    n, before, after = found.token_counts[0], found.token_counts[-2], found.token_counts[-1]
    assert found.last_worth == 0
    assert after < before
    assert found.removed == pytest.approx(1 - before / n)
    assert "worth nothing" in str(found)
    x = torch.randn(2, 8, 1000 if isinstance(model, TFM) else 256)
    zipbrain.restore(model)
    expected = run(model, x)
    zipbrain.compress(model, r=2, layers=[found.blocks])
    torch.testing.assert_close(run(model, x), expected, rtol=0, atol=2e-6)
    worth = zipbrain.summary(zipbrain.compress(model, r=1, layers=[1])).last_worth  # later blocks attend to the rest
    assert worth
    assert zipbrain.summary(zipbrain.compress(model, ratio=0.6, protected=0)).last_worth


def test_the_last_reduction_saves_its_share_of_the_feed_forward() -> None:
    found = zipbrain.summary(zipbrain.compress(varied(Stack()), r=3, tokens=14))
    assert found.last_worth == 3 * 2 * DIM * 2 * DIM / found.original_macs  # type: ignore[operator]
    assert zipbrain.summary(zipbrain.compress(varied(Stack()), r=0, tokens=14)).last_worth is None


@pytest.mark.parametrize("name", names(Method))
def test_pooling_is_counted_as_the_plain_operators_do_it(name: str) -> None:
    """Grouping alone: torch's counter sees one-hot products in the merge, which kernels do without."""
    shape, method = BlockShape(64, 4, 16, 128), as_method(name)
    n, r = 120, 20
    q, k, v = torch.randn(3, 1, shape.heads, n + 1, shape.head_dim)
    given = Tokens(torch.randn(1, n + 1, shape.dim), r, q, k, v, leading=1, layer=2, depth=3)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        method(given)
    counted, expected = method.grouping_macs(n, r, shape), int(counter.get_total_flops()) // 2
    assert abs(counted - expected) <= 0.02 * expected + 2 * n * shape.dim


def test_pooling_counts_in_what_pays() -> None:
    """Many narrow tokens: the pairs of Twins cost more than removing tokens saves."""
    model = varied(Stack())
    twins, ours = (
        zipbrain.summary(zipbrain.compress(model, method, ratio=0.8, tokens=2000)) for method in ("twins", "zipbrain")
    )
    assert twins.macs == ours.macs
    assert (twins.pays, ours.pays) == (False, True)
    assert "pooling itself" in str(twins)
