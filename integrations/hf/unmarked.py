# SPDX-License-Identifier: Apache-2.0
"""Packed checkpoints whose config.json does not say so are noticed when transformers loads them.

transformers asks a quantization method only where config.json names it and where it knows it.
Otherwise our tensors are unexpected to it, the layers' weights are missing, and the model runs on
random numbers. The same goes for tensors that other tools keep for a weight: these become the
weight here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from flashsparse_plugin.names import QUANT_METHOD
from flashsparse_plugin.wrapping import wrap_once


def register() -> None:
    """Wraps the step in which transformers reads the files; calling it again changes nothing.

    Raises:
        AttributeError: Where this transformers has no such step.
    """
    wrap_once(PreTrainedModel, "_load_pretrained_model", _looking_first)


def _looking_first(inner: Callable[..., Any]) -> Callable[..., Any]:
    def load(
        model: PreTrainedModel, state_dict: Any, checkpoint_files: Any, *args: Any, **kwargs: Any
    ) -> Any:
        config = getattr(model.config, "quantization_config", None)
        method = config.get("quant_method") if isinstance(config, dict) else config
        method = getattr(method, "quant_method", method)
        # Imported when a model is loaded: transformers must not get slower to import.
        from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

        from flashsparse_plugin.checkpoint.files.headers import (
            CheckpointError,
            sealed_names,
            tensor_names,
        )
        from flashsparse_plugin.checkpoint.files.unmarked import refuse_unmarked

        if method != QUANT_METHOD:
            quantization = None if config is None else {"quant_method": method}
            files = checkpoint_files or []
            home = Path(*files[:1]).parent
            refuse_unmarked(tensor_names(files), quantization, home, sealed_names(files))
        elif QUANT_METHOD not in AUTO_QUANTIZER_MAPPING:
            raise CheckpointError(
                f"{model.config.name_or_path} is packed by flashsparse, whose registration with "
                "transformers is disabled. Remedy: unset FLASHSPARSE_AUTOLOAD, or call "
                "flashsparse_plugin.integrations.hf.register()"
            )
        if state_dict is None:
            from .foreign import shown_state_dict

            quantizer = getattr(args[0], "hf_quantizer", None) if args else None
            state_dict = shown_state_dict(model, checkpoint_files, quantizer)
        return inner(model, state_dict, checkpoint_files, *args, **kwargs)

    return load
