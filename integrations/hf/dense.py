# SPDX-License-Identifier: Apache-2.0
"""Dense layers on a GPU, by the implementation that is fastest for the number of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flashsparse_plugin.dataflow import DenseLinear, dense_linear

from .conversion import adopt


class DispatchedLinear(nn.Linear):
    """nn.Linear that uses a dataflow on the device and in the dtype that it was made for."""

    flow: DenseLinear
    place: tuple[torch.device, torch.dtype]

    @classmethod
    def of(cls, linear: nn.Linear, flow: DenseLinear) -> DispatchedLinear:
        """Returns the layer with the same parameters."""
        made = cls(linear.in_features, linear.out_features, bias=False, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        made.flow, made.place = flow, (linear.weight.device, linear.weight.dtype)
        return made.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        if (self.weight.device, self.weight.dtype) != self.place or x.dtype != self.weight.dtype:
            return super().forward(x)
        if torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return self.flow(x, self.weight, self.bias)


def dispatch(model: nn.Module, name: str, linear: nn.Linear) -> None:
    """Replaces a layer by a dispatched one, if anything is faster than torch's own linear."""
    flow = dense_linear(linear.weight)
    if flow is not None:
        adopt(model, name, DispatchedLinear.of(linear, flow))
