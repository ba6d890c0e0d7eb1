# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, under the names that its tensors have in the model.

For loading and for converting alike. Everything here is known from the headers, before any tensor
is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...config import FlashSparseConfig
from ...formats import packed_names
from ...matching import matches
from ...modules import linear_modules, shape_of
from ...names import DENSE
from ...packed import FormatError, PackedWeight
from ...roles import base_name
from ..files.headers import CheckpointError, TensorInfo, natural
from .experts import (
    PackedExperts,
    Stack,
    on_meta,
    packed_expert,
    require_expert,
    stacks_of,
)
from .head import head_of
from .renaming import Names
from .split import ExpertInfo

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

_REMEDY = "The checkpoint is incomplete or damaged: fetch it again, or convert the model again."


@dataclass
class Checkpoint:
    """The tensors of a checkpoint, under the names that they have in the model.

    Attributes:
        packed: Per packed layer its tensors, on the meta device: shapes and dtypes, no data.
        infos: Per packed layer the entries of its tensors in the files.
        dense: Every other tensor that the loader takes as it is, by its name in the model, on the
            meta device too.
        stored_as: The name in the file of each packed layer and of each dense tensor.
        made: Parameters of the model that the loader makes of other tensors (it merges experts
            and splits fused projections), each with the names of these tensors in the file.
        experts: Those of a mixture that are packed.
        stacks: The parameters of the model that are made of experts, packed or dense.
    """

    packed: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    infos: dict[str, dict[str, TensorInfo]] = field(default_factory=dict)
    dense: dict[str, Tensor] = field(default_factory=dict)
    stored_as: dict[str, str] = field(default_factory=dict)
    made: dict[str, list[str]] = field(default_factory=dict)
    experts: PackedExperts = field(default_factory=PackedExperts)
    stacks: dict[str, Stack] = field(default_factory=dict)

    @classmethod
    def read(cls, names: Names, infos: Mapping[str, TensorInfo]) -> Checkpoint:
        """Finds out what the loader makes of each tensor.

        Args:
            names: Those of a skeleton without packed layers.
            infos: The entries of all tensors of the checkpoint, by their names in the files.

        Raises:
            FormatError: For a packed weight that the loader would merge with others or split.
        """
        checkpoint = cls(stacks=stacks_of(names.model, names))
        packed = {
            key: (layer, own)
            for layer, tensors in packed_names(infos).items()
            for own, key in tensors.items()
        }
        for key in sorted(infos, key=natural):
            info = infos[key]
            header = torch.empty(info.shape, dtype=info.dtype, device="meta")
            if key not in packed:
                target, others = names.of(key)
                if isinstance(info, ExpertInfo):
                    others = [info.parameter]
                for other in others:
                    checkpoint.made.setdefault(other, []).append(key)
                if not others:
                    checkpoint.dense[target] = header
                    checkpoint.stored_as[target] = key
                continue
            layer, own = packed[key]
            target, others = names.of(f"{layer}.weight")
            if (expert := packed_expert(layer, target, names, checkpoint.stacks)) is not None:
                checkpoint.experts.add(expert, own, info)
                continue
            if others:
                raise FormatError(
                    f"layer {layer!r} is packed, and transformers makes {target!r} of it, merged "
                    "with others (a mixture of experts) or split, which packed weights cannot be. "
                    "Remedy: convert the model again with these layers ignored."
                )
            name = target.removesuffix(".weight")
            checkpoint.packed.setdefault(name, {})[own] = header
            checkpoint.infos.setdefault(name, {})[own] = info
            checkpoint.stored_as[name] = layer
        checkpoint.experts.require_whole(checkpoint.stacks, checkpoint.made, checkpoint.dense)
        checkpoint._check_names(names)
        return checkpoint

    def _check_names(self, names: Names) -> None:
        """Raises FormatError where the loader would not find a packed tensor by its own name.

        Which layer it belongs to was asked by the name of the dense weight.
        """
        mine = {f"{x}.{own}": each for x, of in self.packed.items() for own, each in of.items()}
        names = names.beside(mine)
        for name, tensors in self.packed.items():
            for own in tensors:
                key = f"{self.stored_as[name]}.{own}"
                target, _ = names.of(key)
                if target != f"{name}.{own}":
                    raise FormatError(
                        f"layer {name!r}: transformers takes its packed tensor {key!r} for "
                        f"{target!r}. Remedy: convert the model again with this layer ignored."
                    )

    def missing(self, model: PreTrainedModel) -> list[str]:
        """Names of linear layers that the checkpoint has in no form, not even tied to another.

        transformers would fill them with random numbers.
        """
        weights = {f"{name}.weight": name for name in linear_modules(model)}
        return [weights[key] for key in self._absent(model, weights)]

    def refuse_incomplete(self, model: PreTrainedModel, ignore: Sequence[str] = ()) -> None:
        """Raises FormatError for a tensor of the model that transformers would make up.

        What is packed must be a whole model. Only a head, which is not part of the base model, and
        a pooler may be missing: a class adds these to a base model, and they are trained later.

        Args:
            model: A skeleton without packed layers.
            ignore: Names and patterns of layers that may be missing, as they are left dense.
        """
        expected = model.state_dict()
        unknown = [
            *(self.stored_as[key] for key in self.dense if key not in expected),
            *(self.stored_as[name] for name in self.packed if f"{name}.weight" not in expected),
        ]
        beside = f" (it has {unknown[0]!r}, which the model lacks)" if unknown else ""
        may_lack = [re.compile(each) for each in model._keys_to_ignore_on_load_missing or ()]
        for key in self._absent(model, expected):
            layer, _, own = key.rpartition(".")
            if _is_own(model, key) or matches(layer, ignore):
                continue
            if any(pattern.search(key) for pattern in may_lack):
                continue
            raise FormatError(
                f"layer {layer!r}: its {own} {list(expected[key].shape)} is not in the "
                f"checkpoint{beside}, and transformers would initialize it at random. Remedy: "
                "fetch the "
                "checkpoint again, or use a release of transformers that knows its names; ignore= "
                "leaves the layer dense and as transformers makes it"
            )

    def _absent(self, model: PreTrainedModel, keys: Iterable[str]) -> list[str]:
        """Those of some tensors of the model that the checkpoint has in no form."""
        known = self.dense.keys() | self.made.keys() | {f"{name}.weight" for name in self.packed}
        known |= self.experts.found.keys()
        aliases = _aliases(model)
        return [key for key in keys if not known & aliases.get(key, {key})]

    def place(
        self, model: PreTrainedModel, config: FlashSparseConfig, ignore: Sequence[str] = ()
    ) -> dict[str, PackedWeight]:
        """Returns the packed layers of a model as the headers describe them.

        A layer that the checkpoint does not have is one that this class of model adds (a new head,
        a pooler, cross-attention), and left to transformers, unless something says that it was
        there: config.json has a packed scheme for it by name, or the checkpoint has the same layer
        in another block of the model.

        Args:
            model: A skeleton without packed layers.
            config: What names the schemes.
            ignore: Names and patterns of layers that config.json or the model calls dense.

        Raises:
            FormatError: Where the model and the checkpoint do not belong together: a tensor is
                missing, of a wrong dtype or there twice, or is packed and no linear layer.
        """
        linears = linear_modules(model)
        head = None if config.head is None else head_of(model, config.head)
        shared = {} if head is None or head.embedding is None else {head.embedding: head.name}
        self._refuse_other_modules(model, {**linears, **shared})
        present = {_kind(name.removesuffix(".weight")) for name in self.dense.keys() | self.packed}
        for name in self.missing(model):
            named = name in config.layers and config.layers[name].format != DENSE
            if named or (_kind(name) in present and not matches(name, ignore)):
                raise FormatError(
                    f"layer {name!r} is not in the checkpoint, neither packed nor dense. {_REMEDY}"
                )
        placed = {
            name: self._layer(name, shape_of(linear), linear.bias is not None, config)
            for name, linear in linears.items()
            if name in self.packed
        }
        for name, own in shared.items():
            if name in self.packed:
                placed[name] = self._layer(name, shape_of(linears[own]), False, config, own)
        return placed

    def place_experts(
        self, config: FlashSparseConfig
    ) -> dict[Stack, dict[tuple[int, str], PackedWeight]]:
        """Returns the packed experts of a model as the headers describe them.

        Raises:
            FormatError: For one whose tensors or shape are not as config.json says.
        """
        placed = {}
        for parameter, experts in self.experts.found.items():
            stack = self.stacks[parameter]
            placed[stack] = {
                key: self._expert(stack, key, infos, config) for key, infos in experts.items()
            }
        return placed

    def _expert(
        self,
        stack: Stack,
        key: tuple[int, str],
        infos: Mapping[str, TensorInfo],
        config: FlashSparseConfig,
    ) -> PackedWeight:
        name, stored = stack.name_of(*key), self.experts.stored[stack.parameter][key]
        scheme = config.scheme_of(name, stored, stack.parameter, stack.module)
        if scheme is None:
            raise FormatError(
                f"expert {name!r} is packed in the checkpoint, and config.json calls it dense. "
                f"{_REMEDY}"
            )
        for info in infos.values():
            require_shape(name, info.weight_shape, stack.shape)
        packed = PackedWeight(scheme, stack.shape, on_meta(infos))
        require_expert(name, packed)
        return packed

    def _layer(
        self,
        name: str,
        shape: tuple[int, int],
        bias: bool,
        config: FlashSparseConfig,
        *others: str,
    ) -> PackedWeight:
        """Returns a packed layer, which may go by other names, as the header describes it."""
        if f"{name}.weight" in self.dense:
            raise FormatError(
                f"layer {name!r} is in the checkpoint twice, packed and dense. {_REMEDY}"
            )
        scheme = config.scheme_of(name, self.stored_as[name], *others)
        if scheme is None:
            raise FormatError(
                f"layer {name!r} is packed in the checkpoint, and config.json calls it dense. "
                f"{_REMEDY}"
            )
        for info in self.infos[name].values():
            require_shape(name, info.weight_shape, shape)
        packed = PackedWeight(scheme, shape, self.packed[name])
        try:
            packed.format.require_tensors(packed)
        except FormatError as error:
            raise FormatError(
                f"layer {name!r}, {scheme.format.name} weight of shape {list(shape)}: {error}. "
                f"{_REMEDY}"
            ) from None
        if bias and f"{name}.bias" not in self.dense.keys() | self.made.keys():
            raise FormatError(f"layer {name!r}: its bias is not in the checkpoint. {_REMEDY}")
        return packed

    def _refuse_other_modules(self, model: nn.Module, linears: Collection[str]) -> None:
        """Raises FormatError where something is packed that is no linear layer in the model."""
        modules = dict(model.named_modules())
        for name in self.packed:
            if name in modules and name not in linears:
                raise FormatError(
                    f"layer {name!r} is packed in the checkpoint, and in the model it is no "
                    f"nn.Linear but {type(modules[name]).__name__}. Is it another model's?"
                )
        if self.packed and not self.packed.keys() & {*linears} and not self.experts.found:
            raise FormatError(
                f"layer {min(self.packed)!r} is packed in the checkpoint, and neither it nor any "
                f"other of the {len(self.packed)} packed layers is in a {type(model).__name__}. "
                "Is it another model's?"
            )


def _kind(name: str) -> str:
    """What the same layers of all blocks of a model share: their name without numbers."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _is_own(model: PreTrainedModel, key: str) -> bool:
    """Whether a tensor is of a part that classes of a model add: a head, or the pooler."""
    base = base_name(model)
    if base is not None and not key.startswith(f"{base}."):
        return True
    return "pooler" in key.split(".")[:-1]


def require_shape(layer: str, own: tuple[int, ...] | None, wanted: tuple[int, int]) -> None:
    """Raises CheckpointError where a file states another shape of a layer than config.json makes.

    Args:
        layer: Its name.
        own: The shape in the file; None where that states none.
        wanted: The shape in the model.
    """
    if own is not None and own != wanted:
        raise CheckpointError(
            f"layer {layer!r}: the weight is {list(own)}, config.json makes it {list(wanted)}. The "
            "two belong to different models: fetch them together again"
        )


def _aliases(model: PreTrainedModel) -> dict[str, set[str]]:
    """For each parameter that is tied to others all of their names."""
    groups: dict[str, set[str]] = {}
    for name, source in model.all_tied_weights_keys.items():
        groups.setdefault(source, {source}).add(name)
    return {name: group for group in groups.values() for name in group}
