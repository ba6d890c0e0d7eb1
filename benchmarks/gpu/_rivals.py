# SPDX-License-Identifier: Apache-2.0
"""What a user could take instead of sparse weights with few bits, each on random weights.

Dense fp8 is measured beside every layer (_baselines.py). A rival that this machine lacks, or that
refuses a size, is left out, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.evaluation.dense_products import marlin

Product = Callable[[Tensor], Callable[[Tensor], Tensor]]


@dataclass
class Rival:
    """A library's product with a weight of its own layout.

    Attributes:
        name: As tables call it.
        weight: The weight in its layout, on the GPU; copies of it keep it out of the L2.
        product: Given x [tokens, in_features], what multiplies a copy of the weight by it. It
            raises RuntimeError for a number of tokens that the library refuses.
    """

    name: str
    weight: Tensor
    product: Product


def rivals(weight: Tensor) -> Iterator[Rival]:
    """All that this machine has.

    Args:
        weight: [out_features, in_features], 16 bits, that follows 2:4.
    """
    for make in (_cusparselt_fp8, _cusparselt_int8, _marlin):
        try:
            yield make(weight)
        except (RuntimeError, ImportError, AttributeError) as error:
            print(f"{make.__name__.strip('_')} is left out: {str(error).splitlines()[0][:150]}")


def by_library(
    compressed: Tensor, dense: Tensor, dtype: torch.dtype | None = None
) -> Callable[[Tensor], Tensor]:
    """What multiplies a weight that cuSPARSELt compressed, by the algorithm that its search finds.

    Args:
        compressed: The weight that the search is done with.
        dense: [columns, tokens].
        dtype: Of the product [rows, tokens]; None: that of the weight.
    """
    rest = None, None, dtype, False  # bias, alpha, and whether the product is to be transposed
    *best, _ = torch._C._cusparselt.mm_search(compressed, dense, *rest)
    return lambda weight: torch._cslt_sparse_mm(weight, dense, *rest, *best)


def _cusparselt(name: str, weight: Tensor, quantise: Callable[[Tensor], Tensor]) -> Rival:
    """By the algorithm that its search finds; x is quantised outside of the timing."""
    compressed = torch._cslt_compress(weight)

    def product(x: Tensor) -> Callable[[Tensor], Tensor]:
        codes = F.pad(quantise(x), (0, 0, 0, -len(x) % 16)).T
        return by_library(compressed, codes, torch.bfloat16)

    return Rival(name, compressed, product)


def _cusparselt_fp8(weight: Tensor) -> Rival:
    def quantise(values: Tensor) -> Tensor:
        return values.to(torch.float8_e4m3fn)

    return _cusparselt("cuSPARSELt 2:4, fp8 x fp8", quantise(weight * 30), quantise)


def _cusparselt_int8(weight: Tensor) -> Rival:
    def quantise(values: Tensor) -> Tensor:
        return (values * 30).round().clamp(-127, 127).to(torch.int8)

    return _cusparselt("cuSPARSELt 2:4, int8 x int8", quantise(weight * 30), quantise)


def _marlin(weight: Tensor) -> Rival:
    """Dense int4 by 128 in vLLM: what is served today with as few bits."""
    made = marlin(weight)
    words, scales = made.tensors

    def product(x: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda own: made.multiply(x, (own, scales))

    return Rival("Marlin, dense int4 by 128", words, product)
