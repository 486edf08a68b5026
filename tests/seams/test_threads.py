"""One compressed model used by several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import zipbrain
from zipbrain.errors import OptionError


def encoder(depth: int = 4) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).eval()


@pytest.mark.parametrize("mass", [False, True])
def test_threads_with_windows_of_different_lengths_do_not_disturb_each_other(mass: bool) -> None:
    model = zipbrain.compress(encoder(), zipbrain.ZIPBrain(), ratio=0.8, mass=mass)
    inputs = [torch.randn(2, n, 32) for n in (40, 200, 77)]
    with torch.inference_mode():
        expected = [model(x) for x in inputs]

        def run(number: int) -> bool:
            with torch.inference_mode():
                return torch.equal(model(inputs[number % 3]), expected[number % 3])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(run, range(60)))


def test_tokens_by_name_and_too_many_protected() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    model = zipbrain.compress(nn.Sequential(layer), r=3)
    x = torch.randn(2, 10, 32)
    assert torch.equal(model[0](src=x), model(x))
    zipbrain.compress(model, r=3, protected=500)
    with pytest.raises(OptionError, match="protected: got 500, but there are 10 tokens at the first block"):
        model(x)


def test_summary_says_when_less_was_removed_than_asked() -> None:
    summary = zipbrain.summary(zipbrain.compress(encoder(), r=100, tokens=50))
    assert summary.cut
    assert summary.token_counts == [50, 1, 1, 1, 1]
    with pytest.raises(OptionError, match="tokens: got 0"):
        zipbrain.summary(zipbrain.compress(encoder(), r=1), tokens=0)
