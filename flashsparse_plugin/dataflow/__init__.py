# SPDX-License-Identifier: Apache-2.0
"""Which implementation multiplies which weight by how many tokens (FlashDecoding++, section 5).

model.py   what each implementation should take, from bytes and latencies
table.py   what was measured on a GPU, and `resolve`, which asks the table and then the model
tuner.py   measures, offline
"""

from .model import BUCKETS, DENSE, PACKED, Weight
from .table import Dataflow, DeviceKey, Table, TableError, resolve

__all__ = [
    "BUCKETS",
    "DENSE",
    "PACKED",
    "Dataflow",
    "DeviceKey",
    "Table",
    "TableError",
    "Weight",
    "resolve",
]
