# SPDX-License-Identifier: Apache-2.0
"""Shapes of a model's linear layers, by its config.json alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from ...modules import experts_of, linear_modules, shape_of
from ...roles import routers
from ...served import ModelShapes, Shape
from ..files.headers import CheckpointError
from .linears import build_config_on_meta

# What vLLM merges, by `packed_modules_mapping` of its models. Where a model has such layers and an
# engine runs them apart, they still get one format: that is no mistake.
_MERGED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("query", "key", "value"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)


def model_shapes(path: Path) -> ModelShapes:
    """Reads config.json, and no weight.

    Args:
        path: The directory of the config.json.

    Raises:
        CheckpointError: For a model that transformers cannot build, and for layers without rows or
            columns.
    """
    model = build_config_on_meta(path)
    head = model.get_output_embeddings()
    dense = routers(model)
    shapes = {
        name: shape_of(module)
        for name, module in linear_modules(model).items()
        if module is not head and name not in dense
    }
    for name, shape in shapes.items():
        if min(shape) < 1:
            raise CheckpointError(
                f"layer {name!r} is {list(shape)}, by the config.json in {path}: a layer has rows "
                "and columns. Fetch config.json again"
            )
    alone = as_merged(shapes)
    parameters = sum(each.numel() for each in model.parameters())
    return ModelShapes(
        Counter(alone.values()),
        None if head is None else shape_of(head),
        parameters - sum(rows * columns for rows, columns in shapes.values()),
        sum(each.numel() for each in experts_of(model).values()),
    )


def as_merged(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The layers as engines such as vLLM run them: q, k and v as one, and gate and up.

    Args:
        shapes: Shapes by the name of the layer.

    Returns:
        The same, a merged layer by the name of its first part.
    """
    return {
        names[0]: (sum(shapes[name][0] for name in names), shapes[names[0]][1])
        for names in merged_names(shapes)
    }


def merged_names(names: Collection[str]) -> list[list[str]]:
    """Groups the names of layers that engines merge, in the order in which the first ones come."""
    parts_of: dict[str, list[str]] = {}  # by each part, all of them
    for name in names:
        parent, _, kind = name.rpartition(".")
        for kinds in _MERGED:
            parts = [f"{parent}.{each}" for each in kinds]
            if kind == kinds[0] and all(part in names for part in parts):
                parts_of |= dict.fromkeys(parts, parts)
    groups = {tuple(parts_of.get(name, [name])): None for name in names}
    return [list(group) for group in groups]
