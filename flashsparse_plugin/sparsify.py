# SPDX-License-Identifier: Apache-2.0
"""sparsify_checkpoint: a dense model directory to a packed one that was pruned and recovered.

Beside the output, in `<out>.sparsify`, each stage leaves a model directory and what was measured of
it. So a run that was stopped goes on with the same call.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import flashsparse_plugin

from .checkpoint.card.model_card import write_pruned_card
from .checkpoint.card.record import Calibration, Pruning, Recovery, word
from .checkpoint.convert.advice import notes_on_pruning
from .checkpoint.convert.converter import convert_checkpoint
from .checkpoint.convert.settings import refuse_overlap
from .checkpoint.files.headers import CheckpointError
from .checkpoint.files.places import hub_name, name_of
from .checkpoint.hub.fetching import directory_of
from .checkpoint.prune.pruned import write_pruned
from .checkpoint.prune.recovered import RecoveryReport, write_recovered
from .checkpoint.read.directory import ModelDirectory, refuse_quantized
from .checkpoint.read.linears import StoredModel
from .checkpoint.write.report import ConversionReport
from .checkpoint.write.room import disk_errors, require_room
from .checkpoint.write.staging import identity
from .evaluation import perplexity
from .files import read_bounded
from .formats import get_format, read_format
from .loading import load_model, load_tokenizer
from .modules import linear_modules
from .names import AUTO, DEFAULT_FORMAT, LM_HEAD
from .packed import FormatError
from .pruning import (
    LeastSquares,
    LoRA,
    PruneReport,
    calibration_windows,
    few_tokens,
    prune,
)
from .pruning.estimate import Estimate, duration, estimate_seconds
from .pruning.layers import report as zeros_of
from .text import token_stream

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WORK: Final = ".sparsify"
"""After the output's name: where the stages are kept until the last one is done."""

STAGES: Final = ("pruned", "fitted", "recovered")

_STATE: Final = "state.json"
_MAX_STATE_BYTES: Final = 16 << 20
_HELD_OUT: Final = 0.1  # of the text, from its end
_CONTEXT: Final = 512  # tokens of a window that is predicted
_MOST: Final = 4096  # tokens that are predicted
_FEWEST: Final = 64
TRAINING: Final = LoRA(steps=60, rate=2e-3)
"""After least squares; alone it takes longer to get as near. At 2:4, with 256 tokens a step, the 60
steps brought SmolLM2-135M from 1.86 to 1.48 times the dense perplexity; 100 without least squares
got to 1.60 in a time that was a fifth longer."""

Progress = Callable[[int, int, str], None]
Watch = Callable[[str], AbstractContextManager[Progress]]
"""Called with the title of a stage; what it returns is entered for as long as the stage takes."""


