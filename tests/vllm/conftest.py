# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # vllm_*.py beside this file

HERE = Path(__file__).parent

# vLLM's CPU build: all of the RAM is taken for the model unless told otherwise, and its threads
# are pinned to cores that other processes may use too.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # the tests run in two processes
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "FLASHSPARSE_STRICT": "1",
}


def pytest_collection_modifyitems(items):
    """vLLM is no dependency of ours: without it there is nothing to run here."""
    spec = importlib.util.find_spec("vllm")
    absent = spec is None or spec.origin is None  # this very folder looks like a namespace package
    if absent and not os.environ.get("CI"):
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: see docs/vllm.md"))


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """The environment of a process that runs vLLM, with compile caches of its own.

    All test processes share what torch compiles: g++ takes longer for the headers than for a graph.
    """
    shared = tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else None
    inductor = (shared or tmp_path_factory.getbasetemp()) / "inductor"
    caches = {
        "VLLM_CACHE_ROOT": str(tmp_path_factory.mktemp("vllm_cache")),
        "HF_HUB_CACHE": str(tmp_path_factory.mktemp("hub")),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
    }
    return {**os.environ, **ENVIRONMENT, **caches}


@pytest.fixture(scope="session")
def processes(environment):
    from vllm_processes import Processes

    return Processes(environment)


@pytest.fixture(scope="session")
def run_offline(tmp_path_factory, processes):
    """Runs jobs through vLLM's Python API in one other process; see vllm_offline.py."""
    import vllm_offline

    def run(jobs: dict, timeout: float = 600) -> dict:
        folder = tmp_path_factory.mktemp("offline")
        log = folder / "log.txt"
        results = folder / "results.json"
        processes.run(log, vllm_offline.main, jobs, results, timeout=timeout)
        assert results.exists(), log.read_text()[-4000:]
        return json.loads(results.read_text())

    return run
