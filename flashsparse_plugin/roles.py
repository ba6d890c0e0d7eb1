# SPDX-License-Identifier: Apache-2.0
"""Which linear layers are routers or output heads, which stay dense unless a user names them.

A router decides which experts a token goes to, a head what the model answers. A zero costs more
there than elsewhere, and they are a small part of a model. Modules do not say what they are for, so
it is told by what is beside a layer, by the names of it and of what holds it, and by what the class
of the model adds to its base model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from .expert_layout import experts_of
from .modules import linear_modules, shape_of
from .names import LM_HEAD

ROUTER = "router"
HEAD = "output head"
_HEADS_BY_NAME = ("score", "classifier")
_ROUTERS_BY_NAME = ("gate", "wg")
_ENDS_OF_ROUTERS = ("expert_gate", "experts_gate")


def kept_dense(model: nn.Module, ignore: Sequence[str] = ()) -> dict[str, str]:
    """The linear layers of a model that stay dense because of what they are for.

    Args:
        model: A model of transformers, on the meta device or not, or any module.
        ignore: What a user ignores. Output heads are among the layers where "lm_head" is in it,
            whatever the model calls them; routers always are.

    Returns:
        Why, `ROUTER` or `HEAD`, by the names of the layers in the model's order.
    """
    routing, answering = routers(model), heads(model) if LM_HEAD in ignore else set()
    reasons = {}
    for name in linear_modules(model):
        if name in routing:
            reasons[name] = ROUTER
        elif name in answering:
            reasons[name] = HEAD
    return reasons


def heads(model: nn.Module) -> set[str]:
    """Names of the layers that give a model's answer: logits of tokens, or of classes, or a score.

    A model for a task that has no logits of tokens has all layers as its head that its class adds
    to the base model. Where the base model is not a module by itself, those are the linear layers
    that are held by no other module.
    """
    output = getattr(model, "get_output_embeddings", lambda: None)()
    linears = linear_modules(model)
    if output is not None:
        return {name for name, module in model.named_modules() if module is output}
    if "For" not in type(model).__name__:  # a base model, or none of transformers
        return set()
    base = base_name(model)
    if base is not None:
        return {name for name in linears if not name.startswith(f"{base}.")}
    return {name for name in linears if "." not in name}


def base_name(model: nn.Module) -> str | None:
    """The name of the base model in a model that adds to it; None where that is no part of it."""
    base = getattr(model, "base_model_prefix", "")
    part = getattr(model, base, None) if base else None
    return base if isinstance(part, nn.Module) else None


def routers(model: nn.Module) -> set[str]:
    """Names of the linear layers that weigh experts, or weigh an expert that is always there.

    That is what is called a router, or is in one, and what stands alone beside a module of experts
    with as many rows as there are experts, or with one.
    """
    linears = linear_modules(model)
    found = {name for name in linears if is_called_router(model, name)}
    for block, experts, count in _blocks(model):
        for own, child in model.get_submodule(block).named_children():
            inner = list(linear_modules(child))
            if own == experts or len(inner) != 1:
                continue
            name = ".".join(part for part in (block, own, inner[0]) if part)
            if shape_of(linears[name])[0] in (count, 1):
                found.add(name)
    return found


def called_router(name: str, is_replicated: bool) -> bool:
    """Whether an engine's layer is a router, by its name there.

    Args:
        name: The name of the layer.
        is_replicated: Whether it is whole on every rank, as routers are; "gate" may be a part of a
            feed-forward network otherwise.
    """
    parts = name.lower().split(".")
    return any("router" in part for part in parts) or (
        is_replicated and (parts[-1] in _ROUTERS_BY_NAME or parts[-1].endswith(_ENDS_OF_ROUTERS))
    )


def called_head(name: str, ignore: Sequence[str]) -> bool:
    """Whether an engine's layer is a classification head by its name, and heads stay dense."""
    return LM_HEAD in ignore and name.rpartition(".")[2] in _HEADS_BY_NAME


def is_called_router(model: nn.Module, name: str) -> bool:
    """Whether a layer, or a module that it is in, is called so by its name or its class."""
    parts = name.split(".")
    inside = [model.get_submodule(".".join(parts[:end])) for end in range(1, len(parts))]
    called = [*parts, *(type(module).__name__ for module in inside)]
    return any("router" in each.lower() for each in called)


def _blocks(model: nn.Module) -> Iterator[tuple[str, str, int]]:
    """Yields modules that hold experts: their names, that of the experts there, and how many."""
    seen = set()
    for name in experts_of(model):
        module = name.rpartition(".")[0]
        if module not in seen:
            seen.add(module)
            block, _, own = module.rpartition(".")
            count = getattr(model.get_submodule(module), "num_experts", 0)
            yield block, own, count
    for name, module in model.named_modules():
        block, _, own = name.rpartition(".")
        if own == "experts" and isinstance(module, nn.ModuleList | nn.ModuleDict):
            yield block, own, len(module)
