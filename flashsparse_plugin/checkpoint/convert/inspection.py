# SPDX-License-Identifier: Apache-2.0
"""inspect_checkpoint: what a model directory holds, and what each format would make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...config import FlashSparseConfig
from ...dataflow.choice import Choice, Pattern, choose, lines, weigh
from ...dataflow.expected import BATCH, HERE, Target
from ...dataflow.unpacked import complaints_anywhere
from ...formats import format_names, get_format, packed_names
from ...formats.values.dtypes import fitted, packable_dtype
from ...names import DEFAULT_FORMAT, DENSE
from ...packed import FormatError, PackedWeight, Scheme, dtype_name, reason_of_exceptions
from ..files.headers import CheckpointError
from ..hub.fetching import directory_of
from ..read.directory import ModelDirectory, refuse_quantized
from ..read.linears import Linear, StoredModel
from ..read.shapes import merged_names
from ..write.report import mean_sparsity
from .advice import notes_on
from .decision import IGNORED, reason_not_to_pack, reason_of_size
from .stored_packed import packed_config, read_packed

_DEFAULTS = FlashSparseConfig()  # of `convert_checkpoint`


@dataclass
class LayerInspection:
    """One linear layer.

    Attributes:
        name: Name of the module.
        kind: What layers of one sort share, e.g. "q_proj".
        shape: (out_features, in_features).
        dtype: Dtype of the unpacked weight.
        sparsity: Share of zeros.
        format: The format in which it is stored; None for dense.
        scheme: The format in which it is stored, with its options; None for dense.
        bytes_stored: What it takes in the checkpoint.
        bytes_dense: What it takes or would take dense, in its dtype.
        bytes_in: What it would take packed to each format, by name; None where the format refuses
            it.
        options_in: The options by which it would be packed to each format, by name.
        bytes_after: What it takes after a conversion to each format, packed or left dense; None
            where the format refuses it.
        bytes_cpu: What it then takes at run time on a CPU.
        reason: Why it is dense in a packed checkpoint, or would be after `convert`.
        is_open: Whether it is packed, or may be.
        exceptions: By format that lists elements apart, how many it would list, or lists.
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
    options_in: dict[str, dict[str, Any]]
    bytes_after: dict[str, int | None]
    bytes_cpu: int
    reason: str | None = None
    scheme: str | None = None
    is_open: bool = True
    exceptions: dict[str, int] = field(default_factory=dict)


@dataclass
class Inspection:
    """A model directory. Sizes are bytes of tensors.

    Attributes:
        path: The directory.
        model_type: The model_type of config.json.
        format: Formats of the packed layers, joined by "and"; None for a dense model.
        bytes_stored: All tensors.
        bytes_experts: Those that hold weights of experts, packed or dense.
        bytes_other: Those that are neither, nor the weight of a linear layer.
        notes: What a user should know of how the model was quantized and of what stays dense, one
            sentence each.
        choices: Whether packing pays on a device: of a packed model what its layers bring there, of
            a dense one what `auto` would choose; a line a kind of layer.
        layers: The linear layers that have a weight of their own.
    """

    path: str
    model_type: str
    format: str | None
    bytes_stored: int
    bytes_experts: int = 0
    bytes_other: int = 0
    notes: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
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
    path: str | Path,
    *,
    on_progress: Callable[[int, int, str], None] | None = None,
    device: str = HERE,
    batch: int = BATCH,
) -> Inspection:
    """Reads a dense or packed model directory, one layer at a time, and packs every layer.

    Of a dense model it tells what `convert_checkpoint` would make with its defaults. Packed layers
    are validated before they are unpacked. To be packed, a layer is rounded to bfloat16 where a
    format does not take its dtype. A format that needs options is shown where the model is packed
    in it, and where it knows options for the weights (nm_vector does for 2:4).

    Args:
        path: Model directory with safetensors weights; or, as a string, the name of such a model on
            the Hub: "org/name" or "org/name@revision".
        on_progress: Called with bytes done, bytes in all, and the layer.
        device: Where to compare packed with dense layers, as `Target.named` takes it.
        batch: Sequences decoded at once there.

    Raises:
        CheckpointError: For a directory that cannot be read.
        FormatError: For a packed layer that is not valid.
        ValueError: For a device or a batch that there is not.
    """
    target = Target.named(device, batch)
    directory = ModelDirectory(directory_of(path))
    refuse_quantized(directory, packed=True)
    directory = directory.packed()
    config = packed_config(directory)
    found = Inspection(
        str(directory.path),
        str(directory.config.get("model_type", "unknown")),
        " and ".join(config.formats) if config else None,
        directory.nbytes,
        notes=[*directory.notes],
    )
    packed = packed_names(directory.tensors)
    stored = StoredModel(directory, split=True)
    directory = stored.directory
    linears = [
        (linear, packed.get(linear.stored, {}))
        for linear in stored.linears
        if linear.stored is not None
    ]
    sizes = [_stored_bytes(directory, named, linear) for linear, named in linears]
    apart = sum(
        size for (linear, _), size in zip(linears, sizes, strict=True) if linear.expert is not None
    )
    own = {f"{linear.stored}.weight" for linear, _ in linears if linear.expert is not None}
    merged = sum(info.bytes_stored for info in stored.experts() if info.name not in own)
    found.bytes_experts = apart + merged
    found.bytes_other = directory.nbytes - sum(sizes) - merged
    done = 0
    for (linear, named), size in zip(linears, sizes, strict=True):
        found.layers.append(_inspect(directory, named, linear, size, config))
        done += size
        if on_progress is not None:
            on_progress(done, sum(sizes), linear.name)
    held = [(x.name, config.scheme_of(x.name)) for x in found.layers if config and x.scheme]
    found.notes += complaints_anywhere((name, each) for name, each in held if each is not None)
    dense = {layer.name: layer.reason for layer in found.layers if layer.reason is not None}
    found.notes += notes_on(stored, "packed", dense)
    found.choices = lines(_choices(found.layers, config, target))
    return found


