# SPDX-License-Identifier: Apache-2.0
"""SparseLinear: nn.Linear on a packed weight of any format."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .dataflow import sparse_tokens
from .formats import get_format
from .packed import Format, FormatError, PackedWeight


class SparseLinear(nn.Module):
    """A linear layer whose weight stays packed.

    The weight is held once: in the storage form while it is loaded, saved or offloaded, and after
    `prepare()` in the form that the kernels of its device read. A state_dict always shows the
    storage form, under the names that are on disk.

    On a GPU `sparse_tokens` is the most tokens that are multiplied by the packed weight as it is,
    and not by the unpacked one: `prepare()` resolves it (see `dataflow`). None leaves it to the op.

    The packed tensors are parameters (accelerate offloads those, and not buffers), and integers,
    so `.half()` and `.to(dtype)` leave them alone.

    Args:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        format: The storage format, by name or as an object.
        weight_dtype: float16 or bfloat16.
        sizes: Shape of each packed tensor, where they are to be filled in later (on `device`,
            usually "meta"); empty unless given.
        bias: Whether there is a bias [out_features].
        bias_dtype: Its dtype; `weight_dtype` unless given.
        options: Options of the format.
        device: Where to create the empty parameters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        format: str | Format = "tiled_csl",
        weight_dtype: torch.dtype = torch.bfloat16,
        sizes: Mapping[str, tuple[int, ...]] | None = None,
        bias: bool = False,
        bias_dtype: torch.dtype | None = None,
        options: Mapping[str, int] | None = None,
        device: torch.device | str = "meta",
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.format = get_format(format) if isinstance(format, str) else format
        self.form = self.format  # of the tensors as they are now: storage or a runtime form
        self.sparse_tokens: int | None = None
        self.weight_dtype = weight_dtype
        self.options = dict(options or {})
        for name, dtype in self.format.dtypes.items():
            empty = torch.empty((sizes or {}).get(name, 0), dtype=dtype, device=device)
            self.register_parameter(name, nn.Parameter(empty, requires_grad=False))
        empty_bias = torch.empty(out_features, dtype=bias_dtype or weight_dtype, device=device)
        self.bias = nn.Parameter(empty_bias, requires_grad=False) if bias else None

    @classmethod
    def from_packed(cls, packed: PackedWeight, bias: Tensor | None = None) -> SparseLinear:
        """Wraps a packed weight (in a storage form) and prepares it for its device."""
        layer = cls(
            packed.shape[1],
            packed.shape[0],
            format=packed.format,
            weight_dtype=packed.dtype,
            options=packed.options,
        )
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
        layer._set_tensors(packed)
        return layer.prepare()

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, format: str = "tiled_csl", **options: int
    ) -> SparseLinear:
        """Packs the weight of `linear`; float32 weights are rounded to bfloat16 first."""
        weight = linear.weight.detach()
        if weight.dtype == torch.float32:
            weight = weight.to(torch.bfloat16)
        return cls.from_weight(weight, linear.bias, format, **options)

    @classmethod
    def from_weight(
        cls, weight: Tensor, bias: Tensor | None = None, format: str = "tiled_csl", **options: int
    ) -> SparseLinear:
        """Packs a dense weight straight into the form that the kernels of its device read.

        Args:
            weight: [out_features, in_features], float16 or bfloat16.
            bias: Optional [out_features], taken as it is.
            format: The storage format, into which the layer is turned when it is saved.
            **options: Options of the format.

        Raises:
            FormatError: As `pack` does.
        """
        storage = get_format(format)
        layer = cls(
            *reversed(weight.shape), format=storage, weight_dtype=weight.dtype, options=options
        )
        try:
            layer._set_tensors(storage.runtime(weight.device).pack(weight, **options))
        except TypeError as error:
            raise FormatError(
                f"{format} cannot be packed with options {options}: {error}"
            ) from None
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
        return layer.prepare()

    def to_linear(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """Returns the dense layer with the same weight, in `dtype` (default: as stored)."""
        linear = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        weight = self.weight.to(dtype or self.weight_dtype)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if self.bias is not None:
            bias = self.bias.detach().to(dtype or self.bias.dtype)
            linear.bias = nn.Parameter(bias, requires_grad=False)
        return linear

    @property
    def packed(self) -> PackedWeight:
        """The weight in the form in which it is held now."""
        tensors = {name: getattr(self, name).data for name in self.form.tensor_names}
        shape = (self.out_features, self.in_features)
        return PackedWeight(self.form, tensors, shape, self.weight_dtype, self.options)

    @property
    def weight(self) -> Tensor:
        """The dense weight, unpacked at every access; for code that asks a linear for one."""
        return self.packed.unpack()

    def storage(self) -> PackedWeight:
        """The weight in its storage form, as a state_dict shows it."""
        packed = self.packed
        if self.form is self.format:
            return packed
        device = packed.device
        return packed.to("cpu").transcode(self.format).to(device)

    def validate(self, name: str | None = None) -> SparseLinear:
        """Proves the stored tensors sound; see `PackedWeight.validate`."""
        self.packed.validate(name)
        return self

    def prepare(self) -> SparseLinear:
        """Turns the weight into the form that the kernels of its device read.

        Raises:
            TableError: Where there is a table for this GPU that cannot be read.
        """
        packed = self.packed
        if packed.device.type != "meta":
            packed = packed.prepare(packed.device)
            self._set_tensors(packed)
            flow = sparse_tokens(packed)
            self.sparse_tokens = flow.most if flow else None
        return self

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x ends in {x.shape[-1]} features, {self} takes {self.in_features}")
        tensors = {name: getattr(self, name) for name in self.form.tensor_names}
        return self.form.linear(
            x, tensors, self.out_features, self.weight_dtype, self.bias, self.sparse_tokens
        )

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, "
        text += f"bias={self.bias is not None}, format={self.format.name}"
        packed = self.packed
        if packed.device.type != "meta":
            bits = 8 * packed.nbytes / (self.in_features * self.out_features)
            text += f", density={packed.density:.1%}, {bits:.2f} bits a weight"
        if self.sparse_tokens is not None:
            text += f", sparse_tokens={self.sparse_tokens}"
        return text

    def _set_tensors(self, packed: PackedWeight) -> None:
        for name in self.form.tensor_names:
            self._parameters.pop(name, None)
        self.form = packed.format
        for name, tensor in packed.tensors.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def _apply(self, fn, recurse=True):
        before = self.packed.device
        after = fn(torch.empty(0, dtype=torch.int32, device=before)).device
        if before in (after, torch.device("meta")):
            return super()._apply(fn, recurse)
        # A device of another kind reads another form: go through the storage form.
        if self.form is not self.format.runtime(after):
            self._set_tensors(self.storage())
        return super()._apply(fn, recurse).prepare()

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, tensor in self.storage().tensors.items():
            destination[prefix + name] = tensor
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        names = self.format.tensor_names
        missing = [prefix + name for name in names if prefix + name not in state_dict]
        if missing:
            missing_keys.extend(missing)
        else:
            tensors = {name: state_dict[prefix + name] for name in names}
            shape = (self.out_features, self.in_features)
            packed = PackedWeight(self.format, tensors, shape, self.weight_dtype, self.options)
            device = self.packed.device
            try:
                packed = packed.validate(prefix.removesuffix("."))
            except FormatError as error:
                error_msgs.append(str(error))
            else:
                target = packed.device if device.type == "meta" else device
                self._set_tensors(packed.prepare(target))
                self.prepare()
        if self.bias is not None:
            key = prefix + "bias"
            if key not in state_dict:
                missing_keys.append(key)
            elif self.bias.device.type == "meta":
                self.bias = nn.Parameter(state_dict[key].detach(), requires_grad=False)
            elif state_dict[key].shape != self.bias.shape:
                error_msgs.append(f"{key} must be {list(self.bias.shape)}")
            else:
                with torch.no_grad():
                    self.bias.copy_(state_dict[key])
        known = {prefix + name for name in (*names, *self._parameters)}
        if strict:
            unexpected_keys.extend(
                key for key in state_dict if key.startswith(prefix) and key not in known
            )
