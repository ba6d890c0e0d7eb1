# SPDX-License-Identifier: Apache-2.0
"""`flashsparse tune`: which implementation is fastest for which layer and number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from .console import err, out, print_json, usage
from .models import MODEL, model_directory, parse_option, shapes_in
from .tune_plot import draw_times
from .tune_show import BATCHES, least_zeros, show_entries, show_least_zeros

if TYPE_CHECKING:
    from flashsparse_plugin.dataflow import Weight
    from flashsparse_plugin.dataflow.expected import Target
    from flashsparse_plugin.dataflow.table import Entry
    from flashsparse_plugin.packed import Scheme


class TuneDtype(StrEnum):
    bfloat16 = "bfloat16"
    float16 = "float16"


class Estimate(StrEnum):
    H200 = "H200"
    H100 = "H100"
    A100 = "A100"


def tune(
    target: Annotated[
        str,
        typer.Argument(
            help=f"Directory of a model, {MODEL}; or shapes out x in: 4096x4096,11008x4096.",
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
            help="Also measure packed layers at this sparsity. Can be repeated.",
            show_default="what the model's config says",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="Of the packed layers.", show_default="what the model's config says"),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the format. Can be repeated.", metavar="NAME=VALUE"),
    ] = None,
    estimate: Annotated[
        Estimate | None,
        typer.Option(help="Measure nothing: show the estimates of the cost model."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the times to this file, such as times.png.")
    ] = None,
    roofline: Annotated[
        Path | None,
        typer.Option(help="Draw float32 N:M products on the roofline to this file; tune nothing."),
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
      flashsparse tune 4096x4096 --roofline roofline.png --estimate H200
    """
    shapes, directory = _shapes(target)
    if roofline is not None:
        from .roofline import roofline as draw_roofline

        if len(shapes) > 1:
            raise usage(f"it draws one shape, and the target has {len(shapes)}", "--roofline")
        options = dict(parse_option(text) for text in option or [])
        name = None if estimate is None else estimate.value
        draw_roofline(shapes[0], options, name, roofline, as_json)
        return
    with err.status("Starting"):
        from flashsparse_plugin import formats

    stored = _stored_config(directory)
    options = dict(parse_option(text) for text in option or [])
    try:
        scheme = _scheme(formats, format, options, stored, dtype.value)
    except ValueError as error:
        raise usage(str(error), "--format") from None
    sparsities = _stored_sparsity(stored) if sparsity is None else sparsity
    weights = _weights(shapes, [1 - each for each in sparsities], scheme)
    measured = estimate is None
    if estimate is not None:
        entries, device, path = _estimated(weights, estimate.value)
    else:
        entries, device, path = _measured(weights, dtype.value)
    zeros = least_zeros(shapes, scheme, _targets(estimate, dtype.value))
    if plot is not None:
        draw_times(entries, device, plot)
    if as_json:
        about: dict[str, Any] = {"device": device, "dtype": dtype.value, "measured": measured}
        about["entries"] = [entry.model_dump(mode="json") for entry in entries]
        about["pays_from_zeros"] = {f"{o}x{i}": found for (o, i), found in zeros.items()}
        print_json(about)
        return
    show_entries(entries, device, measured)
    show_least_zeros(zeros, scheme, measured)
    if path is not None:
        out.print(Text(f"\nWritten to {path}"), soft_wrap=True)


# ---- what to look at ----------------------------------------------------------------------------


def _shapes(target: str) -> tuple[list[tuple[int, int]], Path | None]:
    """The shapes to look at, and the model that has them, if it is one."""
    found = shapes_in(target)
    if found is not None:
        return found, None
    directory = model_directory(target)
    return _model_shapes(directory), directory


