# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the compiled objects: after this import, `torch.ops.flashsparse` exists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

import flashsparse_plugin


@dataclass
class ObjectStatus:
    """Whether a compiled object is loaded, and if not, why not."""

    path: Path | None
    loaded: bool
    reason: str


def _find(name: str) -> Path | None:
    # In an editable install the objects are in site-packages and the sources elsewhere: both
    # folders are on the package's path.
    for folder in flashsparse_plugin.__path__:
        path = Path(folder) / name
        if path.is_file():
            return path
    return None


def _load_cpu() -> ObjectStatus:
    path = _find("_C_cpu.so")
    if path is None:
        raise ImportError(
            "flashsparse-plugin was installed without its compiled object _C_cpu.so. "
            "Install it again with `pip install --force-reinstall --no-deps flashsparse-plugin` "
            "(from a clone: `pip install -e .`); running from the source folder alone cannot work."
        )
    torch.ops.load_library(str(path))
    return ObjectStatus(path, True, "loaded")


def _load_cuda() -> ObjectStatus:
    path = _find("_C_cuda.so")
    if path is None:
        return ObjectStatus(
            None, False, "not built: no usable nvcc at install time, or FLASHSPARSE_CUDA=OFF"
        )
    if torch.version.cuda is None:
        return ObjectStatus(path, False, "not loaded: this torch is a CPU build")
    torch.ops.load_library(str(path))
    return ObjectStatus(path, True, "loaded")


STATUS = {"_C_cpu": _load_cpu(), "_C_cuda": _load_cuda()}
ops = torch.ops.flashsparse


def where_kernels_are(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on its own device if that has kernels, else on the CPU: packed results are equal."""
    return tensor if tensor.is_cuda and STATUS["_C_cuda"].loaded else tensor.cpu()
