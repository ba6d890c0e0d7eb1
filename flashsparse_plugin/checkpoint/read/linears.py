# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are the weights of linear layers.

Names do not tell: an embedding and a router are 2-D `*.weight` too. So the model is built by
transformers without memory (on the meta device) and asked for its linear layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...config import FlashSparseConfig
from ...expert_layout import experts_of
from ...matching import matches
from ...modules import is_linear, is_transposed, shape_of, why_not_linear
from ...names import LM_HEAD
from ...packed import FormatError
from ...roles import heads, is_called_router, routers
from ..files.headers import CheckpointError, TensorInfo
from .directory import ModelDirectory
from .experts import Expert, Stack, expert_of, stacks_of
from .head import head_of
from .isolation import modules_bounded, nothing_fetched, use_plain_implementations
from .renaming import Names
from .split import split_experts, split_weights
from .stored import Checkpoint, require_shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Linear:
    """One linear layer of the model and where the checkpoint keeps it.

    Attributes:
        name: Name of the module, as in `named_modules()`.
        stored: Its name in the checkpoint; None where that has no weight for it alone (a head that
            is tied to the embedding).
        shape: (out_features, in_features).
        tied_to: Another parameter that is the same tensor, if any.
        is_head: Whether it is an output head, whatever its name: of tokens, or of classes.
        is_router: Whether it weighs experts.
        is_transposed: Whether its dense weight is kept as [in_features, out_features].
        why_dense: Why it cannot be packed; None where it can.
        expert: For a projection of an expert, which all experts of its layer are one parameter
            with in the model: where it is. Its name is not that of a module.
    """

    name: str
    stored: str | None
    shape: tuple[int, int]
    tied_to: str | None = None
    is_head: bool = False
    is_router: bool = False
    is_transposed: bool = False
    why_dense: str | None = None
    expert: Expert | None = None

    @property
    def kind(self) -> str:
        """What layers of one sort share: "q_proj", "experts.gate_proj"."""
        if self.expert is not None:
            return f"{kind_of(self.expert.module)}.{self.expert.projection}"
        return kind_of(self.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it goes by in a configuration, the most exact one first."""
        own = (self.name, *filter(None, [self.stored]))
        expert = self.expert
        return own if expert is None else (*own, expert.parameter, expert.module)

    @property
    def shape_stored(self) -> tuple[int, int]:
        """Shape of the dense weight as the checkpoint keeps it."""
        rows, columns = self.shape
        return (columns, rows) if self.is_transposed else self.shape

    def turned(self, weight: Tensor) -> Tensor:
        """Turns a dense weight from [out_features, in_features] to how it is kept, or back."""
        return weight.T.contiguous() if self.is_transposed else weight

    def goes_by(self, ignore: Sequence[str]) -> bool:
        """Whether names or patterns mean this layer; "lm_head" means a head of any name."""
        return (self.is_head and LM_HEAD in ignore) or matches(self.name, ignore)


def kind_of(name: str) -> str:
    parts = name.split(".")
    start = next((i for i in reversed(range(len(parts))) if not parts[i].isdecimal()), 0)
    return ".".join(parts[start:])


def build_on_meta(directory: ModelDirectory) -> PreTrainedModel:
    """Builds the model that config.json describes, without memory for its weights.

    Nothing is fetched, and nothing of the checkpoint is run.

    Raises:
        CheckpointError: Where transformers is missing or does not know the model, and for a model
            that is far larger than its files.
    """
    return build_config_on_meta(directory.path, len(directory.tensors))


def build_config_on_meta(path: Path, tensors: int | None = None) -> PreTrainedModel:
    """Builds the model that a config.json describes, whether or not there are weights beside it.

    Args:
        path: The directory of the config.json.
        tensors: How many tensors its files have, which bounds the model; None for no files.

    Raises:
        CheckpointError: As `build_on_meta` does.
    """
    try:
        with nothing_fetched(), modules_bounded(tensors), torch.device("meta"):
            config = config_of(path)
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            use_plain_implementations(config)
            return model_class(config)(config)
    except CheckpointError:
        raise
    except Exception as error:
        raise _unknown(path, error) from error


def config_of(path: Path) -> Any:
    """The configuration of a model directory, as transformers reads it; no code of it is run.

    Raises:
        CheckpointError: Where transformers is missing or does not know the model.
    """
    try:
        import transformers
    except ImportError:
        raise CheckpointError(
            "this needs transformers: pip install transformers accelerate"
        ) from None
    try:
        return transformers.AutoConfig.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise _unknown(path, error) from error


def _unknown(path: Path, error: Exception) -> CheckpointError:
    import transformers

    return CheckpointError(
        f"transformers {transformers.__version__} cannot build the model of {path} "
        f"({type(error).__name__}: {_shortened(error)}). A newer transformers may know it; models "
        "that bring their own code are not supported"
    )


def _shortened(error: Exception) -> str:
    """What transformers says, without the lists of all that it knows."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200].rpartition(' ')[0]} ..."


def model_class(config: Any) -> type[PreTrainedModel]:
    """The class of transformers that a checkpoint was saved from, which `architectures` names.

    A checkpoint that names none is taken for the causal language model of its configuration, or
    else for the bare model.

    Args:
        config: The configuration, of transformers.

    Raises:
        CheckpointError: Where transformers has no such class.
    """
    import transformers

    names = getattr(config, "architectures", None)
    for name in names if isinstance(names, list) else []:
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    for known in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
        if type(config) in known:
            return known[type(config)]
    raise CheckpointError(f"transformers has no model of type {config.model_type!r}")


class StoredModel:
    """A model directory as transformers sees it.

    Args:
        directory: The directory.
        split: Show the weights of linear layers, and of experts, that the files hold in one tensor
            as one each.

    Attributes:
        directory: The directory, as it is shown.
        model: The model on the meta device, without memory for its weights.
        names: What its tensors are called in files.
        checkpoint: The tensors of the directory by their names in the model.
        linears: The linear layers, and what only looks like one.

    Raises:
        CheckpointError: Where a weight has another shape than config.json says, or the checkpoint
            knows none of the model's linear layers.
        FormatError: For a packed weight that is part of another in the model.
    """

    def __init__(self, directory: ModelDirectory, split: bool = False):
        self.directory, self.model = directory, build_on_meta(directory)
        self.names = Names(self.model)
        if split:
            stacks = stacks_of(self.model, self.names)
            tensors = split_experts(self.names, directory.tensors, stacks)
            self.directory = directory.with_tensors(split_weights(self.names, tensors))
        self.checkpoint = Checkpoint.read(self.names, self.directory.tensors)
        self.linears = [*self._linears(), *self._experts()]
        if not any(linear.stored for linear in self.linears):
            raise CheckpointError(
                f"{type(self.model).__name__} has {len(self.linears)} linear layers and "
                f"{directory.path} has a weight for none of them: there is nothing here that can "
                "be packed"
            )

    def _linears(self) -> Iterator[Linear]:
        names_of: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names_of.setdefault(id(parameter), []).append(name)
        answering, routing = heads(self.model), routers(self.model)
        for name, module in self.model.named_modules():
            if not (is_linear(module) or isinstance(module, nn.Linear)):
                continue
            weight = f"{name}.weight"
            stored = self._stored_as(name)
            same = [other for other in names_of[id(module.weight)] if other != weight]
            shared = next(
                (x for x in same if x.removesuffix(".weight") in self.checkpoint.packed), ""
            )
            if shared:  # a head whose weight is packed, which serves the embedding, too
                stored = self.checkpoint.stored_as[shared.removesuffix(".weight")]
            linear = Linear(
                name,
                stored,
                shape_of(module),
                same[0] if same and not shared else None,
                name in answering,
                name in routing or (not is_linear(module) and is_called_router(self.model, name)),
                is_transposed(module),
                self._why_dense(name, module, stored),
            )
            info = self.directory.tensors.get(f"{stored}.weight")
            if info is not None:
                require_shape(name, info.shape, linear.shape_stored)
            owner = shared.removesuffix(".weight") or name
            for packed in self.checkpoint.infos.get(owner, {}).values():
                require_shape(name, packed.weight_shape, linear.shape)
            yield linear

    def _experts(self) -> Iterator[Linear]:
        """Yields each projection of each expert that is a tensor of its own, or packed as one."""
        checkpoint = self.checkpoint
        for stack in checkpoint.stacks.values():
            stored = dict(checkpoint.experts.stored.get(stack.parameter, {}))
            for key in checkpoint.made.get(stack.parameter, ()):
                name = key.removesuffix(".weight")
                expert = expert_of(name, stack.parameter, checkpoint.stacks)
                if expert is not None and name != key:
                    place = (expert.number, expert.projection)
                    if stored.setdefault(place, name) != name:
                        raise CheckpointError(
                            f"expert {expert.name!r} is in {self.directory.path} twice, as "
                            f"{stored[place]!r} and as {name!r}: fetch the model again"
                        )
            if not stored:
                continue  # all experts are one tensor, and not shown by themselves
            for number, projection in {*stored} - {*stack.named()}:
                raise CheckpointError(
                    f"{stored[number, projection]!r} in {self.directory.path} is expert {number}, "
                    f"and {stack.module!r} has {stack.experts}: the two belong to different "
                    "models, fetch them together again"
                )
            for number, projection in stack.named():
                yield self._expert(stack, number, projection, stored)

    def _expert(
        self, stack: Stack, number: int, projection: str, stored: Mapping[tuple[int, str], str]
    ) -> Linear:
        name = stored.get((number, projection))
        if name is None:
            raise CheckpointError(
                f"expert {number} of {stack.module!r} has no {projection} {list(stack.shape)} in "
                f"{self.directory.path}. The checkpoint is incomplete: fetch it again"
            )
        expert = Expert(stack.parameter, number, projection, name, stack.shape)
        if (info := self.directory.tensors.get(f"{name}.weight")) is not None:
            require_shape(expert.name, info.shape, stack.shape)
        packed = self.checkpoint.experts.found.get(stack.parameter, {})
        for each in packed.get((number, projection), {}).values():
            require_shape(expert.name, each.weight_shape, stack.shape)
        return Linear(expert.name, name, stack.shape, expert=expert)

    def _stored_as(self, name: str) -> str | None:
        """The name of a layer in the checkpoint; a dense weight may go by any name there."""
        known = self.checkpoint.stored_as
        if name in self.checkpoint.packed:
            return known[name]
        weight = known.get(f"{name}.weight", "")
        return weight.removesuffix(".weight") if weight.endswith(".weight") else None

    def _why_dense(self, name: str, module: nn.Module, stored: str | None) -> str | None:
        if not is_linear(module):
            return why_not_linear(module)
        weight = f"{name}.weight"
        if weight in self.checkpoint.made:
            return "transformers makes it of a tensor of the checkpoint that holds other layers too"
        if stored is None and weight in self.checkpoint.stored_as:
            return f"stored as {self.checkpoint.stored_as[weight]}, and not as a weight"
        return "not in the checkpoint" if stored is None else None

    def place_head(self, config: FlashSparseConfig) -> None:
        """Gives the output head the scheme that `config.head` asks for, tied or not.

        A tied head then stands for the weight of its embedding.

        Raises:
            CheckpointError: For a head that cannot be packed so.
        """
        if config.head is None:
            return
        try:
            head = head_of(self.model, config.head)
            config.place_head(head.name)
        except FormatError as error:
            raise CheckpointError(f"{self.directory.path}: {error}") from None
        if head.embedding is None:
            return
        key = self.checkpoint.stored_as.get(f"{head.embedding}.weight", "")
        if not key.endswith(".weight") or f"{head.name}.weight" in self.checkpoint.stored_as:
            raise CheckpointError(
                f"{self.directory.path}: layer {head.name!r}: head={config.head!r} packs the "
                f"weight of {head.embedding!r}, to which it is tied, and the files have another "
                "one, or the head's own. Remedy: load the model and save it again with "
                "transformers, or leave head (--head) out"
            )
        stored = key.removesuffix(".weight")
        for index, linear in enumerate(self.linears):
            if linear.name == head.name:
                why = None if is_linear(self.model.get_submodule(head.name)) else linear.why_dense
                made = replace(linear, stored=stored, tied_to=None, why_dense=why)
                self.linears[index] = made

    def missing(self) -> list[str]:
        """Names of linear layers that the checkpoint has in no form, not even tied to another."""
        return self.checkpoint.missing(self.model)

    def unfit(self) -> dict[str, str]:
        """Names of layers that can be neither pruned nor packed, and why; without routers."""
        left = [x for x in self.linears if not x.tied_to and not x.is_router]
        return {x.name: x.why_dense for x in left if x.why_dense}

    def routers(self) -> list[str]:
        """Names of the linear layers that weigh experts; those that are no linear layers apart."""
        return [x.name for x in self.linears if x.is_router and not x.why_dense]

    def experts(self) -> list[TensorInfo]:
        """The tensors of the directory that hold dense weights of experts."""
        made, taken = self.checkpoint.made, self.checkpoint.stored_as
        keys = set()
        for name in experts_of(self.model):
            keys.update(made.get(name, [taken.get(name, "")]))
        return [info for info in self.directory.tensors.values() if info.name in keys]


def find_linears(directory: ModelDirectory) -> list[Linear]:
    """Lists the linear layers of the model with their place in the checkpoint.

    Raises:
        CheckpointError, FormatError: As `StoredModel` does.
    """
    return StoredModel(directory).linears
