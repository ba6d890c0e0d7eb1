# SPDX-License-Identifier: Apache-2.0
"""GPUs on which nothing was measured, by their data sheets; and how users call a GPU.

Each row names where its figures were read. They agree with each other: TFLOPS are SMs x clock x
operations of an SM in a clock (1024 on Ada and professional Ampere, 512 on GeForce and A10G), where
NVIDIA does not limit them (H20) or clocks tensor cores lower (H800, B200). What no source was found
for is named as unverified, and so is the L2's bandwidth, which no data sheet has.

Imports nothing slow: commands check names before torch is imported.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class DataSheet(NamedTuple):
    """What a data sheet says of a GPU.

    Attributes:
        name: Part of what torch calls such a GPU, as whole words.
        capability: The compute capability.
        bandwidth: GB/s.
        sms: Their number.
        clock: Boost, GHz.
        dense: TFLOPS of bfloat16 without sparsity, accumulated in float32.
        unverified: Which of these no source was found for.
    """

    name: str
    capability: tuple[int, int]
    bandwidth: float
    sms: int
    clock: float
    dense: float
    unverified: tuple[str, ...] = ()


SHEETS: Final = (
    # H100 but for NVLink and float64: philisun.com/technical-analysis (H800 vs H100); of the H100
    # archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html
    DataSheet("H800", (9, 0), 3350, 132, 1.98, 989, ("clock",)),
    # willitrunai.com/gpus/h20-96gb (bandwidth, TFLOPS), zangshuxian.com (78 SMs in Geekbench)
    DataSheet("H20", (9, 0), 4000, 78, 1.98, 148, ("clock",)),
    # github.com/pytorch/ao/pull/4002, read from the driver: 148 SMs, 7680 bits of 3996 MHz; TFLOPS
    # of the HGX B200: glennklockwood.com/garden/processors/B200
    DataSheet("B200", (10, 0), 7672, 148, 1.965, 2250, ("clock",)),
    # A100 80GB but for NVLink: aiwiki.ai/wiki/nvidia_a800; of the A100
    # glennklockwood.com/garden/processors/A100, hmc-tech.com/gpu/nvidia-l4-vs-nvidia-a100-40gb
    DataSheet("A800", (8, 0), 2039, 108, 1.41, 312),
    # baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference (bandwidth)
    DataSheet("A10G", (8, 6), 600, 80, 1.71, 70, ("SMs", "clock", "TFLOPS")),
    # sysrqmts.com/gpus/compare/nvidia-rtx-a6000-vs-nvidia-tesla-p40; TFLOPS by those of the same
    # chip's A40
    DataSheet("RTX A6000", (8, 6), 768, 84, 1.80, 154.8),
    # fpsbench.com/compare/gpu/nvidia-l4-vs-nvidia-tesla-m40 (7424 cores: 58 SMs, clock, bandwidth);
    # grokipedia.com/page/NVIDIA_L4_vs_L40S (242 TFLOPS with sparsity)
    DataSheet("L4", (8, 9), 300, 58, 2.04, 121),
    # itcreations.com/nvidia-gpu/nvidia-l40s-gpu-accelerator (clock), mullet.se/product.html?
    # product_id=355414 (18,176 cores, bandwidth, TFLOPS)
    DataSheet("L40S", (8, 9), 864, 142, 2.52, 362.05),
    # github.com/NVIDIA/nvbench/pull/207, read from the driver; TFLOPS:
    # hmc-tech.com/gpus/nvidia-geforce-rtx-4090-vs-nvidia-rtx-pro-5000-blackwell
    DataSheet("RTX 4090", (8, 9), 1008, 128, 2.52, 165.2),
    # cputronic.com/gpu/nvidia-rtx-6000-ada-generation (clock, 18,176 cores), grafikkarten.com
    # (bandwidth); TFLOPS from the same chip's L40S
    DataSheet("RTX 6000 Ada", (8, 9), 960, 142, 2.505, 364.2),
    # spheron.network/blog/nvidia-rtx-5090-specs (a quarter of 838.4 TFLOPS, which are with sparsity
    # and accumulated in float16), pocketmags.com/linux-format-magazine/may-2025 (clock)
    DataSheet("RTX 5090", (12, 0), 1792, 170, 2.407, 209.6),
)

MEASURED: Final = ("H200", "H100", "A100")
"""GPUs with a row in kernels/cuda/shared/gpu.h; on the A100 nothing was measured either."""

GPU_NAMES: Final = (*MEASURED, *(sheet.name for sheet in SHEETS))


def gpu_name(text: str) -> str | None:
    """The name of the GPU that a user calls "H100", "rtx4090" or "4090"; None: none is known."""
    return next((name for name in GPU_NAMES if _plain(name) == _plain(text)), None)


def gpu_names() -> str:
    """All names, as short as users write them, for help and messages."""
    return ", ".join(name.removeprefix("RTX ") for name in GPU_NAMES)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]|nvidia|rtx|generation", "", name.lower())
