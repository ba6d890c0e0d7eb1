# SPDX-License-Identifier: Apache-2.0
"""`flashsparse generate`: streams text from a packed or a dense model."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len

from flashsparse_plugin.messages import printable

from .console import err, out, print_json, usage
from .models import (
    DTYPES,
    MODEL,
    Dtype,
    best_device,
    load_model,
    load_tokenizer,
    model_directory,
    model_name,
)

if TYPE_CHECKING:
    from torch import Tensor


def generate(
    model: Annotated[
        str,
        typer.Argument(help=f"Directory of the model, packed or dense, {MODEL}.", metavar="MODEL"),
    ],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The prompt; - reads stdin.")],
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="Most tokens to generate.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 always picks the most likely token.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    dtype: Annotated[
        Dtype, typer.Option("--dtype", help=f"Dtype of the activations: {DTYPES}.", metavar="DTYPE")
    ] = Dtype.auto,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Put the prompt into the model's chat template.",
            show_default="chat where the model has a template",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print text and statistics as JSON at the end.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats/--no-stats", help="Print the speed.")] = True,
) -> None:
    """Generate text from a packed or dense model, token by token.

    The text goes to stdout, the statistics to stderr.

    \b
    [bold]Examples[/bold]
      flashsparse generate MODEL --prompt "Tell me a story about a fox."
      flashsparse generate MODEL -p "Once upon a time" --no-chat --temperature 0.8
      flashsparse generate MODEL -p - < prompt.txt > story.txt
      flashsparse generate MODEL -p "Why is the sky blue?" --json | jq .stats
    """
    source = model_directory(model)
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise usage("the prompt is empty", "--prompt")
    with err.status(f"Loading {model_name(source)}"):
        tokenizer = load_tokenizer(source)
        ids = encode(tokenizer, prompt, chat)
        loaded = load_model(source, dtype, device=best_device())
    streamer = Stream(tokenizer, silent=as_json)
    run(loaded, ids, streamer, max_new_tokens, temperature, seed)
    if as_json:
        print_json({"prompt": prompt, "text": streamer.text, "stats": streamer.stats()})
    elif stats:
        err.print(f"\n[dim]{describe(streamer.stats())}[/dim]")


def encode(tokenizer: Any, prompt: str, chat: bool | None) -> Tensor:
    """Returns the ids of a prompt, int64 [1, tokens].

    Raises:
        typer.BadParameter: If a chat is requested and the model has no chat template.
    """
    if chat is None:
        chat = tokenizer.chat_template is not None
    if not chat:
        return tokenizer(prompt, return_tensors="pt").input_ids
    if tokenizer.chat_template is None:
        raise usage("this model has no chat template: use --no-chat", "--chat")
    message = [{"role": "user", "content": prompt}]
    made = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return made["input_ids"]


class Stream:
    """Prints the text of a generation while it is generated, and measures the time.

    This is a streamer of transformers: `put` gets the prompt first, then each token.
    """

    def __init__(self, tokenizer: Any, silent: bool = False) -> None:
        from transformers import TextStreamer

        self.text = ""
        self.times: list[float] = []
        self.prompt_tokens = 0
        self._printer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._printer.on_finalized_text = self._print
        self._silent = silent
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
        if out.is_terminal and self._column + cell_len(text.rstrip()) > out.width:
            print()  # words are printed whole
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


def run(
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


def describe(stats: dict[str, Any]) -> str:
    """Formats the statistics as one line."""
    prefill = f"{stats['prefill_tokens_per_second']:.1f} tokens/s"
    text = f"prompt {stats['prompt_tokens']} tokens, {prefill} · "
    text += f"text {stats['new_tokens']} tokens"
    decode = stats["decode_tokens_per_second"]
    return text if decode is None else f"{text}, {decode:.1f} tokens/s"
