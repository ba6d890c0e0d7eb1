# SPDX-License-Identifier: Apache-2.0
"""The command `flashsparse`: one file a command.

Everything here starts fast: a command's module imports typer and rich, and torch, transformers or
vLLM only once the command runs.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import flashsparse_plugin

from .advise import advise
from .bench import bench
from .calibrate import calibrate
from .console import out, reported
from .convert import convert
from .doctor import doctor
from .eval import eval
from .fit import fit
from .generate import generate
from .inspect import inspect
from .prune import prune
from .recover import recover
from .round import round
from .sparsify import sparsify
from .tune import tune
from .unpack import unpack


def _plain_flags(params: list[Any]) -> list[Any]:
    """Flags show no type in the help, where typer prints `<bool>` beside them."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class _Group(TyperGroup):
    """All commands together."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))


class _Command(TyperCommand):
    """A command whose help flows at any width: typer keeps the lines of the source."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        paragraphs = (settings.get("help") or "").split("\n\n")
        flowing = [text if "\b" in text else " ".join(text.split()) for text in paragraphs]
        super().__init__(*args, **settings | {"help": "\n\n".join(flowing)})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:  # typer's own words are pydantic's
            error.message = error.message.removeprefix("Value error, ")
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))


app = typer.Typer(
    cls=_Group,
    name="flashsparse",
    help="Prune, pack, inspect and run language models with sparse weights.",
    epilog="Each command has examples: [bold]flashsparse COMMAND --help[/bold]. "
    "FLASHSPARSE_DEBUG=1 shows the traceback of an error.",
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"flashsparse {flashsparse_plugin.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _flashsparse(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_COMMANDS = (
    *(sparsify, fit, prune, recover, round, convert, unpack, inspect, generate),
    *(eval, advise, bench, tune, calibrate, doctor),
)
for command in _COMMANDS:
    resumes = command in (sparsify, convert, recover, unpack)
    app.command(command.__name__, cls=_Command)(
        reported(command, "The same command goes on." if resumes else "")
    )


def main() -> None:
    """Runs the command line; the entry point of the script `flashsparse`."""
    # Transformers imports torchao where it is installed, which tells of kernels for other GPUs, and
    # torch of its enums; lm-eval wonders that it is given a model.
    for name in ("torchao", "torch.utils._pytree", "lm_eval"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Typer reads the options of every command before it runs one, which takes longer than some run.
    asked = [each for each in app.registered_commands if each.name in sys.argv[1:2]]
    app.registered_commands = asked or app.registered_commands
    app(prog_name="flashsparse")
