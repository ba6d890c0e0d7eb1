# SPDX-License-Identifier: Apache-2.0
"""`flashsparse inspect`: what a model directory holds, and what each format would make of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .console import err, out, print_json, size, table
from .convert import progress
from .devices import THIS, batch_option, for_option
from .models import MODEL, model_directory

if TYPE_CHECKING:
    from flashsparse_plugin.checkpoint import Inspection, LayerInspection


def inspect(
    path: Annotated[
        str, typer.Argument(help=f"Directory of a dense or packed model, {MODEL}.", metavar="PATH")
    ],
    layers: Annotated[
        bool, typer.Option("--layers", help="One row per layer instead of one per kind of layer.")
    ] = False,
    device: Annotated[str, for_option("Where to compare packed with dense layers")] = THIS,
    batch: Annotated[int, batch_option()] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what a model's linear layers are made of and what packing them would save.

    Reads a dense or a packed model layer by layer: shape, zeros, bytes as stored, as dense, after
    [bold]flashsparse convert[/bold] to each format (which leaves some layers dense), and then on a
    CPU at run time. Packed layers are validated on the way. Then it says which layers gain from
    packing, as [bold]convert --format auto[/bold] chooses.

    \b
    [bold]Examples[/bold]
      flashsparse inspect MODEL
      flashsparse inspect MODEL --layers
      flashsparse inspect MODEL --for H200 --batch 16
      flashsparse inspect MODEL --json > model.json
    """
    directory = model_directory(path)
    with err.status("Starting"):
        from flashsparse_plugin.checkpoint import inspect_checkpoint

    with progress("Inspecting") as on_progress:
        found = inspect_checkpoint(directory, on_progress=on_progress, device=device, batch=batch)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found, layers)


def _show(found: Inspection, by_layer: bool) -> None:
    from flashsparse_plugin.checkpoint.files.places import hub_name
    from flashsparse_plugin.checkpoint.write.report import by_kind, schemes_of

    packed = schemes_of(found.layers) or found.format
    state = "dense" if packed is None else f"packed to {packed}"
    name = hub_name(Path(found.path)) or found.path
    head = f"{name}  {found.model_type}, {state}, {size(found.bytes_stored)} of weights"
    out.print(Text(head, style="bold"), soft_wrap=True)
    out.print()
    formats = list(found.layers[0].bytes_in)
    others = [name for name in formats if name != found.format]  # that is what is stored
    hold_none = [x for x in others if all(_sum([each], x) is None for each in found.layers)]
    shown = [name for name in others if name not in hold_none]
    each = {layer.name: [layer] for layer in found.layers}
    groups = each if by_layer else by_kind(found.layers)
    made = _table(found, groups, shown, by_layer)
    while shown and _width(made) > out.width:  # least use first: most bytes, or not all layers
        sums = {name: _sum(found.layers, name) for name in shown}
        shown.remove(max(shown, key=lambda name: (sums[name] is None, sums[name] or 0)))
        made = _table(found, groups, shown, by_layer)
    out.print(made)
    out.print()
    out.print(f"Everything else (embeddings, norms, biases): {size(found.bytes_other)}")
    if any(_sum(group, name) is None for group in groups.values() for name in shown):
        out.print(f"no: {NO}")
    if hold_none:
        out.print(f"No layer fits {', '.join(hold_none)}: {NO}")
    if narrow := [name for name in others if name not in [*shown, *hold_none]]:
        out.print(f"Not shown, for lack of width: {', '.join(narrow)} (--json has all)")
    for note in found.notes:
        out.print(Text.assemble(("Note: ", "yellow"), note))
    _show_reasons(found)
    for choice in found.choices:
        out.print(Text.assemble(("packed: " if found.format else "auto: ", "cyan"), choice))
    _show_exceptions(found)
    if found.format is None:
        _show_model(found, formats)
    _show_attention(Path(found.path))


NO = (
    "the zeros do not follow a pattern, which this format needs; or it would round values, or list "
    "too many apart"
)
_LABEL = 20  # characters of a name that are wanted on one line


def _table(
    found: Inspection,
    groups: Mapping[str, Sequence[LayerInspection]],
    formats: Sequence[str],
    by_layer: bool,
) -> Table:
    """The sizes of layers as they are, in some formats, and in a CPU's memory."""
    sizes = ["bytes_dense", *formats, "bytes_cpu"]
    headers = ["dense", *(name.replace("_", "\n") for name in formats), "on CPU"]
    if found.format is not None:  # else the same as dense
        sizes, headers = ["bytes_stored", *sizes], ["stored", *headers]
    made = table("Layer" if by_layer else "Kind", "shape", "zeros", *headers)
    for column in made.columns[1:]:
        column.no_wrap = True
    for name, group in groups.items():
        label = name if by_layer else f"{name} ({len(group)})"
        made.add_row(Text(label), _shape(group), *_numbers(group, sizes))
    made.add_section()
    label = f"all ({len(found.layers)})"
    made.add_row(label, "", *_numbers(found.layers, sizes), style="bold")
    made.add_row("of dense", "", "", *_shares(found.layers, sizes), style="dim")
    made.columns[0].min_width = min(_LABEL, _longest(made))
    return made


