# SPDX-License-Identifier: Apache-2.0
"""write_recovered: a pruned checkpoint whose kept weights make up for the others.

What is done is noted beside the output, so that a run that was stopped goes on behind it: each
decoder layer, or now and then the state of LoRA's training. The output is written as `prune`
writes: the tensors of the pruned checkpoint, under their names and in their files, with the values
of recovered weights.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ...modules import weight_of
from ...pruning import LeastSquares, LoRA
from ...pruning.lora import Training
from ...pruning.recovery import Fit, pruned_layers, recover_layers, recoverable, trainable
from ..files.headers import CheckpointError
from ..read.directory import ModelDirectory
from ..read.linears import StoredModel
from ..write.room import disk_errors, require_room
from ..write.staging import Staging, identity, part_name
from ..write.surroundings import CARD
from ..write.writer import ShardWriter
from .pruned import pruned_weights, write_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

_BETWEEN = 60.0  # seconds of training that a run which is stopped may lose
_ERRORS = "errors"  # float64 [layers, 2] in a part file, beside the weights by their layer's name


@dataclass
class RecoveryReport:
    """What a recovery reached.

    Attributes:
        method: How it was done.
        names: The layers that were recovered, in the model's order.
        fits: How far outputs are from the dense model's, by layer, or with LoRA of the model.
        resumed: Decoder layers, or steps of LoRA, that were kept from an interrupted run.
        warnings: What a user should know.
    """

    method: LeastSquares | LoRA
    names: list[str]
    fits: list[Fit] = field(default_factory=list)
    resumed: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def before(self) -> float:
        return sum(fit.before for fit in self.fits) / len(self.fits)

    @property
    def after(self) -> float:
        return sum(fit.after for fit in self.fits) / len(self.fits)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain values for JSON."""
        how = {"method": type(self.method).__name__, "settings": asdict(self.method)}
        figures = {"before": self.before, "after": self.after, "resumed": self.resumed}
        fits = [asdict(fit) for fit in self.fits]
        return how | figures | {"fits": fits, "warnings": self.warnings}


def write_recovered(
    stored: StoredModel,
    pruned: PreTrainedModel,
    dense_directory: ModelDirectory,
    dense: PreTrainedModel,
    calibration: Tensor,
    out: Path,
    method: LeastSquares | LoRA,
    overwrite: bool = False,
    on_progress: Callable[[int, int, str], None] = lambda *_: None,
    write_card: Callable[[Path, RecoveryReport], None] | None = None,
    as_stored: bool = False,
) -> RecoveryReport:
    """Recovers a pruned model and writes it; see `pruning.recovery.recover_`.

    Args:
        stored: The directory of the pruned model.
        pruned: The pruned model, loaded; it is changed.
        dense_directory: The directory of the dense model.
        dense: The dense model, loaded.
        calibration: Token ids, int64 [samples, length].
        out: The directory to write; it appears when it is complete.
        method: How to recover.
        overwrite: Replace a model that is at `out`.
        on_progress: Called with the decoder layers or steps that are done, their number and what
            is done.
        write_card: Writes the model card to a path; None keeps that of the pruned model.
        as_stored: Write the dtype of the pruned checkpoint, in whichever one the models compute;
            else that of `pruned`.

    Raises:
        CheckpointError: If `out` must not be written, or its disk is full.
        ValueError: As `recover_` does.
    """
    groups = pruned_layers(pruned, dense)
    names = [name for group in groups for name in group]
    if isinstance(method, LoRA):
        names = trainable(names, pruned)
    report = RecoveryReport(method, names)
    weights = pruned_weights(stored, pruned, report.names)
    taken = {part_name(number) for number in range(1, max(2, len(groups)) + 1)}
    if taken & {path.name for path in stored.directory.shards}:
        raise CheckpointError(
            f"{stored.directory.path} has files called {part_name(1)}, as those in which a "
            "recovery keeps what is done: rename them, and in the index too"
        )
    tokens = hashlib.sha256(calibration.contiguous().numpy().tobytes()).hexdigest()
    own = _stored_dtype(stored, weights)
    chosen = None if as_stored or pruned.dtype == own else pruned.dtype
    job = {
        "recover": identity(stored.directory),
        "dense": identity(dense_directory),
        "calibration": [*calibration.shape, tokens],
        "settings": [type(method).__name__, asdict(method), str(pruned.dtype), str(chosen or own)],
    }
    training = None
    if isinstance(method, LoRA):
        training = Training(pruned, dense, report.names, calibration, method, chosen or own)
    require_room(out, stored.directory.nbytes)
    staging = Staging(out, job, overwrite, latest_only=training is not None)
    remedy = ". Make room: the same command goes on where it stopped"
    with disk_errors(staging.path, lambda: remedy), staging:
        if training is not None:
            _train(training, staging, report, on_progress)
        else:
            parts = _Parts(staging, pruned, groups)
            assert isinstance(method, LeastSquares)
            walk = recover_layers(pruned, dense, calibration, method, restore=parts.restore)
            on_progress(0, len(groups), "decoder layer 0")
            for index, fits in enumerate(walk):
                parts.save(index, fits)
                report.fits += fits
                on_progress(index + 1, len(groups), f"decoder layer {index + 1}")
            report.resumed = parts.resumed
        if write_card is not None:
            write_card(staging.path / CARD, report)
        report.warnings += write_model(
            staging.path, stored.directory, weights, chosen, updated=True
        )
        for shard in staging.finished:
            (staging.path / shard["file"]).unlink()
        staging.commit()
    return report


