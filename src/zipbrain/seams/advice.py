"""Advice: where a model or an example speaks against the options of `compress`, in one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from zipbrain.seams.find import Chain, declared_ends, suspect_prefix
from zipbrain.seams.forward import Plan
from zipbrain.seams.readout import Probe


def advice(model: nn.Module, chain: Chain, plan: Plan, seen: Probe | None, protected: object) -> Iterator[str]:
    """Sentences for warnings; `protected` is the option as it was given, which counts more than any sign."""
    if seen is not None:
        count = seen.total - plan.protected
        if count != plan.tokens:
            yield f"the example has {count} tokens, but tokens={plan.tokens} was declared: one of them is wrong"
        if seen.readout is not None and seen.readout.has_fixed_places and not plan.mass.readout:
            yield "the head reads every token in its place (flatten, grid): it needs mass=Mass(readout=True)"
    if protected is None:
        sign = _sign(model, chain, plan, seen)
        if sign is not None:
            yield sign


def _sign(model: nn.Module, chain: Chain, plan: Plan, seen: Probe | None) -> str | None:
    """A sentence, if there is evidence of more protected tokens than were found."""
    found = plan.leading, plan.trailing
    constant, readout = (None, None) if seen is None else (seen.constant, seen.readout)
    if constant is not None and _exceeds(constant, found):
        same = "1 token is" if sum(constant) == 1 else f"{sum(constant)} tokens are"
        head = "" if readout is None else f" (the head {readout})"
        return _ask(found, constant, f"{same} the same for any input{head}")
    if readout is not None:
        leading, trailing = readout.ends()
        ends = max(leading - plan.late[1], 0), trailing
        if _exceeds(ends, found):
            return _ask(found, ends, f"the head {readout}")
    is_open = found == (0, 0) and declared_ends(model, chain) == (None, None)
    evidence = suspect_prefix(model, chain, plan.tokens) if is_open and constant is None else None
    return None if evidence is None else _ask(found, (1, 0), evidence)


def _exceeds(wanted: tuple[int, int], found: tuple[int, int]) -> bool:
    return wanted[0] > found[0] or wanted[1] > found[1]


def _ask(found: tuple[int, int], wanted: tuple[int, int], evidence: str) -> str:
    leading, trailing = (max(pair) for pair in zip(found, wanted, strict=True))
    option = f"protected={(leading, trailing) if trailing else leading}"
    kept, stay = "nothing is protected", "protected=0"
    if found != (0, 0):
        kept, stay = f"{found[0]} leading and {found[1]} trailing tokens are protected", f"protected={found}"
    return f"{kept}, but {evidence}: give {option}, or {stay} if all others may be pooled"
