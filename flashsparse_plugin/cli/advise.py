# SPDX-License-Identifier: Apache-2.0
"""`flashsparse advise`: what our formats and others should bring a model on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from flashsparse_plugin.data_sheets import gpu_names
from flashsparse_plugin.known_quality import DENSE, PUBLISHED, needs_training, quality

from .console import err, out, print_json, size, table, usage
from .devices import THIS
from .models import MODEL, target_shapes

if TYPE_CHECKING:
    from flashsparse_plugin.dataflow.advice import Choice, Verdict
    from flashsparse_plugin.gpu import Gpu
    from flashsparse_plugin.served import ModelShapes


def advise(
    target: Annotated[
        str,
        typer.Argument(
            help=f"Directory of a model, of which only config.json is read, {MODEL}. Or shapes: "
            "4096x4096.",
            metavar="MODEL|SHAPES",
        ),
    ],
    gpu: Annotated[
        str,
        typer.Option(
            help=f"The GPU: {gpu_names()}. {THIS}: the one of this machine.", metavar="NAME"
        ),
    ] = "H100",
    batch: Annotated[
        str, typer.Option(help="Sequences decoded at once.", metavar="N,N,...")
    ] = "1,8,64",
    prompt: Annotated[
        int,
        typer.Option(min=0, max=1 << 16, help="Tokens of a prompt that is read; 0: none."),
    ] = 2048,
    zeros: Annotated[
        float, typer.Option(min=0, max=1, help="Share of zeros that the model has, or may get.")
    ] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimates as JSON.")] = False,
) -> None:
    """Estimate what zeros and fewer bits bring on a GPU, and say where they do not pay.

    Nothing is measured and no weight is read: bytes, latencies and arithmetic of each kernel are
    put together by models that were fitted to measurements (docs/evaluate.md has their errors).
    Dense int4 is Marlin, measured on an H200 only. Only linear layers and experts are counted;
    attention and all else come on top, so that a whole model gains less.

    \b
    [bold]Examples[/bold]
      flashsparse advise MODEL --gpu H200
      flashsparse advise MODEL --gpu H100 --batch 1,16 --prompt 8192 --zeros 0.75
      flashsparse advise 4096x4096,28672x4096 --gpu H100
    """
    batches = {n: f"batch {n}" for n in _batches(batch)}
    if prompt:
        batches.setdefault(prompt, f"prompt {prompt}")
    with err.status("Starting"):
        from flashsparse_plugin.dataflow import advice

    _, shapes = target_shapes(target)
    device = _gpu(gpu)
    choices = [*advice.dense_choices(device), *advice.sparse_choices(device, zeros)]
    found = {n: list(advice.verdicts(choices, shapes, n)) for n in batches}
    ladders = [
        (title, values, steps, _wins(steps, values, choices, shapes, batches))
        for title, values, steps in advice.ladders(device)
    ]
    if as_json:
        print_json(_plain(device, choices, shapes, batches, found, ladders))
        return
    article = "an" if device.name[0] in "AHLR" else "a"
    what = "Linear layers and experts" if shapes.experts else "Linear layers"
    text = f"{what} on {article} {device.name}, at {zeros:.0%} zeros"
    out.print(Text(text, style="bold"))
    out.print()
    for n, title in batches.items():
        own = [(verdict.values, _sentence(verdict)) for verdict in found[n]]
        alike = len(own) > 1 and len({sentence.plain for _, sentence in own}) == 1
        for values, sentence in own[:1] if alike else own:
            least = "" if alike else f", {_NO_LESS[values]}"
            out.print(Text(f"{title.capitalize()}{least}: ") + sentence)
    out.print()
    about = (
        "Tokens a second, and the ratio to dense: estimated. Quality: perplexity / dense after "
        "one-shot pruning → after `recover`, measured on the worse of two small models (15M, "
        "135M); ?: unknown; red: of no use without training."
    )
    if not choices[0].is_checked:
        about += " Nothing was measured on this GPU: its rates are of its data sheet."
    if device.unverified:
        about += f" Estimated from unverified rates: {', '.join(device.unverified)}."
    out.print(Text(about, style="dim"))
    out.print()
    most = 2 if len(batches) == 4 else 3  # columns that 80 characters have room for, evenly
    titles = list(batches.items())
    for first in range(0, len(batches), most):
        _show_choices(choices, shapes, dict(titles[first : first + most]))
    if choices[0].is_checked and not all(choice.is_checked for choice in choices):
        out.print(Text("* not compared with any measurement of ours", style="dim"))
        out.print()
    _show_ladders(ladders, batches, choices)
    if shapes.experts:
        out.print(_about_experts(shapes, batches, choices[0]))
    _show_rest(shapes, device, max(batches))


def _batches(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 1 << 16 for part in parts) or len(parts) > 4:
        raise usage(f"{text!r} is not up to four numbers from 1 to 65536: 1,8,64", "--batch")
    return list(dict.fromkeys(map(int, parts)))


def _gpu(name: str) -> Gpu:
    from flashsparse_plugin.gpu import find_gpu, gpu_named

    if name != THIS:
        known = gpu_named(name)
        if known is None:
            raise usage(f"{name!r} is not one of {gpu_names()}, {THIS}", "--gpu")
        return known
    import torch

    if not torch.cuda.is_available():
        raise usage("torch sees no GPU here: name one, such as --gpu H100", "--gpu")
    own = torch.cuda.get_device_name()
    found = gpu_named(own) or find_gpu(own, torch.cuda.get_device_capability())
    if found.name not in own:
        err.print(Text(f"Note: estimated as an {found.name}: nothing is known of an {own}"))
    return found


def _wins(
    steps: Sequence[Choice],
    values: int,
    choices: Sequence[Choice],
    shapes: ModelShapes,
    batches: Mapping[int, str],
) -> dict[int, dict[str, float | None]]:
    """By batch and rival, from how many zeros on a format is faster."""
    from flashsparse_plugin.dataflow.advice import wins_from

    others = [choice for choice in choices if choice.kind != "ours"]
    return {
        n: {x.title: wins_from(steps, x.total(shapes, n), shapes, n) for x in others}
        for n in batches
    }


def _rate(choice: Choice, dense: Choice, shapes: ModelShapes, batch: int) -> float:
    """Tokens a second of the linear layers, with the head, which is dense in every choice."""
    head = 0.0 if shapes.head is None else dense.seconds(shapes.head, batch)
    return batch / (choice.total(shapes, batch) + head)


def _nbytes(choice: Choice, shapes: ModelShapes) -> tuple[float, float]:
    """Bytes of the linear layers and experts, and of all parameters."""
    layers = choice.nbytes(shapes)
    return layers, layers + 2 * shapes.others


# ---- showing ------------------------------------------------------------------------------------


def _show_choices(
    choices: Sequence[Choice], shapes: ModelShapes, batches: Mapping[int, str]
) -> None:
    made = table("", "memory", "quality", *batches.values())
    dense = choices[0]
    for choice in choices:
        cells = []
        for n in batches:
            rate, base = (_rate(each, dense, shapes, n) for each in (choice, dense))
            cells.append(f"{_short(rate)} {rate / base:.2f}")
        unlike = dense.is_checked and not choice.is_checked
        name = Text(f"{choice.title}{' *' * unlike}")
        style = "bold" if choice.kind == "ours" else ""
        memory = size(_nbytes(choice, shapes)[1])
        known = choice.quality
        cost = "?" if known is None else known.short
        ruinous = choice.kind == "ours" and needs_training(choice.rule, choice.type)
        made.add_row(name, memory, Text(cost, "red" if ruinous else ""), *cells, style=style)
    _print(made)


def _show_ladders(ladders: Any, batches: Mapping[int, str], choices: Sequence[Choice]) -> None:
    others = [choice.title for choice in choices if choice.kind != "ours"]
    out.print(Text(f"Faster from this % of zeros on than {' / '.join(others)}", style="bold"))
    out.print(Text("-: at no share of zeros", style="dim"))
    out.print()
    made = table("", *batches.values())
    for title, _, _, wins in ladders:
        cells = [
            " / ".join("-" if x is None else f"{100 * x:.0f}" for x in wins[n].values())
            for n in batches
        ]
        made.add_row(Text(title), *cells)
    _print(made)


def _print(made: Any) -> None:
    for column in made.columns:
        column.no_wrap = True
    out.print(made)
    out.print()


def _short(rate: float) -> str:
    """ "982", "14.1k", "1.59M"."""
    if rate < 9999.5:
        return f"{rate:,.0f}"
    return f"{rate / 1e3:.3g}k" if rate < 999.5e3 else f"{rate / 1e6:.3g}M"


_NO_LESS = {8: "8 bits or more", 4: "4 bits or more"}


def _sentence(verdict: Verdict) -> Text:
    from flashsparse_plugin.dataflow.advice import MARGIN

    text = Text()
    ours, other, ratio = verdict.ours.title, verdict.rival.title, verdict.ratio
    if not verdict.is_for_us:
        text.append("do not use us here", style="yellow")
        how = f"{1 / ratio:.2f} times as fast" if ratio < 1 / MARGIN else "as fast"
        text.append(f": {other} is {how}, and keeps every weight.")
    else:
        text.append(f"{ours} is {ratio:.2f} times as fast as {other}")
        text.append(_only_if(verdict.ours))
        if verdict.lost:
            shapes = ", ".join(f"{rows}x{columns}" for rows, columns in verdict.lost)
            text.append(f"; not on layers of {shapes}: leave those to {other}")
        text.append(".")
    if verdict.trained is not None:
        choice, ratio = verdict.trained
        text.append(f" ({choice.title}: {ratio:.2f} times, only if the model was trained for it.)")
    return text


def _only_if(choice: Choice) -> str:
    """What has to be done for it to be of use."""
    if not needs_training(choice.rule, choice.type):
        return ""
    found = choice.quality or quality(choice.rule)
    if found is None:
        return ", after training only: nobody measured what it costs"
    return f", after training only (perplexity / dense {found.short})"


def _about_experts(shapes: ModelShapes, batches: Mapping[int, str], dense: Choice) -> Text:
    """Which lines have packed experts, and how much of the whole model experts are."""
    of_all = dense.experts.bits / 8 * shapes.expert_parameters / _nbytes(dense, shapes)[1]
    read, took = [], []
    for n in batches:
        each = max(shapes.experts, key=lambda experts: experts.parameters)
        read.append(f"{each.read(n):.0f}")
        took.append(f"{dense.experts_total(shapes, n) / dense.total(shapes, n):.0%}")
    sets = ", ".join(f"{each.active} of {each.count}" for each in shapes.experts)
    text = Text("Experts ", style="yellow")
    text.append(
        f"are {of_all:.0%} of this model's weights. 2:4 has a grouped kernel for them, of which "
        "the whole layer is counted; other lines of ours have them dense in 16 bits, and those of "
        f"others in their own, their products alone. A token goes to {sets} of them in a layer; "
        f"{', '.join(map(str, batches))} tokens read {', '.join(read)} if all are equally likely, "
        f"which takes {', '.join(took)} of the dense model's time here.",
        style="",
    )
    return text


def _show_rest(shapes: ModelShapes, gpu: Gpu, most: int) -> None:
    from flashsparse_plugin.dataflow.rivals import MARLIN_PROMPTS, MARLIN_TOKENS

    own = (
        "Patterns are for models that were pruned to them (`flashsparse prune --pattern`). "
        "Unstructured zeros have the lines named by a format, and `flashsparse inspect MODEL "
        f"--for {gpu.name}` says which layers of a pruned model gain."
    )
    notes = [own]
    if shapes.head is not None:
        notes.append("The output head is dense in every line, and counted.")
    if shapes.others:
        notes.append(f"Memory has {size(2 * shapes.others)} of embeddings and the like.")
    notes.append("Memory of the key-value cache comes on top, and time of attention.")
    notes.append("`flashsparse eval` measures what they cost your model in quality.")
    out.print()
    out.print(Text(" ".join(notes), style="dim"))
    out.print(Text("Published:", style="dim"))
    for (rule, values), (what, where) in PUBLISHED.items():
        name = values if rule == DENSE else rule
        out.print(Text(f"  {name}: {what} ({where})", style="dim"))
    if most > MARLIN_TOKENS:
        out.print(Text(f"  {MARLIN_PROMPTS}", style="dim"))


def _cost(choice: Choice) -> dict[str, Any] | None:
    """For programs: what is known of a choice's quality."""
    found = choice.quality
    if found is None:
        return None
    return {
        "models": found.models,
        "one_shot": found.one_shot,
        "recovered": found.recovered,
        "published": found.published,
    }