@dataclass
class Sparsified:
    """What `sparsify_checkpoint` made.

    Attributes:
        out: The packed model.
        sparsity: Share of zeros in the layers that were pruned.
        perplexity: Of the models "dense", "pruned", "recovered" and "packed", on text that none
            of the stages saw; empty where the text is too short for that.
        judged_by: Tokens that were predicted for it.
        pruned, recovered, packed: Reports of the stages; None of one that an earlier run did.
        notes: What a user should know, a sentence each.
    """

    out: Path
    sparsity: float = 0.0
    perplexity: dict[str, float] = field(default_factory=dict)
    judged_by: int = 0
    pruned: PruneReport | None = None
    recovered: RecoveryReport | None = None
    packed: ConversionReport | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain values for JSON."""
        stages = {name: getattr(self, name) for name in ("pruned", "recovered", "packed")}
        plain = {name: stage and stage.to_dict() for name, stage in stages.items()}
        known = {"out": str(self.out), "sparsity": self.sparsity, "notes": self.notes}
        return known | {"perplexity": self.perplexity, "judged_by": self.judged_by} | plain


def sparsify_checkpoint(
    source: str | Path,
    out: str | Path,
    calibration: str | Path,
    *,
    pattern: str | None = None,
    sparsity: float | None = None,
    recover: LoRA | bool = True,
    format: str | None = None,
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
    rule, packing = _rule(pattern, sparsity, format)
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
    }
    run = _Run(directory, out, file, job, windows_of, device, say, watch or _unwatched)
    with disk_errors(run.work.path, lambda: ". Make room: the same command goes on"):
        run.measure_dense(training)
        run.prune(method, rule, ignore)
        if training is not None:
            run.recover(training)
        with run.watch("Packing") as on_progress:
            run.made.packed = convert_checkpoint(
                run.work.path / str(run.work.last()),
                out,
                format=packing,
                ignore=ignore,
                overwrite=overwrite,
                on_progress=on_progress,
                name=name,
            )
        run.made.perplexity |= run.judged("packed", lambda: load_model(out, device=device))
        shutil.rmtree(run.work.path)
    run.made.notes += run.made.packed.warnings
    return run.made


def require_rule(pattern: str | None, sparsity: float | None, format: str | None) -> None:
    """Raises FormatError where `sparsify_checkpoint` would, for what is no pattern or format."""
    _rule(pattern, sparsity, format)


def _rule(
    pattern: str | None, sparsity: float | None, format: str | None
) -> tuple[dict[str, Any], str]:
    """What `prune` is told of the zeros, and the format that holds them."""
    given = None if format in (None, AUTO) else _pattern_of(str(format))
    wanted = given
    if pattern is not None:
        if ":" not in pattern:
            raise FormatError(f"{pattern!r} is not a pattern N:M such as 2:4")
        wanted = _pattern_of(pattern)
    if given is not None and wanted != given:
        raise FormatError(
            f"--format {format} cannot hold --pattern {pattern}: leave one of the two out"
        )
    if wanted is None:
        return {"sparsity": 0.5 if sparsity is None else sparsity}, format or DEFAULT_FORMAT
    rule = {"sparsity": sparsity, "pattern": wanted[:2], "vector_length": wanted[2]}
    return rule, format or str(pattern)


def _pattern_of(format: str) -> tuple[int, int, int] | None:
    name, options = read_format(format)
    own = get_format(name)
    return own.pattern(own.scheme(own.dtypes[-1], options))


def _require_free(out: Path, overwrite: bool) -> None:
    """Raises CheckpointError for an output that is there, before the work and not after it."""
    if out.exists() and not overwrite and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(
            f"{out} exists and is not empty: choose another output, or replace it with "
            "--overwrite (overwrite=True)"
        )


def _unwatched(title: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total, what: None)


class _Work:
    """The directory of the stages, and what is known of them."""

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        self.path = out.resolve().with_name(out.name + WORK)
        self._job = json.loads(json.dumps(job))  # as it will read back
        self.perplexity: dict[str, float] = {}
        if not self.path.exists():
            self.path.mkdir(parents=True)
        elif not (self.path / _STATE).is_file() or self.path.stat().st_uid != os.geteuid():
            raise CheckpointError(
                f"{self.path} is needed as a working directory and holds something else: move it "
                "away or choose another output"
            )
        try:
            state = json.loads(read_bounded(self.path / _STATE, _MAX_STATE_BYTES))
            same = state["job"] == self._job
            self.perplexity = {str(k): float(v) for k, v in state["perplexity"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            same = False
        if not same:  # of another model, text or rule
            self.perplexity = {}
            for each in self.path.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            self.save()

    def last(self) -> str | None:
        """The latest stage that is complete."""
        done = [name for name in STAGES if (self.path / name).is_dir()]
        return done[-1] if done else None

    def save(self) -> None:
        new = self.path / f"{_STATE}.new"
        new.write_text(json.dumps({"job": self._job, "perplexity": self.perplexity}))
        new.replace(self.path / _STATE)


class _Run:
    """One run, stage by stage."""

    def __init__(
        self,
        directory: ModelDirectory,
        out: Path,
        file: Path,
        job: Mapping[str, Any],
        windows_of: Calibration,
        device: str,
        say: Callable[[str], None],
        watch: Watch,
    ) -> None:
        self.directory, self.device, self.say, self.watch = directory, device, say, watch
        self.made = Sparsified(out)
        self.tokenizer = load_tokenizer(directory.path)
        text = file.read_text(encoding="utf-8", errors="replace")
        cut = round(len(text) * (1 - _HELD_OUT))
        self.windows_of = windows_of
        numbers = windows_of.samples, windows_of.length, windows_of.seed
        self.windows = calibration_windows(self.tokenizer, text[:cut], *numbers)
        self.held_out = text[cut:]
        tokens = min(_MOST, len(token_stream(self.tokenizer, self.held_out)))
        self.made.judged_by = tokens if tokens >= _FEWEST else 0
        if not self.made.judged_by:
            self.made.notes.append(
                f"{file} is too short to measure perplexity: its last tenth, which is kept out of "
                f"the calibration for that, has {tokens} tokens of at least {_FEWEST}"
            )
        self.work = _Work(out, job)

    def load(self, directory: ModelDirectory) -> PreTrainedModel:
        return load_model(directory, dense=True, device=self.device)

    def measure_dense(self, training: LoRA | None) -> None:
        """Judges the dense model, and says how long the rest will take."""
        model = self.load(self.directory)
        if note := few_tokens(model, self.windows):
            self.made.notes.append(note)
        estimate = estimate_seconds(model, self.windows, training)
        self.say(_told(estimate, training, self.work.last(), self.device))
        self.made.perplexity |= self.judged("dense", lambda: model)

    def prune(self, method: str, rule: Mapping[str, Any], ignore: Sequence[str]) -> None:
        path, stored = self.work.path / "pruned", StoredModel(self.directory)
        if self.work.last() is None:
            model = self.load(self.directory)
            made = prune(
                model,
                method,
                calibration=self.windows,
                ignore=[*ignore, *stored.unfit()],
                progress=self.watch is not _unwatched,
                **rule,
            )
            self.made.pruned = made
            length = rule.get("vector_length", 1)
            shown = "pattern" in rule and "{}:{}".format(*rule["pattern"])
            history = Pruning(
                method=method,
                sparsity=made.sparsity,
                pattern=f"{shown}{f' in vectors of {length}' * (length > 1)}" if shown else None,
                calibration=self.windows_of,
            )

            def card(file: Path) -> None:
                write_pruned_card(file, stored.directory, history, made, self.made.out.name)

            layers = [layer.name for layer in made.layers]
            self.made.notes += notes_on_pruning(stored)
            updated = method == "sparsegpt"
            write_pruned(stored, model, layers, path, None, card, updated)
        self.made.perplexity |= self.judged("pruned", lambda: self.load(ModelDirectory(path)))

    def recover(self, training: LoRA) -> None:
        """Fits the layers one by one, and then trains them together."""
        models: tuple[PreTrainedModel, PreTrainedModel] | None = None
        how: Mapping[str, LeastSquares | LoRA] = {"fitted": LeastSquares(), "recovered": training}
        for name, method in how.items():
            last = self.work.last()
            assert last is not None  # `prune` ended
            if STAGES.index(last) >= STAGES.index(name):
                continue
            stored = StoredModel(ModelDirectory(self.work.path / last))
            if models is None:
                models = self.load(stored.directory), self.load(self.directory)
            self._recover(name, method, stored, *models)
            shutil.rmtree(self.work.path / last)
        directory = ModelDirectory(self.work.path / "recovered")
        self.made.perplexity |= self.judged("recovered", lambda: self.load(directory))

    def _recover(
        self,
        name: str,
        method: LeastSquares | LoRA,
        stored: StoredModel,
        pruned: PreTrainedModel,
        dense: PreTrainedModel,
    ) -> None:
        def card(file: Path, report: RecoveryReport) -> None:
            called, text = self.made.out.name, self.windows_of
            write_recovered_card(file, stored, pruned, self.directory.path, report, text, called)

        with self.watch("Fitting layers" if name == "fitted" else "Training") as on_progress:
            report = write_recovered(
                stored,
                pruned,
                self.directory,
                dense,
                self.windows,
                self.work.path / name,
                method,
                on_progress=on_progress,
                write_card=card,
            )
        self.made.recovered = report
        self.made.notes += report.warnings

    def judged(self, name: str, model: Callable[[], PreTrainedModel]) -> dict[str, float]:
        """The perplexity of a model on the text that was held out; loaded if it is not known."""
        if not self.made.judged_by:
            return {}
        if name not in self.work.perplexity:
            loaded = model()
            with self.watch(f"Measuring the perplexity, {name}"):
                self.work.perplexity[name] = _perplexity(loaded, self.tokenizer, self.held_out)
            self.work.save()
        return {name: self.work.perplexity[name]}


def write_recovered_card(
    file: Path,
    stored: StoredModel,
    pruned: PreTrainedModel,
    dense: Path,
    report: RecoveryReport,
    calibration: Calibration,
    name: str,
) -> None:
    """Writes the card of a recovered model.

    Args:
        file: The file to write.
        stored: The directory of the pruned model.
        pruned: The model, recovered.
        dense: The directory of the dense model.
        report: What was reached.
        calibration: The text.
        name: What the model is called where it will be loaded from.
    """
    trained = isinstance(report.method, LoRA)
    done = Recovery(
        method="lora" if trained else "least-squares",
        dense=word(name_of(dense)),
        before=report.before,
        after=report.after,
        calibration=calibration,
        rank=report.method.rank if isinstance(report.method, LoRA) else None,
        steps=report.method.steps if isinstance(report.method, LoRA) else None,
    )
    linears = linear_modules(pruned)
    zeros = zeros_of("", {layer: linears[layer] for layer in report.names})
    write_pruned_card(file, stored.directory, done, zeros, name, hub_name(dense))


def _perplexity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> float:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return perplexity(model, tokenizer, text, min(_CONTEXT, limit or _CONTEXT), _MOST, batch_size=1)


def _told(estimate: Estimate, training: LoRA | None, last: str | None, device: str) -> str:
    """How long what is left to do will take."""
    left = STAGES[STAGES.index(last) + 1 :] if last is not None else STAGES
    seconds = sum(taken for name, taken in estimate.seconds.items() if name in left)
    if not seconds:
        return "An earlier run has pruned and recovered the model: it is packed now."
    return (
        f"{'Pruning and recovering' if training else 'Pruning'} will take about "
        f"{duration(seconds)}{'' if last is None else ' more'} on this "
        f"{'GPU' if device == 'cuda' else 'CPU'}. That is an estimate from a pass over "
        f"{estimate.tokens:,} tokens, which took {estimate.took:.2g} s; packing comes on top."
    )
