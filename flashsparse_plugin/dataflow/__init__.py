# SPDX-License-Identifier: Apache-2.0
"""Which implementation multiplies which weight by how many tokens (FlashDecoding++, section 5).

model.py   what each implementation should take, from bytes and latencies
table.py   what was measured on a GPU, and `resolve`, which asks the tables and then the model
tables/    what ships: measured on an H200, and estimated for an A100
linear.py  what a dense layer calls then
tuner.py   measures, offline
"""

from .linear import DenseLinear, dense_linear
from .model import BUCKETS, DENSE, PACKED, Weight
from .table import Dataflow, DeviceKey, Table, TableError, resolve

__all__ = [
    "BUCKETS",
    "DENSE",
    "PACKED",
    "Dataflow",
    "DenseLinear",
    "DeviceKey",
    "Table",
    "TableError",
    "Weight",
    "dense_linear",
    "resolve",
]
