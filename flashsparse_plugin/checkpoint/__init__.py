# SPDX-License-Identifier: Apache-2.0
"""Model directories: reading dense and packed ones, and making the one from the other."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .convert.converter import convert_checkpoint
    from .convert.inspection import Inspection, LayerInspection, inspect_checkpoint
    from .convert.unpacker import UnpackReport, unpack_checkpoint
    from .files.headers import CheckpointError, TensorInfo
    from .read.directory import ModelDirectory
    from .write.report import ConversionReport, LayerReport

_HOME = {  # imported when they are used: commands judge their arguments without torch
    "CheckpointError": "files.headers",
    "ConversionReport": "write.report",
    "Inspection": "convert.inspection",
    "LayerInspection": "convert.inspection",
    "LayerReport": "write.report",
    "ModelDirectory": "read.directory",
    "TensorInfo": "files.headers",
    "UnpackReport": "convert.unpacker",
    "convert_checkpoint": "convert.converter",
    "inspect_checkpoint": "convert.inspection",
    "unpack_checkpoint": "convert.unpacker",
}

__all__ = [
    "CheckpointError",
    "ConversionReport",
    "Inspection",
    "LayerInspection",
    "LayerReport",
    "ModelDirectory",
    "TensorInfo",
    "UnpackReport",
    "convert_checkpoint",
    "inspect_checkpoint",
    "unpack_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