def _train(
    training: Training,
    staging: Staging,
    report: RecoveryReport,
    on_progress: Callable[[int, int, str], None],
) -> None:
    """Trains from what an earlier run has kept, keeps the state now and then, and merges."""
    for shard in staging.finished:
        try:
            training.load(load_file(staging.path / shard["file"]))
        except (OSError, ValueError, SafetensorError) as error:
            logger.warning("%s is invalid (%s): starting over", shard["file"], error)
            staging.keep(0)
    report.resumed, total = training.step, training.method.steps
    on_progress(training.step, total, f"step {training.step}")
    kept = time.monotonic()
    for step in training.run():
        if time.monotonic() - kept > _BETWEEN or step == total:
            _keep(staging, training.state(), step)
            kept = time.monotonic()
        on_progress(step, total, f"step {step}")
    report.fits = [Fit("", *training.merge_())]
    if report.after == report.before:
        report.warnings.append(
            "training brought the model no closer to the dense one, so its weights are "
            "unchanged: try another rate, more steps or more text"
        )


def _keep(staging: Staging, tensors: Mapping[str, Tensor], end: int) -> None:
    """Writes what is done to a file, and notes it."""
    file = staging.next_name()
    writer = ShardWriter(staging.path / file, tensors)
    try:
        for name, tensor in tensors.items():
            writer.add(name, tensor.dtype, tuple(tensor.shape), [tensor])
        digest = writer.close()
    except BaseException:
        writer.abort()
        raise
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    shard = {"file": file, "digest": digest, "end": end, "tensors": sizes}
    staging.add(shard | {"rounded": 0, "layers": []})


def _stored_dtype(stored: StoredModel, weights: dict[str, Tensor]) -> torch.dtype:
    return stored.directory.tensors[next(iter(weights))].dtype


class _Parts:
    """The decoder layers that are done, a file each, in the order of the model."""

    def __init__(
        self, staging: Staging, model: PreTrainedModel, groups: Sequence[Sequence[str]]
    ) -> None:
        self.staging, self.groups = staging, groups
        linears = recoverable(model)
        self.weights = {name: weight_of(linears[name]) for group in groups for name in group}
        pruned = [index for index, group in enumerate(groups) if group]
        self.number = {index: number for number, index in enumerate(pruned, start=1)}
        self.resumed = 0

    def restore(self, index: int) -> list[Fit] | None:
        """Takes the weights of a decoder layer from an earlier run, if it did that layer."""
        if not self.groups[index]:
            return []
        number = self.number[index]
        if number > len(self.staging.finished):
            return None
        try:
            fits = self._read(self.groups[index], self.staging.path / part_name(number))
        except (OSError, ValueError, KeyError) as error:
            logger.warning("%s is invalid (%s): doing it again", part_name(number), error)
            self.staging.keep(number - 1)
            return None
        self.resumed += 1
        return fits

    @torch.no_grad()
    def _read(self, group: Sequence[str], path: Path) -> list[Fit]:
        with safe_open(path, framework="pt") as file:
            if set(file.keys()) != {_ERRORS, *group}:
                raise ValueError("it has other tensors")
            errors = file.get_tensor(_ERRORS)
            found = {name: file.get_tensor(name) for name in group}
        if errors.shape != (len(group), 2):
            raise ValueError("it has other errors")
        for name, weight in found.items():
            own = self.weights[name]
            if weight.shape != own.shape or weight.dtype != own.dtype:
                raise ValueError(f"{name} has another shape or dtype")
            if bool(weight[(own == 0).cpu()].any()) or not bool(weight.isfinite().all()):
                raise ValueError(f"{name} has lost zeros, or is not finite")
        for name, weight in found.items():
            self.weights[name].copy_(weight)
        pairs = zip(group, errors.tolist(), strict=True)
        return [Fit(name, before, after) for name, (before, after) in pairs]

    def save(self, index: int, fits: Sequence[Fit]) -> None:
        """Keeps a decoder layer, unless it is kept already."""
        number = self.number.get(index, 0)
        if number <= len(self.staging.finished):
            return
        tensors = {fit.name: self.weights[fit.name].cpu() for fit in fits}
        pairs = [[fit.before, fit.after] for fit in fits]
        tensors[_ERRORS] = torch.tensor(pairs, dtype=torch.float64)
        _keep(self.staging, tensors, index + 1)
