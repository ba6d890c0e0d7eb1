# SPDX-License-Identifier: Apache-2.0
"""Products of dense weights in fewer bits by other libraries: what a sparse layer competes with.

fp8     torch._scaled_mm, e4m3 on both sides, one scale a tensor
int4    torch's own kernel (tinygemm), 16-bit activations, a scale for 128 columns of a row
Marlin  int4 likewise by vLLM's kernel, where its compiled ops are installed
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GROUP = 128  # columns of a row that share a scale
FP8, INT4, MARLIN = "fp8", "int4", "int4, Marlin"
# Relative to the norm. Two roundings to bfloat16 have 2e-3; fp8 adds up in fewer bits on Hopper.
TOLERANCE = 0.02
ROWS = 8192  # that are compared at once: float64 takes memory


@dataclass
class DenseProduct:
    """A dense weight as another library's kernel reads it.

    Attributes:
        name: FP8, INT4 or MARLIN.
        bits: A weight, with its share of the scales.
        tensors: What is read of memory; copies of it keep it out of caches.
        rows: Some rows of what is multiplied, in float64.
        multiply: Multiplies x, as `quantize` returns it, by `tensors` or a copy of them.
        quantize: Makes what the kernel reads of x.
    """

    name: str
    bits: float
    tensors: tuple[Tensor, ...]
    rows: Callable[[slice], Tensor]
    multiply: Callable[[Tensor, tuple[Tensor, ...]], Tensor]
    quantize: Callable[[Tensor], Tensor] = lambda x: x

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.tensors)

    def copy(self) -> tuple[Tensor, ...]:
        """The same tensors elsewhere in memory."""
        return tuple(each.clone() for each in self.tensors)

    def error(self, x: Tensor) -> float:
        """How far the product is from float64, relative to its norm."""
        seen = self.quantize(x)
        return relative_error(self.multiply(seen, self.tensors), seen.double(), self.rows)


def relative_error(y: Tensor, x: Tensor, rows: Callable[[slice], Tensor]) -> float:
    """How far y is from x @ weight.T in float64, relative to its norm.

    Args:
        y: [tokens, out_features].
        x: [tokens, in_features], float64, as the kernel reads it.
        rows: Some rows of the weight, in float64.
    """
    off = norm = 0.0
    for first in range(0, y.shape[1], ROWS):
        part = slice(first, first + ROWS)
        right = x @ rows(part).T
        off += float((y[:, part].double() - right).square().sum())
        norm += float(right.square().sum())
    found = (off / norm) ** 0.5 if norm else float("inf")
    return found if found == found else float("inf")  # NaN


def dense_products(weight: Tensor) -> Iterator[DenseProduct | tuple[str, str]]:
    """What this machine has of them for a weight; of each other its name, and why it is left out.

    Args:
        weight: [out_features, in_features], bfloat16 or float16. On a CPU there is INT4 alone.
    """
    makers = {FP8: fp8, INT4: int4, MARLIN: marlin}
    for name in makers if weight.is_cuda else (INT4,):
        try:
            product = makers[name](weight)
            x = torch.randn(16, weight.shape[1], device=weight.device).to(weight.dtype)
            product.multiply(product.quantize(x), product.tensors)
        except Exception as error:  # a library raises what it likes
            yield name, (str(error).strip() or type(error).__name__).splitlines()[0][:120]
            continue
        yield product


def fp8(weight: Tensor) -> DenseProduct:
    """e4m3 on both sides; `quantize` takes a kernel more, which servers fuse with the one before.

    Raises:
        RuntimeError: Where the device cannot multiply them, once it does.
    """
    one = torch.ones((), device=weight.device)
    scale = weight.abs().amax().float() / torch.finfo(torch.float8_e4m3fn).max
    codes = (weight / scale).to(torch.float8_e4m3fn)

    def multiply(x: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
        [own] = tensors
        return torch._scaled_mm(
            x, own.T, scale_a=one, scale_b=scale, out_dtype=weight.dtype, use_fast_accum=True
        )

    return DenseProduct(
        FP8, 8.0, (codes,), lambda part: codes[part].double() * scale.double(), multiply,
        lambda x: x.to(torch.float8_e4m3fn),
    )  # fmt: skip


def int4_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes 0 to 15 whose zero is 8, uint8 [out, in], and their scales [out, in / GROUP].

    Raises:
        ValueError: Where groups do not divide the columns.
    """
    out_features, in_features = weight.shape
    if in_features % GROUP:
        raise ValueError(f"{in_features} columns are no multiple of a group of {GROUP}")
    grouped = weight.view(out_features, -1, GROUP)
    scales = (grouped.abs().amax(-1) / 7).clamp(min=1e-6)
    codes = (grouped / scales[..., None]).round_().clamp_(-8, 7).add_(8)
    return codes.to(torch.uint8).view_as(weight), scales


