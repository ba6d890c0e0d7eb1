# SPDX-License-Identifier: Apache-2.0
"""What every linear op is held against."""

from __future__ import annotations

from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` in float64."""
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()
