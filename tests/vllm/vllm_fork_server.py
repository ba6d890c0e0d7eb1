# SPDX-License-Identifier: Apache-2.0
"""Imported by Python's fork server alone, which so imports vLLM for all processes of the tests.

Each process that is started later gets what a spawned one gets: its work as a pickle, and its
parent's environment; no plugin is loaded in it, and no thread runs. What "spawn" starts in such a
process comes from the fork server too.
"""

import os
import threading
from multiprocessing import context, forkserver, spawn

# What the processes of `vllm serve` import.
import vllm.entrypoints.cli.main
import vllm.entrypoints.openai.api_server
import vllm.model_executor.models.llama
import vllm.plugins
import vllm.v1.engine.core
import vllm.v1.executor.multiproc_executor
import vllm.v1.worker.cpu_model_runner
import vllm.v1.worker.cpu_worker
from vllm.model_executor.models import registry
from vllm_processes import join

assert not vllm.plugins.plugins_loaded
assert threading.active_count() == 1

_data_for_child, _prepare = spawn.get_preparation_data, spawn.prepare


def _data_and_environment(name):
    """Its parent's log too, and process group: a server is ended with all of its processes."""
    log = os.readlink("/proc/self/fd/1")
    found = {"log": log, "group": os.getpgrp(), "environment": dict(os.environ)}
    return _data_for_child(name) | found


def _prepare_with_environment(data):
    if "environment" in data:
        join(data["log"], data["group"], data["environment"])
    _prepare(data)


spawn.get_preparation_data, spawn.prepare = _data_and_environment, _prepare_with_environment
context._concrete_contexts["spawn"] = context._concrete_contexts["forkserver"]
forkserver._forkserver.ensure_running = lambda: None  # its children look for one of their own
# For each architecture vLLM would start one more process, to look at the class of the model.
registry._run_in_subprocess = lambda inspect: inspect()
