# SPDX-License-Identifier: Apache-2.0
"""ExpertStack: the packed weights of all experts of one projection, one below the other.

Each expert is packed by itself, with scales of its own. The tensors of all of them follow each
other along their first dimension. For a format of fixed-size units that is the packed weight
[experts x rows, columns] itself, bit for bit; a stream begins anew for each expert.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..packed import FormatError, PackedWeight, Scheme, dtype_name


@dataclass(frozen=True)
class ExpertStack:
    """The experts of one projection.

    Attributes:
        scheme: How each expert is packed.
        shape: (out_features, in_features) of one expert.
        tensors: By their own names, the packed tensors of all experts along the first dimension.
        bounds: int64 [tensors, experts + 1] on the CPU: where in each tensor an expert begins.
        written: Scheme and shape as text, which an op takes.
    """

    scheme: Scheme
    shape: tuple[int, int]
    tensors: Mapping[str, Tensor]
    bounds: Tensor
    written: str

    @classmethod
    def of(cls, experts: Sequence[PackedWeight]) -> ExpertStack:
        """Puts the packed experts of a projection one below the other, in order.

        Raises:
            FormatError: For experts that differ in shape or scheme.
        """
        first = experts[0]
        for number, expert in enumerate(experts):
            if (expert.scheme, expert.shape) != (first.scheme, first.shape):
                raise FormatError(
                    f"expert {number} is {expert.scheme} of shape {list(expert.shape)}, and expert "
                    f"0 is {first.scheme} of shape {list(first.shape)}: the experts of a "
                    "projection are packed alike. Convert the model again"
                )
        tensors, bounds = {}, []
        for name in first.tensors:
            parts = [expert.tensors[name] for expert in experts]
            tensors[name] = torch.cat(parts)
            bounds.append([0, *(len(part) for part in parts)])
        ends = torch.tensor(bounds, dtype=torch.int64).cumsum(1)
        scheme = first.scheme
        how = [scheme.format.name, dtype_name(scheme.dtype), scheme.values, [*first.shape]]
        return cls(scheme, first.shape, tensors, ends, json.dumps(how))

    @property
    def experts(self) -> int:
        """How many there are."""
        return self.bounds.shape[1] - 1

    @property
    def nbytes(self) -> int:
        """Bytes that the packed tensors take."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def dense_nbytes(self) -> int:
        """Bytes that the unpacked weights would take."""
        rows, columns = self.shape
        return self.experts * rows * columns * self.scheme.dtype.itemsize

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    def expert(self, number: int) -> PackedWeight:
        """One expert; its tensors are views."""
        ends = self.bounds[:, number : number + 2].tolist()  # of all, it would grow with them
        own = zip(self.tensors.items(), ends, strict=True)
        parts = {name: each[begin:end] for (name, each), (begin, end) in own}
        return PackedWeight(self.scheme, self.shape, parts)

    def transcode(self, target: Scheme, device: torch.device | str | None = None) -> ExpertStack:
        """The same experts in another scheme, without loss; see `PackedWeight.transcode`."""
        if target == self.scheme and (device is None or self.device == torch.device(device)):
            return self
        parts = (self.expert(number) for number in range(self.experts))
        return ExpertStack.of([part.transcode(target, device) for part in parts])

    def prepare(self, device: torch.device | str) -> ExpertStack:
        """Moves to `device` in the form that its kernels read."""
        device = torch.device(device)
        return self.transcode(self.scheme.format.runtime(self.scheme, device), device)

    def tall(self) -> PackedWeight:
        """All experts as one packed weight [experts x rows, columns]."""
        return self.scheme.format.join([self.expert(number) for number in range(self.experts)])

    def unpack(self) -> Tensor:
        """The dense weights [experts, out_features, in_features]."""
        return torch.stack([self.expert(number).unpack() for number in range(self.experts)])
