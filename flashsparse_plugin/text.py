# SPDX-License-Identifier: Apache-2.0
"""Text as windows of token ids, the same way for calibration and for evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def token_stream(tokenizer: PreTrainedTokenizerBase, text: str) -> torch.Tensor:
    """Return the token ids of a text, int64 [tokens], with no special token added."""
    # verbose: no warning that the whole text is longer than the model's context.
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return torch.tensor(ids, dtype=torch.int64)


def window_start(tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """Return the start of a window, int64 [0 or 1]: the BOS token if the tokenizer adds one.

    Models that were trained with a BOS token in front of every text (Llama, Gemma) predict badly
    without it.
    """
    bos = tokenizer.bos_token_id
    first = tokenizer("a").input_ids[:1]
    return torch.tensor([bos] if bos is not None and first == [bos] else [], dtype=torch.int64)


def check_window(model: PreTrainedModel, length: int) -> None:
    """Raise ValueError if a window of `length` tokens does not fit into the model's context."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and length > limit:
        raise ValueError(
            f"windows of {length} tokens do not fit the model's context of {limit}: "
            f"use at most {limit} tokens a window"
        )
