# SPDX-License-Identifier: Apache-2.0
"""Which implementation multiplies which weight by how many tokens (FlashDecoding++, section 5).

model.py     what each implementation should take, from bytes and latencies
table.py     what was measured on a GPU
decision.py  `resolve`, which asks the tables and then the model
expected.py  whether a packed layer is faster than the dense one on a device
choice.py    `auto`: the format of a layer by that
advice.py    all formats side by side, and rivals.py what else people could use
tables/      what ships: measured on an H200 and an H100, and estimated for an A100
linear.py    what a layer is told of it when it is loaded
tuner.py     measures, offline
"""

from .decision import resolve
from .linear import DenseLinear, dense_linear, plan_of
from .model import BUCKETS, DENSE, Weight
from .table import DeviceKey, Table, TableError

__all__ = [
    "BUCKETS",
    "DENSE",
    "DenseLinear",
    "DeviceKey",
    "Table",
    "TableError",
    "Weight",
    "dense_linear",
    "plan_of",
    "resolve",
]
