# SPDX-License-Identifier: Apache-2.0
"""phi, the unified maximum of each layer and head, as the config.json of a model holds it.

`flashsparse calibrate` writes the entry "unified_max"; the integrations read it. phi never changes
a result, only how often a part of a softmax must be computed again, so an entry that does not fit
the dtype that a model runs in is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

KEY = "unified_max"  # in config.json, beside num_attention_heads
VERSION = 1


class CalibrationError(ValueError):
    """An entry "unified_max" that cannot be meant."""


class LayerReference(BaseModel):
    """What calibration found for one layer.

    Attributes:
        phi: The reference of each query head, in the units of scores (natural logarithm).
        a: Lower end of the range around phi that the calibration's scores kept to, below 0.
        b: Upper end, above 0. Both are for people: the kernels compare sums with what the dtype
            can hold (docs/attention.md, "The guard").
        recomputed: Expected share of the parts that are computed again.
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
        version: Of the entry.
        dtype: Dtype of activations that it was made for; see `holds_for`.
        layers: By the layers' numbers; None where the scores of a layer are spread too widely,
            which then runs the online softmax.
        text: Name of the text that the model was run on.
        tokens: How much of it.
    """

    model_config = ConfigDict(extra="allow")

    version: int = Field(default=VERSION, ge=1, le=VERSION)
    dtype: Literal["float16", "bfloat16"]
    layers: list[LayerReference | None] = Field(min_length=1)
    text: str = ""
    tokens: int = Field(default=0, ge=0)

    def holds_for(self, dtype: str) -> bool:
        """Whether phi is of use to a model that runs in `dtype`, "bfloat16" for example.

        float32 (on the CPU) has the room of bfloat16; float16 has less than either, so phi made
        for it is of use to all.
        """
        return self.dtype == "float16" or dtype in ("bfloat16", "float32")

    def require_layers(self, layers: int) -> None:
        """Raises CalibrationError unless the entry is for a model of so many layers."""
        if len(self.layers) != layers:
            raise CalibrationError(
                f'"{KEY}" of config.json has {len(self.layers)} layers, and the model has {layers}'
                ": it was made for another model. Run `flashsparse calibrate` for this one"
            )

    def layer(self, number: int, heads: int) -> LayerReference | None:
        """The reference of a layer, or None where it has none.

        Args:
            number: Of the layer, from 0.
            heads: Query heads that the layer has.

        Raises:
            CalibrationError: Where the entry is for another number of layers or heads.
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
    """The entry of a model's config, validated, or None where the model was not calibrated.

    Args:
        config: A dict as in config.json, or transformers' object of it.

    Raises:
        CalibrationError: For an entry that cannot be meant; it names the key, the rule and the
            remedy.
    """
    read = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
    entry = read(KEY)
    if entry is None:
        return None
    try:
        return UnifiedMax.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, (KEY, *first["loc"])))
        raise CalibrationError(
            f"config.json: {where}: {first['msg'].removeprefix('Value error, ')}. Remove the entry "
            f'"{KEY}", or write it anew with `flashsparse calibrate`'
        ) from None
