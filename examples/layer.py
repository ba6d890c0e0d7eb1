# SPDX-License-Identifier: Apache-2.0
"""One linear layer from Python: pack a weight, multiply with it, check it, save it.

python examples/layer.py
"""

import torch
from safetensors.torch import save_file
from torch import nn

import flashsparse_plugin as fs
from flashsparse_plugin.pruning import prune_weight


def main(out_features: int = 1024, in_features: int = 4096) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(in_features, out_features, dtype=torch.bfloat16)
    linear.weight.data = prune_weight(linear.weight.data, sparsity=0.8)  # by magnitude

    # A packed weight unpacks to the same bits.
    packed = fs.pack(linear.weight.data, format="tiled_csl")
    assert torch.equal(packed.unpack(), linear.weight.data)
    dense_bytes = linear.weight.nbytes
    print(f"{packed.density:.0%} of the weights, {packed.nbytes / dense_bytes:.0%} of the bytes")

    # The dtype of x decides the arithmetic: fp32 activations are never rounded to 16 bits.
    x = torch.randn(3, in_features)
    expected = x @ linear.weight.float().T
    print(f"largest difference in fp32: {(packed.linear(x) - expected).abs().max():.1e}")

    # As a module, for any nn.Module: it moves to a GPU and saves like nn.Linear.
    layer = fs.SparseLinear.from_linear(linear)
    print(layer)
    save_file(layer.state_dict(), "layer.safetensors")

    # A file from elsewhere is proven to be safe before a kernel reads it.
    damaged = {name: tensor.clone() for name, tensor in packed.tensors.items()}
    damaged["tile_offsets"][1] = 2**30
    try:
        fs.PackedWeight(packed.scheme, packed.shape, damaged).validate()
    except fs.FormatError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main()
