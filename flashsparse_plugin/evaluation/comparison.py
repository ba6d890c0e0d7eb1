# SPDX-License-Identifier: Apache-2.0
"""Models side by side: each as it is, and made smaller by every method that fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..linear import SparseLinear
from ..loading import load_model, load_tokenizer
from ..packed import FormatError, dtype_name
from ..text import token_stream
from . import sizes
from .measure import Effort, Figures, measure
from .methods import Method, Packed, apply_method

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Line:
    """A model and what was made of it.

    Attributes:
        model: What it is called here.
        method: What was made of it, for people; its schemes or its dtype where nothing was.
        kind: "dense", "ours" or "rival".
        figures: What was measured.
    """

    model: str
    method: str
    kind: str
    figures: Figures

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; what was not measured is left out."""
        found = self.figures
        rates = {"prefill_tokens_s": found.prefill, "decode_tokens_s": found.decode}
        plain = {
            "model": self.model,
            "method": self.method,
            "kind": self.kind,
            "perplexity": found.perplexity and round(found.perplexity, 4),
            **{name: round(score, 4) for name, score in found.tasks.items()},
            "zeros": round(found.sparsity, 4),
            "bits": round(found.sizes.bits, 3),
            "disk_bytes": found.sizes.disk,
            "memory_bytes": found.sizes.memory,
            **{name: rate and round(rate, 2) for name, rate in rates.items()},
            "ran": found.ran,
        }
        return {name: value for name, value in plain.items() if value is not None}


@dataclass(frozen=True)
class Comparison:
    """How models are compared.

    Attributes:
        methods: What to make of each dense model, beside measuring it as it is.
        text: The text to predict; None where only tasks are asked for.
        effort: How much to measure.
        dtype: Of the activations; "auto" means as stored. A method may have its own.
        device: Where the models run.
        on_progress: Called with what is done now.
        on_note: Called with what the user should know, such as which method does not fit a model.
    """

    methods: Sequence[Method]
    text: str | None
    effort: Effort
    dtype: str = "auto"
    device: str = "cpu"
    on_progress: Tell = lambda what: None
    on_note: Tell = lambda what: None

    def lines(self, directories: Sequence[Path]) -> Iterator[Line]:
        """Measures every model by every method that fits it, one in memory at a time.

        Raises:
            ValueError: As `load_model`, `load_tokenizer` and `measure` do.
            ImportError: Where transformers, or lm-eval that tasks need, is not installed.
        """
        names, first_ids = _names(directories), None
        for path, name in zip(directories, names, strict=True):
            tokenizer = load_tokenizer(path)
            if self.text is not None:
                ids = token_stream(tokenizer, self.text[:2000]).tolist()
                if first_ids not in (None, ids):
                    self.on_note(
                        f"{name} has another tokenizer than {names[0]}: their perplexities cannot "
                        "be compared"
                    )
                first_ids = first_ids or ids
            line = self._as_it_is(path, name, tokenizer)
            yield line
            if self.methods and line.kind == "ours":
                self.on_note(f"{name} is packed already: --with is for dense models")
                continue
            for method in self.methods:
                made = self._made(path, name, tokenizer, method)
                if made is not None:
                    yield made

    def _as_it_is(self, path: Path, name: str, tokenizer: Any) -> Line:
        self.on_progress(f"{name}, as it is: loading")
        model = load_model(path, self.dtype, device=self.device)
        found, sparsity = apply_method(model, None)
        found = replace(found, disk=sizes.stored_bytes(path))
        packed = [m.scheme.title for m in model.modules() if isinstance(m, SparseLinear)]
        what = " and ".join(dict.fromkeys(packed)) or dtype_name(model.dtype)
        self.on_progress(f"{name}, {what}: measuring")
        figures = measure(model, tokenizer, self.text, found, sparsity, self.effort)
        return Line(name, what, "ours" if packed else "dense", figures)

    def _made(self, path: Path, name: str, tokenizer: Any, method: Method) -> Line | None:
        """What is made of a dense model; None where its weights do not fit."""
        self.on_progress(f"{name}, {method.title}: loading")
        own = self.dtype if method.dtype is None else dtype_name(method.dtype)
        model = load_model(path, own, device=self.device)
        try:
            found, sparsity = apply_method(model, method)
        except FormatError as error:
            self.on_note(f"{name} cannot be {method.title}: {error}")
            return None
        self.on_progress(f"{name}, {method.title}: measuring")
        effort = self.effort if method.is_timed else replace(self.effort, decode_tokens=0)
        figures = measure(model, tokenizer, self.text, found, sparsity, effort)
        return Line(name, method.title, "ours" if isinstance(method, Packed) else "rival", figures)


def _names(directories: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell the models apart."""
    resolved = [path.absolute() for path in directories]
    for depth in range(1, 6):
        names = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in directories]
