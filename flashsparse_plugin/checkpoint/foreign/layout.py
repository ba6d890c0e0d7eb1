# SPDX-License-Identifier: Apache-2.0
"""What layouts are asked, and what those of compressed-tensors share: a shape, kept values in
row-major order, and a bit for each element of the weight that tells whether it is kept.

compressed-tensors wrote these up to release 0.14. Nothing in a file is trusted: what a mask says is
counted before any value is placed by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from ...packed import FormatError, dtype_name

BITS_SET = torch.tensor([byte.bit_count() for byte in range(256)], dtype=torch.uint8)
"""How many bits of a byte are set."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class Layout(ABC):
    """The tensors that a weight is kept as, and the weight that they are.

    Attributes:
        name: What it is called by those who write it.
        parts: Names of the tensors of a weight.
        values: The one of them that has its values, in its dtype.
        parameter: What the parameter that it keeps is called in its module.
    """

    name: str
    parts: tuple[str, ...]
    values: str
    parameter: str = "weight"

    @abstractmethod
    def shape(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> tuple[int, ...]:
        """Returns the shape of a weight; proves the dtypes and shapes of its tensors.

        Args:
            name: The name of the weight, for error messages.
            tensors: By part; of those but "shape" no element is read, so they may be on the meta
                device.
            dtypes: What the values may be.

        Raises:
            FormatError: Where a tensor has another dtype or shape than the layout has it.
        """

    @abstractmethod
    def check(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> tuple[int, ...]:
        """Proves that some tensors are a weight, and returns its shape.

        Args:
            name: The name of the weight, for error messages.
            tensors: By part.
            dtypes: What the values may be.

        Raises:
            FormatError: For tensors that are not a weight in this layout.
        """

    @abstractmethod
    def dense(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> Tensor:
        """Returns a weight, on the device of its values; arguments and errors as of `check`."""

    def check_values(
        self, name: str, tensors: Mapping[str, Tensor], dtypes: Sequence[torch.dtype]
    ) -> None:
        """Raises FormatError for values of another dtype."""
        if (dtype := tensors[self.values].dtype) not in dtypes:
            raise FormatError(
                f"{name!r}, kept as {self.name}, has values of {dtype_name(dtype)}: "
                "quantized weights are not read in this layout. Start from the model before it was "
                "quantized"
            )

    def refuse(self, name: str, shape: Sequence[int], rule: str) -> NoReturn:
        raise FormatError(
            f"{name!r} {list(shape)}, kept as {self.name}: {rule}. The checkpoint is damaged: "
            "fetch it again"
        )


class Bitmask(Layout):
    """A layout of compressed-tensors: `shape`, `compressed` and `bitmask`, and what it adds."""

    values = "compressed"

    def shape(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> tuple[int, ...]:
        self.check_values(name, tensors, dtypes)
        mask, stated = tensors["bitmask"], tensors["shape"]
        if stated.dtype != torch.int64 or stated.numel() not in (1, 2):
            self.refuse(name, mask.shape, "its shape is no int64 tensor of one or two sizes")
        shape = tuple(stated.flatten().tolist())
        if min(shape) < 1 or mask.dtype != torch.uint8 or mask.shape != self._mask_shape(shape):
            self.refuse(
                name,
                shape,
                f"its bitmask is {dtype_name(mask.dtype)} {list(mask.shape)}, and not "
                "uint8 with a bit for each element",
            )
        self.check_parts(name, shape, tensors)
        return shape

    @staticmethod
    def _mask_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], -(-shape[-1] // 8))

    @abstractmethod
    def check_parts(self, name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
        """Raises FormatError where the other tensors do not go with the shape of the weight."""

    @abstractmethod
    def check_mask(self, name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
        """Raises FormatError where the elements that are kept are not as many as the values.

        Args:
            name: The name of the weight.
            shape: Its shape.
            tensors: By part; the mask has no bits beyond the last column.
        """

    def check(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> tuple[int, ...]:
        shape = self.shape(name, tensors, dtypes)
        used = shape[-1] % 8
        if used and bool((tensors["bitmask"][..., -1] >> used).any()):
            self.refuse(name, shape, "its bitmask has bits beyond the last column")
        self.check_mask(name, shape, tensors)
        return shape

    def dense(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        dtypes: Sequence[torch.dtype] = DTYPES,
    ) -> Tensor:
        shape = self.check(name, tensors, dtypes)
        stored = tensors["compressed"].flatten()
        values = stored.view(torch.uint8) if stored.itemsize == 1 else stored
        # The lowest bit of a byte stands for the first of its eight elements.
        mask = tensors["bitmask"].cpu().numpy()
        bits = np.unpackbits(mask, axis=-1, count=shape[-1], bitorder="little")
        kept = torch.from_numpy(bits).bool().to(values.device)
        weight = torch.zeros(shape, dtype=values.dtype, device=values.device)
        return weight.masked_scatter_(kept, values).view(stored.dtype)
