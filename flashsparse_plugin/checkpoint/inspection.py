# SPDX-License-Identifier: Apache-2.0
"""inspect_checkpoint: what a model directory holds, and what each format would make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from ..config import QUANT_METHOD, FlashSparseConfig
from ..formats import format_names, get_format
from ..matching import matches
from ..packed import WEIGHT_DTYPES, FormatError, PackedWeight
from .linears import Linear, find_linears
from .reader import CheckpointError, ModelDirectory
from .report import mean_sparsity
from .values import dtype_name, parse_dtype


@dataclass
class LayerInspection:
    """One linear layer.

    Attributes:
        name, kind, shape: As in `LayerReport`.
        dtype: Of the values.
        sparsity: Share of zeros.
        format: The format in which it is stored; None for dense.
        bytes_stored: What it takes in the checkpoint.
        bytes_dense: What it takes or would take dense, in its dtype.
        bytes_in: What it would take in each format, by name; None where the format refuses it.
        bytes_cpu: What it takes at run time on a CPU.
        reason: Why it is dense, where the checkpoint tells.
    """

    name: str
    kind: str
    shape: tuple[int, int]
    dtype: str
    sparsity: float
    format: str | None
    bytes_stored: int
    bytes_dense: int
    bytes_in: dict[str, int | None]
    bytes_cpu: int | None
    reason: str | None = None


@dataclass
class Inspection:
    """A model directory. Sizes are bytes of tensors.

    Attributes:
        path: The directory.
        model_type: As in config.json.
        format: Of the packed layers; None for a dense model.
        bytes_stored: All tensors.
        bytes_other: Those that are not the weight of a linear layer.
        layers: The linear layers that have a weight of their own.
    """

    path: str
    model_type: str
    format: str | None
    bytes_stored: int
    bytes_other: int = 0
    layers: list[LayerInspection] = field(default_factory=list)

    @property
    def sparsity(self) -> float | None:
        """Share of zeros over all linear layers."""
        return mean_sparsity(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain JSON values."""
        layers = [{**asdict(layer), "shape": list(layer.shape)} for layer in self.layers]
        return {**asdict(self), "sparsity": self.sparsity, "layers": layers}


def inspect_checkpoint(
    path: str | Path, *, on_progress: Callable[[int, int, str], None] | None = None
) -> Inspection:
    """Reads a dense or packed model directory, one layer at a time, and packs every layer.

    Packed layers are validated before they are unpacked. float32 layers are rounded to bfloat16
    to be packed, as `convert_checkpoint` does unless told otherwise.

    Args:
        path: Model directory with safetensors weights.
        on_progress: Called with bytes done, bytes in all, and the layer.

    Raises:
        CheckpointError: For a directory that cannot be read.
        FormatError: For a packed layer that is not valid.
    """
    directory = ModelDirectory(path)
    config = _packed_config(directory)
    found = Inspection(
        str(directory.path),
        str(directory.config.get("model_type", "unknown")),
        config.format if config else None,
        directory.nbytes,
    )
    linears = [linear for linear in find_linears(directory) if linear.stored is not None]
    sizes = [_stored_bytes(directory, linear) for linear in linears]
    found.bytes_other = directory.nbytes - sum(sizes)
    done = 0
    for linear, size in zip(linears, sizes, strict=True):
        found.layers.append(_inspect(directory, linear, config))
        done += size
        if on_progress is not None:
            on_progress(done, sum(sizes), linear.name)
    return found


def _packed_config(directory: ModelDirectory) -> FlashSparseConfig | None:
    quantization = directory.quantization
    if quantization is None:
        return None
    if quantization.get("quant_method") != QUANT_METHOD:
        raise CheckpointError(
            f"{directory.path} is quantized by {quantization.get('quant_method')!r}: only dense "
            "models and those packed by flashsparse can be inspected"
        )
    try:
        return FlashSparseConfig(**quantization)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "quantization_config"
        raise CheckpointError(
            f"quantization_config of {directory.path} is not valid: {where}: {first['msg']}"
        ) from None


def _inspect(
    directory: ModelDirectory, linear: Linear, config: FlashSparseConfig | None
) -> LayerInspection:
    dense = directory.tensors.get(f"{linear.stored}.weight")
    if dense is None:
        stored = _read_packed(directory, linear, config)
        weight, runtime = stored.unpack(), stored.prepare("cpu")
        sizes: dict[str, int | None] = {stored.format.name: stored.nbytes}
    else:
        stored, runtime, sizes = None, None, {}
        weight = dense.read()
    dtype = weight.dtype
    if dtype == torch.float32:
        weight = weight.to(torch.bfloat16)
    if dtype not in (*WEIGHT_DTYPES, torch.float32):
        raise CheckpointError(
            f"layer {linear.name!r} {list(linear.shape)} is {dtype_name(dtype)}: weights are "
            "float16, bfloat16 or float32. Start from the model before it was quantized"
        )
    for name in format_names():
        packed = None if name in sizes else _try_pack(weight, name)
        if packed is not None and runtime is None:
            runtime = packed.prepare("cpu")
        sizes.setdefault(name, None if packed is None else packed.nbytes)
    return LayerInspection(
        linear.name,
        linear.kind,
        linear.shape,
        dtype_name(dtype),
        1 - int(weight.count_nonzero()) / weight.numel(),
        None if stored is None else stored.format.name,
        _stored_bytes(directory, linear),
        weight.numel() * dtype.itemsize,
        {name: sizes[name] for name in format_names()},
        None if runtime is None else runtime.nbytes,
        None if stored is not None else _reason(linear, config),
    )


def _read_packed(
    directory: ModelDirectory, linear: Linear, config: FlashSparseConfig | None
) -> PackedWeight:
    if config is None:
        raise CheckpointError(
            f"layer {linear.name!r} {list(linear.shape)} is packed, and config.json has no "
            "quantization_config that tells how: fetch the model again"
        )
    own = config.layers.get(linear.name)
    form = get_format(own.format if own is not None else config.format)
    infos = {name: directory.tensors.get(f"{linear.stored}.{name}") for name in form.tensor_names}
    missing = [name for name, info in infos.items() if info is None]
    if missing:
        raise FormatError(
            f"layer {linear.name!r} {list(linear.shape)}: {form.name} consists of "
            f"{', '.join(form.tensor_names)}, and {linear.stored}.{missing[0]} is missing: fetch "
            "the model again"
        )
    named = config.dtype or directory.config.get("dtype")
    dtype = parse_dtype(named if named in ("float16", "bfloat16") else "bfloat16")
    tensors = {name: info.read() for name, info in infos.items()}
    return PackedWeight(form, tensors, linear.shape, dtype, config.options).validate(linear.name)


def _try_pack(weight: Tensor, format: str) -> PackedWeight | None:
    try:
        return get_format(format).pack(weight)
    except (FormatError, TypeError):  # a pattern that the weight has not, or options it needs
        return None


def _stored_bytes(directory: ModelDirectory, linear: Linear) -> int:
    names = {"weight", *(t for f in format_names() for t in get_format(f).tensor_names)}
    infos = (directory.tensors.get(f"{linear.stored}.{name}") for name in names)
    return sum(info.nbytes for info in infos if info is not None)


def _reason(linear: Linear, config: FlashSparseConfig | None) -> str | None:
    if config is None:
        return None
    own = config.layers.get(linear.name)
    if own is not None and own.reason:
        return own.reason
    return "ignored by name" if matches(linear.name, config.ignore) else "not told"
