# SPDX-License-Identifier: Apache-2.0
"""`flashsparse calibrate`: phi for each layer and head, or why a model gets none."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from .console import err, out, print_json, table
from .models import (
    Dtype,
    best_device,
    load_model,
    load_tokenizer,
    model_directory,
    model_name,
)
from .options import Length, Seed

if TYPE_CHECKING:
    from torch import Tensor

    from flashsparse_plugin.attention.calibration import Calibration, LayerFinding

_BARS = "▁▂▃▄▅▆▇█"
_CELLS = 14  # of a histogram in the table


class CalibrateDtype(StrEnum):
    bfloat16 = "bfloat16"
    float16 = "float16"


def calibrate(
    model: Annotated[
        str,
        typer.Argument(
            help="Directory of the model, packed or dense; with --dry-run also a name on the Hub.",
            metavar="MODEL",
        ),
    ],
    text: Annotated[
        Path,
        typer.Option(
            help="Text file, of the kind the model will see.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ],
    dtype: Annotated[
        CalibrateDtype | None,
        typer.Option(
            help="Dtype that the model will run in.",
            show_default="the model's, bfloat16 for float32",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the text to use.")] = 16384,
    context: Length = 1024,
    limit: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="A layer that would recompute a larger share of its parts gets no phi.",
        ),
    ] = 0.01,
    seed: Seed = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the result and write nothing.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the scores to this file, such as scores.png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Choose phi, the unified maximum of attention, and write it to config.json.

    Runs the model over a text, on the GPU if there is one. phi affects the
    time and never the result: parts that it does not fit are recomputed. A
    layer whose scores are spread too widely gets no phi, and a model with
    many such layers gets no entry at all.

    \b
    [bold]Examples[/bold]
      flashsparse calibrate MODEL --text text.txt
      flashsparse calibrate MODEL --text text.txt --dtype float16 --dry-run
      flashsparse calibrate MODEL --text text.txt --plot scores.png
      flashsparse calibrate MODEL --text text.txt --json | jq .refused
    """
    source = model_directory(model, changes=not dry_run)
    if plot is not None:
        _matplotlib()  # before the work, not after it
    with err.status(f"Loading {model_name(source)}") as status:
        found, made_of = _look(source, text, dtype, tokens, context, seed, status.update)
    if plot is not None:
        _draw(found, made_of, limit, plot)
    config = source / "config.json"
    if as_json:
        about: dict[str, Any] = {"model": str(source), "text": str(text), "dtype": found.dtype}
        about |= {"tokens": found.tokens, "context": context, "limit": limit}
        about |= {"refused": found.refused(limit), "layers": list(map(_plain, found.layers))}
        print_json(about)
    else:
        _show(found, made_of, limit)
    entry = found.entry(limit, text.name)
    if not dry_run:
        from flashsparse_plugin.attention.calibration import write_entry

        write_entry(entry, config)
    if not as_json:
        _conclude(found, limit, None if dry_run else config)


