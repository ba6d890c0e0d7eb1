# SPDX-License-Identifier: Apache-2.0
"""What the log says of a model that was loaded."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import nn

from flashsparse_plugin.checkpoint.files.explanations import about_experts
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.dataflow.choice import Pattern
from flashsparse_plugin.dataflow.expected import Target
from flashsparse_plugin.dataflow.unpacked import complaints
from flashsparse_plugin.expert_layout import experts_of
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.registry import as_option
from flashsparse_plugin.formats.values.dtypes import packable_dtype
from flashsparse_plugin.matching import matches
from flashsparse_plugin.packed import PackedWeight, dtype_name

from .conversion import Conversion
from .experts import packed_stacks
from .layers import sparse_layers

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

logger = logging.getLogger(__name__)


def report(
    model: PreTrainedModel, config: FlashSparseConfig, conversion: Conversion, dtype: torch.dtype
) -> None:
    """Logs how a loaded model is packed, and warns of what a user would not expect.

    Args:
        model: With all its layers in place.
        config: Of the model.
        conversion: What was packed while it was loaded.
        dtype: Of activations.
    """
    weights = [layer.packed for _, layer in sparse_layers(model)]
    stacks = packed_stacks(model)
    if conversion.rounded:
        logger.warning(
            "flashsparse: the values of %d layers were rounded to %s (%s, ...)",
            len(conversion.rounded),
            dtype_name(conversion.targets[conversion.rounded[0]].dtype),
            conversion.rounded[0],
        )
    if not weights and not stacks:
        logger.warning("flashsparse: no layer of this model is packed; ignored: %s", config.ignore)
        return
    devices = {layer.packed.device for _, layer in sparse_layers(model)}
    for device in sorted(devices, key=str):
        if device.type == "meta":  # offloaded
            continue
        own = [(n, x.scheme) for n, x in sparse_layers(model) if x.packed.device == device]
        for line in complaints(own, device, Target.of(device, dtype).gpu):
            logger.warning("flashsparse: %s", line)
    held = [*weights, *(stack.stack for stack in stacks)]
    packed, dense = (sum(getattr(w, n) for w in held) for n in ("nbytes", "dense_nbytes"))
    larger = packed > dense
    logger.log(
        logging.WARNING if larger else logging.INFO,
        "flashsparse: %d layers packed as %s, %.1f MB dense, %.1f MB packed (%.0f%%)%s",
        len(weights) + sum(x.stack.experts * len(x.projections) for x in stacks),
        " and ".join(config.formats),
        dense / 1e6,
        packed / 1e6,
        100 * packed / dense,
        ". Packing made them larger: is this checkpoint pruned?" if larger else "",
    )
    if conversion.targets and "format" not in config.model_fields_set:
        for name, layer in list(sparse_layers(model))[:1]:
            if layer.packed.device.type != "meta" and (better := pattern_of(layer.packed)):
                logger.warning(
                    "flashsparse: the zeros of layer %r follow a pattern, for which kernels are "
                    'faster: FlashSparseConfig(format=%r), or format="auto", which looks at each '
                    "layer",
                    name,
                    better,
                )


def pattern_of(packed: PackedWeight) -> str | None:
    """The short name of a pattern that a weight's zeros follow, if that takes no more bytes."""
    weight, found = packed.unpack().cpu(), {}
    for name, options in Pattern.of(weight).options.items():
        if options:
            format = get_format(name)
            scheme = format.scheme(packable_dtype(format, weight.dtype), dict(options))
            nbytes = format.nbytes(scheme, packed.shape)
            if nbytes is not None and nbytes <= 1.02 * packed.nbytes:
                found[as_option(name, options).removeprefix("--format ")] = nbytes
    return min(found, key=found.__getitem__, default=None)


def warn_of_experts(model: nn.Module, ignored: list[str]) -> None:
    """Warns of experts that stay dense, but for those that `ignored` names."""
    experts = {
        name: weight
        for name, weight in experts_of(model).items()
        if not matches(name.rpartition(".")[0], ignored)
    }
    if experts:
        logger.warning(
            "flashsparse: %s",
            about_experts(f"{len(experts)} tensors", min(experts), "packed"),
        )
