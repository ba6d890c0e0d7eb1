# SPDX-License-Identifier: Apache-2.0
"""What do fewer bits a value gain on this CPU, against the dense layers of torch and torchao?

    python benchmarks/cpu_values.py                     the whole table
    python benchmarks/cpu_values.py --shapes 4096x4096 --tokens 1 --repeats 31
    python benchmarks/cpu_values.py --dtype float32     N:M weights of 32 bits, which are no codes
    FLASHSPARSE_CPU_CAPABILITY=avx2 python benchmarks/cpu_values.py

Weights are cold (copies of half a gigabyte take turns), kernels are timed in turn, and a ratio is
the median over turns of time / dense time in the same turn; `fastest` is that of the fastest turns,
which another process on the machine disturbs least. Codes and their places are random.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import _formats
import _measure
import _results
import torch
from cpu_linear import Call, dense_kernels, numbers, shapes_of
from rich import box
from rich.table import Table
from torch import Tensor

import flashsparse_plugin as fs
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.values.types import VALUE_TYPES

PATTERNS: Mapping[str, Mapping[str, int]] = {
    "2:4": {"n": 2, "m": 4},
    "8:32, L=32": {"n": 8, "m": 32, "vector_length": 32},
}
ZEROS: Mapping[str, float] = {"50% anywhere": 0.5, "70% anywhere": 0.7}
VALUES: Sequence[Mapping[str, Any]] = (
    {"values": "native"},
    {"values": "fp8_e4m3"},
    {"values": "int8"},
    {"values": "int4", "group": 128},
)
CODES_GOALS = {
    (f"{zeros}, int8", baseline): goal
    for zeros in ("2:4", "50% anywhere")
    for baseline, goal in (("dense", 0.28), ("dense int8", 0.7))
}
"""The largest share of the time of a dense layer, for one token."""
SINGLE_GOALS = {
    (f"{name}, native", "dense"): packed / (0.8 * 32)
    for name, packed in (("2:4", 17.0), ("8:32, L=32", 8.16))
}
"""The same for 32 bits: 0.8 of what the bits a weight would bring are to be reached."""


def random_weight(
    shape: tuple[int, int],
    options: Mapping[str, Any],
    zeros: float | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> fs.PackedWeight:
    """Weights or codes that follow the pattern, or with zeros anywhere, prepared for kernels."""
    storage = get_format("nm_vector" if zeros is None else "tiled_bitmap")
    scheme = storage.scheme(dtype, options)
    if zeros is None:
        weight = scheme.options.keep_largest(torch.randn(shape))
    else:
        weight = torch.randn(shape).masked_fill_(torch.rand(shape) < zeros, 0)
    if options["values"] == "native":
        return storage.pack(weight.to(dtype), scheme).prepare("cpu")
    kind = VALUE_TYPES[options["values"]]
    codes = kind.round(weight * kind.most / 4)
    scales = storage.tensors(scheme, shape)["weight_scale"]
    made = torch.rand(tuple(map(int, scales.shape))).to(scales.dtype)
    return storage.pack_codes(codes, made, scheme).prepare("cpu")


def coded_kernels(shape: tuple[int, int]) -> dict[str, Call]:
    """Our layers of 16 bits and of codes, by their zeros and type of values."""
    weights = {}
    for pattern, options in PATTERNS.items():
        for values in VALUES:
            group = f" by {values['group']}" if "group" in values else ""
            name = f"{pattern}, {values['values']}{group}"
            weights[name] = partial(random_weight, shape, {**options, **values})
    for title, zeros in ZEROS.items():
        for kind in ("native", "int8"):
            weights[f"{title}, {kind}"] = partial(random_weight, shape, {"values": kind}, zeros)
    return kernels_of(weights)


def single_kernels(shape: tuple[int, int]) -> dict[str, Call]:
    """Our layers of 32 bits, by pattern."""
    native = {"values": "native"}
    return kernels_of(
        {
            f"{pattern}, native": partial(
                random_weight, shape, {**options, **native}, dtype=torch.float32
            )
            for pattern, options in PATTERNS.items()
        }
    )


def kernels_of(weights: Mapping[str, Callable[[], fs.PackedWeight]]) -> dict[str, Call]:
    kernels: dict[str, Call] = {}
    for name, made in weights.items():
        packed = made()
        copies = _measure.Rotation(partial(_formats.copy_of, packed), packed.nbytes)
        kernels[name] = lambda x, copies=copies: _formats.multiply(copies(), x)
    return kernels


def torchao_kernels(weight: Tensor, group: int = 128) -> dict[str, Call]:
    """The ops by which torch.compile multiplies torchao's int8 and int4 weights on a CPU."""
    out_features, in_features = weight.shape
    codes = torch.randint(-127, 128, weight.shape, dtype=torch.int8)
    scales = torch.rand(out_features, dtype=weight.dtype)
    eights = _measure.Rotation(codes.clone, codes.nbytes)
    nibbles = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int() & 15, 1)
    zeros = torch.rand(in_features // group, out_features, 2, dtype=weight.dtype)
    fours = _measure.Rotation(nibbles.clone, nibbles.nbytes)
    return {
        "torchao int8": lambda x: torch.ops.aten._weight_int8pack_mm(x, eights(), scales),
        f"torchao int4 by {group}": lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, fours(), group, zeros
        ),
    }


