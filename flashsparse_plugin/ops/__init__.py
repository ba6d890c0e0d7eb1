# SPDX-License-Identifier: Apache-2.0
"""The compiled ops, `torch.ops.flashsparse.*`, loaded and completed for torch.compile."""

from .library import STATUS
from .schema import ops

__all__ = ["STATUS", "ops"]
