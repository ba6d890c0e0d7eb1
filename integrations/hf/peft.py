# SPDX-License-Identifier: Apache-2.0
"""LoRA on packed layers: `get_peft_model` takes SparseLinear as it takes nn.Linear.

The packed weight stays frozen; the gradient passes through it to earlier layers. Adapters of other
kinds, which peft has for its own list of layers, are refused before any layer is replaced.
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
from peft.tuners.mixed.model import MixedModel
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import INCLUDE_LINEAR_LAYERS_SHORTHAND, PeftType
from torch import nn

from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.wrapping import wrap_once

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
    # All that merges asks the former first, but for the latter, which does not.
    wrap_once(BaseTuner, "_check_merge_allowed", _before_merging)
    wrap_once(MixedModel, "_unload_and_optionally_merge", _before_merging)
    wrap_once(MixedModel, "_replace_module", _packed_as_it_is)


def _with_packed_layers(inner: Callable[[Any, nn.Module], Any]) -> Callable[[Any, nn.Module], Any]:
    """Wraps what resolves `target_modules="all-linear"`, which knows nn.Linear and Conv1D alone.

    It is called for every kind of adapter, before any is put on a layer.
    """

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
        if config.peft_type != PeftType.LORA:
            _refuse_packed_layers(config, model)
        return config

    return include


def _refuse_packed_layers(config: Any, model: nn.Module) -> None:
    """Raises ValueError where an adapter that is not LoRA would be put on packed layers."""
    packed = [
        name
        for name, module in model.named_modules()
        if isinstance(module, SparseLinear)
        and tuners_utils.check_target_module_exists(config, name)
    ]
    if packed:
        more = f" and {len(packed) - 1} more" if len(packed) > 1 else ""
        raise ValueError(
            f"peft has no {config.peft_type.value} adapter for packed layers, such as layer "
            f"{packed[0]!r}{more}. Remedy: LoraConfig, with or without use_dora; target_modules "
            "that are dense; or a dense model, by FlashSparseConfig(dequantize=True)"
        )


def _before_merging(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps what peft runs before it merges, or what merges, to refuse before a layer is changed.

    Dense layers may have adapters, too, and those before the first packed layer would be merged
    by the time that it refuses.
    """

    def checked(tuner: BaseTuner, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("merge", args[0] if args else True):
            packed = [n for n, m in tuner.model.named_modules() if isinstance(m, SparseLoraLinear)]
            if packed:
                more = f" and {len(packed) - 1} more" if len(packed) > 1 else ""
                _refuse_to_merge(f"the packed weight of layer {packed[0]!r}{more}")
        return inner(tuner, *args, **kwargs)

    return checked


def _packed_as_it_is(inner: Callable[..., None]) -> Callable[..., None]:
    """Wraps what puts a layer back by assigning its weight to it, which a packed one lacks."""

    def replace(tuner: Any, parent: nn.Module, name: str, new: nn.Module, old: nn.Module) -> None:
        if isinstance(new, SparseLinear):
            setattr(parent, name, new)
        else:
            inner(tuner, parent, name, new, old)

    return replace


def _refuse_to_merge(where: str) -> NoReturn:
    raise ValueError(
        f"a LoRA adapter cannot be merged into {where}: the sum has no zeros. Nothing has been "
        "changed. Remedy: keep the adapter separate, or load the model with "
        "FlashSparseConfig(dequantize=True) and merge into that"
    )


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
        _refuse_to_merge("a packed weight")

    def __repr__(self) -> str:
        return super().__repr__().replace("lora.", "lora.flashsparse.", 1)