def _plain(
    gpu: Gpu,
    choices: Sequence[Choice],
    shapes: ModelShapes,
    batches: Mapping[int, str],
    found: dict[int, list[Verdict]],
    ladders: Any,
) -> dict[str, Any]:
    lines = []
    for choice in choices:
        layers, whole = _nbytes(choice, shapes)
        rates = {str(n): round(_rate(choice, choices[0], shapes, n), 1) for n in batches}
        line = {"title": choice.title, "kind": choice.kind, "zeros": round(choice.sparsity, 4)}
        line |= {"bits": round(choice.bits, 3), "linear_bytes": round(layers)}
        line |= {"perplexity_over_dense": _cost(choice)}
        lines.append(line | {"bytes": round(whole), "tokens_per_second": rates})
    return {
        "gpu": gpu.name,
        "measured": False,
        "layers": {f"{rows}x{cols}": count for (rows, cols), count in shapes.layers.items()},
        "experts": [
            {
                "count": each.count,
                "active": each.active,
                "matrices": {f"{rows}x{cols}": n for (rows, cols), n in each.matrices.items()},
                "read": {str(n): round(each.read(n), 1) for n in batches},
            }
            for each in shapes.experts
        ],
        "choices": lines,
        "faster_from_zeros": {
            title: {str(n): wins[n] for n in batches} for title, _, _, wins in ladders
        },
        "verdicts": [
            {
                "batch": n,
                "prompt": title.startswith("prompt"),
                "least_bits": verdict.values,
                "use": verdict.is_for_us,
                "ours": verdict.ours.title,
                "other": verdict.rival.title,
                "ratio": round(verdict.ratio, 3),
                "not_on": [f"{rows}x{columns}" for rows, columns in verdict.lost],
                "after_training_only": needs_training(verdict.ours.rule, verdict.ours.type),
                "if_trained_for_it": verdict.trained and verdict.trained[0].title,
            }
            for n, title in batches.items()
            for verdict in found[n]
        ],
    }
