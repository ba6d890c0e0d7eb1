# SPDX-License-Identifier: Apache-2.0
"""Entries of quantized weights of another tool, among those of all tensors of a checkpoint.

Such a weight is shown in one of two ways: dense, as code x scale, or packed, with its codes and
scales as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ...formats.coded import CodePacker
from ...formats.value_types import VALUE_TYPES, require_scales
from ...packed import FormatError, PackedWeight, Scheme
from ..files.headers import CheckpointError, MadeTensorInfo, TensorInfo
from . import LAYOUTS
from .codes import UNUSED, CodeLayout, Codes, multiply
from .eight_bits import EightBits
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


@dataclass(frozen=True)
class CodesInfo(MadeTensorInfo):
    """A weight that its files keep as codes and scales; whoever reads it gets it dense.

    Attributes:
        layout: The layout.
        parts: The entries of its tensors in the files, those that are not used included.
        codes: What these say of its codes.
        rounds_tokens: Whether config.json asks for activations in codes of the same type, by token.
    """

    layout: CodeLayout = field(kw_only=True)
    parts: Mapping[str, TensorInfo] = field(kw_only=True)
    codes: Codes = field(kw_only=True)
    rounds_tokens: bool = field(kw_only=True)

    @property
    def layer(self) -> str:
        return self.name.removesuffix(".weight")

    @property
    def bytes_stored(self) -> int:
        return sum(info.nbytes for info in self.parts.values())

    @property
    def options(self) -> dict[str, Any]:
        """The options of a scheme that say of what type its codes are."""
        group = {} if self.codes.group is None else {"group": self.codes.group}
        return {"values": self.codes.values, **group}

    @property
    def activations(self) -> str:
        """The option `activations` of a scheme, as config.json has it."""
        return self.codes.values if self.rounds_tokens else "native"

    def read_codes(
        self, tensors: Mapping[str, Tensor] | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Codes [out_features, in_features] and scales [out_features, groups].

        Every reader of the weight gets its scales here, so they are proven here.

        Args:
            tensors: By part; read from the files where they are not given.
            dtype: Of the weight, which no product of a code and a scale may overflow; None: `dtype`
                of this entry.

        Raises:
            CheckpointError: For tensors that are not a weight in the layout, and for scales that
                are not finite, negative, or too large for the dtype.
        """
        if tensors is None:
            tensors = {part: info.read() for part, info in self.parts.items()}
        layout, values = self.layout, VALUE_TYPES[self.codes.values]
        try:
            codes, scales = layout.read(self.layer, tensors, self.codes)
            try:
                require_scales(scales, values, dtype or self.dtype, f"its {layout.scale}")
            except FormatError as error:
                layout.refuse(self.layer, self.codes.shape, str(error))
        except FormatError as error:
            raise CheckpointError(f"{self.path}: {error}") from None
        return codes, scales

    def pack(self, scheme: Scheme, tensors: Mapping[str, Tensor] | None = None) -> PackedWeight:
        """Packs codes and scales as they are; `tensors` as of `read_codes`.

        Raises:
            CheckpointError: For a weight that the scheme cannot hold, and as `read_codes` does.
        """
        assert isinstance(scheme.format, CodePacker)
        codes, scales = self.read_codes(tensors, scheme.dtype)
        try:
            return scheme.format.pack_codes(codes, scales, scheme)
        except FormatError as error:
            raise CheckpointError(
                f"{self.path}: layer {self.layer!r} {list(self.shape)}, quantized by "
                f"compressed-tensors, cannot be packed to {scheme.title}: {error}. Codes are "
                "not pruned: prune the model before it is quantized, or pack any zeros with "
                "`flashsparse convert --format tiled_bitmap`. A model without zeros gains nothing "
                "here: serve it with vLLM alone"
            ) from None

    def read(self) -> Tensor:
        codes, scales = self.read_codes()
        return multiply(codes, scales, self.codes.group, self.dtype)


