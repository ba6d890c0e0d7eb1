# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel around a model with packed layers: their tensors are not broadcast.

DDP sends all parameters of the first rank to the others once, as bits in 16-bit integers too, which
neither gloo nor NCCL takes. Packed tensors are frozen, and every rank has read the same files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .wrapping import wrap_once

_IGNORED = "_ddp_params_and_buffers_to_ignore"  # which DDP reads of the module that it is given


_packed: dict[type[nn.Module], Callable[[Any], Iterable[str]]] = {}


def ignore_packed_tensors(kind: type[nn.Module], names: Callable[[Any], Iterable[str]]) -> None:
    """Has DDP leave the packed tensors of a kind of module where they are, in any model.

    DDP asks only the module that it wraps what to ignore, and that may be anyone's.

    Args:
        kind: The class of the module.
        names: The names of such a module's own packed tensors.
    """
    _packed[kind] = names

    def wrapper(inner: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(inner)
        def init(self: DistributedDataParallel, module: nn.Module, *args: Any, **kwargs: Any):
            if found := _packed_names(module):
                setattr(module, _IGNORED, sorted({*getattr(module, _IGNORED, ()), *found}))
            inner(self, module, *args, **kwargs)

        return init

    wrap_once(DistributedDataParallel, "__init__", wrapper)


def _packed_names(model: nn.Module) -> list[str]:
    """The names of all packed tensors of a model."""
    return [
        f"{name}.{own}" if name else own
        for name, module in model.named_modules()
        for kind, names in _packed.items()
        if isinstance(module, kind)
        for own in names(module)
    ]
