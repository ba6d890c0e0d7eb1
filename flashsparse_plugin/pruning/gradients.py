# SPDX-License-Identifier: Apache-2.0
"""Backward passes through a model that stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .relay import evaluating


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Enables gradients, but those of no parameter, and puts the model into evaluation mode."""
    required = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        model.requires_grad_(False)
        with evaluating(model), torch.enable_grad():
            yield
    finally:
        for parameter, flag in required.items():
            parameter.requires_grad_(flag)


def require_finite(name: str, gradients: Tensor) -> None:
    """Raises ValueError, naming the layer, for gradients that are NaN or infinite."""
    if not bool(gradients.isfinite().all()):
        raise ValueError(
            f"{name}: a gradient is NaN or infinite; load the model in bfloat16 or float32"
        )
