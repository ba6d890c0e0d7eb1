# SPDX-License-Identifier: Apache-2.0
"""The devices that commands estimate for, and the options that name them."""

from __future__ import annotations

from enum import StrEnum

import typer


class Device(StrEnum):
    H200 = "H200"
    H100 = "H100"
    A100 = "A100"
    cpu = "cpu"
    this = "this"


def for_option(what: str) -> typer.models.OptionInfo:
    """The option --for, whose help begins with `what`."""
    return typer.Option(
        "--for",
        help=f"{what}: {', '.join(Device)}. this: the GPU of this machine, else its CPU.",
        metavar="DEVICE",
        show_default=Device.this.value,
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
