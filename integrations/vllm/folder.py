# SPDX-License-Identifier: Apache-2.0
"""Where the files of a served model are: its own directory, or its snapshot in the Hub's cache."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from flashsparse_plugin.checkpoint.files.folder import INDEX
from flashsparse_plugin.checkpoint.files.places import CONFIG

logger = logging.getLogger("vllm.flashsparse")


def folder_of(model_config: Any, load_config: Any) -> Path | None:
    """The directory with a model's config.json and safetensors files; None where there is none.

    What is on the Hub is fetched as vLLM would do a moment later, into the same cache.
    """
    path = Path(model_config.model)
    if path.is_dir():
        return path
    return _fetched(model_config.model, model_config.revision, load_config.download_dir)


@cache
def _fetched(name: str, revision: str | None, cache_dir: str | None) -> Path | None:
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=[CONFIG, INDEX, "*.safetensors"],
                ignore_patterns=["*/*"],
            )
        )
    except (OSError, ValueError) as error:  # another store, or away; vLLM says so if it minds
        logger.warning("%s is not checked before loading: %s", name, error)
        return None
