# SPDX-License-Identifier: Apache-2.0
"""What a format does with all experts of a layer at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from torch import Tensor

from ..gpu import Gpu


class _Scheme(Protocol):
    """What is asked of a scheme."""

    @property
    def title(self) -> str: ...


S = TypeVar("S", bound=_Scheme)


@dataclass(frozen=True)
class Routed:
    """A batch that is routed to the experts of a layer, and what happens to it there.

    Attributes:
        x: Activations [tokens, hidden].
        ids: Experts of each token, int32 or int64 [tokens, k]; one that is not there is left out.
        weights: By how much each counts, [tokens, k].
        activation: Of the gate, by name; see `experts.activations`.
        limit: Above 0: bounds the gate from above, and up on both sides.
        alpha: Of "swigluoai".
        w13_bias: Optional [experts, rows of gate and up].
        w2_bias: Optional [experts, hidden].
        expert_map: int32 [all experts], the place of each here, or -1; None: all are here.
        weights_on_input: Whether `weights` multiply the product of w13, before its bias, and not
            that of w2.
    """

    x: Tensor
    ids: Tensor
    weights: Tensor
    activation: str
    limit: float = 0.0
    alpha: float = 1.702
    w13_bias: Tensor | None = None
    w2_bias: Tensor | None = None
    expert_map: Tensor | None = None
    weights_on_input: bool = False


class GroupedExperts(Generic[S]):
    """The part of a format that knows a grouped kernel; by default it has none.

    Such a kernel takes all experts of a projection as one tall weight. Each expert's rows are
    padded with zeros to whole blocks, and blocks of gate and up alternate.
    """

    name: ClassVar[str]
    expert_rows: ClassVar[int] = 1
    """Rows of a block."""
    expert_activations: ClassVar[tuple[str, ...]] = ()
    """Activations of the gate that the kernel computes."""

    def why_not_grouped(self, scheme: S, experts: int) -> str | None:
        """Why the grouped kernel cannot multiply so many experts; None where it can."""
        return f"{scheme.title} has no grouped kernel"

    def multiply_experts(
        self,
        batch: Routed,
        w13: Mapping[str, Tensor],
        w2: Mapping[str, Tensor],
        scheme: S,
        experts: int,
        intermediate: int,
    ) -> Tensor:
        """Computes a layer of experts by the grouped kernel.

        Args:
            batch: Of activations in the dtype of the scheme.
            w13: The tensors of gate and up by name.
            w2: Those of the down projection.
            scheme: Of both.
            experts: How many there are.
            intermediate: Rows of gate, and of up.

        Returns:
            [tokens, hidden] in the dtype of x. Nothing waits for the device, and all sizes follow
            from those of the tensors.
        """
        raise NotImplementedError(f"{self.name} has no grouped kernel")

    def experts_seconds(
        self,
        scheme: S,
        shape: tuple[int, int],
        nbytes: tuple[int, int],
        tokens: int,
        experts: tuple[int, int],
        gpu: Gpu,
    ) -> float:
        """Estimated time of a layer by the grouped kernel.

        Args:
            scheme: Of both weights.
            shape: (intermediate, hidden).
            nbytes: Of w13 and of w2.
            tokens: At least 1.
            experts: How many there are, and how many of them a token has.
            gpu: What the estimate knows of the device.
        """
        raise NotImplementedError(f"{self.name} has no grouped kernel")
