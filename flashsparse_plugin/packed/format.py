# SPDX-License-Identifier: Apache-2.0
"""A scheme, a weight that is packed by it, and a format: one file, since they name each other."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from pydantic import ValidationError
from torch import Tensor

from ..ops.transforms import is_transformed, transformed_linear
from ..plan import Plan
from ..rules import (
    FormatError,
    TensorSpec,
    dtype_name,
    option_complaint,
    require_dense,
    require_shape,
    require_tensors,
    require_version,
    rules,
)
from .exact import Exceptions
from .experts import GroupedExperts
from .implementations import Implementations
from .options import Options, Quantized
from .parts import Parts
from .quantized import QuantizedValues

# By which number torch's C++ knows a dtype: c10::ScalarType, a part of its stable ABI.
_NUMBERS = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}


@dataclass(frozen=True)
class Scheme:
    """How one weight is packed: the format, its options, and the dtype of the unpacked weight.

    The one value that travels between config, layers, tables and caches; hashable. `Format.scheme`
    makes it from plain values.

    Attributes:
        quantization: How values are stored as codes; None: as they are.
        dtype_number: `dtype` as linear ops are told it. In a dtype torch looks in each call for a
            `__torch_function__`, which takes the host half as long as to allocate y.

    Raises:
        FormatError: For a dtype that the format does not take, or options of another format.
    """

    format: Format
    dtype: torch.dtype
    options: Options = Options()
    quantization: Quantized | None = field(init=False, repr=False, compare=False)
    dtype_number: int = field(init=False, repr=False, compare=False)
    rounds_activations: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in self.format.dtypes:
            known = " or ".join(map(dtype_name, self.format.dtypes))
            raise FormatError(
                f"{self.format.name} packs {known} weights, not {dtype_name(self.dtype)}: convert "
                f"the weight first, e.g. weight.to({self.format.dtypes[-1]})"
            )
        if type(self.options) is not self.format.Options:
            raise FormatError(f"{self.options!r} are not the options of {self.format.name}")
        found = self.options.quantization
        object.__setattr__(self, "quantization", found)
        object.__setattr__(self, "rounds_activations", bool(found and found.rounds_activations))
        object.__setattr__(self, "dtype_number", _NUMBERS[self.dtype])

    @property
    def values(self) -> dict[str, Any]:
        """The options as plain values, as config.json holds them."""
        return self.options.model_dump(mode="json")

    @property
    def title(self) -> str:
        """Format and options for people: "nm_vector(2:4)"."""
        options = self.options.title
        return f"{self.format.name}({options})" if options else self.format.name

    def __str__(self) -> str:
        return f"{self.title} {dtype_name(self.dtype)}"


@dataclass(frozen=True)
class PackedWeight:
    """One weight, packed.

    Attributes:
        scheme: How to read `tensors`.
        shape: `(out_features, in_features)` of the weight.
        tensors: The packed tensors by the names they have on disk.
    """

    scheme: Scheme
    shape: tuple[int, int]
    tensors: Mapping[str, Tensor]

    @property
    def format(self) -> Format:
        return self.scheme.format

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the unpacked weight."""
        return self.scheme.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that the packed tensors take."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def dense_nbytes(self) -> int:
        """Bytes that the unpacked weight would take."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @property
    def density(self) -> float:
        """Share of elements that are not zero, counted from the packed tensors."""
        return self.format.nonzeros(self) / math.prod(self.shape)

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
            self.format.require_tensors(self)
            with rules():
                self.format.check(self)
        except FormatError as error:
            where = f"layer {layer!r}: " if layer else ""
            raise FormatError(
                f"{where}{self.format.name} weight of shape {list(self.shape)} is not valid: "
                f"{error}. The file is damaged or was not written by a compatible packer: fetch it "
                "again, or convert the model again with `flashsparse convert`."
            ) from None
        return self

    def unpack(self) -> Tensor:
        """Returns the dense weight [out_features, in_features], bit for bit (zeros as +0)."""
        return self.format.unpack(self)

    def linear(self, x: Tensor, bias: Tensor | None = None, plan: Plan | None = None) -> Tensor:
        """Computes `x @ weight.T + bias`.

        Args:
            x: Activations [..., in_features], float32, float16 or bfloat16. Their dtype rules the
                arithmetic; sums are kept in float32.
            bias: Optional [out_features].
            plan: Which implementation to use for how many tokens; None: as the format sees fit.

        Returns:
            [..., out_features] in the dtype of x.

        Raises:
            ValueError: Where x does not end in in_features.
        """
        if x.shape[-1] != self.shape[1]:
            raise ValueError(
                f"x ends in {x.shape[-1]} features, the weight of shape {list(self.shape)} "
                f"takes {self.shape[1]}"
            )
        if torch.compiler.is_compiling() or not is_transformed():
            return self.format.linear(x, self.scheme, self.shape, self.tensors, bias, plan)

        def multiply(x: Tensor, bias: Tensor | None) -> Tensor:
            return self.format.linear(x, self.scheme, self.shape, self.tensors, bias, plan)

        return transformed_linear(x, bias, multiply, self.unpack)

    def to(self, device: torch.device | str) -> PackedWeight:
        """Moves the tensors as they are, without changing the form."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return PackedWeight(self.scheme, self.shape, moved)

    def transcode(self, target: Scheme, device: torch.device | str | None = None) -> PackedWeight:
        """Returns the same weight in another scheme, without loss.

        Args:
            target: The scheme to change to.
            device: Where the result belongs; the weight's own device unless given.
        """
        device = self.device if device is None else torch.device(device)
        if target == self.scheme:
            return self.to(device)
        return self.format.transcode(self, target, device)

    def prepare(self, device: torch.device | str) -> PackedWeight:
        """Moves to `device` in the form that its kernels read (see `Format.runtime`)."""
        device = torch.device(device)
        return self.transcode(self.format.runtime(self.scheme, device), device)

    def __repr__(self) -> str:
        return (
            f"PackedWeight({self.scheme}, shape={list(self.shape)}, density={self.density:.1%}, "
            f"{self.nbytes / self.dense_nbytes:.1%} of dense bytes)"
        )


