# SPDX-License-Identifier: Apache-2.0
"""Vector-wise N:M sparsity, whatever the layout: the options, and what follows from them alone.

NM-SpMM (Ma et al., 2025), section II: of every window of M columns N are kept, the same ones in L
consecutive rows, the paper's vector length.
"""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from ..ops import ops
from ..packed import Options, Scheme

VECTOR_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)


class PatternOptions(Options):
    """Options of every format and form that holds an N:M pattern.

    Attributes:
        n: Columns kept of each window.
        m: Columns of a window.
        vector_length: Consecutive rows that share the choice (L); a power of two.
    """

    n: int = Field(ge=1, le=256)
    m: int = Field(ge=1, le=256)
    vector_length: int = Field(default=1, ge=1, le=128)

    @model_validator(mode="after")
    def _be_a_pattern(self) -> PatternOptions:
        if self.n > self.m:
            raise ValueError(f"{self.n}:{self.m} is no pattern: n must not be more than m")
        if self.vector_length not in VECTOR_LENGTHS:
            raise ValueError(
                f"option vector_length: {self.vector_length} is not a power of two up to 128"
            )
        return self

    def kept(self, in_features: int) -> int:
        """Entries that a row has: n for each window, the last one included."""
        return -(-in_features // self.m) * self.n

    def groups(self, out_features: int) -> int:
        """Groups of rows that share their columns."""
        return -(-out_features // self.vector_length)

    @property
    def index_bits(self) -> int:
        """Bits of a position inside a window."""
        return max(1, (self.m - 1).bit_length())

    def index_bytes(self, in_features: int) -> int:
        """Bytes of the positions of a group."""
        return -(-self.kept(in_features) * self.index_bits // 8)

    @property
    def numbers(self) -> tuple[int, int, int]:
        """n, m and vector_length, as ops take them."""
        return self.n, self.m, self.vector_length

    @property
    def embeds_in_24(self) -> bool:
        """Whether of each 4 aligned columns at most 2 are kept, as sparse tensor cores want it."""
        return (self.m % 4 == 0 and self.n <= 2) or (self.n, self.m) == (1, 2)

    def keep_largest(self, weight: Tensor) -> Tensor:
        """Sets to zero what the pattern cannot keep; it keeps the vectors with the largest sums.

        Args:
            weight: [out_features, in_features], finite.

        Returns:
            A weight that follows the pattern.
        """
        rows, columns = weight.shape
        groups, length = self.groups(rows), self.vector_length
        padded = F.pad(weight.abs().float(), (0, -columns % self.m, 0, groups * length - rows))
        scores = padded.view(groups, length, -1, self.m).sum(1)
        kept = torch.zeros_like(scores, dtype=torch.bool)
        kept.scatter_(2, scores.topk(self.n, dim=2).indices, True)
        rows_kept = kept.view(groups, 1, -1).expand(-1, length, -1).reshape(groups * length, -1)
        return weight.where(rows_kept[:rows, :columns], torch.zeros_like(weight))

    def is_followed_by(self, weight: Tensor) -> bool:
        """Whether a weight [out_features, in_features] has no value that it cannot keep."""
        m, length = self.m, self.vector_length

        def used(rows: Tensor) -> Tensor:
            missing = self.groups(len(rows)) * length - len(rows)
            padded = F.pad(rows != 0, (0, -rows.shape[1] % m, 0, missing))
            return padded.view(-1, length, padded.shape[1] // m, m).any(1).sum(2)

        step = max(1, (1 << 22) // (weight.shape[1] * length)) * length
        return all(bool((used(rows) <= self.n).all()) for rows in weight.split(step))

    @property
    def title(self) -> str:
        """ "2:4", or "8:32, L=32"."""
        length = f", L={self.vector_length}" if self.vector_length > 1 else ""
        return f"{self.n}:{self.m}{length}"


def unpack_positions(weight_index: Tensor, kept: int, bits: int) -> Tensor:
    """Positions of all entries, from their bits.

    Args:
        weight_index: uint8 [groups, bytes], as nm_vector stores it.
        kept: Entries of a group.
        bits: Bits of an entry, 1 to 8.

    Returns:
        uint8 [groups, kept], on the device of `weight_index`.
    """
    if bits == 8:
        return weight_index[:, :kept]
    # 8 entries take `bits` bytes: each is cut out of the two bytes that it may lie in.
    eights = -(-kept // 8)
    padded = F.pad(weight_index, (0, eights * bits - weight_index.shape[1]))
    chunks = padded.view(len(weight_index), eights, bits).to(torch.int16)
    entries = []
    for entry in range(8):
        byte, shift = divmod(entry * bits, 8)
        word = chunks[:, :, byte]
        if shift + bits > 8:
            word = word | chunks[:, :, byte + 1] << 8
        entries.append((word >> shift & ((1 << bits) - 1)).to(torch.uint8))
    return torch.stack(entries, 2).view(len(weight_index), -1)[:, :kept]


def options_of(scheme: Scheme) -> PatternOptions:
    """The pattern of a scheme whose format holds patterns."""
    assert isinstance(scheme.options, PatternOptions)
    return scheme.options


def pack_vectors(weight: Tensor, options: PatternOptions) -> tuple[Tensor, Tensor]:
    """Values and positions as nm_vector stores them, from which other forms are arranged.

    Args:
        weight: [out_features, in_features] on the CPU, float16, bfloat16 or float32.
        options: The pattern.

    Raises:
        RuntimeError: Where the weight does not follow the pattern, naming the first place.
    """
    return ops.nm_vector_pack(weight, *options.numbers)
