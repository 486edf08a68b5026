"""Splitting, padding and cutting, with a callable in the place of a captured graph."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from acceleration.stand_in import Classifier, Replayed, windows
from zipbrain.acceleration.batch_buckets import Buckets, Padded, Unpadded, split_batch
from zipbrain.training.inference import run_inference

CPU = torch.device("cpu")


def slots(*sizes: int, network: Classifier | None = None) -> Buckets:
    chosen = network or Classifier()
    made = {}
    for size in sizes:
        buffer = torch.zeros(size, 3, 5)
        made[size] = Padded(buffer, Replayed(chosen, buffer), torch.float32)
    return Buckets(made, CPU, torch.float32)


@pytest.mark.parametrize("sizes", [(1,), (4,), (1, 2, 4, 8), (3, 7)])
def test_parts_cover_all_windows_once_and_take_the_smallest_size_that_holds_them(sizes: tuple[int, ...]) -> None:
    for count in range(1, 40):
        found = list(split_batch(count, sizes))
        assert [index for part, _ in found for index in range(count)[part]] == list(range(count))
        for number, (part, size) in enumerate(found):
            length = part.stop - part.start
            assert size == min(one for one in sizes if one >= length)
            assert number == len(found) - 1 or length == sizes[-1]


@pytest.mark.parametrize("sizes", [(1,), (4,), (1, 2, 4, 8), (3, 7)])
def test_every_number_of_windows_is_answered_as_the_network_answers_it(sizes: tuple[int, ...]) -> None:
    network = Classifier().eval()
    answer = slots(*sizes, network=network)
    for count in range(1, 30):
        x = windows(count, seed=count)
        torch.testing.assert_close(answer(x), run_inference(network, x), rtol=1e-5, atol=1e-5)


def test_padding_repeats_the_last_window_and_never_leaves_older_ones() -> None:
    seen: list[Tensor] = []
    buffer = torch.full((4, 3, 5), torch.nan)

    def look() -> Tensor:
        seen.append(buffer.clone())
        return buffer.sum((1, 2))[:, None]

    answer = Buckets({4: Padded(buffer, look, torch.float32)}, CPU, torch.float32)
    x = windows(3)
    assert answer(x).shape == (3, 1)
    assert torch.equal(seen[0], torch.cat((x, x[-1:])))
    answer(windows(4, seed=9))
    answer(x[:1])
    assert torch.equal(seen[2], x[:1].expand(4, 3, 5))


def test_an_answer_stays_when_the_next_one_is_made() -> None:
    answer = slots(2, 4)
    first = answer(windows(3))
    kept = first.clone()
    answer(windows(3, seed=2))
    assert torch.equal(first, kept)
    assert not first.is_inference()
    assert not first.requires_grad


def test_windows_of_any_precision_and_arrangement() -> None:
    network = Classifier().eval()
    answer, x = slots(4, network=network), windows(3)
    expected = run_inference(network, x)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    for given in (x.double(), turned, torch.stack((x, x))[0]):
        torch.testing.assert_close(answer(given), expected)
    torch.testing.assert_close(answer(x[:1].expand(7, 3, 5)), expected[:1].expand(7, -1))


def test_an_exact_slot_takes_windows_as_they_come() -> None:
    counts: list[int] = []

    class Counting(Classifier):
        def forward(self, x: Tensor) -> Tensor:
            counts.append(len(x))
            return super().forward(x)

    answer = Buckets({8: Unpadded(Counting().eval(), torch.empty(0), torch.float32)}, CPU, torch.float32)
    assert answer(windows(11)).shape == (11, 4)
    assert counts == [8, 3]


def test_threads_wait_for_each_other() -> None:
    network = Classifier().eval()
    answer = slots(1, 2, 4, 8, network=network)
    inputs = [windows(count, seed=count) for count in range(1, 20)]
    expected = [run_inference(network, x) for x in inputs]

    def right(number: int) -> bool:
        place = number % len(inputs)
        return bool(torch.allclose(answer(inputs[place]), expected[place], atol=1e-5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, range(400)))


def test_a_slot_works_inside_and_outside_of_the_callers_inference_mode() -> None:
    answer, x = slots(4), windows(2)
    first = answer(x)
    with torch.inference_mode():
        assert torch.equal(answer(x), first)
    assert torch.equal(answer(x), first)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(answer(x), first)


class Stream:
    """Remembers for whom it waited."""

    def __init__(self) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


def test_another_stream_waits_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Stream(), Stream()
    turns = iter((first, first, second, second, first))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: next(turns))
    answer = slots(4)
    answer.device = torch.device("cuda")
    x = windows(2)
    for _ in range(5):
        answer(x)
    assert first.waited == [second]
    assert second.waited == [first]


@pytest.mark.parametrize("allowed", [True, False])
def test_windows_on_a_cpu_go_through_one_stage_in_the_networks_precision(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    empty = torch.empty

    def page_locked(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        if pin_memory and not allowed:
            raise RuntimeError("no page-locked memory left")
        return empty(*args, **kwargs)

    class Looking:
        def __call__(self, x: Tensor) -> Tensor:
            seen.append(x)
            return x.float().sum((1, 2))

    monkeypatch.setattr(torch, "empty", page_locked)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    answer = Buckets({2: Looking(), 4: Looking()}, torch.device("cuda"), torch.float16)
    x = windows(7)
    with torch.inference_mode():
        answer(x)
    torch.testing.assert_close(answer(x), x.sum((1, 2)), rtol=0.01, atol=0.01)
    assert [len(one) for one in seen] == [4, 3, 4, 3]
    assert {one.dtype for one in seen} == {torch.float16 if allowed else torch.float32}
    assert (len({one.data_ptr() for one in seen}) == 1) == allowed
