# SPDX-License-Identifier: Apache-2.0
"""The compiled ops, `torch.ops.flashsparse.*`, loaded and completed for torch.compile.

Those of dense layers, of attention, between products and of routing to experts are completed here,
those of a packed format in its folder of `formats/`.
"""

from . import attention, dense, elementwise, experts
from .library import STATUS, ops, where_kernels_are

__all__ = ["STATUS", "attention", "dense", "elementwise", "experts", "ops", "where_kernels_are"]
