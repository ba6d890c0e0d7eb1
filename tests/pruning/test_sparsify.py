# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

import flashsparse_plugin as fs


class Network(nn.Module):
    """Two linears in a row and one beside them, of no library."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))
        self.gate = nn.Linear(64, 64)

    def forward(self, x, *, scale=1.0):
        return scale * self.body(x) * self.gate(x).sigmoid()


@pytest.fixture
def network():
    return Network().bfloat16()


X = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).bfloat16()


def test_layers_are_pruned_and_packed_in_place(network):
    report = fs.sparsify_(network, sparsity=0.75, ignore=["gate"])
    assert [layer.name for layer in report.layers] == ["body.0", "body.2"]
    assert report.sparsity == 0.75 and type(network.gate) is nn.Linear
    assert isinstance(network.body[0], fs.SparseLinear)
    dense = Network().bfloat16()
    fs.sparsify_(dense, sparsity=0.75, ignore=["gate"], format=None)
    assert type(dense.body[0]) is nn.Linear and (dense.body[0].weight == 0).float().mean() == 0.75
    torch.testing.assert_close(network(X), dense(X), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "batch", [X, (X,), {"x": X, "scale": 2.0}], ids=["tensor", "tuple", "dict"]
)
@pytest.mark.parametrize("method", ["wanda", "ria", "sparsegpt"])
def test_methods_that_look_at_inputs(network, method, batch):
    if isinstance(batch, tuple) is False and method != "wanda":
        batch = [X]
    options = {"pattern": (2, 4), "format": "nm_vector", "n": 2, "m": 4}
    report = fs.sparsify_(network.train(), method, calibration=[batch, batch], **options)
    assert len(report.layers) == 3 and report.sparsity == 0.5 and network.training
    assert all(0.5 < layer.retained.share < 1 for layer in report.layers)
    assert isinstance(network.gate, fs.SparseLinear)
    assert not network.gate._forward_pre_hooks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "taylor"}, "gradient of a loss"),
        ({"method": "wanda"}, "needs inputs of the module"),
        ({"calibration": [X]}, "magnitude uses no calibration"),
        ({"scope": "global"}, "choose 'layer' or 'row'"),
        ({"format": "tiled_cls"}, "tiled_cls"),
        ({"format": "nm_vector"}, "n"),
        ({"sparsity": 2}, "not within 0"),
    ],
)
def test_nothing_changes_where_it_cannot_be_done(network, arguments, message):
    with pytest.raises(ValueError, match=message):
        fs.sparsify_(network, **arguments)
    assert all(type(m) is nn.Linear for m in (network.body[0], network.gate))
    assert (network.gate.weight != 0).all()


def test_a_layer_by_itself_is_refused_and_a_dtype_too():
    with pytest.raises(ValueError, match="give the module that holds it"):
        fs.sparsify_(nn.Linear(8, 8))
    network = Network()
    with pytest.raises(fs.FormatError, match="float32"):
        fs.sparsify_(network)
    assert (network.gate.weight != 0).all()
