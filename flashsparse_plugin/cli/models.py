# SPDX-License-Identifier: Apache-2.0
"""Loading models and tokenizers for commands, with errors that say what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from .console import err, out, size, usage

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from flashsparse_plugin.checkpoint import ModelDirectory
    from flashsparse_plugin.checkpoint.hub.fetching import HubModel, Tell
    from flashsparse_plugin.checkpoint.hub.publishing import Publisher
    from flashsparse_plugin.served import ModelShapes


class Dtype(StrEnum):
    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


DTYPES = ", ".join(dtype.value for dtype in Dtype)


_TRIAL = '--no-chat --repetition-penalty 1.15 \\\n            -p "Once upon a time"'
MODEL = "or its name on the Hub: ORG/NAME or ORG/NAME@REVISION"
"""Of an argument that `model_directory` takes, for its help: which other models there are."""


def try_it(folder: Path | str) -> str:
    """A command that ends in text worth reading, of small pruned models, too.

    They continue a story better than they chat, and repeat themselves where the likeliest token is
    always taken.
    """
    return f"flashsparse generate {folder} {_TRIAL}"


def model_directory(name: str, changes: bool = False, weights: bool = True) -> Path:
    """Returns the directory of a model; one on the Hub is fetched into the Hub's cache.

    A local directory of the name is taken first.

    Args:
        name: What the user calls the model.
        changes: The command writes into the directory, which must not be the Hub's cache.
        weights: The command reads weights.

    Raises:
        typer.BadParameter: If something is missing.
    """
    from flashsparse_plugin.checkpoint.files.explanations import about_nothing, may_be_on_the_hub

    if not Path(name).expanduser().exists() and not may_be_on_the_hub(name):
        raise usage(about_nothing(name), "MODEL")  # before torch is imported
    from flashsparse_plugin.checkpoint.files.headers import CheckpointError
    from flashsparse_plugin.checkpoint.files.places import hub_name
    from flashsparse_plugin.checkpoint.hub.fetching import directory_of, named

    model = named(name)
    cached = hub_name(Path(name).expanduser()) if model is None else model.id
    if changes and cached is not None:
        raise usage(
            "this writes into the model's directory, and the Hub's cache must not be changed: "
            f"download a copy with `hf download {cached} --local-dir {cached.partition('/')[2]}`, "
            "or use --dry-run",
            "MODEL",
        )
    try:
        if model is None:
            return directory_of(name)
        with _looking_for(model) as tell:
            return directory_of(name, tell, weights)
    except CheckpointError as error:
        raise usage(str(error), "MODEL") from None


def target_shapes(target: str) -> tuple[str | None, ModelShapes]:
    """The shapes of a model, by its name in the table of served ones, its directory or the Hub.

    Args:
        target: The same, or shapes themselves: "4096x4096,28672x4096".

    Returns:
        The model's name in the table, None where it is not there; and its shapes.

    Raises:
        typer.BadParameter: For what is none of these.
        ValueError: For a model without linear layers.
    """
    from flashsparse_plugin.served import ModelShapes, served, served_names

    found = shapes_in(target)
    if found is not None:
        return None, ModelShapes(dict.fromkeys(found, 1))
    path = Path(target).expanduser()
    known = served(target)
    if known is not None and not path.exists():
        return known.names[0], known.model_shapes
    if "/" not in target and not path.exists():
        raise usage(
            f"{target!r} is not a directory, and not a model that is known: {served_names()}",
            "MODEL",
        )
    directory = model_directory(
        str(path.parent) if path.name == "config.json" else target, weights=False
    )
    with err.status("Reading config.json"):
        from flashsparse_plugin.checkpoint.read.shapes import model_shapes

        shapes = model_shapes(directory)
    if not shapes.layers:
        raise ValueError(f"{directory} describes a model without linear layers")
    return None, shapes


def shapes_in(text: str) -> list[tuple[int, int]] | None:
    """Reads shapes out x in with commas between them; None for what is not written so.

    Raises:
        typer.BadParameter: For a shape that no layer has.
    """
    if not re.fullmatch(r"\d+x\d+(,\d+x\d+)*", text):
        return None
    found = [tuple(map(int, part.split("x"))) for part in text.split(",")]
    if any(not 1 <= side <= 1 << 23 for shape in found for side in shape):
        raise usage("a layer has between 1 and 2^23 rows and as many columns", "SHAPES")
    return list(dict.fromkeys((o, i) for o, i in found))


def model_name(directory: Path) -> str:
    """What to call a model in a message: its name on the Hub, or that of its directory."""
    from flashsparse_plugin.checkpoint.files.places import name_of

    return name_of(directory)


@contextmanager
def _looking_for(model: HubModel) -> Iterator[Tell]:
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    with err.status(f"Looking for {model} on the Hub") as status:

        def tell(name: str, nbytes: int) -> None:
            status.stop()  # the Hub's own bars follow
            where = f"{size(nbytes)}, to {constants.HF_HUB_CACHE}"
            err.print(Text(f"Fetching {name}: {where}", style="dim"), soft_wrap=True)
            if err.is_terminal:
                enable_progress_bars()

        disable_progress_bars()
        yield tell


PUSH = "Upload OUT to this model on the Hub when it is complete; a new one is private."
"""Help of the option --push."""


def may_push(name: str | None) -> Publisher | None:
    """What `do_push` needs for --push; a usage error if the Hub would refuse it.

    To be called before the work, which may take hours.
    """
    if name is None:
        return None
    from flashsparse_plugin.checkpoint.files.headers import CheckpointError
    from flashsparse_plugin.checkpoint.hub.publishing import Publisher

    try:
        return Publisher.of(name)
    except CheckpointError as error:
        raise usage(str(error), "--push") from None


def do_push(publisher: Publisher | None, directory: Path, summary: str) -> str | None:
    """Uploads what was made where --push asks for it; returns its address."""
    if publisher is None:
        return None
    err.print(Text(f"Pushing {directory} to {publisher.model}", style="dim"), soft_wrap=True)
    return publisher.publish(directory, summary)


def show_pushed(address: str | None) -> None:
    if address is not None:
        out.print(Text(f"Pushed to {address}"), soft_wrap=True)


def parse_option(text: str) -> tuple[str, Any]:
    """Reads NAME=VALUE, an option of a format; the format judges it."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals and value):
        raise usage(f"{text!r} is not NAME=VALUE, such as n=2", "--option")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # a word


