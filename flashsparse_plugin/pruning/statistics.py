# SPDX-License-Identifier: Apache-2.0
"""What scores may ask about a linear layer: statistics of its inputs, and of its gradients."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..modules import weight_of

logger = logging.getLogger(__name__)

INPUT_NORMS = "input_norms"
GRAM = "gram"
GRADIENTS = "gradients"
STATISTICS = (INPUT_NORMS, GRAM, GRADIENTS)


@dataclass(frozen=True)
class Statistics:
    """What is known of one linear layer from the calibration text.

    A field is None unless the method asks for it by its name.

    Attributes:
        name: The layer's name.
        input_norms: float64 [in_features], the Euclidean norm of each input over all tokens.
        gram: float32 [in_features, in_features], the sum over all tokens of x x^T.
        gradients: float32 [out_features, in_features], the sum over all calibration windows of the
            absolute value of the gradient of the loss.
    """

    name: str = "weight"
    input_norms: Tensor | None = None
    gram: Tensor | None = None
    gradients: Tensor | None = None


class InputNorms:
    """The Euclidean norm of every input feature of one layer, gathered batch by batch.

    Activations that are NaN or infinite (float16 overflows) are left out of the sum, and counted.
    """

    def __init__(self, name: str, linear: nn.Module) -> None:
        self.name = name
        self.seen = 0
        self.broken = 0
        weight = weight_of(linear)
        self.squares = torch.zeros(weight.shape[1], dtype=torch.float64, device=weight.device)

    def add(self, x: torch.Tensor) -> None:
        """Add activations [..., in_features]."""
        x = x.detach().flatten(0, -2)
        self.seen += x.numel()
        squares = x.float().square().sum(dim=0)
        if not bool(squares.isfinite().all()):
            self.broken += x.numel() - int(x.isfinite().sum())
            # double: the square of a large float32 may be infinite.
            squares = x.double().nan_to_num(0.0, 0.0, 0.0).square().sum(dim=0)
        self.squares += squares

    def norms(self) -> torch.Tensor:
        """Return the norms, float64 [in_features].

        Raises:
            ValueError: If no activation was finite.
        """
        if self.broken and self.broken == self.seen:
            raise ValueError(
                f"{self.name}: every calibration activation is NaN or infinite; "
                "load the model in bfloat16 or float32"
            )
        if self.broken:
            logger.warning(
                "%s: %d of %d calibration activations are NaN or infinite and were left out",
                self.name,
                self.broken,
                self.seen,
            )
        if not self.seen:
            logger.warning(
                "%s: no calibration token reached this layer; pruned by magnitude alone", self.name
            )
        return self.squares.sqrt()


class Inputs:
    """Gathers what a method needs to know of the inputs of one layer, batch by batch."""

    def __init__(self, name: str, linear: nn.Module, needs: Collection[str]) -> None:
        self.norms = InputNorms(name, linear)
        self.gram: Tensor | None = None
        if GRAM in needs:
            weight = weight_of(linear)
            self.gram = torch.zeros(2 * weight.shape[1:], device=weight.device)

    @property
    def seen(self) -> int:
        return self.norms.seen

    @property
    def tokens(self) -> int:
        """How many reached the layer."""
        return self.seen // len(self.norms.squares)

    def add(self, x: Tensor) -> None:
        """Adds activations [..., in_features]."""
        self.norms.add(x)
        if self.gram is not None:
            x = x.detach().flatten(0, -2).float()
            whole = x.isfinite().all(dim=1)
            x = x if bool(whole.all()) else x[whole]
            self.gram.addmm_(x.T, x)

    def statistics(self, gradients: Tensor | None = None) -> Statistics:
        """Returns what was gathered.

        Raises:
            ValueError: If no activation was finite, or their products overflow float32.
        """
        name, norms = self.norms.name, self.norms.norms()
        if self.gram is not None and not bool(self.gram.isfinite().all()):
            raise ValueError(
                f"{name}: the products of its calibration activations overflow float32; leave the "
                "layer out with `ignore`, or use a method such as wanda, which needs norms only"
            )
        return Statistics(name, norms, self.gram, gradients)
