# SPDX-License-Identifier: Apache-2.0
"""What `save_pretrained` writes of a packed model.

transformers gives tensors the names, and joins them into the tensors, that the original checkpoint
had (`revert_weight_conversion`). Packed tensors may be renamed. Joined they would be streams one
after the other, which nothing can read, so layers that were split while loading stay apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from torch import Tensor
from transformers.core_model_loading import WeightConverter, revert_weight_conversion

from flashsparse_plugin.checkpoint.files.checksums import checksum
from flashsparse_plugin.checkpoint.files.headers import CHECKSUM
from flashsparse_plugin.checkpoint.read.renaming import Names
from flashsparse_plugin.experts.layer import sparse_experts, stacks_in
from flashsparse_plugin.packed import FormatError, PackedWeight

from .layers import has_offload_hook, sparse_layers, stored_weight

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel


def state_and_metadata(model: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What is saved of a model, and the checksums of its packed tensors for the files' metadata.

    transformers asks before it cuts the tensors into files, so each file has the checksums of all,
    and before it gives them the names of the original checkpoint, if it does: a checksum stands
    there under both names. From here on the model no longer knows the conversions that would join
    packed tensors, so dense layers that these would join are saved apart, too.

    Raises:
        FormatError: For a packed layer that would not be found under the name that it gets.
    """
    state, packed, metadata = model.state_dict(), {}, {}
    layer_of: dict[str, str] = {}
    for name, layer in sparse_layers(model):
        tensors = {
            own: state[f"{name}.{own}"]
            for own in layer.scheme.format.tensors(layer.scheme, layer.shape)
        }
        packed |= {f"{name}.{own}": tensor for own, tensor in tensors.items()}
        layer_of |= dict.fromkeys((f"{name}.{own}" for own in tensors), name)
        weight = PackedWeight(layer.scheme, layer.shape, tensors)
        if has_offload_hook(layer):
            weight = stored_weight(layer)
        metadata |= {f"{name}.{own}": checksum(weight, own) for own in tensors}
    experts = dict(_experts(model, state))
    for (own, key), weight in experts.items():
        packed[f"{key}.{own}"], layer_of[f"{key}.{own}"] = weight.tensors[own], key
        metadata[f"{key}.{own}"] = checksum(weight, own)
    _forget_converters(model, packed)
    renamed = {id(tensor): key for key, tensor in revert_weight_conversion(model, packed).items()}
    keys = {name: renamed.get(id(tensor), name) for name, tensor in packed.items()}
    names = Names(model, state)
    apart = {f"{key}.{own}" for own, key in experts}
    for name, key in keys.items():
        if name not in apart and names.of(key) != (name, []):
            raise FormatError(
                f"layer {layer_of[name]!r}: its tensor {name!r} would be saved as {key!r}, and "
                f"transformers would load that as {names.of(key)[0]!r}. Remedy: "
                "save_pretrained(..., save_original_format=False), or `flashsparse convert`"
            )
    metadata |= {key: metadata[name] for name, key in keys.items()}
    return state, {CHECKSUM + name: value for name, value in metadata.items()}


def _experts(
    model: PreTrainedModel, state: Mapping[str, Tensor]
) -> Iterator[tuple[tuple[str, str], PackedWeight]]:
    """Yields packed experts by the name of a tensor and of the expert, with their tensors."""
    for name, module in sparse_experts(model):
        for stack in stacks_in(module):
            rows, columns = stack.shape
            shape = (rows // len(stack.projections), columns)
            own = tuple(stack.scheme.format.tensors(stack.scheme, shape))
            for number in range(stack.stack.experts):
                for projection in stack.projections:
                    key = f"{name}.{number}.{projection}"
                    tensors = {each: state[f"{key}.{each}"] for each in own}
                    for each in own:
                        yield (each, key), PackedWeight(stack.scheme, shape, tensors)


def _forget_converters(model: PreTrainedModel, packed: Collection[str]) -> None:
    """Removes those conversions of a model whose way back would take any of some tensors."""
    known = getattr(model, "_weight_conversions", None)
    if known is None:
        return
    model._weight_conversions = [
        each
        for each in known
        if not isinstance(each, WeightConverter) or not _takes_any(each.reverse_transform(), packed)
    ]


def _takes_any(converter: WeightConverter, names: Collection[str]) -> bool:
    return any(converter.rename_source_key(name)[1] is not None for name in names)
