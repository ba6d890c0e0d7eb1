# SPDX-License-Identifier: Apache-2.0
"""The devices that commands estimate for, and the options that name them."""

from __future__ import annotations

import typer

from flashsparse_plugin.data_sheets import gpu_name, gpu_names

from .console import usage

CPU, THIS = "cpu", "this"


def _known(text: str | None) -> str | None:
    """A device's own name; typer's callback."""
    if text is None or text in (CPU, THIS):
        return text
    name = gpu_name(text)
    if name is None:
        raise usage(f"{text!r} is not one of {gpu_names()}, {CPU}, {THIS}", "--for")
    return name


def for_option(what: str) -> typer.models.OptionInfo:
    """The option --for, whose help begins with `what`."""
    return typer.Option(
        "--for",
        help=f"{what}: {gpu_names()}, {CPU}. {THIS}: the GPU of this machine, else its CPU. "
        "Measured on an H200 and an H100, estimated on others.",
        metavar="DEVICE",
        show_default=THIS,
        callback=_known,
    )


def batch_option() -> typer.models.OptionInfo:
    """The option --batch beside --for."""
    return typer.Option(
        "--batch",
        min=1,
        max=1 << 16,
        help="Sequences decoded at once there.",
        metavar="N",
        show_default="8",
    )
