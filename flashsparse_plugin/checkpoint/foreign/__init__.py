# SPDX-License-Identifier: Apache-2.0
"""Layouts in which other tools keep the dense weights of pruned models.

A layout names the tensors that it has for a weight, and gives the weight. Whoever reads a model
directory sees that weight, under the name that a dense checkpoint would have for it; nothing but
this folder knows of layouts. A new one is a file here and an entry in `LAYOUTS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from torch import Tensor

from ...packed import FormatError
from .layout import Bitmask, Layout
from .prune_mask import PruneMask
from .sparse_24_bitmask import Sparse24Bitmask
from .sparse_bitmask import SparseBitmask

LAYOUTS: Final[dict[str, Bitmask]] = {
    layout.name: layout for layout in (SparseBitmask(), Sparse24Bitmask())
}
"""By the names that compressed-tensors has for them in `sparsity_config`."""

PRUNE_MASK: Final = PruneMask("weight")
"""Of which no config.json tells."""

PRUNE_MASKS: Final = (PRUNE_MASK, PruneMask("bias"))

_ALL: Final[tuple[Layout, ...]] = (*LAYOUTS.values(), *PRUNE_MASKS)
_PARAMETER_OF = {part: layout.parameter for layout in _ALL for part in layout.parts}


def weight_name(prefix: str, parameter: str = "weight") -> str:
    """The name of the weight, or other parameter, that tensors of a layout are kept for.

    compressed-tensors names them after the module, up to release 0.8 after the parameter.
    """
    return prefix if prefix.endswith((".weight", ".bias")) else f"{prefix}.{parameter}"


def find_foreign(names: Iterable[str]) -> dict[str, tuple[Layout, dict[str, str]]]:
    """Finds the weights among tensor names that are kept in a layout.

    Args:
        names: Names of all tensors of a checkpoint.

    Returns:
        For each weight, by its own name, its layout, and the names of its tensors by part.

    Raises:
        FormatError: For a weight of which there are some tensors and others not, or that is there
            as it is, too.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    known = set(names)
    for name in known:
        prefix, _, part = name.rpartition(".")
        if part in _PARAMETER_OF:
            found.setdefault((prefix, _PARAMETER_OF[part]), {})[part] = name
    weights = {}
    for (prefix, parameter), parts in found.items():
        if len(parts) == 1:
            continue  # a parameter that is called so by chance
        name = weight_name(prefix, parameter)
        layout = next((x for x in _ALL if parts.keys() == set(x.parts)), None)
        if layout is None:
            raise FormatError(
                f"{name!r} is kept as {_listed(parts)}, which no layout has: the checkpoint is "
                "incomplete, fetch it again"
            )
        if name in known:
            raise FormatError(
                f"{name!r} exists both plain and as {_listed(parts)}: which one is right is "
                "unknown, fetch the checkpoint again"
            )
        weights[name] = layout, parts
    return weights


def dense_weights(
    tensors: Iterable[tuple[str, Tensor]], layout: Layout
) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a checkpoint as they come, with weights in the place of a layout's.

    Args:
        tensors: Names and tensors, in any order.
        layout: The layout that the checkpoint says it has.

    Raises:
        FormatError: For a weight that is not valid, or of which tensors are missing.
    """
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors:
        prefix, _, part = name.rpartition(".")
        if part not in layout.parts:
            yield name, tensor
            continue
        parts = waiting.setdefault(prefix, {})
        parts[part] = tensor
        if len(parts) == len(layout.parts):
            name = weight_name(prefix, layout.parameter)
            yield name, layout.dense(name, waiting.pop(prefix))
    for prefix, parts in waiting.items():
        name = weight_name(prefix, layout.parameter)
        raise FormatError(
            f"{name!r}: of {layout.name} the checkpoint has {_listed(parts)} alone. Fetch it again"
        )


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(sorted(parts))
