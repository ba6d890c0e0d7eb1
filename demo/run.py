# SPDX-License-Identifier: Apache-2.0
"""`make demo`: prunes, recovers and packs a real model, has it tell a story, and measures the gain.

    python demo/run.py [--model DIRECTORY] [--sparsity 0.5] [--method wanda]

The demo works in build/demo. A second run with the same settings reuses the packed model.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from models import smollm2, tinyshakespeare
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

import flashsparse_plugin as fs
from flashsparse_plugin.checkpoint import ModelDirectory, convert_checkpoint
from flashsparse_plugin.checkpoint.prune.pruned import write_pruned
from flashsparse_plugin.checkpoint.prune.recovered import write_recovered
from flashsparse_plugin.checkpoint.read.linears import StoredModel
from flashsparse_plugin.checkpoint.write.report import human
from flashsparse_plugin.diagnostics import hardware
from flashsparse_plugin.evaluation import perplexity
from flashsparse_plugin.evaluation.speed import decode_rate
from flashsparse_plugin.generation import Stream, describe, encode, generate
from flashsparse_plugin.loading import fast_dtype
from flashsparse_plugin.messages import one_line
from flashsparse_plugin.pruning import LeastSquares, calibration_windows, prune

BUILD = Path(__file__).resolve().parent.parent / "build" / "demo"
PROMPT = "Once upon a time, in a small village by the sea, there lived"
SAMPLES, LENGTH = 32, 256  # calibration windows, and tokens per window
# Small models, dense ones too, tend to repeat themselves where the likeliest token is always taken.
REPETITION_PENALTY = 1.15

out, err = Console(highlight=False), Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Settings:
    """The settings by which two runs make the same model."""

    model: str
    stamp: float  # time of the last change of its weights
    sparsity: float
    method: str
    samples: int
    length: int
    seed: int = 0
    recovery: str = "least squares"
    flashsparse: str = fs.__version__


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    story_tokens: int = 120
    eval_tokens: int = 2048
    eval_context: int = 512
    rounds: int = 5
    decode_tokens: int = 24
    seconds: float = 30.0  # seconds after which no further round begins, once there were two


class Steps:
    """Prints each step, and how long it took."""

    def __init__(self, total: int):
        self.total, self.number = total, 0

    @contextmanager
    def __call__(self, doing: str) -> Iterator[Callable[[str], None]]:
        """Prints a step; the function that it yields prints a line of its outcome."""
        self.number += 1
        head = f"[bold]{self.number}/{self.total}[/bold] {doing}"
        found: list[str] = []
        start = time.perf_counter()
        with err.status(head):
            yield found.append
        seconds = f"[dim]{time.perf_counter() - start:.0f} s[/dim]"
        out.print(f"{head} {seconds}")
        for line in found:
            out.print(Text(f"    {one_line(line)}", style="dim"))


# ---- making the packed model --------------------------------------------------------------------


def make_packed(source: Path, settings: Settings, folder: Path, text: str, steps: Steps) -> bool:
    """Makes folder/pruned, folder/recovered and folder/packed of `source`, unless they exist.

    Returns:
        Whether they existed already, made with the same settings.
    """
    stamp = folder / "settings.json"
    if stamp.is_file() and json.loads(stamp.read_text()) == asdict(settings):
        with steps("Prune, recover") as say:
            say("reused from the last run, which had the same settings")
        steps.number += 1
        with steps("Pack") as say:
            say("reused as well; remove build/demo to start over")
        return True
    shutil.rmtree(folder, ignore_errors=True)
    with steps(
        f"Prune {settings.sparsity:.0%} of every linear layer with {settings.method}"
    ) as say:
        opened = ModelDirectory(source)
        dtype = fast_dtype(opened, "cpu")
        model = load(source, dtype)
        windows = calibration_windows(
            AutoTokenizer.from_pretrained(source),
            text,
            settings.samples,
            settings.length,
            settings.seed,
        )
        seen = windows if settings.method == "wanda" else None
        if seen is not None:
            say(f"calibrated on {seen.numel():,} tokens of Shakespeare")
        report = prune(model, settings.method, settings.sparsity, calibration=seen, progress=False)
        say(f"{report.zeros:,} of {report.elements:,} weights are zero now")
        layers = [layer.name for layer in report.layers]
        write_pruned(StoredModel(opened), model, layers, folder / "pruned")
    with steps("Recover: fit what is kept to what the dense layers compute") as say:
        pruned, dense = StoredModel(ModelDirectory(folder / "pruned")), load(source, dtype)
        fits = write_recovered(
            *(pruned, model, opened, dense, windows, folder / "recovered", LeastSquares()),
            as_stored=True,
        )
        say(f"{windows.numel():,} tokens of Shakespeare, layer by layer; nothing is trained")
        say(f"error of the layers' outputs: {fits.before:.1%} before, {fits.after:.1%} after")
    with steps("Pack") as say:
        # pack_all: also layers that become larger by packing, as tiny ones do.
        report = convert_checkpoint(folder / "recovered", folder / "packed", pack_all=True)
        say(f"{len(report.packed)} layers to {report.format}, read back and compared bit for bit")
    stamp.write_text(json.dumps(asdict(settings)))
    return False


def load(path: Path, dtype: str) -> Any:
    """Loads a model, packed or dense, as any user of transformers does."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, use_safetensors=True).eval()


