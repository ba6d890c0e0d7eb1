# SPDX-License-Identifier: Apache-2.0
"""The cards of recovered and of rounded models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from ..checkpoint.card.model_card import write_pruned_card
from ..checkpoint.card.record import Calibration, Recovery, Rounding, word
from ..checkpoint.files.places import hub_name, name_of
from ..checkpoint.prune.recovered import RecoveryReport
from ..checkpoint.read.directory import ModelDirectory
from ..checkpoint.read.linears import StoredModel
from ..pruning import Fit, LoRA
from ..pruning.layers import report as zeros_of
from ..pruning.recovery import recoverable

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def write_recovered_card(
    file: Path,
    stored: StoredModel,
    pruned: PreTrainedModel,
    dense: Path,
    report: RecoveryReport,
    calibration: Calibration,
    name: str,
) -> None:
    """Writes the card of a recovered model.

    Args:
        file: The file to write.
        stored: The directory of the pruned model.
        pruned: The model, recovered.
        dense: The directory of the dense model.
        report: What was reached.
        calibration: The text.
        name: What the model is called where it will be loaded from.
    """
    trained = isinstance(report.method, LoRA)
    done = Recovery(
        method="lora" if trained else "least-squares",
        dense=word(name_of(dense)),
        before=report.before,
        after=report.after,
        calibration=calibration,
        rank=report.method.rank if isinstance(report.method, LoRA) else None,
        steps=report.method.steps if isinstance(report.method, LoRA) else None,
    )
    linears = recoverable(pruned)
    zeros = zeros_of("", {layer: linears[layer] for layer in report.names})
    write_pruned_card(file, stored.directory, done, zeros, name, hub_name(dense))


def write_rounded_card(
    file: Path,
    directory: ModelDirectory,
    linears: Mapping[str, nn.Module],
    fits: Sequence[Fit],
    format: str,
    calibration: Calibration,
    name: str,
) -> None:
    """Writes the card of a model that was rounded to 4 bits.

    Args:
        file: The file to write.
        directory: The source.
        linears: The model's layers by name, rounded.
        fits: What was reached.
        format: What the model will be converted to.
        calibration: The text.
        name: What the model is called where it will be loaded from.
    """
    done = Rounding(
        format=format,
        before=sum(fit.before for fit in fits) / len(fits),
        after=sum(fit.after for fit in fits) / len(fits),
        calibration=calibration,
    )
    zeros = zeros_of("", {fit.name: linears[fit.name] for fit in fits})
    write_pruned_card(file, directory, done, zeros, name)
