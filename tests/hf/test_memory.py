# SPDX-License-Identifier: Apache-2.0
"""A dense checkpoint is packed with one dense layer in memory at a time."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

LAYERS, HIDDEN, INNER = 4, 1024, 4096

# Anonymous memory, sampled: the pages of the mapped file are counted in VmHWM too, though the
# system may drop them at any time.
MEASURE = """
import json, os, sys, threading, time
import torch
from transformers import AutoModelForCausalLM
import flashsparse_plugin as fs
torch.set_num_threads(1)

def anonymous():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.001)

small, path, *each = sys.argv[1:]
configs = [fs.FlashSparseConfig(**json.loads(settings)) for settings in each]
for config in configs:
    AutoModelForCausalLM.from_pretrained(small, quantization_config=config)  # imports, pools
for config in configs:
    if os.fork():  # a process each: what one has freed would be used by the next
        assert os.wait()[1] == 0
        continue
    before, peak, done = anonymous(), [0], threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=config)
    done.set()
    watcher.join()
    held = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    found = {"peak": peak[0] - before, "after": anonymous() - before, "held": held}
    print(json.dumps(found), flush=True)
    os._exit(0)
"""
# With as many dense layers as may be in memory beside the packed model.
SETTINGS = [
    # The layer rounded, rounded back to compare, and the packer's buffers.
    ({"pruning": "none", "dtype": "float16"}, 5),
    # A copy, float32 scores, and the masks and histograms of the selection.
    ({"pruning": "magnitude", "sparsity": 0.6}, 9),
]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A bfloat16 checkpoint of 135 MB, half of it zeros, written without its model in memory."""
    path = tmp_path_factory.mktemp("large")
    config = AutoConfig.for_model(
        "llama",
        vocab_size=256,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
        dtype="bfloat16",
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(path)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, tensor in skeleton.state_dict().items():
        values = torch.randint(1, 2**14, tensor.shape, generator=generator, dtype=torch.int16)
        if tensor.dim() == 2:
            values[:, ::2] = 0
        state[name] = values.view(torch.bfloat16)
    save_file(state, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.fixture(scope="module")
def measured(large, llama):
    """Bytes by `MEASURE`, for each of SETTINGS."""
    settings = [json.dumps(each) for each, _ in SETTINGS]
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(llama.masked), str(large), *settings],
        capture_output=True,
        text=True,
        # What glibc keeps for itself after a free, several times what we hold, is not measured.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
        timeout=500,
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_peak_memory_while_packing(number, large, measured):
    (settings, dense_layers), found = SETTINGS[number], measured[number]
    print(settings, {key: f"{value / 1e6:.0f} MB" for key, value in found.items()})
    size = (large / "model.safetensors").stat().st_size
    layer = 2 * HIDDEN * INNER
    assert found["held"] < 0.7 * size
    # In memory once, and little beside it: what the allocator has not given back varies from run to
    # run. The dense model would be another 16 layers.
    assert found["after"] < found["held"] + 4 * layer
    assert found["peak"] < found["held"] + dense_layers * layer
