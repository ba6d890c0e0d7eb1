# SPDX-License-Identifier: Apache-2.0
"""accelerate's `cpu_offload`, `disk_offload` and `dispatch_model` on models with packed layers.

They go by the names in the state_dict, which are those of the storage form, and place parameters
one by one. A layer that is in the form that the kernels of its device read has to be brought into
another one first, which accelerate has no hook for. What is on disk accelerate maps where it lies
in its file, which may be no place that kernels can read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate.hooks import AlignDevicesHook
from accelerate.utils import PrefixedDataset
from torch import Tensor, nn

from flashsparse_plugin.checkpoint.files.headers import aligned
from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.wrapping import wrap_once


class _Aligned(PrefixedDataset):
    """Tensors of a layer as their files have them, each from a whole element on."""

    def __getitem__(self, key: str) -> Tensor:
        return aligned(super().__getitem__(key))


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
        if isinstance(module, SparseLinear) and isinstance(self.weights_map, PrefixedDataset):
            self.weights_map = _Aligned(self.weights_map.dataset, self.weights_map.prefix)
        return inner(self, module)

    return init_hook
