# SPDX-License-Identifier: Apache-2.0
"""accelerate's `cpu_offload`, `disk_offload` and `dispatch_model` on models with packed layers.

They go by the names in the state_dict, which are those of the storage form, and place parameters
one by one. A layer that is in the form that the kernels of its device read has to be brought into
another one first, which accelerate has no hook for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate.hooks import AlignDevicesHook
from torch import nn

from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.wrapping import wrap_once


def register() -> None:
    """Has accelerate ask packed layers to get ready; calling it again changes nothing."""
    wrap_once(AlignDevicesHook, "init_hook", _getting_ready)


def _getting_ready(inner: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def init_hook(self: AlignDevicesHook, module: nn.Module) -> nn.Module:
        layers = module.modules() if self.place_submodules else [module]
        for layer in layers:
            if isinstance(layer, SparseLinear) and layer.held != layer.scheme:
                if self.offload:
                    layer.unprepare()
                elif self.execution_device is not None:
                    layer.to(torch.device(self.execution_device))
        return inner(self, module)

    return init_hook