def _choices(
    layers: Sequence[LayerInspection], config: FlashSparseConfig | None, target: Target
) -> Iterator[tuple[str, Choice]]:
    """Whether packing pays for layers, by their kind; nothing of those that stay dense anyway."""
    patterns = {x.name: Pattern(x.shape, 1 - x.sparsity, x.options_in) for x in layers if x.is_open}
    of = {layer.name: layer for layer in layers}
    for names in merged_names(list(patterns)):
        pattern = Pattern.joined([patterns[name] for name in names])
        first = of[names[0]]
        stored = None if config is None else config.scheme_of(first.name)
        if stored is not None:
            choice = weigh(stored, pattern, target)
        else:
            format = get_format(DEFAULT_FORMAT)
            choice = choose(pattern, packable_dtype(format, first.dtype), target)
        yield from ((of[name].kind, choice) for name in names)


def _inspect(
    directory: ModelDirectory,
    named: Mapping[str, str],
    linear: Linear,
    size: int,
    config: FlashSparseConfig | None,
) -> LayerInspection:
    stored = None
    dense = directory.tensors.get(f"{linear.stored}.weight")
    if dense is None:
        stored = read_packed(directory, named, linear, config)
        weight = stored.unpack()
    else:
        weight = linear.turned(dense.read())
    if weight.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise CheckpointError(
            f"layer {linear.name!r} {list(linear.shape)} is {dtype_name(weight.dtype)}: weights "
            "are float16, bfloat16 or float32. Start from the model before it was quantized"
        )
    made: dict[str, PackedWeight | None] = {}
    for name in format_names():
        mine = stored is not None and stored.format.name == name
        made[name] = stored if mine else _try_pack(weight, name)
    sparsity = 1 - int(weight.count_nonzero()) / weight.numel()
    reasons = {name: _reason(linear, each, sparsity, config) for name, each in made.items()}
    after: dict[str, int | None] = {}
    for name, each in made.items():
        stays = reasons[name] is not None
        after[name] = weight.nbytes if stays else None if each is None else each.nbytes
    chosen = config.format if config is not None else DEFAULT_FORMAT
    refused = "the format refuses it" if made[chosen] is None else None
    held = stored or (made[chosen] if reasons[chosen] is None else None)
    return LayerInspection(
        linear.name,
        linear.kind,
        linear.shape,
        dtype_name(weight.dtype),
        sparsity,
        None if stored is None else stored.format.name,
        size,
        weight.nbytes,
        {name: None if each is None else each.nbytes for name, each in made.items()},
        {name: each.scheme.values for name, each in made.items() if each is not None},
        after,
        weight.nbytes if held is None else held.prepare("cpu").nbytes,
        None if stored is not None else reasons[chosen] or refused,
        None if stored is None else stored.scheme.title,
        linear.expert is None
        and (
            stored is not None or (config is None and reason_not_to_pack(linear, _DEFAULTS) is None)
        ),
        _exceptions(made),
    )


def _exceptions(made: Mapping[str, PackedWeight | None]) -> dict[str, int]:
    found = {
        name: each.format.exceptions(each.scheme, each.shape, each.nbytes)
        for name, each in made.items()
        if each is not None
    }
    return {name: count for name, count in found.items() if count is not None}


def _try_pack(weight: Tensor, name: str) -> PackedWeight | None:
    """The weight in a format; None where that refuses it, or knows no options for it."""
    format = get_format(name)
    options = format.options_for(weight)
    if options is None:
        return None
    try:
        scheme: Scheme = format.scheme(packable_dtype(format, weight.dtype), options)
        return format.pack(fitted(weight, scheme, "weight"), scheme)
    except FormatError:
        return None


def _stored_bytes(directory: ModelDirectory, named: Mapping[str, str], linear: Linear) -> int:
    names = [f"{linear.stored}.weight", *named.values()]
    return sum(directory.tensors[name].bytes_stored for name in names if name in directory.tensors)


def _reason(
    linear: Linear, packed: PackedWeight | None, sparsity: float, config: FlashSparseConfig | None
) -> str | None:
    """Why a layer is dense in a packed model, or would be after a conversion; None where not."""
    if config is None:
        reason = reason_not_to_pack(linear, _DEFAULTS)
        if reason is None and packed is not None:
            listed = packed.format.exceptions(packed.scheme, packed.shape, packed.nbytes)
            return reason_of_size(
                packed.nbytes, packed.dense_nbytes, sparsity
            ) or reason_of_exceptions(listed, math.prod(packed.shape))
        return reason
    own = config.named(*linear.names)
    if own is not None and own.format == DENSE:
        return own.reason or IGNORED
    return IGNORED if own is None and linear.goes_by(config.ignore) else None