def _longest(made: Table) -> int:
    """Characters of the longest name."""
    return max(len(str(cell)) for cell in made.columns[0].cells)


def _width(made: Table) -> int:
    """Characters that a table takes at least: names may go on in the next line."""
    whole = Measurement.get(out, out.options.update(width=1000), made).maximum
    return whole - _longest(made) + (made.columns[0].min_width or 0)


def _shape(group: Sequence[LayerInspection]) -> str:
    shapes = sorted({layer.shape for layer in group})
    rows, cols = shapes[0]
    return f"{rows} x {cols}" if len(shapes) == 1 else f"{len(shapes)} shapes"


def _sum(group: Sequence[LayerInspection], name: str) -> int | None:
    """Bytes of some layers by an attribute, or converted; None where a format refuses one."""
    if hasattr(group[0], name):
        return sum(getattr(layer, name) for layer in group)
    after = [layer.bytes_after[name] for layer in group]
    return None if None in after else sum(nbytes for nbytes in after if nbytes is not None)


def _numbers(group: Sequence[LayerInspection], names: Sequence[str]) -> list[str | Text]:
    """Cells of a row: green where a size is below dense, yellow where it is above."""
    from flashsparse_plugin.checkpoint.write.report import mean_sparsity

    dense = sum(layer.bytes_dense for layer in group)
    cells: list[str | Text] = [f"{mean_sparsity(group):.1%}"]
    for name in names:
        nbytes = _sum(group, name)
        if nbytes is None:
            cells.append(Text("no", style="dim"))
        else:
            style = "" if nbytes == dense else "green" if nbytes < dense else "yellow"
            cells.append(Text(size(nbytes), style=style))
    return cells


def _shares(layers: Sequence[LayerInspection], names: Sequence[str]) -> list[str]:
    dense = sum(layer.bytes_dense for layer in layers)
    sums = [_sum(layers, name) for name in names]
    return ["" if nbytes is None else f"{nbytes / dense:.0%}" for nbytes in sums]


def _show_reasons(found: Inspection) -> None:
    reasons: dict[str, list[str]] = {}
    for layer in found.layers:
        if layer.reason is not None:
            reasons.setdefault(layer.reason.partition(":")[0], []).append(layer.name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        out.print(Text(f"Dense: {', '.join(names[:2])}{more} ({reason})"))


def _show_exceptions(found: Inspection) -> None:
    """One line on each format that lists elements apart, of the layers that it holds."""
    for name in dict.fromkeys(name for layer in found.layers for name in layer.exceptions):
        held = [layer for layer in found.layers if name in layer.exceptions]
        elements = sum(layer.shape[0] * layer.shape[1] for layer in held)
        listed = sum(layer.exceptions[name] for layer in held) / elements
        bits = 8 * sum(layer.bytes_in[name] or 0 for layer in held) / elements
        out.print(f"{name}: {bits:.2f} bits a weight, all exact; {listed:.3%} exceptions")


def _show_model(found: Inspection, formats: Sequence[str]) -> None:
    """One line on the whole model after a conversion, a format."""
    rest = found.bytes_stored - sum(layer.bytes_stored for layer in found.layers)
    for name in formats:
        linears = _sum(found.layers, name)
        if linears is not None:
            after = f"{size(rest + linears)}, {(rest + linears) / found.bytes_stored:.0%}"
            how = _option(found, name)
            out.print(f"Converted with {how}, the whole model takes {after} of what it takes now")


def _option(found: Inspection, name: str) -> str:
    """A format as `convert` takes it, with the options of one that needs some."""
    from flashsparse_plugin.formats.registry import as_option

    options = next((x.options_in[name] for x in found.layers if x.options_in.get(name)), {})
    return as_option(name, options)


def _show_attention(directory: Path) -> None:
    """One line on what `flashsparse calibrate` wrote, where it did."""
    from flashsparse_plugin.attention import CalibrationError, unified_max_of
    from flashsparse_plugin.attention.calibration import text_config

    try:
        data = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        entry = unified_max_of(text_config(data))
    except CalibrationError as error:
        out.print(Text(f"Attention: {error}", style="yellow"), soft_wrap=True)
        return
    if entry is not None:
        layers = sum(layer is not None for layer in entry.layers)
        told = f"{layers} of {len(entry.layers)} layers, chosen for {entry.dtype} on {entry.text}"
        out.print(Text(f"Attention: phi for {told}"), soft_wrap=True)
