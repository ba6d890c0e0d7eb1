# SPDX-License-Identifier: Apache-2.0
"""What people could take in place of sparsity: fewer bits of all weights."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import util
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..formats.values.activations import multiply_rounded, quantise_tokens
from ..formats.values.types import VALUE_TYPES
from ..modules import bias_of, weight_of
from ..packed import FormatError

GROUPS = (32, 64, 128, 256)


def no_options(name: str, options: dict[str, Any]) -> None:
    if options:
        raise ValueError(f"the method {name} has no option {next(iter(options))!r}")


class TorchInt8:
    """torch's dynamic quantisation: int8 weights by row, activations quantised at every call."""

    title = "torch dynamic int8"
    dtype: ClassVar[torch.dtype | None] = torch.float32
    is_timed: ClassVar[bool] = True

    def __init__(self, **options: Any):
        no_options("torch_int8", options)

    def require(self, device: str) -> None:
        if device != "cpu":
            raise ValueError("torch_int8 runs on CPUs only: use torchao_int8 on a GPU")

    def apply(self, model: nn.Module, names: Iterable[str]) -> None:
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

        chosen = dict.fromkeys(names, per_channel_dynamic_qconfig)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces its end, for years now
            quantize_dynamic(model, chosen, torch.qint8, inplace=True)


@dataclass(frozen=True)
class TorchAO:
    """A weight-only or fp8 configuration of torchao.

    Attributes:
        title: What it is, for people.
        config: Makes the configuration for a device.
        dtype: The dtype that a model has to be loaded in; None for any.
        capability: The least compute capability; None where it runs on CPUs, too.
        group: Columns of a row that share a scale; None where rows have one.
    """

    title: str
    config: Callable[[str], Any]
    dtype: torch.dtype | None = None
    capability: tuple[int, int] | None = None
    group: int | None = None
    is_timed: ClassVar[bool] = True

    def require(self, device: str) -> None:
        if util.find_spec("torchao") is None:
            raise ImportError(f"{self.title} needs torchao: pip install 'torchao==0.18.*'")
        if self.capability is not None:
            found = torch.cuda.get_device_capability() if device == "cuda" else None
            if found is None or found < self.capability:
                wanted = ".".join(map(str, self.capability))
                here = "a CPU" if found is None else "a GPU of {}.{}".format(*found)
                raise ValueError(
                    f"{self.title} needs a GPU of compute capability {wanted} or newer, and this "
                    f"is {here}: leave it out"
                )

    def apply(self, model: nn.Module, names: Iterable[str]) -> None:
        chosen = set(names)
        if self.group is not None:
            for name in chosen:
                require_groups(name, weight_of(model.get_submodule(name)).shape[1], self.group)
        logging.getLogger("torchao").setLevel(logging.ERROR)  # of kernels for other GPUs
        from torchao.quantization import quantize_

        config = self.config(next(model.parameters()).device.type)
        quantize_(model, config, filter_fn=lambda module, name: name in chosen)


def require_groups(name: str, columns: int, group: int) -> None:
    """Raises FormatError for a layer that torchao would leave as it is, in silence."""
    if columns % group:
        raise FormatError(
            f"layer {name!r}: its {columns} columns are no multiple of the group of {group}; a "
            "smaller one may fit (torchao_int4:group=32)"
        )


def _torchao_int8(**options: Any) -> TorchAO:
    no_options("torchao_int8", options)

    def config(device: str) -> Any:
        from torchao.quantization import Int8WeightOnlyConfig

        return Int8WeightOnlyConfig(set_inductor_config=False)

    return TorchAO("torchao int8", config)


def _torchao_int4(group: int = 128, **options: Any) -> TorchAO:
    no_options("torchao_int4", options)
    if group not in GROUPS:
        raise ValueError(
            f"option group of torchao_int4: {group} is not one of {', '.join(map(str, GROUPS))}"
        )

    def config(device: str) -> Any:
        if device == "cuda":
            from torchao.quantization import Int4WeightOnlyConfig

            return Int4WeightOnlyConfig(
                group_size=group, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
            )
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        return PrototypeInt4WeightOnlyConfig(group_size=group, set_inductor_config=False)

    return TorchAO(f"torchao int4 by {group}", config, torch.bfloat16, group=group)


