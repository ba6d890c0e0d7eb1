# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu/serve.py with a server that answers at once."""

import gzip
import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import _agreement
import _profile
import _traffic
import pytest
import serve
import tables
import torch
from _device import _results, _server
from _methods import methods_of
from _models import SHAPES, make_config
from parrot import parrot

LOG = """INFO Model loading took 1.5 GiB memory and 2.0 seconds
INFO [summary.py:70] 8 layers packed: 0.4 MB, 26% of 1.6 MB dense
"""


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Runs the program with pretended servers; returns its exit code and the servers' options."""

    def run(*options, bench=None, url=None, beside=None):
        started = {}
        beside = [] if beside is None else beside

        @contextmanager
        def serving(model, log, flags):
            log.write_text(LOG)
            started[log.stem.rpartition("-")[2]] = flags
            assert (model / "config.json").exists()
            with parrot() as (own, _):
                yield _server.Server(url or own, 0, 1.0)

        @contextmanager
        def held(servers):
            beside.append(len(servers))
            yield

        monkeypatch.setattr(_server, "serving", serving)
        monkeypatch.setattr(_server, "held", held)
        monkeypatch.setattr(_traffic, "_bench", bench or figures)
        monkeypatch.setattr(serve, "profile", lambda url, folder, work: work() and KERNELS)
        command = ["serve.py", "--model", "tiny", "--out", str(tmp_path), *options]
        monkeypatch.setattr(sys, "argv", command)
        return serve.main(), started

    return run


KERNELS = [
    {"name": name, "ts": ts, "dur": 1000.0, "args": {"correlation": 1}}
    for ts, name in ((0.0, "ncclKernel"), (500.0, "gemm"), (1500.0, "gemm"), (3000.0, "gemm"))
]  # a quarter of the time are exchanges; the launch takes 4 ms


def figures(url, model, traffic, clients):
    """What vLLM's client returns."""
    found = {"completed": clients * traffic.rounds, "duration": 2.0, "median_ttft_ms": 10.0}
    found |= {"p99_ttft_ms": 12.0, "median_tpot_ms": 3.0, "p99_itl_ms": 4.0}
    return found | {"output_throughput": 100.0, "total_token_throughput": 300.0}


def test_a_run_with_pretended_servers(ran, tmp_path, capsys):
    code, started = ran("--clients", "1", "8", "--eager")
    assert code == 0
    result = _results.read(tmp_path / "traffic-tiny-eager.csv")
    rows, runs = result["rows"], result["about"]["runs"]
    assert {(r["weights"], r["traffic"], r["clients"]) for r in rows} == {
        (weights, traffic, clients)
        for weights in ("none", "tiled_bitmap")
        for traffic in ("decoding", "prompts", "mixed")
        for clients in (1, 8)
    }
    assert rows[0]["first_token_ms"] == 10 and rows[0]["tokens_per_gpu_s"] == 100
    assert runs["none"]["weight_bytes"] == round(1.5 * 2**30) and "texts" not in runs["none"]
    assert result["about"]["vllm"] == "1.2.3"
    assert result["about"]["agreements"]["tiled_bitmap"]["same_tokens"] == 512
    options = " ".join(started["tiled_bitmap"])
    assert "--sparse-method tiled_bitmap" in options and "--enforce-eager" in options
    shown = capsys.readouterr().out
    assert "decoding of 8: first token 10.0 ms, then 3.00 ms, 100 tokens/s" in shown
    assert max(len(line) for line in shown.splitlines() if "written" not in line) <= 80
    table = tables.TABLES["serve_traffic"](result)
    for line in (
        "| tokens/s a GPU: prompts, 8 | 100 | 100 (1.00) |",
        "| first token, ms: mixed, 1 | 10.0 | 10.0 (1.00) |",
        "| GB of weights | 1.6 | 1.6 (1.00) |",
    ):
        assert line in table


def test_a_traffic_that_fails_is_told_and_the_rest_is_kept(ran, tmp_path, capsys):
    def losing(url, model, traffic, clients):
        found = figures(url, model, traffic, clients)
        few = traffic.name == "prompts" and clients == 1 and traffic.rounds > 1
        return found | ({"completed": 0, "errors": ["no such model"]} if few else {})

    code, _ = ran("--clients", "1", "8", bench=losing)
    assert code == 1
    rows = _results.read(tmp_path / "traffic-tiny.csv")["rows"]
    assert {(row["traffic"], row["clients"]) for row in rows} == {("decoding", 1), ("decoding", 8)}
    assert "2 requests of prompts failed: ['no such model']" in capsys.readouterr().out


