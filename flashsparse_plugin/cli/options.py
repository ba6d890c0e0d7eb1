# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .models import DTYPES, MODEL, PUSH, Dtype

DenseModel = Annotated[
    str, typer.Argument(help=f"Directory of the dense model, {MODEL}.", metavar="MODEL")
]
Destination = Annotated[
    Path, typer.Argument(help="Directory to write; must not exist.", metavar="OUT")
]


_TEXT = typer.Option(
    help="Text of the kind the model will see.", exists=True, dir_okay=False, readable=True
)
CalibrationText = Annotated[Path, _TEXT]
OptionalText = Annotated[Path | None, _TEXT]
FormatOption = Annotated[
    list[str] | None,
    typer.Option(help="Option of the format, such as group=64.", metavar="NAME=VALUE"),
]
Samples = Annotated[int, typer.Option(min=1, help="Calibration windows.")]
Length = Annotated[int, typer.Option(min=1, help="Tokens per window.")]
Seed = Annotated[int, typer.Option(help="Seed for sampling windows.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        help="Layer to leave dense: a name or re:PATTERN. Can be repeated.", show_default="lm_head"
    ),
]
WrittenDtype = Annotated[
    Dtype,
    typer.Option("--dtype", help=f"Dtype of the written weights: {DTYPES}.", metavar="DTYPE"),
]
ActivationsDtype = Annotated[
    Dtype, typer.Option("--dtype", help=f"Dtype of the activations: {DTYPES}.", metavar="DTYPE")
]


def recipe_option(instead: str) -> typer.models.OptionInfo:
    """The option --recipe, whose help ends in what it stands for."""
    return typer.Option(
        help=f"What flashsparse fit chose for each layer, {instead}.",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        readable=True,
    )


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a model at OUT.")]
Push = Annotated[str | None, typer.Option(help=PUSH, metavar="ORG/NAME")]
ReportAsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
