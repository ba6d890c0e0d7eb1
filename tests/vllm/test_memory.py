# SPDX-License-Identifier: Apache-2.0
"""Packing while loading takes less memory than serving dense, at its peak too."""

import pytest
import vllm_checkpoints as checkpoints


@pytest.mark.slow
def test_peak_of_a_dense_checkpoint_packed_while_loading(tmp_path, run_offline):
    """One dense layer at a time: 925 MB of weights, 80% of them zeros."""
    model = checkpoints.make_large(tmp_path)
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    assert size > 900e6
    job = {"model": str(model), "prompts": [[5, 6, 7]], "max_tokens": 2}
    job["options"] = {"dtype": "bfloat16"}
    sparse = job | {"options": job["options"] | {"sparse_method": "tiled_csl"}}
    # A process each: a peak does not go down again.
    peaks = {}
    for name, one in {"dense": job, "sparse": sparse}.items():
        result = run_offline({name: one})[name]
        assert "error" not in result, result["error"]
        assert ("SparseLinearMethod" in result["layers"].values()) == (name == "sparse")
        peaks[name] = result["peak"]
    print({name: f"{peak / 1e6:.0f} MB" for name, peak in peaks.items()})
    assert peaks["sparse"] < peaks["dense"]
