# SPDX-License-Identifier: Apache-2.0
"""Calibration windows: short pieces of text that show a layer its typical inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..text import check_window, token_stream, window_start

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def calibration_windows(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    samples: int = 128,
    length: int = 2048,
    seed: int = 0,
) -> torch.Tensor:
    """Draw windows of tokens from random places of a text, as Wanda does (section 4).

    Args:
        tokenizer: The model's tokenizer.
        text: Plain text, of at least `length` tokens.
        samples: Windows to draw; they may overlap.
        length: Tokens a window, the BOS token included where the tokenizer adds one.
        seed: Equal seeds draw equal windows.

    Returns:
        int64 [samples, length].

    Raises:
        ValueError: If the text is too short or a number is not positive.
    """
    start = window_start(tokenizer)
    own = length - len(start)
    if samples < 1 or own < 1:
        raise ValueError(f"{samples} windows of {length} tokens cannot calibrate")
    ids = token_stream(tokenizer, text)
    places = len(ids) - own + 1
    if places < 1:
        raise ValueError(
            f"the calibration text has {len(ids)} tokens, but a window takes {own}: "
            "give more text or shorter windows"
        )
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.randint(places, (samples,), generator=generator)
    return torch.stack([torch.cat([start, ids[at : at + own]]) for at in offsets.tolist()])


def calibration_batches(
    model: PreTrainedModel, calibration: torch.Tensor, batch_size: int
) -> tuple[torch.Tensor, ...]:
    """Check calibration tokens and cut them into batches on the model's device.

    Args:
        model: The model, a transformers one that takes tokens.
        calibration: int64 [samples, length].
        batch_size: Samples a batch.

    Raises:
        ValueError: For what the model cannot take.
    """
    if calibration.dim() != 2 or calibration.dtype != torch.int64 or calibration.numel() == 0:
        raise ValueError(
            "calibration must be token ids, int64 [samples, length], "
            f"not {calibration.dtype} of shape {list(calibration.shape)}"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, but must be 1 or more")
    check_window(model, calibration.shape[1])
    embedding: Any = model.get_input_embeddings()  # not always an nn.Embedding, but like one
    low, high = int(calibration.min()), int(calibration.max())
    if low < 0 or high >= embedding.num_embeddings:
        raise ValueError(
            f"calibration tokens range from {low} to {high}, but the model knows "
            f"{embedding.num_embeddings}: tokenize with the model's own tokenizer"
        )
    return calibration.to(embedding.weight.device).split(batch_size)
