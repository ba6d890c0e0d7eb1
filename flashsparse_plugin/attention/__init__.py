# SPDX-License-Identifier: Apache-2.0
"""Decode attention with a unified maximum: its calibration and its counters.

calibration.py  chooses phi for each layer and head by running a model over a text
references.py   phi as config.json holds it
counters.py     how many parts of a softmax were recomputed while a model ran
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
