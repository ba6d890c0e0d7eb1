# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: help, version, errors, and how little it imports."""

import re
import subprocess
import sys
from io import StringIO
from typing import get_type_hints

import pytest
import typer
from rich.panel import Panel
from rich.text import Text
from typer.models import OptionInfo
from typer.testing import CliRunner

import flashsparse_plugin as fs
from flashsparse_plugin.cli import app
from flashsparse_plugin.cli.console import SafeConsole, reported, size, table
from flashsparse_plugin.messages import printable

COMMANDS = sorted(command.callback.__name__ for command in app.registered_commands)


def flashsparse(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_no_arguments_show_the_help():
    result = flashsparse()
    assert result.exit_code == 0
    assert all(command in result.stdout for command in COMMANDS)
    assert flashsparse("--help").stdout == result.stdout


def test_version():
    result = flashsparse("--version")
    assert result.exit_code == 0
    assert result.stdout == f"flashsparse {fs.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_examples(command):
    result = flashsparse(command, "--help")
    assert result.exit_code == 0
    assert f"flashsparse {command}" in result.stdout.partition("Examples")[2]


def test_help_of_all_shows_no_types_of_flags():
    assert "<bool>" not in CliRunner().invoke(app, ["--help"]).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_no_types_of_flags_and_flows(command):
    """At 80 columns a paragraph has no short line but its last."""
    help = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    assert "<bool>" not in help
    text = help.partition("Usage:")[2].partition("Examples")[0]
    for paragraph in re.split(r"\n\s*\n", text)[1:]:
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        for line, after in zip(lines, lines[1:], strict=False):
            assert len(line) + 1 + len(after.split()[0]) > 78, paragraph
    examples = help.partition("Examples")[2].partition("╭")[0]
    assert all(line.startswith("   ") for line in examples.splitlines() if line.strip()), examples


@pytest.mark.parametrize("arguments", [["no-such-command"], ["doctor", "--no-such-option"]])
def test_wrong_usage_is_exit_code_2(arguments):
    result = flashsparse(*arguments)
    assert result.exit_code == 2
    assert "No such" in result.stderr
    assert result.stdout == ""


def test_a_choice_that_there_is_not_is_told_in_our_words():
    result = flashsparse("prune", "MODEL", "OUT", "--method", "wandaa")
    assert result.exit_code == 2
    assert "Invalid value for '--method': 'wandaa' is not one of" in result.stderr


def test_help_imports_nothing_heavy():
    heavy = ["torch", "transformers", "vllm", "numpy", "safetensors"]
    code = f"""
import sys
from typer.testing import CliRunner
from flashsparse_plugin.cli import app
for command in {COMMANDS}:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
assert CliRunner().invoke(app, ["inspect", "nowhere"]).exit_code == 2
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def failing(error):
    made = typer.Typer()

    @made.command()
    @reported
    def fail():
        raise error

    return CliRunner().invoke(made, [])


def test_an_error_is_one_paragraph_and_exit_code_1(monkeypatch):
    monkeypatch.delenv("FLASHSPARSE_DEBUG", raising=False)
    result = failing(ValueError("layer 'a':\n  shape [1, 2] is [wrong]"))
    assert result.exit_code == 1
    assert result.stderr == "Error: layer 'a': shape [1, 2] is [wrong]\n"
    assert result.stdout == ""


def test_an_unexpected_error_is_named(monkeypatch):
    monkeypatch.delenv("FLASHSPARSE_DEBUG", raising=False)
    assert failing(KeyError("x")).stderr == "Error: KeyError: 'x'\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
    ids=repr,
)
def test_out_of_memory_says_so(error):
    assert failing(error).stderr.startswith("Error: out of memory: close other programs")


HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\x9bc\rd\u202ee\u2028f\x7fg"
SPELT = r"a\x1b]0;title\x07\x1b[2Jb\x9bc\rd\u202ee\u2028f\x7fg"


def test_control_characters_are_spelt_out():
    """In errors, in tables, on a terminal too, where colours stay."""
    assert printable(HOSTILE) == SPELT
    assert printable("käse\t\n😀 مثال\u200c") == "käse\t\n😀 مثال\u200c"
    made = table("Name")
    made.add_row(Text(HOSTILE, style="red"))
    screen = StringIO()
    terminal = SafeConsole(file=screen, force_terminal=True, width=200, color_system="standard")
    for each in (made, Text(HOSTILE), f"[bold]{HOSTILE}", Panel(HOSTILE)):
        terminal.print(each)
    assert "\x1b[31m" in screen.getvalue()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert shown.count(r"a\x1b]0;title") == 4 and printable(shown) == shown


def test_an_error_sends_nothing_to_the_terminal():
    for error in (ValueError(HOSTILE), fs.FormatError(HOSTILE), KeyError(HOSTILE)):
        assert printable(failing(error).stderr) == failing(error).stderr
    assert str(fs.FormatError(HOSTILE)) == SPELT  # for whoever logs it


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("FLASHSPARSE_DEBUG", "1")
    error = ValueError("x")
    assert failing(error).exception is error


def test_ctrl_c_is_clean():
    result = failing(KeyboardInterrupt())
    assert result.exit_code == 130
    assert result.stderr.strip() == "Stopped."


def test_an_exit_code_passes_through():
    assert failing(typer.Exit(7)).exit_code == 7


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (93_400_000, "93.4 MB"), (5e15, "5e+03 TB")],
)
def test_size(nbytes, text):
    assert size(nbytes) == text


def test_an_option_that_is_called_as_its_value_says_its_name():
    """Else typer 0.27 names it by the metavar: --METHOD."""
    nameless = []
    for command in app.registered_commands:
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            for info in getattr(hint, "__metadata__", ()):
                alike = isinstance(info, OptionInfo) and (info.metavar or "").lower() == name
                if alike and not str(info.default).startswith("--"):  # where typer has it first
                    nameless.append((command.name or command.callback.__name__, name))
    assert nameless == []
