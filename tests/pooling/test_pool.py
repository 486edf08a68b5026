"""`pool`: refusals, and memory at sixteen thousand tokens."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from zipbrain.errors import OptionError
from zipbrain.pooling import ZIPBrain, pool

X, H = torch.zeros(2, 6, 4), torch.zeros(2, 2, 6, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(6, 4)}, r"x: got 'torch.float32 \(6, 4\)', but .* \(B, T, D\)"),
        ({"x": torch.zeros(2, 6, 4, dtype=torch.int64)}, r"x: got 'torch.int64"),
        ({"x": [[1.0]]}, r"x: got 'list'"),
        ({"q": None}, r"q: got None, but zipbrain reads q"),
        ({"k": torch.zeros(2, 6, 3)}, r"k: got .*\(2, 6, 3\).* \(B, H, T, d\) with B = 2 and T = 6"),
        ({"v": torch.zeros(2, 2, 5, 3)}, r"v: got .*T = 6"),
        ({"q": torch.zeros(1, 2, 6, 3)}, r"q: got .*B = 2"),
        ({"r": -1}, r"r: got -1, but it must be a whole number of at least 0"),
        ({"r": 6}, r"r: got 6, but it must be from 0 to 5 \(6 unprotected tokens\)"),
        ({"r": 5, "protected": 1}, r"r: got 5, but it must be from 0 to 4 \(5 unprotected"),
        ({"r": 1.0}, r"r: got 1.0, but it must be a whole number"),
        ({"r": True}, r"r: got True"),
        ({"protected": -1}, r"protected: got -1"),
        ({"protected": (1, 2, 3)}, r"protected: got \(1, 2, 3\)"),
        ({"protected": (4, 4)}, r"protected: got \(4, 4\), but there are only 6 tokens"),
        ({"protected": torch.zeros(5, dtype=torch.bool)}, r"protected: got .*\(5,\).*\(6,\) or \(2, 6\)"),
        ({"protected": torch.zeros(6)}, r"protected: got .*bool"),
        ({"protected": torch.tensor([[1] * 6, [0] * 6]).bool()}, r"protected: got \[6, 0\], but every window"),
        ({"mass": torch.ones(2, 5)}, r"mass: got .*\(2, 5\).*\(2, 6\)"),
        ({"mass": -torch.ones(2, 6)}, r"mass: got '12 negative"),
        (
            {"mass": torch.tensor([[1.0] * 6, [1.0] * 5 + [torch.nan]])},
            r"mass: got '1 negative or infinite values or NaN",
        ),
        ({"mass": torch.full((2, 6), torch.inf)}, r"mass: got '12 negative or infinite"),
        ({"x": X.to("meta"), "q": H.to("meta"), "k": H.to("meta"), "v": H.to("meta")}, r"x: got 'a meta tensor'"),
        ({"method": "zip brain?"}, r"method: got"),
    ],
)
def test_a_bad_argument_is_named_with_what_was_given_and_what_is_allowed(
    change: dict[str, object], message: str
) -> None:
    options: dict[str, object] = {"x": X, "q": H, "k": H, "v": H, "r": 2, "method": ZIPBrain("q", "k", "v")}
    with pytest.raises(OptionError, match=message):
        pool(**(options | change))  # type: ignore[arg-type]
    assert issubclass(OptionError, ValueError)


def test_q_k_v_are_needed_only_where_a_method_reads_them() -> None:
    assert pool(X, r=2, method=ZIPBrain("x", "x", "x")).x.shape == (2, 4, 4)
    assert pool(X, k=H, r=2, method=ZIPBrain("x", "kh", "x")).x.shape == (2, 4, 4)


def test_inputs_are_left_as_they_were(path: str) -> None:
    x, heads = torch.randn(2, 9, 4), [torch.randn(2, 2, 9, 3) for _ in range(3)]
    copies = [x.clone(), *(h.clone() for h in heads)]
    pool(x, *heads, r=4, method=ZIPBrain("qh", "k", "vh"), protected=1)
    assert all(torch.equal(a, b) for a, b in zip([x, *heads], copies, strict=True))


def test_strided_and_expanded_inputs_are_read_correctly(path: str) -> None:
    base = torch.randn(3, 20, 3, 2, 4)
    q, k, v = base.permute(2, 0, 3, 1, 4).unbind(0)  # as a fused qkv projection leaves them
    x = torch.randn(20, 3, 8).transpose(0, 1)
    one = pool(x, q, k, v, r=7, method=ZIPBrain("x", "kh", "v"), protected=(1, 1))
    other = pool(
        x.contiguous(), *(h.contiguous() for h in (q, k, v)), r=7, method=ZIPBrain("x", "kh", "v"), protected=(1, 1)
    )
    assert torch.equal(one.grouping.target, other.grouping.target)
    assert torch.equal(one.x, other.x)
    odd = torch.randn(3, 20, 16)[:, :, ::2]  # the last axis is not contiguous
    method = ZIPBrain("x", "x", "x")
    torch.testing.assert_close(pool(odd, r=5, method=method).x, pool(odd.clone(), r=5, method=method).x)
    same = torch.randn(1, 20, 8).expand(3, 20, 8)
    pooled = pool(same, r=5, method=method)
    assert torch.equal(pooled.x[0], pooled.x[2])


MEMORY = """
import torch
from zipbrain.profiling import peak_memory
from zipbrain.pooling import ZIPBrain, pool
torch.set_num_threads(2)
method = ZIPBrain("x", "x", "x", 0.5)
with torch.inference_mode():
    pool(torch.randn(1, 64, 200), r=32, method=method)
    x = torch.randn(1, 16384, 200)
    print(peak_memory(lambda: pool(x, r=8192, method=method)))
"""


@pytest.mark.slow
def test_sixteen_thousand_tokens_stay_below_a_gigabyte() -> None:
    found = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 2**30
