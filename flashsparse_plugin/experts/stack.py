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
    """The experts of one projection, or of gate and up, which are one product.

    Attributes:
        scheme: How each expert is packed.
        shape: (out_features, in_features) of one expert.
        tensors: By their own names, the packed tensors of all experts along the first dimension.
        bounds: int64 [tensors, experts + 1] on the CPU: where in each tensor an expert begins.
        sides: 0: the rows of an expert are as in its weight. 1 or 2: they are as a grouped kernel
            takes them (`packed.GroupedExperts`): of so many projections, each padded to whole
            blocks, and blocks of them alternate.
        written: Scheme, shape and sides as text, which an op takes; made of them unless given.
    """

    scheme: Scheme
    shape: tuple[int, int]
    tensors: Mapping[str, Tensor]
    bounds: Tensor
    sides: int = 0
    written: str = ""

    def __post_init__(self) -> None:
        if not self.written:
            how = [self.scheme.format.name, dtype_name(self.scheme.dtype), self.scheme.values]
            written = json.dumps([*how, [*self.shape], self.sides])
            object.__setattr__(self, "written", written)

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
        return cls(first.scheme, first.shape, tensors, ends)

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

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of a projection of an expert, the last one padded; rows of one. For `sides`."""
        rows = self.scheme.format.expert_rows
        return -(-self.shape[0] // self.sides // rows), rows

    def part(self, first: int, last: int) -> PackedWeight:
        """Experts from `first` up to `last` as one tall weight, its rows in the order of memory."""
        ends = self.bounds[:, first : last + 1 : last - first].tolist()  # of all, it would grow
        own = zip(self.tensors.items(), ends, strict=True)
        parts = {name: each[begin:end] for (name, each), (begin, end) in own}
        rows = self.sides * self.blocks[0] * self.blocks[1] if self.sides else self.shape[0]
        return PackedWeight(self.scheme, ((last - first) * rows, self.shape[1]), parts)

    def expert(self, number: int) -> PackedWeight:
        """One expert, its rows in order; its tensors are views where no rows have to be moved."""
        packed, format = self.part(number, number + 1), self.scheme.format
        if not self.sides:
            return packed
        (count, rows), each = self.blocks, self.shape[0] // self.sides
        if self.sides > 1:
            tensors = {
                name: _swapped(tensor, (1, count, self.sides))
                for name, tensor in packed.tensors.items()
            }
            packed = PackedWeight(packed.scheme, packed.shape, tensors)
        if count * rows == each:
            return packed
        starts = [side * count * rows for side in range(self.sides)]
        columns = range(self.shape[1])
        return format.join([format.cut(packed, range(at, at + each), columns) for at in starts])

    def linear(self, number: int, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Computes `x @ weight.T + bias` of one expert; x is [..., in_features]."""
        packed = self.part(number, number + 1)
        if not self.sides:
            return packed.linear(x, bias)
        y = torch.cat(self.sides_of(packed.linear(x)), -1)  # y's order is changed, not the weight's
        return y if bias is None else y + bias.to(y.dtype)

    def sides_of(self, y: Tensor) -> list[Tensor]:
        """What each projection computes, [..., rows], of products of rows in memory order."""
        (count, rows), each = self.blocks, self.shape[0] // self.sides
        sides = y.unflatten(-1, (count, self.sides, rows)).unbind(-2)
        return [side.flatten(-2)[..., :each] for side in sides]

    def transcode(self, target: Scheme, device: torch.device | str | None = None) -> ExpertStack:
        """The same experts in another scheme, without loss; see `PackedWeight.transcode`."""
        here = device is None or self.device == torch.device(device)
        if target == self.scheme and here and not self.sides:
            return self
        parts = (self.expert(number) for number in range(self.experts))
        return ExpertStack.of([part.transcode(target, device) for part in parts])

    def prepare(self, device: torch.device | str, sides: int = 0) -> ExpertStack:
        """Moves to `device` in the form that its kernels read.

        Args:
            device: Where to.
            sides: Projections that are one below the other in each expert, for a grouped kernel; 0:
                none is wanted.
        """
        device = torch.device(device)
        form = self.scheme.format.runtime(self.scheme, device)
        if sides and form.format.why_not_grouped(form, self.experts) is None:
            return self.grouped(form, sides, device)
        return self.transcode(form, device)

    def grouped(self, form: Scheme, sides: int, device: torch.device | str) -> ExpertStack:
        """The same experts as the grouped kernel of a form takes them, on `device`.

        Raises:
            FormatError: For a pattern of more rows than a block, which padding would split.
        """
        format, device = self.scheme.format, torch.device(device)
        each, columns = self.shape[0] // sides, self.shape[1]
        rows = form.format.expert_rows
        count = -(-each // rows)
        if padding := count * rows - each:
            zeros = format.pack(torch.zeros(padding, columns, dtype=self.scheme.dtype), self.scheme)
            zeros, parts = zeros.to(self.device), []
            for expert in map(self.expert, range(self.experts)):
                for side in range(sides):
                    own = range(side * each, (side + 1) * each)
                    parts += [format.cut(expert, own, range(columns)), zeros]
            tall = format.join(parts)
        else:
            tall = self.tall()
        tall = tall.transcode(form, device)
        tensors = {
            name: _swapped(tensor, (self.experts, sides, count)) if sides > 1 else tensor
            for name, tensor in tall.tensors.items()
        }
        steps = [len(tensor) // self.experts for tensor in tensors.values()]
        bounds = torch.tensor(steps)[:, None] * torch.arange(self.experts + 1)
        return ExpertStack(form, self.shape, tensors, bounds, sides)

    def tall(self) -> PackedWeight:
        """All experts as one packed weight [experts x rows, columns]."""
        return self.scheme.format.join([self.expert(number) for number in range(self.experts)])

    def unpack(self) -> Tensor:
        """The dense weights [experts, out_features, in_features]."""
        return torch.stack([self.expert(number).unpack() for number in range(self.experts)])


def _swapped(tensor: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    """A tensor whose first dimension is of three, and what fills them, with the last two swapped.

    Between gate's rows before up's, and blocks of them in alternation.
    """
    return tensor.unflatten(0, (*sizes, -1)).transpose(1, 2).flatten(0, 3).contiguous()
