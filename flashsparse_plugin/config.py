# SPDX-License-Identifier: Apache-2.0
"""FlashSparseConfig: the `quantization_config` of a checkpoint, validated.

It is what is written to config.json and what a user passes to `from_pretrained`. It knows nothing
of transformers or vLLM; the integrations hand it to them.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .formats import get_format

logger = logging.getLogger(__name__)

QUANT_METHOD = "flashsparse"


class LayerConfig(BaseModel):
    """Where one layer differs from the rest of the checkpoint."""

    model_config = ConfigDict(extra="allow")

    format: str
    """A packed format, or "dense" for a layer that was left as it is."""
    reason: str | None = None
    """Why it differs, for people."""


class FlashSparseConfig(BaseModel):
    """How a checkpoint is packed, or is to be packed while it loads.

    Attributes:
        format: Packed format of the linear layers.
        format_version: Version of that format.
        dtype: Dtype of the packed values, "float16" or "bfloat16"; None means that of the model,
            or bfloat16 where that is neither.
        sparsity: Share of zeros: to reach, where `pruning` is given, else for information.
        pruning: What to do with a dense checkpoint before packing it: "none" where its zeros are
            already there, "magnitude" to drop the smallest weights of every layer (to try things
            out; see `flashsparse prune` for better).
        ignore: Layers to leave dense: names, full or shortened from the left at a dot, or patterns
            after "re:" (see `matching.matches`). While a dense checkpoint is packed, the output
            head stays dense beside whatever is listed here; `ignore=[]`, or naming it in `layers`,
            packs it too.
        layers: Layers that differ from the rest, by name. Stronger than `ignore`.
        options: Options of the format (nm_vector: n, m, vector_length).
        dequantize: Unpack while loading and run dense. Not written to disk.

    Keys of later versions are kept and warned of; a later `format_version` is refused.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    quant_method: Literal["flashsparse"] = QUANT_METHOD
    format: str = "tiled_csl"
    format_version: int = 1
    dtype: Literal["float16", "bfloat16"] | None = None
    sparsity: float | None = Field(default=None, ge=0.0, le=1.0)
    pruning: Literal["none", "magnitude"] = "none"
    ignore: list[str] = ["lm_head"]
    layers: dict[str, LayerConfig] = {}
    options: dict[str, int] = {}
    dequantize: bool = Field(default=False, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _read_other_names(cls, data: Any) -> Any:
        """Reads the lists of ignored layers under the names that other methods use."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for other in ("modules_to_not_convert", "ignored_layers"):
            if other in data:
                own = data.get("ignore", ["lm_head"])
                data["ignore"] = [*own, *(x for x in data.pop(other) or [] if x not in own)]
        return data

    @model_validator(mode="after")
    def _check(self) -> FlashSparseConfig:
        known = get_format(self.format)
        if self.format_version > known.version:
            raise ValueError(
                f"this checkpoint is {self.format} version {self.format_version}; this version of "
                f"flashsparse-plugin reads up to version {known.version}. Remedy: pip install -U "
                f"flashsparse-plugin, to a release that knows {self.format} version "
                f"{self.format_version}"
            )
        if self.format_version < 1:
            raise ValueError(
                f"this checkpoint calls itself {self.format} version {self.format_version}, and "
                "versions start at 1. Remedy: convert the dense model with `flashsparse convert`"
            )
        if self.pruning != "none" and self.sparsity is None:
            raise ValueError(f'pruning="{self.pruning}" needs sparsity=, for example sparsity=0.5')
        if self.__pydantic_extra__:
            logger.warning(
                "keys of quantization_config that this version does not know are kept unread: %s",
                ", ".join(sorted(self.__pydantic_extra__)),
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Returns what belongs in config.json: unknown keys included, empty ones left out."""
        data = self.model_dump(mode="json", exclude_none=True)
        # `ignore: []` stays: to leave it out would mean the default, ["lm_head"].
        return {key: value for key, value in data.items() if value != {}}

    def format_of(self, *names: str) -> str:
        """Returns the format of a layer that `ignore` does not mean, or "dense".

        Args:
            *names: The names that the layer goes by, in the model and in the file.
        """
        return next(
            (self.layers[name].format for name in names if name in self.layers), self.format
        )

    # transformers calls the rest by these names; see integrations/hf/__init__.py.

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> FlashSparseConfig:
        return cls(**config_dict, **kwargs)

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict, which is what transformers expects in a config that it is given."""
        return getattr(self, key, default)

    def get_loading_attributes(self) -> dict[str, Any]:
        """What a user may change when loading a checkpoint that is packed already."""
        return {"dequantize": self.dequantize}

    def to_json_string(self, use_diff: bool = True) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"
