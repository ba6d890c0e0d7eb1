# SPDX-License-Identifier: Apache-2.0
"""The launches of nm_spmm's kernel that are worth measuring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.nm_spmm.layout import Layout
from flashsparse_plugin.formats.pattern.options import options_of
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

SPLITS = (1, 2, 4, 8, 16)


class Kernel(NamedTuple):
    """One X(...) of FS_NM_SPMM_KERNELS; its index is what the op takes."""

    index: int
    tokens: int
    rows: int
    thread_tokens: int
    thread_rows: int
    stages: int
    packing: bool

    @property
    def version(self) -> str:
        """Which of the paper's optimisations it has: V1, V2 or V3."""
        return "V3" if self.stages > 1 else "V2" if self.packing else "V1"

    def shared_bytes(self, layout: Layout) -> int:
        """Plan::shared_bytes of the header, not rounded."""
        columns = layout.capacity if self.packing else layout.columns
        groups = -(-self.rows // layout.options.vector_length)
        stage = 4 * (columns * self.tokens + layout.entries * self.rows)
        return self.stages * (stage + groups * layout.entries + columns + 32)

    def __str__(self) -> str:
        packing = ", packing" if self.packing else ""
        tile = f"{self.tokens}x{self.rows} by {self.thread_tokens}x{self.thread_rows}"
        return f"{tile}, {self.version}{packing}"


class Launch(NamedTuple):
    """What Plan of the header holds."""

    kernel: Kernel
    splits: int

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        pattern = options_of(packed.scheme).numbers
        return ops.nm_spmm_linear_planned(
            x, *packed.tensors.values(), packed.shape[0], *pattern, packed.dtype, bias,
            self.kernel.index, self.splits,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.kernel}, {self.splits} splits"


def compiled_kernels() -> list[Kernel]:
    return [
        Kernel(index, *(own[name] for name in Kernel._fields[1:]))
        for index, own in enumerate(shapes_of("nm_spmm.sparse"))
    ]


def launches(packed: PackedWeight, tokens: int, device: torch.device) -> Iterator[Launch]:
    """Every kernel that the pattern allows; splits as far as they leave blocks for all."""
    if device.type != "cuda":
        return
    properties = torch.cuda.get_device_properties(device)
    yield from find_launches(
        Layout(options_of(packed.scheme), packed.shape),
        tokens,
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,
    )


def find_launches(
    layout: Layout, tokens: int, multiprocessors: int, shared_bytes: int
) -> Iterator[Launch]:
    """The same for a GPU of so many multiprocessors and bytes of shared memory a block."""
    for kernel in compiled_kernels():
        if kernel.thread_rows > layout.options.vector_length:
            continue
        if kernel.shared_bytes(layout) > shared_bytes:
            continue
        tiles = -(-tokens // kernel.tokens) * -(-layout.shape[0] // kernel.rows)
        for splits in SPLITS:
            enough = tiles * splits > 16 * multiprocessors
            if splits <= layout.panels and not (splits > 1 and (enough or tiles > 4096)):
                yield Launch(kernel, splits)
