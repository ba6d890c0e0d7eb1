# SPDX-License-Identifier: Apache-2.0
"""One run: each stage leaves a model directory, and what was measured of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..checkpoint.card.model_card import write_pruned_card
from ..checkpoint.card.record import Calibration, Pruning
from ..checkpoint.convert.advice import notes_on_pruning
from ..checkpoint.prune.pruned import write_pruned
from ..checkpoint.prune.recovered import RecoveryReport, write_recovered
from ..checkpoint.prune.rounded import write_rounded
from ..checkpoint.read.directory import ModelDirectory
from ..checkpoint.read.linears import StoredModel
from ..checkpoint.write.report import ConversionReport
from ..evaluation import perplexity
from ..formats.values.quantization import Quantization
from ..loading import fast_dtype, load_model, load_tokenizer
from ..pruning import (
    Fit,
    LeastSquares,
    LoRA,
    PruneReport,
    calibration_windows,
    few_tokens,
    prunable_linears,
    prune,
)
from ..pruning.estimate import Estimate, busy, duration, estimate_seconds
from ..text import token_stream
from .card import write_recovered_card, write_rounded_card
from .work import STAGES, Work

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_HELD_OUT: Final = 0.1  # of the text, from its end
_CONTEXT: Final = 512  # tokens of a window that is predicted
_MOST: Final = 4096  # tokens that are predicted
_FEWEST: Final = 64


Progress = Callable[[int, int, str], None]
Watch = Callable[[str], AbstractContextManager[Progress]]
"""Called with the title of a stage; what it returns is entered for as long as the stage takes."""


def unwatched(title: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total, what: None)


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


class Run:
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
        self.work = Work(out, job)
        self.dtype = fast_dtype(directory, device)

    def load(self, directory: ModelDirectory, dense: bool = True) -> PreTrainedModel:
        """Loads a model to compute with; weights are stored in their own dtype all the same."""
        return load_model(directory, self.dtype, dense, self.device)

    def measure_dense(self, training: LoRA | None, rounds: bool) -> None:
        """Judges the dense model, and says how long the rest will take."""
        model = self.load(self.directory)
        if note := few_tokens(model, self.windows):
            self.made.notes.append(note)
        estimate = estimate_seconds(model, self.windows, training)
        self.say(_told(estimate, training, rounds, self.work.last(), self.device))
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
                progress=self.watch is not unwatched,
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
            self.made.notes += notes_on_pruning(stored, {*layers})
            updated = method == "sparsegpt"
            write_pruned(stored, model, layers, path, None, card, updated)
        self.made.perplexity |= self.judged("pruned", lambda: self.load(ModelDirectory(path)))

    def recover(self, training: LoRA) -> None:
        """Fits the layers one by one, and then trains them together."""
        dense: PreTrainedModel | None = None
        how: Mapping[str, LeastSquares | LoRA] = {"fitted": LeastSquares(), "recovered": training}
        for name, method in how.items():
            last = self.work.last()
            assert last is not None  # `prune` ended
            if STAGES.index(last) >= STAGES.index(name):
                continue
            stored = StoredModel(ModelDirectory(self.work.path / last))
            dense = dense or self.load(self.directory)
            # From the file, where weights are rounded, as a run that goes on has them.
            self._recover(name, method, stored, self.load(stored.directory), dense)
            shutil.rmtree(self.work.path / last)
        path = self.work.path / "recovered"
        self.made.perplexity |= self.judged("recovered", lambda: self.load(ModelDirectory(path)))

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
                as_stored=True,
                on_progress=on_progress,
                write_card=card,
            )
        self.made.recovered = report
        self.made.notes += report.warnings

    def round(self, quantization: Quantization, format: str, ignore: Sequence[str]) -> None:
        """Rounds what is kept to codes of 4 bits, which packing stores as they are."""
        last = self.work.last()
        assert last is not None  # `prune` ended
        if last != "rounded":
            directory = ModelDirectory(self.work.path / last)
            stored, model = StoredModel(directory), self.load(directory)
            linears = prunable_linears(model, [*ignore, *stored.unfit()], experts=True)

            def card(file: Path, fits: list[Fit]) -> None:
                text, called = self.windows_of, self.made.out.name
                write_rounded_card(file, directory, linears, fits, format, text, called)

            with self.watch("Rounding to 4 bits"):
                _, notes = write_rounded(
                    stored,
                    model,
                    linears,
                    dict.fromkeys(linears, quantization),
                    self.windows,
                    self.work.path / "rounded",
                    card,
                    progress=False,
                )
            self.made.notes += notes
            shutil.rmtree(directory.path)

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


def _perplexity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> float:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return perplexity(model, tokenizer, text, min(_CONTEXT, limit or _CONTEXT), _MOST, batch_size=1)


def _told(
    estimate: Estimate, training: LoRA | None, rounds: bool, last: str | None, device: str
) -> str:
    """How long what is left to do will take."""
    left = STAGES[STAGES.index(last) + 1 :] if last is not None else STAGES
    seconds = sum(taken for name, taken in estimate.seconds.items() if name in left)
    if not seconds:
        return "An earlier run has pruned and recovered the model: it is packed now."
    return (
        f"{'Pruning and recovering' if training else 'Pruning'} will take about "
        f"{duration(seconds)}{'' if last is None else ' more'} on this "
        f"{'GPU' if device == 'cuda' else 'CPU'}. That is an estimate from a pass over "
        f"{estimate.tokens:,} tokens, which took {estimate.took:.2g} s; "
        f"{'rounding to 4 bits and packing come' if rounds else 'packing comes'} on top."
        f"{busy()}"
    )
