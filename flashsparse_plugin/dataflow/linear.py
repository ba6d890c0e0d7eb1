# SPDX-License-Identifier: Apache-2.0
"""What a layer has to know to go by its dataflow, decided when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..ops import STATUS, ops
from ..packed import PackedWeight
from .model import Weight
from .table import NO_LIMIT, resolve


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
    flow = resolve(Weight(tuple(weight.shape)), weight.dtype, weight.device)
    found = DenseLinear(flow.most("gemv"), flow.most("flat_gemm"), flow.reason)
    return found if found.gemv_tokens or found.flat_tokens else None


@dataclass(frozen=True)
class SparseTokens:
    """The same of a packed layer: what the linear of its format takes as `sparse_tokens`.

    Attributes:
        most: The most tokens that the format's own kernel multiplies; 0: none, NO_LIMIT: any
            number. For more the weight is unpacked, for torch's own linear.
        reason: Why, in one sentence for people.
    """

    most: int
    reason: str = ""

    def __str__(self) -> str:
        if self.most in (0, NO_LIMIT):
            text = "packed for any number of tokens" if self.most else "always unpacked"
        else:
            text = f"packed for up to {self.most} tokens, else unpacked"
        return f"{text} ({self.reason})"


def sparse_tokens(packed: PackedWeight) -> SparseTokens | None:
    """Up to how many tokens a packed weight is multiplied as it is, once it is where it will stay.

    Counts the nonzeros, and so waits for the device.

    Returns:
        None where there is nothing to choose, as on every CPU: the op is left to itself.

    Raises:
        TableError: Where there is a table for this GPU that cannot be read.
    """
    if packed.device.type != "cuda" or not STATUS["_C_cuda"].loaded:
        return None
    flow = resolve(Weight.of(packed), packed.dtype, packed.device)
    return SparseTokens(flow.most("sparse"), flow.reason)
