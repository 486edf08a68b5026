"""The transformer blocks of any model, found by structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn

from zipbrain.errors import OptionError, UnsupportedModel
from zipbrain.seams.dialects.base import Dialect, all_dialects
from zipbrain.seams.model_facts import ChainFacts, find_obstacle, resolve_facts


@dataclass(frozen=True, eq=False)
class Chain:
    """Blocks of one dialect that run one after the other."""

    dialect: type[Dialect]  # their dialect
    path: str  # dotted path of the module that holds them
    blocks: tuple[nn.Module, ...]  # the blocks, in order
    # The modules whose forward runs them: the blocks themselves, or the one container with the loop.
    hosts: tuple[nn.Module, ...]
    facts: ChainFacts  # what is known about the model around them

    def __str__(self) -> str:
        return f"{len(self.blocks)} {self.dialect.name} blocks in {self.path or 'the model itself'}"


def find_chain(model: nn.Module, within: str | nn.Module | None = None) -> Chain:
    """The blocks to compress: the longest chain of a known dialect, inside `within` if that is given."""
    path = _path(model, within)
    found, near = _chains(model, path)
    if within is None:
        found = [chain for chain in found if not chain.facts.elsewhere]
    possible = [chain for chain in found if chain.facts.obstacle is None]
    if not possible:
        reason = next((chain.facts.obstacle for chain in found), None) or find_obstacle(model.get_submodule(path))
        if reason is not None:
            raise UnsupportedModel(reason)
    found = possible
    if not found:
        raise UnsupportedModel(_nothing_found(model, path, near))
    longest = max(len(chain.blocks) for chain in found)
    best = [chain for chain in found if len(chain.blocks) == longest]
    if len(best) > 1:
        places = ", ".join(repr(chain.path) for chain in best)
        raise OptionError("within", within, f"{len(best)} chains of {longest} blocks were found: name one of {places}")
    return best[0]


def protected_ends(model: nn.Module, chain: Chain) -> tuple[int, int]:
    """Number of leading and trailing tokens that stand for no signal (CLS, registers, summary)."""
    leading, trailing = declared_ends(model, chain)
    return leading or 0, trailing or 0


def declared_ends(model: nn.Module, chain: Chain) -> tuple[int | None, int | None]:
    """`protected_ends`, with None where neither attributes nor known facts say anything."""
    leading, trailing = chain.facts.prefix_tokens, chain.facts.suffix_tokens
    parts = chain.path.split(".") if chain.path else []
    for length in range(len(parts), -1, -1):  # the module that holds the blocks first, then what is around it
        owner = model.get_submodule(".".join(parts[:length]))
        places = [owner, getattr(owner, "embeddings", None)]  # Hugging Face keeps them with the embeddings
        if trailing is None:
            trailing = _count_tokens(owner, ("summary_token",))
        if leading is None:
            leading = next((n for place in places if (n := _leading(place)) is not None), None)
    return leading, trailing


def suspect_prefix(model: nn.Module, chain: Chain, tokens: int | None) -> str | None:
    """Evidence, in words, of a CLS token that no attribute declares: a (1, 1, D) parameter, or N + 1 positions."""
    dim = chain.dialect.shape(chain.blocks[0]).dim
    inside = {id(values) for block in chain.blocks for values in (*block.parameters(), *block.buffers())}
    counts = {tokens, *(getattr(module, name, None) for module in model.modules() for name in _TOKEN_COUNTS)}
    is_behind = False  # parts that come after the blocks belong to the head
    for path, values in (*model.named_parameters(), *model.named_buffers()):
        shape, words = tuple(values.shape), {*path.lower().replace(".", "_").split("_")}
        is_behind = is_behind or id(values) in inside
        if id(values) in inside or not shape or shape[-1] != dim or words & _NO_TOKENS:
            continue
        is_token = shape == (1, 1, dim) or (values.numel() == dim and words & _CLASS_WORDS)
        is_embedded = isinstance(model.get_submodule(path.rpartition(".")[0]), nn.Embedding)
        if is_token and not is_behind and (is_embedded or not path.endswith("weight")):
            return f"{path} has the shape {shape} of a CLS token"
        positions = len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)
        if positions and "pos" in path.lower() and any(isinstance(n, int) and shape[-2] == n + 1 for n in counts):
            return f"{path} has {shape[-2]} rows, one more than there are tokens"
    return None


# Words in the names of (1, 1, D) parameters that are no tokens of their own in front of the sequence.
_NO_TOKENS: Final = frozenset(("mask", "query", "queries", "pad", "scale", "gamma", "beta", "alpha", "bias", "norm"))
_CLASS_WORDS: Final = frozenset(("cls", "class"))
_TOKEN_COUNTS: Final = ("n_tokens", "num_tokens", "n_patches", "num_patches")


def _leading(owner: object) -> int | None:
    declared = getattr(owner, "num_prefix_tokens", None)
    if isinstance(declared, int):
        return declared
    if not isinstance(getattr(owner, "cls_token", None), Tensor):
        return None
    return _count_tokens(owner, ("cls_token", "dist_token", "reg_token", "distillation_token", "register_tokens"))


def _count_tokens(owner: object, names: tuple[str, ...]) -> int | None:
    tokens = [token for name in names if isinstance(token := getattr(owner, name, None), Tensor)]
    return sum(int(token.shape[-2]) if token.dim() > 1 else 1 for token in tokens) if tokens else None


def _path(model: nn.Module, within: str | nn.Module | None) -> str:
    if within is None:
        return ""
    if isinstance(within, str):
        try:
            model.get_submodule(within)
        except AttributeError:
            children = ", ".join(name for name, _ in model.named_children())
            raise OptionError("within", within, f"the model's parts are {children}") from None
        return within
    for path, module in model.named_modules():
        if module is within:
            return str(path)
    raise OptionError("within", type(within).__name__, "it must be a part of the model, or its dotted path")


def _chains(model: nn.Module, start: str) -> tuple[list[Chain], list[str]]:
    found, near = [], []
    for path, parent in model.get_submodule(start).named_modules(prefix=start):
        blocks: dict[type[Dialect], list[tuple[str, nn.Module]]] = {}
        for name, child in parent.named_children():
            for dialect in all_dialects():
                is_match, missing = dialect.recognise(child)
                if is_match:
                    blocks.setdefault(dialect, []).append((f"{path}.{name}" if path else name, child))
                    break
                if missing:
                    near.append(f"{path}.{name} ({type(child).__name__}) looks {dialect.name}, but {missing}")
        places = list(parent._modules.values())  # `named_children` names a repeated block once
        for dialect, members in blocks.items():
            if any(places.count(block) > 1 for _, block in members):
                near.append(f"{path} runs the same {dialect.name} block several times")
                continue
            hosts = _hosts(model, dialect, members)
            if hosts is None:
                near.append(f"{path} holds {dialect.name} blocks beside others that can't be cut open")
            else:
                found.append(
                    Chain(dialect, path, tuple(block for _, block in members), hosts, resolve_facts(model, path))
                )
    return found, near


def _hosts(
    model: nn.Module, dialect: type[Dialect], members: list[tuple[str, nn.Module]]
) -> tuple[nn.Module, ...] | None:
    """The modules whose forward runs these blocks; None if it runs others besides."""
    if dialect.host_levels == 0:
        return tuple(block for _, block in members)
    parts = members[0][0].split(".")
    if len(parts) < dialect.host_levels:
        return None
    siblings = model.get_submodule(".".join(parts[:-1]))
    if len(list(siblings.children())) != len(members):
        return None
    return (model.get_submodule(".".join(parts[: -dialect.host_levels])),)


def _nothing_found(model: nn.Module, path: str, near: list[str]) -> str:
    place = f"{type(model).__name__}.{path}" if path else type(model).__name__
    if near:
        return f"{place} can't be compressed: {near[0]}; register a dialect with zipbrain.seams.register_dialect"
    looked = "; ".join(f"{dialect.name} ({dialect.looks_like})" for dialect in all_dialects())
    return (
        f"{place} has no transformer block with a known seam between attention and feed-forward; looked for: {looked}; "
        "register another dialect with zipbrain.seams.register_dialect"
    )
