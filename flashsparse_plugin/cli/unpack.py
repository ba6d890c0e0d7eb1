# SPDX-License-Identifier: Apache-2.0
"""`flashsparse unpack`: a packed checkpoint in, a dense one out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .console import err, out, print_json, size, usage
from .convert import progress
from .models import MODEL, do_push, may_push, model_directory, show_pushed
from .options import Destination, Overwrite, Push, ReportAsJson

if TYPE_CHECKING:
    from flashsparse_plugin.checkpoint.convert.unpacker import UnpackReport


def unpack(
    source: Annotated[
        str, typer.Argument(help=f"Directory of the packed model, {MODEL}.", metavar="PACKED")
    ],
    destination: Destination,
    max_shard_size: Annotated[
        str, typer.Option(help="Largest weight file.", metavar="SIZE")
    ] = "5GB",
    overwrite: Overwrite = False,
    push: Push = None,
    as_json: ReportAsJson = False,
) -> None:
    """Write the dense model of a packed one, with its zeros in place.

    OUT is an ordinary checkpoint that anything loads. Values that were rounded when they were
    packed (int8, fp8, int4) stay the rounded ones; all others are those of the source, bit for bit.

    One layer is in memory at a time, and everything written is read back and compared. After an
    interruption the same command goes on.

    \b
    [bold]Examples[/bold]
      flashsparse unpack PACKED OUT
      flashsparse unpack PACKED OUT --max-shard-size 2GB --overwrite
    """
    directory = model_directory(source)
    with err.status("Starting"):
        from flashsparse_plugin.checkpoint.convert.unpacker import unpack_checkpoint
        from flashsparse_plugin.checkpoint.convert.values import parse_size

    try:
        parse_size(max_shard_size)
    except ValueError as error:
        raise usage(str(error), "--max-shard-size") from None
    publisher = may_push(push)
    start = time.perf_counter()
    with progress("Unpacking") as on_progress:
        report = unpack_checkpoint(
            directory,
            destination,
            max_shard_size=max_shard_size,
            overwrite=overwrite,
            on_progress=on_progress,
            name=push,
        )
    seconds = time.perf_counter() - start
    pushed = do_push(publisher, destination, "Unpacked")
    if as_json:
        print_json(report.to_dict() | {"seconds": seconds, "pushed": pushed})
    else:
        _show(report, seconds)
        show_pushed(pushed)


def _show(report: UnpackReport, seconds: float) -> None:
    for scheme, layers in report.schemes.items():
        out.print(Text(f"{layers} layers of {scheme}"))
    if report.rounded:
        rounded = f"the values of {report.rounded} layers were rounded when they were packed; "
        told = Text.assemble(("Note: ", "yellow"), rounded, "OUT has the rounded ones")
        out.print(told)
    for warning in report.warnings:
        out.print(Text.assemble(("Note: ", "yellow"), warning))
    how = f"{report.zeros.sparsity:.1%} zeros, {size(report.bytes_source)} to "
    how += f"{size(report.bytes_out)}, {seconds:.0f} s"
    if report.resumed_shards:
        how += f", {report.resumed_shards} files kept from the interrupted run"
    out.print(Text(f"Unpacked and verified ({how}): {report.out}"), soft_wrap=True)
