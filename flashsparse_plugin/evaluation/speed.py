# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a model: of a prompt that is read, and of text that is written."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def prefill_rate(model: PreTrainedModel, ids: Tensor) -> float:
    """Tokens a second at which a model reads a prompt.

    Args:
        model: The model, in evaluation mode.
        ids: The prompt, int64 [batch, tokens], on the device of the model.
    """
    _wait(ids)
    start = time.perf_counter()
    model(input_ids=ids, use_cache=True)
    _wait(ids)
    return ids.numel() / (time.perf_counter() - start)


@torch.no_grad()
def decode_rate(model: PreTrainedModel, ids: Tensor, tokens: int) -> float:
    """Tokens a second of greedy decoding, after the prompt has been read.

    Args:
        model: The model, in evaluation mode.
        ids: The prompt, int64 [batch, tokens], on the device of the model.
        tokens: Steps; each writes a token a sequence.
    """
    output = model(input_ids=ids, use_cache=True)
    _wait(ids)
    start = time.perf_counter()
    for _ in range(tokens):
        ids = output.logits[:, -1:].argmax(-1)
        output = model(input_ids=ids, past_key_values=output.past_key_values, use_cache=True)
    _wait(ids)
    return ids.shape[0] * tokens / (time.perf_counter() - start)


def rates(
    model: PreTrainedModel, ids: Tensor, prompt: int, tokens: int, rounds: int
) -> tuple[float, float]:
    """Medians of `prefill_rate` of all of `ids` and of `decode_rate` after some of them.

    Args:
        model: The model, in evaluation mode.
        ids: int64 [1, tokens], on the device of the model.
        prompt: Tokens of the prompt after which is decoded.
        tokens: Tokens to decode.
        rounds: Samples of each.
    """
    decode_rate(model, ids[:, :prompt], 2)  # warm up
    prefill = median(prefill_rate(model, ids) for _ in range(rounds))
    decode = median(decode_rate(model, ids[:, :prompt], tokens) for _ in range(rounds))
    return prefill, decode


def _wait(ids: Tensor) -> None:
    if ids.is_cuda:
        torch.cuda.synchronize(ids.device)
