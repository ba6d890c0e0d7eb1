# SPDX-License-Identifier: Apache-2.0
"""Which layers are packed: what `convert` does, and what `inspect` says that it would do."""

from __future__ import annotations

from ...config import FlashSparseConfig
from ...names import DENSE
from ...roles import ROUTER
from ..read.linears import Linear
from ..write.report import human

IGNORED = "ignored by name"
# Offsets and padding come to less. Where values and their places take what the dense weight does
# (Tiled-CSL at 50% zeros), the packed one is as large on disk, and smaller in a CPU's memory.
NEGLIGIBLE = 0.01


def reason_not_to_pack(linear: Linear, config: FlashSparseConfig) -> str | None:
    """Why a layer stays dense whatever its weights are; None where they decide."""
    if linear.tied_to is not None:
        return f"tied to {linear.tied_to}"
    if linear.name in config.layers:
        own = config.layers[linear.name]
        if own.format == DENSE:
            return own.reason or IGNORED
    elif linear.goes_by(config.ignore):
        return IGNORED
    elif linear.is_router:
        return linear.why_dense or ROUTER
    return linear.why_dense


def reason_of_size(packed: int, dense: int, sparsity: float) -> str | None:
    """Why a layer is not worth packing; None where it is.

    Args:
        packed: Bytes of the packed weight.
        dense: Bytes of the dense weight in the same dtype: what float32 gains by rounding it would
            gain dense, too.
        sparsity: Share of zeros.
    """
    if packed <= (1 + NEGLIGIBLE) * dense:
        return None
    return (
        f"larger packed than dense: {human(packed)} against {human(dense)} "
        f"at {1 - sparsity:.1%} density"
    )
