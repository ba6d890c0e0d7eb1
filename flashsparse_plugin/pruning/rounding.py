# SPDX-License-Identifier: Apache-2.0
"""Rounding to codes of 4 bits that makes up for its own errors: GPTQ (Frantar et al., 2022).

To the nearest code each weight is rounded as if it were alone. Here columns are rounded from left
to right, and the error that a layer's outputs have then is made up for by the columns to the right,
as far as the inputs allow: SparseGPT's update (sparsegpt.py; arXiv 2210.17323, section 3), of which
only the Gram matrix of the inputs is needed. Zeros stay zero.

The result is a weight of the model's dtype that packing takes as it is: rounding it to the nearest
codes finds the same codes again, and scales to within their last bit. For that the largest weight
of each group keeps the code that it had when the scale of the group was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..formats import get_format, read_format
from ..formats.values.quantization import Quantization, quantization_of
from ..formats.values.types import spread_scales
from ..modules import weight_of
from .calibration import calibration_batches
from .layers import check_weight
from .recovery import Fit
from .sequential import change_in_order
from .sparsegpt import inverse_factor
from .statistics import GRAM, Statistics

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BLOCK = 128  # columns whose errors go to the columns behind them together; a multiple of any group


def rounding_of(format: str, options: Mapping[str, Any]) -> Quantization | None:
    """The codes of 4 bits that a format stores values as; None where it stores others.

    Codes of 8 bits lose too little to make up for.

    Args:
        format: As `convert --format` takes it.
        options: Of the format.

    Raises:
        FormatError: For a format or an option that does not exist.
    """
    name, options = read_format(format, options)
    own = get_format(name)
    found = quantization_of(own.scheme(own.dtypes[-1], options))
    return found if found is not None and found.type.shares_bytes else None


@torch.no_grad()
def round_(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    quantizations: Mapping[str, Quantization],
    calibration: Tensor,
    batch_size: int = 8,
    progress: bool = True,
    stored: torch.dtype | None = None,
) -> list[Fit]:
    """Rounds weights of a model to what codes hold, in place.

    Args:
        model: A causal language model of transformers, in float16, bfloat16 or float32.
        linears: Its linear layers and experts by name, from `prunable_linears`.
        quantizations: How those that are to be rounded will be stored, by layer; see `rounding_of`.
        calibration: Token ids, int64 [samples, length], see `calibration_windows`.
        batch_size: Calibration samples a forward pass.
        progress: Show a progress bar.
        stored: The dtype that the weights will be packed in; None: that of the model.

    Returns:
        By layer the error of its outputs: by the nearest codes, and by those that were taken.

    Raises:
        ValueError: Where no layer is to be rounded; and naming the layer, for a weight that is NaN
            or infinite, before any weight is changed, and for inputs that are.
    """
    chosen = {name: linears[name] for name in linears if name in quantizations}
    if not chosen:
        raise ValueError("no layer of the model is to be rounded: name some of its linear layers")
    for name, linear in chosen.items():
        check_weight(name, weight_of(linear))

    def change(name: str, weight: Tensor, statistics: Statistics) -> Fit:
        before = weight.to(stored or weight.dtype)
        after, *errors = round_weight(before, statistics, quantizations[name])
        weight.copy_(after)
        whole = float(energies(before.float(), statistics.gram).sum()) or 1.0
        return Fit(name, *(float(error.sum()) / whole for error in errors))

    batches = calibration_batches(model, calibration, batch_size)
    made, _ = change_in_order(model, chosen, change, [GRAM], batches, {}, "rounding", progress)
    return [*made.values()]


@torch.no_grad()
def round_weight(
    weight: Tensor, statistics: Statistics, quantization: Quantization
) -> tuple[Tensor, Tensor, Tensor]:
    """Rounds one weight to what codes hold.

    Each row takes the better of the nearest codes and the compensated ones.

    Args:
        weight: [out_features, in_features], finite, in the dtype that it will be packed in.
        statistics: With `gram`.
        quantization: Of the codes; see `rounding_of`.

    Returns:
        The weight, code x scale in its dtype; and of each output the squared error over the
        calibration text, by the nearest codes and by those that were taken, float64 [out_features].

    Raises:
        ValueError: Naming the layer, if its inputs cannot be told from one another.
    """
    codes, scales = quantization.quantise(weight)
    scales = spread_scales(scales.float(), weight.shape[1], quantization.group)
    nearest = (codes.float() * scales).to(weight.dtype)
    compensated = _compensated(weight, inverse_factor(statistics), quantization)
    before, after = (
        energies(weight.float() - each.float(), statistics.gram) for each in (nearest, compensated)
    )
    better = after < before
    taken = torch.where(better[:, None], compensated, nearest)
    return taken, before, torch.where(better, after, before)


def energies(weight: Tensor, gram: Tensor | None) -> Tensor:
    """Of each output the sum of (W X)^2 over the columns of X, by its Gram matrix: float64."""
    assert gram is not None
    return ((weight @ gram) * weight).sum(1, dtype=torch.float64)


def _compensated(weight: Tensor, factor: Tensor, quantization: Quantization) -> Tensor:
    """Rounds column by column, and lets the columns to the right make up for the errors.

    Args:
        weight: [out_features, in_features].
        factor: `inverse_factor` of the statistics.
        quantization: Of the codes.
    """
    values, diagonal = quantization.type, factor.diagonal()
    # Transposed, so that the numbers of a column lie together.
    work = weight.T.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    keep, made = work != 0, torch.zeros_like(work)
    columns = len(work)
    group = quantization.group or columns
    for start in range(0, columns, _BLOCK):
        end = min(start + _BLOCK, columns)
        part, errors = work[start:end], torch.empty_like(work[start:end])
        for column in range(start, end):
            if column % group == 0:
                here = (work[column : column + group] * keep[column : column + group]).T
                scale = quantization.quantise(here.to(weight.dtype))[1][:, 0].float()
                largest = here.abs().argmax(1) + column
            codes = values.round(work[column] / scale)
            codes = torch.where(largest == column, values.extreme, codes) * keep[column]
            made[column] = codes * scale
            error = (work[column] - made[column]) / diagonal[column]
            part[column - start + 1 :].addr_(factor[column, column + 1 : end], error, alpha=-1)
            errors[column - start] = error
        work[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    return made.T.to(weight.dtype).contiguous()
