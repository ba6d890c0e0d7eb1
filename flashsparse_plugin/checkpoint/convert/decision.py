# SPDX-License-Identifier: Apache-2.0
"""Which layers are packed: what `convert` does, and what `inspect` says that it would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...config import FlashSparseConfig
from ...names import DENSE
from ...packed import FormatError, PackedWeight
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
    if (own := config.named(*linear.names)) is not None:
        if own.format == DENSE:
            return own.reason or IGNORED
    elif linear.goes_by(config.ignore):
        return IGNORED
    elif linear.is_router:
        return linear.why_dense or ROUTER
    return linear.why_dense


def reason_of_experts(
    linears: Sequence[Linear], pack: Callable[[Linear], PackedWeight], title: str, by_size: bool
) -> str | None:
    """Why the experts of a layer stay dense together; None where they are packed together.

    The first expert stands for all, whose number is large.

    Args:
        linears: All projections of all experts of the layer.
        pack: Packs one of them.
        title: How, for people.
        by_size: Whether they stay dense where that is smaller.
    """
    for linear in linears:
        if linear.expert is None or linear.expert.number:
            continue
        try:
            packed = pack(linear)
        except FormatError:
            return f"experts without the zeros of {title}"
        if by_size and packed.nbytes > (1 + NEGLIGIBLE) * packed.dense_nbytes:
            return "experts without zeros enough: larger packed than dense"
    return None


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
