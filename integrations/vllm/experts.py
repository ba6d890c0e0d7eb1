# SPDX-License-Identifier: Apache-2.0
"""A vLLM layer of experts on packed weights.

vLLM hands over the tensors of one expert after the other, each with the number of the expert and
"w1", "w2" or "w3": gate, down and up. An expert is cut for this process and prepared once all of
its tensors are there, so that no more than one is in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase
from vllm.model_executor.utils import set_weight_attrs

from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.expert_layout import Layout
from flashsparse_plugin.experts import SWIGLUOAI, Activation, ExpertStack, multiply
from flashsparse_plugin.formats.values.dtypes import fitted
from flashsparse_plugin.packed import FormatError, PackedWeight, Scheme
from flashsparse_plugin.pruning import prune_for

from .caching import LENGTHS, count_into_cache_key
from .loading import made_up
from .settings import DUMMY, SettingsError
from .summary import Summary

# Of the gate, times up, by vLLM's names; of gpt-oss's the rows of gate and up may alternate.
_GATED = ("silu", "gelu", "gelu_tanh")
_ALTERNATING, _ROW_BY_ROW = "swigluoai", "swigluoai_uninterleave"
_PARTS = {"w13": ("w1", "w3"), "w2": ("w2",)}
SHARDS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
"""What vLLM calls the projections of an expert."""
Key = tuple[int, str]
"""An expert of this process by its number, and "w1", "w2" or "w3"."""


class SparseExpertsMethod(FusedMoEMethodBase):
    """How vLLM creates, loads and runs the experts of one layer.

    Args:
        moe: vLLM's configuration of the layer.
        layer: The layer.
        name: Its name.
        config: How to prune and pack.
        scheme_of: The scheme of "w1", "w2" or "w3", packed in the given dtype where that is open.
        summary: Where to take note of what became of it.
    """

    def __init__(
        self,
        moe: Any,
        layer: nn.Module,
        name: str,
        config: FlashSparseConfig,
        scheme_of: Callable[[str, torch.dtype], Scheme],
        summary: Summary,
    ):
        super().__init__(moe)
        self.name, self.config, self.scheme_of, self.summary = name, config, scheme_of, summary
        self.activation, self.has_bias = _refuse_unknown(moe, layer, name), has_bias(moe)
        self.biases = Layout(interleaved=called(layer) == _ALTERNATING)
        self.schemes: dict[str, Scheme] = {}
        self.tensors: dict[Key, dict[str, Tensor]] = {}  # of packed experts not complete yet
        self.parts: dict[Key, PackedWeight] = {}
        self.stacks: dict[str, ExpertStack] = {}  # without tensors, which the layer has
        summary.expected += 1

    def create_weights(
        self,
        layer: nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        self.experts, self.hidden = num_experts, hidden_size
        self.inner, self.dtype = intermediate_size_per_partition, params_dtype
        self.device = torch.empty(0).device  # vLLM creates a model under that which it will run on
        for stem, shards in _PARTS.items():
            schemes = {self.scheme_of(shard, params_dtype) for shard in shards}
            if len(schemes) > 1:
                raise SettingsError(
                    f"the gate and up projections of the experts of {self.name!r} are packed "
                    f"differently ({' and '.join(map(str, schemes))}), and are one product here. "
                    "Convert the model again with one scheme for both"
                )
            (scheme,) = schemes
            self.schemes |= dict.fromkeys(shards, scheme)
            for own in ("weight", *scheme.format.tensors(scheme, self._whole(shards[0]))):
                placeholder = Parameter(torch.empty(0), requires_grad=False)
                placeholder.weight_loader = self._loader(layer, own)
                layer.register_parameter(f"{stem}_{own}", placeholder)
            if self.has_bias:
                rows = self.hidden if stem == "w2" else 2 * self.inner
                bias = Parameter(torch.zeros(num_experts, rows, dtype=params_dtype), False)
                set_weight_attrs(bias, extra)
                layer.register_parameter(f"{stem}_bias", bias)

    def get_fused_moe_quant_config(self, layer: nn.Module) -> None:
        return None

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Is called when the whole checkpoint was read (and by some loaders more than once)."""
        if self.stacks:
            return
        vllm_config = get_current_vllm_config()
        if vllm_config.load_config.load_format == DUMMY:
            self._make_up()
        for number in range(self.experts):
            for shard in ("w1", "w2", "w3"):
                if (number, shard) not in self.parts:
                    raise FormatError(
                        f"expert {number} of {self.name!r}: its {shard} "
                        f"{list(self._whole(shard))} is not in the checkpoint. Fetch it again, or "
                        "convert the model again with `flashsparse convert`"
                    )
        for name in [own for own, _ in layer.named_parameters(recurse=False) if _is_ours(own)]:
            delattr(layer, name)
        if self.has_bias:
            layer.w13_bias = Parameter(self.biases.gate_first(layer.w13_bias.data, 2), False)
        for stem, shards in _PARTS.items():
            format = self.schemes[shards[0]].format
            joined = [
                format.join([self.parts.pop((number, shard)) for shard in shards])
                for number in range(self.experts)
            ]
            stack = ExpertStack.of(joined).prepare(self.device, len(shards))
            self._hold(layer, stem, stack, vllm_config)
        self.summary.finish_layer()

    def apply(
        self,
        layer: nn.Module,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any = None,
        shared_experts_input: Tensor | None = None,
    ) -> Tensor:
        w13, w2 = (self._stack(layer, stem) for stem in _PARTS)
        places = getattr(layer, "expert_map", None)
        on_input = getattr(layer, "apply_router_weight_on_input", False)
        act = self.activation
        return multiply(
            *(x, topk_ids, topk_weights, w13, w2, act.name),
            w13_bias=layer.w13_bias if self.has_bias else None,
            w2_bias=layer.w2_bias if self.has_bias else None,
            expert_map=places,
            limit=act.limit,
            alpha=act.alpha,
            weights_on_input=on_input,
        )

    # Loading.

    def _whole(self, shard: str) -> tuple[int, int]:
        """(out_features, in_features) of a projection on disk."""
        inner = self.inner * self.moe.moe_parallel_config.tp_size
        return (self.hidden, inner) if shard == "w2" else (inner, self.hidden)

    def _make_up(self) -> None:
        """Gives all experts the same random numbers and zeros, where no weights are read."""
        sparsity = self.config.sparsity
        assert sparsity is not None  # refused before
        for shard, scheme in self.schemes.items():
            shape = (self.hidden, self.inner) if shard == "w2" else (self.inner, self.hidden)
            weight = made_up(shape, scheme, sparsity, self.device)
            packed = self._pack(f"{self.name}.0.{shard}", weight, shape, scheme)
            self.parts |= {(number, shard): packed for number in range(self.experts)}

    def _loader(self, layer: nn.Module, own: str) -> Callable[..., bool | None]:
        def load(
            param: Parameter,
            loaded_weight: Tensor,
            weight_name: str,
            shard_id: str,
            expert_id: int,
            return_success: bool = False,
        ) -> bool | None:
            number = layer._map_global_expert_id_to_local_expert_id(expert_id)
            if number != -1:
                self._take((number, shard_id), own, loaded_weight, expert_id)
            return number != -1 if return_success else None

        load.supports_moe_loading = True  # type: ignore[attr-defined]
        return load

    def take(self, layer: nn.Module, number: int, shard: str, own: str, tensor: Tensor) -> None:
        """Takes a packed tensor of an expert that vLLM's loader of the model does not know.

        Args:
            layer: The layer of this method.
            number: Of the expert, among all of the model.
            shard: "w1", "w2" or "w3".
            own: The name of the tensor.
            tensor: The tensor.
        """
        load = self._loader(layer, own)
        load(layer.w2_weight, tensor, own, shard, number)

    def _take(self, key: Key, own: str, tensor: Tensor, expert: int) -> None:
        """Takes one tensor of an expert; cuts out this process's part once it is complete."""
        number, shard = key
        name, shape = f"{self.name}.{expert}.{shard}", self._whole(shard)
        scheme = self.schemes[shard]
        names = scheme.format.tensors(scheme, shape)
        waiting = self.tensors.setdefault(key, {})
        if key in self.parts or own in waiting or (own == "weight" and waiting):
            raise FormatError(
                f"expert {name!r} {list(shape)}: the checkpoint has it twice. Fetch it again, or "
                "convert the model again with `flashsparse convert`"
            )
        if own == "weight":
            whole = self._pack(name, tensor, shape, scheme)
        else:
            waiting[own] = tensor.clone()
            if waiting.keys() != names.keys():
                return
            whole = PackedWeight(scheme, shape, waiting).validate(name)
        del self.tensors[key]
        rank = self.moe.moe_parallel_config.tp_rank
        mine, all_hidden = range(rank * self.inner, (rank + 1) * self.inner), range(self.hidden)
        rows, columns = (all_hidden, mine) if shard == "w2" else (mine, all_hidden)
        try:
            self.parts[key] = scheme.format.cut(whole, rows, columns)
        except FormatError as error:
            raise FormatError(f"expert {name!r} {list(shape)}: {error}") from None

    def _pack(
        self, name: str, weight: Tensor, shape: tuple[int, int], scheme: Scheme
    ) -> PackedWeight:
        if tuple(weight.shape) != shape:
            raise FormatError(
                f"expert {name!r}: the checkpoint has {list(weight.shape)}, the model "
                f"{list(shape)}. Is it another model's?"
            )
        if self.config.pruning == "magnitude":
            weight = prune_for(weight, scheme, self.config.sparsity, name)
        try:
            return scheme.format.pack(fitted(weight, scheme, name).contiguous(), scheme)
        except FormatError as error:
            raise FormatError(
                f"expert {name!r} {list(shape)} cannot be packed as {scheme}: {error}. Remedy: "
                'leave out "experts": "packed"'
            ) from None

    # Running.

    def _hold(
        self, layer: nn.Module, stem: str, stack: ExpertStack, vllm_config: VllmConfig
    ) -> None:
        self.summary.add(f"{self.name}.{stem}", stack)
        self.summary.packed -= stem != "w2"  # a layer is one
        for own, tensor in stack.tensors.items():
            layer.register_parameter(f"{stem}_{own}", Parameter(tensor, requires_grad=False))
            count_into_cache_key(vllm_config, LENGTHS, f"{self.name}.{stem}_{own}", len(tensor))
        layer.register_buffer(f"{stem}_bounds", stack.bounds, persistent=False)
        self.stacks[stem] = replace(stack, tensors={})
        self._names = {**getattr(self, "_names", {}), stem: tuple(stack.tensors)}

    def _stack(self, layer: nn.Module, stem: str) -> ExpertStack:
        held = self.stacks[stem]
        tensors = {own: getattr(layer, f"{stem}_{own}") for own in self._names[stem]}
        bounds = getattr(layer, f"{stem}_bounds")
        return ExpertStack(held.scheme, held.shape, tensors, bounds, held.sides, held.written)


