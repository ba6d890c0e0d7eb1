# SPDX-License-Identifier: Apache-2.0
"""Names that stand in files and on command lines; imports nothing slow: commands start fast."""

from typing import Final

QUANT_METHOD: Final = "flashsparse"
"""In config.json's `quant_method`, and the key of settings in vLLM's `additional_config`."""

DEFAULT_FORMAT = "tiled_bitmap"
"""The format that weights are packed to unless another is named."""

DENSE = "dense"
"""In the place of a format's name: a layer that is not packed."""

AUTO = "auto"
"""In the place of a format's name: for each layer the one that should be fastest, or none."""

EARLY, DEFAULT = "early", "default"
"""Of the setting `decode_kernels`: norms and the like by our kernels, or by the engine's own."""

LM_HEAD = "lm_head"
"""In a list of ignored layers: the output head, whatever the architecture calls it."""
