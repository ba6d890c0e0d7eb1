# SPDX-License-Identifier: Apache-2.0
"""What a tensor of a file is called in a model, and what is made of it there.

Prefixes come and go, old names are renamed, fused tensors are split. Only transformers knows how,
so its own loader's renaming is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel


_EXPERT = re.compile(r".*\.\*\.(\w+)\.weight\$?")  # a pattern of one projection of any expert


class Names:
    """transformers' own answer to what a tensor of a file becomes in a model.

    Args:
        model: The model.
        state: Its tensors by name, of which the names alone count; None: its `state_dict()`.
    """

    def __init__(self, model: PreTrainedModel, state: Mapping[str, Tensor] | None = None):
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        transforms: list[Any] = get_model_conversion_mapping(model)
        self.renamings = [entry for entry in transforms if isinstance(entry, WeightRenaming)]
        self.converters = [entry for entry in transforms if isinstance(entry, WeightConverter)]
        self.model, self.prefix = model, model.base_model_prefix
        self.skeleton = dict(model.state_dict() if state is None else state)

    def beside(self, tensors: Mapping[str, Tensor]) -> Names:
        """The same for a model that has these tensors, too."""
        other = copy(self)
        other.skeleton = {**self.skeleton, **tensors}
        return other

    def of(self, key: str) -> tuple[str, list[str]]:
        """Returns a tensor's name in the model, and what the loader makes of it and of others.

        The list is empty for a tensor that the loader takes as it is.
        """
        target, pattern = self._renamed(key)
        if pattern is None:
            return target, []
        first, *more = self._converter(pattern).target_patterns
        return target, [target, *(target.replace(first, other) for other in more)]

    def projections(self, parameter: str) -> tuple[str, ...]:
        """Of which weights of one expert the loader makes a parameter that holds all experts.

        Args:
            parameter: Its name in the model: "model.layers.0.mlp.experts.gate_up_proj".

        Returns:
            The last parts of their names on disk in the order in which they are put one below the
            other: ("gate_proj", "up_proj"); none where experts are stored otherwise.
        """
        for each in self.converters:
            (target, *others), kinds = (
                each.target_patterns,
                [type(x).__name__ for x in each.operations],
            )
            found = [_EXPERT.fullmatch(pattern) for pattern in each.source_patterns]
            merged = kinds == ["MergeModulelist", "Concatenate"][: len(kinds)] and kinds
            if (
                others
                or not merged
                or not all(found)
                or not f".{parameter}".endswith(target if target.startswith(".") else f".{target}")
            ):
                continue
            if len(found) == 1 or (len(kinds) == 2 and each.operations[1].dim == 1):
                return tuple(match[1] for match in found if match is not None)
        return ()

    def turned(self, key: str, shape: tuple[int, ...]) -> bool | None:
        """Whether the loader transposes each matrix of a tensor with the matrices of all experts.

        None where it makes anything else of the tensor, or the model has another shape.

        Args:
            key: Its name in the file.
            shape: Its shape there, of three dimensions.
        """
        target, pattern = self._renamed(key)
        wanted = tuple(self.skeleton[target].shape) if target in self.skeleton else ()
        if pattern is None:
            return False if shape == wanted else None
        converter = self._converter(pattern)
        if len(converter.source_patterns) + len(converter.target_patterns) > 2:
            return None
        (operation, *others) = converter.operations or [None]
        if others or type(operation).__name__ != "Transpose":
            return None
        if {operation.dim0, operation.dim1} != {1, 2}:
            return None
        if getattr(operation, "check_dims", False) and shape == wanted:
            return False
        return True if (shape[0], shape[2], shape[1]) == wanted else None

    def in_files(self, parameter: str, tensor: Tensor) -> str:
        """What transformers calls a parameter of the model in the files that it writes."""
        from transformers.core_model_loading import revert_weight_conversion

        (name,) = revert_weight_conversion(self.model, {parameter: tensor})
        return str(name)

    def parts(self, key: str, tensor: Tensor) -> dict[str, Tensor]:
        """What the loader makes of one tensor alone, by names in the model.

        Args:
            key: Its name in the file, of which `of` says that something is made.
            tensor: The tensor, or one like it on the meta device.
        """
        target, pattern = self._renamed(key)
        assert pattern is not None
        converter = deepcopy(self._converter(pattern))
        converter.add_tensor(target, key, pattern, tensor)
        made = converter.convert(target, model=self.model, config=self.model.config)
        return {name: part[0] if isinstance(part, list) else part for name, part in made.items()}

    def _renamed(self, key: str) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        target, pattern = rename_source_key(
            key, self.renamings, self.converters, self.prefix, self.skeleton
        )
        if target not in self.skeleton and key in self.skeleton:
            target, pattern = rename_source_key(key, [], [], self.prefix, self.skeleton)
        return target, pattern

    def _converter(self, pattern: str) -> Any:
        return next(each for each in self.converters if pattern in each.source_patterns)
