# SPDX-License-Identifier: Apache-2.0
"""`flashsparse fit`: for each layer of a model the zeros and the bits that cost least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .console import err, out, print_json, table, usage
from .models import (
    Dtype,
    best_device,
    draw_windows,
    fastest,
    load_model,
    model_directory,
    model_name,
)
from .options import CalibrationText, DenseModel, Ignore, Length, ReportAsJson, Samples, Seed
from .prune import Method

if TYPE_CHECKING:
    from flashsparse_plugin.fitting import Measured, Recipe


def fit(
    model: DenseModel,
    recipe: Annotated[
        Path, typer.Argument(help="File to write; must not exist.", metavar="RECIPE")
    ],
    bits: Annotated[float, typer.Option(help="Bits a weight, over all layers together.")],
    calibration: CalibrationText,
    device: Annotated[
        str | None,
        typer.Option(
            "--for", help="GPU such as H200, to estimate the time on.", show_default="not estimated"
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences decoded at once, for --for.")] = 16,
    samples: Samples = 32,
    length: Length = 256,
    seed: Seed = 0,
    ignore: Ignore = None,
    as_json: ReportAsJson = False,
) -> None:
    """Choose zeros and bits for each layer: the least loss of so many bits a weight.

    Every layer is pruned and rounded in every way that there is (no zeros, 2:4, 2:4 with dense
    blocks, 8:32; fp8, int8, int4), the error of its outputs on the text is measured, and by
    gradients how far that moves the model's predictions. The recipe is what loses least in all.
    Nothing is changed; prune, round and convert execute it.

    \b
    [bold]Examples[/bold]
      flashsparse fit MODEL recipe.json --bits 6 --calibration text.txt
      flashsparse fit MODEL recipe.json --bits 5 --calibration text.txt \\
          --for H200 --batch 16
      flashsparse prune MODEL PRUNED --recipe recipe.json --calibration text.txt
      flashsparse recover PRUNED MODEL RECOVERED --calibration text.txt
      flashsparse round RECOVERED ROUNDED --recipe recipe.json \\
          --calibration text.txt
      flashsparse convert ROUNDED PACKED --recipe recipe.json
    """
    source = model_directory(model)
    if not 0 < bits <= 16:
        raise usage(f"{bits:g} is not a number of bits a weight from 0 to 16", "--bits")
    if recipe.exists():
        raise usage(f"{recipe} exists already: remove it or choose another name", "RECIPE")
    with err.status("Starting"):
        from flashsparse_plugin.checkpoint import ModelDirectory
        from flashsparse_plugin.checkpoint.foreign.packing import half_dtype
        from flashsparse_plugin.checkpoint.read.linears import StoredModel
        from flashsparse_plugin.dataflow.expected import Target
        from flashsparse_plugin.expert_layout import experts_of
        from flashsparse_plugin.fitting import (
            CHOICES,
            Recipe,
            choose_by_bits,
            estimated_speed,
            measure_losses,
        )
        from flashsparse_plugin.modules import shape_of
        from flashsparse_plugin.names import LM_HEAD
        from flashsparse_plugin.pruning import prunable_linears
        from flashsparse_plugin.pruning.calibration import calibration_batches

        target = None
        if device is not None:
            try:
                target = Target.named(device, batch)
            except ValueError as error:
                raise usage(str(error), "--for") from None
            if target.gpu is None:
                raise usage("times are estimated for GPUs, such as H200", "--for")
    directory = ModelDirectory(source)
    with err.status(f"Loading {model_name(source)}"):
        here = best_device()
        loaded = load_model(directory, Dtype.auto, dense=True, device=here)
        stored = half_dtype(loaded.dtype)  # which convert packs in
        if fastest(Dtype.auto, directory, here) is Dtype.float32:
            loaded = loaded.float()
        windows = draw_windows(source, calibration, samples, length, seed)
    dense = [*([LM_HEAD] if ignore is None else ignore), *StoredModel(directory).unfit()]
    linears = prunable_linears(loaded, dense)
    batches = calibration_batches(loaded, windows, 8)
    method = Method.wanda.value
    progress = err.is_terminal
    measured = measure_losses(loaded, linears, batches, CHOICES, method, progress, stored)
    shapes = {name: shape_of(linears[name]) for name in measured}
    try:
        chosen = choose_by_bits(measured, shapes, bits)
    except ValueError as error:
        raise usage(str(error), "--bits") from None
    made = Recipe.of(model_name(source), method, chosen, shapes)
    made.write(recipe)
    speed = None if target is None else estimated_speed(chosen, shapes, target)
    experts = sum(each.numel() for each in experts_of(loaded).values())
    fitted = sum(rows * columns for rows, columns in shapes.values())
    whole = (made.bits * fitted + 8 * stored.itemsize * experts) / (fitted + experts)
    if as_json:
        own = {"recipe": str(recipe), "speed": speed, "bits_with_experts": round(whole, 3)}
        print_json(made.model_dump() | own)
        return
    _show(made, chosen, shapes)
    if experts:
        out.print(
            Text.assemble(
                ("Note: ", "yellow"),
                f"experts are {experts / (fitted + experts):.0%} of the weights, and are not "
                f"fitted: they stay in 16 bits, and all together have {whole:.2f}. `flashsparse "
                "prune` and `convert` know experts.",
            )
        )
        out.print()
    if speed is not None:
        told = f"On an {device} with {batch} tokens: {speed:.2f}x dense in 16 bits, estimated for "
        out.print(Text(f"{told}what runs there today."), soft_wrap=True)
    text_of, last = f"--calibration {calibration}", model
    steps = {}
    if made.rules:
        steps["Prune:"] = f"prune {model} PRUNED {text_of}"
        steps["Recover quality:"] = f"recover PRUNED {model} RECOVERED {text_of} --method lora"
        last = "RECOVERED"
    if any(own.choice.rounding for own in chosen.values()):
        steps["Round to 4 bits:"] = f"round {last} ROUNDED {text_of}"
        last = "ROUNDED"
    steps["Pack it:"] = f"convert {last} PACKED"
    for title, command in steps.items():
        command += "" if title.startswith("Recover") else f" --recipe {recipe}"
        out.print(Text(f"{title:<18}flashsparse {command}"), soft_wrap=True)


def _show(
    recipe: Recipe, chosen: Mapping[str, Measured], shapes: Mapping[str, tuple[int, int]]
) -> None:
    """What was chosen, by how much of the model it is."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, own in chosen.items():
        groups[own.choice.title].append(name)
    sizes = {name: rows * columns for name, (rows, columns) in shapes.items()}
    whole = sum(sizes.values())
    made = table("Choice", "layers", "weights", "bits", "output error", "loss, nats")
    for title, names in sorted(groups.items(), key=lambda item: -sum(sizes[n] for n in item[1])):
        weights = sum(sizes[name] for name in names)
        bits = 8 * sum(chosen[name].nbytes for name in names) / weights
        cells = _losses([chosen[name] for name in names])
        made.add_row(Text(title), f"{len(names)}", f"{weights / whole:.1%}", f"{bits:.2f}", *cells)
    made.add_section()
    cells = _losses([*chosen.values()])
    made.add_row("all", f"{len(chosen)}", "100%", f"{recipe.bits:.2f}", *cells, style="bold")
    out.print(made)
    out.print()


def _losses(chosen: Sequence[Measured]) -> tuple[str, str]:
    """The mean error of outputs, and the loss of all together."""
    error = sum(own.error for own in chosen) / len(chosen)
    return f"{error:.2%}", f"{sum(own.loss for own in chosen):.4f}"
