# SPDX-License-Identifier: Apache-2.0
"""LoRA on packed layers: `get_peft_model` takes SparseLinear as it takes nn.Linear.

The packed weight stays frozen; the gradient passes through it to earlier layers.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from peft.tuners import tuners_utils
from peft.tuners.lora.config import LoraConfig
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import INCLUDE_LINEAR_LAYERS_SHORTHAND
from torch import nn

from flashsparse_plugin.linear import SparseLinear

# Initialisations of the adapter alone; others (PiSSA, OLoRA, LoftQ, ...) rewrite the base weight.
_INITS = (True, False, "gaussian", "orthogonal", "eva")


def register() -> None:
    """Gives every LoraConfig our layer as a custom module; calling it again changes nothing.

    peft's own extension point, `LoraConfig._register_custom_module`, is per object, and users
    should not need to know it.
    """
    if getattr(LoraConfig.__post_init__, "knows_flashsparse", False):
        return
    if "config" not in inspect.signature(LoraLinear.__init__).parameters:
        raise ImportError("LoRA on packed layers needs peft 0.19 or newer: pip install -U peft")
    original = LoraConfig.__post_init__

    def __post_init__(self: LoraConfig) -> None:
        original(self)
        self._register_custom_module({SparseLinear: SparseLoraLinear})

    __post_init__.knows_flashsparse = True
    LoraConfig.__post_init__ = __post_init__
    tuners_utils._maybe_include_all_linear_layers = _with_packed_layers(
        tuners_utils._maybe_include_all_linear_layers
    )


def _with_packed_layers(inner: Callable[[Any, nn.Module], Any]) -> Callable[[Any, nn.Module], Any]:
    """Wraps what resolves `target_modules="all-linear"`, which knows nn.Linear and Conv1D alone."""

    @functools.wraps(inner)
    def include(config: Any, model: nn.Module) -> Any:
        asked = getattr(config, "target_modules", None)
        config = inner(config, model)
        if isinstance(asked, str) and asked.lower() == INCLUDE_LINEAR_LAYERS_SHORTHAND:
            adapted = [name for name, m in model.named_modules() if isinstance(m, BaseTunerLayer)]
            head = getattr(model, "get_output_embeddings", lambda: None)()
            config.target_modules |= {
                name
                for name, module in model.named_modules()
                if isinstance(module, SparseLinear)
                and module is not head
                and not any(name.startswith(f"{layer}.") for layer in adapted)
            }
        return config

    return include


class SparseLoraLinear(LoraLinear):
    """A LoRA adapter around a SparseLinear (Hu et al., 2021, arXiv 2106.09685)."""

    def __init__(self, base_layer: Any, adapter_name: str, config: LoraConfig, **kwargs: Any):
        self._require_frozen(config)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Unsupported layer type", UserWarning)
            super().__init__(base_layer, adapter_name, config=config, **kwargs)

    def update_layer(self, *args: Any, config: LoraConfig, **kwargs: Any) -> None:
        self._require_frozen(config)
        super().update_layer(*args, config=config, **kwargs)

    @staticmethod
    def _require_frozen(config: LoraConfig) -> None:
        if config.init_lora_weights not in _INITS:
            raise ValueError(
                f"init_lora_weights={config.init_lora_weights!r} rewrites the base weight, and a "
                f"packed weight is frozen. Remedy: one of {_INITS}, or model.dequantize() first"
            )

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> NoReturn:
        raise ValueError(
            "a LoRA adapter cannot be merged into a packed weight: the sum has no zeros. Remedy: "
            "keep the adapter separate, or load the model with FlashSparseConfig(dequantize=True) "
            "and merge into that"
        )

    def __repr__(self) -> str:
        return super().__repr__().replace("lora.", "lora.flashsparse.", 1)
