# SPDX-License-Identifier: Apache-2.0
"""Text from a model, token by token, as it is printed and measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from .messages import printable

if TYPE_CHECKING:
    from torch import Tensor


def encode(tokenizer: Any, prompt: str, chat: bool | None) -> Tensor:
    """Returns the ids of a prompt, int64 [1, tokens].

    Raises:
        ValueError: If a chat is requested and the model has no chat template.
    """
    if chat is None:
        chat = tokenizer.chat_template is not None
    if not chat:
        return tokenizer(prompt, return_tensors="pt").input_ids
    if tokenizer.chat_template is None:
        raise ValueError("this model has no chat template: use --no-chat")
    message = [{"role": "user", "content": prompt}]
    made = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return made["input_ids"]


class Stream:
    """Prints the text of a generation while it is generated, and measures the time.

    This is a streamer of transformers: `put` gets the prompt first, then each token.

    Args:
        tokenizer: That of the model.
        silent: Print nothing.
        width: Columns of the terminal, in which words are printed whole; None: no terminal.
    """

    def __init__(self, tokenizer: Any, silent: bool = False, width: int | None = None) -> None:
        from transformers import TextStreamer

        self.text = ""
        self.times: list[float] = []
        self.prompt_tokens = 0
        self._printer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._printer.on_finalized_text = self._print
        self._silent, self._width = silent, width
        self._column = 0

    def put(self, ids: Tensor) -> None:
        self.times.append(time.perf_counter())
        if len(self.times) == 1:
            self.prompt_tokens = ids.numel()
        self._printer.put(ids)

    def end(self) -> None:
        self._printer.end()

    def _print(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        text = printable(text)
        if self._silent:
            return
        if self._width is not None and self._column + cell_len(text.rstrip()) > self._width:
            print()
            self._column = 0
        print(text, end="\n" if stream_end else "", flush=True)
        _, newline, tail = text.rpartition("\n")
        self._column = cell_len(tail) + (0 if newline else self._column)

    def stats(self) -> dict[str, float | int | None]:
        """Counts, seconds and tokens a second of the prompt (prefill) and of the text (decode)."""
        prefill = self.times[1] - self.times[0]
        decode, steps = self.times[-1] - self.times[1], len(self.times) - 2
        return {
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": len(self.times) - 1,
            "prefill_seconds": prefill,
            "decode_seconds": decode,
            "prefill_tokens_per_second": self.prompt_tokens / prefill,
            "decode_tokens_per_second": steps / decode if steps else None,
        }


def generate(
    model: Any,
    ids: Tensor,
    streamer: Stream,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    **more: Any,
) -> Tensor:
    """Generates from one prompt, int64 [1, tokens], and returns prompt and text as ids.

    `more` is passed to transformers' `generate`.
    """
    import torch

    ids = ids.to(model.device)
    torch.manual_seed(seed)
    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature}
    if not temperature:
        # The model's own sampling settings would only cause warnings.
        sampling = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        streamer=streamer,
        max_new_tokens=max_new_tokens,
        pad_token_id=model.generation_config.pad_token_id or model.generation_config.eos_token_id,
        **sampling,
        **more,
    )


def repeats_itself(text: str) -> bool:
    """Whether a text ends in one phrase, four times and more."""
    most = min(200, len(text) // 4)
    return any(text[-3 * n :] == text[-4 * n : -n] for n in range(8, most + 1))


def describe(stats: dict[str, Any]) -> str:
    """Formats the statistics as one line."""
    prefill = f"{stats['prefill_tokens_per_second']:.1f} tokens/s"
    text = f"prompt {stats['prompt_tokens']} tokens, {prefill} · "
    text += f"text {stats['new_tokens']} tokens"
    decode = stats["decode_tokens_per_second"]
    return text if decode is None else f"{text}, {decode:.1f} tokens/s"
