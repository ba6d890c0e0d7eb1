# SPDX-License-Identifier: Apache-2.0
"""write_rounded: a dense checkpoint whose weights are what codes of 4 bits hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ...formats.values.quantization import Quantization
from ...pruning.recovery import Fit
from ...pruning.rounding import round_
from ..foreign.packing import half_dtype
from ..read.linears import StoredModel
from .pruned import write_pruned

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def write_rounded(
    stored: StoredModel,
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    quantizations: Mapping[str, Quantization],
    calibration: Tensor,
    out: Path,
    write_card: Callable[[Path, list[Fit]], None],
    progress: bool = True,
) -> tuple[list[Fit], list[str]]:
    """Rounds a model by `round_`, in place, and writes it.

    Args:
        stored: The directory that the model was loaded from.
        model: The model.
        linears: Its layers by name, from `prunable_linears`.
        quantizations: How those that are to be rounded will be stored, by layer.
        calibration: Token ids, int64 [samples, length].
        out: The directory to write; must not exist, or be empty.
        write_card: Writes the model card to a path, by the errors of layers.
        progress: Show a progress bar.

    Returns:
        The errors of outputs, by layer; and warnings about files that were not copied.

    Raises:
        ValueError: As `round_` does.
        CheckpointError: As `write_pruned` does.
    """
    packed_in = half_dtype(*sorted({x.dtype for x in stored.directory.tensors.values()}, key=str))
    fits = round_(model, linears, quantizations, calibration, 8, progress, packed_in)

    def card(path: Path) -> None:
        write_card(path, fits)

    names = [fit.name for fit in fits]
    return fits, write_pruned(stored, model, names, out, None, card, updated=True)
