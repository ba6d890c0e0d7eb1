# SPDX-License-Identifier: Apache-2.0
"""What the formats for weights with zeros anywhere have in common that are written to disk.

CUDA kernels read such a format as it is stored; on a CPU each runs as an interleaved bitmap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ...gpu import Gpu, unpacked_seconds
from ...ops import where_kernels_are
from ...packed import FormatError, PackedWeight, Scheme, TensorSpec
from ...plan import LIBRARY, SPARSE, Implementation
from ..values.coded import SCALE
from .form import UnstructuredFormat
from .interleaved_bitmap import InterleavedBitmap

UNPACK_MEMORY = 0.66
"""Share of the bandwidth that unpacking reaches, over what it reads and writes."""


class UnstructuredStorage(UnstructuredFormat):
    """A weight in pieces of one size, row by row of pieces: a stream, and where each begins.

    The first of `streams` is the stream, int32 and as long as the kept values need, the second its
    offsets, int32[pieces + 1].

    Attributes:
        piece: Rows and columns of a piece.
        entry: What the stream is of and what offsets count, for people.
        entry_shape: Sizes of the stream behind the first.
    """

    checks_as_it_reads = True
    piece: ClassVar[tuple[int, int]]
    entry: ClassVar[str]
    entry_shape: ClassVar[tuple[int, ...]] = ()

    def stream_specs(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        """What `streams` look like."""
        down, across = self._pieces(shape)
        stream, offsets = self.streams
        return {
            stream: TensorSpec(torch.int32, (None, *self.entry_shape)),
            offsets: TensorSpec(torch.int32, (down * across + 1,)),
        }

    def within_reach(self, tensor: Tensor) -> Tensor:
        return where_kernels_are(tensor)

    def check(self, packed: PackedWeight) -> None:
        self.check_scales(packed)
        self._validate(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(self._validate(packed))

    def runtime(self, scheme: Scheme, device: torch.device) -> Scheme:
        if device.type != "cpu":
            return scheme
        return InterleavedBitmap().scheme(scheme.dtype, scheme.values)

    def pack_prepared(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.tell_of_activations(scheme, weight.device)
        runtime = self.runtime(scheme, weight.device)
        return runtime.format.pack(weight, runtime)

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        """Takes whole pieces as they are, where the ends are ends of pieces."""
        steps = list(zip((rows, columns), packed.shape, self.piece, strict=True))
        if any(r.start % step or (r.stop % step and r.stop != size) for r, size, step in steps):
            return super()._cut(packed, rows, columns)
        stream, offsets = (packed.tensors[name] for name in self.streams)
        taken = torch.zeros(self._pieces(packed.shape), dtype=torch.bool, device=stream.device)
        down, across = (slice(r.start // step, -(-r.stop // step)) for r, _, step in steps)
        taken[down, across] = True
        lengths = offsets.diff()
        kept = stream[taken.flatten().repeat_interleave(lengths)]
        ends = self._offsets(lengths[taken.flatten()])
        scales = packed.tensors.get(SCALE)
        own = None if scales is None else scales[rows.start : rows.stop].contiguous()
        return self.wrap((kept, ends), packed.scheme, (len(rows), len(columns)), own)

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        """Puts pieces after pieces, where all parts but the last end with a row of pieces."""
        if any(part.shape[0] % self.piece[0] for part in parts[:-1]):
            return super()._join(parts)
        stream, offsets = self.streams
        lengths = torch.cat([part.tensors[offsets].diff() for part in parts])
        joined = torch.cat([part.tensors[stream] for part in parts]), self._offsets(lengths)
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        scales = [part.tensors[SCALE] for part in parts if SCALE in part.tensors]
        return self.wrap(joined, parts[0].scheme, shape, torch.cat(scales) if scales else None)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {
            SPARSE: Implementation(None, f"the sparse kernel of {self.name}"),
            LIBRARY: Implementation(None, "torch's own linear on the unpacked weight"),
        }

    def seconds(
        self,
        implementation: str,
        scheme: Scheme,
        shape: tuple[int, int],
        nbytes: int,
        tokens: int,
        gpu: Gpu,
    ) -> float:
        if implementation == LIBRARY:
            return unpacked_seconds(shape, nbytes, tokens, gpu, UNPACK_MEMORY)
        return super().seconds(implementation, scheme, shape, nbytes, tokens, gpu)

    def _pieces(self, shape: tuple[int, int]) -> tuple[int, int]:
        """How many there are one below the other, and side by side."""
        return -(-shape[0] // self.piece[0]), -(-shape[1] // self.piece[1])

    def _validate(self, packed: PackedWeight) -> Tensor:
        tensors = (where_kernels_are(packed.tensors[name].detach()) for name in self.streams)
        return self.op("validate")(*tensors, *packed.shape, *self.values_of(packed.scheme))

    def _offsets(self, lengths: Tensor) -> Tensor:
        """Offsets of pieces that follow each other, from their lengths.

        Raises:
            FormatError: Where they do not fit into int32.
        """
        ends = lengths.cumsum(0)
        if len(ends) and int(ends[-1]) > torch.iinfo(torch.int32).max:
            raise FormatError(
                f"{int(ends[-1])} packed {self.entry} overflow the int32 offsets of {self.name}: "
                "leave the layer dense"
            )
        return torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)