def test_several_gpus(ran, tmp_path, capsys):
    """Throughput is that of a GPU; packed weights are on two and on one."""
    code, started = ran("--gpus", "2", "--dummy", "--clients", "8", "--traffic", "decoding")
    assert code == 0
    runs = _results.read(tmp_path / "traffic-tiny-2-gpus.csv")["about"]["runs"]
    assert [each.get("exchange_share") for each in runs.values()] == [0.25, 0.25, None]
    assert ["--profiler-config" in each for each in started.values()] == [True, True, False]
    assert "25% of decoding exchanges sums" in " ".join(capsys.readouterr().out.split())
    assert list(started) == ["none", "tiled_bitmap", "1"]
    joined = [" ".join(flags) for flags in started.values()]
    assert ["--tensor-parallel-size 2" in each for each in joined] == [True, True, False]
    assert all("--load-format dummy" in each for each in joined)
    assert ['{"flashsparse": {"sparsity": 0.8}}' in each for each in joined] == [False, True, True]
    rows = _results.read(tmp_path / "traffic-tiny-2-gpus.csv")["rows"]
    assert [row["tokens_per_gpu_s"] for row in rows] == [50, 50, 100]


def test_fewer_gpus(ran, tmp_path):
    """Dense weights on two, beside fp8 and 2:4 in fp8 on one."""
    _, started = ran("--gpus", "2", "--dummy", "--clients", "8", "--compare", "fewer",
                     "--traffic", "decoding")  # fmt: skip
    joined = [" ".join(flags) for flags in started.values()]
    assert ["--tensor-parallel-size 2" in each for each in joined] == [True, False, False]
    assert ["--quantization fp8" in each for each in joined] == [False, True, False]
    assert '"values": "fp8_e4m3"' in joined[2] and "--sparse-method nm_vector" in joined[2]


def test_the_kernels_of_all_gpus(tmp_path):
    def event(name, dur, cat="kernel"):
        return {"name": name, "dur": dur, "cat": cat}

    with pytest.raises(RuntimeError, match="left no trace"):
        _profile.kernels_of(tmp_path, set())
    one = [event("ncclDevKernel_AllReduce_Sum", 10), event("gemm", 30), event("gemm", 99, "cpu_op")]
    other = [event("void vllm::cross_device_reduce_1stage", 20), event("gemm", 20)]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": one}))
    packed = gzip.compress(json.dumps({"traceEvents": other}).encode())
    (tmp_path / "rank1.json.gz").write_bytes(packed)
    kernels = _profile.kernels_of(tmp_path, {*tmp_path.iterdir()})
    assert _profile.exchange_share(kernels) == 30 / 80
    assert _profile.exchange_share([]) is None


def test_the_time_of_a_graph_is_that_of_the_whole_step():
    """Kernels may overlap; small launches around it, and a graph of a part, are no step."""

    def launch(number, begin, count):
        return [
            {"ts": begin + 900 * i, "dur": 1000, "args": {"correlation": number}}
            for i in range(count)
        ]

    steps = [launch(number, 10_000 * number, 10) for number in range(3)]
    around = [launch(3, 50_000, 1), launch(4, 51_000, 4)]
    assert _profile.graph_ms(sum(steps + around, [])) == 9.1
    assert _profile.graph_ms([]) is None and _profile.graph_ms(launch(1, 0, 1)) is None


def test_the_time_of_the_gpu_is_beside_that_of_a_step(ran, tmp_path):
    _, started = ran("--clients", "1", "8", "--profile", "--traffic", "decoding")
    rows = _results.read(tmp_path / "traffic-tiny.csv")["rows"]
    assert [row["graph_ms"] for row in rows] == [4.0] * 4
    assert all("--profiler-config" in flags for flags in started.values())


def test_the_time_limit_keeps_what_was_measured(ran, tmp_path, capsys):
    code, _ = ran("--clients", "1", "--limit", "0")
    assert code == 1 and "its share of the time is over" in capsys.readouterr().out


def test_all_servers_at_once(ran, tmp_path, capsys):
    beside = []
    code, started = ran("--together", "--dummy", "--limit", "0", "--compare", "codes",
                        beside=beside)  # fmt: skip
    assert beside == [4] * 5
    assert code == 1 and "its share of the time is over" in capsys.readouterr().out
    assert set(started) == {"none", "fp8", "tiled_bitmap", "int8"}  # of two the end of the name
    for flags in started.values():
        assert int(flags[flags.index("--kv-cache-memory-bytes") + 1]) > 2**20
    # However short the time, the first measurement of a server that has started is made.
    assert len(_results.read(tmp_path / "traffic-tiny-codes.csv")["rows"]) == 5


def test_servers_that_are_not_measured_are_held():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)

    def state():
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    try:
        with _server.held([_server.Server("", process.pid, 0.0)]):
            for _ in range(100):
                if state() == "T":
                    break
                time.sleep(0.05)
            assert state() == "T"
        assert state() != "T"
    finally:
        process.kill()
        process.wait()


