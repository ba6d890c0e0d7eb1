# SPDX-License-Identifier: Apache-2.0
"""Which layers are sparse: vLLM asks this configuration for the method of each of its layers."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import nn
from vllm import envs
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.linear import (
    LinearBase,
    ReplicatedLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.platforms import current_platform

from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
from flashsparse_plugin.checkpoint.foreign.quantization import has_idle_sparsity, is_quantized
from flashsparse_plugin.checkpoint.foreign.sparsity_config import KEYS, is_sparse_alone
from flashsparse_plugin.config import QUANT_METHOD, FlashSparseConfig
from flashsparse_plugin.experts import why_dense
from flashsparse_plugin.matching import matches
from flashsparse_plugin.names import AUTO
from flashsparse_plugin.packed import FormatError, Scheme
from flashsparse_plugin.roles import HEAD, ROUTER, called_head, called_router

from .codes import take
from .compat import allow_matrix_registers, is_experts, is_router
from .decode_kernels import use_decode_kernels
from .decode_sampling import use_graph_sampling
from .dense import DenseHeadMethod, DenseLinearMethod
from .early_begin import begin_early
from .experts import SHARDS, SparseExpertsMethod, activation_of, has_bias
from .folder import folder_of
from .head import TiedEmbeddingMethod, TiedHeadMethod
from .linear import SparseLinearMethod
from .loading import refuse_reordered
from .preflight import packed_layers
from .settings import DUMMY, METHOD, SettingsError, first_line, merge, settings_of
from .summary import Summary, logger

# Gate, down and up projection of experts, as checkpoints call them.
_PROJECTIONS = (tuple(SHARDS), tuple(SHARDS.values()))
EXPERTS_DENSE = (
    "%s: packed experts are unpacked while they load: %s, and one launch for each expert is slower "
    'than dense. "experts": "packed" keeps them packed'
)


class FlashSparseQuantization(QuantizationConfig):
    """The quantization method `flashsparse` of one model.

    Args:
        stored: `quantization_config` of the checkpoint, or of `hf_overrides`. vLLM gives none for
            a dense checkpoint, which is then packed while it loads. That of one that another tool
            quantized is replaced by ours once its files are known.
        foreign: Whether it is a sparse checkpoint of another tool, which counts as dense.
    """

    def __init__(self, stored: FlashSparseConfig | None = None, foreign: bool = False):
        super().__init__()
        self.stored, self.foreign = stored, foreign
        self.config: FlashSparseConfig | None = None  # once the user's settings are merged in
        self.mapper: Any = None
        self.summary = Summary()

    def __repr__(self) -> str:
        return f"FlashSparseQuantization({self.stored!r})"

    # What vLLM asks before there is a model.

    @classmethod
    def get_name(cls) -> str:
        return QUANT_METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []  # config.json says it all

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FlashSparseQuantization:
        if is_sparse_alone(config):
            return cls(foreign=True)
        if is_quantized(config):
            return cls(QuantizedConfig.of(config, FlashSparseConfig()))
        try:
            stored = FlashSparseConfig(**config)
            stored.refuse_open("config.json")
            return cls(stored)
        except ValueError as error:
            raise SettingsError(f"config.json: {first_line(error)}") from None

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None, **kwargs: Any
    ) -> str | None:
        """Takes sparse checkpoints of other tools, which vLLM refuses: to us they are dense.

        Quantized ones are packed, where they say that they have zeros, or where we are asked for.
        All others are vLLM's. Those that have a `sparsity_config` to no purpose lose it here, as
        vLLM refuses any: every method is asked of every checkpoint before it is read.
        """
        if user_quant in (None, QUANT_METHOD):
            asked = FlashSparseConfig() if user_quant == QUANT_METHOD else None
            if is_sparse_alone(hf_quant_cfg) or QuantizedConfig.of(hf_quant_cfg, asked):
                return QUANT_METHOD
        if has_idle_sparsity(hf_quant_cfg):
            logger.info(
                "sparsity_config in config.json is ignored: no weight of this checkpoint is stored "
                "sparse, and vLLM would refuse it"
            )
            for holder in (hf_config, getattr(hf_config, "text_config", None)):
                for found in (hf_quant_cfg, *(getattr(holder, key, None) for key in KEYS)):
                    if has_idle_sparsity(found):
                        del found["sparsity_config"]
        return None

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Renames what the configuration names, where vLLM's modules are called otherwise."""
        if self.stored is None:
            return
        if isinstance(self.stored, QuantizedConfig):
            self.mapper = hf_to_vllm_mapper  # for what is known later
            return
        patterns = [name for name in self.stored.ignore if name.startswith("re:")]
        names = [name for name in self.stored.ignore if not name.startswith("re:")]
        self.stored.ignore = [*patterns, *hf_to_vllm_mapper.apply_list(names)]
        self.stored.layers = hf_to_vllm_mapper.apply_dict(self.stored.layers)

    # What vLLM asks for each layer.

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        vllm_config = get_current_vllm_config()
        self.settle(vllm_config)
        use_decode_kernels(vllm_config, not self.config.dequantize)  # before the first norm is made
        if is_experts(layer):
            return self._experts_method(layer, prefix)
        is_head = isinstance(layer, ParallelLMHead)
        is_embedding = isinstance(layer, VocabParallelEmbedding) and not is_head
        if not (is_head or is_embedding or isinstance(layer, LinearBase)):
            return None
        if is_embedding:
            return self._embedding_method(layer, prefix, vllm_config)
        if is_head and self._packs_head():
            if _ties_head(vllm_config):
                asked = "head" in settings_of(vllm_config.additional_config)
                return TiedHeadMethod(prefix, self.summary, asked)
            self._place_head(prefix)
        # Known here where the files are at hand, and in any case once a layer's tensors arrive.
        packed = packed_layers(folder_of(vllm_config.model_config, vllm_config.load_config))
        role = None if is_head else self._role(layer, prefix, packed)
        names, reason = ([], role) if role else self._packed_as(prefix, is_head)
        if names:
            if not self.config.dequantize:
                begin_early(vllm_config)
                use_graph_sampling()
            if prefix in packed:
                refuse_reordered(layer, prefix, self._scheme_of(names[0], prefix))
            return SparseLinearMethod(
                self.config, names, prefix, self.summary, beside=bool(packed), is_head=is_head
            )
        self.summary.left_dense(prefix, reason)
        if current_platform.is_cuda():
            method = DenseHeadMethod if is_head else DenseLinearMethod
            return method(prefix, self.summary, vllm_config, plain=self.config.dequantize)
        return None if is_head else UnquantizedLinearMethod()

    def _packs_head(self) -> bool:
        return self.config.head is not None and not self.config.dequantize

    def _place_head(self, name: str) -> None:
        try:
            self.config.place_head(name)
        except FormatError as error:
            raise SettingsError(str(error)) from None

    def _embedding_method(
        self, layer: nn.Module, prefix: str, vllm_config: VllmConfig
    ) -> QuantizeMethodBase | None:
        """A method for the embedding whose packed weight the output head shares; else vLLM's."""
        text_config = vllm_config.model_config.hf_text_config
        is_whole = layer.org_vocab_size == getattr(text_config, "vocab_size", None)
        if not (self._packs_head() and _ties_head(vllm_config) and is_whole):
            return None
        name = prefix or "embed_tokens"
        self._place_head(name)
        return TiedEmbeddingMethod(self.config, [name], name, self.summary, is_head=True)

    def _experts_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """How experts run; None for dense ones, which packed ones are unpacked to as they load."""
        vllm_config, config = get_current_vllm_config(), self.config
        packed = packed_layers(folder_of(vllm_config.model_config, vllm_config.load_config))
        stored = [name for name in packed if name.startswith(f"{prefix}.")]
        named = config.named(f"{prefix}.0", prefix)
        dense = config.dequantize or config.experts == "dense"
        if self.stored is None:  # a dense checkpoint, whose experts are packed only where asked
            listed = named is None and matches(f"{prefix}.0", config.ignore)
            dense = dense or config.experts != "packed" or config.is_open or listed
        elif not stored:
            dense = True
        if dense:
            self.summary.left_dense(prefix, "experts")
            return None
        dummy = vllm_config.load_config.load_format == DUMMY
        if self.stored is None and has_bias(layer.moe_config) and not dummy:
            raise SettingsError(
                f"the experts of {prefix!r} have biases, and vLLM reads them dense as one tensor: "
                "they cannot be packed while they load. Remedy: `flashsparse convert` packs them "
                'before; or leave out "experts": "packed"'
            )
        kinds = {name.rpartition(".")[2] for name in stored}
        names = next((each for each in _PROJECTIONS if kinds <= {*each}), _PROJECTIONS[0])
        own = dict(zip(("w1", "w2", "w3"), names, strict=True))

        def scheme_of(shard: str, dtype: torch.dtype) -> Scheme:
            scheme = config.scheme_of(f"{prefix}.0.{own[shard]}", prefix, dtypes=(dtype,))
            if scheme is None:
                raise SettingsError(
                    f"the experts of {prefix!r} are packed, and config.json calls them dense: "
                    "fetch the model again"
                )
            return scheme

        dtype, moe = vllm_config.model_config.dtype, layer.moe_config
        act = activation_of(moe, layer)
        why = why_dense(
            *([scheme_of(shard, dtype) for shard in own], moe.num_local_experts),
            *(torch.empty(0).device, None if act is None else act.name, dtype),
        )
        if config.experts_stay_dense(why is None):
            self.summary.left_dense(prefix, "experts")
            logger.warning(EXPERTS_DENSE, prefix, why)
            return None
        return SparseExpertsMethod(layer.moe_config, layer, prefix, config, scheme_of, self.summary)

    def settle(self, vllm_config: VllmConfig) -> None:
        """Merges in the user's settings, which are known once vLLM's configuration is.

        Raises:
            SettingsError: For settings that contradict the checkpoint.
        """
        if self.config is None:
            settings = settings_of(vllm_config.additional_config)
            if isinstance(self.stored, QuantizedConfig):
                folder = folder_of(vllm_config.model_config, vllm_config.load_config)
                taken = take(self.stored, settings, vllm_config.model_config, folder)
                directory, self.stored = taken
                for note in directory.notes:
                    logger.info("%s", note)
                settings.pop("options", None)
                if self.mapper is not None:
                    self.apply_vllm_mapper(self.mapper)
            if self.foreign and METHOD not in settings:
                settings[METHOD] = AUTO
                logger.info("this sparse checkpoint is packed while it loads: --sparse-method auto")
            self.config = merge(self.stored, settings)
            allow_matrix_registers()
            if envs.VLLM_BATCH_INVARIANT and not self.config.dequantize:
                raise SettingsError(
                    "VLLM_BATCH_INVARIANT is set, and the last bits of a packed layer's output "
                    "depend on how many tokens are in the batch. Unset it, or serve the weights "
                    "dense with --sparse-method none"
                )

    def _role(self, layer: nn.Module, prefix: str, packed: Set[str]) -> str | None:
        """What a layer is for, if that makes it stay dense.

        vLLM's routers are linear layers where those of transformers, by whose model a checkpoint is
        pruned and packed, mostly are not: its configuration does not name them. A router that is
        dense from the start runs in vLLM's kernels for routers.

        Args:
            layer: vLLM's layer.
            prefix: Its name.
            packed: The packed layers of the checkpoint, by their names there; none where the files
                are not at hand.
        """
        if prefix in self.config.layers:
            return None
        if is_router(layer) or called_router(prefix, isinstance(layer, ReplicatedLinear)):
            own = prefix.rpartition(".")[2]
            found = {name.rpartition(".")[2] for name in packed}
            return ROUTER if self.stored is None or (found and own not in found) else None
        if self.stored is not None:
            return None
        return HEAD if called_head(prefix, self.config.ignore) else None

    def _packed_as(self, prefix: str, is_head: bool) -> tuple[list[str], str]:
        """Tells whether a layer is packed, and by which names the configuration knows it.

        vLLM merges layers (q_proj, k_proj and v_proj into qkv_proj); a configuration may name
        either.

        Returns:
            Names that have one scheme; none where the layer stays dense, and then why.
        """
        config = self.config
        if is_head:
            if _ties_head(get_current_vllm_config()):
                return [], "tied to the embedding"
            if prefix not in config.layers and self.stored is None and "lm_head" in config.ignore:
                return [], HEAD  # whatever this model calls it
        parent, _, own = prefix.rpartition(".")
        merged = [f"{parent}.{part}" for part in self.packed_modules_mapping.get(own, [])]
        names = merged or [prefix]
        schemes = {name: self._scheme_of(name, prefix) for name in names}
        if len(set(schemes.values())) > 1:
            differing = ", ".join(
                f"{name}: {scheme or 'dense'}" for name, scheme in schemes.items()
            )
            raise SettingsError(
                f"layer {prefix!r} merges layers that must be alike, but are not ({differing})"
                ". Treat them alike: name all of them in `ignore`, or convert the model with "
                "`flashsparse convert --pack-all`"
            )
        if schemes[names[0]] is not None:
            return names, ""
        listed = next((config.layers[name].reason for name in names if name in config.layers), None)
        return [], listed or "ignored by name"

    def _scheme_of(self, name: str, merged: str) -> Scheme | None:
        config = self.config
        if name not in config.layers and (
            matches(name, config.ignore) or matches(merged, config.ignore)
        ):
            return None
        # Open where a dense checkpoint is packed; of a packed one the loader asks again.
        dtypes = (get_current_vllm_config().model_config.dtype,)
        try:
            return config.scheme_of(name, dtypes=dtypes)
        except FormatError as error:
            raise SettingsError(f"layer {name!r}: {error}") from None


def _ties_head(vllm_config: VllmConfig) -> bool:
    """Whether a model's output head is tied to its embedding."""
    text_config = vllm_config.model_config.hf_text_config
    return bool(getattr(text_config, "tie_word_embeddings", False))