def _int4_rows(codes: Tensor, scales: Tensor) -> Callable[[slice], Tensor]:
    return lambda part: (
        (codes[part].double() - 8) * scales[part].double().repeat_interleave(GROUP, 1)
    )


def int4(weight: Tensor) -> DenseProduct:
    """Torch's int4 by groups of 128, on a GPU or a CPU.

    Raises:
        RuntimeError: Where torch lacks it for the device, the dtype or the shape.
    """
    codes, scales = int4_codes(weight)
    pairs = torch.stack((scales, torch.zeros_like(scales)), -1).transpose(0, 1).contiguous()
    if weight.device.type == "cuda":
        packed = torch.ops.aten._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], 8)
        kernel: Any = torch.ops.aten._weight_int4pack_mm
    else:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 8)
        kernel = torch.ops.aten._weight_int4pack_mm_for_cpu
    return DenseProduct(
        INT4, 4 + 32 / GROUP, (packed, pairs), _int4_rows(codes, scales),
        lambda x, tensors: kernel(x, tensors[0], GROUP, tensors[1]),
    )  # fmt: skip


def marlin(weight: Tensor) -> DenseProduct:
    """vLLM's int4 by groups of 128.

    Raises:
        ImportError: Where vLLM or its compiled ops are missing.
        AttributeError: Where this version or build lacks Marlin.
    """
    import vllm._custom_ops as kernels
    from vllm.model_executor.layers.quantization.utils import marlin_utils
    from vllm.scalar_type import scalar_types

    rows, columns = weight.shape
    codes, scales = int4_codes(weight)
    # As GPTQ stores them: eight codes of a column in a word, of weights [in, out].
    words = torch.zeros(columns // 8, rows, dtype=torch.int32, device=weight.device)
    for place in range(8):
        words |= codes[:, place::8].T.int() << (4 * place)
    empty = torch.empty(0, dtype=torch.int32, device=weight.device)
    packed = _call(
        kernels.gptq_marlin_repack,
        b_q_weight=words, perm=empty, size_k=columns, size_n=rows, num_bits=4, is_a_8bit=False,
    )  # fmt: skip
    turned = scales.T.contiguous()
    permuted = _call(
        marlin_utils.marlin_permute_scales,
        s=turned, size_k=columns, size_n=rows, group_size=GROUP, is_a_8bit=False,
    )  # fmt: skip
    workspace = marlin_utils.marlin_make_workspace_new(weight.device)
    # Versions differ in their arguments: what is required, and not known here, is an option.
    known = inspect.signature(kernels.marlin_gemm).parameters
    given: dict[str, Any] = {
        name: None for name, each in known.items() if each.default is inspect.Parameter.empty
    }
    given |= {"workspace": workspace, "b_q_type": scalar_types.uint4b8}
    given |= {"size_n": rows, "size_k": columns, "use_fp32_reduce": True}

    def multiply(x: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
        own = {"a": x, "b_q_weight": tensors[0], "b_scales": tensors[1], "size_m": len(x)}
        return kernels.marlin_gemm(**given | own)

    made = (packed, permuted)
    return DenseProduct(MARLIN, 4 + 16 / GROUP, made, _int4_rows(codes, scales), multiply)


def _call(function: Callable[..., Tensor], **arguments: Any) -> Tensor:
    """Calls with those of the arguments that the function has."""
    known = inspect.signature(function).parameters
    return function(**{name: each for name, each in arguments.items() if name in known})
