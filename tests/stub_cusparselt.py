# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the calls of torch's cuSPARSELt, which computes the same on a CPU.

Its compressed weight has the library's size and a layout of its own: values by rows, then two bits
for the place of each. The search finds a different algorithm for each number of tokens, and a
product asks that it is given the one of its bucket. Nothing can be searched for while a CUDA graph
is captured.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flashsparse_plugin.formats.cusparselt_24 import CuSparselt24, library


class CuSparselt:
    """Counts its searches, and keeps what products were asked for.

    Attributes:
        searched: (rows, columns, tokens) of every search, in order.
        products: (tokens, alg_id) of every product.
        capturing: Whether a CUDA graph is captured.
    """

    def __init__(self) -> None:
        self.searched: list[tuple[int, int, int]] = []
        self.products: list[tuple[int, int]] = []
        self.capturing = False

    def compress(self, weight: Tensor) -> Tensor:
        rows, columns = weight.shape
        fours = weight.view(rows, columns // 4, 4)
        assert int(fours.count_nonzero(-1).max()) <= 2, "no 2:4"
        kept = (fours != 0).to(torch.uint8)
        places = kept.argsort(dim=-1, descending=True, stable=True)[..., :2].sort(-1).values
        values = fours.gather(-1, places).reshape(rows, -1)
        nibbles = (places[..., 0] | places[..., 1] << 2).view(rows, -1, 2)
        metadata = (nibbles[..., 0] | nibbles[..., 1] << 4).to(torch.uint8)
        return torch.cat([values.view(torch.uint8), metadata], 1).view(weight.dtype)

    def mm_search(self, compressed: Tensor, dense: Tensor, *rest: object) -> tuple[int, ...]:
        assert rest == (None, None, None, True) and dense.stride() == (1, len(dense))
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.searched.append((len(compressed), *dense.shape))
        return dense.shape[1].bit_length(), 2, 3, 99

    def multiply(
        self,
        compressed: Tensor,
        dense: Tensor,
        bias: Tensor | None,
        alpha: None,
        out_dtype: None,
        transpose_result: bool,
        *algorithm: int,
    ) -> Tensor:
        columns, tokens = dense.shape
        assert transpose_result and dense.stride() == (1, columns) and tokens % 8 == 0
        assert dense.dtype == compressed.dtype and (bias is None or bias.dtype == dense.dtype)
        assert algorithm[1:] == (2, 3) and alpha is out_dtype is None
        self.products.append((tokens, algorithm[0]))
        values = compressed[:, : columns // 2].view(len(compressed), -1, 2)
        metadata = compressed[:, columns // 2 :].contiguous().view(torch.uint8)
        nibbles = torch.stack([metadata & 15, metadata >> 4], -1).view(len(compressed), -1)
        places = torch.stack([nibbles & 3, nibbles >> 2], -1).long()
        fours = values.new_zeros(*values.shape[:2], 4).scatter_(2, places, values)
        weight = fours.view(len(compressed), columns).float()
        y = F.linear(dense.t().float(), weight, None if bias is None else bias.float())
        return y.to(dense.dtype)


def install(monkeypatch: pytest.MonkeyPatch, as_if_on_a_gpu: bool = False) -> CuSparselt:
    """Puts a stand-in in the place of the library for the length of a test.

    Args:
        monkeypatch: The test's.
        as_if_on_a_gpu: Whether layers on a CPU are held as they would be on a GPU.
    """
    stub = CuSparselt()
    monkeypatch.setattr(torch, "_cslt_compress", stub.compress)
    monkeypatch.setattr(torch, "_cslt_sparse_mm", stub.multiply)
    monkeypatch.setattr(torch._C, "_cusparselt", stub, raising=False)
    monkeypatch.setattr(library, "require", lambda device: None)
    monkeypatch.setattr(library, "_algorithms", {})
    monkeypatch.setattr(library, "_told", set())
    monkeypatch.setattr(torch.backends.cusparselt, "version", lambda: 801)
    if as_if_on_a_gpu:
        of, gpu = CuSparselt24.of, torch.device("cuda")
        monkeypatch.setattr(CuSparselt24, "of", lambda form, stored, device: of(form, stored, gpu))
    return stub
