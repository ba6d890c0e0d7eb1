# SPDX-License-Identifier: Apache-2.0
"""`flashsparse recover`: fits what is kept of a pruned model to the dense model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .console import err, out, print_json, table, usage
from .convert import progress
from .models import (
    DTYPES,
    MODEL,
    PUSH,
    Dtype,
    best_device,
    do_push,
    load_model,
    load_tokenizer,
    may_push,
    model_directory,
    model_name,
    show_pushed,
)

if TYPE_CHECKING:
    from flashsparse_plugin.checkpoint.recovered import RecoveryReport


def recover(
    pruned: Annotated[
        str, typer.Argument(help=f"Directory of the pruned model, {MODEL}.", metavar="PRUNED")
    ],
    dense: Annotated[
        str,
        typer.Argument(help="The same of the model before it was pruned.", metavar="DENSE"),
    ],
    destination: Annotated[
        Path, typer.Argument(help="Directory to write; must not exist.", metavar="OUT")
    ],
    calibration: Annotated[
        Path,
        typer.Option(
            help="Text of the kind the model will see.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ],
    samples: Annotated[int, typer.Option(min=1, help="Calibration windows.")] = 128,
    length: Annotated[int, typer.Option(min=1, help="Tokens per window.")] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the places that windows are taken from.")] = 0,
    ridge: Annotated[
        float, typer.Option(help="How strongly weights are held where they are; above 0.")
    ] = 0.1,
    steps: Annotated[int, typer.Option(min=1, help="Conjugate gradient steps a weight.")] = 10,
    dtype: Annotated[
        Dtype, typer.Option(help=f"Dtype of the written weights: {DTYPES}.", metavar="DTYPE")
    ] = Dtype.auto,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is at OUT.")
    ] = False,
    push: Annotated[str | None, typer.Option(help=PUSH, metavar="ORG/NAME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Make up for pruning: fit the kept weights to the dense model.

    Layer by layer, pruned weights are fitted by least squares so that their outputs on a text come
    as close to those of the dense weights as the zeros allow. Nothing is trained, and all zeros
    stay. OUT appears when it is complete; after an interruption the same command goes on.

    \b
    [bold]Examples[/bold]
      flashsparse recover PRUNED MODEL OUT --calibration text.txt
      flashsparse recover PRUNED MODEL OUT --calibration text.txt \\
          --samples 32 --length 256
    """
    source, original = model_directory(pruned), model_directory(dense)
    if ridge <= 0:
        raise usage(f"{ridge:g} holds nothing: choose a number above 0", "--ridge")
    publisher = may_push(push)

    from flashsparse_plugin.checkpoint import ModelDirectory
    from flashsparse_plugin.checkpoint.card import write_pruned_card
    from flashsparse_plugin.checkpoint.linears import StoredModel
    from flashsparse_plugin.checkpoint.places import hub_name
    from flashsparse_plugin.checkpoint.pruning_record import Calibration, Recovery, word
    from flashsparse_plugin.checkpoint.recovered import write_recovered
    from flashsparse_plugin.modules import linear_modules
    from flashsparse_plugin.pruning import calibration_windows
    from flashsparse_plugin.pruning.layers import report as zeros_of

    start = time.perf_counter()
    with err.status(f"Loading {model_name(source)} and {model_name(original)}"):
        text = calibration.read_text(encoding="utf-8", errors="replace")
        windows = calibration_windows(load_tokenizer(source), text, samples, length, seed)
        device = best_device()
        models = [load_model(path, dtype, dense=True, device=device) for path in (source, original)]
        stored = StoredModel(ModelDirectory(source))

    def card(path: Path, report: RecoveryReport) -> None:
        windows_of = Calibration.of(calibration, samples, length, seed)
        names = {"dense": word(model_name(original)), "calibration": windows_of}
        done = Recovery(before=report.before, after=report.after, **names)
        linears = linear_modules(models[0])
        zeros = zeros_of("", {fit.name: linears[fit.name] for fit in report.layers})
        name = push or destination.name
        write_pruned_card(path, stored.directory, done, zeros, name, hub_name(original))

    with progress("Recovering") as on_progress:
        report = write_recovered(
            stored,
            models[0],
            ModelDirectory(original),
            models[1],
            windows,
            destination,
            ridge,
            steps,
            overwrite,
            on_progress,
            card,
        )
    for warning in report.warnings:
        err.print(Text.assemble(("Note: ", "yellow"), warning))
    seconds = time.perf_counter() - start
    pushed = do_push(publisher, destination, "Recovered by least squares")
    if as_json:
        paths = {"pruned": str(source), "dense": str(original), "out": str(destination)}
        print_json(paths | {"seconds": seconds, "pushed": pushed} | report.to_dict())
    else:
        _show(report, destination, seconds)
        show_pushed(pushed)


def _show(report: RecoveryReport, destination: Path, seconds: float) -> None:
    kinds: dict[str, list[tuple[float, float]]] = {}
    for fit in report.layers:
        kinds.setdefault(fit.name.rpartition(".")[2], []).append((fit.before, fit.after))
    made = table("Kind", "layers", "error before", "after", "")

    def cells(errors: list[tuple[float, float]]) -> list[str]:
        before, after = (sum(each) / len(errors) for each in zip(*errors, strict=True))
        left = f"{after / before:.0%}" if before else ""
        return [f"{len(errors)}", f"{before:.1%}", f"{after:.1%}", left]

    for kind, errors in kinds.items():
        made.add_row(Text(kind), *cells(errors))
    made.add_section()
    made.add_row("all", *cells([e for each in kinds.values() for e in each]), style="bold")
    out.print(made)
    out.print()
    out.print("An error is the squared distance from the dense layer's outputs, over their size.")
    how = f"{seconds:.0f} s"
    if report.resumed:
        how += f", {report.resumed} decoder layers kept from the interrupted run"
    out.print(Text(f"Recovered ({how}): {destination}"), soft_wrap=True)
    out.print(Text(f"Pack it:  flashsparse convert {destination} PACKED"), soft_wrap=True)
