# SPDX-License-Identifier: Apache-2.0
"""`flashsparse convert`: a dense checkpoint with zeros in, a packed checkpoint out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from flashsparse_plugin.names import AUTO, DEFAULT_FORMAT, DENSE

from .console import err, out, print_json, size, table, usage
from .devices import batch_option, for_option
from .models import (
    MODEL,
    do_push,
    may_push,
    model_directory,
    parse_option,
    show_pushed,
    try_it,
)
from .options import Destination, Ignore, Overwrite, Push, ReportAsJson, recipe_option

if TYPE_CHECKING:
    from flashsparse_plugin.checkpoint import ConversionReport
    from flashsparse_plugin.packed import Format, Scheme

# Recipes name layers, and no experts.
_EXPERTS = r"re:.*\.experts\.\d+\.\w+"
_COARSE = 0.04  # an error of weights: more than of 8 bits, less than of 4
_FEW_SCHEMES = 2  # that fit in a sentence
_NOT_FITTED = {"format": DENSE, "reason": "experts, which recipes do not name"}


def convert(
    source: Annotated[
        str, typer.Argument(help=f"Directory of the pruned model, {MODEL}.", metavar="SRC")
    ],
    destination: Destination,
    format: Annotated[
        str | None,
        typer.Option(
            help="Packed format, or a pattern: 2:4, 2:4-int8 (fp8, int4), 8:32-L32 (32 rows share "
            "it). auto: for each layer the fastest one, or dense.",
            show_default=f"{DEFAULT_FORMAT}; for quantized models the one that holds their values",
        ),
    ] = None,
    device: Annotated[str | None, for_option("What auto chooses for")] = None,
    batch: Annotated[int | None, batch_option()] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the format. Can be repeated.", metavar="NAME=VALUE"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Round all matrices to it: float16 or bfloat16.", show_default="as they are"
        ),
    ] = None,
    recipe: Annotated[Path | None, recipe_option("in place of --format")] = None,
    ignore: Ignore = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="Pack the output head, and a tied embedding with it: int8, fp8 or lossless.",
            show_default="as it is",
        ),
    ] = None,
    pack_all: Annotated[
        bool, typer.Option("--pack-all", help="Also pack layers that get larger.")
    ] = False,
    max_shard_size: Annotated[
        str, typer.Option(help="Largest weight file.", metavar="SIZE")
    ] = "5GB",
    overwrite: Overwrite = False,
    push: Push = None,
    as_json: ReportAsJson = False,
) -> None:
    """Pack a pruned model: store its linear layers without their zeros.

    One layer is in memory at a time, and everything written is read back and compared with the
    source. OUT appears when it is complete; after an interruption the same command goes on.

    Layers that would be larger packed than dense stay dense, and lm_head does. With --format auto
    those do that would be slower.

    \b
    [bold]Examples[/bold]
      flashsparse convert PRUNED OUT
      flashsparse convert PRUNED OUT --format auto --for H200 --batch 16
      flashsparse convert PRUNED OUT --dtype bfloat16 --overwrite
      flashsparse convert PRUNED OUT --ignore lm_head --ignore 're:.*layers\\.0\\.'
      flashsparse convert PRUNED OUT --format 2:4-int8
      flashsparse convert PRUNED OUT --format nm_vector \\
          --option n=2 --option m=4 --option values=int4 --option group=64
      flashsparse convert PRUNED OUT --format auto --head int8
      flashsparse convert PRUNED OUT --pack-all --json
    """
    directory = model_directory(source)
    options = dict(parse_option(text) for text in option or [])
    ignore = ["lm_head"] if ignore is None else ignore
    with err.status("Starting"):
        from flashsparse_plugin.checkpoint import (
            CheckpointError,
            ModelDirectory,
            convert_checkpoint,
        )
        from flashsparse_plugin.checkpoint.convert.keeping import target_of
        from flashsparse_plugin.checkpoint.convert.values import parse_size
        from flashsparse_plugin.config import FlashSparseConfig
        from flashsparse_plugin.fitting import Recipe
        from flashsparse_plugin.formats import get_format
        from flashsparse_plugin.formats.values.dtypes import parse_dtype
        from flashsparse_plugin.matching import matches

    layers = None
    if recipe is not None:
        if format is not None or options:
            raise usage("the recipe names the formats: leave --format and --option out", "--recipe")
        layers, pack_all = {**Recipe.read(recipe).formats, _EXPERTS: _NOT_FITTED}, True
    opened = ModelDirectory(directory)
    try:
        target, wanted = target_of(opened, format, options)
        known = DEFAULT_FORMAT if target == AUTO else target
        get_format(known)
    except CheckpointError:
        raise
    except ValueError as error:
        raise usage(f"{error}. auto chooses for each layer", "--format") from None
    if target != AUTO and (device, batch) != (None, None):
        raise usage(f"only --format {AUTO} chooses by it, and this is {target}", "--for, --batch")
    if target == AUTO and (wanted or pack_all):
        raise usage(f"--format {AUTO} chooses options and layers itself", "--option, --pack-all")
    for check, name in (
        (lambda: dtype and parse_dtype(dtype, get_format(known).dtypes), "--dtype"),
        (lambda: _scheme(get_format(known), wanted), "--option"),
        (lambda: parse_size(max_shard_size), "--max-shard-size"),
        (lambda: matches("", ignore), "--ignore"),
        (lambda: FlashSparseConfig(head=head), "--head"),
    ):
        try:
            check()
        except ValueError as error:
            raise usage(str(error), name) from None
    publisher = may_push(push)
    start = time.perf_counter()
    with progress("Converting") as on_progress, _own_warnings():
        report = convert_checkpoint(
            opened,
            destination,
            format=format,
            options=options,
            layers=layers,
            dtype=dtype,
            ignore=ignore,
            pack_all=pack_all,
            max_shard_size=max_shard_size,
            overwrite=overwrite,
            on_progress=on_progress,
            name=push,
            device=device,
            batch=batch,
            head=head,
        )
    seconds = time.perf_counter() - start
    pushed = do_push(publisher, destination, f"Packed to {report.format}")
    if as_json:
        print_json({**report.to_dict(), "seconds": seconds, "pushed": pushed})
    else:
        _show(report, seconds)
        show_pushed(pushed)


def _scheme(format: Format, options: Mapping[str, Any]) -> Scheme:
    return format.scheme(format.dtypes[-1], options)


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Shows a bar while the block runs, on a terminal; yields what is to be called with news."""
    bar = Progress(
        TextColumn(title),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.description}"),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    with bar:
        task = bar.add_task("")
        yield lambda done, total, what: bar.update(
            task, completed=done, total=total, description=_short(what)
        )


