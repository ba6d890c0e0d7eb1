# SPDX-License-Identifier: Apache-2.0
"""`flashsparse generate`: streams text from a packed or a dense model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from .console import err, out, print_json, usage
from .models import (
    MODEL,
    Dtype,
    best_device,
    load_model,
    load_tokenizer,
    model_directory,
    model_name,
)
from .options import ActivationsDtype


def generate(
    model: Annotated[
        str,
        typer.Argument(help=f"Directory of the model, packed or dense, {MODEL}.", metavar="MODEL"),
    ],
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", help="The prompt; - reads stdin.", metavar="TEXT")
    ],
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", "-n", min=1, help="Most tokens to generate.", metavar="N"),
    ] = 128,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 always picks the most likely token.", metavar="X")
    ] = 0.0,
    repetition_penalty: Annotated[
        float,
        typer.Option(
            min=1,
            help="Above 1 tokens become less likely that were there before, such as 1.15.",
            metavar="X",
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.", metavar="N")] = 0,
    dtype: ActivationsDtype = Dtype.auto,
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
      flashsparse generate MODEL -p "Once upon a time" --no-chat \\
          --repetition-penalty 1.15
      flashsparse generate MODEL -p - < prompt.txt > story.txt
      flashsparse generate MODEL -p "Why is the sky blue?" --json | jq .stats
    """
    source = model_directory(model)
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise usage("the prompt is empty", "--prompt")
    from flashsparse_plugin.generation import Stream, describe, encode, repeats_itself
    from flashsparse_plugin.generation import generate as run

    with err.status(f"Loading {model_name(source)}"):
        tokenizer = load_tokenizer(source)
        try:
            ids = encode(tokenizer, prompt, chat)
        except ValueError as error:
            raise usage(str(error), "--chat") from None
        loaded = load_model(source, dtype, device=best_device())
    streamer = Stream(tokenizer, as_json, out.width if out.is_terminal else None)
    penalty = {"repetition_penalty": repetition_penalty} if repetition_penalty > 1 else {}
    run(loaded, ids, streamer, max_new_tokens, temperature, seed, **penalty)
    if as_json:
        print_json({"prompt": prompt, "text": streamer.text, "stats": streamer.stats()})
    elif stats:
        err.print(f"\n[dim]{describe(streamer.stats())}[/dim]")
    if not as_json and not penalty and repeats_itself(streamer.text):
        told = "the text repeats itself, as small models do: --repetition-penalty 1.15 is for that"
        err.print(Text.assemble(("Note: ", "yellow"), told))
