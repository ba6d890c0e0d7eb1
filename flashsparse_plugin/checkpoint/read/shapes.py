# SPDX-License-Identifier: Apache-2.0
"""Shapes of a model's linear layers, by its config.json alone."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ...expert_layout import experts_of, layout_of
from ...modules import linear_modules, shape_of
from ...roles import routers
from ...served import Experts, ModelShapes, Shape, plain_decoder
from ..files.folder import read_config
from ..files.headers import CheckpointError
from .experts import Stack
from .linears import build_config_on_meta

_ALONE = re.compile(r"\.experts\.\d+\.")  # an expert that is a module of its own
_ACTIVE = (  # what configurations call the number of experts of a token
    *("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k"),
    *("top_k_experts", "experts_per_token", "num_selected_experts"),
)

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
    plain = plain_decoder(read_config(path))
    return built_shapes(path) if plain is None else plain


def built_shapes(path: Path) -> ModelShapes:
    """`model_shapes` of any model that transformers knows, and slower by seconds.

    Raises:
        CheckpointError: As `model_shapes` does.
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
    experts = _experts(model, {name for name in shapes if _ALONE.search(name)})
    shapes = {name: shape for name, shape in shapes.items() if not _ALONE.search(name)}
    parameters = sum(each.numel() for each in model.parameters())
    counted = sum(rows * columns for rows, columns in shapes.values())
    return ModelShapes(
        Counter(as_merged(shapes).values()),
        None if head is None else shape_of(head),
        parameters - counted - sum(each.parameters for each in experts),
        experts,
    )


def _experts(model: nn.Module, alone: Collection[str]) -> tuple[Experts, ...]:
    """The experts of a model, those of one weight and those that are modules of their own."""
    found: Counter[tuple[int, Shape]] = Counter()  # layers, by how many experts, and a shape
    for name, weight in experts_of(model).items():
        holder = model.get_submodule(name.rpartition(".")[0])
        count = getattr(holder, "num_experts", 0) or getattr(holder, "moe_num_experts", 0)
        layout = layout_of(holder)
        if weight.dim() == 3 and layout is not None:
            weight = layout.matrices(weight, 1)[:, 0]
        rows, columns = weight.shape[-2] // (1 if weight.dim() > 2 else count), weight.shape[-1]
        found[count, (rows, columns * math.prod(weight.shape[1:-2]))] += 1
    linears = linear_modules(model)
    stacks = Counter(_ALONE.sub(".experts.*.", name) for name in alone)
    shapes = {_ALONE.sub(".experts.*.", name): shape_of(linears[name]) for name in alone}
    for stack, count in stacks.items():
        found[count, shapes[stack]] += 1
    made: dict[int, dict[Shape, int]] = {}
    for (count, shape), layers in found.items():
        made.setdefault(count, {})[shape] = layers
    active = _active(model.config)
    return tuple(
        Experts(count, min(active or count, count), matrices) for count, matrices in made.items()
    )


def experts_in(config: Any, stacks: Sequence[Stack]) -> Experts:
    """The experts of one layer.

    Args:
        config: The configuration of the model, of transformers.
        stacks: All parameters of the layer that hold experts.
    """
    count = stacks[0].experts
    shapes = {(len(x.projections) * x.shape[0], x.shape[1]): 1 for x in stacks}
    return Experts(count, min(_active(config) or count, count), shapes)


def _active(config: Any) -> int:
    """How many experts a token is sent to, by the configuration; 0: it does not say."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for part in (text, getattr(text, "ffn_config", None)):
        for name in _ACTIVE:
            if isinstance(found := getattr(part, name, None), int) and found > 0:
                return found
    return 0


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
