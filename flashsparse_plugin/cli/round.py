# SPDX-License-Identifier: Apache-2.0
"""`flashsparse round`: rounds weights to 4 bits so that outputs change least."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from flashsparse_plugin.names import LM_HEAD

from .console import err, out, print_json, usage
from .models import (
    MODEL,
    Dtype,
    best_device,
    do_push,
    draw_windows,
    fastest,
    load_model,
    may_push,
    model_directory,
    model_name,
    parse_option,
    refuse_existing,
    show_pushed,
)
from .options import (
    CalibrationText,
    Destination,
    FormatOption,
    Ignore,
    Length,
    Push,
    ReportAsJson,
    Samples,
    Seed,
    recipe_option,
)
from .recover import errors_by_kind

if TYPE_CHECKING:
    from flashsparse_plugin.formats.values.quantization import Quantization
    from flashsparse_plugin.pruning import Fit


def round(
    model: Annotated[
        str,
        typer.Argument(
            help=f"Directory of the model, pruned and recovered or not, {MODEL}.", metavar="MODEL"
        ),
    ],
    destination: Destination,
    calibration: CalibrationText,
    format: Annotated[
        str | None,
        typer.Option(
            help="Format to convert to next, of 4 bits: 2:4-int4, hybrid-int4, 1:1-L128-int4 "
            "(no zeros).",
            show_default="that of --recipe",
        ),
    ] = None,
    option: FormatOption = None,
    recipe: Annotated[Path | None, recipe_option("in place of --format")] = None,
    samples: Samples = 128,
    length: Length = 512,
    seed: Seed = 0,
    ignore: Ignore = None,
    push: Push = None,
    as_json: ReportAsJson = False,
) -> None:
    """Round weights to 4 bits so that each layer's outputs on a text change least (GPTQ).

    What rounding a column costs is made up for by the columns beside it, where convert alone takes
    the nearest code for each weight. OUT becomes an ordinary dense checkpoint, as large as before,
    of weights that the format holds; zeros stay. It is the last step before [bold]flashsparse
    convert[/bold].

    \b
    [bold]Examples[/bold]
      flashsparse round PRUNED OUT --format 2:4-int4 --option group=64 \\
          --calibration text.txt
      flashsparse round MODEL OUT --recipe recipe.json --calibration text.txt
    """
    source = model_directory(model)
    if (format is None) == (recipe is None):
        raise usage("give either --format or --recipe", "--format")
    if recipe is not None and option:
        raise usage("the recipe names the formats: leave --option out", "--recipe")
    refuse_existing(destination)
    publisher = may_push(push)
    options = dict(parse_option(text) for text in option or [])
    with err.status("Starting"):
        from flashsparse_plugin.checkpoint import ModelDirectory
        from flashsparse_plugin.checkpoint.card.record import Calibration
        from flashsparse_plugin.checkpoint.prune.pruned import unwritable_experts
        from flashsparse_plugin.checkpoint.prune.rounded import write_rounded
        from flashsparse_plugin.checkpoint.read.linears import StoredModel
        from flashsparse_plugin.checkpoint.write.room import require_room
        from flashsparse_plugin.fitting import Recipe
        from flashsparse_plugin.packed import FormatError
        from flashsparse_plugin.pruning import prunable_linears, rounding_of
        from flashsparse_plugin.sparsify import write_rounded_card

    # What is to be rounded is known before a model is loaded.
    by_layer: dict[str, Quantization] = {}
    everywhere: Quantization | None = None
    if recipe is not None:
        by_layer = Recipe.read(recipe).roundings
        if not by_layer:
            raise usage("no layer of the recipe has 4 bits: pack the model as it is", "--recipe")
    else:
        try:
            everywhere = rounding_of(str(format), options)
        except FormatError as error:
            raise usage(str(error), "--format, --option") from None
        if everywhere is None:
            raise usage(
                f"{format} does not store values in 4 bits, and 8 bits lose too little to make up "
                "for: pack the model as it is, or choose 2:4-int4, hybrid-int4 or 1:1-L128-int4",
                "--format",
            )

    start = time.perf_counter()
    directory = ModelDirectory(source)
    require_room(destination, directory.nbytes)
    with err.status(f"Loading {model_name(source)}"):
        device = best_device()
        computed = fastest(Dtype.auto, directory, device)
        loaded = load_model(directory, computed, dense=True, device=device)
        stored = StoredModel(directory)
        windows = draw_windows(source, calibration, samples, length, seed)
    untouched = [*([LM_HEAD] if ignore is None else ignore), *stored.unfit()]
    untouched += unwritable_experts(stored)
    linears = prunable_linears(loaded, untouched, experts=True)
    if everywhere is not None:
        by_layer = dict.fromkeys(linears, everywhere)
    elif unknown := by_layer.keys() - linears.keys():
        raise usage(f"it names {min(unknown)!r}, which is no layer of the model", "--recipe")

    def card(path: Path, fits: list[Fit]) -> None:
        text_of = Calibration.of(calibration, samples, length, seed)
        name = push or destination.name
        shown = " ".join([format, *(option or [])]) if format else "by layer"
        write_rounded_card(path, directory, linears, fits, shown, text_of, name)

    fits, notes = write_rounded(
        stored,
        loaded,
        linears,
        by_layer,
        windows,
        destination,
        card,
        err.is_terminal,
    )
    for note in notes:
        err.print(Text.assemble(("Note: ", "yellow"), note))
    seconds = time.perf_counter() - start
    pushed = do_push(publisher, destination, "Rounded to 4 bits")
    if as_json:
        told = {"model": str(source), "out": str(destination), "seconds": seconds, "pushed": pushed}
        print_json(told | {"layers": [vars(fit) for fit in fits]})
        return
    out.print(errors_by_kind(fits, "nearest codes", "these codes"))
    out.print()
    out.print("Error: |y - y_before|^2 / |y_before|^2 of a layer's outputs; lower is better.")
    out.print(Text(f"Rounded ({seconds:.0f} s): {destination}"), soft_wrap=True)
    how = f"--recipe {recipe}" if recipe else f"--format {format}"
    how += "".join(f" --option {text}" for text in option or [])
    out.print(Text(f"Pack it:  flashsparse convert {destination} PACKED {how}"), soft_wrap=True)
    show_pushed(pushed)
