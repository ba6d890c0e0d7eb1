# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: help, version, errors, and how little it imports."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import flashsparse_plugin
from flashsparse_plugin.cli import app
from flashsparse_plugin.cli.console import reported, size

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
    assert result.stdout == f"flashsparse {flashsparse_plugin.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_examples(command):
    result = flashsparse(command, "--help")
    assert result.exit_code == 0
    assert f"flashsparse {command}" in result.stdout.partition("Examples")[2]


@pytest.mark.parametrize("arguments", [["no-such-command"], ["doctor", "--no-such-option"]])
def test_wrong_usage_is_exit_code_2(arguments):
    result = flashsparse(*arguments)
    assert result.exit_code == 2
    assert "No such" in result.stderr
    assert result.stdout == ""


def test_help_imports_nothing_heavy():
    heavy = ["torch", "transformers", "vllm", "numpy", "safetensors"]
    code = f"""
import sys
from typer.testing import CliRunner
from flashsparse_plugin.cli import app
for command in {COMMANDS}:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
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
