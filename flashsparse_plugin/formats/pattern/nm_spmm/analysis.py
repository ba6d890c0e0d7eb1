# SPDX-License-Identifier: Apache-2.0
"""The analysis of NM-SpMM as code (Ma et al., 2025, sections III-A to III-C).

In the paper's letters a block of threads makes m_s x n_s elements of the product from a panel of
k_s columns, of which w_s are kept; a thread makes m_t x n_t of them. Everything is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....gpu import Gpu
from ..options import PatternOptions

ITEMSIZE = 4  # bytes of a float32
SHARED_BYTES = 128  # that a multiprocessor's shared memory gives in a clock
ISSUED = 4  # instructions that a multiprocessor issues in a clock
REGISTERS = 255  # of a thread at most
PACKED_SHARE = 0.75  # of the columns of x, below which a block packs them
EXTRA = 4  # instructions of a thread for a kept column, beside FMAs and loads; as counted


@dataclass(frozen=True)
class Blocking:
    """How a product is cut.

    Attributes:
        tokens: m_s, of a block.
        rows: n_s, of a block.
        thread_tokens: m_t.
        thread_rows: n_t.
    """

    tokens: int
    rows: int
    thread_tokens: int
    thread_rows: int

    @property
    def compute_to_memory(self) -> float:
        """CMAR, FMAs for each shared load of 16 bytes: Equation 6, where alpha is 1.

        The paper counts floats that are loaded, a fourth of which are loads of 16 bytes.
        """
        m, n = self.thread_tokens, self.thread_rows
        return m * n / (m + n)

    @property
    def registers(self) -> int:
        """Of a thread, for its sums and operands (section III-B2): 255 at most."""
        m, n = self.thread_tokens, self.thread_rows
        return m + n + m * n

    def intensity(self, used: float, kept: float) -> float:
        """Arithmetic intensity, operations for each float of memory traffic: Equation 3.

        Args:
            used: Columns of x that the block reads: k_s of a panel, or those of all panels, which
                it sums up before it writes its tile; fewer where it packs them.
            kept: w_s, or of all panels.
        """
        tile = self.tokens * self.rows
        return 2 * tile * kept / (self.tokens * used + self.rows * kept + 2 * tile)

    def shared_bytes(self, used: float, kept: float, groups: int = 0) -> float:
        """Shared memory of a panel: the left side of Equation 4; index entries as the paper's."""
        return ITEMSIZE * (used * self.tokens + kept * (self.rows + groups))

    def most_columns(self, options: PatternOptions, shared: int, share: float = 1.0) -> int:
        """The most columns of a panel, whole windows: Equation 5, half of the memory for a panel.

        Args:
            options: The pattern.
            shared: Bytes of shared memory.
            share: Of the columns of x, that a block holds: less than 1 where it packs them.
        """
        kept = options.n / options.m
        most = shared / (2 * ITEMSIZE * (self.tokens * share + kept * self.rows))
        return int(most) // options.m * options.m

    def reach(self, gpu: Gpu) -> float:
        """Share of the FMA units' peak that issue and shared memory allow a warp's inner product.

        For each kept column a warp issues m_t n_t FMAs, (m_t + n_t) / 4 loads of 16 bytes, which
        take shared memory 4 turns each, and a little more.
        """
        m, n = self.thread_tokens, self.thread_rows
        fma = m * n * 32 / gpu.fma_units
        issue = (m * n + (m + n) / 4 + EXTRA) / ISSUED
        shared = (m + n) * 32 * ITEMSIZE / SHARED_BYTES
        return fma / max(fma, issue, shared)


TABLE_I = {
    "small": Blocking(32, 32, 4, 4),
    "medium": Blocking(32, 64, 8, 4),
    "large": Blocking(64, 128, 8, 8),
}
"""The paper's Table I."""
WIDE = Blocking(128, 128, 16, 8)
"""For multiprocessors of 128 FMA units, whose shared memory cannot feed 8x8 tiles."""


def used_share(options: PatternOptions, rows: int) -> float:
    """Share of the columns of x that a block of rows keeps any value of, expected.

    N/M where all groups keep the same, and close to 1 for many groups (section III-A: 7/8 of the
    working set at moderate sparsity, 3/8 at high sparsity).
    """
    groups = max(rows // options.vector_length, 1)
    return 1 - (1 - options.n / options.m) ** groups


def attainable(intensity: float, bandwidth: float, peak: float) -> float:
    """The roofline: operations a second at an intensity.

    Args:
        intensity: Operations for each float that is moved.
        bandwidth: Bytes a second.
        peak: Operations a second.
    """
    return min(peak, intensity * bandwidth / ITEMSIZE)


def should_pack(options: PatternOptions, rows: int) -> bool:
    """Whether blocks of so many rows should pack x, and read only the columns that they keep.

    A column that a list names costs more instructions than one in a row of all columns. In vectors
    of 32 rows and blocks of 128 this says yes above 70.7% zeros; the paper's threshold is 70%
    (section III-A). kernels/cuda/nm_spmm/linear_plan.cpp has the same share; where it holds, it
    compares both ways.
    """
    return used_share(options, rows) < PACKED_SHARE
