# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model are pruned, and the report of the result."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..matching import matches
from ..modules import linear_modules, shape_of, weight_of
from ..names import LM_HEAD
from ..roles import kept_dense
from .experts import FEW_TOKENS, expert_views

logger = logging.getLogger(__name__)

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Retained:
    """How much of the sum of its scores a pruned weight has kept.

    Attributes:
        share: Of the sum over all its elements.
        unstructured: The share that the best elements have, as many of them, where a pattern kept
            others; None where none did.
    """

    share: float
    unstructured: float | None = None


@dataclass(frozen=True)
class LayerReport:
    """The zeros of one weight, and what of its scores is left where a score chose them."""

    name: str
    shape: tuple[int, int]
    zeros: int
    retained: Retained | None = None

    @property
    def elements(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def sparsity(self) -> float:
        return self.zeros / self.elements if self.elements else 0.0

    @property
    def kind(self) -> str:
        """What layers of one sort share: "q_proj", "experts.gate_proj"."""
        parts = self.name.split(".")
        of_experts = len(parts) > 2 and parts[-3] == "experts" and parts[-2].isdecimal()
        return f"experts.{parts[-1]}" if of_experts else parts[-1]


@dataclass(frozen=True)
class PruneReport:
    """What pruning reached: every layer that was pruned, in the model's order, and the totals."""

    method: str
    layers: tuple[LayerReport, ...]
    few_tokens: Mapping[str, int] = field(default_factory=dict)
    """The experts that few calibration tokens reached, by layer: how many did."""

    @property
    def elements(self) -> int:
        return sum(layer.elements for layer in self.layers)

    @property
    def zeros(self) -> int:
        return sum(layer.zeros for layer in self.layers)

    @property
    def sparsity(self) -> float:
        return self.zeros / self.elements if self.elements else 0.0

    @property
    def retained(self) -> Retained | None:
        """The mean of the layers, by their elements; None where no score chose the zeros."""
        return mean_retained(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {
            "retained": self.retained and asdict(self.retained),
            "method": self.method,
            "elements": self.elements,
            "zeros": self.zeros,
            "sparsity": self.sparsity,
            "few_tokens": dict(self.few_tokens),
            "layers": [asdict(layer) | {"sparsity": layer.sparsity} for layer in self.layers],
        }

    @property
    def notes(self) -> list[str]:
        """Sentences on experts that few calibration tokens reached, one for each module of them."""
        modules: dict[str, dict[str, int]] = {}
        for name, tokens in self.few_tokens.items():
            module, number, _ = name.rsplit(".", 2)
            modules.setdefault(module, {})[number] = tokens
        experts: dict[str, set[str]] = {}
        for layer in self.layers:
            parts = layer.name.rsplit(".", 2)  # of which there may be one
            experts.setdefault(parts[0], set()).update(parts[1:2])
        return [
            f"{len(found)} of {len(experts[module])} experts of {module} saw fewer than "
            f"{FEW_TOKENS} calibration tokens ({_listed(found)}): they were pruned by all tokens "
            "of their layer. Give more text, by --samples and --length"
            for module, found in modules.items()
        ]


def mean_retained(layers: Iterable[LayerReport]) -> Retained | None:
    """The mean of some layers, by their elements; None where no score chose their zeros."""
    known = [(x.elements, x.retained) for x in layers if x.retained is not None]
    elements = sum(count for count, _ in known)
    if not elements:
        return None
    share = sum(count * each.share for count, each in known) / elements
    free = [(count, each.unstructured) for count, each in known if each.unstructured is not None]
    if not free:
        return Retained(share)
    return Retained(share, sum(count * each for count, each in free) / elements)


def report(
    method: str,
    linears: Mapping[str, nn.Module],
    retained: Mapping[str, Retained] | None = None,
    few_tokens: Mapping[str, int] | None = None,
) -> PruneReport:
    """Count the zeros of pruned layers.

    Args:
        method: What chose them.
        linears: The layers, by name.
        retained: What of their scores is left, by name.
        few_tokens: See `PruneReport`.
    """
    layers = []
    for name, linear in linears.items():
        weight = weight_of(linear).detach()
        zeros = weight.numel() - int(weight.count_nonzero())
        own = (retained or {}).get(name)
        layers.append(LayerReport(name, shape_of(linear), zeros, own))
    return PruneReport(method, tuple(layers), few_tokens or {})


def _listed(tokens: Mapping[str, int], most: int = 8) -> str:
    """Numbers of experts with their tokens, a few of them: "3: 0, 17: 12, ..."."""
    shown = [f"{number}: {count}" for number, count in [*tokens.items()][:most]]
    return ", ".join([*shown, *(["..."] if len(tokens) > most else [])])


def check_weight(name: str, weight: torch.Tensor) -> None:
    """Raise ValueError, naming the layer, for a weight that cannot be pruned.

    A weight that holds NaN or infinity is refused: no score can rank such an element, and a
    checkpoint with one is broken.
    """
    if weight.dim() != 2:
        raise ValueError(
            f"{name}: a weight is a matrix [out_features, in_features], "
            f"this one has shape {list(weight.shape)}"
        )
    if weight.device.type == "meta":
        raise ValueError(
            f"{name}: the weight is not in memory (device meta): "
            "load the model without offloading to prune it"
        )
    if weight.dtype not in _DTYPES or is_traceable_wrapper_subclass(weight):
        raise ValueError(
            f"{name}: a weight of {_kind(weight)} cannot be pruned; prune the model in "
            "float16, bfloat16 or float32, before it is quantized"
        )
    broken = weight.numel() - int(weight.isfinite().sum())
    if broken:
        raise ValueError(
            f"{name}: {broken} of {weight.numel()} elements are NaN or infinite; "
            "the checkpoint is broken, or add the layer to `ignore`"
        )


def _kind(weight: torch.Tensor) -> str:
    """What a weight is made of: a class of torchao or the like, or a dtype."""
    is_plain = not is_traceable_wrapper_subclass(weight)
    return str(weight.dtype) if is_plain else type(weight).__name__


def prunable_linears(
    model: nn.Module, ignore: Sequence[str] = (LM_HEAD,), experts: bool = False
) -> dict[str, nn.Module]:
    """Return the layers of a model to prune: every linear layer that `ignore` does not match.

    Linear layers are `nn.Linear` and what computes the same (see `modules.is_linear`). "lm_head" in
    `ignore` means the output head, of tokens or of classes, whatever the architecture calls it.
    Routers of experts are never pruned (see `roles`). Embeddings are no linear layers and never
    pruned, so a head that shares its weight with them is refused.
    A weight that several layers share is listed once, under its first name.

    Args:
        model: A transformers model, or any module.
        ignore: Names and `re:` patterns, see `flashsparse_plugin.matching.matches`.
        experts: Whether to show the experts of mixtures too, each projection as a layer.

    Returns:
        Layers by name, in the model's order, experts last.

    Raises:
        ValueError: If no layer is left, or if one shares its weight with an embedding.
    """
    modules = dict(model.named_modules())
    views = expert_views(model) if experts else {}
    _warn_of_idle(ignore, [*modules, *views])
    dense = kept_dense(model, ignore)
    embeddings = {
        id(module.weight): name
        for name, module in modules.items()
        if isinstance(module, nn.Embedding)
    }
    linears: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, module in linear_modules(model).items():
        if name in dense or matches(name, ignore):
            continue
        weight = id(module.weight)
        if weight in embeddings:
            raise ValueError(
                f"{name} shares its weight with {embeddings[weight]}, which must stay dense: add "
                f"{LM_HEAD!r} to `ignore`, or untie the two (tie_word_embeddings=False)"
            )
        if weight not in seen:
            seen.add(weight)
            linears[name] = module
    if experts:
        linears |= expert_views(model, ignore)
    if not linears:
        raise ValueError(
            f"{type(model).__name__} has no linear layer to prune outside of {list(ignore)}; "
            "a packed or quantized model must be pruned before it is packed or quantized"
        )
    return linears


def _warn_of_idle(ignore: Iterable[str], modules: Iterable[str]) -> None:
    """Warn of a pattern that matches no module: most likely a misspelling."""
    for pattern in ignore:
        if pattern != LM_HEAD and not any(matches(name, [pattern]) for name in modules):
            logger.warning("ignore pattern %r matches no module of the model", pattern)
