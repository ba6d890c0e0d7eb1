# SPDX-License-Identifier: Apache-2.0
"""The card of a recovered model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint.card.model_card import write_pruned_card
from ..checkpoint.card.record import Calibration, Recovery, word
from ..checkpoint.files.places import hub_name, name_of
from ..checkpoint.prune.recovered import RecoveryReport
from ..checkpoint.read.linears import StoredModel
from ..pruning import LoRA
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
