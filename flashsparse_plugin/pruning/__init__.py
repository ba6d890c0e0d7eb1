# SPDX-License-Identifier: Apache-2.0
"""Choosing zeros: scores, patterns, allocation, masks of others; recovery; rounding to 4 bits."""

from .allocation import ALLOCATIONS
from .calibration import calibration_windows
from .layers import LayerReport, PruneReport, Retained, prunable_linears
from .least_squares import LeastSquares
from .lora import LoRA
from .magnitude import magnitude_scores, prune_for, prune_weight
from .maskllm import apply_masks
from .masks import keep_mask
from .methods import method_names, register_method
from .nm import nm_keep_mask
from .presets import PRESETS, dense_layers
from .pruner import prune
from .recovery import Fit, few_tokens, recover_
from .ria import ria_scores
from .rounding import round_, rounding_of
from .statistics import Statistics
from .wanda import wanda_scores

__all__ = [
    "ALLOCATIONS",
    "PRESETS",
    "Fit",
    "LayerReport",
    "LeastSquares",
    "LoRA",
    "PruneReport",
    "Retained",
    "Statistics",
    "apply_masks",
    "calibration_windows",
    "dense_layers",
    "few_tokens",
    "keep_mask",
    "magnitude_scores",
    "method_names",
    "nm_keep_mask",
    "prunable_linears",
    "prune",
    "prune_for",
    "prune_weight",
    "recover_",
    "register_method",
    "ria_scores",
    "round_",
    "rounding_of",
    "wanda_scores",
]
