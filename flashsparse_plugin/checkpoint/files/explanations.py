# SPDX-License-Identifier: Apache-2.0
"""What is no model directory as we read it, in one text each: what it is, and the way out of it.

Every command, the Python functions and the Hub's models share these texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def may_be_on_the_hub(name: str) -> bool:
    """Whether a name could be that of a model on the Hub."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(@\S+)?", name) is not None


def about_nothing(path: str) -> str:
    """Where no directory is."""
    told = (
        f"{path} is not a directory. A model is a local directory as transformers saves it, or the "
        "name of one on the Hugging Face Hub, ORG/NAME"
    )
    if not may_be_on_the_hub(path):
        return told
    path = path.partition("@")[0]
    folder = path.partition("/")[2]
    return f"{told}. By hand one is fetched with: hf download {path} --local-dir {folder}"


def about_gguf(home: str, file: str, out: str) -> str:
    """A GGUF file in the place of a model.

    Args:
        home: The directory that it is in, or a model on the Hub.
        file: Its name.
        out: Where to write what can be read.
    """
    return (
        f"{home}/{file} is a GGUF file, and only safetensors are read. transformers unpacks it "
        'once: python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; '
        f"[C.from_pretrained('{home}', gguf_file='{file}').save_pretrained('{out}') "
        'for C in (M, T)]"'
    )


def about_pickles(home: str, file: str, config: Mapping[str, Any], out: str) -> str:
    """Weights as pickles.

    Args:
        home: The directory that they are in, or a model on the Hub.
        file: The name of one.
        config: The model's config.json.
        out: Where to write what can be read.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    known = isinstance(name, str) and name.isidentifier()
    return (
        f"{home} holds its weights as pickles ({file}), which can run any code when they are "
        "opened: only safetensors are read. If you trust the model, convert it once: "
        f'python -c "from transformers import {name if known else "AutoModelForCausalLM"} as M; '
        f"M.from_pretrained('{home}', dtype='auto').save_pretrained('{out}')\""
    )


def about_quantized(home: str, method: object) -> str:
    """Weights that another tool quantized, in a way that is not read or not wanted."""
    return (
        f"{home} is quantized already (quant_method {method!r} in config.json): start from the "
        "model in float16, bfloat16 or float32, before it was quantized. Where its weights are in "
        "truth dense, remove quantization_config from config.json"
    )


def about_packed(home: str, format: object) -> str:
    """A model that is packed, where only the dense one will do."""
    return (
        f"{home} is packed already (format {format}): load it as it is, or look at it with "
        "`flashsparse inspect`. To prune it or to change its format, start from the dense model"
    )


def about_experts(count: str, example: str, done: str, why: str | None = None) -> str:
    """Experts of a mixture, which stay dense.

    Args:
        count: How many there are.
        example: The name of one.
        done: What cannot be done with them: "packed" or "pruned".
        why: The reason where they could be.
    """
    reason = f"all experts of a layer are one weight in the model, which cannot be {done}"
    return (
        f"The weights of experts stay as they are ({count}, for example {example}): "
        f"{why or reason}."
    )
