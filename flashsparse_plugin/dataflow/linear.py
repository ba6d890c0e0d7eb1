# SPDX-License-Identifier: Apache-2.0
"""What a layer has to know to go by its dataflow, decided when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..ops import STATUS, ops
from ..packed import PackedWeight
from ..plan import Plan
from .decision import resolve
from .model import Weight


@dataclass(frozen=True)
class DenseLinear:
    """A dataflow (FlashDecoding++, section 5) as a function: nothing is looked up in a call.

    Attributes:
        gemv_tokens: The most tokens that go to gemv, 0 to 8.
        flat_tokens: The most that go to flat_gemm, 0 to 64, where they are too many for gemv; all
            others go to torch's own linear.
        reason: Why, in one sentence for people.
    """

    gemv_tokens: int
    flat_tokens: int
    reason: str = ""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., in] times the transposed weight [out, in], plus bias [out]; of one dtype."""
        return ops.dense_linear(x, weight, bias, self.gemv_tokens, self.flat_tokens)

    def __str__(self) -> str:
        named = {"gemv": self.gemv_tokens, "flat_gemm": self.flat_tokens}
        parts = [f"{name} for up to {most} tokens" for name, most in named.items() if most]
        return f"{', '.join([*parts, 'else torch'])} ({self.reason})"


def dense_linear(weight: Tensor) -> DenseLinear | None:
    """What multiplies a dense weight, once it is where it will stay.

    Args:
        weight: [out, in]; of its values nothing matters.

    Returns:
        None where torch's own linear is best for any number of tokens, as on every CPU: the layer
        stays as it is.

    Raises:
        TableError: Where there is a table for this GPU that cannot be read.
    """
    if not weight.is_cuda or not STATUS["_C_cuda"].loaded:
        return None
    rows, cols = weight.shape
    flow = resolve(Weight((rows, cols)), weight.dtype, weight.device)
    if flow is None:
        return None
    found = DenseLinear(flow.most("gemv"), flow.most("flat_gemm"), flow.reason)
    return found if found.gemv_tokens or found.flat_tokens else None


def plan_of(packed: PackedWeight) -> Plan | None:
    """Which implementation multiplies a packed weight, once it is where it will stay.

    Counts the nonzeros, and so waits for the device.

    Returns:
        None where there is nothing to choose, as on every CPU, and where no table has measured the
        weight: the op decides.

    Raises:
        TableError: Where there is a table for this GPU that cannot be read.
    """
    if packed.device.type != "cuda" or not STATUS["_C_cuda"].loaded:
        return None
    if len(packed.format.implementations(packed.scheme)) < 2:
        return None
    return resolve(Weight.of(packed), packed.dtype, packed.device)
