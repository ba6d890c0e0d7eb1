# SPDX-License-Identifier: Apache-2.0
"""SparseLinear: nn.Linear on a packed weight of any format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from .data_parallel import ignore_packed_tensors
from .dataflow import plan_of
from .formats import get_format, read_format
from .modules import bias_of, weight_of
from .names import DEFAULT_FORMAT
from .ops.packed_linear import autograd_as_needed
from .packed import FormatError, PackedWeight, Scheme, dtype_name
from .plan import Plan

# A set, since x may be what stands for a tensor in a trace of torch.fx: it is equal to nothing.
_ACTIVATIONS = frozenset({torch.float32, torch.float16, torch.bfloat16})


class SparseLinear(nn.Module):
    """A linear layer whose weight stays packed.

    The weight is held once: in the storage form while it is loaded, saved or offloaded, and after
    `prepare()` in the form that the kernels of its device read. A state_dict always shows the
    storage form, under the names that are on disk.

    The packed tensors are parameters (accelerate offloads those, and not buffers). They keep their
    dtypes under `.half()` and `.to(dtype)`, which are about activations.

    Args:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        scheme: The storage form.
        sizes: Shape of each packed tensor, where they are to be filled in later (on `device`,
            usually "meta"); streams are empty unless given.
        bias: Whether there is a bias [out_features].
        bias_dtype: Dtype of the bias; that of the scheme unless given.
        device: Where to create the empty parameters.

    Attributes:
        scheme: The scheme of the storage form.
        held: The scheme of the tensors as they are now: storage or a runtime form.
        plan: On a GPU, which implementation multiplies how many tokens: `prepare()` resolves it
            (see `dataflow`). None leaves the choice to the format.
        compute_dtype: Dtype of the activations and of `weight`, where a model was loaded in one;
            None: that of the stored values. peft reads it for the dtype of new adapters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        scheme: Scheme,
        *,
        sizes: Mapping[str, tuple[int, ...]] | None = None,
        bias: bool = False,
        bias_dtype: torch.dtype | None = None,
        device: torch.device | str = "meta",
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.scheme = self.held = scheme
        self._names = tuple(scheme.format.tensors(scheme, self.shape))  # as they are held now
        self.plan: Plan | None = None
        self.compute_dtype: torch.dtype | None = None
        for name, spec in scheme.format.tensors(scheme, self.shape).items():
            size = (sizes or {}).get(name, tuple(each or 0 for each in spec.shape))
            empty = torch.empty(size, dtype=spec.dtype, device=device)
            self.register_parameter(name, nn.Parameter(empty, requires_grad=False))
        empty_bias = torch.empty(out_features, dtype=bias_dtype or scheme.dtype, device=device)
        self.bias = nn.Parameter(empty_bias, requires_grad=False) if bias else None

    @classmethod
    def from_packed(cls, packed: PackedWeight, bias: Tensor | None = None) -> SparseLinear:
        """Wraps a packed weight (in a storage form) and prepares it for its device."""
        layer = cls(packed.shape[1], packed.shape[0], packed.scheme)
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
        layer._set_tensors(packed)
        return layer.prepare()

    @classmethod
    def from_linear(
        cls, linear: nn.Module, format: str = DEFAULT_FORMAT, **options: Any
    ) -> SparseLinear:
        """Packs the weight of `linear` bit for bit, as `fs.pack` does.

        `linear` is an nn.Linear, or a layer that computes the same (see `modules.is_linear`).

        Raises:
            FormatError: As `fs.pack` does: for a dtype that the format does not take, too.
        """
        weight = weight_of(linear).detach().contiguous()
        return cls.from_weight(weight, bias_of(linear), format, **options)

    @classmethod
    def from_weight(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        format: str = DEFAULT_FORMAT,
        **options: Any,
    ) -> SparseLinear:
        """Packs a dense weight straight into the form that the kernels of its device read.

        Args:
            weight: [out_features, in_features], of a dtype that the format takes.
            bias: Optional [out_features], taken as it is.
            format: The storage format, into which the layer is turned when it is saved.
            **options: Options of the format.

        Raises:
            FormatError: As `pack` does.
        """
        name, named = read_format(format, options)
        return cls.pack(weight, bias, get_format(name).scheme(weight.dtype, named))

    @classmethod
    def pack(cls, weight: Tensor, bias: Tensor | None, scheme: Scheme) -> SparseLinear:
        """Packs a dense weight by a scheme, straight into the form that its device reads.

        Args:
            weight: [out_features, in_features] in the dtype of the scheme.
            bias: Optional [out_features], taken as it is.
            scheme: The storage form, into which the layer is turned when it is saved.

        Raises:
            FormatError: For a weight that the scheme cannot hold.
        """
        scheme.format.require_weight(weight, scheme)
        layer = cls(weight.shape[1], weight.shape[0], scheme)
        layer._set_tensors(scheme.format.pack_prepared(weight, scheme))
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
        return layer.prepare()

    def to_linear(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """Returns the dense layer with the same weight, in `dtype` (default: as stored)."""
        linear = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        weight = self.packed.unpack().to(dtype or self.scheme.dtype)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if self.bias is not None:
            bias = self.bias.detach().to(dtype or self.bias.dtype)
            linear.bias = nn.Parameter(bias, requires_grad=False)
        return linear

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.out_features, self.in_features

    @property
    def packed(self) -> PackedWeight:
        """The weight in the form in which it is held now."""
        tensors = {name: getattr(self, name).data for name in self._names}
        return PackedWeight(self.held, self.shape, tensors)

    @property
    def weight(self) -> Tensor:
        """The dense weight, unpacked at every access; for code that asks a linear for one.

        Its dtype is that of the activations, as an nn.Linear's is: mamba multiplies by it.
        """
        weight = self.packed.unpack()
        return weight if self.compute_dtype is None else weight.to(self.compute_dtype)

    def storage(self) -> PackedWeight:
        """The weight in its storage form, as a state_dict shows it."""
        return self.packed.transcode(self.scheme)

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
            self.plan = plan_of(packed)
        return self

    def unprepare(self) -> SparseLinear:
        """Brings the weight back into its storage form, which runs anywhere but not as fast."""
        self._set_tensors(self.storage())
        self.plan = None
        return self

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in _ACTIVATIONS:
            return self._forward_other(x)
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x ends in {x.shape[-1]} features, {self} takes {self.in_features}")
        device = "cuda" if x.is_cuda else "cpu"
        if torch.is_autocast_enabled(device) and x.dtype != torch.float64:  # as torch's own linear
            x = x.to(torch.get_autocast_dtype(device))
        # An attribute that nn.Module has to search for takes longer than all other lines here.
        # nn.DataParallel's copies of a module have plain attributes in place of parameters.
        own: dict[str, Any] = self._parameters or self.__dict__
        bias = own.get("bias")
        if bias is None:  # torch.nn.utils.prune computes it, and keeps it as a plain attribute
            bias = self.__dict__.get("bias")
        shape = (self.out_features, self.in_features)
        # A layer without bias has no other parameters than packed tensors.
        are_all = len(own) == len(self._names)
        tensors = own if are_all else {name: own[name] for name in self._names}
        context = autograd_as_needed(x, bias)
        if context is None:
            return PackedWeight(self.held, shape, tensors).linear(x, bias, self.plan)
        with context:
            return self.held.format.linear(x, self.held, shape, tensors, bias, self.plan)

    def _forward_other(self, x: Any) -> Any:
        """Stands for itself in a graph that torch.fx traces; refuses other inputs."""
        if isinstance(x, Proxy):
            tracer: Any = x.tracer
            return tracer.create_proxy("call_module", tracer.path_of_module(self), (x,), {})
        known = ", ".join(sorted(map(dtype_name, _ACTIVATIONS)))
        raise ValueError(
            f"x is {dtype_name(x.dtype)}, and {self} multiplies {known}. Remedy: x.float(), for a "
            f"whole model model.to(torch.float32); a dense model multiplies {dtype_name(x.dtype)}, "
            "model.dequantize()"
        )

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name == "weight_orig":
            raise FormatError(
                f"torch.nn.utils.prune cannot mask the weight of {self}, which is packed without "
                "its zeros. Remedy: prune the dense model, with it or with `flashsparse prune`, "
                "and pack the result; model.dequantize() and SparseLinear.to_linear() give "
                "dense layers back"
            )
        super().register_parameter(name, param)

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, "
        text += f"bias={self.bias is not None}, scheme={self.scheme}"
        packed = self.packed
        if packed.device.type != "meta":
            bits = 8 * packed.nbytes / (self.in_features * self.out_features)
            text += f", {bits:.2f} bits a weight"
        if self.plan is not None and len(self.plan.ranges) > 1:
            text += f", {replace(self.plan, reason='')}"
        return text

    def _set_tensors(self, packed: PackedWeight) -> None:
        for name in self._names:
            self._parameters.pop(name, None)
        self.held, self._names = packed.scheme, tuple(packed.tensors)
        for name, tensor in packed.tensors.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def _apply(self, fn, recurse=True):
        own = {id(self._parameters[name]) for name in self._names}

        def place(tensor: Tensor) -> Tensor:
            """Leaves the dtype of packed tensors alone, which `.half()` would change of scales."""
            moved = fn(tensor)
            if id(tensor) not in own or moved.dtype == tensor.dtype:
                return moved
            return tensor.to(moved.device)

        before = self.packed.device
        if self.compute_dtype is not None:
            self.compute_dtype = fn(torch.empty(0, dtype=self.compute_dtype, device=before)).dtype
        after = fn(torch.empty(0, dtype=torch.int32, device=before)).device
        if before in (after, torch.device("meta")):
            return super()._apply(place, recurse)
        # A device of another kind reads another form: go through the storage form.
        if self.held != self.scheme.format.runtime(self.scheme, after):
            self.unprepare()
            own = {id(self._parameters[name]) for name in self._names}
        return super()._apply(place, recurse).prepare()

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, tensor in self.storage().tensors.items():
            destination[prefix + name] = tensor
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        names = tuple(self.scheme.format.tensors(self.scheme, self.shape))
        missing = [prefix + name for name in names if prefix + name not in state_dict]
        if missing:
            missing_keys.extend(missing)
        else:
            tensors = {name: state_dict[prefix + name] for name in names}
            packed = PackedWeight(self.scheme, self.shape, tensors)
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


ignore_packed_tensors(SparseLinear, lambda layer: layer._names)
