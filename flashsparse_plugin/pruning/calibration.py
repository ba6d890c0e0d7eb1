# SPDX-License-Identifier: Apache-2.0
"""Calibration windows: short pieces of text that show a layer its typical inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..text import token_stream, window_start

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        raise ValueError(f"{samples} windows of {length} tokens calibrate nothing")
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