# ---- measuring ----------------------------------------------------------------------------------


def disk_bytes(path: Path) -> int:
    """Bytes of the weight files of a model."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def memory_bytes(model: Any) -> int:
    """Bytes of all parameters and buffers in memory, shared ones once."""
    held = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *model.buffers())}
    return sum(held.values())


def packed_bytes(model: Any) -> tuple[int, int]:
    """Bytes of the packed layers in memory, and of the same layers if dense."""
    packed = [m.packed for m in model.modules() if isinstance(m, fs.SparseLinear)]
    return sum(weight.nbytes for weight in packed), sum(weight.dense_nbytes for weight in packed)


def reached_sparsity(model: Any) -> float:
    """Share of zeros in the packed layers."""
    packed = [m.packed for m in model.modules() if isinstance(m, fs.SparseLinear)]
    elements = [weight.shape[0] * weight.shape[1] for weight in packed]
    kept = sum(weight.density * count for weight, count in zip(packed, elements, strict=True))
    return 1 - kept / sum(elements)


def measure_sizes(dense: Any, packed: Any, source: Path, made: Path) -> dict[str, dict[str, int]]:
    """Bytes on disk and in memory, of the whole model and of its packed layers."""
    runtime, linears = packed_bytes(packed)
    storage = sum(
        layer.storage().nbytes for layer in packed.modules() if isinstance(layer, fs.SparseLinear)
    )
    return {
        "model_on_disk": {"dense": disk_bytes(source), "packed": disk_bytes(made)},
        "model_in_memory": {"dense": memory_bytes(dense), "packed": memory_bytes(packed)},
        "linears_on_disk": {"dense": linears, "packed": storage},
        "linears_in_memory": {"dense": linears, "packed": runtime},
    }


def measure_perplexity(
    paths: dict[str, Path], tokenizer: Any, text: str, effort: Effort
) -> dict[str, float]:
    """Perplexity on held-out text, all in float32, one model in memory at a time."""
    found = {}
    for name, path in paths.items():
        model = load(path, "float32")
        found[name] = perplexity(
            model, tokenizer, text, effort.eval_context, effort.eval_tokens, batch_size=2
        )
        del model
    return found


def measure_speed(models: dict[str, Any], ids: torch.Tensor, effort: Effort) -> dict[str, float]:
    """Decode rates, measured in turn so that other load on the machine affects all alike."""
    rates: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        decode_rate(model, ids, 4)  # warm up
    start = time.perf_counter()
    for done in range(effort.rounds):
        if done >= 2 and time.perf_counter() - start > effort.seconds:
            break
        for name, model in models.items():
            rates[name].append(decode_rate(model, ids, effort.decode_tokens))
    return {name: median(taken) for name, taken in rates.items()}


# ---- showing ------------------------------------------------------------------------------------


def result_table(result: dict[str, Any]) -> Any:
    made = Table(header_style="dim", box=None, pad_edge=False)
    made.add_column()
    for column in ("dense", "pruned", "recovered", "packed", "packed / dense"):
        made.add_column(column, justify="right")
    names = {
        "model_on_disk": "model on disk",
        "model_in_memory": "model in memory",
        "linears_on_disk": "  its linear layers on disk",
        "linears_in_memory": "  its linear layers in memory",
    }
    for key in ("model_on_disk", "linears_on_disk", "model_in_memory", "linears_in_memory"):
        dense, packed = result["bytes"][key]["dense"], result["bytes"][key]["packed"]
        made.add_row(names[key], *[human(dense)] * 3, human(packed), f"{packed / dense:.2f}")
    made.add_section()
    quality = result["perplexity"]
    shown = [f"{quality[name]:.4g}" for name in ("dense", "pruned", "recovered", "packed")]
    made.add_row("perplexity", *shown, f"{quality['packed'] / quality['dense']:.2f}")
    made.add_section()
    for dtype, rates in result["tokens_per_second"].items():
        dense, packed = rates["dense"], rates["packed"]
        name = f"tokens a second, {dtype}"
        made.add_row(name, f"{dense:.1f}", "", "", f"{packed:.1f}", f"{packed / dense:.2f}")
    return made


def verdict(result: dict[str, Any]) -> Iterator[str]:
    """Sentences on what the figures mean, good or bad."""
    quality, nbytes = result["perplexity"], result["bytes"]
    same = f"{quality['recovered']:.3g}" == f"{quality['packed']:.3g}"
    exact = "Packing changed nothing" if same else "PACKING CHANGED THE MODEL, which is a bug"
    before, after = quality["recovered"], quality["packed"]
    yield f"{exact}: perplexity {before:.5g} recovered, {after:.5g} packed."
    yield (
        f"Pruning did: perplexity {quality['dense']:.3g} became {quality['pruned']:.3g}, and "
        f"{before:.3g} once recovered. Nothing was trained; `flashsparse sparsify` trains what is "
        "kept, and larger models lose less."
    )
    disk = nbytes["linears_on_disk"]["packed"] / nbytes["linears_on_disk"]["dense"]
    if disk > 0.98:
        yield (
            f"On disk the packed layers take {disk:.2f} times the dense bytes: Tiled-CSL spends "
            "32 bits on a kept weight of 16, so it gains above 50% zeros only. `flashsparse "
            "convert` would have left them dense; the demo packs all the same."
        )
    else:
        yield f"On disk the packed layers take {disk:.2f} times the dense bytes."
    memory = nbytes["linears_in_memory"]["packed"] / nbytes["linears_in_memory"]["dense"]
    yield (
        f"In memory they take {memory:.2f} times: there a weight costs one bit, and 16 more if it "
        "was kept. Embeddings and the output head stay dense."
    )
    for dtype, rates in result["tokens_per_second"].items():
        ratio = rates["packed"] / rates["dense"]
        if ratio < 0.97:
            yield f"In {dtype} the sparse model is SLOWER on this machine: {ratio:.2f} times."
        elif ratio < 1.03:
            yield f"In {dtype} the sparse model is as fast as the dense one here, not faster."
        else:
            yield f"In {dtype} the sparse model writes {ratio:.2f} times as fast."
    if result["load"] > result["cores"]:
        yield (
            f"This machine was BUSY with other things when the demo began (load "
            f"{result['load']:.1f} on {result['cores']} cores): its speeds are worth little."
        )


def shown(path: Path) -> str:
    """The shortest form of a path from the current folder, fit for a terminal."""
    here = Path.cwd()
    return one_line(str(path.relative_to(here) if path.is_relative_to(here) else path))


def slug(settings: Settings) -> str:
    return f"{Path(settings.model).name}-{settings.method}-{settings.sparsity:g}"


def run(source: Path, sparsity: float, method: str, build: Path, effort: Effort) -> dict[str, Any]:
    """Runs the demo on a dense model directory and returns its result."""
    started, load_before = time.perf_counter(), os.getloadavg()[0]
    steps = Steps(7)
    with steps("Fetch the model and the text") as say:
        if source is None:
            source = smollm2()
        shakespeare = tinyshakespeare()
        say(f"{source.name}, {human(disk_bytes(source))}")
    cut = len(shakespeare) * 4 // 5  # the last fifth is held out of the calibration
    stamp = max(file.stat().st_mtime for file in source.iterdir())
    settings = Settings(str(source.resolve()), stamp, sparsity, method, SAMPLES, LENGTH)
    folder = build / slug(settings)
    reused = make_packed(source, settings, folder, shakespeare[:cut], steps)

    tokenizer = AutoTokenizer.from_pretrained(source)
    with steps("Load the packed model with AutoModelForCausalLM.from_pretrained"):
        dense, packed = load(source, "auto"), load(folder / "packed", "auto")
    stories = {
        name: tell(model, f"from the {name} weights", tokenizer, effort.story_tokens)
        for name, model in (("dense", dense), ("sparse", packed))
    }
    penalty = (
        f"Both with a repetition penalty of {REPETITION_PENALTY}: small models repeat themselves."
    )
    out.print(f"[dim]{penalty}[/dim]", "")
    until_text = time.perf_counter() - started

    result: dict[str, Any] = {"settings": asdict(settings), "reused": reused, "stories": stories}
    result["sparsity"] = reached_sparsity(packed)
    result["bytes"] = measure_sizes(dense, packed, source, folder / "packed")
    with steps("Measure the speed, dense and packed in turn"):
        ids = encode(tokenizer, PROMPT, chat=False)
        speeds = {}
        for dtype in dict.fromkeys((str(dense.dtype).removeprefix("torch."), "float32")):
            if dtype == "float32":
                dense = load(source, dtype)
                packed = load(folder / "packed", dtype)
            speeds[dtype] = measure_speed({"dense": dense, "packed": packed}, ids, effort)
        result["tokens_per_second"] = speeds
        del dense, packed
    with steps("Measure the perplexity on the part of Shakespeare that was held out"):
        paths = {"dense": source}
        paths |= {name: folder / name for name in ("pruned", "recovered", "packed")}
        result["perplexity"] = measure_perplexity(paths, tokenizer, shakespeare[cut:], effort)
    machine = hardware()
    result["cpu"], result["cores"] = machine["cpu"], machine["cores"]
    result["threads"] = torch.get_num_threads()
    result["load"] = load_before
    result["seconds_until_text"] = until_text
    result["seconds"] = time.perf_counter() - started
    return result


def tell(model: Any, title: str, tokenizer: Any, tokens: int) -> dict[str, Any]:
    """Streams a story to the terminal."""
    out.print()
    out.print(Rule(f"[bold]{title}[/bold]", style="dim"))
    out.print(Text(PROMPT, style="italic dim"), end="")
    stream = Stream(tokenizer, width=out.width if out.is_terminal else None)
    ids = encode(tokenizer, PROMPT, chat=False)
    generate(model, ids, stream, tokens, repetition_penalty=REPETITION_PENALTY)
    out.print(f"[dim]{describe(stream.stats())}[/dim]")
    return {"prompt": PROMPT, "text": stream.text, "stats": stream.stats()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a dense model directory of your own")
    parser.add_argument("--sparsity", type=float, default=0.5, help="share of zeros (default 0.5)")
    parser.add_argument("--method", choices=("wanda", "magnitude"), default="wanda")
    options = parser.parse_args(arguments)
    if options.model is not None and not (options.model / "config.json").is_file():
        parser.error(one_line(f"{options.model} is not a model directory: it has no config.json"))
    if not 0 < options.sparsity < 1:
        parser.error("--sparsity is a share between 0 and 1, such as 0.5")
    transformers_logging.disable_progress_bar()
    logging.basicConfig(level=logging.WARNING, format="    %(message)s")
    # The verdict below says whether the layers are smaller on disk.
    logging.getLogger("flashsparse_plugin.checkpoint").setLevel(logging.ERROR)
    try:
        result = run(options.model, options.sparsity, options.method, BUILD, Effort())
    except KeyboardInterrupt:
        err.print("\n[dim]Stopped.[/dim]")
        return 130
    except (ValueError, OSError, RuntimeError) as error:
        err.print(Text.assemble(("Error: ", "bold red"), one_line(str(error))))
        return 1
    out.print()
    out.print(result_table(result))
    out.print()
    points = Table.grid(padding=(0, 1))
    for line in verdict(result):
        points.add_row("•", Text(line))
    out.print(points)
    figures = BUILD / "result.json"
    figures.write_text(json.dumps(result, indent=2))
    out.print()
    where = f"{result['cpu']}, threads used: {result['threads']}, GPU: none"
    out.print(Text(f"{where}. {result['seconds']:.0f} s in all.", style="dim"))
    out.print(Text(f"Figures:    {shown(figures)}"), soft_wrap=True)
    command = shown(Path(sys.executable).with_name("flashsparse"))
    packed = shown(BUILD / slug(Settings(**result["settings"])) / "packed")
    trial = f'--no-chat --repetition-penalty {REPETITION_PENALTY} -p "Once upon a time"'
    out.print(Text(f"More of it: {command} generate {packed} {trial}"), soft_wrap=True)
    own = f"{command} sparsify MODEL OUT --calibration FILE.txt"
    out.print(Text(f"Now yours:  {own}"), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
