# SPDX-License-Identifier: Apache-2.0
"""How well a model predicts a text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from ..text import check_window, token_stream, window_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@torch.no_grad()
def perplexity(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    context: int = 512,
    max_tokens: int | None = None,
    batch_size: int = 4,
) -> float:
    """Return the perplexity of a causal language model on a text.

    The text is cut into windows of `context` tokens that do not overlap, each begun with the BOS
    token (counted in `context`) where the tokenizer adds one. The first token of a window is not
    predicted; the mean of the natural-log cross entropy of all others, computed in float32, is
    exponentiated. A remainder that does not fill a window is dropped; a text shorter than one
    window is one window.

    Args:
        model: The model, on any device; its training flag is restored.
        tokenizer: Its tokenizer.
        text: The text.
        context: Tokens a window.
        max_tokens: Use only this many tokens from the start of the text; None for all.
        batch_size: Windows a forward pass. The logits take batch_size * context * vocabulary
            elements.

    Raises:
        ValueError: If the text holds fewer than two tokens, or a window exceeds the model's
            context.
    """
    start = window_start(tokenizer)
    ids = token_stream(tokenizer, text)[:max_tokens]
    length = min(context - len(start), len(ids))
    if length + len(start) < 2:
        raise ValueError(
            f"nothing to predict: {len(ids)} tokens of text in windows of {context}; "
            "give a longer text and a context of at least 2 tokens"
        )
    check_window(model, length + len(start))
    count = len(ids) // length
    windows = torch.cat([start.expand(count, -1), ids[: count * length].view(count, length)], dim=1)
    device = model.get_input_embeddings().weight.device

    was_training = model.training
    model.eval()
    try:
        total = 0.0
        for batch in windows.split(batch_size):
            logits = model(input_ids=batch.to(device), use_cache=False).logits
            # One window at a time, since a float32 copy of all logits of a batch would be large.
            for window, row in zip(batch.to(logits.device), logits, strict=True):
                total += cross_entropy(row[:-1].float(), window[1:], reduction="sum").item()
    finally:
        model.train(was_training)
    return math.exp(total / (count * (windows.shape[1] - 1)))
