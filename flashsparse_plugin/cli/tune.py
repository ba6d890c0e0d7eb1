# SPDX-License-Identifier: Apache-2.0
"""`flashsparse tune`: which implementation is fastest for which layer and number of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from .console import err, out, print_json, table, usage
from .models import model_directory

if TYPE_CHECKING:
    from flashsparse_plugin.dataflow import Weight
    from flashsparse_plugin.dataflow.table import Entry

_STYLES = {
    "gemv": ("G", "black on cyan"),
    "flat_gemm": ("F", "black on green"),
    "sparse": ("S", "black on green"),
    "library": ("L", "black on yellow"),
}
_LEGEND = {
    "gemv": "gemv: CUDA cores",
    "flat_gemm": "flat_gemm: tensor cores, padded to 8 tokens",
    "sparse": "the sparse kernel of the format",
    "library": "torch's own linear (a packed layer is unpacked for it)",
}
_SHOWN = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512)
_MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # by engines such as vLLM


class TuneDtype(str, Enum):
    bfloat16 = "bfloat16"
    float16 = "float16"


class Estimate(str, Enum):
    H200 = "H200"
    H100 = "H100"
    A100 = "A100"


def tune(
    target: Annotated[
        str,
        typer.Argument(
            help="Directory of a model, or shapes out x in: 4096x4096,11008x4096.",
            metavar="MODEL|SHAPES",
        ),
    ],
    dtype: Annotated[TuneDtype, typer.Option(help="Of weights and activations.")] = (
        TuneDtype.bfloat16
    ),
    sparsity: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Look at packed layers with this share of zeros, too. Can be repeated.",
            show_default="what the model's config says",
        ),
    ] = None,
    format: Annotated[str, typer.Option(help="Of the packed layers.")] = "tiled_csl",
    estimate: Annotated[
        Estimate | None,
        typer.Option(help="Measure nothing: show what the model of bytes and latencies expects."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the times to this file, such as times.png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False,
) -> None:
    """Measure which kernel is fastest for each layer and number of tokens.

    Needs a GPU. What is found goes to a table, one for each GPU and dtype, in
    FLASHSPARSE_CACHE (default: ~/.cache/flashsparse), where
    flashsparse_plugin.dataflow.resolve looks it up.

    \b
    [bold]Examples[/bold]
      flashsparse tune MODEL
      flashsparse tune MODEL --sparsity 0.7 --sparsity 0.8
      flashsparse tune 12288x4096,4096x4096,11008x4096,4096x11008 --plot times.png
      flashsparse tune MODEL --estimate H200
    """
    shapes = _shapes(target)
    with err.status("Starting"):
        from flashsparse_plugin import formats

    if format not in formats.format_names():
        known = ", ".join(formats.format_names())
        raise usage(f"{format!r} is no format; there are {known}", "--format")
    densities = [1 - each for each in (_model_sparsity(target) if sparsity is None else sparsity)]
    if estimate is not None:
        entries, device, path = _estimated(shapes, densities, format, estimate.value)
    else:
        entries, device, path = _measured(shapes, densities, format, dtype.value)
    if plot is not None:
        _draw(entries, device, plot)
    if as_json:
        about = {"device": device, "dtype": dtype.value, "measured": estimate is None}
        print_json(about | {"entries": [entry.model_dump(mode="json") for entry in entries]})
    else:
        _show(entries, device, path)


# ---- what to look at ----------------------------------------------------------------------------


def _shapes(target: str) -> list[tuple[int, int]]:
    if re.fullmatch(r"\d+x\d+(,\d+x\d+)*", target):
        found = [tuple(map(int, part.split("x"))) for part in target.split(",")]
        if any(not 1 <= side <= 1 << 23 for shape in found for side in shape):
            raise usage("a layer has between 1 and 2^23 rows and as many columns", "SHAPES")
        return list(dict.fromkeys((o, i) for o, i in found))
    return _model_shapes(model_directory(target))


def _model_shapes(directory: Path) -> list[tuple[int, int]]:
    """Of the linear layers, and of those that engines merge: q, k and v; gate and up."""
    with err.status("Reading the model"):
        from flashsparse_plugin.checkpoint.linears import find_linears
        from flashsparse_plugin.checkpoint.reader import ModelDirectory

        linears = find_linears(ModelDirectory(directory))
    shapes = [linear.shape for linear in linears]
    by_name = {linear.name: linear.shape for linear in linears}
    for linear in linears:
        parent, _, kind = linear.name.rpartition(".")
        for kinds in _MERGED:
            parts = [by_name.get(f"{parent}.{each}") for each in kinds]
            if kind == kinds[0] and None not in parts:
                shapes.append((sum(part[0] for part in parts), linear.shape[1]))
    return list(dict.fromkeys(shapes))


def _model_sparsity(target: str) -> list[float]:
    """Share of zeros that a packed model's config tells, else nothing."""
    import json

    path = Path(target).expanduser() / "config.json"
    if not path.is_file():
        return []
    config = json.loads(path.read_text(encoding="utf-8"))
    quantization = config.get("quantization_config") if isinstance(config, dict) else None
    found = quantization.get("sparsity") if isinstance(quantization, dict) else None
    return [found] if isinstance(found, (int, float)) and 0 <= found <= 1 else []


def _weights(
    shapes: Sequence[tuple[int, int]], densities: Sequence[float], format: str
) -> list[Weight]:
    from flashsparse_plugin.dataflow import Weight
    from flashsparse_plugin.dataflow.tuner import packed_weight

    packed = [packed_weight(shape, format, d) for shape in shapes for d in densities]
    return [*(Weight(shape) for shape in shapes), *packed]


