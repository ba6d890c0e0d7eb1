# SPDX-License-Identifier: Apache-2.0
"""Model directories: reading dense and packed ones, and making the one from the other."""

from .convert.converter import convert_checkpoint
from .convert.inspection import Inspection, LayerInspection, inspect_checkpoint
from .files.headers import CheckpointError, TensorInfo
from .read.directory import ModelDirectory
from .write.report import ConversionReport, LayerReport

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
