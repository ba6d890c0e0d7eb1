# SPDX-License-Identifier: Apache-2.0
"""Taylor pruning: |weight * gradient|, the first-order change of the loss (Molchanov et al., 2019).

The authors of Flash-LLM prune so (section 6.3.1). Removing a weight w changes the loss by about
w * dL/dw; the absolute values are summed over the calibration windows, so that windows in which a
weight helps and those in which it harms do not cancel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from ..modules import is_transposed, stored_weight
from .experts import ExpertView
from .gradients import frozen, require_finite
from .magnitude import magnitude_scores
from .statistics import Statistics

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def taylor_scores(weight: Tensor, statistics: Statistics) -> Tensor:
    """Return |W_ij| times the sum over the windows of |dL/dW_ij|, as float32."""
    assert statistics.gradients is not None
    return magnitude_scores(weight) * statistics.gradients


def loss_gradients(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    windows: Sequence[Tensor],
    progress: bool,
) -> dict[str, Tensor]:
    """Sums the absolute gradients of the next-token loss of the unpruned model.

    It holds one float32 copy of the weights, and the activations of one window.

    Args:
        model: A causal language model.
        linears: The layers, by name.
        windows: int64 [1, length] each, on the model's device.
        progress: Show a progress bar.

    Returns:
        float32 [out_features, in_features] by layer.

    Raises:
        ValueError: Naming the layer, for gradients that are NaN or infinite.
    """
    parameters = {name: _parameter_of(linear) for name, linear in linears.items()}
    totals = {  # of all experts together
        id(each): torch.zeros_like(each, dtype=torch.float32) for each in parameters.values()
    }
    hooks = []

    def add(parameter: Tensor) -> None:
        assert parameter.grad is not None
        totals[id(parameter)] += parameter.grad.abs()
        parameter.grad = None

    try:
        with frozen(model):
            for parameter in {id(each): each for each in parameters.values()}.values():
                parameter.requires_grad_(True)
                hooks.append(parameter.register_post_accumulate_grad_hook(add))
            for window in tqdm(windows, "gradients", unit="window", disable=not progress):
                logits = model(input_ids=window, use_cache=False).logits[0, :-1]
                cross_entropy(logits.float(), window[0, 1:].to(logits.device)).backward()
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for name, linear in linears.items():
        total = totals[id(parameters[name])]
        total = linear.part(total) if isinstance(linear, ExpertView) else total
        require_finite(name, total)
        found[name] = total.T if is_transposed(linear) else total
    return found


def _parameter_of(linear: nn.Module) -> Tensor:
    return linear.whole if isinstance(linear, ExpertView) else stored_weight(linear)
