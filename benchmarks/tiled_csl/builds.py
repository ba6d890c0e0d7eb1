# SPDX-License-Identifier: Apache-2.0
"""Did a change make the sparse kernel slower? Two builds of the compiled objects, in turns.

    python benchmarks/tiled_csl/builds.py BEFORE AFTER

Each is a folder that holds _C_cpu.so and _C_cuda.so. The builds are timed in turns, each twice, in
a process of its own, on the same weights: the difference between the two runs of one build is the
noise. Products are compared with float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import _results  # noqa: E402

LLAMA = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
OPT = ((21504, 7168), (7168, 7168), (28672, 7168), (7168, 28672), (27648, 9216), (9216, 9216))
SPARSITIES, TOKENS, ROUNDS, REPLAYS, WARM_UPS = (50, 70, 80, 90), (1, 8, 16, 32, 64, 128), 2, 13, 2
COLD_BYTES = 250_000_000  # of copies that take turns, so that no cache holds one


def timed(calls: Sequence[Callable[[], object]]) -> float:
    """Microseconds of a call: the median of replays of a CUDA graph of them all."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    count = max(len(calls), 12)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(count):
            calls[number % len(calls)]()
    samples = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / count * 1e3)
    return statistics.median(samples[WARM_UPS:])


def measure(folder: Path) -> list[dict[str, object]]:
    """Times one build; runs in a process that has loaded no other."""
    for name in ("_C_cpu.so", "_C_cuda.so"):
        torch.ops.load_library(str(folder / name))
    ops, rows = torch.ops.flashsparse, []
    options = {"device": "cuda", "dtype": torch.float16}
    torch.manual_seed(0)
    for shape in (*LLAMA, *OPT):
        for sparsity in SPARSITIES:
            kept = torch.rand(shape, device="cuda") >= sparsity / 100
            weight = torch.randn(shape, **options) * kept
            words, offsets = ops.tiled_csl_pack(weight)
            x = torch.randn(8, shape[1], **options)
            y = ops.tiled_csl_linear(x, words, offsets, shape[0], torch.float16).double()
            exact = x.double() @ weight.double().T
            error = float((y - exact).norm() / exact.norm())
            if not error < 1e-3:
                raise RuntimeError(f"{shape}, {sparsity}% zeros: error {error:.1e} against float64")
            count = max(2, min(8, COLD_BYTES // words.nbytes + 1))
            copies = [(words.clone(), offsets.clone()) for _ in range(count)]
            for tokens in TOKENS:
                x = torch.randn(tokens, shape[1], **options)
                rest = (shape[0], torch.float16, None, TOKENS[-1])
                multiply = partial(ops.tiled_csl_linear, x)
                calls = [partial(multiply, *copy, *rest) for copy in copies]
                rows.append(
                    {
                        "shape": f"{shape[0]}x{shape[1]}",
                        "sparsity": sparsity,
                        "tokens": tokens,
                        "us": round(timed(calls), 2),
                    }
                )
    return rows


def geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("builds", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>/builds.csv")
    arguments = parser.parse_args()
    if len(arguments.builds) == 1:  # called by itself
        print(json.dumps(measure(arguments.builds[0])))
        return
    found: dict[tuple[str, int], list[dict[str, object]]] = {}
    for number in range(ROUNDS):
        for name, folder in zip(("before", "after"), arguments.builds, strict=True):
            command = [sys.executable, __file__, str(folder)]
            ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[name, number] = json.loads(ran.stdout)
    rows = []
    for index, row in enumerate(found["before", 0]):
        times = {f"{n}_{i + 1}_us": each[index]["us"] for (n, i), each in found.items()}
        rows.append({key: value for key, value in row.items() if key != "us"} | times)

    def ratio(row: dict[str, float]) -> float:
        after, before = (
            min(row[f"{name}_{i + 1}_us"] for i in range(ROUNDS)) for name in ("after", "before")
        )
        return after / before

    noise = sorted(abs(row["before_1_us"] / row["before_2_us"] - 1) for row in rows)
    gpu = torch.cuda.get_device_name()
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "gpu": gpu}
    about |= {"torch": torch.__version__, "dtype": "float16"}
    about["after_over_before"] = round(geomean([ratio(row) for row in rows]), 4)
    about["noise_median"] = round(statistics.median(noise), 4)
    path = arguments.out or _results.folder_of(gpu) / "builds.csv"
    _results.write(path, about, rows)
    for tokens in TOKENS:
        own = [ratio(row) for row in rows if row["tokens"] == tokens]
        print(f"{tokens:>4} tokens: after / before {geomean(own):.4f}, worst {max(own):.3f}")
    spread = f"{about['noise_median']:.1%} (median), {noise[len(noise) * 95 // 100]:.1%} (95%)"
    print(f"in all {about['after_over_before']}; two runs of one build differ by {spread}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
