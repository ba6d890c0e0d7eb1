# SPDX-License-Identifier: Apache-2.0
"""The model card (README.md) of a packed model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData

import flashsparse_plugin

from .reader import CheckpointError, ModelDirectory
from .report import ConversionReport, by_kind, human, mean_sparsity
from .surroundings import CARD

logger = logging.getLogger(__name__)

_CARRIED = ("license", "license_name", "license_link", "base_model", "language", "datasets")


def write_card(path: Path, directory: ModelDirectory, report: ConversionReport) -> None:
    """Writes a card with sizes, sparsity per kind of layer and how to load the model.

    Licence, base model, language and data sets are those of the source's card, if it has one.
    """
    carried = _carried_metadata(directory)
    data = ModelCardData(
        **{"pipeline_tag": "text-generation", **carried},
        library_name="transformers",
        tags=["flashsparse", "sparse", "pruned", *report.formats],
    )
    path.write_text(f"---\n{data.to_yaml()}\n---\n\n{_text(report)}", encoding="utf-8")


def _carried_metadata(directory: ModelDirectory) -> dict[str, Any]:
    if not (directory.path / CARD).exists():
        return {}
    try:
        data = ModelCard.load(directory.locate(CARD), ignore_metadata_errors=True).data.to_dict()
    except (CheckpointError, yaml.YAMLError, ValueError, OSError) as error:
        logger.warning("the model card of the source is not carried over: %s", error)
        return {}
    # YAML may contain anything; the card takes words and lists of words.
    return {
        key: value
        for key, value in data.items()
        if key in (*_CARRIED, "pipeline_tag")
        and (
            isinstance(value, str)
            or (isinstance(value, list) and all(isinstance(item, str) for item in value))
        )
    }


def _text(report: ConversionReport) -> str:
    out = Path(report.out).name
    sparsity = report.sparsity
    return f"""# {out}

A pruned language model whose linear layers are stored packed, without their zeros: {sparsity:.1%}
of the weights in {len(report.packed)} packed layers are zero. {_kept(report)}.

| | |
|---|---|
| Format | `{report.schemes}`, {report.dtype} values |
| Weights before | {human(report.bytes_source)} |
| Weights here | {human(report.bytes_out)} |

## Layers

| kind | layers packed | shape | zeros | dense | here |
|---|---:|---|---:|---:|---:|
{_table(report)}

## How to load it

In a source tree of FlashSparse, or with one of its release files in place of the dot:

```bash
pip install ".[hf]"
```

With transformers:

```python
import flashsparse_plugin
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{out}")
tokenizer = AutoTokenizer.from_pretrained("{out}")
```

With vLLM:

```bash
vllm serve {out}
```

Written by flashsparse-plugin {flashsparse_plugin.__version__}.
"""


def _kept(report: ConversionReport) -> str:
    rounded = ""
    if report.rounded_values:
        rounded = f", except {report.rounded_values:,} values that were rounded to {report.dtype}"
    if report.rounding:
        exact = len(report.packed) - len(report.inexact)
        others = f"; those of {exact} layers are as they were{rounded}" if exact else ""
        return report.rounding[0].upper() + report.rounding[1:] + others
    return f"Every other weight is bit for bit\nthat of the source model{rounded}"


def _table(report: ConversionReport) -> str:
    rows = []
    for kind, layers in by_kind(x for x in report.layers if x.sparsity is not None).items():
        shapes = sorted({f"{x.shape[0]} x {x.shape[1]}" for x in layers})
        packed = sum(x.is_packed for x in layers)
        dense = human(sum(x.bytes_dense for x in layers))
        here = human(sum(x.bytes_written for x in layers))
        rows.append(
            f"| {kind} | {packed} of {len(layers)} | {', '.join(shapes)} | "
            f"{mean_sparsity(layers):.1%} | {dense} | {here} |"
        )
    return "\n".join(rows)
