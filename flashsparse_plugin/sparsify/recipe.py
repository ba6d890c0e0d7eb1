# SPDX-License-Identifier: Apache-2.0
"""sparsify_checkpoint: a dense model directory to a packed one that was pruned and recovered.

Beside the output, in `<out>.sparsify`, each stage leaves a model directory and what was measured of
it. So a run that was stopped goes on with the same call.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import flashsparse_plugin

from ..checkpoint.card.record import Calibration
from ..checkpoint.convert.converter import convert_checkpoint
from ..checkpoint.convert.settings import refuse_overlap
from ..checkpoint.files.headers import CheckpointError
from ..checkpoint.hub.fetching import directory_of
from ..checkpoint.read.directory import ModelDirectory, refuse_quantized
from ..checkpoint.write.room import disk_errors, require_room
from ..checkpoint.write.staging import identity
from ..names import AUTO, LM_HEAD
from ..pruning import LoRA, rounding_of
from .rule import rule_of
from .run import Run, Sparsified, Watch, unwatched

TRAINING: Final = LoRA(steps=60, rate=2e-3)
"""After least squares; alone it takes longer to get as near. At 2:4, with 256 tokens a step, the 60
steps brought SmolLM2-135M from 1.86 to 1.48 times the dense perplexity; 100 without least squares
got to 1.60 in a time that was a fifth longer."""


def sparsify_checkpoint(
    source: str | Path,
    out: str | Path,
    calibration: str | Path,
    *,
    pattern: str | None = None,
    sparsity: float | None = None,
    recover: LoRA | bool = True,
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
    method: str = "wanda",
    samples: int = 64,
    length: int = 256,
    seed: int = 0,
    ignore: Sequence[str] = (LM_HEAD,),
    overwrite: bool = False,
    device: str = "cpu",
    name: str | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    watch: Watch | None = None,
) -> Sparsified:
    """Prunes a model, fits and trains what is kept to make up for the rest, and packs it.

    Values of 4 bits are rounded by `pruning.round_` before they are packed.

    Both models are in memory while it trains. The disk holds the model two or three times until it
    is done. A run that was stopped is resumed by the same call: after the stage that it was in, or
    inside of it where that is training or packing.

    Args:
        source: Directory of the dense model; or, as a string, its name on the Hub.
        out: Directory to make; nothing is there before it is complete.
        calibration: File of plain text, of the kind that the model will see. The last tenth is
            only for perplexity.
        pattern: As "2:4", or "8:32-L32" where 32 rows share their columns; None for that of
            `format`, if it has one, and else for zeros anywhere.
        sparsity: The share of zeros; None for 0.5, or for what the pattern implies.
        recover: Whether to recover, by least squares and then by LoRA, or by which LoRA.
        format: The packed format, as `convert_checkpoint` takes it, or "2:4-int8" and the like;
            None for that of the pattern, and else for the default.
        options: Of the format, such as group=64.
        method: How zeros are chosen; see `pruning.prune`.
        samples, length, seed: Calibration windows, tokens of each, and the seed of their places.
        ignore: Layers to leave dense: names, or patterns after "re:".
        overwrite: Replace `out` where it is a model directory.
        device: Where to prune and to train.
        name: What the model card calls the model; None: the name of `out`.
        say: Called with sentences on what is about to happen: how long it will take.
        watch: Called for each stage, to show its progress.

    Returns:
        What was made, and its perplexity beside the dense model's.

    Raises:
        CheckpointError: For a source that cannot be read and an output that is not to be written.
        FormatError: For a format that does not go with the pattern.
        ValueError: As `pruning.prune` and `pruning.recover_` do.
    """
    options = options or {}
    rule, packing = rule_of(pattern, sparsity, format, options)
    rounding = None if packing == AUTO else rounding_of(packing, options)
    training = TRAINING if recover is True else recover or None
    out, file = Path(out), Path(calibration)
    directory = ModelDirectory(directory_of(source))
    refuse_quantized(directory, codes=False)
    refuse_overlap(directory.path.resolve(), out.resolve())
    _require_free(out, overwrite)
    require_room(out, directory.nbytes * (3 if training else 2))
    windows_of = Calibration.of(file, samples, length, seed)
    job = {
        "tool": flashsparse_plugin.__version__,
        "dense": identity(directory),
        "calibration": windows_of.model_dump(),
        "pruning": [method, {**rule}, [*ignore]],
        "recovery": training and asdict(training),
        "rounding": [packing, {**options}] if rounding else None,
    }
    run = Run(directory, out, file, job, windows_of, device, say, watch or unwatched)
    with disk_errors(run.work.path, lambda: ". Make room: the same command goes on"):
        run.measure_dense(training, rounding is not None)
        run.prune(method, rule, ignore)
        if training is not None:
            run.recover(training)
        if rounding is not None:
            named = " ".join([packing, *(f"{name}={value}" for name, value in options.items())])
            run.round(rounding, named, ignore)
        with run.watch("Packing") as on_progress:
            run.made.packed = convert_checkpoint(
                run.work.path / str(run.work.last()),
                out,
                format=packing,
                options=options,
                ignore=ignore,
                overwrite=overwrite,
                on_progress=on_progress,
                name=name,
            )
        packed = ModelDirectory(out)
        run.made.perplexity |= run.judged("packed", lambda: run.load(packed, dense=False))
        shutil.rmtree(run.work.path)
    run.made.notes += run.made.packed.warnings
    return run.made


def _require_free(out: Path, overwrite: bool) -> None:
    """Raises CheckpointError for an output that is there, before the work and not after it."""
    if out.exists() and not overwrite and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(
            f"{out} exists and is not empty: choose another output, or replace it with "
            "--overwrite (overwrite=True)"
        )
