# SPDX-License-Identifier: Apache-2.0
"""The transformers side of the method `flashsparse`.

transformers calls one object per model, in this order: `validate_environment`,
`update_attn_implementation`, `update_dtype`, `_process_model_before_weight_loading` (the model is a
skeleton on the meta device), per weight `param_needs_quantization` and `get_quantize_ops`, then,
once every tensor is in its place, `_process_model_after_weight_loading`.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.quantizers.base import HfQuantizer

from flashsparse_plugin.checkpoint.files.checksums import verify
from flashsparse_plugin.checkpoint.files.headers import TensorInfo, aligned
from flashsparse_plugin.checkpoint.files.unmarked import refuse_unmarked
from flashsparse_plugin.checkpoint.foreign.packing import QuantizedConfig
from flashsparse_plugin.checkpoint.read.head import Head, head_of
from flashsparse_plugin.checkpoint.read.linears import kind_of
from flashsparse_plugin.checkpoint.read.renaming import Names
from flashsparse_plugin.checkpoint.read.stored import Checkpoint
from flashsparse_plugin.checkpoint.write.report import told
from flashsparse_plugin.config import FlashSparseConfig
from flashsparse_plugin.dataflow.choice import lines
from flashsparse_plugin.decode_kernels import use_decode_kernels
from flashsparse_plugin.embedding import SparseEmbedding
from flashsparse_plugin.experts.layer import sparse_experts, unpack_module
from flashsparse_plugin.formats import get_format
from flashsparse_plugin.formats.values.dtypes import packable_dtype
from flashsparse_plugin.linear import SparseLinear
from flashsparse_plugin.matching import matches
from flashsparse_plugin.modules import as_kind, linear_modules
from flashsparse_plugin.names import DEFAULT_FORMAT, EARLY
from flashsparse_plugin.packed import FormatError, Scheme, dtype_name
from flashsparse_plugin.roles import kept_dense

from .conversion import (
    Conversion,
    PruneAndPack,
    adopt,
    refuse_offloaded,
    skeleton,
    tie_dense,
    tie_packed,
    untie,
)
from .dense import dispatch
from .experts import PackedOnDisk
from .headers import packed_headers, read_headers, refuse_odd_files
from .layers import has_offload_hook, is_offloaded, require_bias, sparse_layers, stored_weight
from .report import report, warn_of_experts
from .saving import state_and_metadata

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

logger = logging.getLogger(__name__)


class FlashSparseQuantizer(HfQuantizer):
    """Loads packed checkpoints, and packs dense ones while they load.

    A packed checkpoint's headers say which layers are packed and how large their tensors are. Of a
    dense checkpoint every linear layer (see `modules`) is packed but routers and output heads (see
    `roles`), tied weights, and what the configuration ignores.
    """

    requires_calibration = False

    def __init__(self, quantization_config: FlashSparseConfig, **kwargs: Any):
        # The user's object stays as it was: loading fills in the dtype and what is ignored.
        super().__init__(quantization_config.model_copy(deep=True), **kwargs)
        self.conversion = Conversion(self.quantization_config)
        self.device_map: dict[str, Any] | None = None
        self.dtypes: dict[str, torch.dtype] = {}  # of a packed checkpoint's dense tensors
        self.infos: dict[str, dict[str, TensorInfo]] = {}  # of its packed tensors, by layer
        # All tensors of a checkpoint that another tool quantized, as if it were packed.
        self.shown: dict[str, TensorInfo] | None = None
        self.experts = PackedOnDisk()

    # Before the model exists.

    def validate_environment(
        self, *args: Any, device_map: dict[str, Any] | str | None = None, **kwargs: Any
    ) -> None:
        """Is called again with the final device map where the first was "auto" or the like."""
        if isinstance(device_map, dict):
            self.device_map = device_map
        config = self.quantization_config
        if isinstance(config, QuantizedConfig) and "disk" in (self.device_map or {}).values():
            raise ValueError(
                "layers on disk are read from the checkpoint directly, but this one is packed "
                "while loading. Remedy: pack it first, with `flashsparse convert`"
            )
        if self.pre_quantized:
            config.refuse_open("config.json")
        if self.quantization_config.dequantize and not self.pre_quantized:
            raise ValueError(
                "dequantize=True unpacks a packed checkpoint, and this one is dense. Remedy: load "
                "it without quantization_config"
            )

    def update_attn_implementation(self, config: Any) -> Any:
        """Is the first to be given the model's config, before any file of weights is opened."""
        refuse_odd_files(getattr(config, "name_or_path", None))
        parallel = getattr(config, "distributed_config", None)
        sizes = ("tp_size", "ep_size", "fsdp_size", "pp_size")
        if parallel is not None and (
            parallel.tp_plan is not None
            or any((getattr(parallel, size, None) or 1) > 1 for size in sizes)
        ):
            raise ValueError(
                "packed weights cannot be sharded by transformers' tensor parallelism "
                "(tp_plan, distributed_config): it would cut the packed tensors at arbitrary "
                "places. Remedy: "
                'device_map="auto" puts whole layers on several GPUs; vLLM shards packed weights'
            )
        return config

    # Its name before transformers 5.19; the releases up to 5.22 may call both.
    update_tp_plan = update_attn_implementation

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Takes the dtype of the activations, which is that of packed values only by default."""
        config = self.quantization_config
        if config.dtype is None and not self.pre_quantized:
            format = get_format(DEFAULT_FORMAT if config.is_open else config.format)
            config.dtype = dtype_name(packable_dtype(format, dtype))
        self.dtype = self.conversion.dense_dtype = dtype
        return dtype

    # The skeleton.

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        for file in checkpoint_files or []:
            if not str(file).endswith(".safetensors"):
                raise FormatError(
                    f"{file} is no safetensors file; pickled checkpoints are not read. Remedy: "
                    "save the model again: save_pretrained writes safetensors"
                )
        if self.pre_quantized:
            if not checkpoint_files:
                raise FormatError(
                    "a packed model is loaded from its files, not from state_dict=. Remedy: "
                    "from_pretrained(path)"
                )
            self._place_packed_layers(model, self._read_packed(model, checkpoint_files))
        else:
            self._choose_layers(model, read_headers(model, checkpoint_files or []))

    def _read_packed(self, model: PreTrainedModel, files: list[str]) -> dict[str, TensorInfo]:
        config = self.quantization_config
        if not isinstance(config, QuantizedConfig):
            return read_headers(model, files)
        self.shown, settled, (how, *notes) = packed_headers(model, files, config, self.dtype)
        self.quantization_config = self.conversion.config = settled
        self.conversion.experts.config = settled
        logger.info("flashsparse: %s", how)
        for note in notes:
            logger.warning("flashsparse: %s", note)
        return self.shown

    def _place_packed_layers(self, model: PreTrainedModel, infos: Mapping[str, TensorInfo]) -> None:
        config, head = self.quantization_config, self._place_head(model)
        checkpoint, ignored = Checkpoint.read(Names(model), infos), self._ignored(model)
        if self.shown is not None:
            checkpoint.refuse_incomplete(model, ignored)
        self.infos = checkpoint.infos
        placed = checkpoint.place(model, config, ignored)
        if head is not None and head.embedding in placed:
            untie(model, head)
        for name, packed in placed.items():
            if head is not None and name == head.embedding:
                self.conversion.replaced[name] = nn.Embedding
                tie_packed(model, head, skeleton(packed, SparseEmbedding))
                continue
            linear = model.get_submodule(name)
            self.conversion.replaced[name] = type(linear)
            bias = linear.bias is not None
            adopt(model, name, skeleton(packed, bias=bias, bias_dtype=self.dtype))
        self.experts = PackedOnDisk.place(model, checkpoint, config)
        self.dtypes = {name: t.dtype for name, t in _floats(model)}
        for pattern, dtype in model._get_dtype_plan(self.dtype).items():  # modules kept in float32
            for name in self.dtypes:
                if re.search(pattern.replace("*", ".*"), name):
                    self.dtypes[name] = dtype

    def _choose_layers(self, model: PreTrainedModel, infos: Mapping[str, TensorInfo]) -> None:
        config, head = self.quantization_config, self._place_head(model)
        kept = kept_dense(model, config.ignore)
        roles = {name: why for name, why in kept.items() if name not in config.layers}
        for line in told((why, name) for name, why in roles.items()):
            logger.info("flashsparse: dense: %s", line)
        ignored = self._ignored(model)
        config.ignore = [*ignored, *(name for name in roles if name not in ignored)]
        refuse_unmarked(infos, None, Path(model.config.name_or_path))
        checkpoint = Checkpoint.read(Names(model), infos)
        if infos:  # which a model that is given by state_dict= has none of
            checkpoint.refuse_incomplete(model, config.ignore)
        dense = checkpoint.dense
        for name in linear_modules(model):
            scheme = config.scheme_of(name)
            if scheme is None or (name not in config.layers and matches(name, config.ignore)):
                continue
            owner = name if head is None or name != head.name else head.owner
            self._target(model, owner, scheme, dense)
        if head is not None and head.embedding is not None:
            untie(model, head)
        self._choose_experts(model, checkpoint, infos)
        self.conversion.merge(dense.keys() | checkpoint.made.keys())

    def _target(
        self, model: PreTrainedModel, name: str, scheme: Scheme, dense: Mapping[str, torch.Tensor]
    ) -> None:
        """Has the weight of a layer packed when it arrives."""
        self.conversion.targets[name] = scheme
        stored, layer = dense.get(f"{name}.weight"), model.get_submodule(name)
        if stored is not None and stored.is_floating_point():
            # transformers casts to what the skeleton has. To the dtype of the file, so that
            # values are rounded once, here, and not on the way through another dtype.
            layer.weight = nn.Parameter(
                torch.empty_like(layer.weight, dtype=stored.dtype), requires_grad=False
            )

    def _place_head(self, model: PreTrainedModel) -> Head | None:
        """Finds the output head that is to be packed by a rule of its own, and names its scheme."""
        config = self.quantization_config
        if config.head is None:
            return None
        self.conversion.head = head = head_of(model, config.head)
        config.place_head(head.name)
        return head

    def _choose_experts(
        self, model: PreTrainedModel, checkpoint: Checkpoint, infos: Mapping[str, TensorInfo]
    ) -> None:
        config, experts = self.quantization_config, self.conversion.experts
        whole = {name: [checkpoint.stored_as[name]] for name in checkpoint.dense}
        stored_as = {**whole, **checkpoint.made}
        known = [x for name, x in checkpoint.stacks.items() if name in stored_as or not infos]
        experts.choose(model, known, self.device_map, self.dtype)
        for name, (stack, _) in experts.targets.items():
            stored = [infos[key].dtype for key in stored_as.get(name, ()) if key in infos]
            if stored and stored[0].is_floating_point:  # rounded once, here; see above
                module = model.get_submodule(stack.module)
                empty = torch.empty_like(module._parameters[stack.own], dtype=stored[0])
                module._parameters[stack.own] = nn.Parameter(empty, requires_grad=False)
        warn_of_experts(model, [*config.ignore, *(each.module for each in known)])

    def _ignored(self, model: PreTrainedModel) -> list[str]:
        """What stays dense: the user's list, the output head, tied weights, float32 modules."""
        config = self.quantization_config
        tied = {*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()}
        if config.ignore:
            own = self.get_modules_to_not_convert(
                model, [], model._keep_in_fp32_modules, add_default_skips=True
            )
        else:
            own = [key.removesuffix(".weight") for key in tied]
        return [*config.ignore, *sorted(set(own) - set(config.ignore) - set(config.layers))]

    # The weights.

    def param_needs_quantization(
        self, model: PreTrainedModel, param_name: str, **kwargs: Any
    ) -> bool:
        name = param_name.removesuffix(".weight")
        if not self.pre_quantized and param_name in self.conversion.experts.targets:
            return True
        if self.pre_quantized or name not in self.conversion.targets:
            return False
        if is_offloaded(self.device_map, param_name):
            self.conversion.offloaded.add(name)
        return True

    def get_quantize_ops(self) -> PruneAndPack:
        return PruneAndPack(self.conversion)

    def param_element_size(
        self, model: PreTrainedModel, param_name: str, param: torch.Tensor
    ) -> float:
        """Bytes an element will take, for the planning of device maps."""
        layer_name, _, name = param_name.rpartition(".")
        layer = model.get_submodule(layer_name)
        if self.quantization_config.dequantize and isinstance(layer, SparseLinear):
            names = layer.scheme.format.tensor_names
            if name != names[0]:
                return 0.0 if name in names else param.element_size()
            dense = layer.in_features * layer.out_features * self.dtype.itemsize
            return dense / max(param.numel(), 1)
        if layer_name in self.conversion.targets and name == "weight":
            # Not known before it is packed; a file in float32 would count double otherwise.
            return self.conversion.targets[layer_name].dtype.itemsize
        return param.element_size()

    # The loaded model.

    def _process_model_after_weight_loading(
        self, model: PreTrainedModel, **kwargs: Any
    ) -> PreTrainedModel:
        if self.conversion.error is not None:
            raise self.conversion.error
        if self.quantization_config.is_open:
            self._settle(model)
        head = self.conversion.head
        if self.pre_quantized and head is not None and head.owner not in self.infos:
            self._pack_dense_head(model, head)
        self.experts.load(model, self.quantization_config, self.dtype, self.device_map)
        self.conversion.experts.report()
        for name, layer in sparse_layers(model):
            if name in self.infos:
                self._check_and_prepare(name, layer)
            elif not has_offload_hook(layer):
                require_bias(name, layer)
                layer.prepare()
            layer.compute_dtype = self.dtype
        for name, tensor in _floats(model):
            # transformers leaves a tensor that another name has in the file (embed_out, or a
            # missing prefix) in the dtype of the file.
            if name in self.dtypes and tensor.device.type != "meta":
                tensor.data = tensor.data.to(self.dtypes[name])
        if self.pre_quantized and self.quantization_config.dequantize:
            self._dequantize(model, self.dtype)
        else:
            for name, linear in linear_modules(model).items():
                # Hooks hold on to the layer that they are on.
                if type(linear) is nn.Linear and not hasattr(linear, "_hf_hook"):
                    dispatch(model, name, linear)
            if self.quantization_config.decode_kernels == EARLY:
                use_decode_kernels(model)
            report(model, self.quantization_config, self.conversion, self.dtype)
        return model

    def _pack_dense_head(self, model: PreTrainedModel, head: Head) -> None:
        """Packs the head of a packed checkpoint that has it dense, as the user asks for."""
        owner, scheme = (
            model.get_submodule(head.owner),
            self.quantization_config.scheme_of(head.name),
        )
        assert scheme is not None
        if has_offload_hook(owner):
            refuse_offloaded(head)
        if head.embedding is not None:
            untie(model, head)
        self.conversion.targets[head.owner] = scheme
        self.conversion.pack(model, head.owner, owner.weight.detach())

    def _settle(self, model: PreTrainedModel) -> None:
        """Has the configuration name the formats that were chosen, and tells why."""
        chosen = {**self.conversion.chosen, **self.conversion.experts.chosen}
        config = self.quantization_config.settled({n: (x.scheme, x.why) for n, x in chosen.items()})
        self.quantization_config = self.conversion.config = config
        model.config.quantization_config = config
        for line in lines((kind_of(name), choice) for name, choice in chosen.items()):
            logger.info("flashsparse: auto: %s", line)

    def _check_and_prepare(self, name: str, layer: SparseLinear) -> None:
        """Compares a loaded weight with its checksums, and proves it sound, before any kernel."""
        offloaded = has_offload_hook(layer)
        if not offloaded:
            for parameter in layer.parameters(recurse=False):
                parameter.data = aligned(parameter.data)
        packed = stored_weight(layer)
        verify(name, packed, self.infos[name])
        on_the_way = packed.format.checks_as_it_reads and packed.device.type == "cpu"
        if offloaded or not on_the_way:
            packed.validate(name)
        if offloaded:
            return
        try:
            layer.prepare()
        except RuntimeError:
            packed.validate(name)  # says what is wrong with which layer
            raise
        except FormatError as error:
            packed.validate(name)
            where = f"layer {name!r} {list(packed.shape)}"
            raise FormatError(f"{where} cannot be held as {packed.scheme} asks: {error}") from None

    def _dequantize(
        self, model: PreTrainedModel, dtype: torch.dtype | None = None
    ) -> PreTrainedModel:
        layers = list(sparse_layers(model))
        away = [name for name, layer in layers if has_offload_hook(layer)]
        if away:
            raise ValueError(
                f"layer {away[0]!r} and {len(away) - 1} more are offloaded; where the packed "
                "model did not fit, a dense one will not. Remedy: load it where it fits, "
                'device_map="cpu", and dequantize there'
            )
        head = self.conversion.head
        if isinstance(dtype, str):  # save_pretrained leaves its name in the model's config
            dtype = getattr(torch, dtype)
        for _, module in sparse_experts(model):
            unpack_module(module, dtype or self.dtype)
        for name, layer in layers:
            if isinstance(layer, SparseEmbedding):
                assert head is not None
                adopt(model, name, layer.to_embedding(dtype or self.dtype))
                tie_dense(model, head)
                continue
            linear = as_kind(self.conversion.replaced[name], layer.to_linear(dtype or self.dtype))
            adopt(model, name, linear)
            hook = getattr(layer, "_hf_hook", None)
            if hook is not None:
                from accelerate.hooks import add_hook_to_module

                add_hook_to_module(linear, hook)
        return model

    # Saving.

    def get_state_dict_and_metadata(
        self, model: PreTrainedModel
    ) -> tuple[dict[str, torch.Tensor] | None, dict[str, str]]:
        """What is saved, and the metadata of the files; see `saving.state_and_metadata`."""
        if getattr(model, "_hf_peft_config_loaded", False):  # then only the adapter is saved
            return None, {}
        return state_and_metadata(model)

    # What the model can do.

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        """Adapters train on top: SparseLinear has a gradient for its input, its weight has none."""
        return True

    @property
    def is_compileable(self) -> bool:
        return True


def _floats(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_floating_point():
            yield name, tensor