class Reference(Protocol):
    """The oracle of a format: pure torch, slow, written from its specification alone."""

    def pack(self, weight: Tensor, scheme: Scheme) -> dict[str, Tensor]: ...

    def unpack(self, packed: PackedWeight) -> Tensor: ...


class Format(
    Implementations[Scheme],
    QuantizedValues[Scheme, PackedWeight],
    Exceptions[Scheme],
    Parts[PackedWeight],
    GroupedExperts[Scheme],
    ABC,
):
    """How a weight is laid out, and the ops that read that layout.

    A format has a storage form, which is what is on disk and in a state_dict, and per device a
    runtime form, which its kernels read. A runtime form is a `Format` too, one that is never
    written to disk (`on_disk` is False). There is one object of each class: formats compare by
    identity, also after pickling.
    """

    name: ClassVar[str]
    in_words: ClassVar[str] = ""
    """What it holds, for people who do not know its name."""
    version: ClassVar[int]
    on_disk: ClassVar[bool] = True
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float16, torch.bfloat16)
    """Dtypes of weights that can be packed; the last is what other weights are rounded to."""
    Options: ClassVar[type[Options]] = Options
    tensor_names: ClassVar[tuple[str, ...]]
    """All names that packed tensors of this format may have, on disk and in a state_dict."""
    checks_as_it_reads: ClassVar[bool] = False
    """Whether on a CPU `transcode` refuses what `check` does, by RuntimeError or FormatError."""
    short_names: ClassVar[tuple[str, ...]] = ()
    """Examples of what `options_named` reads, for messages."""
    reference: ClassVar[Reference]
    _only: ClassVar[Format]

    def __new__(cls) -> Format:
        if "_only" not in cls.__dict__:
            cls._only = super().__new__(cls)
        return cls._only

    # ---- schemes --------------------------------------------------------------------------------

    def scheme(
        self,
        dtype: torch.dtype,
        options: Mapping[str, Any] | None = None,
        version: int | None = None,
    ) -> Scheme:
        """Makes a scheme of this format from plain values, as a file or a user has them.

        Args:
            dtype: Dtype of the unpacked weight.
            options: Options of the format, by name.
            version: Version of the format that wrote the tensors; None: this release's.

        Raises:
            FormatError: For a dtype, an option or a version that the format does not know.
        """
        if version is not None:
            require_version(self.name, version, self.version)
        try:
            typed = self.Options(**(options or {}))
        except ValidationError as error:
            raise FormatError(f"{self.name}{option_complaint(error, self.Options)}") from None
        return Scheme(self, dtype, typed)

    def options_named(self, text: str) -> Mapping[str, Any] | None:
        """Returns the options that a short name of this format stands for; None: it is none.

        Raises:
            FormatError: For what only looks like one.
        """
        return None

    def examples(self) -> tuple[Scheme, ...]:
        """Schemes that stand for all of them in self-tests; a format with options names some."""
        return tuple(self.scheme(dtype) for dtype in self.dtypes)

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        """Drops what a scheme cannot keep from a random weight, for self-tests and tuning.

        An unstructured format keeps everything. A format with a pattern keeps what is largest.
        """
        return weight

    def thin(self, weight: Tensor, scheme: Scheme, density: float) -> Tensor:
        """`conform`, and keeps as much as a density says where the scheme alone does not tell."""
        return self.conform(weight, scheme)

    def options_for(self, weight: Tensor) -> Mapping[str, Any] | None:
        """Options by which the format holds a weight as it is, zeros and all; None: it knows none.

        Args:
            weight: [out_features, in_features].
        """
        return {}

    @abstractmethod
    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        """The packed tensors of a weight, in the order in which ops take them."""

    def nbytes(self, scheme: Scheme, shape: tuple[int, int]) -> int | None:
        """Bytes of a packed weight, where scheme and shape alone tell; None for streams."""
        specs = self.tensors(scheme, shape).values()
        if any(None in spec.shape for spec in specs):
            return None
        return sum(math.prod(n or 0 for n in s.shape) * s.dtype.itemsize for s in specs)

    def is_fixed(self, scheme: Scheme) -> bool:
        """Whether all weights of a shape take the same bytes, and products the same time."""
        return self.nbytes(scheme, (512, 512)) is not None

    # ---- one weight -----------------------------------------------------------------------------

    @abstractmethod
    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        """Packs a dense weight [out_features, in_features], on its device.

        Raises:
            FormatError: For a weight that the scheme cannot hold; see `require_weight`.
        """

    @abstractmethod
    def unpack(self, packed: PackedWeight) -> Tensor:
        """Returns the dense weight, where the packed tensors are."""

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        """Computes `x @ weight.T + bias` from packed tensors (traceable by torch.compile).

        Args:
            x: [..., in_features].
            scheme: The scheme of the tensors.
            shape: (out_features, in_features).
            tensors: The packed tensors by name.
            bias: Optional [out_features].
            plan: Names of `implementations` for numbers of tokens; None: as the ops see fit. A
                format that has one implementation on the device of `tensors` ignores it.
        """
        if not scheme.rounds_activations:
            return self.multiply(x, scheme, shape, tensors, bias, plan)
        assert scheme.quantization is not None
        return scheme.quantization.linear(x, scheme, shape, tensors, bias, plan)

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """`linear`, of activations as they are; a format without value types may define `linear`.

        Sums are multiplied by `tensors[X_SCALES]`, which only a GPU's forms of quantized values are
        given, with x in the 16-bit dtype of the scheme.
        """
        raise NotImplementedError(f"{self.name} defines neither linear nor multiply")

    @abstractmethod
    def check(self, packed: PackedWeight) -> None:
        """Raises FormatError, or RuntimeError inside an op, with the rule that the content breaks.

        Names, dtypes and shapes of the tensors are right when it is called.
        """

    @abstractmethod
    def nonzeros(self, packed: PackedWeight) -> int:
        """Counts the elements other than zero.

        A format that marks what it keeps counts that: also a kept 0, which no packer of ours
        writes.
        """

    # ---- forms ----------------------------------------------------------------------------------

    def pack_prepared(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        """Packs a dense weight into the form that the kernels of its device read.

        By way of the storage form, which refuses what it could not hold when the layer is saved. A
        format that holds any weight may go straight to the runtime form.

        Raises:
            FormatError: As `pack` does.
        """
        return self.pack(weight, scheme).prepare(weight.device)

    def runtime(self, scheme: Scheme, device: torch.device) -> Scheme:
        """The scheme that the kernels of `device` read; by default the storage form itself."""
        return scheme

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """Turns `packed` into another scheme, on `device`.

        By way of the dense weight, unpacked where the tensors are and packed on `device`. A format
        may know a shorter way.
        """
        return target.format.pack(self.unpack(packed).to(device), target).to(device)

    # ---- what all formats ask -------------------------------------------------------------------

    def require_weight(self, weight: Tensor, scheme: Scheme) -> None:
        """Raises FormatError unless `weight` is something that `scheme` can hold."""
        require_dense(weight, scheme, self.name, scheme.dtype)

    def require_tensors(self, packed: PackedWeight) -> None:
        """Raises FormatError unless `packed` has the tensors of its scheme, each as specified.

        All must be contiguous, since kernels take no strides. Reads no element, so tensors may be
        on the meta device.
        """
        require_shape(packed.shape)
        require_tensors(packed.tensors, self.tensors(packed.scheme, packed.shape))

    def __repr__(self) -> str:
        return f"<format {self.name} version {self.version}>"
