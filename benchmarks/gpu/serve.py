# SPDX-License-Identifier: Apache-2.0
"""What do sparse weights gain in vLLM? A real server, streaming clients, dense beside sparse.

    python benchmarks/gpu/serve.py [--model llama-3-8b] [--format NAME ...]
    python benchmarks/gpu/serve.py --model opt-66b --gpus 2 --dummy
    python benchmarks/gpu/serve.py --model llama-3-70b --gpus 2 --dummy --compare fewer
    python benchmarks/gpu/serve.py --compare codes | patterns | step | attention

Makes a checkpoint of random weights with 80% zeros (--sparsity), starts `vllm serve` on it, dense
and packed while loading, with CUDA graphs, and sends each server three kinds of traffic
(--traffic):

    decoding   64 tokens in, 512 out, all clients at once (Flash-LLM, section 6.3)
    prompts    2016 in, 16 out
    mixed      180 to 1610 in, 26 to 230 out: chunked prefill beside decoding

The table holds the time to the first token, the time of each further token and the throughput, by
the number of clients (--clients; `--traffic decoding=1,64 prompts=8` gives each its own); tokens
per GPU-second are tokens out. The exit code is 1 if a request fails,
or if the greedy tokens of the two differ by more than rounding.

--gpus 2 adds tensor parallelism: dense on two, packed on two, and packed on one, with the memory
that weights take of a GPU, and the share of the time that GPUs exchange sums (of decoding, by the
profiler, after all else is measured). --dummy makes the weights up in memory, without a checkpoint,
and compares no tokens. --compare codes runs zeros anywhere in 16 bits, int8, and int8 on both
sides, beside vLLM's fp8; fewer runs dense weights on --gpus beside vLLM's fp8 and 2:4 with fp8
values, on one GPU each; patterns runs weights that follow 2:4 and 8:32 with vectors of 32 rows (75%
zeros), in 16 bits and in 8 and 4, beside dense ones in 16 bits and in vLLM's fp8; tokens are
compared for 16 bits. step runs 2:4 with fp8 and int4 values as vLLM's step has them, with our
kernels between products ("early": tokens are compared with those without), and with the output head
in 8 bits, too, which vLLM samples with and without our graph, with fp8 activations, too, and with a
quarter dense; beside lossless, dense and fp8, with --dummy also fp8 whose scales of inputs are in
the checkpoint. experts runs a mixture (--model qwen3-30b-a3b --dummy) with its experts packed,
beside dense and fp8. In these two the rivals have vLLM's own attention, as without us. attention
runs dense weights with vLLM's attention and with ours (--prompt makes contexts longer).

Results are saved after each step; --limit ends the program after so many seconds, --only picks some
of what is compared, in the order given, the baseline first. --together starts all servers at once,
which takes as long as one, and measures one after the other while the others are held (SIGSTOP):
they share the GPU's memory. --profile adds how long the GPU takes for the CUDA graph of a decode
step (graph_ms); beyond that a step takes the output head, the sampler, and the host. Mixtures route
tokens to experts at random, as weights that are made up would route all of them alike. Without a
GPU, `--model tiny` shows that it works.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _agreement import COMPARED, PROMPT, compare, texts_of
from _device import _results, _server, machine
from _methods import AUTO, COMPARISONS, FOLLOWING, Method, methods_of
from _models import SHAPES, SPARSITY, Shape, make_checkpoint, make_config
from _profile import exchange_share, graph_ms, profile, profiler_options
from _serve_report import line_of, show
from _traffic import TRAFFICS, Traffic, measure, traffic_of

from flashsparse_plugin.formats import DEFAULT_FORMAT, format_names

CLIENTS = (1, 8, 64)
PROFILED = Traffic("profiled", prompt=64, output=32, rounds=1)
TINY = 16  # by which traffic is shortened without a GPU
TOLD = (
    "flashsparse::",
    "layers packed",
    "decode attention of",
    "Model loading took",
    "KV cache size",
)
LOADED = re.compile(r"Model loading took ([\d.]+) GiB")
ROUTING = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
STARTED = time.monotonic()

Result = dict[str, Any]


def traffics_of(arguments: argparse.Namespace) -> list[Traffic]:
    """The traffic that was asked for."""
    found = [
        dataclasses.replace(each, clients=each.clients or tuple(arguments.clients))
        for each in arguments.traffic
    ]
    if arguments.prompt:
        found = [dataclasses.replace(each, prompt=arguments.prompt) for each in found]
    return [each.shortened(TINY) for each in found] if arguments.model == "tiny" else found


def traces_of(log: Path) -> Path:
    """The folder of a server's profiles."""
    return log.with_suffix(".traces")


