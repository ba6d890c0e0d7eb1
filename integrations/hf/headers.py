# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, read from its safetensors headers before any tensor is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from flashsparse_plugin.checkpoint.reader import TensorInfo, read_headers, require_inside
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.formats import packed_names
from flashsparse_plugin.packed import FormatError, PackedWeight

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

_REMEDY = "The checkpoint is incomplete or damaged: fetch it again, or convert the model anew."


@dataclass
class Checkpoint:
    """The layers of a checkpoint, under the names that they have in the model.

    Attributes:
        packed: Per packed layer its tensors, on the meta device: shapes and dtypes, no data.
        dense: Every other tensor by name, on the meta device too.
        infos: Per packed layer the entries of its tensors in the files.
        stored_as: Per packed layer its name in the file, where that is another.
        merged: Whether the loader merges or splits tensors of this checkpoint.
    """

    packed: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    dense: dict[str, torch.Tensor] = field(default_factory=dict)
    infos: dict[str, dict[str, TensorInfo]] = field(default_factory=dict)
    stored_as: dict[str, str] = field(default_factory=dict)
    merged: bool = False

    @classmethod
    def read(cls, model: PreTrainedModel, files: Iterable[str]) -> Checkpoint:
        """Reads the headers of `files` for `model`, a skeleton whose linears are all nn.Linear.

        Raises:
            FormatError: For a file that is no whole safetensors file or not in the model's
                directory, or a packed weight that the loader would merge with others.
        """
        transforms = get_model_conversion_mapping(model)
        renamings = [entry for entry in transforms if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in transforms if isinstance(entry, WeightConverter)]
        skeleton = model.state_dict()
        checkpoint = cls()
        paths = [Path(file) for file in files]
        headers = _headers(paths, _home(model, paths))
        packed = {
            key: (layer, own)
            for layer, tensors in packed_names(headers).items()
            for own, key in tensors.items()
        }
        for key, info in headers.items():
            tensor = torch.empty(info.shape, dtype=info.dtype, device="meta")
            layer, name = packed.get(key, ("", ""))
            is_packed = key in packed
            # The loader's own renaming (prefixes, old names), asked for the weight's dense name.
            target, converter = rename_source_key(
                f"{layer}.weight" if is_packed else key,
                renamings,
                converters,
                model.base_model_prefix,
                skeleton,
            )
            if not is_packed:
                checkpoint.dense[target] = tensor
                checkpoint.merged |= converter is not None
            elif converter is not None:
                raise FormatError(
                    f"layer {layer!r} is packed, and transformers merges it with others into "
                    f"{target!r} (a mixture of experts), which packed weights cannot be. Remedy: "
                    "convert the model anew with these layers ignored."
                )
            else:
                own = target.removesuffix(".weight")
                checkpoint.packed.setdefault(own, {})[name] = tensor
                checkpoint.infos.setdefault(own, {})[name] = info
                checkpoint.stored_as[own] = layer
        return checkpoint

    def layer(
        self, name: str, shape: tuple[int, int], bias: bool, config: FlashSparseConfig
    ) -> PackedWeight | None:
        """Returns a packed layer as the header describes it, or None where it is not packed.

        Args:
            name: The layer's name in the model.
            shape: (out_features, in_features) in the model.
            bias: Whether the model's layer has a bias.
            config: What names the scheme.

        Raises:
            FormatError: Where a tensor is missing, of a wrong dtype, or there twice.
        """
        tensors = self.packed.get(name)
        if tensors is None:
            return None
        if f"{name}.weight" in self.dense:
            raise FormatError(
                f"layer {name!r} is in the checkpoint twice, packed and dense. {_REMEDY}"
            )
        scheme = config.scheme_of(name, self.stored_as[name])
        if scheme is None:
            raise FormatError(
                f"layer {name!r} is packed in the checkpoint, and config.json calls it dense. "
                f"{_REMEDY}"
            )
        packed = PackedWeight(scheme, shape, tensors)
        try:
            packed.format.require_tensors(packed)
        except FormatError as error:
            raise FormatError(
                f"layer {name!r}, {scheme.format.name} weight of shape {list(shape)}: {error}. "
                f"{_REMEDY}"
            ) from None
        if bias and f"{name}.bias" not in self.dense:
            raise FormatError(f"layer {name!r}: its bias is not in the checkpoint. {_REMEDY}")
        return packed

    def refuse_other_modules(self, model: PreTrainedModel, linears: Mapping[str, object]) -> None:
        """Raises FormatError where something is packed that is no linear layer in the model."""
        modules = dict(model.named_modules())
        for name in self.packed:
            if name in modules and name not in linears:
                raise FormatError(
                    f"layer {name!r} is packed in the checkpoint, and in the model it is no "
                    f"nn.Linear but {type(modules[name]).__name__}. Is it another model's?"
                )

    def require(self, name: str) -> None:
        """Raises FormatError where a layer is neither packed nor dense: transformers would fill
        it with random numbers."""
        if not self.merged and f"{name}.weight" not in self.dense:
            raise FormatError(
                f"layer {name!r} is not in the checkpoint, neither packed nor dense. {_REMEDY}"
            )


def _headers(files: list[Path], home: Path) -> dict[str, TensorInfo]:
    """The entries of all tensors of the files.

    Raises:
        CheckpointError: For a file outside of `home`, or one that is no whole safetensors file.
    """
    for path in files:
        require_inside(path, home)
    return read_headers(files)


def _home(model: PreTrainedModel, files: list[Path]) -> Path:
    """The directory that a model is loaded from: the user's, or a snapshot in the Hub's cache."""
    named = Path(model.config.name_or_path or "")
    return files[0].parent if files and not named.is_dir() else named
