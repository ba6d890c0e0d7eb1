# SPDX-License-Identifier: Apache-2.0
"""`flashsparse bench`: layers side by side, on a CPU and with a timer that invents the times."""

import getpass
import os
import socket

import _results
import pytest
import torch
from typer.testing import CliRunner

from flashsparse_plugin.cli import app, bench_show
from flashsparse_plugin.evaluation import layer_bench
from flashsparse_plugin.evaluation.kinds import CHOICES
from flashsparse_plugin.served import SERVED, served

SHAPES = {(128, 256): "128x256", (64, 128): "64x128"}
US = {"dense": 80.0, "int4": 20.0, "2:4": 40.0, "2:4, int4 by 128": 16.0}


def bench(*arguments):
    target = [",".join(SHAPES.values())]
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["bench", *target, *map(str, arguments)])


@pytest.fixture
def timed(monkeypatch):
    """Times by kind, 50 us where there is none; each call is made."""
    now = []
    told = layer_bench.LayerBench._guarded

    def guarded(self, shape, kind, measure):
        now.append(kind)
        told(self, shape, kind, measure)
        now.pop()

    def timer(call, copies):
        call()
        return US.get(now[-1] if now else "dense", 50.0) * 1e-6

    monkeypatch.setattr(layer_bench.LayerBench, "_guarded", guarded)
    monkeypatch.setattr(layer_bench, "cpu_timer", timer)
    monkeypatch.setattr(layer_bench, "CPU_COLD", 0)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


def test_a_table_a_picture_and_a_csv_without_a_name(timed, tmp_path):
    csv, plot = tmp_path / "bench.csv", tmp_path / "bench.png"
    result = bench("--tokens", "8,1", "--csv", csv, "--plot", plot)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "At 8 tokens 2:4, int4 by 128 is 1.25× as fast as int4 by 128, torch"
    shown = [line.rstrip() for line in lines if str(tmp_path) not in line]
    assert max(map(len, shown)) <= 80
    [row] = [line.split() for line in lines if line.startswith("2:4  ")]
    assert row[2:4] == ["2.00", "2.00"] and row[4].startswith("█")
    assert "* only for models that were trained with this pattern" in result.stdout
    found = _results.read(csv)
    assert [row["kind"] for row in found["rows"][::2]] == 2 * ["dense", "int4", *CHOICES]
    assert {row["shape"] for row in found["rows"]} == set(SHAPES.values())
    assert all(0 < row["error"] < 0.02 and row["dense_us"] == 80 for row in found["rows"])
    assert {"date", "flashsparse", "torch", "cpu", "dtype"} <= found["about"].keys()
    written = csv.read_text()
    names = (socket.gethostname(), getpass.getuser(), os.path.expanduser("~"), str(tmp_path))
    assert not [name for name in names if name in written]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_product_is_left_out_and_fails(timed, monkeypatch):
    monkeypatch.setattr(layer_bench, "OWN_TOLERANCE", 1e-9)
    result = bench("--tokens", "1")
    assert result.exit_code == 1 and "some results are wrong" in result.stderr
    assert "2:4" not in result.stdout.partition("int4 by 128, torch")[2].partition("Layers")[0]


def test_what_refuses_is_left_out_and_said(timed, monkeypatch):
    def refuse(weight):
        yield "fp8", "no tensor cores for it"

    monkeypatch.setattr(layer_bench, "dense_products", refuse)
    result = bench("--tokens", "1")
    assert result.exit_code == 0 and "fp8 is left out: no tensor cores for it" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["Llama-9-8B"], "known: Llama-3.1-8B, "),
        (["64x128", "--tokens", "0"], "not up to five numbers"),
        (["64x128", "--csv", "/no/where.csv"], "there is no such folder"),
    ],
)
def test_bad_input_is_told_before_anything_is_measured(arguments, why):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2 and why in " ".join(result.stderr.replace("│", " ").split())


def test_others_may_be_the_fastest_and_vectors_do_not_count():
    found = {"dense": (16, {1: 1.0}), "fp8": (8, {1: 1.9}), "2:4": (9, {1: 1.5})}
    found["8:32, L=32"] = (4, {1: 3.0})
    assert bench_show.finding(found, 1) == "At 1 token fp8 is the fastest, 1.9× dense"


def test_layers_count_as_often_as_a_model_has_them():
    rows = [
        layer_bench.Time(shape, 1, kind, 16.0, us, 10.0, 0.0)
        for shape, times in (((2, 2), (10.0, 5.0)), ((4, 4), (10.0, 10.0)))
        for kind, us in zip(("dense", "2:4"), times, strict=True)
    ]
    found = layer_bench.speedups(rows, {(2, 2): 3, (4, 4): 1})
    assert found["2:4"] == (16.0, {1: 40 / 25}) and found["dense"][1] == {1: 1.0}
    assert layer_bench.speedups(rows[:3], {(2, 2): 3, (4, 4): 1})["2:4"][1] == {}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("RedHatAI/Sparse-Llama-3.1-8B-2of4", "Llama-3.1-8B"),
        ("google/gemma-3-12b-it", "Gemma-3-12B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B"),
        ("phi-4-mini-instruct", None),
        ("Qwen3-80B", None),
    ],
)
def test_known_models_are_found_by_their_names(name, known):
    found = served(name)
    assert (found and found.names[0]) == known


def test_shapes_of_known_models_are_those_of_their_parameters():
    """By the names: "8B" is within a tenth of all parameters, for embeddings count or do not."""
    for each in SERVED:
        shapes = each.model_shapes
        linear = sum(rows * columns * n for (rows, columns), n in shapes.layers.items())
        said = {"Phi-4": 14.7, "Mistral-Nemo": 12.2}.get(each.names[0])
        said = said or float(each.names[0].rpartition("-")[2].removesuffix("B"))
        assert 0.7 * said < linear / 1e9 < 1.1 * said < 1.25 * (linear + shapes.others) / 1e9


def test_the_cpu_is_timed_by_its_fastest_sample():
    calls = []
    assert 0 < layer_bench.cpu_timer(lambda: calls.append(torch.ones(4).sum()), 2) < 1
    assert len(calls) > layer_bench.CPU_SAMPLES


def test_a_busy_machine_finds_nothing(capsys, tmp_path):
    """Its ratios are of whatever else ran: no sentence and no picture is made of them."""
    from flashsparse_plugin.cli.bench_show import BUSY, show

    found = {"dense": (16.0, {1: 1.0}), "2:4": (9.0, {1: 668.5})}
    show(found, [1], "a layer", {}, busy=True)
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(BUSY) and "as fast as" not in text
