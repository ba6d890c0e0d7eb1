# SPDX-License-Identifier: Apache-2.0
"""`flashsparse sparsify`: a dense model to a packed one that is worth using, in one command."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .console import err, out, print_json, size, table, usage
from .convert import progress
from .models import (
    best_device,
    do_push,
    may_push,
    model_directory,
    parse_option,
    show_pushed,
    try_it,
)
from .options import (
    DenseModel,
    Destination,
    FormatOption,
    Ignore,
    Length,
    Overwrite,
    Push,
    ReportAsJson,
    Samples,
    Seed,
)

if TYPE_CHECKING:
    from flashsparse_plugin.sparsify import Sparsified

_MUCH = 1.5  # times the dense model's perplexity


def sparsify(
    model: DenseModel,
    destination: Destination,
    calibration: Annotated[
        Path,
        typer.Option(
            help="Text of the kind the model will see, some 100 kB or more.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ],
    pattern: Annotated[
        str | None,
        typer.Option(
            help="N:M keeps N of every M consecutive inputs; 8:32-L32: the same ones in 32 rows.",
            metavar="N:M",
            show_default="that of --format, else none",
        ),
    ] = None,
    sparsity: Annotated[
        float | None,
        typer.Option(help="Share of zeros.", show_default="0.5, or what the pattern implies"),
    ] = None,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover/--no-recover", help="Train what is kept to make up for what is dropped."
        ),
    ] = True,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 60,
    format: Annotated[
        str | None,
        typer.Option(
            help="Packed format as in convert: auto, 2:4, 2:4-int8 (fp8, int4), tiled_bitmap, ...",
            show_default="the pattern, else tiled_bitmap",
        ),
    ] = None,
    option: FormatOption = None,
    samples: Samples = 64,
    length: Length = 256,
    seed: Seed = 0,
    ignore: Ignore = None,
    overwrite: Overwrite = False,
    push: Push = None,
    as_json: ReportAsJson = False,
) -> None:
    """Prune, recover and pack a dense model in one command.

    wanda chooses the zeros; what is kept is fitted to each dense layer and then trained, all layers
    together, to predict as the dense model does; values of 4 bits are rounded as by flashsparse
    round; the result is packed. The time is estimated before it begins. The perplexity is measured
    before and after, on the last tenth of the text, which is used for nothing else.

    After an interruption the same command goes on. For other methods use
    [bold]flashsparse prune[/bold], [bold]recover[/bold] and [bold]convert[/bold].

    \b
    [bold]Examples[/bold]
      flashsparse sparsify MODEL OUT --calibration text.txt
      flashsparse sparsify MODEL OUT --calibration text.txt --pattern 2:4
      flashsparse sparsify MODEL OUT --calibration text.txt --format 2:4-int8
      flashsparse sparsify MODEL OUT --calibration text.txt --format 2:4-int4 \\
          --option group=64
      flashsparse sparsify MODEL OUT --calibration text.txt --sparsity 0.6 \\
          --steps 300
    """
    source = model_directory(model)
    if sparsity is not None and not 0 < sparsity < 1:
        meant = f": was {sparsity / 100:g} meant?" if 1 < sparsity < 100 else ""
        raise usage(f"{sparsity:g} is not a share of zeros between 0 and 1{meant}", "--sparsity")
    publisher = may_push(push)
    options = dict(parse_option(text) for text in option or [])
    with err.status("Starting"):
        from flashsparse_plugin.packed import FormatError
        from flashsparse_plugin.sparsify import TRAINING, require_rule, sparsify_checkpoint

        try:
            require_rule(pattern, sparsity, format, options)
        except FormatError as error:
            raise usage(str(error), "--pattern, --format, --option") from None

    start = time.perf_counter()
    made = sparsify_checkpoint(
        source,
        destination,
        calibration,
        pattern=pattern,
        sparsity=sparsity,
        recover=recover and replace(TRAINING, steps=steps),
        format=format,
        options=options,
        samples=samples,
        length=length,
        seed=seed,
        ignore=["lm_head"] if ignore is None else ignore,
        overwrite=overwrite,
        device=best_device(),
        name=push,
        say=lambda sentence: err.print(Text(sentence)),
        watch=progress if err.is_terminal else None,
    )
    seconds = time.perf_counter() - start
    pushed = do_push(publisher, destination, "Pruned, recovered and packed")
    if as_json:
        print_json(made.to_dict() | {"seconds": seconds, "pushed": pushed})
    else:
        _show(made, calibration, seconds)
        show_pushed(pushed)


def _show(made: Sparsified, calibration: Path, seconds: float) -> None:
    from flashsparse_plugin.pruning.estimate import duration

    assert made.packed is not None
    dense = made.perplexity.get("dense")
    if dense is not None:
        shown = table("", "perplexity", "of dense")
        for name, value in made.perplexity.items():
            shown.add_row(name, f"{value:.4g}", f"{value / dense:.2f} x")
        out.print(shown)
        out.print()
        judged = (
            f"Perplexity: lower is better; of {made.judged_by:,} tokens of the last tenth of "
            f"{calibration}, which pruning and recovering did not see."
        )
        out.print(Text(judged))
        if made.perplexity["packed"] > _MUCH * dense:
            made.notes.append(
                "the model has lost much. More helps: --steps, --samples with more text, a larger "
                "model, or fewer zeros: --sparsity 0.5 without a pattern loses less than 2:4"
            )
    for note in dict.fromkeys(made.notes):
        out.print(Text.assemble(("Note: ", "yellow"), note))
    report = made.packed
    if report.rounding:
        out.print(Text.assemble(("Note: ", "yellow"), report.rounding))
    sizes = f"{size(report.bytes_out)} of {size(report.bytes_source)}"
    out.print(f"Packed to {report.schemes}: {sizes}, in {duration(seconds)}.")
    out.print(Text(f"Written:  {made.out}"), soft_wrap=True)
    out.print(Text(f"Try it:   {try_it(made.out)}"), soft_wrap=True)
    out.print(Text(f"Serve it: vllm serve {made.out}"), soft_wrap=True)
