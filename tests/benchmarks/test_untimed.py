# SPDX-License-Identifier: Apache-2.0
"""The program that runs what was never timed, without running it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import untimed


@pytest.fixture
def run(monkeypatch):
    """main() with options, and the commands that it would have run; some of them fail."""

    def run(*options, failing=()):
        ran = []

        def called(command, **_):
            ran.append(command)
            return subprocess.CompletedProcess(command, int(any(f in command[1] for f in failing)))

        monkeypatch.setattr(untimed.subprocess, "run", called)
        monkeypatch.setattr(sys, "argv", [untimed.__file__, *options])
        return untimed.main(), ran

    return run


def test_all_share_the_minutes_and_exist(run, capsys):
    code, ran = run("--minutes", "8")
    minutes = [float(each[each.index("--minutes") + 1]) for each in ran if "--minutes" in each]
    assert code == 0 and len(ran) == len(untimed.PROGRAMS)
    assert sum(minutes) == pytest.approx(8, abs=0.1)
    assert all((untimed.HERE / each[1]).is_file() for each in ran if each[1] != "-c")
    assert capsys.readouterr().out.count("right") == len(ran)


def test_what_is_wrong_is_the_status_and_does_not_stop_the_rest(run, capsys):
    code, ran = run("--only", "bench,experts", failing=("experts_layer.py",))
    assert code == 1 and len(ran) == 2
    assert "experts    status 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["doctor", "bench"])
def test_a_command_is_called_as_one(name):
    command = untimed.commands(1, [name], [])[name]
    ran = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert f"Usage: flashsparse {name}" in ran.stdout


def test_another_name_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("--only", "stepp")
    assert "there is no 'stepp'; there are doctor, " in capsys.readouterr().err
