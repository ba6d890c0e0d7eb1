# SPDX-License-Identifier: Apache-2.0
"""What the forms of weights with zeros anywhere have in common: on disk, and on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..packed import Format, PackedWeight, Scheme


class UnstructuredFormat(Format):
    """A format that holds any weight, by ops that are called after it.

    Attributes:
        ops: `torch.ops.flashsparse`, with the ops of this format complete.
    """

    ops: ClassVar[Any]

    def wrap(self, tensors: Sequence[Tensor], scheme: Scheme, shape: Sequence[int]) -> PackedWeight:
        """Names the tensors that an op returned."""
        named = dict(zip(self.tensor_names, tensors, strict=True))
        return PackedWeight(scheme, (shape[0], shape[1]), named)

    def op(self, promise: str) -> Any:
        """The op `<format>_<promise>`, None where there is none."""
        return getattr(self.ops, f"{self.name}_{promise}", None)

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """Takes the op that needs no dense weight in between, where there is one."""
        turn = self.op(f"to_{target.format.name}")
        if turn is None or target.dtype != packed.dtype:
            return super().transcode(packed, target, device)
        assert isinstance(target.format, UnstructuredFormat)
        tensors = turn(*(packed.tensors[name].cpu() for name in self.tensor_names), *packed.shape)
        return target.format.wrap(tensors, target, packed.shape).to(device)
