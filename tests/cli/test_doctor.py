# SPDX-License-Identifier: Apache-2.0
"""`flashsparse doctor` on a sound installation, a damaged one, and none at all."""

import json
import os
import re
import sys
import textwrap

import pytest
import torch
from typer.testing import CliRunner

from flashsparse_plugin import diagnostics, selftest
from flashsparse_plugin.attention import Counter, publish
from flashsparse_plugin.cli import app
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.ops import reference


def doctor(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


@pytest.fixture
def show(monkeypatch):
    """show(report) is the table of a report that was made before, by a child that took seconds."""

    def show(report):
        monkeypatch.setattr(diagnostics, "examine", lambda on_section: report)
        return doctor()

    return show


@pytest.fixture(scope="module")
def sound():
    """`flashsparse doctor --json`, nothing damaged."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("FLASHSPARSE_STRICT", "1")
        return doctor("--json")


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Lets a test damage the installation: its code runs in the child before the examination."""
    script = tmp_path / "child.py"
    before = """
        import sys
        from flashsparse_plugin import diagnostics
        diagnostics.SECTIONS["transformers"] = lambda: {"registered": True}  # slow to import
    """

    def damage(code):
        blocks = [before, code, "diagnostics._main(sys.argv[1:])"]
        script.write_text("\n".join(map(textwrap.dedent, blocks)))
        monkeypatch.setattr(diagnostics, "_CHILD", [sys.executable, str(script)])

    return damage


def test_every_op_has_a_self_test_and_passes_it():
    results = selftest.run()
    assert {result.op for result in results} == set(selftest.op_names())
    assert len(results) >= 8
    assert [r for r in results if r.status != selftest.PASS] == []


def test_a_new_op_without_a_self_test_shows_up():
    library = torch.library.Library("flashsparse", "FRAGMENT")
    try:
        library.define("brand_new(Tensor x) -> Tensor")
        assert "brand_new" in selftest.op_names()
        assert selftest.check("brand_new").status == selftest.NO_SELF_TEST
    finally:
        library._destroy()


def replace_op(monkeypatch, op, by):
    """Where it is called: a format holds the op that multiplies."""
    monkeypatch.setattr(selftest.ops, op, by)
    if op.endswith("_linear"):
        monkeypatch.setattr(
            type(get_format(op.removesuffix("_linear"))), "linear_op", staticmethod(by)
        )


@pytest.mark.parametrize("op", ["tiled_csl_linear", "tiled_csl_unpack", "interleaved_bitmap_pack"])
def test_a_wrong_op_fails(monkeypatch, op):
    right = getattr(selftest.ops, op)

    def wrong(*args):
        result = right(*args)
        for tensor in result if isinstance(result, tuple) else [result]:
            tensor[-1] += 1
        return result

    assert selftest.check(op).status == selftest.PASS
    replace_op(monkeypatch, op, wrong)
    result = selftest.check(op)
    assert result.status == selftest.FAIL
    assert result.detail


def test_a_validator_that_takes_anything_fails(monkeypatch):
    count = selftest._weight(torch.float16).count_nonzero()
    monkeypatch.setattr(selftest.ops, "tiled_csl_validate", lambda *args: count)
    assert "cut short" in selftest.check("tiled_csl_validate").detail


def test_nan_is_not_within_the_limit(monkeypatch):
    def nan(x, *args):
        return torch.full((len(x), 200), torch.nan, dtype=x.dtype)

    replace_op(monkeypatch, "tiled_csl_linear", nan)
    assert selftest.check("tiled_csl_linear").status == selftest.FAIL


def test_the_reference_is_what_the_self_test_compares_with(monkeypatch):
    monkeypatch.setattr(reference, "linear", lambda x, w, b=None: torch.ones(len(x), 200).double())
    assert selftest.check("interleaved_bitmap_linear").status == selftest.FAIL


@pytest.mark.slow
def test_a_sound_installation(sound):
    report = json.loads(sound.stdout)
    assert set(report) == {*diagnostics.SECTIONS, "problems", "hints"}
    assert report["problems"] == []
    assert sound.exit_code == 0
    assert report["versions"]["torch"] == torch.__version__
    assert report["compiled"]["objects"]["_C_cpu"]["loaded"] is True
    assert {op["status"] for op in report["compiled"]["ops"]} == {"PASS"}
    assert report["entry_points"]["torch.backends"] is True
    assert report["transformers"]["registered"] is True


@pytest.mark.slow
def test_the_table_tells_of_every_op_in_words(sound, show, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    report = json.loads(sound.stdout)
    result = show(report)
    assert result.exit_code == 0
    mended = "decode attention: wrong phi detected, counted, recomputed"
    words = {selftest.about(op) for op in selftest.op_names()}
    assert not words & {*selftest.op_names()}, "these have no words"
    for expected in (*words, torch.__version__, "FLASHSPARSE_STRICT", mended):
        assert expected in result.stdout
    counted = re.findall(r"(\d+) of (\d+) ops", result.stdout)
    assert sum(int(all) for _, all in counted) == len(report["compiled"]["ops"])
    assert all(passed == all for passed, all in counted)
    assert not [op for op in selftest.op_names() if op in result.stdout]


@pytest.mark.slow
def test_an_op_that_fails_is_named(sound, show):
    report = json.loads(sound.stdout)
    failed = next(op for op in report["compiled"]["ops"] if op["op"] == "tiled_csl_linear")
    failed |= {"status": "FAIL", "detail": "off by 7"}
    result = show(report)
    assert "tiled_csl_linear on cpu: FAIL off by 7" in result.stdout
    assert re.search(r"✗ +unstructured zeros, Tiled-CSL +cpu +\d+ of \d+ ops", result.stdout)


@pytest.mark.slow
def test_counts_of_a_running_model_are_shown(child, show, monkeypatch, tmp_path):
    child("diagnostics.SECTIONS['compiled'] = lambda: {'objects': {}, 'ops': []}")
    monkeypatch.setenv("FLASHSPARSE_CACHE", str(tmp_path))
    held = [Counter(f"layer {number}", torch.device("cpu")) for number in range(3)]
    held[2].add(torch.tensor([[40, 2]]))
    publish()
    del held
    report = json.loads(doctor("--json").stdout)
    (process,) = report["attention"]["running"]
    assert process["pid"] == os.getpid() and process["layers"]["layer 2"] == [42, 2]
    monkeypatch.setenv("COLUMNS", "200")
    (line,) = (line for line in show(report).stdout.splitlines() if str(os.getpid()) in line)
    assert line.split()[-6:] == ["3", "42", "2", "layer", "2", process["counted"][11:19]]


def test_a_missing_object_is_told_and_the_rest_still_stands(child, show):
    child(
        """
        import pathlib
        find = pathlib.Path.is_file
        pathlib.Path.is_file = lambda self: self.name != "_C_cpu.so" and find(self)
        """
    )
    result = doctor("--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert "_C_cpu.so" in report["compiled"]["error"]
    assert any("_C_cpu.so" in problem for problem in report["problems"])
    assert report["versions"]["torch"] == torch.__version__
    assert report["torch"]["threads"] >= 1
    text = " ".join(show(report).stdout.split())
    assert "_C_cpu.so" in text and torch.__version__ in text


def test_a_garbled_object_is_told(child, tmp_path):
    (tmp_path / "_C_cpu.so").write_bytes(b"\x7fELF" + bytes(100))
    child(f"import flashsparse_plugin as f; f.__path__.insert(0, {str(tmp_path)!r})")
    result = doctor("--json")
    assert result.exit_code == 1
    assert "_C_cpu.so" in json.loads(result.stdout)["compiled"]["error"]


def test_a_crash_is_told_and_the_sections_behind_it_still_run(child):
    child(
        """
        import os, signal
        from flashsparse_plugin import selftest
        selftest.run = list  # takes seconds
        diagnostics.SECTIONS["torch"] = lambda: os.kill(os.getpid(), signal.SIGILL)
        """
    )
    report = json.loads(doctor("--json").stdout)
    assert "SIGILL" in report["torch"]["error"]
    assert report["compiled"]["objects"]["_C_cpu"]["loaded"] is True


def test_what_libraries_print_does_not_get_into_the_report(child):
    child(
        """
        from flashsparse_plugin import selftest
        selftest.run = list  # takes seconds
        inner = diagnostics.SECTIONS["torch"]
        def chatty():
            print("x" * 200_000, end="", file=sys.stderr)
            print("no newline", end="")
            return inner()
        diagnostics.SECTIONS["torch"] = chatty
        """
    )
    result = doctor("--json")
    assert result.exit_code == 0
    assert "no newline" not in result.stdout


HEALTHY = {
    "versions": {"torch": "2.13.0", "transformers": "5.19.0", "accelerate": "1.15.0"},
    "hardware": {"driver": None},
    "torch": {"build": "cpu", "gpus": []},
    "compiled": {"objects": {"_C_cuda": {"loaded": False, "reason": "not built"}}, "ops": []},
    "transformers": {"registered": True},
    "entry_points": {"torch.backends": True, "vllm.general_plugins": False},
    "attention": {"running": []},
}
CUDA = {"build": "cuda 13.0", "gpus": []}
H100 = {"name": "H100", "capability": "9.0", "memory": 80e9}


@pytest.mark.parametrize(
    ("change", "problem", "hint"),
    [
        ({}, None, None),
        ({"hardware": {"driver": "580.1"}}, None, "CPU build"),
        ({"hardware": {"driver": "580.1"}, "torch": CUDA}, "sees no GPU", None),
        ({"torch": CUDA | {"gpus": [H100]}}, "FLASHSPARSE_CUDA=ON", None),
        ({"versions": {"torch": "2.13.0"}}, None, "pip install transformers accelerate"),
        ({"versions": {"transformers": "5.9.1", "accelerate": "1"}}, "too old", None),
        ({"versions": {"transformers": "5.17.0"}}, None, "accelerate"),
        ({"transformers": {"registered": False}}, "is not registered", None),
        ({"transformers": {"error": "ImportError: x"}}, "ImportError: x. Install torch", None),
        (
            {"transformers": {"error": "RuntimeError: operator torchvision::nms does not exist"}},
            "pip uninstall torchvision",
            None,
        ),
        ({"torch": {"error": "ImportError: No module named 'torch'"}}, "pip install torch", None),
        ({"entry_points": {"torch.backends": False}}, "torch.backends", None),
        ({"attention": {"running": [{"pid": 7, "error": "7.json cannot"}]}}, "7.json", None),
    ],
)
def test_judgement(change, problem, hint):
    problems, hints = diagnostics._judge(HEALTHY | change)
    for found, expected in ((problems, problem), (hints, hint)):
        assert len(found) == (expected is not None)
        assert all(expected in text for text in found)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Fri Sep 12 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
    ],
)
def test_the_driver_of_either_kernel_module(monkeypatch, text):
    monkeypatch.setattr(diagnostics, "_read", lambda path: text if "nvidia" in path else "")
    assert diagnostics.hardware()["driver"] == "580.95.05"
