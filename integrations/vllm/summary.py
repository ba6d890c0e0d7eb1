# SPDX-License-Identifier: Apache-2.0
"""What became of the layers: one line a kind of kernel, one line in the end."""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import dataclass, field

import torch

from flashsparse_plugin.dataflow import DenseLinear
from flashsparse_plugin.dataflow.choice import Choice, lines
from flashsparse_plugin.dataflow.expected import Target
from flashsparse_plugin.dataflow.unpacked import complaints, has_kernel
from flashsparse_plugin.gpu import Gpu
from flashsparse_plugin.packed import PackedWeight, Scheme
from flashsparse_plugin.plan import Plan

# Below "vllm", so that vLLM's settings of levels and handlers hold for it.
logger = logging.getLogger("vllm.flashsparse")


@dataclass
class Summary:
    """Counts the layers of one model in one process.

    Attributes:
        expected: Sparse layers that vLLM has created.
        packed: Those that are loaded and packed.
        reasons: How many layers stay dense, by reason.
        larger: Layers of which one copy is larger packed than dense.
        rounded: Layers whose values changed because the file has more digits than packed values.
        chosen: Of layers whose format was chosen by their weight, the kind and the choice.
        unpacked: Layers, and how they are held, that no kernel of the device multiplies.
    """

    expected: int = 0
    packed: int = 0
    dense_bytes: int = 0
    packed_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    larger: list[str] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)
    chosen: list[tuple[str, Choice]] = field(default_factory=list)
    unpacked: list[tuple[str, Scheme]] = field(default_factory=list)
    _device: torch.device = torch.device("cpu")
    _gpu: Gpu | None = None
    _finished: int = 0
    _kernels: set[tuple[str, tuple[int, int], str]] = field(default_factory=set)

    def left_dense(self, name: str, reason: str) -> None:
        self.reasons[reason] += 1
        logger.debug("%s stays dense: %s", name, reason)

    def add(self, name: str, weight: PackedWeight, plan: Plan | None = None) -> None:
        """Takes note of a layer that was packed, and of what decides about its kernels."""
        self.packed += 1
        self.dense_bytes += weight.dense_nbytes
        self.packed_bytes += weight.nbytes
        if weight.nbytes > weight.dense_nbytes:
            self.larger.append(name)
        gpu = Target.of(weight.device, weight.scheme.dtype).gpu
        if not has_kernel(weight.scheme, weight.device, gpu):
            self.unpacked.append((name, weight.scheme))
            self._device, self._gpu = weight.device, gpu
        kernel = kernel_of(weight.scheme, weight.device)
        self._tell(name, weight.shape, f"{kernel}, {plan}" if plan else kernel)

    def dispatched(self, name: str, shape: tuple[int, int], linear: DenseLinear) -> None:
        """Takes note of a dense layer that is not left to torch alone."""
        self._tell(name, shape, str(linear))

    def _tell(self, name: str, shape: tuple[int, int], kernel: str) -> None:
        key = (kind_of(name), shape, kernel)
        if key not in self._kernels:
            self._kernels.add(key)
            logger.info("%s [%d, %d]: %s", key[0], *shape, kernel)

    def finish_layer(self) -> None:
        """Is called once for each layer; after the last one, tells the sum."""
        self._finished += 1
        if self._finished == self.expected:
            for line in lines(self.chosen):
                logger.info("auto: %s", line)
            logger.log(self._level(), "%s", self)
            for line in complaints(self.unpacked, self._device, self._gpu):
                logger.warning("%s", line)

    def _level(self) -> int:
        return logging.WARNING if self.larger or self.rounded or not self.packed else logging.INFO

    def __str__(self) -> str:
        text = f"{self.packed} layers packed: {self.packed_bytes / 1e6:,.1f} MB"
        if self.packed:
            share = 100 * self.packed_bytes / self.dense_bytes
            text += f", {share:.0f}% of {self.dense_bytes / 1e6:,.1f} MB dense"
        if self.reasons:
            parts = [f"{count} {reason}" for reason, count in self.reasons.items()]
            text += f"; left dense: {', '.join(parts)}"
        if self.larger:
            text += (
                f"; {len(self.larger)} layers larger packed than dense ({self.larger[0]}, ...): "
                "is this checkpoint pruned? --sparse-method auto leaves such layers dense"
            )
        if self.rounded:
            text += (
                f"; the values of {len(self.rounded)} layers were rounded to 16 bits "
                f"({self.rounded[0]}, ...)"
            )
        return text


def kernel_of(scheme: Scheme, device: torch.device) -> str:
    """Names the op that multiplies with a weight of this scheme on this device."""
    return f"flashsparse::{scheme.format.name}_linear on {device.type.upper()}"


def kind_of(name: str) -> str:
    """What layers at different depths share: "layers.*.mlp.down_proj"."""
    return re.sub(r"\.\d+(?=\.)", ".*", name)
