# SPDX-License-Identifier: Apache-2.0
"""ShardWriter against the safetensors library."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from flashsparse_plugin.checkpoint.write.writer import ShardWriter, digest_of

TENSORS = {
    "odd.bias": torch.arange(3, dtype=torch.bfloat16),
    "packed": torch.arange(40, dtype=torch.int32),
    "empty": torch.empty(0, dtype=torch.int32),
    "byte": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "matrix": torch.randn(5, 7, dtype=torch.float64),
    "half": torch.randn(3, 3).half(),
    "offsets": torch.arange(5, dtype=torch.int32),
    "scalar": torch.tensor(3.5),
    "flag": torch.tensor([True, False]),
    'quote"und Umläut': torch.ones(4, 4),
    "strided": torch.arange(64.0).reshape(8, 8).T,
}


def write(path, tensors):
    writer = ShardWriter(path, tensors)
    for name, tensor in tensors.items():
        # in two parts, where there are rows to split
        parts = list(tensor.chunk(2)) if tensor.dim() and len(tensor) > 1 else [tensor]
        writer.add(name, tensor.dtype, tuple(tensor.shape), parts)
    assert writer.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    return writer.close()


def test_reads_back(tmp_path):
    path = tmp_path / "model.safetensors"
    write(path, TENSORS)
    read = load_file(path)
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name], tensor)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_every_tensor_is_aligned(tmp_path):
    path = tmp_path / "model.safetensors"
    write(path, TENSORS)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % 8 == 0
    header = json.loads(data[8 : 8 + length])
    for name, tensor in TENSORS.items():
        assert header[name]["data_offsets"][0] % tensor.element_size() == 0


def test_no_tensors(tmp_path):
    write(tmp_path / "model.safetensors", {})
    assert load_file(tmp_path / "model.safetensors") == {}


@pytest.mark.parametrize("where", [0, 9, 200, -1])
def test_digest_sees_every_byte(tmp_path, where):
    path = tmp_path / "model.safetensors"
    digest = write(path, TENSORS)
    assert digest_of(path) == digest
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    assert digest_of(path) != digest
