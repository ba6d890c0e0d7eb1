# SPDX-License-Identifier: Apache-2.0
"""Packed experts in the place of dense ones, in a model of transformers.

A class of experts that transformers decorates has its weights in two parameters of three
dimensions. Here each becomes a `PackedStack`, and the class a subclass of itself (`sparse_class`)
with a forward of ours. All else stays the model's: its activation, its gate, its biases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..data_parallel import ignore_packed_tensors
from ..expert_layout import Layout, layout_of
from ..packed import FormatError, PackedWeight, Routed, Scheme
from .activations import SWIGLUOAI, Activation, gated
from .op import loop, multiply
from .stack import ExpertStack

# The activations of transformers by their class, and that of `F` that they stand for.
_ACTIVATIONS = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "ReLU": "relu",
    "ReLUSquaredActivation": "relu2",
}
GATED = "_default_apply_gate"
"""transformers' own gate: the activation of the first half, times the second."""


def activation_of(module: Any) -> Activation | None:
    """What a model's module of experts applies; None for something of its own.

    A class with a gate of its own (gpt-oss, DeepSeek-V4, MiniMax-M3) is asked for its values: what
    gives the same at all points, beyond the limit too, is the same.
    """
    name = _ACTIVATIONS.get(type(getattr(module, "act_fn", None)).__name__)
    if not module.has_gate or type(module)._apply_gate.__name__ == GATED:
        return None if name is None else Activation(name)
    limit, alpha = _number(module, "limit", 0.0), _number(module, "alpha", 1.702)
    points = torch.linspace(-2, 2, 9, dtype=torch.float64) * max(limit, 1.0)
    gate, up = (each.flatten()[None] for each in torch.meshgrid(points, points, indexing="ij"))
    layout = layout_of(module)
    assert layout is not None  # or it would not be packed
    try:
        own = _gate(module, layout, torch.cat([gate, up], 1))
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None
    for known in (SWIGLUOAI, name or "silu"):
        wanted = gated(gate, up, known, limit, alpha)
        if own.shape == wanted.shape and torch.allclose(own.double(), wanted, rtol=1e-9):
            return Activation(known, limit, alpha)
    return None


def _number(module: Any, name: str, default: float) -> float:
    """A number that models call so, or with a prefix."""
    own = getattr(module, name, getattr(module, f"swiglu_{name}", None))
    return float(own) if isinstance(own, float | int) else default


