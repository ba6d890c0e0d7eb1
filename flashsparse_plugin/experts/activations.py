# SPDX-License-Identifier: Apache-2.0
"""What experts apply between their projections, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}
"""What an expert may apply to its gate, which multiplies up."""

SWIGLUOAI = "swigluoai"
"""gpt-oss's: gate * sigmoid(alpha * gate) * (up + 1)."""

NAMES: Final = (*ACTIVATIONS, SWIGLUOAI)


@dataclass(frozen=True)
class Activation:
    """What experts apply between their projections, as `multiply` takes it.

    Attributes:
        name: One of `NAMES`.
        limit: Above 0: bounds the gate from above, and up on both sides.
        alpha: Of "swigluoai".
    """

    name: str
    limit: float = 0.0
    alpha: float = 1.702


def gated(gate: Tensor, up: Tensor, name: str, limit: float = 0.0, alpha: float = 1.702) -> Tensor:
    """The activation of gate and up.

    Args:
        gate: Any shape.
        up: As gate.
        name: One of `NAMES`.
        limit: Above 0: bounds gate from above, and up on both sides.
        alpha: Of "swigluoai".
    """
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if name == SWIGLUOAI:
        return gate * torch.sigmoid(alpha * gate) * (up + 1)
    return ACTIVATIONS[name](gate) * up


def between(
    both: Tensor, inner: int, name: str, limit: float = 0.0, alpha: float = 1.702
) -> Tensor:
    """What the down projection takes: of gate and up side by side, or of up alone.

    Args:
        both: [..., inner or 2 * inner].
        inner: Columns of the down projection.
        name: One of `NAMES`; "swigluoai" needs a gate.
        limit: See `gated`.
        alpha: See `gated`.
    """
    if both.shape[-1] == inner:
        return ACTIVATIONS[name](both)
    gate, up = both.chunk(2, -1)
    return gated(gate, up, name, limit, alpha)
