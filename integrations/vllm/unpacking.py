# SPDX-License-Identifier: Apache-2.0
"""What vLLM reads is made dense where its model, or its loaders, can take nothing else.

vLLM asks a quantization method about most layers of most models. Some it creates without asking:
those of a mamba mixer, a plain nn.Linear in the pooler of BERT. Packed tensors have no place in
these, so the model is given the dense weight instead. The same goes for weights that other tools
keep in layouts of theirs, which vLLM's loaders do not know.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from vllm.config import get_current_vllm_config_or_none

from flashsparse_plugin.checkpoint.files.headers import aligned
from flashsparse_plugin.checkpoint.files.unmarked import refuse_unmarked
from flashsparse_plugin.checkpoint.foreign import PRUNE_MASKS, dense_weights
from flashsparse_plugin.checkpoint.foreign.quantization import is_quantized
from flashsparse_plugin.checkpoint.foreign.sparsity_config import KEYS, is_sparse_alone, layout_of
from flashsparse_plugin.checkpoint.read.experts import Stack
from flashsparse_plugin.checkpoint.read.linears import StoredModel
from flashsparse_plugin.checkpoint.read.together import as_in_files, merged, whole_in_files
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.messages import one_line
from flashsparse_plugin.names import QUANT_METHOD
from flashsparse_plugin.packed import FormatError, PackedWeight

from .codes import as_packed_tensors, directory_of
from .experts import SHARDS, SparseExpertsMethod
from .folder import folder_of
from .head import refuse_unpacked_head
from .linear import SparseLinearMethod
from .preflight import packed_layers
from .settings import SettingsError, settings_of
from .summary import logger

_EXPERT = re.compile(
    r"(.+)\.(?P<number>\d+)\.(?P<projection>gate|down|up)_proj\.(?P<own>(?!weight$|bias$)\w+)",
    re.ASCII,
)


def install() -> None:
    """Wraps the step in which vLLM reads a checkpoint, once."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    inner = DefaultModelLoader.get_all_weights
    if hasattr(inner, "__wrapped__"):
        return

    loaded: WeakSet[nn.Module] = WeakSet()

    @functools.wraps(inner)
    def get_all_weights(self: Any, model_config: Any, model: nn.Module) -> Iterable[Any]:
        weights = inner(self, model_config, model)
        for layout in PRUNE_MASKS:
            weights = dense_weights(weights, layout)
        if model_config.quantization is None:
            return _none_packed(weights, Path(model_config.model))
        if model_config.quantization != QUANT_METHOD:
            return weights
        if model in loaded:
            raise SettingsError(
                "the weights of packed layers cannot be replaced in a running engine "
                "(reload_weights): restart it with the other checkpoint"
            )
        loaded.add(model)
        engine = get_current_vllm_config_or_none()
        if engine is not None:
            refuse_unpacked_head(model, settings_of(engine.additional_config).get("head"))
        weights = ((name, aligned(tensor)) for name, tensor in weights)
        folder = folder_of(model_config, self.load_config)
        weights = as_packed_tensors(weights, folder)
        weights = _foreign_as_dense(weights, model_config.hf_config)
        weights = _without_biased_experts(weights, model)
        unasked = _unasked(packed_layers(folder), _methods(model))
        return _unpacked(weights, model_config, folder, unasked) if unasked else weights

    DefaultModelLoader.get_all_weights = get_all_weights


def _foreign_as_dense(weights: Iterable[tuple[str, Tensor]], hf_config: Any) -> Iterable[Any]:
    for key in KEYS:
        found = getattr(hf_config, key, None)
        layout = layout_of(found) if is_sparse_alone(found) or is_quantized(found) else None
        if layout is not None:
            return dense_weights(weights, layout)
    return weights


def _methods(model: nn.Module) -> list[SparseLinearMethod | SparseExpertsMethod]:
    found = [getattr(module, "quant_method", None) for module in model.modules()]
    return [each for each in found if isinstance(each, SparseLinearMethod | SparseExpertsMethod)]