def _look(
    source: Path,
    text: Path,
    dtype: CalibrateDtype | None,
    tokens: int,
    context: int,
    seed: int,
    tell: Callable[[str], None],
) -> tuple[Calibration, str]:
    """Runs the model; returns the calibration and a description of its inputs."""
    import torch

    from flashsparse_plugin.attention.calibration import calibrate as run
    from flashsparse_plugin.pruning import calibration_windows
    from flashsparse_plugin.text import check_window

    wanted = Dtype(dtype.value) if dtype else Dtype.auto
    loaded = load_model(source, wanted, device=best_device())
    if dtype is None:
        dtype = CalibrateDtype.float16 if loaded.dtype == torch.float16 else CalibrateDtype.bfloat16
    check_window(loaded, context)
    words = text.read_text(encoding="utf-8", errors="replace")
    samples = max(tokens // context, 1)
    windows = calibration_windows(load_tokenizer(source), words, samples, context, seed)
    look = f"Looking at {model_name(source)}: window {{}} of {samples}"
    tell(look.format(1))
    found = run(loaded, windows, dtype.value, lambda done: tell(look.format(done + 1)))
    return found, f"{model_name(source)}, {dtype.value}, {found.tokens:,} tokens of {text.name}"


def _plain(layer: LayerFinding | None) -> dict[str, Any] | None:
    if layer is None:
        return None
    return {
        "least": layer.least,
        "most": layer.most,
        "held": layer.held,
        **layer.reference.model_dump(),
    }


# ---- showing ------------------------------------------------------------------------------------


def _show(found: Calibration, made_of: str, limit: float) -> None:
    out.print(Text(made_of, style="bold"), "", soft_wrap=True)
    layers = [layer for layer in found.layers if layer is not None]
    span = min(layer.least for layer in layers), max(layer.most for layer in layers)
    axis = f"{span[0]:.0f}{span[1]:>{_CELLS - len(f'{span[0]:.0f}')}.0f}"
    made = table("", "Layer", axis, "scores", "99.99% within", "phi", "again", left=3)
    refused = found.refused(limit)
    for number, layer in enumerate(found.layers):
        if layer is None:
            made.add_row("[dim]–[/dim]", str(number), "", "[dim]no softmax[/dim]")
            continue
        bad = number in refused
        made.add_row(
            "[red]✗[/red]" if bad else "[green]✓[/green]",
            str(number),
            Text(_bars(layer, span), style="red" if bad else "cyan"),
            _range(layer.least, layer.most),
            _range(*layer.held),
            Text("online", style="red")
            if bad
            else _range(min(layer.reference.phi), max(layer.reference.phi)),
            Text(_share(layer.reference.recomputed), style="red" if bad else ""),
        )
    for column in made.columns:
        column.no_wrap = True
    made.columns[1].justify = "right"
    out.print(made)
    out.print()


def _range(low: float, high: float) -> str:
    return f"{low:.1f} … {high:.1f}"


def _share(part: float) -> str:
    return "none" if part == 0 else "<0.001%" if part < 1e-5 else f"{part:.3%}"


def _bars(layer: LayerFinding, span: tuple[float, float]) -> str:
    """A histogram in one line, of logarithmic height so that the tails show."""
    width = max(span[1] - span[0], 1e-9) / _CELLS
    heights = [math.log1p(count) for count in _rebinned(layer.counts, span[0], width, _CELLS)]
    top = max(heights)
    return "".join(
        _BARS[round(height / top * (len(_BARS) - 1))] if height else " " for height in heights
    )


def _rebinned(counts: Tensor, low: float, width: float, cells: int) -> list[int]:
    """A histogram in fewer bins, from low on; counts beyond go to the end bins."""
    import torch

    from flashsparse_plugin.attention.calibration import Histogram

    centres = (torch.arange(len(counts)) - 0.5) * Histogram.WIDTH - Histogram.REACH
    cell = ((centres - low) / width).floor().clamp(0, cells - 1).long()
    return torch.zeros(cells, dtype=torch.int64).index_add(0, cell, counts).tolist()


def _conclude(found: Calibration, limit: float, config: Path | None) -> None:
    refused = found.refused(limit)
    with_phi = [
        layer.reference.recomputed
        for number, layer in enumerate(found.layers)
        if layer is not None and number not in refused
    ]
    again = sum(with_phi) / len(with_phi)
    text = f"phi for {len(with_phi)} of {len(found.layers)} layers, which recompute "
    text += f"{_share(again)} of their parts"
    text += f"; {len(refused)} run the online softmax." if refused else "."
    out.print(Text(text), soft_wrap=True)
    if config is None:
        out.print("[dim]A dry run: nothing was written.[/dim]")
        return
    out.print(Text(f"Written to {config}"), soft_wrap=True)
    use = f'AutoModelForCausalLM.from_pretrained("{config.parent}", '
    out.print(Text(f'Use it:  {use}attn_implementation="unified_max")'), soft_wrap=True)
    serve = f"vllm serve {config.parent} --decode-attention unified_max"
    out.print(Text(f"         {serve}"), soft_wrap=True)


# ---- drawing ------------------------------------------------------------------------------------


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _draw(found: Calibration, made_of: str, limit: float, path: Path) -> None:
    """A histogram per layer, as in FlashDecoding++, Figure 5."""
    from flashsparse_plugin.attention.calibration import Histogram

    pyplot = _matplotlib()
    layers = [(n, layer) for n, layer in enumerate(found.layers) if layer is not None]
    columns = min(len(layers), 6)
    rows = -(-len(layers) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(2.6 * columns, 1.9 * rows + 0.6), squeeze=False
    )
    refused = found.refused(limit)
    for axis, (number, layer) in zip(axes.flat, layers, strict=False):
        # Each bar holds whole bins; otherwise bars would be uneven.
        low = math.floor(layer.least / Histogram.WIDTH) * Histogram.WIDTH
        width = (math.ceil((layer.most - low) / Histogram.WIDTH) // 80 + 1) * Histogram.WIDTH
        cells = math.ceil((layer.most - low) / width) or 1
        heights = _rebinned(layer.counts, low, width, cells)
        places = [low + (i + 0.5) * width for i in range(cells)]
        axis.bar(places, heights, width, color="tab:red" if number in refused else "tab:cyan")
        for bound in layer.held:
            axis.axvline(bound, color="0.4", linestyle="--", linewidth=0.8)
        what = "online softmax" if number in refused else f"[{_range(*layer.held)}]"
        axis.set_title(f"{number}: {what}", fontsize=8)
        axis.set_yticks([])
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(layers) :]:
        axis.set_visible(False)
    figure.suptitle(f"Inputs of the softmax, 99.99% between the lines\n{made_of}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    err.print(Text(f"Drawn to {path}"), soft_wrap=True)
