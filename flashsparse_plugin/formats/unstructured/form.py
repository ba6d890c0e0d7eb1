# SPDX-License-Identifier: Apache-2.0
"""What the forms of weights with zeros anywhere have in common: on disk, and on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...packed import Format, PackedWeight, Scheme
from ..values.coded import SCALE


class UnstructuredFormat(Format):
    """A format that holds any weight, by ops that are called after it.

    Attributes:
        ops: `torch.ops.flashsparse`, with the ops of this format complete.
        streams: Names of the tensors that say where values are and what they are: all but scales.
    """

    ops: ClassVar[Any]
    streams: ClassVar[tuple[str, ...]]

    def wrap(
        self,
        tensors: Sequence[Tensor],
        scheme: Scheme,
        shape: Sequence[int],
        scales: Tensor | None = None,
    ) -> PackedWeight:
        """Names the tensors that an op returned, and the scales of codes."""
        named = dict(zip(self.streams, tensors, strict=True))
        if scales is not None:
            named[SCALE] = scales
        return PackedWeight(scheme, (shape[0], shape[1]), named)

    def op(self, promise: str) -> Any:
        """The op `<format>_<promise>`, None where there is none."""
        return getattr(self.ops, f"{self.name}_{promise}", None)

    def values_of(self, scheme: Scheme) -> tuple[int] | tuple[()]:
        """What ops are told last of codes, where tensors alone do not say that they are codes."""
        return ()

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """Takes the op that needs no dense weight in between, where there is one.

        Values stay as they are, or codes and scales; what is of another type goes by way of the
        weight that it stands for.
        """
        turn, scales = self.op(f"to_{target.format.name}"), packed.tensors.get(SCALE)
        if turn is None or _stored(target) != _stored(packed.scheme):
            return super().transcode(packed, target, device)
        assert isinstance(target.format, UnstructuredFormat)
        tensors = turn(
            *(packed.tensors[name].cpu() for name in self.streams),
            *packed.shape,
            *self.values_of(packed.scheme),
        )
        return target.format.wrap(tensors, target, packed.shape, scales).to(device)


def _stored(scheme: Scheme) -> tuple[str, torch.dtype]:
    """What values are stored as."""
    return scheme.values.get("values", "native"), scheme.dtype
