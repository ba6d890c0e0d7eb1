# SPDX-License-Identifier: Apache-2.0
"""Forks of an interpreter that has imported torch, and neither transformers nor anything of ours.

A new process takes six seconds to import torch, transformers and what both are built on: four of
them are over before anything happens that a test of our registration is about.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SERVER = """
import gc, json, os, sys
gc.disable()  # it would be a fifth of the time of so many imports
import torch, torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor, torch.export
import huggingface_hub.file_download, tokenizers
foreign = ("transformers", "accelerate", "peft", "flashsparse_plugin")
assert not [name for name in sys.modules if name.startswith(foreign)]
for line in sys.stdin:
    job = json.loads(line)
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.environ.update(job["environment"])
for descriptor, file in zip((1, 2), job["files"]):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
sys.argv[1:] = job["arguments"]
exec(job["code"], {"__name__": "__main__"})
"""


class Forks:
    """Runs code as `python -c` does, from where `import torch` returned without entry points.

    `torch._import_device_backends()` is what `import torch` does last of all: it runs them.
    """

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.files = [folder / "stdout", folder / "stderr"]
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=environment | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"},
        )

    def run(self, code: str, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        job = {"code": code, "arguments": [str(arg) for arg in args], "environment": env}
        job["files"] = [str(file) for file in self.files]
        print(json.dumps(job), file=self.server.stdin, flush=True)
        status = int(self.server.stdout.readline())
        return subprocess.CompletedProcess(code, status, *(file.read_text() for file in self.files))

    def close(self) -> None:
        self.server.communicate()