def test_several_formats_and_what_chooses_among_them():
    arguments = serve.options().parse_args(["--format", "tiled_csl", "auto"])
    assert [each.label for each in methods_of(arguments)] == ["dense", "tiled_csl", "auto"]
    assert serve.name_of(arguments) == "llama-3-8b-tiled_csl-auto"


def test_what_is_compared():
    methods = methods_of(serve.options().parse_args(["--compare", "patterns"]))
    names = ["none", "fp8", "2of4", "8of32", "2of4-fp8_e4m3", "2of4-int4", "8of32-int8"]
    assert [each.name for each in methods] == names
    assert [each.name for each in methods if each.exact] == ["none", "2of4", "8of32"]
    assert '"n": 2' in methods[2].flags(None)[-1]


def test_what_stands_around_the_products():
    methods = methods_of(serve.options().parse_args(["--compare", "step"]))
    assert [each.name for each in methods[:7]] == [
        "none", "fp8", "lossless", "2of4-e4m7",
        "2of4-fp8_e4m3", "2of4-fp8_e4m3-early", "2of4-fp8_e4m3-early-head",
    ]  # fmt: skip
    plain, settings = (json.loads(methods[i].flags(None)[-1])["flashsparse"] for i in (4, 6))
    assert plain["decode_kernels"] == "default"  # it is "early" unless that is said
    assert settings["decode_kernels"] == "early" and settings["head"] == "int8"
    rivals = [each for each in methods if each.options["sparse_method"] == "none"]
    assert all(each.options["decode_attention"] == "default" for each in rivals)
    made_up = methods_of(serve.options().parse_args(["--compare", "step", "--dummy"]))
    assert "fp8-static" in [each.name for each in made_up]  # no checkpoint has its scales
    (lossless,) = (each for each in made_up if each.name == "lossless")
    assert json.loads(lossless.flags(0.8)[-1])["flashsparse"]["sparsity"] == 0


def test_experts_beside_those_of_vllm(ran, capsys):
    methods = methods_of(serve.options().parse_args(["--compare", "experts"]))
    packed = [json.loads(each.flags(0.8)[-1])["flashsparse"] for each in methods[2:]]
    assert [each["options"]["values"] for each in packed] == ["int8", "int4"]
    assert {each["experts"] for each in packed} == {"packed"}
    with pytest.raises(SystemExit):
        ran("--compare", "experts")
    assert "add --dummy" in capsys.readouterr().err
    shape = SHAPES["qwen3-30b-a3b"]  # heads of 128, which its hidden size does not say
    assert serve.cache_bytes(shape, 84, 0) == 100 * 2 * 2 * 48 * 4 * 128


def test_traffic_with_clients_of_its_own(ran, tmp_path):
    _, started = ran("--traffic", "decoding=1,64", "prompts=8", "mixed", "--clients", "2",
                     "--together", "--dummy", "--compare", "attention")  # fmt: skip
    rows = _results.read(tmp_path / "traffic-tiny-attention.csv")["rows"]
    asked = [(r["traffic"], r["clients"]) for r in rows if r["weights"] == "default"]
    assert asked == [("decoding", 1), ("decoding", 64), ("prompts", 8), ("mixed", 2)]
    flags = started["default"]  # room for each kind of traffic, not for the longest of the most
    room = int(flags[flags.index("--kv-cache-memory-bytes") + 1])
    longest = max(each.shortened(serve.TINY).longest for each in _traffic.TRAFFICS.values())
    assert room < serve.cache_bytes(SHAPES["tiny"], longest, 64)
    assert flags[flags.index("--max-num-seqs") + 1] == "64"
    for wrong in ("poems", "decoding=many"):
        with pytest.raises(SystemExit):
            serve.options().parse_args(["--traffic", wrong])


def test_tokens_may_part_where_rounding_explains_it():
    def text(tokens, gap):
        return {"tokens": tokens, "best_two": [[8.0, 8.0 - gap]] * len(tokens)}

    dense = {"at_once": [text([1, 2, 3], 1.0)], "one_by_one": [text([1, 2, 3], 0.96)]}
    near = {"at_once": [text([1, 2, 4], 1.0)]}
    found = _agreement.compare(dense, near)
    assert found["same_tokens"] == 2 and not found["explained_by_rounding"]
    dense["at_once"] = [text([1, 2, 3], 0.05)]
    dense["one_by_one"] = [text([1, 2, 3], 0.01)]
    assert _agreement.compare(dense, near)["explained_by_rounding"]


def test_the_tokenizer_has_a_word_for_each_number(tmp_path: Path):
    from transformers import AutoTokenizer

    make_config(SHAPES["tiny"], tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.arange(3, 512).tolist()
    text = tokenizer.decode(ids)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    assert max(map(len, tokenizer.get_vocab())) > len(text) / len(ids)  # what vLLM goes by
