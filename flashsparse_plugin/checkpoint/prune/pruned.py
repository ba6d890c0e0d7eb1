# SPDX-License-Identifier: Apache-2.0
"""write_pruned: a dense checkpoint with the zeros of a pruned model, and otherwise as it was.

The tensors of the source are copied, under their names and in their files, and only what the model
has pruned is set to zero on the way, or takes the model's values where these have changed. So
nothing is lost, renamed or invented, whatever the model's class does when it loads and saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...expert_layout import experts_of
from ...formats.values.dtypes import cast
from ...packed import dtype_name
from ...pruning.experts import expert_views
from ..files.folder import INDEX
from ..files.headers import CheckpointError, TensorInfo
from ..files.places import CONFIG
from ..read.directory import ModelDirectory
from ..read.linears import StoredModel
from ..read.together import stored_whole
from ..write.report import told
from ..write.room import disk_errors, require_room
from ..write.staging import Staging
from ..write.surroundings import CARD, carry_files, write_json
from ..write.writer import ShardWriter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def write_pruned(
    stored: StoredModel,
    model: PreTrainedModel,
    layers: Sequence[str],
    out: Path,
    dtype: torch.dtype | None = None,
    write_card: Callable[[Path], None] | None = None,
    updated: bool = False,
    biases: bool = False,
) -> list[str]:
    """Writes a model directory anew, with the zeros of a pruned model.

    It appears when it is complete.

    Args:
        stored: The directory that the model was loaded from.
        model: The model, pruned.
        layers: Names of its layers that were pruned.
        out: The directory to write; must not exist, or be empty.
        dtype: Dtype to write all floating tensors in; None leaves each in its own.
        write_card: Writes the model card to a path; None keeps that of the source.
        updated: Take the model's values of these layers, not only their zeros.
        biases: Take their biases too.

    Returns:
        Warnings about files that were not copied.

    Raises:
        CheckpointError: For a layer that is not a tensor of the checkpoint by itself, and a disk
            that is full or must not be written.
        FormatError: For a value that is too large for `dtype`.
    """
    weights, directory = pruned_weights(stored, model, layers, biases), stored.directory
    require_room(out)
    staging = Staging(out, {"prune": str(directory.path.resolve())})
    remedy = ": what was written is removed. Make room and run the command again"
    with disk_errors(staging.path, lambda: remedy), staging:
        try:
            if write_card is not None:
                write_card(staging.path / CARD)
            warnings = write_model(staging.path, directory, weights, dtype, updated)
            staging.commit()
        except BaseException:
            if staging.path.exists():
                staging.discard()
            raise
    return warnings


def write_model(
    out: Path,
    directory: ModelDirectory,
    weights: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    updated: bool = False,
) -> list[str]:
    """Copies a model into a directory that is there, with weights from `pruned_weights`.

    Returns:
        Warnings about files that were not copied.
    """
    nbytes = 0
    for path in directory.shards:
        infos = [info for info in directory.tensors.values() if info.path == path]
        nbytes += _write_shard(out / path.name, infos, weights, dtype, updated)
    return _write_surroundings(directory, out, nbytes, dtype)


def pruned_weights(
    stored: StoredModel, model: PreTrainedModel, layers: Sequence[str], biases: bool = False
) -> dict[str, Tensor]:
    """Per tensor of the checkpoint the pruned weight that it becomes, as it is kept there.

    With `biases`, those of the layers too.

    Raises:
        CheckpointError: For a layer that is not a tensor of the checkpoint by itself.
    """
    experts = expert_views(model)
    linears = [name for name in layers if name not in experts]
    pruned = {id(model.get_submodule(name).weight): name for name in linears}
    weights, lost = {}, set(layers)
    if biases:
        own = ((model.get_submodule(name).bias, name) for name in linears)
        pruned |= {id(bias): name for bias, name in own if bias is not None}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        key = stored.checkpoint.stored_as.get(name)
        if key is not None and id(parameter) in pruned:
            weights[key] = parameter.detach()
            lost.discard(pruned[id(parameter)])
    places, wholes = stored_experts(stored), stored_whole(stored)
    for name in lost & experts.keys():
        view = experts[name]
        key = places.get((view.parameter, view.number, view.side))
        if key is not None:
            weights[key] = view.weight.detach()
            lost = lost - {name}
        elif view.parameter in wholes:
            key, turned = wholes[view.parameter]
            weights[key] = view.whole.detach().transpose(1, 2) if turned else view.whole.detach()
            lost = lost - {name}
    if lost:
        why = stored.unfit()
        reasons = told((why.get(name, "not in the checkpoint"), name) for name in sorted(lost))
        raise CheckpointError(
            f"what was pruned cannot be written: {'; '.join(reasons)}. Leave these layers out with "
            "--ignore (ignore=)"
        )
    return weights


def stored_experts(stored: StoredModel) -> dict[tuple[str, int, int], str]:
    """The tensors that hold a projection of an expert each.

    Returns:
        By the parameter of the model, the number of the expert, and which of the parameter's
        projections it is.
    """
    found = {}
    for linear in stored.linears:
        if (expert := linear.expert) is not None:
            sides = stored.checkpoint.stacks[expert.parameter].projections
            place = (expert.parameter, expert.number, sides.index(expert.projection))
            found[place] = f"{expert.stored}.weight"
    return found


def unwritable_experts(stored: StoredModel) -> list[str]:
    """Modules of experts that `expert_views` does not know, or that files have otherwise."""
    known = {parameter for parameter, _, _ in stored_experts(stored)} | stored_whole(stored).keys()
    return list(
        dict.fromkeys(
            name.rpartition(".")[0] for name in experts_of(stored.model) if name not in known
        )
    )


def _write_shard(
    path: Path,
    infos: Sequence[TensorInfo],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    updated: bool,
) -> int:
    """Copies the tensors of one file, some with more zeros; returns their bytes."""
    writer = ShardWriter(path, [info.name for info in infos])
    try:
        for info in infos:
            chosen = dtype if dtype is not None and info.dtype.is_floating_point else info.dtype
            parts = _parts(info, weights.get(info.name), chosen, updated)
            writer.add(info.name, chosen, info.shape, parts)
        writer.close()
    except BaseException:
        writer.abort()
        raise
    return writer.nbytes


def _parts(
    info: TensorInfo, weight: Tensor | None, dtype: torch.dtype, updated: bool
) -> Iterator[Tensor]:
    start = 0
    for part in info.rows():
        if weight is not None:
            rows = weight[start : start + len(part)].cpu()
            part = rows if updated else part.masked_fill(rows == 0, 0)
            start += len(part)
        yield cast(part, dtype, info.name)


def _write_surroundings(
    directory: ModelDirectory, out: Path, nbytes: int, dtype: torch.dtype | None
) -> list[str]:
    """Everything but the weights, as it is but for the dtype; returns what was not copied."""
    warnings = carry_files(directory, out)
    if (directory.path / INDEX).exists():
        weight_map = {info.name: info.path.name for info in directory.tensors.values()}
        write_json(out / INDEX, {"metadata": {"total_size": nbytes}, "weight_map": weight_map})
    config = dict(directory.config)
    if dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = dtype_name(dtype)
    write_json(out / CONFIG, config)
    return warnings
