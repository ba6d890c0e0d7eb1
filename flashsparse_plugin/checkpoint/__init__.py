# SPDX-License-Identifier: Apache-2.0
"""Model directories: reading dense and packed ones, and making the one from the other."""

from .converter import convert_checkpoint
from .inspection import Inspection, LayerInspection, inspect_checkpoint
from .reader import CheckpointError, ModelDirectory, TensorInfo
from .report import ConversionReport, LayerReport

__all__ = [
    "CheckpointError",
    "ConversionReport",
    "Inspection",
    "LayerInspection",
    "LayerReport",
    "ModelDirectory",
    "TensorInfo",
    "convert_checkpoint",
    "inspect_checkpoint",
]
