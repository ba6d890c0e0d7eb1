# SPDX-License-Identifier: Apache-2.0
"""Which implementation multiplies which weight by how many tokens (FlashDecoding++, section 5).

model.py   what each implementation should take, from bytes and latencies
table.py   what was measured on a GPU, and `resolve`, which asks the tables and then the model
tables/    what ships: measured on an H200 and an H100, and estimated for an A100
linear.py  what a layer is told of it when it is loaded
tuner.py   measures, offline
"""

from .linear import DenseLinear, SparseTokens, dense_linear, sparse_tokens
from .model import BUCKETS, DENSE, PACKED, Weight
from .table import Dataflow, DeviceKey, Table, TableError, resolve

__all__ = [
    "BUCKETS",
    "DENSE",
    "PACKED",
    "Dataflow",
    "DenseLinear",
    "DeviceKey",
    "SparseTokens",
    "Table",
    "TableError",
    "Weight",
    "dense_linear",
    "resolve",
    "sparse_tokens",
]
