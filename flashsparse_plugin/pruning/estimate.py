# SPDX-License-Identifier: Apache-2.0
"""How long pruning and recovering a model will take, from one forward pass on this machine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from ..modules import linear_modules, shape_of
from .least_squares import LeastSquares
from .lora import LoRA
from .relay import decoder_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# A training step takes so many forward passes over its tokens: the dense model's, and forward and
# backward with weights that are updated anew. Measured with a model of 135M parameters on a CPU.
_OF_A_STEP: Final = 6.0


@dataclass(frozen=True)
class Estimate:
    """What was measured, and what follows from it.

    Attributes:
        seconds: Of "pruned", "fitted" by least squares and "recovered" by LoRA, the stages.
        tokens: How many the forward pass had.
        took: The seconds of the pass.
    """

    seconds: dict[str, float]
    tokens: int
    took: float


@torch.no_grad()
def estimate_seconds(model: PreTrainedModel, windows: Tensor, training: LoRA | None) -> Estimate:
    """Times a forward pass of the dense model, and scales it.

    Args:
        model: The dense model.
        windows: Token ids to calibrate with, int64 [samples, length].
        training: How it is to be recovered after least squares; None for not at all.
    """
    batch = windows[: training.batch if training else 1].to(model.device)
    model(input_ids=batch[:, : min(8, batch.shape[1])], use_cache=False)  # sets things up
    taken = []
    for _ in range(2):  # other programs may run, too
        start = time.perf_counter()
        model(input_ids=batch, use_cache=False).logits[0, 0, 0].item()
        taken.append(time.perf_counter() - start)
    took = min(taken)
    a_token, tokens = took / batch.numel(), windows.numel()
    seconds = {"pruned": 2 * tokens * a_token}
    if training is not None:
        # Products in float32, at half the speed of a forward pass: X X^T of the inputs of each
        # layer, and in each step of conjugate gradients one for each of its rows.
        shapes = [shape_of(each) for each in linear_modules(decoder_layers(model)).values()]
        weights = sum(rows * columns for rows, columns in shapes)
        fit = sum(columns**2 * (tokens + rows * LeastSquares.steps) for rows, columns in shapes)
        seconds["fitted"] = 2 * a_token * (tokens + fit / weights)
        seconds["recovered"] = _OF_A_STEP * training.steps * took
    return Estimate(seconds, batch.numel(), took)


def busy() -> str:
    """A sentence on other programs, beside which a measured time says little; "" without any."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load < 1.5 * cores:
        return ""
    return f" Other programs are running (load {load:.0f} on {cores} cores): it may differ much."


def duration(seconds: float) -> str:
    """Formats a time for people: "40 s", "9 min", "2 h 10 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
