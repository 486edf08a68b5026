"""What a model was trained for: data of another task are refused, other names of the same thing are not."""

from __future__ import annotations

import pytest
from torch import nn

from zipbrain.errors import OptionError
from zipbrain.models import Task, remember, task_of

TASK = Task(
    ("rest", "arithmetic"), "eegmat", ("FP1", "T3", "F7-T3"), 200.0, "hundred", "from 0.1 Hz to 75 Hz, no notch"
)


def test_it_survives_json() -> None:
    assert Task.from_dict(TASK.to_dict()) == TASK
    assert Task.from_dict({"classes": ["a", "b"], "from a later version": 1}) == Task(("a", "b"))


@pytest.mark.parametrize(
    ("classes", "more", "words"),
    [
        (
            ("arithmetic", "sleep"),
            {},
            "data: got 'classes arithmetic, sleep', but the model was trained on eegmat for rest",
        ),
        (("rest", "arithmetic", "other"), {}, "for rest, arithmetic"),
        (("0", "1", "2"), {}, "for rest, arithmetic"),
        (("open", "closed"), {}, "for rest, arithmetic"),
        (("rest", "arithmetic"), {"ch_names": ("T3", "FP1", "F7-T3")}, "with FP1, T3, F7-T3"),
        (("rest", "arithmetic"), {"ch_names": ("FP1", "T3")}, "with FP1, T3, F7-T3"),
        (("rest", "arithmetic"), {"sfreq": 256.0}, "data: got '256 Hz', but the model was trained on eegmat at 200 Hz"),
    ],
)
def test_another_task_is_refused_in_one_line(classes: tuple[str, ...], more: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        TASK.check(classes, **more)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_stand_in_the_order_of_the_outputs() -> None:
    assert TASK.names(("Arithmetic", "Rest")) == ("Rest", "Arithmetic")
    assert TASK.names(("0", "1")) == TASK.classes
    assert TASK.names(("0", "1", "2")) == ("0", "1", "2")
    assert TASK.names(("open", "closed")) == ("open", "closed")
    assert Task(("a", "A")).names(("A", "a")) == ("A", "a")


def test_the_same_task_under_other_words_is_not() -> None:
    TASK.check(TASK.classes, ("EEG Fp1-REF", "T7", "F7-T7"), 200.0)
    TASK.check(("0", "1"))  # places, no names
    TASK.check(("Arithmetic", "rest"))  # in another order
    Task(("0", "1")).check(("open", "closed"), ("C3",), 100.0)  # what is not known is not compared
    with pytest.raises(OptionError, match="but the model was trained for 0, 1"):
        Task(("0", "1")).check(("open", "closed", "other"))


def test_only_a_task_counts_as_one() -> None:
    network = nn.Linear(2, 2)
    assert task_of(network) is None
    network.trained_for = "something of its own"  # type: ignore[assignment]
    assert task_of(network) is None
    remember(network, TASK)
    assert task_of(network) == TASK
    assert set(network.state_dict()) == {"weight", "bias"}
