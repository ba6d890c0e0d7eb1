# SPDX-License-Identifier: Apache-2.0
"""The model card (README.md) of a pruned or packed model, fit to be published.

Its metadata has what the Hub asks for (licence, base model), and under `pruning`, `recovery` and
`rounding` what was done to the weights, which the card of a model that is made of it takes over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from pydantic import ValidationError

import flashsparse_plugin

from ...messages import one_line
from ..files.headers import CheckpointError
from ..files.places import hub_name
from ..read.directory import ModelDirectory
from ..read.linears import kind_of
from ..write.report import ConversionReport, by_kind, human, mean_sparsity
from ..write.surroundings import CARD
from .record import RECORDS, Record
from .section import evaluation

if TYPE_CHECKING:
    from ...pruning import PruneReport

logger = logging.getLogger(__name__)

_CARRIED = ("license", "license_name", "license_link", "base_model", "language", "datasets")


def write_card(
    path: Path, directory: ModelDirectory, report: ConversionReport, name: str | None = None
) -> None:
    """Writes the card of a packed model: sizes, zeros by kind of layer, how to load it.

    Licence, base model, language, data sets and how it was pruned are those of the source's card,
    if it has one.

    Args:
        path: The file to write.
        directory: The source.
        report: What was done to it.
        name: What the model is called where it will be loaded from; None: its folder's name.
    """
    name = name or Path(report.out).name
    data = _metadata(directory, ["flashsparse", "sparse", "pruned", *report.formats])
    text = _packed_text(name, report, _facts(data, directory))
    _write(path, data, text)


def write_pruned_card(
    path: Path,
    directory: ModelDirectory,
    done: Record | None,
    report: PruneReport,
    name: str,
    base: str | None = None,
    more: Sequence[str] = (),
) -> None:
    """Writes the card of a pruned or recovered model, whose weights are dense.

    Args:
        path: The file to write.
        directory: The source.
        done: How it was pruned; or recovered or rounded, and the source's card says what was done
            before; None for a model that was unpacked, whose card says all.
        report: The zeros of each layer.
        name: What the model is called where it will be loaded from.
        base: Name of the base model, where the source does not say one.
        more: Rows for the table of facts.
    """
    data = _metadata(directory, ["sparse", "pruned", "flashsparse"])
    if base is not None:
        data.setdefault("base_model", base)
    if done is not None:
        (key,) = (key for key, record in RECORDS.items() if isinstance(done, record))
        for later in [*RECORDS][[*RECORDS].index(key) :]:  # of weights that have changed since
            data.pop(later, None)
        data[key] = done.model_dump(exclude_none=True)
    _write(path, data, _pruned_text(name, report, [*_facts(data, directory), *more]))


def _write(path: Path, data: dict[str, Any], text: str) -> None:
    header = ModelCardData(**data).to_yaml()
    path.write_text(f"---\n{header}\n---\n\n{text}", encoding="utf-8")


def _metadata(directory: ModelDirectory, tags: Sequence[str]) -> dict[str, Any]:
    """What a card says to programs: of the source's card what is as true of the new model."""
    data: dict[str, Any] = {"pipeline_tag": "text-generation", **_carried_metadata(directory)}
    if (source := hub_name(directory.path)) is not None:
        data["base_model"] = source
    if "license" not in data and any(directory.path.glob("LICENSE*")):
        data |= {"license": "other", "license_link": "LICENSE"}
    return data | {"library_name": "transformers", "tags": list(dict.fromkeys(tags))}


def _carried_metadata(directory: ModelDirectory) -> dict[str, Any]:
    if not (directory.path / CARD).exists():
        return {}
    try:
        data = ModelCard.load(directory.locate(CARD), ignore_metadata_errors=True).data.to_dict()
    except (CheckpointError, yaml.YAMLError, ValueError, OSError, RecursionError) as error:
        told = one_line(" ".join(str(error).split()))
        logger.warning("the model card of the source is not carried over: %.300s", told)
        return {}
    # YAML may contain anything; the card takes words and lists of words.
    carried: dict[str, Any] = {
        key: value
        for key, value in data.items()
        if key in (*_CARRIED, "pipeline_tag")
        and (
            isinstance(value, str)
            or (isinstance(value, list) and all(isinstance(item, str) for item in value))
        )
    }
    for key in RECORDS.keys() & data.keys():
        try:
            carried[key] = RECORDS[key].model_validate(data[key]).model_dump(exclude_none=True)
        except ValidationError:
            logger.warning("what the source's card says of its %s is not carried over", key)
    return carried


