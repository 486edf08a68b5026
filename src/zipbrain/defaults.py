"""Defaults that a function shares with its command, which must be shown without importing torch (stdlib only)."""

from typing import Final

KEPT_AGREEMENT: Final = 0.95  # least share of the decisions that a compared row must keep to be recommended
PROMISED_AGREEMENT: Final = 0.99  # share of the decisions that a tuned recipe shall promise to keep
TUNED_METHODS: Final = ("twins", "ward_pairs", "zipbrain", "tome")  # that a tuning chooses from
