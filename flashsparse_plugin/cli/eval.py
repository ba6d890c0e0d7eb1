# SPDX-License-Identifier: Apache-2.0
"""`flashsparse eval`: quality, speed and bytes of models side by side."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from .console import err, out, print_json, size, table, usage
from .models import Dtype, best_device, model_directory
from .options import ActivationsDtype

if TYPE_CHECKING:
    from flashsparse_plugin.evaluation import Effort, Method
    from flashsparse_plugin.evaluation.comparison import Line


def eval(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Directories of models, dense or packed, or their names on the Hub.",
            metavar="MODEL",
        ),
    ],
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text to predict, which no model was calibrated on.", exists=True, dir_okay=False
        ),
    ] = None,  # fmt: skip
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            help="Tasks of lm-eval: arc_easy,hellaswag, or .yaml files of your own.",
            metavar="TASKS",
        ),
    ] = None,
    with_: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="Methods to compare with, for each dense MODEL: torchao_int8,nm_vector:n=2:m=4.",
            metavar="METHODS",
        ),
    ] = None,
    context: Annotated[int, typer.Option(min=2, help="Tokens of a window of the text.")] = 512,
    max_tokens: Annotated[
        int, typer.Option(min=2, help="Number of tokens, from the start of the text.")
    ] = 8192,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Examples a task.", show_default="all")
    ] = None,
    dtype: ActivationsDtype = Dtype.auto,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure it, too.")] = True,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the table to this file, as CSV.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot quality against bytes to this file: bytes.png.")
    ] = None,
    card: Annotated[
        bool, typer.Option("--card", help="Write the table into README.md of the first MODEL.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as JSON.")] = False,
) -> None:
    """Compare models by quality, speed and bytes: as they are, and made smaller in several ways.

    Perplexity is that of a causal language model on windows of the text that do not overlap; lower
    is better. Bytes are those of the linear layers but for the output head, which stays dense.
    Methods of [bold]--with[/bold] are our formats and the alternatives to them, with options after
    colons; they are made in memory, and a note names those that do not fit a model.

    \b
    [bold]Examples[/bold]
      flashsparse eval MODEL PACKED --text held-out.txt
      flashsparse eval MODEL --text held-out.txt \\
        --with torch_int8,torchao_int4:group=32
      flashsparse eval MODEL PRUNED --text held-out.txt \\
        --with nm_vector:n=2:m=4:values=int8 --csv quality.csv --plot quality.png
      flashsparse eval MODEL PACKED --tasks arc_easy,hellaswag --limit 200
    """
    if text is None and tasks is None:
        raise usage("there is nothing to predict: give a text, or tasks of lm-eval", "--text")
    if plot is not None and text is None:
        raise usage("it draws perplexity, which needs --text", "--plot")
    directories = [model_directory(each, card and i == 0) for i, each in enumerate(models)]
    if card:
        from flashsparse_plugin.checkpoint.card.section import read_card

        read_card(directories[0])
    with err.status("Starting"):
        from flashsparse_plugin.evaluation import Effort, chart, parse_method
        from flashsparse_plugin.evaluation.comparison import Comparison
        from flashsparse_plugin.evaluation.tasks import require_tasks

    wanted = [each.strip() for each in tasks.split(",")] if tasks else []
    if wanted:
        require_tasks(wanted)
    if plot is not None:
        chart.require_matplotlib()
    device = best_device()
    methods = _methods(with_, parse_method, device)
    content = None if text is None else text.read_text(encoding="utf-8", errors="replace")
    effort = Effort(context, max_tokens, wanted, limit, 32 if speed else 0)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if speed and device == "cpu" and load > cores:
        _note(
            f"this machine is busy (load {load:.1f} on {cores} cores): its speeds are worth little"
        )
    lines: list[Line] = []
    with err.status("Loading") as status:
        made = Comparison(methods, content, effort, dtype.value, device, status.update, _note)
        for line in made.lines(directories):
            lines.append(line)
            if csv_file is not None:
                _write(csv_file, lines)  # after each line: what follows may take long, or fail
    about = _about(directories, text, effort)
    if plot is not None:
        chart.draw(_points(lines, chart.Point), about, plot)
        err.print(Text(f"Drawn to {plot}"), soft_wrap=True)
    if card:
        from flashsparse_plugin.checkpoint.card.section import write_evaluation

        write_evaluation(directories[0], [each.to_dict() for each in lines], about)
        err.print(Text(f"Written into {directories[0] / 'README.md'}"), soft_wrap=True)
    if as_json:
        print_json({"about": about, "lines": [each.to_dict() for each in lines]})
    else:
        _show(lines, about)


def _methods(text: str | None, parse: Any, device: str) -> list[Method]:
    if text is None:
        return []
    try:
        methods = [parse(each) for each in text.split(",")]
        for method in methods:
            method.require(device)
    except ValueError as error:
        raise usage(str(error), "--with") from None
    return methods


def _note(text: str) -> None:
    err.print(Text.assemble(("Note: ", "yellow"), text))


def _about(directories: Sequence[Path], text: Path | None, effort: Effort) -> str:
    import torch

    from flashsparse_plugin.diagnostics import hardware

    gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if gpu else hardware()["cpu"]
    count = torch.get_num_threads()
    threads = "" if gpu else f", {count} thread{'s' * (count > 1)}"
    what = ""
    if text is not None:
        what = f"{text.name}, up to {effort.most_tokens:,} tokens in windows of {effort.context}. "
    return f"{what}{where}{threads}, torch {torch.__version__}."


def _points(lines: Sequence[Line], point: Any) -> list[Any]:
    several = len({line.model for line in lines}) > 1
    return [
        point(
            f"{line.model}, {_brief(line.method)}" if several else _brief(line.method),
            line.figures.sizes.bits,
            line.figures.perplexity,
            line.kind,
        )
        for line in lines
    ]


def _brief(method: str) -> str:
    """The options of a scheme where it has some: "2:4, int8" of "nm_vector(2:4, int8)"."""
    return method.partition("(")[2].removesuffix(")") or method


def _write(path: Path, lines: Sequence[Line]) -> None:
    rows = [line.to_dict() for line in lines]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _show(lines: Sequence[Line], about: str) -> None:
    quality = ["perplexity"] if lines[0].figures.perplexity is not None else []
    rates = ["prefill\ntokens/s", "decode\ntokens/s"] if lines[0].figures.prefill else []
    made = table("", *quality, "bits a\nweight", "on disk", "in\nmemory", *rates)
    model = None
    for line in lines:
        if line.model != model:
            model = line.model
            if made.row_count:
                made.add_section()
            zeros = f", {line.figures.sparsity:.0%} zeros"
            made.add_row(Text.assemble((model, "bold"), (zeros, "dim")))
        found = line.figures
        cells = [] if found.perplexity is None else [f"{found.perplexity:,.4g}"]
        cells.append(f"{found.sizes.bits:.2f}")
        cells += [size(found.sizes.disk), size(found.sizes.memory)]
        cells += [f"{rate:,.1f}" for rate in (found.prefill, found.decode) if rate]
        made.add_row(Text(f" {_brief(line.method)}"), *cells)
    for column in made.columns[1:]:
        column.no_wrap = True
    out.print(made)
    out.print()
    _show_scores(lines)
    for ran in dict.fromkeys(line.figures.ran for line in lines):
        of = ", ".join(dict.fromkeys(x.method for x in lines if x.figures.ran == ran))
        out.print(Text(f"{of}: {ran}", style="dim"))
    out.print(Text(about, style="dim"))


def _show_scores(lines: Sequence[Line]) -> None:
    """The scores of tasks, a line each: names of tasks are long, and they may be many."""
    tasks = list(dict.fromkeys(name for line in lines for name in line.figures.tasks))
    if not tasks:
        return
    made = table("", *(f"{line.model}\n{_brief(line.method)}" for line in lines))
    for name in tasks:
        made.add_row(name, *(f"{line.figures.tasks[name]:.3f}" for line in lines))
    out.print(made)
    out.print()