def _short(what: str, width: int = 44) -> str:
    return what if len(what) <= width else "…" + what[1 - width :]


@contextmanager
def _own_warnings() -> Iterator[None]:
    """Keeps the library's warnings out of the log: the report has them, and is shown."""
    logger = logging.getLogger("flashsparse_plugin.checkpoint")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _show(report: ConversionReport, seconds: float) -> None:
    from flashsparse_plugin.checkpoint.write.report import by_kind, counted_schemes, mean_sparsity

    made = table("Kind", "packed", "shape", "zeros", "dense", "here", "")
    for kind, layers in by_kind(x for x in report.layers if x.sparsity is not None).items():
        shapes = sorted({x.shape for x in layers})
        shape = f"{shapes[0][0]} x {shapes[0][1]}" if len(shapes) == 1 else f"{len(shapes)} shapes"
        dense, here = (sum(getattr(x, f"bytes_{k}") for x in layers) for k in ("dense", "written"))
        made.add_row(
            Text(kind),
            f"{sum(x.is_packed for x in layers)} of {len(layers)}",
            shape,
            f"{mean_sparsity(layers):.1%}",
            size(dense),
            size(here),
            f"{here / dense:.0%}",
        )
    linear = [x for x in report.layers if x.sparsity is not None]
    dense, here = (sum(getattr(x, f"bytes_{k}") for x in linear) for k in ("dense", "written"))
    made.add_row("everything else", "", "", "", "", size(report.bytes_out - here), "")
    made.add_section()
    made.add_row(
        "model",
        f"{len(report.packed)} of {len(report.layers)}",
        "",
        "",
        size(report.bytes_source),
        size(report.bytes_out),
        f"{report.bytes_out / report.bytes_source:.0%}",
        style="bold",
    )
    out.print(made)
    out.print()
    for choice in report.choices:
        out.print(Text.assemble(("auto: ", "cyan"), choice))
    for warning in report.warnings:
        out.print(Text.assemble(("Note: ", "yellow"), warning))
    if report.rounding:
        out.print(Text.assemble(("Note: ", "yellow"), report.rounding))
        if any((layer.error or 0) > _COARSE for layer in report.inexact):
            told = "flashsparse round, before convert, halves what that costs the layers' outputs"
            out.print(Text.assemble(("Note: ", "yellow"), told))
    counted, schemes = counted_schemes(report.packed), report.schemes
    if len(counted) > _FEW_SCHEMES:
        schemes = f"{len(counted)} formats"
        for title, count in counted:
            out.print(Text.assemble((f"{count:>5} layers: ", "cyan"), title))
    how = f"{schemes}, {report.dtype}, {seconds:.0f} s"
    if report.resumed_shards:
        how += f", {report.resumed_shards} files kept from the interrupted run"
    out.print(Text(f"Packed and verified ({how}): {report.out}"), soft_wrap=True)
    out.print(Text(f"Try it:   {try_it(report.out)}"), soft_wrap=True)
    out.print(Text(f"Serve it: vllm serve {report.out}"), soft_wrap=True)
