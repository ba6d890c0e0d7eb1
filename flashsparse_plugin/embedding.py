# SPDX-License-Identifier: Apache-2.0
"""One packed weight for an embedding and the output head that is tied to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .formats.rows import read_rows, row_places
from .linear import SparseLinear
from .packed import FormatError


class SparseEmbedding(SparseLinear):
    """nn.Embedding on a packed weight [vocabulary, features]; `multiply` is the output head.

    It keeps its weight as a SparseLinear does, under the same names.

    Raises:
        FormatError: By `prepare`, where rows of the weight cannot be read one by one.
    """

    places: Tensor | None = None  # where a row's elements are, once the weight is there

    @property
    def num_embeddings(self) -> int:
        return self.out_features

    @property
    def embedding_dim(self) -> int:
        return self.in_features

    def prepare(self) -> SparseEmbedding:
        super().prepare()
        packed = self.packed
        self.places = None if packed.device.type == "meta" else row_places(packed)
        return self

    def unprepare(self) -> SparseEmbedding:
        super().unprepare()
        self.places = row_places(self.packed)
        return self

    def forward(self, ids: Tensor) -> Tensor:
        assert self.places is not None, "prepare() comes first"
        tensors = {name: getattr(self, name) for name in self._names}
        rows = read_rows(ids, self.held, tensors, self.places)
        return rows if self.compute_dtype is None else rows.to(self.compute_dtype)

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`."""
        y = super().forward(x)
        return y if bias is None else y + bias

    def to_embedding(self, dtype: torch.dtype | None = None) -> nn.Embedding:
        """The dense embedding with the same weight, in `dtype` (default: as stored)."""
        weight = self.to_linear(dtype).weight
        return nn.Embedding.from_pretrained(weight.detach(), freeze=True)


class TiedHead(nn.Module):
    """The output head that multiplies by the weight of a `SparseEmbedding`.

    Args:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        bias: Optional [out_features].
    """

    def __init__(self, in_features: int, out_features: int, bias: nn.Parameter | None = None):
        super().__init__()
        self.in_features, self.out_features, self.bias = in_features, out_features, bias
        self._embedding: list[SparseEmbedding] = []  # in a list, so that it is no child of this

    def tie(self, embedding: SparseEmbedding) -> None:
        """Takes the weight of an embedding from now on."""
        self._embedding = [embedding]

    @property
    def embedding(self) -> SparseEmbedding:
        if not self._embedding:
            raise FormatError(
                "the output head is tied to an embedding that nothing has loaded. Remedy: load "
                "the model from files that have the weight of its embedding"
            )
        return self._embedding[0]

    @property
    def weight(self) -> Tensor:
        """The dense weight, unpacked at every access."""
        return self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding.multiply(x, self.bias)

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, bias={self.bias is not None}, tied to the embedding"

    def to_linear(self, weight: nn.Parameter) -> nn.Linear:
        """The dense head, by the weight of the dense embedding."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = weight
        if self.bias is not None:
            linear.bias = self.bias
        return linear


def tied_pairs(model: nn.Module) -> list[tuple[str, Any]]:
    """The tied heads of a model, by name."""
    return [(name, each) for name, each in model.named_modules() if isinstance(each, TiedHead)]
