# SPDX-License-Identifier: Apache-2.0
"""What packed experts of a mixture should take on a GPU, by our grouped kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..experts.grouped import layer_seconds
from ..gpu import Gpu
from ..packed import Scheme
from ..served import Experts
from .rivals import EXPERTS_16


class ExpertTimes(Protocol):
    """What multiplies the experts of a mixture."""

    @property
    def bits(self) -> float: ...

    def seconds(self, experts: Experts, tokens: int, gpu: Gpu) -> float: ...


@dataclass(frozen=True)
class PackedExperts:
    """Experts in a format that has a grouped kernel; those that it does not take are dense.

    The time of a layer is that of both products and of what stands around them (the order of
    tokens, the activation, the sum), while those of others are of their products alone.

    Attributes:
        scheme: In the form that the kernel reads.
        bits: A weight.
    """

    scheme: Scheme
    bits: float

    def takes(self, experts: Experts) -> bool:
        """Whether the kernel takes so many experts, with a gate."""
        format = self.scheme.format
        return format.why_not_grouped(self.scheme, experts.count) is None and any(_gated(experts))

    def seconds(self, experts: Experts, tokens: int, gpu: Gpu) -> float:
        """Of one step of all layers."""
        if not self.takes(experts):
            return EXPERTS_16.seconds(experts, tokens, gpu)
        total = 0.0
        for (hidden, inner), layers in _gated(experts):
            tall = (2 * inner * experts.count, hidden), (hidden * experts.count, inner)
            first, second = (int(self.bits * rows * columns / 8) for rows, columns in tall)
            times = layer_seconds(
                *(self.scheme, (hidden, inner), (first, second)),
                *(tokens, (experts.count, experts.active), gpu),
            )
            total += layers * min(times)
        return total


def _gated(experts: Experts) -> Iterator[tuple[tuple[int, int], int]]:
    """Shapes of down projections beside which there are gate and up, each with its layers."""
    for (hidden, inner), layers in experts.matrices.items():
        if experts.matrices.get((2 * inner, hidden)) == layers:
            yield (hidden, inner), layers


def expert_times(scheme: Scheme, bits: float) -> ExpertTimes:
    """What multiplies experts beside layers of a scheme: a grouped kernel, or vLLM's in 16 bits.

    Args:
        scheme: In the form that GPUs read.
        bits: A weight.
    """
    packed = PackedExperts(scheme, bits)
    return packed if scheme.format.why_not_grouped(scheme, 1) is None else EXPERTS_16