def _model_shapes(directory: Path) -> list[tuple[int, int]]:
    """Shapes of the linear layers, and of those that engines merge: q, k and v; gate and up."""
    with err.status("Reading the model"):
        from flashsparse_plugin.checkpoint.read.directory import ModelDirectory, refuse_quantized
        from flashsparse_plugin.checkpoint.read.linears import find_linears
        from flashsparse_plugin.checkpoint.read.shapes import as_merged

        model = ModelDirectory(directory)
        refuse_quantized(model, packed=True)
        linears = {x.name: x.shape for x in find_linears(model.packed()) if x.expert is None}
    return list(dict.fromkeys([*linears.values(), *as_merged(linears).values()]))


def _stored_config(directory: Path | None) -> dict[str, Any]:
    """The quantization_config of a model directory, as it is; empty where there is none."""
    import json

    if directory is None:
        return {}
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    found = config.get("quantization_config") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def _stored_sparsity(stored: dict[str, Any]) -> list[float]:
    """Share of zeros that a packed model's config tells, else nothing."""
    found = stored.get("sparsity")
    return [found] if isinstance(found, (int, float)) and 0 <= found <= 1 else []


def _scheme(
    formats: Any, format: str | None, options: dict[str, Any], stored: dict[str, Any], dtype: str
) -> Scheme:
    """The scheme that was asked for, else that of the packed model.

    Raises:
        FormatError: For a format, options or a dtype that there are not.
    """
    import torch

    if format is None and stored.get("quant_method") == "flashsparse":
        format, options = stored.get("format"), {**stored.get("options", {}), **options}
    chosen = formats.get_format(format or formats.DEFAULT_FORMAT)
    return chosen.scheme(getattr(torch, dtype), options)


def _weights(
    shapes: Sequence[tuple[int, int]], densities: Sequence[float], scheme: Scheme
) -> list[Weight]:
    import torch

    from flashsparse_plugin.dataflow import Weight
    from flashsparse_plugin.dataflow.tuner import packed_weight

    held = scheme.format.runtime(scheme, torch.device("cuda"))  # what loading will look up
    if held.format.is_fixed(held):  # a pattern, which has one share of zeros
        densities = [1.0]
    packed = [packed_weight(shape, held, d) for shape in shapes for d in densities]
    return [*(Weight(shape) for shape in shapes), *packed]


# ---- looking ------------------------------------------------------------------------------------


def _estimated(weights: Sequence[Weight], name: str) -> tuple[list[Entry], str, None]:
    from flashsparse_plugin.dataflow import model
    from flashsparse_plugin.dataflow.tuner import entry_of
    from flashsparse_plugin.gpu import find_gpu

    gpu = find_gpu(name, (0, 0))
    entries = [entry_of(weight, model.times(weight, gpu), model.DOUBT) for weight in weights]
    return entries, f"{gpu.name}, estimated and not measured", None


def _targets(estimate: Estimate | None, dtype: str) -> list[Target]:
    """What layers are compared on: the GPU that is estimated, or this one by what was measured."""
    from flashsparse_plugin.dataflow import DeviceKey, tuner
    from flashsparse_plugin.dataflow.expected import Target
    from flashsparse_plugin.gpu import find_gpu

    if estimate is None:
        key = DeviceKey.of(tuner.require_gpu())
        return [Target.of_key(key, dtype, batch) for batch in BATCHES]
    return [Target(find_gpu(estimate.value, (0, 0)), batch) for batch in BATCHES]


def _measured(weights: Sequence[Weight], dtype: str) -> tuple[list[Entry], str, Path]:
    import torch

    from flashsparse_plugin.dataflow import BUCKETS, DeviceKey, tuner
    from flashsparse_plugin.dataflow.table import add_to_table, read_table, table_path

    device = tuner.require_gpu()
    key = DeviceKey.of(device)
    path = table_path(key, dtype)
    if path.exists():
        read_table(path)  # one that cannot be read is an error before anything is measured
    entries = []
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
            add_to_table(entries[-1:], key, dtype)
    return entries, key.name, path
