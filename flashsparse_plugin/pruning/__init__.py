# SPDX-License-Identifier: Apache-2.0
"""Choosing zeros: magnitude, Wanda, N:M patterns of either, and MaskLLM's masks."""

from .calibration import calibration_windows
from .layers import LayerReport, PruneReport, Retained, prunable_linears
from .magnitude import magnitude_scores, prune_weight
from .maskllm import apply_masks
from .masks import keep_mask
from .nm import nm_keep_mask
from .pruner import prune
from .wanda import wanda_scores

__all__ = [
    "LayerReport",
    "PruneReport",
    "Retained",
    "apply_masks",
    "calibration_windows",
    "keep_mask",
    "magnitude_scores",
    "nm_keep_mask",
    "prunable_linears",
    "prune",
    "prune_weight",
    "wanda_scores",
]
