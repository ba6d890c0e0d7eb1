# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint that another tool quantized, and the two ways to show its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch

from ...packed import FormatError, Scheme
from ..files.headers import CheckpointError, TensorInfo
from . import LAYOUTS
from .code_entries import CodesInfo, packed_entries
from .codes import UNUSED, CodeLayout
from .eight_bits import EightBits
from .entries import as_dense
from .marlin_24 import Marlin24
from .pack_quantized import PackQuantized
from .quantization import Quantization

CODE_LAYOUTS: Final[tuple[CodeLayout, ...]] = (
    EightBits(),
    *(EightBits(zeros) for zeros in LAYOUTS.values()),
    PackQuantized(),
    Marlin24(),
)

_OWN = (
    "scale_packed",
    "weight_g_idx",
    "weight_packed",
    "weight_scale",
)  # of quantized layers alone
_BESIDE = ("bitmask", "compressed", "meta", "row_offsets", "shape", "weight", "weight_shape")
_PARTS = {*_OWN, *_BESIDE, "weight_zero_point", *UNUSED}
_CODES = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
_FEW_BYTES = 16  # two numbers


class QuantizedTensors:
    """The tensors of a quantized checkpoint. Its weights are found once, when first asked for.

    Args:
        tensors: The entries of all its tensors.
        quantization: Its `quantization_config`.
        path: Where the files are, for error messages.
    """

    def __init__(
        self, tensors: Mapping[str, TensorInfo], quantization: Mapping[str, Any], path: Path
    ):
        self.tensors, self.quantization, self.path = tensors, quantization, path

    @cached_property
    def _found(self) -> tuple[Quantization, list[CodesInfo]]:
        layers: dict[str, dict[str, TensorInfo]] = {}
        for name, info in self.tensors.items():
            layer, _, part = name.rpartition(".")
            if part in _PARTS:
                layers.setdefault(layer, {})[part] = info
        try:
            stated = Quantization.read(self.quantization)
            found = [
                _describe(layer, parts, stated)
                for layer, parts in layers.items()
                if _is_quantized(parts)
            ]
        except FormatError as error:
            raise CheckpointError(f"{self.path}: {error}") from None
        if not found:
            raise CheckpointError(
                f"{self.path} is quantized by config.json, and no layer of it has codes: the two "
                "belong to different models, fetch them together again"
            )
        return stated, found

    @property
    def notes(self) -> list[str]:
        """What a user should know of how it is quantized, one sentence each."""
        return self._found[0].notes

    def weights(self, dtype: torch.dtype) -> list[CodesInfo]:
        """The quantized weights.

        Args:
            dtype: Of the dense weights, where it can be that: scales of groups must survive in it.

        Raises:
            CheckpointError: For quantized weights that are not read, or not whole.
        """
        _, found = self._found
        dtype = _survivable(found, dtype)
        return [replace(each, dtype=dtype) for each in found]

    def dense(self, dtype: torch.dtype) -> dict[str, TensorInfo]:
        """All entries, with a dense weight in the place of the parts of each quantized one.

        Args:
            dtype: As of `weights`, which also says what is raised.
        """
        weights = by_part(self.weights(dtype))
        shown = (weights.get(name, info) for name, info in self.tensors.items())
        return as_dense({info.name: info for info in shown}, self.path)

    def packed(
        self, weights: Iterable[CodesInfo], schemes: Mapping[str, Scheme]
    ) -> dict[str, TensorInfo]:
        """All entries, with packed tensors in the place of the parts of each quantized weight.

        Args:
            weights: All that `weights` returned.
            schemes: By the name of each layer, the scheme to pack it by.
        """
        weight_of, shown = by_part(weights), dict[str, TensorInfo]()
        for name, info in self.tensors.items():
            weight = weight_of.get(name)
            if weight is None:
                shown[name] = info
                continue
            entries = packed_entries(weight, schemes[weight.layer])
            if min(entries) not in shown:
                shown |= entries
        return as_dense(shown, self.path)


def by_part(weights: Iterable[CodesInfo]) -> dict[str, CodesInfo]:
    """Quantized weights by the name of each of their tensors in the files."""
    return {part.name: each for each in weights for part in each.parts.values()}


def _is_quantized(parts: Mapping[str, TensorInfo]) -> bool:
    """Whether the tensors of a layer, by part, hold codes."""
    codes = (parts[part] for part in ("weight", "compressed") if part in parts)
    return bool(parts.keys() & {*_OWN}) or any(each.dtype in _CODES for each in codes)


def _describe(layer: str, parts: Mapping[str, TensorInfo], quantization: Quantization) -> CodesInfo:
    arguments = quantization.arguments_of(layer)
    if "weight_g_idx" in parts:
        raise FormatError(
            f"layer {layer!r} has its columns reordered (weight_g_idx), and groups must be of "
            "consecutive columns. Serve the checkpoint with vLLM alone, or quantize the model "
            "without actorder"
        )
    used = {*parts} - {*UNUSED}
    layout = next((each for each in CODE_LAYOUTS if each.has(used)), None)
    if layout is None:
        raise FormatError(
            f"layer {layer!r} is kept as {', '.join(sorted(used))}, which no layout has: the "
            "checkpoint is incomplete or of a kind that is not read. Fetch it again, or serve it "
            "with vLLM alone"
        )
    headers = {
        part: info.read()
        if part in ("shape", "weight_shape") and info.nbytes <= _FEW_BYTES
        else torch.empty(info.shape, dtype=info.dtype, device="meta")
        for part, info in parts.items()
    }
    codes = layout.describe(layer, headers, arguments)
    first = parts[min(used)]
    return CodesInfo(
        f"{layer}.weight",
        first.path,
        codes.scales,
        codes.shape,
        None,
        layout=layout,
        parts=parts,
        codes=codes,
        rounds_tokens=quantization.rounds_tokens(layer),
    )


def _survivable(weights: list[CodesInfo], wanted: torch.dtype) -> torch.dtype:
    """`wanted` where the scales of all groups survive in it, else the dtype of such scales.

    Of rows they are float32. Only those of groups in another dtype are read.
    """
    for weight in weights:
        if weight.codes.group is None or weight.codes.scales == wanted:
            continue
        scales = weight.parts[weight.layout.scale].read()
        if not torch.equal(scales.to(wanted).to(scales.dtype), scales):
            return weight.codes.scales
    return wanted
