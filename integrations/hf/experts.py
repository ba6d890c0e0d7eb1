# SPDX-License-Identifier: Apache-2.0
"""Packed experts of transformers' models: loaded by us, since its loader merges them as tensors.

Experts are packed one by one, and streams of packed values have different lengths, which no merge
of transformers can stack. So the packed tensors are kept from its loader, read once all others are
in their place, one layer at a time, and validated before they are multiplied.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.integrations.accelerate import get_device

from flashsparse_plugin.checkpoint.files.checksums import verify
from flashsparse_plugin.checkpoint.files.explanations import about_experts
from flashsparse_plugin.checkpoint.files.headers import TensorInfo
from flashsparse_plugin.checkpoint.read.experts import Stack
from flashsparse_plugin.checkpoint.read.shapes import experts_in
from flashsparse_plugin.checkpoint.read.stored import Checkpoint
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.dataflow.choice import Choice, Pattern, choose_experts
from flashsparse_plugin.dataflow.expected import Target
from flashsparse_plugin.experts import ExpertStack, PackedStack, why_dense
from flashsparse_plugin.experts.layer import (
    activation_of,
    pack_module,
    sparse_experts,
    stacks_in,
)
from flashsparse_plugin.formats.values.dtypes import fitted
from flashsparse_plugin.matching import matches
from flashsparse_plugin.messages import one_line
from flashsparse_plugin.packed import FormatError, PackedWeight, Scheme
from flashsparse_plugin.pruning import prune_for

from .layers import is_offloaded

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

logger = logging.getLogger(__name__)

DENSE_ON_GPU = (
    "flashsparse: experts stay dense on %s: %s, and one launch for each expert is slower than "
    'dense. FlashSparseConfig(experts="packed") packs them all the same'
)


@dataclass
class PackedOnDisk:
    """The packed experts of a checkpoint, from the skeleton of the model to the loaded one.

    Attributes:
        stacks: Per parameter of the model, its experts as the headers describe them.
        infos: Per parameter, expert and projection, the entries of the tensors in the files.
    """

    stacks: dict[Stack, dict[tuple[int, str], PackedWeight]] = field(default_factory=dict)
    infos: dict[str, dict[tuple[int, str], dict[str, TensorInfo]]] = field(default_factory=dict)

    @classmethod
    def place(
        cls, model: PreTrainedModel, checkpoint: Checkpoint, config: FlashSparseConfig
    ) -> PackedOnDisk:
        """Takes the parameters out of the skeleton, so that transformers does not make them up.

        Raises:
            FormatError: For an expert that is not as config.json says.
        """
        stacks = checkpoint.place_experts(config)
        unexpected = model._keys_to_ignore_on_load_unexpected or ()
        ignored = set(unexpected)
        for stack in stacks:
            module = model.get_submodule(stack.module)
            module._parameters.pop(stack.own, None)
            module._is_hf_initialized = True
            ignored.add(rf"^{re.escape(stack.parameter)}_")
            ignored.add(rf"^{re.escape(stack.module)}\.\d+\.")
        if stacks:
            model._keys_to_ignore_on_load_unexpected = ignored
        return cls(stacks, checkpoint.experts.found)

    def load(
        self,
        model: PreTrainedModel,
        config: FlashSparseConfig,
        dtype: torch.dtype,
        device_map: Mapping[str, Any] | None,
    ) -> None:
        """Reads, proves sound and places the experts of the loaded model, a layer at a time.

        Raises:
            FormatError: For an expert that is not valid, and a checksum that differs.
            ValueError: For experts that a device map would offload.
        """
        found: dict[str, dict[str, PackedStack]] = {}
        told: set[str | None] = set()
        schemes = {
            stack: next(iter(headers.values())).scheme for stack, headers in self.stacks.items()
        }
        for stack, headers in self.stacks.items():
            if is_offloaded(dict(device_map) if device_map else None, stack.parameter):
                raise ValueError(
                    f"{stack.module!r} is offloaded by the device map, and packed experts cannot "
                    'be. Remedy: device_map="cpu", or `flashsparse unpack`'
                )
            device = torch.device(_device_of(model, device_map, stack.parameter))
            experts = self._read(stack, headers)
            module = model.get_submodule(stack.module)
            why = _why_dense(module, schemes, stack, device, dtype)
            if config.dequantize or _stay_dense(config, why, device, told):
                weight = stack.parameter_of(experts.unpack()).to(device=device, dtype=dtype)
                module.register_parameter(stack.own, nn.Parameter(weight, requires_grad=False))
                continue
            own = found.setdefault(stack.module, {})
            own[stack.own] = PackedStack(
                experts.transcode(experts.scheme, device), stack.projections
            )
        for name, stacks in found.items():
            pack_module(model.get_submodule(name), stacks)

    def _read(self, stack: Stack, headers: Mapping[tuple[int, str], PackedWeight]) -> ExpertStack:
        """The experts of one parameter, each proved sound before they are joined."""
        infos, parts = self.infos[stack.parameter], []
        for number in range(stack.experts):
            own = []
            for projection in stack.projections:
                key, name = (number, projection), stack.name_of(number, projection)
                tensors = {each: info.read() for each, info in infos[key].items()}
                packed = replace(headers[key], tensors=tensors).validate(name)
                verify(name, packed, infos[key])
                own.append(packed)
            parts.append(own[0].format.join(own))
        return ExpertStack.of(parts)


@dataclass
class PackingExperts:
    """The experts of a dense checkpoint, packed as transformers hands them over, merged.

    Attributes:
        config: How to prune and pack.
        targets: By the parameter of the model, what it is made of and how to pack it.
        waiting: By module, what is packed until its other projections are.
        dense: By module, why its experts stay dense.
        chosen: By module whose format is open, what was chosen by the first of its parameters.
    """

    config: FlashSparseConfig
    targets: dict[str, tuple[Stack, Scheme]] = field(default_factory=dict)
    waiting: dict[str, dict[str, PackedStack]] = field(default_factory=dict)
    dense: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Choice] = field(default_factory=dict)

    def choose(
        self,
        model: PreTrainedModel,
        stacks: Iterable[Stack],
        device_map: Mapping[str, Any] | None,
        dtype: torch.dtype,
    ) -> None:
        """Notes which experts are to be packed.

        Args:
            model: The skeleton.
            stacks: Experts that it has.
            device_map: Where its modules will be; None: in main memory.
            dtype: Of the activations.
        """
        config, schemes = self.config, dict[Stack, Scheme]()
        told: set[str | None] = set()
        for stack in stacks:
            named = config.named(stack.parameter, stack.module)
            first = stack.name_of(0, stack.projections[0])
            if named is None and matches(first, config.ignore):
                continue
            if (scheme := config.scheme_of(stack.parameter, stack.module)) is None:
                continue
            schemes[stack] = scheme
        for stack, scheme in schemes.items():
            device = get_device(dict(device_map), stack.parameter) if device_map else "cpu"
            module = model.get_submodule(stack.module)
            why = _why_dense(module, schemes, stack, torch.device(_plain(device)), dtype)
            if self._is_open(stack) or not _stay_dense(config, why, device, told):
                self.targets[stack.parameter] = (stack, scheme)

    def _is_open(self, stack: Stack) -> bool:
        """Whether the format of an expert is chosen by its weights."""
        return self.config.is_open and self.config.named(stack.parameter, stack.module) is None

    def _choose_format(self, model: PreTrainedModel, stack: Stack, weight: Tensor) -> None:
        """Chooses for all experts of a module, by the first expert of one parameter."""
        own = [each for each, _ in self.targets.values() if each.module == stack.module]
        experts = experts_in(model.config, own)
        first = stack.layout.matrices(weight[:1], len(stack.projections))[0]
        target = Target.of(weight.device, weight.dtype, self.config.batch)
        patterns = [Pattern.of(each.contiguous()) for each in first]
        choice = choose_experts(patterns, experts, weight.dtype, target)
        self.chosen[stack.module] = choice
        if choice.scheme is None:
            self.dense[stack.module] = choice.why
        else:
            for each in own:
                self.targets[each.parameter] = (each, choice.scheme)

    def pack(
        self, model: PreTrainedModel, name: str, weight: Tensor, dtype: torch.dtype | None
    ) -> dict[str, Tensor]:
        """Packs all experts of one parameter; puts a module's in their place with the last one.

        Returns:
            The tensors that transformers has to place: those of experts that stay dense.
        """
        stack, _ = self.targets[name]
        if self._is_open(stack) and stack.module not in self.chosen:
            self._choose_format(model, stack, weight)
        _, scheme = self.targets[name]
        module = model.get_submodule(stack.module)
        if stack.module not in self.dense:
            try:
                packed = self._packed(stack, scheme, weight)
            except _StayDenseError as error:
                self.dense[stack.module] = str(error)
                if stack.module in self.chosen:
                    self.chosen[stack.module] = Choice(None, f"experts: {error}")
        if stack.module in self.dense:
            loaded = {name: weight.to(dtype or weight.dtype)}
            for own, other in self.waiting.pop(stack.module, {}).items():
                dense = self.targets[f"{stack.module}.{own}"][0].parameter_of(other.stack.unpack())
                made = nn.Parameter(dense.to(dtype or weight.dtype), requires_grad=False)
                made._is_hf_initialized = True
                module.register_parameter(own, made)
            return loaded
        ready = self.waiting.setdefault(stack.module, {})
        ready[stack.own] = packed
        names = {each.own for each, _ in self.targets.values() if each.module == stack.module}
        if ready.keys() == names:
            pack_module(module, self.waiting.pop(stack.module))
            module._is_hf_initialized = True
            for parameter in module.parameters():
                if parameter.device.type != "meta":
                    parameter._is_hf_initialized = True
        return {}

    def _packed(self, stack: Stack, scheme: Scheme, weight: Tensor) -> PackedStack:
        sides, (rows, columns) = len(stack.projections), stack.shape
        shape = (stack.experts, sides * rows, columns)
        wanted = [shape[0], shape[2], shape[1]] if stack.layout.transposed else [*shape]
        if list(weight.shape) != wanted:
            raise FormatError(
                f"experts {stack.parameter!r}: the checkpoint has {list(weight.shape)}, the model "
                f"{wanted}. Is it another model's?"
            )
        parts = []
        for number, expert in enumerate(stack.layout.matrices(weight, sides)):
            own = [
                self._one(stack, scheme, number, projection, each)
                for projection, each in zip(stack.projections, expert, strict=True)
            ]
            parts.append(scheme.format.join(own))
        return PackedStack(ExpertStack.of(parts), stack.projections)

    def _one(
        self, stack: Stack, scheme: Scheme, number: int, projection: str, weight: Tensor
    ) -> PackedWeight:
        name, weight = stack.name_of(number, projection), weight.contiguous()
        if self.config.pruning == "magnitude":
            weight = prune_for(weight, scheme, self.config.sparsity, name)
        weight = fitted(weight, scheme, name)
        try:
            packed = scheme.format.pack(weight, scheme)
        except FormatError as error:
            if number == 0 or self._is_open(stack):
                raise _StayDenseError(f"without the zeros of {scheme.title}") from None
            raise FormatError(f"expert {name!r} {list(weight.shape)}: {error}") from None
        if number == 0 and packed.nbytes > 1.01 * packed.dense_nbytes:
            raise _StayDenseError("larger packed than dense")
        return packed

    def report(self) -> None:
        """Says which experts stay dense because of their weights."""
        for reason in dict.fromkeys(self.dense.values()):
            names = [
                name
                for name, (stack, _) in self.targets.items()
                if self.dense.get(stack.module) == reason
            ]
            told = about_experts(f"{len(names)} tensors", min(names), "packed", reason)
            logger.warning("flashsparse: %s", one_line(told))


class _StayDenseError(Exception):
    """Why the experts of a layer stay dense."""


def packed_stacks(model: nn.Module) -> list[PackedStack]:
    """All stacks of packed experts of a model."""
    return [stack for _, module in sparse_experts(model) for stack in stacks_in(module)]


def _why_dense(
    module: nn.Module,
    schemes: Mapping[Stack, Scheme],
    stack: Stack,
    device: torch.device,
    dtype: torch.dtype,
) -> str | None:
    """Why the experts of a module would have no kernel of their own; None where they have one."""
    own = [scheme for each, scheme in schemes.items() if each.module == stack.module]
    activation = activation_of(module) if module.has_gate else None
    name = None if activation is None else activation.name
    return why_dense(own, stack.experts, device, name, dtype)


def _stay_dense(
    config: FlashSparseConfig, why: str | None, device: Any, told: set[str | None]
) -> bool:
    """Whether experts stay dense. Says why if that is not the user's choice, each reason once.

    Args:
        config: The user's choice, or "auto".
        why: Of `_why_dense`.
        device: Of the experts.
        told: The reasons that were said.
    """
    if not config.experts_stay_dense(why is None):
        return False
    if config.experts == "auto" and why not in told:
        logger.warning(DENSE_ON_GPU, device, why)
        told.add(why)
    return True


def _plain(device: Any) -> str:
    """A device of a device map, where a number is one of CUDA's, and "disk" is none."""
    return (
        f"cuda:{device}" if isinstance(device, int) else "cpu" if device == "disk" else str(device)
    )


def _device_of(
    model: PreTrainedModel, device_map: Mapping[str, Any] | None, name: str
) -> torch.device | str:
    if device_map:
        return _plain(get_device(dict(device_map), name))
    return next(p.device for p in model.parameters() if p.device.type != "meta")