def measure(
    shape: tuple[int, int], tokens: Sequence[int], repeats: int, dtype: torch.dtype
) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    weight = torch.randn(shape).bfloat16()
    dense = dense_kernels(weight)
    single_precision = dense.pop("dense fp32")
    if dtype == torch.float32:
        kernels = {"dense": single_precision, **single_kernels(shape)}
    else:
        kernels = dense | torchao_kernels(weight) | coded_kernels(shape)
    goals = SINGLE_GOALS if dtype == torch.float32 else CODES_GOALS
    rows = []
    for count in tokens:
        single = torch.randn(count, shape[1])
        calls = {
            name: partial(kernel, single if name == "dense int8" else single.to(dtype))
            for name, kernel in kernels.items()
        }
        samples = _measure.interleaved(calls, repeats)
        for name, own in samples.items():
            for baseline in ("dense", "dense int8"):
                if baseline not in samples:
                    continue
                theirs = samples[baseline]
                rows.append(
                    {
                        "shape": f"{shape[0]}x{shape[1]}",
                        "tokens": count,
                        "kernel": name,
                        "microseconds": round(statistics.median(own) * 1e6, 1),
                        "baseline": baseline,
                        "ratio": round(_measure.median_ratio(own, theirs), 3),
                        "fastest": round(min(own) / min(theirs), 3),
                        "goal": goals.get((name, baseline)) if count == 1 else None,
                    }
                )
    return rows


def show(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
    """Prints a table per shape and baseline: kernels down, tokens across."""
    console = _measure.console(width=120)
    tokens = list(dict.fromkeys(row["tokens"] for row in rows))
    for shape, baseline in dict.fromkeys((row["shape"], row["baseline"]) for row in rows):
        table = Table(
            title=f"{shape}, time / time of {baseline}; tokens across; {about['cpu']}, "
            f"{about['threads']} threads, {about['capability']}",
            caption="median (fastest), ✓ or ✗ where there is a goal",
            box=box.SIMPLE_HEAD,
        )
        table.add_column("kernel", no_wrap=True)
        for count in tokens:
            table.add_column(str(count), justify="right", no_wrap=True)
        chosen = [row for row in rows if (row["shape"], row["baseline"]) == (shape, baseline)]
        for kernel in dict.fromkeys(row["kernel"] for row in chosen):
            table.add_row(kernel, *(_cell(row) for row in chosen if row["kernel"] == kernel))
        console.print(table)


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['ratio']:.2f} ({row['fastest']:.2f})"
    if row["goal"] is None:
        return text
    met = row["ratio"] <= row["goal"]
    return f"[green]✓{text}[/]" if met else f"[red]✗{text}[/]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=shapes_of, default="4096x4096,4096x14336")
    parser.add_argument("--tokens", type=numbers, default="1,2,4,8,16")
    parser.add_argument("--repeats", type=int, default=21, help="samples of each kernel")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", help="of the result file (default: by capability)")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    about = _measure.machine()
    rows: list[dict[str, Any]] = []
    for shape in arguments.shapes:
        dtype = getattr(torch, arguments.dtype)
        rows += measure(shape, arguments.tokens, arguments.repeats, dtype)
    show(rows, about)
    kind = "float32_" if arguments.dtype == "float32" else ""
    name = arguments.name or f"cpu_values_{kind}{about['capability']}"
    path = _results.folder_of(about["cpu"]) / f"{name}.csv"
    _results.write(path, about, rows)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