# ---- looking ------------------------------------------------------------------------------------


def _estimated(
    shapes: Sequence[tuple[int, int]], densities: Sequence[float], format: str, name: str
) -> tuple[list[Entry], str, None]:
    from flashsparse_plugin.dataflow import model
    from flashsparse_plugin.dataflow.tuner import entry_of

    gpu = model.find_gpu(name, (0, 0))
    weights = _weights(shapes, densities, format)
    entries = [entry_of(weight, model.times(weight, gpu)) for weight in weights]
    return entries, f"{gpu.name}, estimated and not measured", None


def _measured(
    shapes: Sequence[tuple[int, int]], densities: Sequence[float], format: str, dtype: str
) -> tuple[list[Entry], str, Path]:
    import torch

    from flashsparse_plugin.dataflow import BUCKETS, DeviceKey, Table, tuner
    from flashsparse_plugin.dataflow.table import read_table, table_path, write_table

    device = tuner.require_gpu()
    key = DeviceKey.of(device)
    path = table_path(key, dtype)
    # Before anything is measured: a table that cannot be read is an error, and not overwritten.
    before = read_table(path) if path.exists() else Table(device=key, dtype=dtype, entries=[])
    entries = []
    weights = _weights(shapes, densities, format)
    with err.status("Measuring") as status:
        for number, weight in enumerate(weights, start=1):

            def tell(tokens: int, number: int = number, weight: Weight = weight) -> None:
                status.update(
                    f"Measuring {weight} ({number} of {len(weights)}), {tokens} of "
                    f"{BUCKETS[-1]} tokens"
                )

            entries.append(
                tuner.measure(
                    weight,
                    getattr(torch, dtype),
                    device,
                    tuner.graph_timer,
                    tuner.cold_bytes_of(device),
                    on_measured=tell,
                )
            )
            write_table(before.with_entries(entries), path)
    return entries, key.name, path


# ---- showing ------------------------------------------------------------------------------------


def _show(entries: Sequence[Entry], device: str, path: Path | None) -> None:
    """A line a layer, as in FlashDecoding++, Figure 9(c)."""
    made = table("Layer", "", _cells(str, lambda tokens: ""), "changes at", left=3)
    for entry in entries:
        shape = f"{entry.shape[0]}x{entry.shape[1]}"
        packed = "" if entry.format == "dense" else f"{entry.format} {1 - entry.density:.0%}"

        def name(tokens: int, entry: Entry = entry) -> str:
            return _implementation(entry, tokens)

        fastest = _cells(lambda t, name=name: _STYLES[name(t)][0], lambda t: _STYLES[name(t)][1])
        changes = ", ".join(str((each.max_tokens or 0) + 1) for each in entry.ranges[:-1])
        made.add_row(shape, Text(packed or "dense"), fastest, changes)
    for column in made.columns:
        column.no_wrap = True
    used = {_implementation(entry, tokens) for entry in entries for tokens in _SHOWN}
    out.print(Text(f"Fastest by tokens, {device}", style="bold"), "")
    out.print(made)
    out.print()
    for name, (letter, style) in _STYLES.items():
        if name in used:
            out.print(Text.assemble((f" {letter} ", style), f" {_LEGEND[name]}"))
    if path is not None:
        out.print(Text(f"\nWritten to {path}"), soft_wrap=True)


def _cells(text: Callable[[int], str], style: Callable[[int], str]) -> Text:
    """One cell for each number of tokens that is shown."""
    cells = Text()
    for tokens in _SHOWN:
        cells.append(f"{text(tokens):>{max(2, len(str(tokens)))}} ", style(tokens))
    return cells


def _implementation(entry: Entry, tokens: int) -> str:
    from flashsparse_plugin.dataflow import Dataflow

    return Dataflow(tuple(entry.ranges), "table", "").implementation(tokens)


def _draw(entries: Sequence[Entry], device: str, path: Path) -> None:
    """Microseconds against tokens, a plot a layer."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(len(entries), 4)
    rows = -(-len(entries) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 3 * rows), squeeze=False)
    for axis, entry in zip(axes.flat, entries, strict=False):
        _draw_entry(axis, entry)
    for axis in axes.flat[len(entries) :]:
        axis.set_visible(False)
    figure.suptitle(device)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    err.print(Text(f"Drawn to {path}"), soft_wrap=True)


def _draw_entry(axis: Any, entry: Entry) -> None:
    colours = {"gemv": "tab:cyan", "flat_gemm": "tab:green", "sparse": "tab:green"}
    found = [each for each in entry.measurements if each.tokens <= 256]
    for name in dict.fromkeys(name for each in found for name in each.microseconds):
        points = [(m.tokens, m.microseconds[name]) for m in found if name in m.microseconds]
        axis.plot(*zip(*points, strict=True), marker=".", label=name,
                  color=colours.get(name, "tab:orange"))  # fmt: skip
    for each in entry.ranges[:-1]:
        axis.axvline((each.max_tokens or 0) + 0.5, color="0.5", linestyle="--", linewidth=1)
    zeros = "" if entry.format == "dense" else f", {entry.format}, {1 - entry.density:.0%} zeros"
    axis.set_title(f"{entry.shape[0]}x{entry.shape[1]}{zeros}", fontsize=9)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("tokens")
    axis.set_ylabel("µs")
    axis.legend(fontsize=7)
