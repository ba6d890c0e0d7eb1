# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are experts, each a weight by itself.

In the model all experts of a layer are one parameter, `experts.gate_up_proj`. On disk many families
have a tensor for each projection of each expert, `experts.7.gate_proj.weight`, which transformers
merges; others have the parameter as it is. Packed, experts of both go by names of the first kind.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ...expert_layout import SIDES, Layout, experts_of, layout_of
from ...packed import FormatError, PackedWeight
from ..files.headers import TensorInfo
from .renaming import Names

_STORED = re.compile(r"(?P<stack>.+)\.(?P<number>\d{1,6})\.(?P<projection>\w+)", re.ASCII)
_REMEDY = "The checkpoint is incomplete or damaged: fetch it again, or convert the model again."


@dataclass(frozen=True)
class Expert:
    """One projection of one expert.

    Attributes:
        parameter: The parameter of the model that it is a part of.
        number: Which expert.
        projection: Its name on disk: "gate_proj", "w1".
        stored: Its name on disk, whole.
        shape: (out_features, in_features).
    """

    parameter: str
    number: int
    projection: str
    stored: str
    shape: tuple[int, int]

    @property
    def module(self) -> str:
        """The name of the module of experts in the model."""
        return self.parameter.rpartition(".")[0]

    @property
    def name(self) -> str:
        """A name as if it were a module: model.layers.3.mlp.experts.7.gate_proj."""
        return f"{self.module}.{self.number}.{self.projection}"


@dataclass(frozen=True)
class Stack:
    """A parameter of the model that is made of experts.

    Attributes:
        parameter: Its name.
        experts: How many.
        projections: Names of the projections that each expert has in it, in order, as on disk.
        shape: (out_features, in_features) of a projection.
        layout: How the parameter keeps them.
    """

    parameter: str
    experts: int
    projections: tuple[str, ...]
    shape: tuple[int, int]
    layout: Layout = Layout()

    @property
    def module(self) -> str:
        """The name of the module of experts in the model."""
        return self.parameter.rpartition(".")[0]

    @property
    def own(self) -> str:
        """The name of the parameter in its module."""
        return self.parameter.rpartition(".")[2]

    def name_of(self, number: int, projection: str) -> str:
        """A name as if it were a module: model.layers.3.mlp.experts.7.gate_proj."""
        return f"{self.module}.{number}.{projection}"

    def parameter_of(self, experts: torch.Tensor) -> torch.Tensor:
        """The parameter as the model keeps it.

        Args:
            experts: [experts, projections * out_features, in_features], the rows of a projection
                together.
        """
        return self.layout.parameter(experts.unflatten(1, (len(self.projections), -1)))

    def named(self) -> Iterable[tuple[int, str]]:
        """Each expert and projection, in order."""
        return ((n, each) for n in range(self.experts) for each in self.projections)


def stacks_of(model: nn.Module, names: Names) -> dict[str, Stack]:
    """The parameters of a model that hold experts, but for classes that multiply in their own way.

    Args:
        model: Dense, at least the skeleton.
        names: What its tensors are called in files.
    """
    found: dict[str, Stack] = {}
    for parameter, weight in experts_of(model).items():
        module, _, own = parameter.rpartition(".")
        layout = layout_of(model.get_submodule(module))
        projections = names.projections(parameter) or SIDES.get(own, ())
        if weight.dim() != 3 or not projections or layout is None:
            continue
        if weight.shape[2 if layout.transposed else 1] % len(projections) == 0:
            count, _, *shape = layout.matrices(weight, len(projections)).shape
            found[parameter] = Stack(parameter, count, projections, (shape[0], shape[1]), layout)
    modules = {stack.module for stack in found.values()}
    whole = {  # a module whose other weights are none of these stays as it is
        module
        for module in modules
        if all(
            f"{module}.{own}" in found
            for own, each in model.get_submodule(module).named_parameters(recurse=False)
            if each.dim() == 3
        )
    }
    return {name: stack for name, stack in found.items() if stack.module in whole}


def packed_expert(
    stored: str, target: str, names: Names, stacks: Mapping[str, Stack]
) -> Expert | None:
    """Which expert a packed layer of a file is; None where it is none.

    Where experts are one tensor in the files of a family, transformers knows of no others.

    Args:
        stored: The name of the layer in the file.
        target: What transformers would make of its dense weight.
        names: Those of the model.
        stacks: Those of the model.
    """
    if target in stacks:
        return expert_of(stored, target, stacks)
    renamed = target.removesuffix(".weight")  # HY-V4's files have other names for projections
    found = _STORED.fullmatch(renamed)
    if found is None:
        return None
    owns = (own for own, projections in SIDES.items() if found["projection"] in projections)
    targets = (names.of(f"{found['stack']}.{own}")[0] for own in owns if stacks)
    parameter = next((each for each in targets if each in stacks), "")
    expert = expert_of(renamed, parameter, stacks)
    return None if expert is None else replace(expert, stored=stored)