def server_options(
    method: Method, shape: Shape, log: Path, arguments: argparse.Namespace
) -> list[str]:
    """What `vllm serve` is told; what weights leave of the memory is cache, as by default."""
    traffics = traffics_of(arguments)
    texts, tokens = COMPARED
    asked = [(PROMPT + tokens, texts), *((each.longest, max(each.clients)) for each in traffics)]
    length, most = map(max, zip(*asked, strict=True))
    options = ["--dtype", "bfloat16", "--max-model-len", str(length), "--max-num-seqs", str(most)]
    options += ["--no-enable-prefix-caching", "--logprobs-mode", "raw_logits"]
    if method.gpus > 1:
        options += ["--tensor-parallel-size", str(method.gpus)]
    if method.gpus > 1 or arguments.profile:
        options += profiler_options(traces_of(log))
    if not torch.cuda.is_available():  # there the option is about main memory
        options += ["--gpu-memory-utilization", "0.3"]
    if arguments.eager:
        options.append("--enforce-eager")
    else:
        sizes = sorted({1, 2, 4, *range(8, most + 1, 8), most})
        options += ["--compilation-config", json.dumps({"cudagraph_capture_sizes": sizes})]
    if arguments.dummy:
        options += ["--load-format", "dummy"]
    if arguments.together:
        cache = max(cache_bytes(shape, *each) for each in asked)
        options += ["--kv-cache-memory-bytes", str(cache)]
        options += ["--gpu-memory-utilization", "0.1"]  # has to be free when a server starts
    return options + method.flags(arguments.sparsity if arguments.dummy else None)


