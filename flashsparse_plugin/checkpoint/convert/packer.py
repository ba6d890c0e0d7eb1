# SPDX-License-Identifier: Apache-2.0
"""What becomes of each tensor of a model that is converted: packed, by which scheme, or carried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ...formats import format_names, get_format
from ...formats.values.dtypes import cast, fitted, packable_dtype
from ...packed import FormatError, PackedWeight, Scheme, dtype_name, reason_of_exceptions
from ..files.headers import CheckpointError, TensorInfo
from ..foreign.code_entries import CodesInfo
from ..read.directory import ModelDirectory
from ..read.linears import Linear, StoredModel
from ..read.split import ExpertInfo
from ..write.report import LayerReport
from .decision import reason_not_to_pack, reason_of_experts, reason_of_size
from .keeping import keep_codes
from .settings import Settings
from .values import relative_error

FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Packer:
    """Decides for a model, and packs one weight after the other.

    Args:
        directory: The model.
        stored: Its linear layers.
        settings: What is asked for. Its configuration is completed: the dtype, layers with codes.

    Attributes:
        linears: The linear layers of the model.
        linear_of: Those whose weight is a tensor, by its name.
        together: Names of experts, which are packed or dense with all others of their layer.
        reasons: By layer, why it stays dense; None where it is to be packed.
        schemes: By layer, how those are packed that are.
        rounded_unasked: Whether the dtype was chosen unasked for some layer.

    Raises:
        CheckpointError: For layers that there are not, and weights of dtypes that are not packed.
        FormatError: For options that contradict codes.
    """

    def __init__(self, directory: ModelDirectory, stored: StoredModel, settings: Settings):
        self.directory, self.settings = directory, settings
        linears = self.linears = stored.linears
        self.together = {x.name for x in linears if x.expert is not None}
        self.linear_of = {f"{x.stored}.weight": x for x in linears if x.stored is not None}
        keep_codes(settings.config, linears, directory.tensors)
        self.reasons = {x.name: reason_not_to_pack(x, settings.config) for x in linears}
        self._refuse_unknown_layers()
        self.rounded_unasked = self._choose_dtype()
        self.schemes: dict[str, Scheme] = {}
        for linear in linears:
            if self.reasons[linear.name] is None:
                scheme = settings.config.scheme_of(*linear.names)
                assert scheme is not None  # a layer that is configured as dense has a reason
                self.schemes[linear.name] = scheme
        self._judge_experts()
        self._held_in: dict[str, list[ExpertInfo]] = {}
        for info in directory.tensors.values():
            if isinstance(info, ExpertInfo):
                self._held_in.setdefault(info.source.name, []).append(info)

    def _judge_experts(self) -> None:
        """Leaves the experts of a layer dense together, unless all of them are to be packed."""
        layers: dict[str, list[Linear]] = {}
        for linear in self.linears:
            if linear.expert is not None:
                layers.setdefault(linear.expert.module, []).append(linear)
        for experts in layers.values():
            reason = next(filter(None, (self.reasons[each.name] for each in experts)), None)
            if reason is None:
                title = self.schemes[experts[0].name].title
                by_size = not self.settings.pack_all
                reason = reason_of_experts(experts, self._pack_expert, title, by_size)
            if reason is not None:
                self.reasons |= dict.fromkeys((each.name for each in experts), reason)
                for each in experts:
                    self.schemes.pop(each.name, None)

    def _pack_expert(self, linear: Linear) -> PackedWeight:
        info = self.directory.tensors[f"{linear.stored}.weight"]
        return self._pack_by(self.schemes[linear.name], info)[0]

    def names(self, infos: Sequence[TensorInfo]) -> Iterator[str]:
        """Names that tensors may have in the output."""
        for info in infos:
            yield info.name
            if info.name in self.linear_of:
                linear = self.linear_of[info.name]
                scheme = self.schemes.get(linear.name)
                for name in scheme.format.tensors(scheme, linear.shape) if scheme else ():
                    yield f"{info.name.removesuffix('weight')}{name}"

    def tensors(self) -> list[TensorInfo]:
        """The tensors to write or pack, in order: experts that stay dense as files have them."""
        shown = (self._written_as(info) for info in self.directory.tensors.values())
        return [*{info.name: info for info in shown}.values()]

    def _written_as(self, info: TensorInfo) -> TensorInfo:
        if not isinstance(info, ExpertInfo):
            return info
        stays = self.reasons[self.linear_of[info.name].name] is not None
        return info.source if stays else info

    def layers_in(self, info: TensorInfo) -> list[LayerReport]:
        """What is known of layers that a tensor holds together, which stay dense."""
        own = self._held_in.get(info.name, ())
        return [layer for each in own if (layer := self.layer(each)) is not None]

    def pack(self, info: TensorInfo) -> tuple[PackedWeight | None, LayerReport | None]:
        """Packs a tensor where it is a weight to be packed, and tells about it where it is one."""
        layer = self.layer(info)
        if layer is None or layer.reason is not None:
            return None, layer
        scheme = self.schemes[layer.name]
        try:
            packed, weight = self._pack_by(scheme, info)
        except FormatError as error:
            raise CheckpointError(
                f"layer {layer.name!r} {list(layer.shape)} cannot be packed to {scheme.title}: "
                f"{error}. --ignore {layer.name} (ignore=) leaves it dense"
            ) from None
        if weight is not None and not scheme.format.is_exact(scheme):
            layer.error = relative_error(packed.unpack(), weight)
        self.judge(layer, packed.nbytes)
        return (packed if layer.is_packed else None), layer

    def _pack_by(self, scheme: Scheme, info: TensorInfo) -> tuple[PackedWeight, Tensor | None]:
        """Packs a weight; gives it dense, too, unless its codes were packed as they are."""
        if isinstance(info, CodesInfo) and not scheme.format.is_exact(scheme):
            return info.pack(scheme), None
        weight = self.linear_of[info.name].turned(fitted(info.read(), scheme, info.name))
        return scheme.format.pack(weight, scheme), weight

    def layer(self, info: TensorInfo) -> LayerReport | None:
        """What is known of a layer before it is packed; None where the tensor is no weight."""
        linear = self.linear_of.get(info.name)
        if linear is None:
            return None
        bytes_dense = info.nbytes // info.dtype.itemsize * self.carried_dtype(info).itemsize
        sparsity = None
        if info.dtype in FLOATS:
            kept = sum(int(part.count_nonzero()) for part in info.rows())
            sparsity = 1 - kept / (info.shape[0] * info.shape[1])
        reason = self.reasons[linear.name]
        layer = LayerReport(
            linear.name, linear.kind, linear.shape, sparsity, bytes_dense, None, reason
        )
        if reason is None and not self.settings.is_settled:
            layer.others = self._others(linear, info)
        return layer

    def _others(self, linear: Linear, info: TensorInfo) -> dict[str, dict[str, Any]]:
        """Formats with options, other than the layer's own, that hold its weight as it is."""
        weight, own = linear.turned(info.read()), self.schemes[linear.name].format.name
        found = {name: get_format(name).options_for(weight) for name in format_names()}
        return {name: dict(each) for name, each in found.items() if each and name != own}

    def judge(self, layer: LayerReport, nbytes: int) -> None:
        """Notes how large a layer is packed, and gives it a reason to stay dense if too large."""
        scheme, (rows, columns) = self.schemes[layer.name], layer.shape
        layer.bytes_packed, layer.scheme = nbytes, scheme.title
        layer.bytes_alike = rows * columns * scheme.dtype.itemsize
        if not self.settings.pack_all and layer.name not in self.together:
            layer.reason = reason_of_size(
                nbytes, layer.bytes_alike, layer.known_sparsity
            ) or reason_of_exceptions(
                scheme.format.exceptions(scheme, layer.shape, nbytes), rows * columns
            )

    def carried_dtype(self, info: TensorInfo) -> torch.dtype:
        """The dtype of a tensor in the output, where it is not packed."""
        wanted = self.settings.dtype
        if wanted is None or info.dtype not in FLOATS or len(info.shape) < 2:
            return info.dtype
        return wanted

    def _refuse_unknown_layers(self) -> None:
        known = {name for linear in self.linears for name in linear.names}
        named = {name for name in self.settings.config.layers if not name.startswith("re:")}
        unknown = named - known
        if unknown:
            raise CheckpointError(
                f"layers= names {min(unknown)!r}, and the model has no such linear layer"
            )

    def _choose_dtype(self) -> bool:
        """Settles the dtype of the packed values; whether it was chosen unasked for some layer."""
        config = self.settings.config
        found: dict[torch.dtype, str] = {}  # by dtype, the first layer that has it
        for name, linear in self.linear_of.items():
            if self.reasons[linear.name] is None:
                info = self.directory.tensors[name]
                found.setdefault(info.dtype, f"layer {linear.name!r} {list(info.shape)}")
        for dtype, layer in found.items():
            if dtype not in FLOATS[:3]:
                raise CheckpointError(
                    f"{layer} is {dtype_name(dtype)}: weights to be packed are float16, bfloat16 "
                    "or float32. Start from the model before it was quantized, or leave the layer "
                    "dense with --ignore (ignore=)"
                )
        if config.dtype is not None:
            return False
        format = get_format(config.format)
        stored = [dtype for dtype in format.dtypes if dtype in found]
        if len(stored) > 1:
            one, other = stored[:2]
            raise CheckpointError(
                f"{found[one]} is {dtype_name(one)} and {found[other]} is {dtype_name(other)}, and "
                "a packed model has one dtype: choose it with --dtype (dtype=)"
            )
        named = self.directory.config.get("dtype", self.directory.config.get("torch_dtype"))
        chosen = stored[0] if stored else packable_dtype(format, str(named))
        config.dtype = dtype_name(chosen)
        return any(dtype not in format.dtypes for dtype in found)


def cast_part(part: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Values in a dtype of the output.

    Raises:
        CheckpointError: For values that it cannot hold, naming the tensor and the option.
    """
    try:
        return cast(part, dtype, name)
    except FormatError as error:
        raise CheckpointError(f"{error} (--dtype, dtype=)") from None
