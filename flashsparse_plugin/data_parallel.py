# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel around a model with packed layers: their tensors are not broadcast.

DDP sends all parameters of the first rank to the others once, as bits in 16-bit integers too, which
neither gloo nor NCCL takes. Packed tensors are frozen, and every rank has read the same files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .wrapping import wrap_once

_IGNORED = "_ddp_params_and_buffers_to_ignore"  # which DDP reads of the module that it is given


def ignore_packed_tensors(packed_names: Callable[[nn.Module], list[str]]) -> None:
    """Has DDP leave the packed tensors of any model where they are.

    DDP asks only the module that it wraps what to ignore, and that may be anyone's. Calling this
    again changes nothing.

    Args:
        packed_names: Gives the names of all packed tensors of a model.
    """

    def wrapper(inner: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(inner)
        def init(self: DistributedDataParallel, module: nn.Module, *args: Any, **kwargs: Any):
            if names := packed_names(module):
                setattr(module, _IGNORED, sorted({*getattr(module, _IGNORED, ()), *names}))
            inner(self, module, *args, **kwargs)

        return init

    wrap_once(DistributedDataParallel, "__init__", wrapper)
