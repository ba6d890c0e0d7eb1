# SPDX-License-Identifier: Apache-2.0
"""What an error in the outputs of a layer costs: how far it moves what the model predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from ..modules import shape_of, weight_of
from .gradients import frozen, require_finite

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def fisher_information(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    batches: Sequence[Tensor],
    progress: bool,
) -> dict[str, Tensor]:
    """Estimates the diagonal of the Fisher information of each layer's outputs.

    Small errors e of the outputs of one layer move the predictions of the model by a divergence of
    about half the sum over its outputs of information x mean(e^2), in nats a token: the Fisher
    information is the Hessian of the divergence from the model itself. It is estimated by gradients
    of the log-likelihood of tokens that the model draws; correlations between outputs, and between
    tokens, are left out.

    The weights have no gradients, and the activations of one sequence are in memory at a time.

    Source: Amari, "Natural gradient works efficiently in learning", Neural Computation 10 (2),
    1998; for the choice of bits by layer, Dong et al., HAWQ-V2 (arXiv 1911.03852).

    Args:
        model: A causal language model; it stays as it is.
        linears: The layers, by name.
        batches: Token ids, int64 [samples, length] each, on the model's device.
        progress: Show a progress bar.

    Returns:
        float64 [out_features] by layer: the mean square of the gradient over all tokens, in squared
        nats for the square of an output's unit. Zeros for a layer that no token reached.

    Raises:
        ValueError: For predictions that are NaN or infinite, or, naming the layer, gradients.
    """
    squares = {
        name: torch.zeros(shape_of(each)[0], dtype=torch.float64, device=weight_of(each).device)
        for name, each in linears.items()
    }
    windows = [window for batch in batches for window in batch.split(1)]
    generator = torch.Generator().manual_seed(0)
    embedding: Any = model.get_input_embeddings()
    hooks = [embedding.register_forward_hook(lambda *args: args[2].requires_grad_())]
    hooks += [each.register_forward_hook(_adder(squares[name])) for name, each in linears.items()]
    try:
        with frozen(model):
            for window in tqdm(windows, "gradients", unit="window", disable=not progress):
                logits = model(input_ids=window, use_cache=False).logits[0].float()
                if not bool(logits.isfinite().all()):
                    raise ValueError(
                        "the model predicts NaN or infinite numbers on the calibration text; load "
                        "it in bfloat16 or float32"
                    )
                drawn = torch.multinomial(logits.detach().softmax(-1).cpu(), 1, generator=generator)
                cross_entropy(logits, drawn[:, 0].to(logits.device), reduction="sum").backward()
    finally:
        for hook in hooks:
            hook.remove()
    tokens = sum(window.numel() for window in windows)
    for name, own in squares.items():
        require_finite(name, own)
    return {name: own / tokens for name, own in squares.items()}


def _adder(squares: Tensor) -> Any:
    def add(gradient: Tensor) -> None:
        squares.add_(gradient.flatten(0, -2).float().square().sum(0, dtype=torch.float64))

    def hook(_: nn.Module, __: Any, y: Tensor) -> None:
        if y.requires_grad:  # else it depends on no token
            y.register_hook(add)

    return hook
