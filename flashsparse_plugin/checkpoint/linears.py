# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint are the weights of linear layers.

Names do not tell: an embedding and a router are 2-D `*.weight` too. So the model is built by
transformers without memory (on the meta device) and asked for its nn.Linear modules.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..formats import packed_names
from .isolation import modules_bounded, nothing_fetched, use_plain_implementations
from .reader import CheckpointError, ModelDirectory


@dataclass(frozen=True)
class Linear:
    """One nn.Linear of the model and where the checkpoint keeps it.

    Attributes:
        name: Name of the module, as in `named_modules()`.
        stored: Its name in the checkpoint, which may lack or add the base model's prefix; None
            where the checkpoint has no weight for it (a head that is tied to the embedding).
        shape: (out_features, in_features).
        tied_to: Another parameter that is the same tensor, if any.
        plain: Whether it is nn.Linear itself; a subclass may compute something else.
    """

    name: str
    stored: str | None
    shape: tuple[int, int]
    tied_to: str | None = None
    plain: bool = True

    @property
    def kind(self) -> str:
        """What layers of one sort share: the last part of the name, e.g. "q_proj"."""
        return kind_of(self.name)


def kind_of(name: str) -> str:
    parts = name.split(".")
    start = next((i for i in reversed(range(len(parts))) if not parts[i].isdecimal()), 0)
    return ".".join(parts[start:])


def build_on_meta(directory: ModelDirectory) -> nn.Module:
    """Builds the model that config.json describes, without memory for its weights.

    Nothing is fetched, and nothing of the checkpoint is run.

    Raises:
        CheckpointError: Where transformers is missing or does not know the model, and for a model
            that is far larger than its files.
    """
    try:
        import transformers
    except ImportError:
        raise CheckpointError(
            "finding the linear layers of a model needs transformers: "
            "pip install 'flashsparse-plugin[hf]'"
        ) from None
    try:
        with nothing_fetched(), modules_bounded(len(directory.tensors)), torch.device("meta"):
            config = transformers.AutoConfig.from_pretrained(
                directory.path, local_files_only=True, trust_remote_code=False
            )
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            use_plain_implementations(config)
            return _model_class(transformers, directory.config)(config)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"transformers {transformers.__version__} cannot build the model of {directory.path} "
            f"({type(error).__name__}: {error}). A newer transformers may know it; models that "
            "bring their own code are not supported"
        ) from error


def _model_class(transformers: Any, config: dict[str, Any]) -> Any:
    """The class named in `architectures`, else whatever AutoModelForCausalLM takes."""
    names = config.get("architectures")
    for name in names if isinstance(names, list) else []:
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return transformers.AutoModelForCausalLM.from_config


def find_linears(directory: ModelDirectory) -> list[Linear]:
    """Lists the nn.Linear modules of the model with their place in the checkpoint.

    Raises:
        CheckpointError: Where a dense weight has another shape than config.json says, or the
            checkpoint knows none of the model's linear layers.
    """
    model = build_on_meta(directory)
    prefix = model.base_model_prefix
    assert isinstance(prefix, str)  # to torch, an attribute of a module is a tensor or a module
    names_of: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    known = {name.removesuffix(".weight") for name in directory.tensors if name.endswith(".weight")}
    known |= packed_names(directory.tensors).keys()
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        stored = _stored_name(name, prefix, known)
        same = [other for other in names_of[id(module.weight)] if other != f"{name}.weight"]
        rows, cols = module.weight.shape
        shape = (rows, cols)
        tied_to = same[0] if same else None
        found.append(Linear(name, stored, shape, tied_to, type(module) is nn.Linear))
        info = directory.tensors.get(f"{stored}.weight")
        if info is not None and info.shape != shape:
            raise CheckpointError(
                f"layer {name!r}: the weight is {list(info.shape)}, config.json makes it "
                f"{list(shape)}. The two belong to different models: fetch them together again"
            )
    if not any(linear.stored for linear in found):
        raise CheckpointError(
            f"{type(model).__name__} has {len(found)} nn.Linear layers and {directory.path} has a "
            "weight for none of them: there is nothing here that can be packed"
        )
    return found


def _stored_name(name: str, prefix: str, known: Container[str]) -> str | None:
    candidates = [name]
    if prefix:
        candidates += [name.removeprefix(f"{prefix}."), f"{prefix}.{name}"]
    return next((candidate for candidate in candidates if candidate in known), None)


def not_linear(directory: ModelDirectory, linears: Iterable[Linear]) -> list[str]:
    """Names of 2-D weights that belong to no linear layer: embeddings, routers, fused experts."""
    known = {f"{linear.stored}.weight" for linear in linears}
    return [
        name
        for name, info in directory.tensors.items()
        if name.endswith(".weight") and len(info.shape) == 2 and name not in known
    ]