def _is_ours(name: str) -> bool:
    return name.startswith(("w13_", "w2_")) and not name.endswith("_bias")


def has_bias(moe: Any) -> bool:
    """Whether experts have biases, by vLLM's configuration of their layer."""
    return bool(getattr(moe, "has_bias", False))


def called(layer: nn.Module) -> str:
    """What vLLM calls the activation of a layer of experts."""
    activation = getattr(layer, "activation", "silu")
    return str(getattr(activation, "value", activation)).lower()


def activation_of(moe: Any, layer: nn.Module) -> Activation | None:
    """The activation of a layer of experts; None for one that packed experts do not have."""
    name, limit = called(layer), getattr(moe, "swiglu_limit", None)
    if name == _ALTERNATING:
        return Activation(SWIGLUOAI, 7.0, 1.702)
    if name == _ROW_BY_ROW and getattr(moe, "swiglu_beta", None) == 1:
        return Activation(SWIGLUOAI, limit or 0.0, getattr(moe, "swiglu_alpha", None) or 1.0)
    return Activation(name, limit or 0.0) if name in _GATED else None


def _refuse_unknown(moe: Any, layer: nn.Module, name: str) -> Activation:
    """Returns the activation of a layer that packed experts can run.

    Raises:
        SettingsError: For what they cannot.
    """
    activation, why = activation_of(moe, layer), None
    if activation is None:
        known = ", ".join((*_GATED, _ALTERNATING))
        why = f"their activation {called(layer)!r} is not one of {known}"
    elif getattr(moe, "is_lora_enabled", False):
        why = "LoRA on experts needs dense ones"
    if activation is None or why is not None:
        raise SettingsError(
            f"the experts of {name!r} cannot run packed: {why}. Remedy: "
            'additional_config={"flashsparse": {"experts": "dense"}} unpacks them while they load'
        )
    return activation
