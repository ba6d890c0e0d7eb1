# SPDX-License-Identifier: Apache-2.0
"""The compiled ops, `torch.ops.flashsparse.*`, loaded and completed for torch.compile."""

from . import fallback
from .library import STATUS
from .schema import ops

if STATUS["_C_cuda"].loaded:
    fallback.register()

__all__ = ["STATUS", "ops"]
