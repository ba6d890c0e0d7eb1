# SPDX-License-Identifier: Apache-2.0
"""`flashsparse recover`: what is kept of a pruned model makes up for what was dropped."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .console import err, out, print_json, table, usage
from .convert import progress
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
    show_pushed,
)
from .options import (
    CalibrationText,
    Destination,
    Length,
    Overwrite,
    Push,
    ReportAsJson,
    Samples,
    Seed,
    WrittenDtype,
)

if TYPE_CHECKING:
    from flashsparse_plugin.checkpoint.prune.recovered import RecoveryReport
    from flashsparse_plugin.pruning import Fit, LeastSquares, LoRA


class Method(StrEnum):
    least_squares = "least-squares"
    lora = "lora"


def recover(
    pruned: Annotated[
        str, typer.Argument(help=f"Directory of the pruned model, {MODEL}.", metavar="PRUNED")
    ],
    dense: Annotated[
        str,
        typer.Argument(help="Directory of the dense model, before pruning.", metavar="DENSE"),
    ],
    destination: Destination,
    calibration: CalibrationText,
    samples: Samples = 128,
    length: Length = 512,
    seed: Seed = 0,
    method: Annotated[
        Method,
        typer.Option(
            "--method",
            help="least-squares fits layer by layer; lora trains all layers together.",
            metavar="METHOD",
        ),
    ] = Method.least_squares,
    steps: Annotated[
        int | None,
        typer.Option(
            help="least-squares: conjugate gradient steps per weight; lora: training steps.",
            show_default="10; lora 100",
        ),
    ] = None,
    ridge: Annotated[
        float | None,
        typer.Option(
            help="least-squares: how strongly weights are kept near their old values.",
            show_default="0.1",
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="lora: rank of each update.", show_default="16")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="lora: learning rate.", show_default="0.001")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="lora: windows a step.", show_default="2")
    ] = None,
    dtype: WrittenDtype = Dtype.auto,
    overwrite: Overwrite = False,
    push: Push = None,
    as_json: ReportAsJson = False,
) -> None:
    """Recover from pruning: update the kept weights towards the dense model.

    Layer by layer, pruned weights are fitted by least squares so that their outputs on a text come
    as close to those of the dense weights as the zeros allow. Or low-rank updates of all layers are
    trained so that the model predicts as the dense one does (--method lora). All zeros stay. OUT
    appears when it is complete; after an interruption the same command goes on.

    \b
    [bold]Examples[/bold]
      flashsparse recover PRUNED MODEL OUT --calibration text.txt
      flashsparse recover PRUNED MODEL OUT --calibration text.txt \\
          --samples 32 --length 256
      flashsparse recover PRUNED MODEL OUT --calibration text.txt --method lora
    """
    source, original = model_directory(pruned), model_directory(dense)
    given = {"steps": steps, "ridge": ridge, "rank": rank, "rate": rate, "batch": batch}
    how = _settings(method, {name: value for name, value in given.items() if value is not None})
    publisher = may_push(push)

    from flashsparse_plugin.checkpoint import ModelDirectory
    from flashsparse_plugin.checkpoint.card.record import Calibration
    from flashsparse_plugin.checkpoint.prune.recovered import write_recovered
    from flashsparse_plugin.checkpoint.read.linears import StoredModel
    from flashsparse_plugin.pruning import few_tokens
    from flashsparse_plugin.sparsify import write_recovered_card

    start = time.perf_counter()
    with err.status(f"Loading {model_name(source)} and {model_name(original)}"):
        windows = draw_windows(source, calibration, samples, length, seed)
        device = best_device()
        opened = [ModelDirectory(path) for path in (source, original)]
        computed = fastest(dtype, opened[0], device)
        models = [load_model(each, computed, dense=True, device=device) for each in opened]
        stored = StoredModel(opened[0])
    if note := few_tokens(models[0], windows):
        err.print(Text.assemble(("Note: ", "yellow"), note))

    def card(path: Path, report: RecoveryReport) -> None:
        windows_of = Calibration.of(calibration, samples, length, seed)
        name = push or destination.name
        write_recovered_card(path, stored, models[0], original, report, windows_of, name)

    with progress("Recovering") as on_progress:
        report = write_recovered(
            stored,
            models[0],
            opened[1],
            models[1],
            windows,
            destination,
            how,
            overwrite,
            on_progress,
            card,
            as_stored=dtype is Dtype.auto,
        )
    for warning in report.warnings:
        err.print(Text.assemble(("Note: ", "yellow"), warning))
    seconds = time.perf_counter() - start
    pushed = do_push(publisher, destination, f"Recovered by {method.value}")
    if as_json:
        paths = {"pruned": str(source), "dense": str(original), "out": str(destination)}
        print_json(paths | {"seconds": seconds, "pushed": pushed} | report.to_dict())
    else:
        _show(report, destination, seconds)
        show_pushed(pushed)


def _settings(method: Method, given: dict[str, Any]) -> LeastSquares | LoRA:
    """What is said of a method, as it takes it."""
    from flashsparse_plugin.pruning import LeastSquares, LoRA

    kind = LoRA if method is Method.lora else LeastSquares
    for name in given:
        if name not in {field.name for field in fields(kind)}:
            other = next(each.value for each in Method if each is not method)
            raise usage(f"this is for --method {other}, not for {method.value}", f"--{name}")
    try:
        return kind(**given)
    except ValueError as error:
        raise usage(str(error), " ".join(f"--{name}" for name in given)) from None


def _show(report: RecoveryReport, destination: Path, seconds: float) -> None:
    from flashsparse_plugin.pruning import LoRA

    if isinstance(report.method, LoRA):
        made = table("", "before", "after")
        made.add_row(
            "divergence from the dense model", f"{report.before:.4g}", f"{report.after:.4g}"
        )
        meaning = "In nats a token, of the next-token distribution on some calibration windows."
        unit = "steps"
    else:
        made = errors_by_kind(report.fits, "error before", "after")
        meaning = "Error: |y - y_dense|^2 / |y_dense|^2 of a layer's outputs; lower is better."
        unit = "decoder layers"
    out.print(made)
    out.print()
    out.print(meaning)
    how = f"{seconds:.0f} s"
    if report.resumed:
        how += f", {report.resumed} {unit} kept from the interrupted run"
    out.print(Text(f"Recovered ({how}): {destination}"), soft_wrap=True)
    how = _format_option(destination)
    out.print(Text(f"Pack it:  flashsparse convert {destination} PACKED{how}"), soft_wrap=True)


def _format_option(destination: Path) -> str:
    """The option that names the pattern which the model was pruned by, as its card has it."""
    from huggingface_hub import ModelCard

    history = ModelCard.load(destination / "README.md").data.to_dict().get("pruning", {})
    found = re.fullmatch(r"(\d+:\d+)(?: in vectors of (\d+))?.*", history.get("pattern", ""))
    if not history:
        return " --format auto"  # a script of their own pruned it, to a pattern or not
    if found is None:
        return ""  # the default is for zeros anywhere
    return f" --format {found[1]}{f'-L{found[2]}' if found[2] else ''}"


def errors_by_kind(fits: Iterable[Fit], *headings: str) -> Table:
    """Of each kind of layer the mean error, before and after."""
    kinds: dict[str, list[tuple[float, float]]] = {}
    for fit in fits:
        kinds.setdefault(fit.name.rpartition(".")[2], []).append((fit.before, fit.after))
    made = table("Kind", "layers", *headings, "")

    def cells(errors: list[tuple[float, float]]) -> list[str]:
        before, after = (sum(each) / len(errors) for each in zip(*errors, strict=True))
        left = f"{after / before:.0%}" if before else ""
        return [f"{len(errors)}", f"{before:.1%}", f"{after:.1%}", left]

    for kind, errors in kinds.items():
        made.add_row(Text(kind), *cells(errors))
    made.add_section()
    made.add_row("all", *cells([e for each in kinds.values() for e in each]), style="bold")
    return made
