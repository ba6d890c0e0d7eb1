# SPDX-License-Identifier: Apache-2.0
"""Choosing zeros: magnitude, Wanda, and N:M patterns of either."""

from flashsparse_plugin.pruning.calibration import calibration_windows
from flashsparse_plugin.pruning.layers import LayerReport, PruneReport, prunable_linears
from flashsparse_plugin.pruning.magnitude import magnitude_scores, prune_weight
from flashsparse_plugin.pruning.masks import keep_mask
from flashsparse_plugin.pruning.nm import nm_keep_mask
from flashsparse_plugin.pruning.pruner import prune
from flashsparse_plugin.pruning.wanda import wanda_scores

__all__ = [
    "LayerReport",
    "PruneReport",
    "calibration_windows",
    "keep_mask",
    "magnitude_scores",
    "nm_keep_mask",
    "prunable_linears",
    "prune",
    "prune_weight",
    "wanda_scores",
]
