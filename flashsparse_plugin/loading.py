# SPDX-License-Identifier: Apache-2.0
"""Loading a model directory for use, packed or dense, with errors that say what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint.files.headers import CheckpointError
from .checkpoint.read.directory import ModelDirectory, refuse_quantized
from .checkpoint.read.linears import config_of, model_class
from .diagnostics import hardware
from .packed import FormatError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_model(
    path: Path | ModelDirectory,
    dtype: str = "auto",
    dense: bool = False,
    device: str = "cpu",
    causal: bool = True,
) -> PreTrainedModel:
    """Loads a model, packed or dense, for inference, as the class that it was saved from.

    Args:
        path: Directory of the model, or the same, opened.
        dtype: Dtype of its activations; "auto" means as stored.
        dense: Refuse a packed or otherwise quantized model.
        device: Device to load it to.
        causal: Refuse a model that does not continue text.

    Raises:
        ImportError: If transformers is not installed.
        FormatError: For a model that is refused: a quantized one if `dense` is set, one that does
            not continue text if `causal` is.
        CheckpointError: For a directory that is not to be read: pickles, links that lead out of it;
            and for ids of tokens that are none.
    """
    _transformers()
    # Refuses what transformers would read: pickles, links that lead out, a million layers.
    directory = path if isinstance(path, ModelDirectory) else ModelDirectory(path)
    path = directory.path
    refuse_quantized(directory, packed=not dense, codes=not dense)
    config = config_of(path)
    kind = model_class(config)
    if causal and (config.is_encoder_decoder or not kind.can_generate()):
        raise FormatError(
            f"{path} is a {kind.__name__}, and this needs a model that continues text, a causal "
            "language model (`flashsparse prune --method magnitude` and `convert` take any)"
        )
    model = kind.from_pretrained(
        path,
        dtype=dtype,
        use_safetensors=True,
        device_map=None if device == "cpu" else device,
    )
    if causal:
        _require_token_ids(model, path)
    return model.eval()


def fast_dtype(directory: ModelDirectory, device: str) -> str:
    """The dtype to load a dense model in that computes fastest.

    Products of 16-bit numbers take an x86 CPU without instructions for them 2 to 3 times as long as
    those of float32. A model that takes up half of the memory that is free stays as it is.

    Args:
        directory: Of the model.
        device: "cpu" or "cuda".

    Returns:
        "float32", or "auto" for the dtype that is stored.
    """
    if device != "cpu":
        return "auto"
    here = hardware()
    native = {"avx512_bf16", "avx512_fp16", "amx_bf16"} & {*here["instruction_sets"]}
    if native or here["architecture"] != "x86_64":
        return "auto"
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return "float32" if 2 * directory.nbytes < free / 2 else "auto"


def _require_token_ids(model: PreTrainedModel, path: Path) -> None:
    """Raises CheckpointError where a generation could not know its end."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        found = getattr(model.generation_config, name, None)
        ids = found if isinstance(found, list) else [found]
        if found is not None and not all(type(each) is int for each in ids):
            raise CheckpointError(
                f"{name} of {path} is {found!r:.100}, in generation_config.json or config.json: "
                "ids of tokens are integers. Fetch the model again"
            )


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model.

    Raises:
        ValueError: If there is none.
    """
    transformers = _transformers()
    try:
        # None would ask on the terminal whether to run the code of a stranger.
        return transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path} has no tokenizer that transformers can load ({error}): copy tokenizer.json "
            "and tokenizer_config.json from its source model"
        ) from error


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ImportError(
            "this command needs transformers: pip install transformers accelerate"
        ) from None
    # Commands show their own progress, and only on a terminal.
    transformers.utils.logging.disable_progress_bar()
    return transformers
