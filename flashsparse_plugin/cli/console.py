# SPDX-License-Identifier: Apache-2.0
"""What every command shares: output streams, tables and errors.

Results go to stdout and progress to stderr, so that a command can be piped. Colours, spinners and
bars are for terminals only.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from flashsparse_plugin.messages import is_out_of_memory, printable


class SafeConsole(Console):
    """A console to which only rich itself sends control sequences.

    What commands show quotes names from files that come from anyone.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None:
                segment = Segment(printable(segment.text), segment.style)
            yield segment


out = SafeConsole(highlight=False)
err = SafeConsole(stderr=True, highlight=False)

DEBUG = "FLASHSPARSE_DEBUG"


def table(*columns: str | Text, left: int = 1) -> Table:
    """Returns an empty table whose first `left` columns hold text and the rest numbers."""
    made = Table(header_style="dim", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right", overflow="fold")
    return made


def size(nbytes: float) -> str:
    """Formats a number of bytes in powers of ten: "93.4 MB"."""
    if nbytes < 999.5:
        return f"{nbytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
    return f"{nbytes / 1000:.3g} TB"


def count(number: float) -> str:
    """Formats a number of weights: "9.95M"."""
    if number < 999.5:
        return f"{number:.0f}"
    for unit in ("k", "M", "G"):
        number /= 1000
        if number < 999.5:
            return f"{number:.3g}{unit}"
    return f"{number / 1000:.3g}T"


def print_json(data: Mapping[str, Any]) -> None:
    """Writes one JSON document to stdout, for programs."""
    typer.echo(json.dumps(data, indent=2, default=str))


def usage(message: str, hint: str | None = None) -> typer.BadParameter:
    """Returns the error of an invalid command line, for the caller to raise (exit code 2)."""
    return typer.BadParameter(message, param_hint=hint)


def print_error(error: BaseException) -> None:
    """Prints an error as one paragraph on stderr."""
    message = str(error).strip() or "no message"
    if is_out_of_memory(error):
        message = f"out of memory: close other programs, or use a larger machine ({message})"
    elif not isinstance(error, (ValueError, OSError, ImportError, RuntimeError)):
        message = f"{type(error).__name__}: {message}"  # not one of ours, whose message suffices
    text = Text.assemble(("Error: ", "bold red"), " ".join(message.split()))
    err.print(text, soft_wrap=not err.is_terminal)


def reported(command: Callable[..., None], when_stopped: str = "") -> Callable[..., None]:
    """Wraps a command so that an error is a message and an exit code, not a traceback.

    Exit codes: 0 done, 1 failed, 2 wrong usage (typer's), 130 stopped by Ctrl-C.

    Args:
        command: The command.
        when_stopped: What to say of a command that was stopped.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            err.print(f"\n[dim]{' '.join(['Stopped.', when_stopped])}[/dim]")
            raise typer.Exit(130) from None
        except Exception as error:
            if os.environ.get(DEBUG) == "1":
                raise
            print_error(error)
            raise typer.Exit(1) from None

    return run
