# SPDX-License-Identifier: Apache-2.0
"""`flashsparse prune`: writes a dense checkpoint with its least important weights set to zero."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from flashsparse_plugin.names import LM_HEAD

from .console import err, out, print_json, usage
from .models import (
    Dtype,
    best_device,
    do_push,
    draw_windows,
    fastest,
    load_model,
    may_push,
    model_directory,
    model_name,
    refuse_existing,
    show_pushed,
)
from .options import (
    DenseModel,
    Destination,
    Ignore,
    Length,
    OptionalText,
    Push,
    ReportAsJson,
    Samples,
    Seed,
    WrittenDtype,
    recipe_option,
)
from .prune_show import show, show_next

if TYPE_CHECKING:
    pass


class Method(StrEnum):  # tests compare these with the registries: commands start without torch
    wanda = "wanda"
    ria = "ria"
    sparsegpt = "sparsegpt"
    taylor = "taylor"
    magnitude = "magnitude"


class Allocation(StrEnum):
    uniform = "uniform"
    owl = "owl"
    sensitivity = "sensitivity"


class Preset(StrEnum):
    flash_llm = "flash-llm"


class Scope(StrEnum):
    layer = "layer"
    row = "row"
    everything = "global"


def prune(
    model: DenseModel,
    destination: Destination,
    sparsity: Annotated[
        float | None,
        typer.Option(help="Share of zeros.", show_default="0.5, or what --pattern implies"),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Share of zeros of all layers together, for --allocate."),
    ] = None,
    allocate: Annotated[
        Allocation,
        typer.Option(
            help="How a budget is shared: uniform, owl (by outliers) or sensitivity (by measured "
            "loss).",
            metavar="HOW",
        ),
    ] = Allocation.uniform,
    method: Annotated[
        Method | None,
        typer.Option(
            "--method",
            help="wanda, ria, sparsegpt (also changes what is kept), taylor or magnitude (needs no "
            "--calibration).",
            metavar="METHOD",
            show_default="wanda",
        ),
    ] = None,
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Preset of a paper: flash-llm leaves the first and last quarter of FFN inputs "
            "dense and prunes the rest to 0.8 by taylor.",
            metavar="PAPER",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            help="N:M keeps N of every M consecutive inputs; 8:32-L32: the same ones in 32 rows.",
            metavar="N:M",
        ),
    ] = None,
    vector_length: Annotated[
        int, typer.Option(min=1, help="Consecutive rows that share the choice of a pattern.")
    ] = 1,
    dense: Annotated[
        float,
        typer.Option(
            help="Share of 16x256 blocks, of all layers together, that stay dense beside --pattern "
            "2:4: those that would lose most.",
            show_default=False,
        ),
    ] = 0.0,
    permute: Annotated[
        bool,
        typer.Option(
            "--permute",
            help="Reorder hidden channels of feed-forward networks first, so that --pattern keeps "
            "more of them.",
        ),
    ] = False,
    scope: Annotated[
        Scope | None,
        typer.Option(
            help="Set among which the least important weights are chosen; global is for magnitude "
            "and taylor.",
            show_default="row for wanda, else layer",
        ),
    ] = None,
    calibration: OptionalText = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            help="Zeros that MaskLLM has chosen, instead of a method.",
            metavar="FILE.npz",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    router_weighted: Annotated[
        bool,
        typer.Option(
            "--router-weighted",
            help="Of mixtures: inputs of experts count by the router's weights.",
        ),
    ] = False,
    recipe: Annotated[Path | None, recipe_option("instead of one pattern for all")] = None,
    samples: Samples = 128,
    length: Length = 512,
    seed: Seed = 0,
    ignore: Ignore = None,
    dtype: WrittenDtype = Dtype.auto,
    push: Push = None,
    as_json: ReportAsJson = False,
) -> None:
    """Choose the zeros: set the least important weights of a model to zero.

    OUT becomes an ordinary dense checkpoint with zeros in it, as large as before.

    Pack it with [bold]flashsparse convert[/bold].

    \b
    [bold]Examples[/bold]
      flashsparse prune MODEL OUT --calibration text.txt
      flashsparse prune MODEL OUT --calibration text.txt --sparsity 0.6
      flashsparse prune MODEL OUT --calibration text.txt --method sparsegpt
      flashsparse prune MODEL OUT --calibration text.txt --budget 0.5 \\
          --allocate owl
      flashsparse prune MODEL OUT --method magnitude --scope global
      flashsparse prune MODEL OUT --calibration text.txt --pattern 2:4 --permute
      flashsparse prune MODEL OUT --calibration text.txt --pattern 2:4 \\
          --dense 0.25
      flashsparse prune MODEL OUT --method magnitude --ignore 're:.*down_proj'
      flashsparse prune MODEL OUT --mask mask_compressed.npz
    """
    source = model_directory(model)
    for given, what in ((mask, "mask"), (recipe, "recipe")):
        chosen_too: dict[str, object] = {"--sparsity": sparsity, "--pattern": pattern}
        chosen_too |= {"--scope": scope, "--budget": budget, "--preset": preset}
        chosen_too |= {"--permute": permute or None, "--dense": dense or None}
        chosen_too["--router-weighted"] = router_weighted or None
        chosen_too["--vector-length"] = None if vector_length == 1 else vector_length
        if what == "mask":
            chosen_too |= {"--method": method, "--calibration": calibration, "--recipe": recipe}
        for name, value in chosen_too.items():
            if given is not None and value is not None:
                raise usage(f"the {what} determines the zeros: leave {name} out", f"--{what}")
    if mask is None and method is None:
        method = Method.taylor if preset is not None else Method.wanda
    _check_budget(budget, sparsity, allocate)
    if budget is not None:
        sparsity = budget
    measured = allocate is not Allocation.uniform
    if method is not None and method is not Method.magnitude and calibration is None:
        raise usage(
            f"{method.value} needs calibration text: give one like the model's input with "
            "--calibration FILE.txt, or use --method magnitude, which needs none",
            "--calibration",
        )
    if measured and calibration is None:
        raise usage(
            f"{allocate.value} needs calibration text: give --calibration FILE.txt",
            "--calibration",
        )
    if method is Method.magnitude and calibration is not None and not measured:
        raise usage("magnitude uses no text: leave it out, or use --method wanda", "--calibration")
    refuse_existing(destination)
    if permute and pattern is None and mask is None:
        raise usage("spreads columns over the windows of a pattern: give --pattern", "--permute")
    publisher = may_push(push)
    _check_dense(dense, pattern, vector_length)
    rule = None
    if pattern is not None:
        rule, vector_length = _pattern(pattern, vector_length)
        pattern = f"{rule[0]}:{rule[1]}"

    from flashsparse_plugin import pruning
    from flashsparse_plugin.checkpoint import ModelDirectory
    from flashsparse_plugin.checkpoint.card.model_card import write_pruned_card
    from flashsparse_plugin.checkpoint.card.record import Calibration, Pruning
    from flashsparse_plugin.checkpoint.convert.advice import notes_on_pruning
    from flashsparse_plugin.checkpoint.prune.pruned import unwritable_experts, write_pruned
    from flashsparse_plugin.checkpoint.read.linears import StoredModel
    from flashsparse_plugin.checkpoint.write.room import require_room
    from flashsparse_plugin.fitting import Recipe

    made_by = None if recipe is None else Recipe.read(recipe)
    rules = None if made_by is None else made_by.rules
    rounds = made_by is not None and bool(made_by.roundings)
    if rules == {}:
        then = "round (flashsparse round) and pack it" if rounds else "pack the model as it is"
        raise usage(f"the recipe keeps every weight: {then}", "--recipe")
    start = time.perf_counter()
    directory = ModelDirectory(source)
    require_room(destination, directory.nbytes)
    with err.status(f"Loading {model_name(source)}"):
        # A text wants a model that runs; to look at weights any model will do.
        runs = calibration is not None or permute
        device = best_device() if calibration is not None else "cpu"
        computed = fastest(dtype, directory, device) if runs else dtype
        loaded = load_model(directory, computed, dense=True, device=device, causal=runs)
        stored = StoredModel(directory)
        windows = None
        if calibration is not None:
            windows = draw_windows(source, calibration, samples, length, seed)
    untouched = [*(ignore if ignore is not None else [LM_HEAD]), *stored.unfit()]
    untouched += unwritable_experts(stored)
    if preset is not None:
        untouched += pruning.dense_layers(preset.value, loaded)
        if sparsity is None and rule is None:
            sparsity = pruning.PRESETS[preset.value].sparsity
    if mask is not None:
        report = pruning.apply_masks(loaded, mask, untouched, progress=err.is_terminal)
    else:
        assert method is not None
        report = pruning.prune(
            loaded,
            method.value,
            sparsity,
            scope.value if scope else None,
            rule,
            vector_length,
            windows,
            untouched,
            progress=err.is_terminal,
            allocation=allocate.value,
            permute=permute,
            router_weighted=router_weighted,
            dense=dense,
            rules=rules,
        )
    with err.status(f"Writing {destination}"):
        chosen = None if dtype is Dtype.auto else loaded.dtype
        layers = [layer.name for layer in report.layers]
        notes = [*notes_on_pruning(stored, set(layers)), *report.notes]
        windows_of = calibration and Calibration.of(calibration, samples, length, seed)
        shown = pattern and f"{pattern}{f' in vectors of {vector_length}' * (vector_length > 1)}"
        if recipe is not None:
            shown = f"by layer, as in {recipe.name}"
        if dense:
            shown = f"{shown}, {dense:.3g} of the 16x256 blocks dense"
        if permute:
            shown = f"{shown}, hidden channels reordered"
        history = Pruning(
            method=report.method,
            sparsity=report.sparsity,
            pattern=shown,
            scope=scope.value if scope else None,
            calibration=windows_of,
        )

        def card(path: Path) -> None:
            write_pruned_card(path, stored.directory, history, report, push or destination.name)

        updated = permute or method is Method.sparsegpt
        notes += write_pruned(stored, loaded, layers, destination, chosen, card, updated, permute)
    for note in notes:
        err.print(Text.assemble(("Note: ", "yellow"), note))
    seconds = time.perf_counter() - start
    pushed = do_push(publisher, destination, f"Pruned by {report.method}")
    if as_json:
        paths = {"model": str(source), "out": str(destination), "seconds": seconds}
        print_json(paths | {"pushed": pushed} | report.to_dict() | {"warnings": notes})
    else:
        show(report)
        out.print()
        out.print(Text(f"Pruned in {seconds:.0f} s and written to {destination}"), soft_wrap=True)
        packed = "hybrid" if dense else pattern and f"{pattern}{_rows(vector_length)}"
        how = f" --format {packed}" if packed else f" --recipe {recipe}" if recipe else ""
        if report.retained is not None and report.retained.share > 1 - 1e-9:
            out.print("Nothing was lost: the model had as many zeros before")
        show_next(model, destination, calibration, how, report, rounds)
        show_pushed(pushed)


def _check_budget(budget: float | None, sparsity: float | None, allocate: Allocation) -> None:
    if budget is not None and sparsity is not None:
        raise usage("--sparsity is each layer's, --budget that of all: give one", "--budget")
    if budget is None and allocate is not Allocation.uniform:
        raise usage("--allocate needs --budget, for example 0.5", "--allocate")
    for value, name in ((sparsity, "--sparsity"), (budget, "--budget")):
        if value is not None and not 0 <= value <= 1:
            meant = f": was {value / 100:g} meant?" if 1 < value < 100 else ""
            raise usage(f"{value:g} is not a share of zeros from 0 to 1{meant}", name)


def _check_dense(dense: float, pattern: str | None, vector_length: int) -> None:
    if not 0 <= dense <= 1:
        meant = f": was {dense / 100:g} meant?" if 1 < dense < 100 else ""
        raise usage(f"{dense:g} is not a share of blocks from 0 to 1{meant}", "--dense")
    if dense and (pattern != "2:4" or vector_length != 1):
        raise usage("dense blocks stand beside 2:4 ones: give --pattern 2:4", "--dense")


def _rows(length: int) -> str:
    """The rows that share a pattern, as a short name has them."""
    return f"-L{length}" if length > 1 else ""


def _pattern(text: str, length: int) -> tuple[tuple[int, int], int]:
    """N and M, and the vector length that is named with them or beside them."""
    found = re.fullmatch(r"(\d+):(\d+)(?:-L(\d+))?", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise usage(f"{text!r} is not a pattern N:M such as 2:4 or 8:32-L32", "--pattern")
    named = int(found[3] or length)
    if length not in (1, named):
        raise usage(f"{text} says {named}: leave one of the two out", "--vector-length")
    return (int(found[1]), int(found[2])), named