def cache_bytes(shape: Shape, length: int, most: int) -> int:
    """Bytes of keys and values, in 16 bits, of so many requests of so many tokens, and one more."""
    heads = shape["num_attention_heads"]
    width = shape.get("head_dim", shape["hidden_size"] // heads)
    token = 2 * 2 * shape["num_hidden_layers"] * shape.get("num_key_value_heads", heads) * width
    return token * (length + 16) * (most + 1)


@contextmanager
def at_once(
    servers: Sequence[AbstractContextManager[_server.Server]],
) -> Iterator[list[Future[_server.Server]]]:
    """Starts servers beside each other; they stop when the block ends.

    A server that starts takes the GPU from one that is measured: all of them have started, or
    failed to.
    """
    with ExitStack() as stack, ThreadPoolExecutor(len(servers)) as pool:
        futures = [pool.submit(stack.enter_context, each) for each in servers]
        wait(futures)
        yield futures


@contextmanager
def started(
    server: Future[_server.Server], all_servers: Sequence[Future[_server.Server]]
) -> Iterator[_server.Server]:
    """A server that has started, while all others are held; raises why it has not."""
    others = [each for each in all_servers if each is not server and each.exception() is None]
    with _server.held([each.result() for each in others]):
        yield server.result()


def run(
    method: Method,
    server: AbstractContextManager[_server.Server],
    model: Path,
    log: Path,
    share: Callable[[], float | None],
    arguments: argparse.Namespace,
    save: Any,
) -> Result:
    """Waits for a server and measures; the measurements so far are saved after each of them.

    `share` is asked for the seconds of this server when it has started. What fails is in the entry
    "failed" of the result, beside what was measured before.
    """
    traffics = traffics_of(arguments)
    result: Result = {"rows": [], "gpus": method.gpus}
    try:
        with server as it:
            begin, seconds = time.monotonic(), share()
            result |= {"startup_s": round(it.startup, 1), "vllm": _server.version_of(it.url)}
            lines = log.read_text(errors="replace").splitlines()
            result["log"] = [line for line in lines if any(words in line for words in TOLD)]
            loaded = [LOADED.search(line) for line in result["log"]]
            if found := [float(each[1]) for each in loaded if each]:
                result["weight_bytes"] = round(sum(found) * 2**30)
                result["gpu_bytes"] = round(max(found) * 2**30)
            if not arguments.dummy:
                result["texts"] = texts_of(it.url, SHAPES[arguments.model]["vocab_size"])
            for traffic, clients in [(each, n) for each in traffics for n in each.clients]:
                if seconds is not None and result["rows"] and time.monotonic() - begin > seconds:
                    raise TimeoutError("its share of the time is over")
                row = {"traffic": traffic.name, "clients": clients}
                row |= {"tokens_in": traffic.prompt, "tokens_out": traffic.output}
                row |= measure(it.url, model, traffic, clients, method.gpus)
                if arguments.profile:
                    work = partial(measure, it.url, model, PROFILED, clients, method.gpus)
                    row["graph_ms"] = graph_ms(profile(it.url, traces_of(log), work))
                result["rows"].append(row)
                print(f"  {method.label}, {line_of(row)}", flush=True)
                save(result)
            if method.gpus > 1:
                work = partial(measure, it.url, model, PROFILED, max(CLIENTS[:2]), method.gpus)
                kernels = profile(it.url, traces_of(log), work)
                if (share := exchange_share(kernels)) is not None:
                    result["exchange_share"] = round(share, 3)
    except (RuntimeError, OSError) as error:
        result["failed"] = str(error).strip().splitlines()[-1]
        print(f"{error}\n{method.name}: {result['failed']}; the whole log: {log}", flush=True)
    save(result)
    return result


def write(
    name: str,
    about: Mapping[str, Any],
    results: Mapping[str, Result],
    agreements: Mapping[str, Any],
    out: Path,
) -> Path:
    """Writes one result: a row a method, traffic and number of clients; the rest are conditions."""
    left_out = ("rows", "texts", "vllm")
    versions = {result["vllm"] for result in results.values() if "vllm" in result}
    runs = {
        method: {key: value for key, value in result.items() if key not in left_out}
        for method, result in results.items()
    }
    rows = [
        {"model": name, "weights": method, **row}
        for method, result in results.items()
        for row in result["rows"]
    ]
    path = out / f"traffic-{name}.csv"
    _results.write(
        path, {**about, "vllm": ", ".join(versions), "runs": runs, "agreements": agreements}, rows
    )
    return path


def name_of(arguments: argparse.Namespace) -> str:
    """What a run's result is called."""
    name = arguments.model
    for given, text in (
        (arguments.layers, f"{arguments.layers}-layers"),
        (arguments.sparsity != SPARSITY, f"{arguments.sparsity:.0%}-zeros".replace("%", "")),
        (arguments.eager, "eager"),
        (arguments.prompt, f"{arguments.prompt}-in"),
        (arguments.compare != "weights", arguments.compare),
        (arguments.format != [DEFAULT_FORMAT], "-".join(arguments.format)),
        (arguments.gpus > 1, f"{arguments.gpus}-gpus"),
    ):
        name += f"-{text}" if given else ""
    return name


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=SHAPES, default="llama-3-8b")
    parser.add_argument("--compare", choices=COMPARISONS, default="weights")
    formats = (AUTO, *format_names())
    parser.add_argument("--format", nargs="+", choices=formats, default=[DEFAULT_FORMAT])
    traffic = parser.add_argument("--traffic", nargs="+", type=traffic_of, metavar="NAME[=1,16]")
    traffic.default, traffic.help = list(TRAFFICS.values()), f"of {', '.join(TRAFFICS)}"
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS), help="at once")
    parser.add_argument("--gpus", type=int, default=1, help="of the dense model")
    parser.add_argument("--prompt", type=int, help="tokens in, of all traffic")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--sparsity", type=float, default=SPARSITY, help="share of zeros")
    parser.add_argument("--dummy", action="store_true", help="make weights up, write none")
    parser.add_argument("--only", nargs="+", help="of what is compared, by the names in results")
    parser.add_argument("--eager", action="store_true", help="no torch.compile, no CUDA graphs")
    parser.add_argument("--profile", action="store_true", help="GPU time of a step, too")
    parser.add_argument("--limit", type=float, help="seconds for everything")
    parser.add_argument("--together", action="store_true", help="start all servers at once")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--work", type=Path, help="where the checkpoint is written and removed")
    return parser