def _torchao_fp8(**options: Any) -> TorchAO:
    no_options("torchao_fp8", options)

    def config(device: str) -> Any:
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow

        return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())

    return TorchAO("torchao fp8", config, torch.bfloat16, (8, 9))


class GGUF:
    """Codes of GGUF, the files of llama.cpp, as its own package `gguf` makes them.

    Torch multiplies with what they stand for, so that quality and bytes are those of llama.cpp, and
    the speed is not. The package makes no K-quants.
    """

    dtype: ClassVar[torch.dtype | None] = None
    is_timed: ClassVar[bool] = False
    TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
    BLOCK = 32  # columns of a row that share a scale

    def __init__(self, type: str = "q4_0", **options: Any):
        no_options("gguf", options)
        if type not in self.TYPES:
            raise ValueError(f"option type of gguf: {type} is not one of {', '.join(self.TYPES)}")
        self.type = type.upper()

    @property
    def title(self) -> str:
        return f"GGUF {self.type}"

    def require(self, device: str) -> None:
        if util.find_spec("gguf") is None:
            raise ImportError(f"{self.title} needs gguf: pip install gguf")

    def apply(self, model: nn.Module, names: Iterable[str]) -> None:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize, quantize

        type = GGMLQuantizationType[self.type]
        for name in names:
            old = model.get_submodule(name)
            weight = weight_of(old).detach()
            if weight.shape[1] % self.BLOCK:
                raise FormatError(
                    f"layer {name!r}: its {weight.shape[1]} columns are no multiple of "
                    f"{self.BLOCK}, a block of {self.title}"
                )
            codes = quantize(weight.float().cpu().contiguous().numpy(), type)
            value = torch.from_numpy(dequantize(codes, type)).to(weight)
            model.set_submodule(name, Coded(torch.from_numpy(codes), value, bias_of(old)))


class Coded(nn.Module):
    """A linear layer that is saved as codes, and multiplied as what they stand for.

    Args:
        codes: What is saved, uint8.
        weight: What they stand for, [out_features, in_features].
        bias: [out_features].
    """

    codes: Tensor
    weight: Tensor

    def __init__(self, codes: Tensor, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("weight", weight, persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Fp8:
    """fp8 on both sides as servers round it: e4m3, a scale for each row and for each token.

    Torch multiplies the codes as floats, on any device: quality and bytes are those of a server's
    fp8, and the speed is not.
    """

    title = "fp8"
    dtype: ClassVar[torch.dtype | None] = None
    is_timed: ClassVar[bool] = False

    def __init__(self, **options: Any):
        no_options("fp8", options)

    def require(self, device: str) -> None:
        pass

    def apply(self, model: nn.Module, names: Iterable[str]) -> None:
        for name in names:
            old = model.get_submodule(name)
            model.set_submodule(name, Fp8Linear(weight_of(old).detach(), bias_of(old)))


class Fp8Linear(nn.Module):
    """A linear layer of fp8 on both sides: codes of a row have the scale of its largest magnitude.

    Args:
        weight: [out_features, in_features], finite.
        bias: [out_features].
    """

    codes: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        codes, scales = quantise_tokens(weight, VALUE_TYPES["fp8_e4m3"])  # rows, as tokens are
        self.register_buffer("codes", codes.to(torch.float8_e4m3fn))
        self.register_buffer("scales", scales[:, 0])
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        def product(codes: Tensor) -> Tensor:
            if not codes.is_cuda:
                return linear(codes, self.codes.float()) * self.scales
            # bfloat16 holds codes times powers of two, and tensor cores sum them in float32.
            tokens = codes.flatten(0, -2).bfloat16()
            y = torch.mm(tokens, self.codes.bfloat16().T, out_dtype=torch.float32)
            return y.view(*codes.shape[:-1], -1) * self.scales

        return multiply_rounded(x, VALUE_TYPES["fp8_e4m3"], self.bias, product)


RIVALS: dict[str, Callable[..., Any]] = {
    "torch_int8": TorchInt8,
    "torchao_int8": _torchao_int8,
    "torchao_int4": _torchao_int4,
    "torchao_fp8": _torchao_fp8,
    "fp8": Fp8,
    "gguf": GGUF,
}
"""By name, what makes each method of its options."""