def expert_of(stored: str, parameter: str, stacks: Mapping[str, Stack]) -> Expert | None:
    """Which expert of a stack a layer of a file is; None where it is none.

    Args:
        stored: The name of the layer in the file.
        parameter: The parameter that it is a part of.
        stacks: Those of the model.
    """
    stack, found = stacks.get(parameter), _STORED.fullmatch(stored)
    if stack is None or found is None or found["projection"] not in stack.projections:
        return None
    return Expert(parameter, int(found["number"]), found["projection"], stored, stack.shape)


@dataclass
class PackedExperts:
    """The packed experts of a checkpoint.

    Attributes:
        found: By parameter, number and projection, the entries of the packed tensors.
        stored: By the same, the name in the file.
    """

    found: dict[str, dict[tuple[int, str], dict[str, TensorInfo]]] = field(default_factory=dict)
    stored: dict[str, dict[tuple[int, str], str]] = field(default_factory=dict)

    def add(self, expert: Expert, own: str, info: TensorInfo) -> None:
        """Takes note of one packed tensor.

        Raises:
            FormatError: For one that is there under another name, too.
        """
        key = (expert.number, expert.projection)
        stored = self.stored.setdefault(expert.parameter, {})
        if stored.setdefault(key, expert.stored) != expert.stored:
            raise FormatError(
                f"expert {expert.name!r} is in the checkpoint twice, as {stored[key]!r} and as "
                f"{expert.stored!r}. {_REMEDY}"
            )
        tensors = self.found.setdefault(expert.parameter, {})
        tensors.setdefault(key, {})[own] = info

    def require_whole(
        self,
        stacks: Mapping[str, Stack],
        made: Mapping[str, Iterable[str]],
        whole: Container[str],
    ) -> None:
        """Raises FormatError unless each expert of each packed stack is there, once.

        Args:
            stacks: Those of the model.
            made: By parameter, names in the file of dense weights that become parts of it.
            whole: Parameters that the file has as they are.
        """
        modules = {stacks[parameter].module for parameter in self.found}
        for stack in stacks.values():
            if stack.module not in modules:
                continue
            own = self.found.get(stack.parameter, {})
            dense = [
                expert_of(name.removesuffix(".weight"), stack.parameter, stacks)
                for name in made.get(stack.parameter, ())
            ]
            if stack.parameter in whole or None in dense:
                raise FormatError(
                    f"experts {stack.parameter!r} are in the checkpoint dense, and experts of "
                    f"{stack.module!r} are packed: those of a layer are packed or dense together. "
                    f"{_REMEDY}"
                )
            beside = {(x.number, x.projection) for x in dense if x is not None}
            for number, projection in own:
                if number >= stack.experts:
                    raise FormatError(
                        f"expert {number} of {stack.module!r} ({projection}) is packed, and the "
                        f"model has {stack.experts} experts there. Is it another model's?"
                    )
            for key in stack.named():
                where = stack.name_of(*key)
                if key in beside:
                    both = key in own
                    how = "twice, packed and dense" if both else "dense, and others are packed"
                    raise FormatError(
                        f"expert {where!r} {list(stack.shape)} is in the checkpoint {how}: the "
                        f"experts of a layer are packed or dense together. {_REMEDY}"
                    )
                if key not in own:
                    raise FormatError(
                        f"expert {where!r} {list(stack.shape)} is not in the checkpoint, and "
                        f"others of {stack.module!r} are packed. {_REMEDY}"
                    )


def require_expert(name: str, packed: PackedWeight) -> None:
    """Raises FormatError unless the headers of an expert's tensors are as its scheme says."""
    try:
        packed.format.require_tensors(packed)
    except FormatError as error:
        raise FormatError(
            f"expert {name!r}, {packed.format.name} weight of shape {list(packed.shape)}: {error}. "
            f"{_REMEDY}"
        ) from None


def on_meta(infos: Mapping[str, TensorInfo]) -> dict[str, torch.Tensor]:
    """What headers say of tensors, without data."""
    return {
        own: torch.empty(info.shape, dtype=info.dtype, device="meta") for own, info in infos.items()
    }
