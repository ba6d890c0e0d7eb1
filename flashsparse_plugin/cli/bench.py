# SPDX-License-Identifier: Apache-2.0
"""`flashsparse bench`: what zeros and fewer bits bring a model's layers on this machine."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import flashsparse_plugin

from .bench_show import BUSY, draw, show
from .console import err, out, usage
from .models import MODEL, best_device, target_shapes
from .tune import TuneDtype

if TYPE_CHECKING:
    import torch

    from flashsparse_plugin.served import ModelShapes

DEFAULT = "Llama-3.1-8B"
URL = "Issues"  # of pyproject.toml's [project.urls]: where results are sent


def bench(
    target: Annotated[
        str,
        typer.Argument(
            help=f"A known model, such as {DEFAULT}, Qwen3-8B or Gemma-3-12B; a directory, of "
            f"which only config.json is read, {MODEL}; or shapes: 4096x4096,28672x4096.",
            metavar="MODEL|SHAPES",
        ),
    ] = DEFAULT,
    tokens: Annotated[
        str, typer.Option(help="Rows of x: sequences decoded at once, or of a prompt.")
    ] = "1,8,64,512",
    dtype: Annotated[TuneDtype, typer.Option(help="Of weights and activations.")] = (
        TuneDtype.bfloat16
    ),
    csv: Annotated[
        Path | None, typer.Option(help="Write the times to this file, to keep or to send to us.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the speedups to this file, such as bench.png.")
    ] = None,
) -> None:
    """Measure dense, quantized and sparse linear layers side by side, here.

    Weights are random, and nothing is downloaded for a known model. Each product is compared with
    float64 first, then timed over cold weights and after another kernel, as in a model. On a GPU
    a model of 8B takes a minute; a CPU takes some minutes.

    \b
    [bold]Examples[/bold]
      flashsparse bench
      flashsparse bench Qwen3-32B --tokens 1,16 --plot bench.png
      flashsparse bench MODEL --csv bench.csv
    """
    counts = _tokens(tokens)
    name, shapes = target_shapes(target)
    for path in (csv, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise usage(f"{path}: there is no such folder", "--csv" if path is csv else "--plot")
    if plot is not None:
        from flashsparse_plugin.evaluation.chart import require_matplotlib

        require_matplotlib()
    # torch says of one of its functions that it is experimental, in two lines across the display.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with err.status("Starting") as status:
        import torch

        from flashsparse_plugin.evaluation.layer_bench import LayerBench, speedups, write_csv

        device = torch.device(best_device())
        busy = device.type == "cpu" and os.getloadavg()[0] > (os.cpu_count() or 1)
        if busy:
            err.print(Text(f"{BUSY}.", "yellow"))
        about = _conditions(device, dtype.value, name, shapes) | {"busy": busy}
        measured = LayerBench(
            counts,
            device,
            getattr(torch, dtype.value),
            lambda what: status.update(f"Measuring {what}"),
        )
        for _ in measured.run(list(shapes.layers)):
            if csv is not None:  # what was measured is kept if the rest is stopped
                write_csv(csv, about, measured.rows)
    found = speedups(measured.rows, shapes.layers)
    machine = about.get("gpu", about["cpu"])
    show(found, counts, f"{name or 'Linear layers'} on {machine}", measured.left_out, busy)
    if shapes.experts:
        out.print(Text("Experts are not measured: these are the other linear layers.", "yellow"))
    if plot is not None:
        draw(found, counts, f"{name or 'layers'}, {machine}, torch {torch.__version__}", plot, busy)
        out.print(Text(f"Drawn to {plot}"), soft_wrap=True)
    _say_where_to_send(csv)
    if measured.wrong:
        listed = "; ".join(f"{kind}: {why}" for kind, why in measured.wrong.items())
        raise RuntimeError(f"some results are wrong, and are left out above: {listed}")


def _tokens(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 1 << 14 for part in parts) or len(parts) > 5:
        raise usage(f"{text!r} is not up to five numbers from 1 to 16384: 1,8,64", "--tokens")
    return sorted(set(map(int, parts)))


def _conditions(
    device: torch.device, dtype: str, name: str | None, shapes: ModelShapes
) -> dict[str, Any]:
    """What a reader of the CSV has to know; nothing that tells who measured."""
    import torch

    from flashsparse_plugin.diagnostics import hardware

    found = hardware()
    about: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "flashsparse": flashsparse_plugin.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": found["cpu"],
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
            "driver": found["driver"],
            "cuda": torch.version.cuda,
        }
    layers = {f"{rows}x{columns}": count for (rows, columns), count in shapes.layers.items()}
    return about | {"dtype": dtype, "model": name, "layers": layers}


def _say_where_to_send(csv: Path | None) -> None:
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("flashsparse-plugin").get_all("Project-URL") or []
    except PackageNotFoundError:  # run from a source tree
        urls = []
    named = dict(each.split(", ", 1) for each in urls)
    where = f" ({named[URL]})" if URL in named else ""
    if csv is None:
        text = f"With --csv FILE the times are kept; please send us that file{where}."
    else:
        text = (
            f"Written to {csv}. Please send it to us{where}: it names the machine's parts, "
            "versions and the date, and no host, user or path."
        )
    out.print(Text(text, style="dim"))
