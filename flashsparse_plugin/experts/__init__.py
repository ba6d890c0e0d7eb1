# SPDX-License-Identifier: Apache-2.0
"""The experts of a mixture, packed: one tall weight a projection, one op a layer."""

from .activations import SWIGLUOAI, Activation
from .grouped import why_dense
from .layer import PackedStack, SparseExperts
from .op import multiply
from .stack import ExpertStack

__all__ = [
    "SWIGLUOAI",
    "Activation",
    "ExpertStack",
    "PackedStack",
    "SparseExperts",
    "multiply",
    "why_dense",
]