def find_codes(
    tensors: Mapping[str, TensorInfo],
    quantization: Mapping[str, Any],
    dtype: torch.dtype,
    path: Path,
) -> tuple[dict[str, CodesInfo], Quantization]:
    """Finds the quantized weights of a checkpoint.

    Args:
        tensors: The entries of all its tensors.
        quantization: Its `quantization_config`.
        dtype: Of the dense weights, where it can be that: scales of groups must survive in it.
        path: Where the files are, for error messages.

    Returns:
        By the name of each part the weight that it belongs to, and what config.json says.

    Raises:
        CheckpointError: For quantized weights that are not read, or not whole.
    """
    layers: dict[str, dict[str, TensorInfo]] = {}
    for name, info in tensors.items():
        layer, _, part = name.rpartition(".")
        if part in _PARTS:
            layers.setdefault(layer, {})[part] = info
    try:
        stated = Quantization.read(quantization)
        found = [
            _describe(layer, parts, stated)
            for layer, parts in layers.items()
            if parts.keys() & {*_OWN}
            or any(
                parts[part].dtype in _CODES for part in ("weight", "compressed") if part in parts
            )
        ]
    except FormatError as error:
        raise CheckpointError(f"{path}: {error}") from None
    if not found:
        raise CheckpointError(
            f"{path} is quantized by config.json, and no layer of it has codes: the two belong to "
            "different models, fetch them together again"
        )
    dtype = _survivable(found, dtype)
    weights = [replace(each, dtype=dtype) for each in found]
    return {part.name: each for each in weights for part in each.parts.values()}, stated


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


def show_weights(
    tensors: Mapping[str, TensorInfo], codes: Mapping[str, CodesInfo]
) -> dict[str, TensorInfo]:
    """The entries of a checkpoint with a dense weight in the place of the parts of each."""
    shown = (codes.get(name, info) for name, info in tensors.items())
    return {info.name: info for info in shown}


class _Packed:
    """A weight, packed when the first of its tensors is read, and let go of with the last."""

    def __init__(self, weight: CodesInfo, scheme: Scheme):
        self.weight, self.scheme = weight, scheme
        self.left: dict[str, Tensor] = {}
        self.lock = threading.Lock()

    def take(self, own: str) -> Tensor:
        with self.lock:
            if own not in self.left:
                self.left = dict(self.weight.pack(self.scheme).tensors)
            return self.left.pop(own)


@dataclass(frozen=True)
class PackedInfo(TensorInfo):
    """A packed tensor of a weight that its files keep as codes and scales."""

    packed: _Packed = field(kw_only=True)

    @property
    def weight(self) -> CodesInfo:
        return self.packed.weight

    @property
    def scheme(self) -> Scheme:
        return self.packed.scheme

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return self.weight.codes.shape

    @property
    def bytes_stored(self) -> int:
        first = self.scheme.format.tensor_names[0]
        return self.weight.bytes_stored if self.name.endswith(f".{first}") else 0

    def read(self) -> Tensor:
        return self.packed.take(self.name.rpartition(".")[2])


def show_packed(
    tensors: Mapping[str, TensorInfo],
    codes: Mapping[str, CodesInfo],
    schemes: Mapping[str, Scheme],
) -> dict[str, TensorInfo]:
    """The entries of a checkpoint with packed tensors in the place of the parts of each weight.

    Args:
        tensors: The entries of all tensors.
        codes: By the name of each part, its weight.
        schemes: By the name of each layer, the scheme to pack it by.
    """
    shown: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        weight = codes.get(name)
        if weight is None:
            shown[name] = info
            continue
        scheme = schemes[weight.layer]
        specs = scheme.format.tensors(scheme, weight.codes.shape)
        if f"{weight.layer}.{min(specs)}" in shown:
            continue
        packed = _Packed(weight, scheme)
        for own, spec in specs.items():
            key = f"{weight.layer}.{own}"
            sizes = tuple(size or 0 for size in spec.shape)
            shown[key] = PackedInfo(key, weight.path, spec.dtype, sizes, packed=packed)
    return shown