def main() -> int:
    parser = options()
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    if not cuda and arguments.model != "tiny":
        parser.error("no GPU here: only --model tiny makes sense")
    if cuda and arguments.gpus > torch.cuda.device_count():
        parser.error(f"--gpus {arguments.gpus}: this machine has {torch.cuda.device_count()}")
    if arguments.compare == "experts" and not arguments.dummy:
        parser.error("--compare experts makes weights up, and their routing: add --dummy")
    methods = {each.name: each for each in methods_of(arguments)}
    if unknown := set(arguments.only or ()) - set(methods):
        parser.error(f"--only: there are {', '.join(methods)}, not {', '.join(sorted(unknown))}")
    methods = {name: methods[name] for name in arguments.only or methods}
    shape, name = dict(SHAPES[arguments.model]), name_of(arguments)
    shape["num_hidden_layers"] = arguments.layers or shape["num_hidden_layers"]
    arguments.out.mkdir(parents=True, exist_ok=True)
    about = machine(torch.device("cuda" if cuda else "cpu"))
    if arguments.compare == "experts":
        os.environ.setdefault(ROUTING, "uniform_random")
        about["routing"] = os.environ[ROUTING]
    results: dict[str, Result] = {}
    agreements: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        folder = Path(work)
        if arguments.dummy:
            make_config(shape, folder)
        else:
            zeros = None if arguments.compare in FOLLOWING else arguments.sparsity
            make_checkpoint(shape, folder, "cuda" if cuda else "cpu", zeros)
            print(f"{time.monotonic() - STARTED:.0f} s: checkpoint written", flush=True)
        if cuda:
            torch.cuda.empty_cache()
        logs = {each: arguments.out / f"traffic-{name}-{each}.log" for each in methods}
        servers: dict[str, AbstractContextManager[_server.Server]] = {
            each.name: _server.serving(folder, log, server_options(each, shape, log, arguments))
            for each, log in zip(methods.values(), logs.values(), strict=True)
        }
        with ExitStack() as stack:
            if arguments.together:
                futures = stack.enter_context(at_once(list(servers.values())))
                turns = [started(each, futures) for each in futures]
                servers = dict(zip(methods, turns, strict=True))
            for done, method in enumerate(methods.values()):

                def share(others: int = len(methods) - done) -> float | None:
                    """An equal share of the time left."""
                    if arguments.limit is None:
                        return None
                    return max(0.0, arguments.limit - (time.monotonic() - STARTED)) / others

                def save(result: Result, method: Method = method) -> None:
                    results[method.name] = result
                    write(name, about, results, agreements, arguments.out)

                log = logs[method.name]
                run(method, servers[method.name], folder, log, share, arguments, save)
                print(f"{time.monotonic() - STARTED:.0f} s: {method.name} measured", flush=True)
    baseline, *others = results
    for other in others:
        like = methods[other].like or (baseline if methods[other].exact else None)
        texts = [results.get(each or "", {}).get("texts") for each in (like, other)]
        if all(texts):
            agreements[other] = compare(*texts)
    path = write(name, about, results, agreements, arguments.out)
    show(name, list(methods.values()), results, agreements)
    print(f"written to {path}")
    good = all(each["explained_by_rounding"] for each in agreements.values())
    return 0 if good and not any("failed" in result for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
