# SPDX-License-Identifier: Apache-2.0
"""A packed weight, and what every format must be able to do with one.

Ground floor: knows no format by name. `formats/` brings them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

WEIGHT_DTYPES = (torch.float16, torch.bfloat16)


class FormatError(ValueError):
    """A weight or a packed tensor that breaks a rule of its format.

    The message names the layer where one is known, the shape, the rule and the remedy.
    """


@dataclass(frozen=True)
class PackedWeight:
    """One weight in one format.

    Attributes:
        format: The format that can read `tensors`.
        tensors: The packed tensors by the names they have on disk.
        shape: `(out_features, in_features)` of the weight.
        dtype: float16 or bfloat16, the dtype of the values.
        options: What the format needs to know beside the tensors (N, M and L of nm_vector);
            empty for formats without options.
    """

    format: Format
    tensors: Mapping[str, Tensor]
    shape: tuple[int, int]
    dtype: torch.dtype
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes that the packed tensors take."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def dense_nbytes(self) -> int:
        """Bytes that the unpacked weight would take."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @property
    def density(self) -> float:
        """Share of elements that are not zero, counted from the packed tensors."""
        return self.format.nonzeros(self) / (self.shape[0] * self.shape[1])

    @property
    def sparsity(self) -> float:
        return 1.0 - self.density

    def validate(self, layer: str | None = None) -> PackedWeight:
        """Proves that no kernel can leave its bounds on these tensors.

        Args:
            layer: Name of the layer, for the error message.

        Returns:
            This weight, so that the call chains.

        Raises:
            FormatError: Naming layer, shape, broken rule and remedy.
        """
        try:
            self.format.check(self)
        except (FormatError, RuntimeError) as error:
            where = f"layer {layer!r}: " if layer else ""
            raise FormatError(
                f"{where}{self.format.name} weight of shape {list(self.shape)} is not valid: "
                f"{str(error).splitlines()[0]}. The file is damaged or was not written by a "
                "compatible packer: fetch it again, or convert the model anew with "
                "`flashsparse convert`."
            ) from None
        return self

    def unpack(self) -> Tensor:
        """Returns the dense weight [out_features, in_features], bit for bit (zeros as +0)."""
        return self.format.unpack(self)

    def linear(
        self, x: Tensor, bias: Tensor | None = None, sparse_tokens: int | None = None
    ) -> Tensor:
        """Computes `x @ weight.T + bias`.

        Args:
            x: Activations [..., in_features], float32, float16 or bfloat16. Their dtype rules the
                arithmetic; sums are kept in float32.
            bias: Optional [out_features].
            sparse_tokens: See `Format.linear`.

        Returns:
            [..., out_features] in the dtype of x.
        """
        if x.shape[-1] != self.shape[1]:
            raise ValueError(
                f"x ends in {x.shape[-1]} features, the weight of shape {list(self.shape)} "
                f"takes {self.shape[1]}"
            )
        return self.format.linear(x, self.tensors, self.shape[0], self.dtype, bias, sparse_tokens)

    def to(self, device: torch.device | str) -> PackedWeight:
        """Moves the tensors as they are, without changing the form."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return PackedWeight(self.format, moved, self.shape, self.dtype, self.options)

    def transcode(self, target: Format) -> PackedWeight:
        """Returns the same weight in another format or form, without loss."""
        if target is self.format:
            return self
        return self.format.transcode(self, target)

    def prepare(self, device: torch.device | str) -> PackedWeight:
        """Moves to `device` in the form that its kernels read (see `Format.runtime`)."""
        device = torch.device(device)
        target = self.format.runtime(device)
        # The transcoding kernels run on the CPU: form first, then place.
        weight = self if target is self.format else self.to("cpu").transcode(target)
        return weight.to(device)

    def __repr__(self) -> str:
        return (
            f"PackedWeight({self.format.name}, shape={list(self.shape)}, "
            f"dtype={str(self.dtype).removeprefix('torch.')}, density={self.density:.1%}, "
            f"{self.nbytes / max(self.dense_nbytes, 1):.1%} of dense bytes)"
        )


class Format(ABC):
    """How a weight is laid out, and the ops that read that layout.

    A format has a storage form, which is what is on disk and in a state_dict, and per device a
    runtime form, which its kernels read. A runtime form is a `Format` too, one that is never
    written to disk (`on_disk` is False).
    """

    name: ClassVar[str]
    version: ClassVar[int]
    on_disk: ClassVar[bool] = True
    dtypes: ClassVar[Mapping[str, torch.dtype]]
    """Names of the packed tensors, on disk and in the state_dict, with their dtypes (integers, so
    that `module.half()` leaves them alone), in the order in which ops take them."""
    stream: ClassVar[str | None] = None
    """Name of the tensor whose length depends on the number of kept values, if there is one. In a
    runtime form it may be longer than needed: kernels go by the offsets."""

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self.dtypes)

    @abstractmethod
    def pack(self, weight: Tensor, **options: int) -> PackedWeight:
        """Packs a dense weight [out_features, in_features] of float16 or bfloat16."""

    @abstractmethod
    def unpack(self, packed: PackedWeight) -> Tensor:
        """Returns the dense weight."""

    @abstractmethod
    def linear(
        self,
        x: Tensor,
        tensors: Mapping[str, Tensor],
        out_features: int,
        weight_dtype: torch.dtype,
        bias: Tensor | None,
        sparse_tokens: int | None = None,
    ) -> Tensor:
        """Computes `x @ weight.T + bias` from the packed tensors (traceable by torch.compile).

        Args:
            x: [..., in_features].
            tensors: The packed tensors by name.
            out_features: Rows of the weight.
            weight_dtype: Of its values.
            bias: Optional [out_features].
            sparse_tokens: The most tokens that the format's own kernel multiplies; for more the
                weight is unpacked. 0: it always is. None: as the op sees fit. A format that has one
                implementation for any number of tokens on the device of `tensors` ignores it.
        """

    @abstractmethod
    def check(self, packed: PackedWeight) -> None:
        """Raises FormatError or RuntimeError with the rule that `packed` breaks, if any."""

    @abstractmethod
    def nonzeros(self, packed: PackedWeight) -> int:
        """Counts the elements other than zero."""

    def runtime(self, device: torch.device) -> Format:
        """The form that this format's kernels read on `device`."""
        return self

    def transcode(self, packed: PackedWeight, target: Format) -> PackedWeight:
        """Turns `packed` into `target`'s layout. A format may know a shorter way than this one."""
        return target.pack(self.unpack(packed), **packed.options)

    def require_weight(self, weight: Tensor) -> None:
        """Raises FormatError unless `weight` is something that can be packed."""
        if weight.dim() != 2 or min(weight.shape) < 1:
            raise FormatError(
                f"{self.name} packs a weight [out_features, in_features] with at least one row and "
                f"one column, not a tensor of shape {list(weight.shape)}"
            )
        if weight.dtype not in WEIGHT_DTYPES:
            raise FormatError(
                f"{self.name} packs float16 and bfloat16 values, not {weight.dtype}: convert the "
                "weight first, e.g. weight.to(torch.bfloat16)"
            )

    def require_tensors(self, packed: PackedWeight) -> None:
        """Raises FormatError unless `packed` has exactly the tensors of this format."""
        if packed.dtype not in WEIGHT_DTYPES:
            raise FormatError(f"values are float16 or bfloat16, not {packed.dtype}")
        if len(packed.shape) != 2 or min(packed.shape) < 1:
            raise FormatError(f"the shape must be (out_features, in_features), not {packed.shape}")
        missing = self.dtypes.keys() - packed.tensors.keys()
        unknown = packed.tensors.keys() - self.dtypes.keys()
        if missing or unknown:
            raise FormatError(
                f"tensors missing: {sorted(missing) or 'none'}; "
                f"unknown: {sorted(unknown) or 'none'}"
            )
        for name, dtype in self.dtypes.items():
            if packed.tensors[name].dtype != dtype:
                raise FormatError(f"{name} must be {dtype}, not {packed.tensors[name].dtype}")
