# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a model: of a prompt that is read, and of text that is written."""

from __future__ import annotations

import logging
import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


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


class Rates(NamedTuple):
    """Tokens a second of a model.

    Attributes:
        prefill: Of a prompt that is read.
        decode: Of greedy decoding.
        graphed: Whether decoding replayed a CUDA graph.
    """

    prefill: float
    decode: float
    graphed: bool


def rates(model: PreTrainedModel, ids: Tensor, prompt: int, tokens: int, rounds: int) -> Rates:
    """Medians of `prefill_rate` of all of `ids`, and of decoding after some of them.

    On a GPU a step of decoding is replayed as a CUDA graph, as servers do: launching its kernels
    from Python takes longer than most of them run. Models whose cache cannot stay in place, or
    whose step cannot be captured, decode as `decode_rate` does.

    Args:
        model: The model, in evaluation mode.
        ids: int64 [1, tokens], on the device of the model.
        prompt: Tokens of the prompt after which is decoded.
        tokens: Tokens to decode.
        rounds: Samples of each.
    """
    first = ids[:, :prompt]
    decode_rate(model, first, 2)  # warm up
    prefill = median(prefill_rate(model, ids) for _ in range(rounds))
    step = GraphedStep.of(model, first, tokens) if ids.is_cuda else None
    if step is None:
        decode = median(decode_rate(model, first, tokens) for _ in range(rounds))
    else:
        decode = median(step.rate(tokens) for _ in range(rounds))
    return Rates(prefill, decode, step is not None)


class Step:
    """A step of greedy decoding whose tensors stay where they are.

    Args:
        model: The model, in evaluation mode; its class supports transformers' static cache.
        prompt: int64 [batch, tokens], on the device of the model.
        tokens: The most steps after `start`.
    """

    def __init__(self, model: PreTrainedModel, prompt: Tensor, tokens: int):
        from transformers import StaticCache

        self._model, self._prompt = model, prompt
        self._cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + tokens)
        self.token = prompt[:, -1:].clone()
        """The last token of each sequence, int64 [batch, 1]."""

    @torch.no_grad()
    def start(self) -> None:
        """Reads the prompt, and takes the token after it."""
        self._cache.reset()
        self._take(self._prompt)

    @torch.no_grad()
    def __call__(self) -> None:
        self._take(self.token)

    def _take(self, ids: Tensor) -> None:
        output = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True)
        self.token.copy_(output.logits[:, -1:].argmax(-1))


class GraphedStep:
    """A `Step` as a CUDA graph."""

    _WARM_UP = 2  # steps, which make workspaces and load modules before the capture

    def __init__(self, model: PreTrainedModel, prompt: Tensor, tokens: int):
        self._step = Step(model, prompt, max(tokens, self._WARM_UP))
        self._step.start()
        stream = torch.cuda.Stream(prompt.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self._WARM_UP):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._step()

    @classmethod
    def of(cls, model: PreTrainedModel, prompt: Tensor, tokens: int) -> GraphedStep | None:
        """Captures a step; None where that is not possible."""
        if not model._can_compile_fullgraph:  # what transformers knows of its static cache
            return None
        try:
            return cls(model, prompt, tokens)
        except RuntimeError as error:
            logger.warning("a step of decoding cannot be captured: %s", error)
            return None

    def rate(self, tokens: int) -> float:
        """Tokens a second of greedy decoding after the prompt."""
        self._step.start()
        _wait(self._step.token)
        start = time.perf_counter()
        for _ in range(tokens):
            self._graph.replay()
        _wait(self._step.token)
        return self._step.token.shape[0] * tokens / (time.perf_counter() - start)


def _wait(ids: Tensor) -> None:
    if ids.is_cuda:
        torch.cuda.synchronize(ids.device)
