# SPDX-License-Identifier: Apache-2.0
"""Trains LoRA adapters of a packed model for a step on two ranks; a program of test_ddp.py.

    python ddp_ranks.py MODEL FOLDER FORMAT OPTIONS [FORMAT OPTIONS ...]

Each rank saves its gradients of each format in FOLDER; rank 0 saves those of one process that has
the batches of both, too.
"""

import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import tiny
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import flashsparse_plugin as fs

RANKS = 2


class Around(nn.Module):
    """A module of a user's own around the model, as DDP is often given one."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.inner = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=ids, labels=ids).loss


def adapted(path: str, format: str, options: dict, seed: int) -> Around:
    config = fs.FlashSparseConfig(
        format=format,
        options=options,
        pruning="magnitude",
        sparsity=None if options.get("n") else 0.6,
    )
    model = tiny.load(path, quantization_config=config)
    assert len(tiny.sparse_layers(model)) == 14
    torch.manual_seed(seed)  # of the adapters: DDP gives those of rank 0 to all
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return Around(get_peft_model(model, lora))


def gradients(model: nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    model(ids).backward()
    found = {n.removeprefix("module."): p.grad for n, p in model.named_parameters()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def main(rank: int, path: str, folder: Path, cases: list[str]) -> NoReturn:
    faulthandler.dump_traceback_later(200, exit=True)  # before the test's time is over
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    ids = torch.randint(2, 256, (RANKS, 9), generator=torch.Generator().manual_seed(1))
    for number, (format, options) in enumerate(zip(cases[::2], cases[1::2], strict=True)):
        model = DistributedDataParallel(adapted(path, format, json.loads(options), seed=rank))
        found = {"ranks": gradients(model, ids[rank : rank + 1])}
        if not rank:
            found["joined"] = gradients(adapted(path, format, json.loads(options), seed=0), ids)
        torch.save(found, folder / f"{number}-{rank}.pt")
    dist.barrier()
    # No destructors: DDP's joins gloo's threads while it holds the GIL, and one may wait for that
    os._exit(0)


if __name__ == "__main__":
    arguments = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    children = []
    for rank in range(RANKS):
        if not (child := os.fork()):
            main(rank, *arguments)
        children.append(child)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