class PackedStack(nn.Module):
    """The packed weights of all experts of one projection, or of two that are one parameter.

    The state_dict of the module of experts shows each expert and each projection by itself in the
    storage form, under the names that are on disk: `experts.7.gate_proj.weight_packed`.

    Args:
        stack: The weights, in the storage form.
        projections: Names of the projections that are one below the other in each expert, as on
            disk; they have as many rows.

    Attributes:
        scheme: The scheme of the storage form.
    """

    def __init__(self, stack: ExpertStack, projections: Sequence[str]):
        super().__init__()
        self.scheme, self.projections = stack.scheme, tuple(projections)
        self._hold(stack.prepare(stack.device, len(self.projections)))

    @property
    def held(self) -> Scheme:
        """The scheme of the tensors as they are now."""
        return self._stack.scheme

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features) of an expert, of all its projections."""
        return self._stack.shape

    @property
    def stack(self) -> ExpertStack:
        """The weights in the form in which they are held now."""
        tensors = {name: self._parameters[name] for name in self._names}
        own = self._stack
        return ExpertStack(own.scheme, own.shape, tensors, own.bounds, own.sides, own.written)  # type: ignore[arg-type]

    def storage(self) -> Iterator[tuple[str, PackedWeight]]:
        """Each projection of each expert in its storage form, by names such as "7.gate_proj"."""
        held, format = self.stack, self.scheme.format
        rows, columns = self.shape
        each = rows // len(self.projections)
        for number in range(held.experts):
            whole = held.expert(number).transcode(self.scheme)
            for place, name in enumerate(self.projections):
                own = range(place * each, (place + 1) * each)
                yield f"{number}.{name}", format.cut(whole, own, range(columns))

    def extra_repr(self) -> str:
        stack = self.stack
        bits = 8 * stack.nbytes * stack.scheme.dtype.itemsize / max(stack.dense_nbytes, 1)
        return f"{stack.experts} x {list(self.shape)}, {self.scheme}, {bits:.2f} bits a weight"

    def _hold(self, stack: ExpertStack) -> None:
        self._parameters.clear()
        self._stack, self._names = replace(stack, tensors={}), tuple(stack.tensors)
        for name, tensor in stack.tensors.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def _apply(self, fn, recurse=True):
        """Moves the tensors, whose dtypes stay; another kind of device reads another form."""
        after = fn(torch.empty(0, dtype=torch.int32, device=self.stack.device)).device
        if after.type == "meta":
            raise FormatError("packed experts cannot be moved to the meta device")
        if after != self.stack.device:
            sides = len(self.projections)
            self._hold(self.stack.transcode(self.scheme).prepare(after, sides))
        return self

    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Takes the experts of a state_dict, each proved sound.

        Args:
            tensors: By names such as "7.gate_proj.weight_packed".
            where: The name of the module, for messages.

        Raises:
            FormatError: For an expert that is not there, or is not valid.
        """
        rows, columns = self.shape
        shape, format = (rows // len(self.projections), columns), self.scheme.format
        parts = []
        for number in range(self.stack.experts):
            own = []
            for projection in self.projections:
                name = f"{number}.{projection}"
                keys = {key: f"{name}.{key}" for key in format.tensors(self.scheme, shape)}
                found = {key: tensors[each] for key, each in keys.items() if each in tensors}
                own.append(PackedWeight(self.scheme, shape, found).validate(f"{where}.{name}"))
            parts.append(format.join(own))
        self._hold(ExpertStack.of(parts).prepare(self.stack.device, len(self.projections)))

    # The module above shows and takes experts, whose names begin with its own.

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        pass

    def _load_from_state_dict(self, *args):
        pass


class SparseExperts(nn.Module):
    """What a subclass of a model's class of experts multiplies by, where they are packed."""

    def forward(
        self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
    ) -> Tensor:
        up, layout = self.gate_up_proj if self.has_gate else self.up_proj, layout_of(self)
        assert layout is not None  # or it would not be packed
        biases: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.has_bias:
            own = self.gate_up_proj_bias if self.has_gate else self.up_proj_bias
            biases = (layout.gate_first(own, len(up.projections)), self.down_proj_bias)
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        ids, weights = (each.reshape(len(x), -1) for each in (top_k_index, top_k_weights))
        act, stacks = self._activation, (up.stack, self.down_proj.stack)
        if act is not None and not (torch.is_grad_enabled() and x.requires_grad):
            own = {"limit": act.limit, "alpha": act.alpha}
            y = multiply(x, ids, weights, *stacks, act.name, *biases, **own)
        else:  # autograd sees each product, which has a gradient of its own
            act = partial(_gate, self, layout) if self.has_gate else self.act_fn
            batch = Routed(x, ids, weights, "", w13_bias=biases[0], w2_bias=biases[1])
            y = loop(batch, *stacks, act)
        return y.view(hidden_states.shape)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for stack in stacks_in(self):
            for name, packed in stack.storage():
                for own, tensor in packed.tensors.items():
                    destination[f"{prefix}{name}.{own}"] = tensor

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        own = {key: each for key, each in state_dict.items() if key.startswith(prefix)}
        for stack in stacks_in(self):
            names = tuple(f".{projection}." for projection in stack.projections)
            experts = {k: v for k, v in own.items() if any(name in k for name in names)}
            own = {key: each for key, each in own.items() if key not in experts}
            try:
                found = {key.removeprefix(prefix): each for key, each in experts.items()}
                stack.load(found, prefix.removesuffix("."))
            except FormatError as error:
                error_msgs.append(str(error))
        super()._load_from_state_dict(
            own, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _gate(module: Any, layout: Layout, both: Tensor) -> Tensor:
    """A model's own gate, of the outputs of gate and up side by side."""
    return module._apply_gate(layout.as_in_module(both))


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def sparse_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The subclass of a model's class of experts whose weights are packed."""
    if kind not in _CLASSES:
        own = {"__module__": kind.__module__}
        _CLASSES[kind] = type(f"Sparse{kind.__name__}", (SparseExperts, kind), own)
    return _CLASSES[kind]


def pack_module(module: nn.Module, stacks: Mapping[str, PackedStack]) -> None:
    """Puts packed weights in the place of a module's parameters, and its class aside for ours.

    Args:
        module: Of experts, of a class of the model.
        stacks: By the name of the parameter; all of its projections.
    """
    for own, stack in stacks.items():
        module._parameters.pop(own, None)
        setattr(module, own, stack)
    if not isinstance(module, SparseExperts):
        module.__class__ = sparse_class(type(module))
    object.__setattr__(module, "_activation", activation_of(module))


def unpack_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Gives a module its dense parameters and its own class back."""
    for own, stack in list(module.named_children()):
        if isinstance(stack, PackedStack):
            rows = stack.stack.unpack().to(dtype).unflatten(1, (len(stack.projections), -1))
            layout = layout_of(module)
            assert layout is not None  # or it would not be packed
            weight = layout.parameter(rows)
            delattr(module, own)
            module.register_parameter(own, nn.Parameter(weight, requires_grad=False))
    if isinstance(module, SparseExperts):
        module.__class__ = type(module).__mro__[2]


def stacks_in(module: nn.Module) -> list[PackedStack]:
    """The packed weights of a module of experts."""
    return [child for child in module.children() if isinstance(child, PackedStack)]


def sparse_experts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of packed experts by name; the model may be changed meanwhile."""
    yield from [(name, m) for name, m in model.named_modules() if isinstance(m, SparseExperts)]


ignore_packed_tensors(PackedStack, lambda stack: stack._names)
