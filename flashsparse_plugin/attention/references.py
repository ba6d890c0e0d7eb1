# SPDX-License-Identifier: Apache-2.0
"""phi, the unified maximum of each layer and head, as the config.json of a model holds it.

`flashsparse calibrate` writes the entry "unified_max"; the integrations read it. phi never changes
a result, only how often a part of a softmax has to be recomputed, so an entry that does not fit the
dtype that a model runs in is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..messages import PrintableMessage, complaint

KEY = "unified_max"  # in config.json, beside num_attention_heads
VERSION = 1


class CalibrationError(PrintableMessage, ValueError):
    """An entry "unified_max" that is invalid."""


class LayerReference(BaseModel):
    """The calibration of one layer.

    Attributes:
        phi: The reference of each query head, in the units of scores (natural logarithm).
        a: Lower end of the calibration's scores relative to phi, below 0.
        b: Upper end of the calibration's scores relative to phi, above 0. Both are informative:
            the kernels compare sums with the range of the dtype (docs/attention.md, "The guard").
        recomputed: Expected share of recomputed parts.
    """

    model_config = ConfigDict(extra="allow")

    phi: list[float] = Field(min_length=1)
    a: float
    b: float
    recomputed: float = Field(ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _check(self) -> LayerReference:
        if not all(math.isfinite(value) for value in (*self.phi, self.a, self.b)):
            raise ValueError("phi, a and b must be finite numbers")
        if not self.a <= 0 <= self.b:
            raise ValueError(f"a <= 0 <= b must hold, and a is {self.a}, b is {self.b}")
        return self


class UnifiedMax(BaseModel):
    """The entry "unified_max" of a config.json.

    Attributes:
        version: Version of the entry's layout.
        dtype: Dtype of the activations that it was made for; see `holds_for`.
        layers: References by layer number; None for a layer whose scores are spread too widely and
            which runs the online softmax.
        text: Name of the text that the model was run on.
        tokens: Number of tokens of the text that were used.
    """

    model_config = ConfigDict(extra="allow")

    version: int = Field(default=VERSION, ge=1, le=VERSION)
    dtype: Literal["float16", "bfloat16"]
    layers: list[LayerReference | None] = Field(min_length=1)
    text: str = ""
    tokens: int = Field(default=0, ge=0)

    def holds_for(self, dtype: str) -> bool:
        """Whether phi suits a model that runs in `dtype`, "bfloat16" for example.

        float32 (on the CPU) has the range of bfloat16. float16 has a smaller range than either, so
        phi made for it suits all.
        """
        return self.dtype == "float16" or dtype in ("bfloat16", "float32")

    def require_layers(self, layers: int) -> None:
        """Raises CalibrationError unless the entry is for a model with this number of layers."""
        if len(self.layers) != layers:
            raise CalibrationError(
                f'"{KEY}" of config.json has {len(self.layers)} layers, and the model has {layers}'
                ": it was made for another model. Run `flashsparse calibrate` for this one"
            )

    def layer(self, number: int, heads: int) -> LayerReference | None:
        """The reference of a layer, or None if it has none.

        Args:
            number: Number of the layer, from 0.
            heads: Query heads of the layer.

        Raises:
            CalibrationError: If the entry is for another number of layers or heads.
        """
        if number >= len(self.layers):
            raise CalibrationError(
                f'"{KEY}" of config.json has {len(self.layers)} layers, and the model has a layer '
                f"{number}: it was made for another model. Run `flashsparse calibrate` for this one"
            )
        found = self.layers[number]
        if found is not None and len(found.phi) != heads:
            raise CalibrationError(
                f'layer {number}: "{KEY}" of config.json has phi for {len(found.phi)} heads, and '
                f"the layer has {heads}: it was made for another model. Run `flashsparse "
                "calibrate` for this one"
            )
        return found


def unified_max_of(config: Any) -> UnifiedMax | None:
    """The validated entry of a model's config, or None if the model was not calibrated.

    Args:
        config: A dict as in config.json, or transformers' object of it.

    Raises:
        CalibrationError: For an invalid entry, with the key, the rule and the remedy.
    """
    read = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
    entry = read(KEY)
    if entry is None:
        return None
    try:
        return UnifiedMax.model_validate(entry)
    except ValidationError as error:
        raise CalibrationError(
            f'config.json: {complaint(error, KEY)}. Remove the entry "{KEY}", or write it again '
            "with `flashsparse calibrate`"
        ) from None
