# SPDX-License-Identifier: Apache-2.0
"""How long does a sparse linear layer take on this CPU, against the dense ones of torch?

    python benchmarks/cpu_linear.py                     the whole table
    python benchmarks/cpu_linear.py --shapes 576x576 --tokens 1,8 --repeats 9
    python benchmarks/cpu_linear.py --busy              with another process on one core
    FLASHSPARSE_CPU_CAPABILITY=avx2 python benchmarks/cpu_linear.py

Weights are cold (copies of half a gigabyte take turns), kernels are timed in turn, and a ratio is
the median over turns of time / dense time in the same turn.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import _formats
import _measure
import _results
import torch
import torch.nn.functional as F
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.formats import DEFAULT_FORMAT, format_names
from flashsparse_plugin.ops import ops

BFLOAT16 = torch.bfloat16

# The largest share of the dense time at 4096x4096: by capability, kernel, zeros and tokens.
GOALS = {
    ("avx512", "sparse", 80): {1: 0.20, 4: 0.35, 8: 0.50, 32: 0.85, 128: 1.05, 256: 1.05,
                               512: 1.05, 1024: 1.05},
    ("avx512", "sparse", 50): {1: 0.40},
    ("avx512", "sparse fp32", 80): {1: 0.15, 8: 0.25, 32: 0.60},
    ("avx2", "sparse fp32", 80): {1: 0.35, 2: 0.35, 4: 0.35, 8: 0.35},
}  # fmt: skip
BUSY_GOAL = 2.5

Call = Callable[[Tensor], Tensor]


def dense_kernels(weight: Tensor) -> dict[str, Call]:
    """torch's own layers, over copies of `weight` (bf16)."""
    out_features, in_features = weight.shape
    plain = _measure.Rotation(weight.clone, weight.nbytes)
    single = _measure.Rotation(weight.float, 2 * weight.nbytes)
    kernels: dict[str, Call] = {
        "dense": lambda x: F.linear(x, plain()),
        "dense fp32": lambda x: F.linear(x, single()),
    }
    if torch.backends.mkldnn.is_available():
        reordered = _measure.Rotation(
            lambda: torch.ops.mkldnn._reorder_linear_weight(weight.clone(), 1), weight.nbytes
        )
        kernels["dense prepacked"] = lambda x: torch.ops.mkldnn._linear_pointwise(
            x, reordered(), None, "none", [], ""
        )

    def int8_layer() -> torch.nn.Module:
        layer = torch.nn.Linear(in_features, out_features, bias=False)
        layer.weight.data = weight.float()
        model = torch.nn.Sequential(layer)
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)

    if "x86" in torch.backends.quantized.supported_engines:
        torch.backends.quantized.engine = "x86"
        quantized = _measure.Rotation(int8_layer, weight.nbytes // 2)
        kernels["dense int8"] = lambda x: quantized()(x)
    return kernels


def sparse_kernels(weight: Tensor, format: str) -> dict[str, Call]:
    """Our layers: bf16 and fp32 activations with the runtime form, bf16 with the stored one."""
    stored, prepared = fs.pack(weight, format), _formats.packed_for_kernels(weight, format)
    # As after loading: a runtime form that was made here, and a copy of the stored tensors.
    runtime = _measure.Rotation(partial(stored.prepare, "cpu"), prepared.nbytes)
    storage = _measure.Rotation(partial(_formats.copy_of, stored), stored.nbytes)

    def linear(x: Tensor) -> Tensor:
        return _formats.multiply(runtime(), x)

    return {
        "sparse": linear,
        "sparse fp32": linear,
        "sparse stored": lambda x: _formats.multiply(storage(), x),
    }


def is_fp32(kernel: str) -> bool:
    return kernel.endswith(("fp32", "int8"))  # dynamic int8 takes fp32 activations


def baseline_of(kernel: str) -> str:
    """fp32 activations are compared with dense fp32; int8 with what it replaces, bf16."""
    return "dense fp32" if kernel.endswith("fp32") else "dense"


def measure(
    format: str,
    shape: tuple[int, int],
    sparsities: Sequence[int],
    tokens: Sequence[int],
    repeats: int,
) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    dense = torch.randn(shape).to(BFLOAT16)
    kernels: dict[tuple[str, int], Call] = {(n, 0): f for n, f in dense_kernels(dense).items()}
    for sparsity in sparsities:
        pruned = dense * (torch.rand(shape) >= sparsity / 100)
        kernels |= {(n, sparsity): f for n, f in sparse_kernels(pruned, format).items()}
    rows = []
    for count in tokens:
        single = torch.randn(count, shape[1])
        calls = {
            f"{name}@{sparsity}": partial(f, single if is_fp32(name) else single.to(BFLOAT16))
            for (name, sparsity), f in kernels.items()
        }
        samples = _measure.interleaved(calls, repeats)
        for name, sparsity in kernels:
            own = samples[f"{name}@{sparsity}"]
            ratio = _measure.median_ratio(own, samples[f"{baseline_of(name)}@0"])
            goals = GOALS.get((ops.cpu_capability(), name, sparsity), {})
            rows.append(
                {
                    "shape": f"{shape[0]}x{shape[1]}",
                    "tokens": count,
                    "kernel": name,
                    "sparsity": sparsity,
                    "microseconds": round(statistics.median(own) * 1e6, 1),
                    "baseline": baseline_of(name),
                    "ratio": round(ratio, 3),
                    "goal": goals.get(count) if shape == (4096, 4096) else None,
                }
            )
    return rows


def measure_busy(
    format: str, shape: tuple[int, int], sparsity: int, repeats: int
) -> list[dict[str, Any]]:
    """Measures a layer with and without another process on one core."""
    torch.manual_seed(0)
    dense = torch.randn(shape).to(BFLOAT16)
    pruned = dense * (torch.rand(shape) >= sparsity / 100)
    kernels = {
        "dense": dense_kernels(dense)["dense"],
        "sparse": sparse_kernels(pruned, format)["sparse"],
    }
    rows = []
    for count in (1, 8, 128):
        x = torch.randn(count, shape[1]).to(BFLOAT16)
        calls = {name: partial(f, x) for name, f in kernels.items()}
        quiet = _measure.interleaved(calls, repeats)
        with _measure.busy_core():
            busy = _measure.interleaved(calls, repeats)
        for name in calls:
            times = {k: statistics.median(v[name]) for k, v in (("quiet", quiet), ("busy", busy))}
            rows.append(
                {
                    "shape": f"{shape[0]}x{shape[1]}",
                    "tokens": count,
                    "kernel": f"{name}, busy core",
                    "sparsity": sparsity if name == "sparse" else 0,
                    "microseconds": round(times["busy"] * 1e6, 1),
                    "baseline": f"{name}, quiet",
                    "ratio": round(times["busy"] / times["quiet"], 3),
                    "goal": BUSY_GOAL if name == "sparse" else None,
                }
            )
    return rows


def show(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    """Prints a table per shape: kernels down, tokens across, ratios in the cells."""
    console = _measure.console(width=120)
    tokens = list(dict.fromkeys(row["tokens"] for row in rows))
    for shape in dict.fromkeys(row["shape"] for row in rows):
        table = Table(
            title=f"{shape}, tokens across; "
            f"{about['cpu']}, {about['threads']} threads, {about['capability']}",
            caption="time of the baseline / time: above 1 is faster; ✓ or ✗ where there is a goal; "
            "µs in the rows of the baselines",
            box=box.SIMPLE_HEAD,
        )
        for column in ("kernel", "zeros", "baseline"):
            table.add_column(column, no_wrap=True)
        for count in tokens:
            table.add_column(str(count), justify="right", no_wrap=True)
        lines: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in rows:
            if row["shape"] == shape:
                lines.setdefault((row["kernel"], row["sparsity"]), []).append(row)
        for (kernel, sparsity), line in lines.items():
            base = line[0]["baseline"]
            table.add_row(
                kernel,
                f"{sparsity}%" if sparsity else "",
                base if base != kernel else "",
                *(_cell(row) for row in line),
            )
        console.print(table)


def _cell(row: dict[str, Any]) -> str:
    if row["baseline"] == row["kernel"]:
        return f"[dim]{row['microseconds']:.0f}[/]"
    speedup = f"{1 / row['ratio']:.2f}"
    if row["goal"] is None:
        return speedup
    return f"[green]✓{speedup}[/]" if row["ratio"] <= row["goal"] else f"[red]✗{speedup}[/]"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def shapes_of(text: str) -> list[tuple[int, int]]:
    shapes = [tuple(int(side) for side in part.split("x")) for part in text.split(",")]
    return [(out_features, in_features) for out_features, in_features in shapes]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", default=DEFAULT_FORMAT, choices=format_names())
    parser.add_argument("--shapes", type=shapes_of, default="4096x4096,576x576,14336x4096")
    parser.add_argument("--sparsity", type=numbers, default="50,70,80,90", help="percent of zeros")
    parser.add_argument("--tokens", type=numbers, default="1,2,4,8,16,32,64,128,256,512,1024")
    parser.add_argument("--repeats", type=int, help="samples of each kernel (11, busy 31)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--busy", action="store_true", help="measure with another process on one core instead"
    )
    parser.add_argument("--name", help="of the result file (default: by capability)")
    arguments = parser.parse_args()

    # A busy core makes samples of two kinds, disturbed and not, so a median takes many of them.
    repeats = arguments.repeats or (31 if arguments.busy else 11)
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    about = _measure.machine() | {"format": arguments.format}
    rows: list[dict[str, Any]] = []
    for shape in arguments.shapes:
        if arguments.busy:
            rows += measure_busy(arguments.format, shape, arguments.sparsity[-1], repeats)
        else:
            rows += measure(arguments.format, shape, arguments.sparsity, arguments.tokens, repeats)
    show(rows, about)
    suffix = "_busy" if arguments.busy else ""
    name = arguments.name or f"cpu_linear_{about['capability']}{suffix}"
    path = _results.folder_of(about["cpu"]) / f"{name}.csv"
    _results.write(path, about, rows)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