def best_device() -> str:
    """Returns "cuda" where there is a GPU that torch can use, else "cpu", and says why."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    from flashsparse_plugin.diagnostics import hardware

    if driver := hardware()["driver"]:
        why = "sees no GPU" if torch.version.cuda else "is a CPU build"
        err.print(
            f"[dim]On the CPU: there is an NVIDIA driver ({driver}), but this torch {why}. "
            "`flashsparse doctor` has details.[/dim]"
        )
    return "cpu"


def load_model(
    path: Path | ModelDirectory,
    dtype: Dtype = Dtype.auto,
    dense: bool = False,
    device: str = "cpu",
    causal: bool = True,
) -> PreTrainedModel:
    """`flashsparse_plugin.loading.load_model`, imported when it is called."""
    from flashsparse_plugin import loading

    return loading.load_model(path, dtype.value, dense, device, causal)


def fastest(dtype: Dtype, directory: ModelDirectory, device: str) -> Dtype:
    """The dtype that was asked for, or instead of "auto" the one that computes fastest."""
    from flashsparse_plugin.loading import fast_dtype

    return Dtype(fast_dtype(directory, device)) if dtype is Dtype.auto else dtype


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """`flashsparse_plugin.loading.load_tokenizer`, imported when it is called."""
    from flashsparse_plugin import loading

    return loading.load_tokenizer(path)


def draw_windows(model: Path, text: Path, samples: int, length: int, seed: int) -> Tensor:
    """Calibration windows of a text file, in tokens of a model: see `calibration_windows`."""
    from flashsparse_plugin.pruning import calibration_windows

    words = text.read_text(encoding="utf-8", errors="replace")
    return calibration_windows(load_tokenizer(model), words, samples, length, seed)


def refuse_existing(destination: Path) -> None:
    """Raises the error of a command line whose output is there already, and not empty."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise usage(f"{destination} exists already: remove it or choose another name", "OUT")
