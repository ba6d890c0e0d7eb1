# SPDX-License-Identifier: Apache-2.0
"""`flashsparse tune`: estimates on any machine, measurements (pretended here) kept in the cache."""

import json
import shutil
import sys

import pytest
import torch
from typer.testing import CliRunner

from flashsparse_plugin.cli import app
from flashsparse_plugin.dataflow import DeviceKey, Weight, model, table, tuner
from flashsparse_plugin.dataflow.table import read_table, table_path
from flashsparse_plugin.gpu import GPUS

GPU = DeviceKey(name="NVIDIA H200", capability=(9, 0), multiprocessors=132)


def tune(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


def entries(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["entries"]


@pytest.fixture
def pretended_gpu(monkeypatch, tmp_path):
    """A GPU whose implementations take what the model says; nothing is run."""
    monkeypatch.setenv("FLASHSPARSE_CACHE", str(tmp_path))
    monkeypatch.setattr(tuner, "require_gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(DeviceKey, "of", lambda device: GPU)
    monkeypatch.setattr(tuner, "cold_bytes_of", lambda device: 0)

    def measure(weight, dtype, device, timer, cold_bytes, on_measured):
        on_measured(1)
        return tuner.entry_of(weight, model.times(weight, GPUS[0]))

    monkeypatch.setattr(tuner, "measure", measure)
    table._cached.cache_clear()
    yield table_path(GPU, "bfloat16")
    table._cached.cache_clear()


def test_without_a_gpu_it_says_clearly_what_it_needs():
    result = tune("4096x4096")
    assert result.exit_code == 1
    assert "on an NVIDIA GPU" in result.stderr and "--estimate H200" in result.stderr
    assert result.stdout == ""


def test_an_estimate_is_shown_and_marked_as_one():
    result = tune("12288x4096,4096x4096", "--estimate", "A100", "--sparsity", "0.7")
    assert result.exit_code == 0
    assert "A100, estimated and not measured" in result.stdout
    lines = [line for line in result.stdout.splitlines() if "x4096" in line]
    assert len(lines) == 6 and sum("tiled_bitmap 70%" in line for line in lines) == 2
    assert "torch's own linear" in result.stdout and "Written" not in result.stdout
    assert "tiled_bitmap pays from this % of zeros on (estimated)" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_a_packed_layer_that_does_not_pay_is_no_win():
    """The table shows what is slower than the dense layer, and from which share of zeros on not."""
    arguments = ("28672x4096", "--estimate", "H200", "--format", "tiled_csl")
    losing, winning = (tune(*arguments, "--sparsity", zeros).stdout for zeros in ("0.5", "0.8"))
    row, other = (
        next(line for line in text.splitlines() if "tiled_csl " in line and "%" in line).split()
        for text in (losing, winning)
    )
    assert set(row[3:10]) == {"s"} and other[3:9] == ["S"] * 6
    assert "no faster than the dense layer" in losing
    found = json.loads(tune(*arguments, "--sparsity", "0.5", "--json").stdout)
    shares = found["pays_from_zeros"]["28672x4096"]
    assert 0.5 < shares["8"] <= shares["64"]
    at_pattern = tune("4096x4096", "--estimate", "H200", "--format", "nm_vector", "--option", "n=2",
                      "--option", "m=4", "--json")  # fmt: skip
    assert json.loads(at_pattern.stdout)["pays_from_zeros"] == {}


def test_an_estimate_is_what_a_layer_would_get_that_no_table_knows():
    found = entries(tune("4096x4096", "--estimate", "H200", "--json"))
    times = model.times(Weight((4096, 4096)), GPUS[0])
    expected = tuner.entry_of(Weight((4096, 4096)), times, model.DOUBT)
    assert found == [expected.model_dump(mode="json")]


def test_measurements_are_kept_and_added_to(pretended_gpu):
    first = tune("4096x4096")
    assert first.exit_code == 0 and f"Written to {pretended_gpu}" in first.stdout
    assert "tokens, NVIDIA H200 " in first.stdout and "not measured" not in first.stdout
    assert len(entries(tune("1024x4096", "--sparsity", "0.8", "--json"))) == 2
    assert [e.shape for e in read_table(pretended_gpu).entries] == [
        (4096, 4096),
        (1024, 4096),
        (1024, 4096),
    ]


def test_a_table_that_cannot_be_read_is_not_overwritten(pretended_gpu):
    pretended_gpu.write_text("{}")
    result = tune("4096x4096")
    assert result.exit_code == 1 and "is no valid table" in result.stderr
    assert pretended_gpu.read_text() == "{}"


def test_a_model_gives_its_layers_and_those_that_engines_merge(model_dir):
    found = {
        tuple(entry["shape"]) for entry in entries(tune(model_dir, "--estimate", "H200", "--json"))
    }
    config = json.loads((model_dir / "config.json").read_text())
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    qkv = head * (config["num_attention_heads"] + 2 * config["num_key_value_heads"])
    assert {(hidden, wide), (wide, hidden), (2 * wide, hidden), (qkv, hidden)} <= found


def test_a_packed_model_brings_its_sparsity(model_dir, tmp_path):
    packed = tmp_path / "packed"
    shutil.copytree(model_dir, packed)
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "flashsparse", "sparsity": 0.75}
    (packed / "config.json").write_text(json.dumps(config))
    found = entries(tune(packed, "--estimate", "H200", "--json"))
    assert {entry["density"] for entry in found if entry["format"] == "tiled_bitmap"} == {0.25}


def test_a_plot(tmp_path):
    path = tmp_path / "times.png"
    result = tune("4096x4096,11008x4096", "--estimate", "H200", "--plot", path)
    assert result.exit_code == 0 and path.read_bytes()[:4] == b"\x89PNG"


def test_a_plot_without_matplotlib_tells_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = tune("8x8", "--estimate", "H200", "--plot", tmp_path / "times.png")
    assert result.exit_code == 1 and "pip install matplotlib" in result.stderr


def test_a_roofline(tmp_path):
    """NM-SpMM, Figure 10: the paper's four patterns, each with x whole and packed."""
    path = tmp_path / "roofline.png"
    arguments = ("4096x4096", "--estimate", "H200", "--roofline", path)
    shown = tune(*arguments)
    assert shown.exit_code == 0 and path.read_bytes()[:4] == b"\x89PNG"
    assert "Peak 66.9 TFLOP/s" in shown.stdout and shown.stdout.count(" packed ") == 4
    points = json.loads(tune(*arguments, "--json").stdout)["points"]
    intensities = {(each["zeros"], each["packing"]): each["operations_per_byte"] for each in points}
    assert len(points) == 8 and intensities[0.875, True] > 1.5 * intensities[0.875, False]


def test_a_roofline_with_measured_points(pretended_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(tuner, "graph_timer", lambda call, copies: 1e-3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    pattern = [f"--option={each}" for each in ("n=8", "m=32", "vector_length=32")]
    path = tmp_path / "roofline.png"
    result = tune("128x256", *pattern, "--roofline", path, "--json")
    assert result.exit_code == 0, result.stderr
    points = json.loads(result.stdout)["points"]
    assert [each["measured_tflops"] for each in points] == [None, 0.07]  # 2 x 4096 x 128 x 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such/model"], "is not a directory"),
        (["0x4096"], "between 1 and"),
        (["4096x99999999999"], "between 1 and"),
        (["4096x4096", "--format", "zip"], "unknown format 'zip'"),
        (["4096x4096", "--sparsity", "1.5"], "--sparsity"),
        (["4096x4096", "--estimate", "TPU"], "--estimate"),
        (["8x8,16x8", "--estimate", "H200", "--roofline", "x"], "draws one shape"),
        (
            ["8x8", "--estimate", "H200", "--roofline", "x", "--option", "n=2", "--option", "m=4"],
            "vectors of 4 rows",
        ),
    ],
)
def test_wrong_usage(arguments, message):
    result = tune(*arguments)
    assert result.exit_code == 2 and message in result.stderr