def _without_biased_experts(
    weights: Iterable[tuple[str, Tensor]], model: nn.Module
) -> Iterator[tuple[str, Tensor]]:
    """Yields what vLLM reads, but for packed experts with biases, which their layers are given.

    vLLM's loader of such a model (gpt-oss) knows experts as one tensor.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(method := getattr(module, "quant_method", None), SparseExpertsMethod)
        and method.has_bias
    ]
    for key, tensor in weights:
        found = _EXPERT.fullmatch(key) if layers else None
        layer = found and next((x for x in layers if _same(x.quant_method.name, found[1])), None)
        if layer is None or found is None:
            yield key, tensor
        else:
            shard = SHARDS[f"{found['projection']}_proj"]
            layer.quant_method.take(layer, int(found["number"]), shard, found["own"], tensor)


def _same(one: str, other: str) -> bool:
    """Whether names are of one module, though a model may add a prefix or drop it."""
    return f".{one}".endswith(f".{other}") or f".{other}".endswith(f".{one}")


def _none_packed(
    weights: Iterable[tuple[str, Tensor]], model: Path
) -> Iterator[tuple[str, Tensor]]:
    """Yields what vLLM reads, and refuses a packed tensor, which config.json does not speak of."""
    for name, tensor in weights:
        refuse_unmarked([name], None, model)
        yield name, tensor


def _unasked(packed: Iterable[str], methods: Iterable[Any]) -> set[str]:
    """Packed layers of a checkpoint that none of our methods stands ready for.

    A model may add a prefix to the names in the file, or drop it. A layer that is named here by
    mistake is unpacked and packed again, and otherwise the same.
    """
    known = {
        name
        for method in methods
        if isinstance(method, SparseLinearMethod)
        for name in (method.name, *method.names)
    }
    experts = {x.name for x in methods if isinstance(x, SparseExpertsMethod)}

    def is_known(layer: str) -> bool:
        if any(
            f".{n}.".endswith(f".{layer.rpartition('.')[0].rpartition('.')[0]}.") for n in experts
        ):
            return True
        return any(_same(n, layer) for n in known)

    return {layer for layer in packed if not is_known(layer)}


def _unpacked(
    weights: Iterable[tuple[str, Tensor]], model_config: Any, folder: Path, layers: set[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yields what vLLM reads, with a dense weight in the place of the tensors of some layers."""
    directory = directory_of(folder)
    stored = model_config.hf_config.quantization_config
    config = FlashSparseConfig(**(directory.quantization if is_quantized(stored) else stored))
    model = StoredModel(directory)
    linears = {x.stored: x for x in model.linears}
    logger.warning(
        "%d packed layers are unpacked while they load, as vLLM's %s takes them dense (%s, ...)",
        len(layers),
        model_config.architecture,
        one_line(min(layers)),
    )
    waiting: dict[str, dict[str, Tensor]] = {}
    experts: dict[Stack, dict[tuple[int, str], Tensor]] = {}  # of one tensor, not complete yet
    for key, tensor in weights:
        layer, _, own = key.rpartition(".")
        if layer not in layers or own == "bias":
            yield key, tensor
            continue
        tensors = waiting.setdefault(layer, {})
        tensors[own] = tensor
        linear = linears[layer]
        scheme = config.scheme_of(*linear.names, layer)
        assert scheme is not None  # the front end refuses a packed layer that is called dense
        if tensors.keys() == scheme.format.tensors(scheme, linear.shape).keys():
            packed = PackedWeight(scheme, linear.shape, waiting.pop(layer)).validate(layer)
            stack = whole_in_files(model, linear.expert)
            if stack is None or linear.expert is None:
                yield f"{layer}.weight", linear.turned(packed.unpack())
                continue
            found = experts.setdefault(stack, {})
            found[linear.expert.number, linear.expert.projection] = packed.unpack()
            if len(found) == len([*stack.named()]):
                name, _, turned = as_in_files(model, stack)
                found = experts.pop(stack)
                yield name, merged(stack, [found[place] for place in stack.named()], turned)
    for layer in [*waiting, *(stack.parameter for stack in experts)]:
        raise FormatError(f"layer {layer!r}: the checkpoint lacks some of its packed tensors")