def _facts(data: dict[str, Any], directory: ModelDirectory) -> list[str]:
    """Rows of a table of two columns: where the model comes from, and how it was pruned."""
    base = data.get("base_model", [])
    names = [base] if isinstance(base, str) else base
    license = data.get("license_name", data.get("license"))
    unknown = "not stated by the source model: find out before you publish this one"
    rows = [f"| Base model | {', '.join(map(_code, names))} |"] if names else []
    rows.append(f"| Licence | {_code(license) if isinstance(license, str) else unknown} |")
    for key, record in RECORDS.items():
        rows += record.model_validate(data[key]).rows() if key in data else []
    return rows


def _code(text: str) -> str:
    """Words of unknown origin, as what Markdown shows as they are."""
    return "`" + "".join(x for x in text if x.isprintable() and x not in "`|<>")[:200] + "`"


def _pruned_text(name: str, report: PruneReport, facts: Sequence[str]) -> str:
    return f"""# {name.rpartition("/")[2]}

{report.sparsity:.1%} of the weights in {len(report.layers)} linear layers are zero.
Its weights are stored dense, so that anything loads it; packed they take less space and time.

{_two_columns(facts)}

## Layers

| kind | layers | shape | zeros |
|---|---:|---|---:|
{_pruned_table(report)}

{evaluation()}

## How to load it

With transformers, as it is, or packed while it loads:

```python
import flashsparse_plugin as fs
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{name}")
packed = AutoModelForCausalLM.from_pretrained(
    "{name}", quantization_config=fs.FlashSparseConfig(pruning="none")
)
```

With vLLM:

```bash
vllm serve {name} --sparse-method auto
```

{_INSTALL}
"""


def _packed_text(name: str, report: ConversionReport, facts: Sequence[str]) -> str:
    sparsity = report.sparsity
    sizes = [
        f"| Format | `{report.schemes}`, {report.dtype} values |",
        f"| Weights before | {human(report.bytes_source)} |",
        f"| Weights here | {human(report.bytes_out)} |",
    ]
    return f"""# {name.rpartition("/")[2]}

A pruned language model whose linear layers are stored packed, without their zeros: {sparsity:.1%}
of the weights in {len(report.packed)} packed layers are zero. {_kept(report)}.

{_two_columns([*facts, *sizes])}

## Layers

{_packed_table(report)}

{evaluation()}

## How to load it

With transformers:

```python
import flashsparse_plugin
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```

With vLLM:

```bash
vllm serve {name}
```

{_INSTALL}
"""


_INSTALL = f"""Both need FlashSparse. In its source tree, or with a release file for the dot:

```bash
pip install ".[hf]"
```

Written by flashsparse-plugin {flashsparse_plugin.__version__}."""


def _two_columns(rows: Iterable[str]) -> str:
    return "\n".join(["| | |", "|---|---|", *rows])


def _kept(report: ConversionReport) -> str:
    rounded = ""
    if report.rounded_values:
        rounded = f", except {report.rounded_values:,} values that were rounded to {report.dtype}"
    if report.rounding:
        exact = len(report.packed) - len(report.inexact)
        others = f"; those of {exact} layers are as they were{rounded}" if exact else ""
        return report.rounding[0].upper() + report.rounding[1:] + others
    return f"Every other weight is bit for bit\nthat of the source model{rounded}"


def _shapes(layers: Iterable[Any]) -> str:
    return ", ".join(sorted({f"{x.shape[0]} x {x.shape[1]}" for x in layers}))


def _pruned_table(report: PruneReport) -> str:
    kinds: dict[str, list[Any]] = {}
    for layer in report.layers:
        kinds.setdefault(kind_of(layer.name), []).append(layer)
    return "\n".join(
        f"| {kind} | {len(layers)} | {_shapes(layers)} | {mean_sparsity(layers):.1%} |"
        for kind, layers in kinds.items()
    )


def _packed_table(report: ConversionReport) -> str:
    """Zeros and bytes by kind of layer; the error of codes, too, where values have fewer bits."""
    coded = bool(report.inexact)
    rows = [
        f"| kind | layers packed | shape | zeros | dense | here |{' error |' if coded else ''}",
        f"|---|---:|---|---:|---:|---:|{'---:|' if coded else ''}",
    ]
    for kind, layers in by_kind(x for x in report.layers if x.sparsity is not None).items():
        packed = sum(x.is_packed for x in layers)
        dense = human(sum(x.bytes_dense for x in layers))
        here = human(sum(x.bytes_written for x in layers))
        errors = [x.error for x in layers if x.is_packed and x.error is not None]
        error = f"{sum(errors) / len(errors):.2%}" if errors else "none"
        rows.append(
            f"| {kind} | {packed} of {len(layers)} | {_shapes(layers)} | "
            f"{mean_sparsity(layers):.1%} | {dense} | {here} |{f' {error} |' if coded else ''}"
        )
    return "\n".join(rows)
