# SPDX-License-Identifier: Apache-2.0
"""A dense model directory to a packed one that was pruned and recovered, in one call."""

from .card import write_recovered_card, write_rounded_card
from .recipe import TRAINING, sparsify_checkpoint
from .rule import require_rule
from .run import Sparsified

__all__ = [
    "TRAINING",
    "Sparsified",
    "require_rule",
    "sparsify_checkpoint",
    "write_recovered_card",
    "write_rounded_card",
]
