# SPDX-License-Identifier: Apache-2.0
"""Decode attention with a unified maximum: what a model's calibration says, and what it costs.

calibration.py  phi of each layer and head, chosen by what a model does with a text
references.py   the same as config.json holds it
counters.py     how many parts of a softmax were computed again while a model ran
"""

from .counters import Counter, counters, publish, published
from .references import CalibrationError, LayerReference, UnifiedMax, unified_max_of

__all__ = [
    "CalibrationError",
    "Counter",
    "LayerReference",
    "UnifiedMax",
    "counters",
    "publish",
    "published",
    "unified_max_of",
]
