# SPDX-License-Identifier: Apache-2.0
"""What is installed, what works and what does not, for `flashsparse doctor`.

Every section of the report is a function that returns plain values for JSON. `examine()` runs the
sections in a child process, since a damaged object or a kernel that this CPU cannot run crashes its
process, and the report has to survive that.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

import flashsparse_plugin

Report = dict[str, Any]

TRANSFORMERS_WANTED = (5, 17)
_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "peft")
_ENTRY_POINTS = {"torch.backends": "torch", "vllm.general_plugins": "vllm"}
_INSTRUCTION_SETS = (
    ("avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "amx_bf16")
    + ("asimd", "bf16", "sve", "i8mm")  # ARM
)


# ---- sections -----------------------------------------------------------------------------------


def versions() -> Report:
    """Versions of the packages that matter, None for missing ones; imports nothing."""
    found: Report = {
        "flashsparse": flashsparse_plugin.__version__,
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        found[package] = _version(package)
    # vLLM's CPU build has another distribution name, so the module is looked up.
    names = metadata.packages_distributions().get("vllm", []) if util.find_spec("vllm") else []
    found["vllm"] = _version(names[0]) if names else None
    found["vllm_distribution"] = names[0] if names else None
    return found


def hardware() -> Report:
    """The CPU and its capability, and the GPUs that the driver lists, with or without torch."""
    info = _read("/proc/cpuinfo")
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", info, re.M)[:1]).split())
    name = re.search(r"^model name\s*:\s*(.*)$", info, re.M)
    return {
        "cpu": name[1] if name else platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": [flag for flag in _INSTRUCTION_SETS if flag in flags],
        "driver": _driver(),
    }


def torch_build() -> Report:
    """The build of torch, and the GPUs that it sees."""
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"{properties.major}.{properties.minor}"
        gpus.append(
            {
                "name": properties.name,
                "capability": capability,
                "memory": properties.total_memory,
            }
        )
    return {
        "build": f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu",
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def compiled() -> Report:
    """Whether the compiled objects are loaded, and every op compared with its reference."""
    from . import selftest
    from .ops import STATUS

    objects = {
        name: {"path": str(status.path) if status.path else None, "loaded": status.loaded}
        | {"reason": status.reason}
        for name, status in STATUS.items()
    }
    return {
        "objects": objects,
        "kernel_path": selftest.kernel_path(),
        "ops": [result.to_dict() for result in selftest.run()],
    }


def transformers() -> Report:
    """Whether transformers knows the method `flashsparse`."""
    if util.find_spec("transformers") is None:
        return {"registered": None}
    import warnings

    # modeling_utils is the module whose import makes autoload.py register the method.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import_module("transformers.modeling_utils")
        auto = import_module("transformers.quantizers.auto")
    complaint = next((str(w.message) for w in caught if "flashsparse" in str(w.message)), None)
    known = "flashsparse" in auto.AUTO_QUANTIZATION_CONFIG_MAPPING
    return {"registered": known and "flashsparse" in auto.AUTO_QUANTIZER_MAPPING, "why": complaint}


def attention() -> Report:
    """The recomputed parts of softmaxes that running processes have counted."""
    from .attention import published

    return {"running": published()}


def entry_points() -> Report:
    """Whether the entry points by which torch and vLLM find this package are present, by group."""
    found = {}
    for group in _ENTRY_POINTS:
        points = metadata.entry_points(group=group)
        found[group] = any(point.value.startswith("flashsparse_plugin") for point in points)
    return found


def environment() -> Report:
    """Environment variables that change what this package or torch does."""
    telling = ("FLASHSPARSE_", "OMP_", "MKL_", "KMP_", "CUDA_VISIBLE", "TORCH_DEVICE_BACKEND")
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(telling)}


SECTIONS: dict[str, Callable[[], Report]] = {
    "versions": versions,
    "hardware": hardware,
    "entry_points": entry_points,
    "environment": environment,
    "torch": torch_build,
    "compiled": compiled,
    "transformers": transformers,
    "attention": attention,
}


# ---- running them -------------------------------------------------------------------------------

_CHILD = [sys.executable, "-m", "flashsparse_plugin.diagnostics"]
_MARK = "flashsparse-section:"  # distinguishes our lines from output of libraries


def examine(on_section: Callable[[str], None] = lambda name: None) -> Report:
    """Examines the installation, section by section, in child processes.

    Args:
        on_section: Called with the name of each section at its start.

    Returns:
        The report: each section by name, then "problems" (what should work and does not) and
        "hints" (possible improvements). A section that failed is `{"error": why}`.
    """
    report: Report = {}
    todo = list(SECTIONS)
    # The child must import what this process imports, not modules in the current folder.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    settings = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    while todo:
        child = subprocess.Popen(
            [*_CHILD, *todo],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=settings,
        )
        on_section(todo[0])
        said = ""
        with child:
            for line in child.stdout or ():
                if line.startswith(_MARK):
                    name, report[name] = json.loads(line.removeprefix(_MARK))
                    todo.remove(name)
                    if todo:
                        on_section(todo[0])
                elif line.strip():
                    said = line.strip()
        if todo:  # the child crashed in this section: continue after it
            report[todo.pop(0)] = {"error": _cause_of_death(child.returncode, said)}
    report["problems"], report["hints"] = _judge(report)
    return report


def _main(names: list[str]) -> None:
    for name in names:
        try:
            result = SECTIONS[name]()
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.flush()
        print("\n" + _MARK + json.dumps([name, result]), flush=True)


def _cause_of_death(code: int, said: str) -> str:
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}: {said or 'it said nothing'}"


# ---- judging ------------------------------------------------------------------------------------


def _judge(report: Report) -> tuple[list[str], list[str]]:
    """Returns the problems (what should work and does not) and the hints."""
    problems = [
        f"{name}: {section['error']}. {_remedy(section['error'])}"
        for name, section in report.items()
        if isinstance(section, dict) and "error" in section
    ]
    hints: list[str] = []
    found, hardware, torch, compiled = (
        report[name] for name in ("versions", "hardware", "torch", "compiled")
    )
    driver = hardware.get("driver")
    _judge_compiled(compiled, problems)
    running = report["attention"].get("running", [])
    problems += [process["error"] for process in running if "error" in process]
    if "error" not in torch:
        _judge_gpu(driver, torch, compiled, problems, hints)
    _judge_transformers(found, report["transformers"], problems, hints)
    for group, package in _ENTRY_POINTS.items():
        if found.get(package) and report["entry_points"].get(group) is False:
            if group == "vllm.general_plugins":
                hints.append("vLLM is installed, but this version brings no plugin for it")
            else:
                problems.append(
                    f"the entry point {group} is not installed, so {package} does not find this "
                    "package by itself: install it again with pip"
                )
    return problems, hints


# What breaks environments most often, and what mends it.
_REMEDIES = (
    (
        r"torchvision|torchaudio|torchcodec",
        "It is made for another build of torch: pip uninstall torchvision torchaudio torchcodec",
    ),
    (
        r"_C_c(pu|uda)|undefined symbol",
        "Install this package again, against this torch: pip install .",
    ),
    (r"No module named '?(\w+)", "Install it: pip install NAME"),
    (
        r"SIGILL",
        "A kernel needs instructions that this CPU lacks: set FLASHSPARSE_CPU_CAPABILITY=portable",
    ),
)


def _remedy(error: str) -> str:
    """What to do about an error that ended a section."""
    for pattern, remedy in _REMEDIES:
        if found := re.search(pattern, error):
            return remedy.replace("NAME", found[found.lastindex or 0])
    return "Install torch, transformers and this package together in an environment of their own"


def _judge_compiled(compiled: Report, problems: list[str]) -> None:
    for result in compiled.get("ops", []):
        if result["status"] == "FAIL":
            problems.append(f"{result['op']} ({result['device']}): {result['detail']}")


def _judge_gpu(
    driver: str | None, torch: Report, compiled: Report, problems: list[str], hints: list[str]
) -> None:
    cuda_build = torch["build"].startswith("cuda")
    if driver and not cuda_build:
        hints.append(
            "there is an NVIDIA driver, but this torch is a CPU build: install a CUDA build of "
            "torch to use the GPU"
        )
    if cuda_build and driver and not torch["gpus"]:
        problems.append(
            f"torch is built for {torch['build']}, but sees no GPU with driver {driver}: the "
            "driver may be too old for it, or CUDA_VISIBLE_DEVICES hides the GPU"
        )
    cuda_object = compiled.get("objects", {}).get("_C_cuda")
    if torch["gpus"] and cuda_object and not cuda_object["loaded"]:
        problems.append(
            f"there is a GPU, but _C_cuda is {cuda_object['reason']}: install nvcc (in "
            "the source tree pip install '.[toolkit]' brings it) and build the package again with "
            "FLASHSPARSE_CUDA=ON"
        )


def _judge_transformers(
    found: Report, section: Report, problems: list[str], hints: list[str]
) -> None:
    version = found.get("transformers")
    if version is None:
        hints.append("transformers is not installed: pip install transformers accelerate")
        return
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < TRANSFORMERS_WANTED:
        wanted = ".".join(map(str, TRANSFORMERS_WANTED))
        problems.append(
            f"transformers {version} is too old: pip install -U 'transformers>={wanted}'"
        )
    if found.get("accelerate") is None:
        hints.append("accelerate is not installed; device_map needs it: pip install accelerate")
    if section.get("registered") is False:
        if os.environ.get("FLASHSPARSE_AUTOLOAD") == "0":
            hints.append("FLASHSPARSE_AUTOLOAD=0 disables registration with transformers")
        else:
            why = section.get("why") or "the registration did not run"
            problems.append(f"the method flashsparse is not registered with transformers: {why}")


# ---- looking things up --------------------------------------------------------------------------


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _driver() -> str | None:
    """Version of the NVIDIA kernel driver, None if there is none."""
    # "Kernel Module  580.95" or "Open Kernel Module for x86_64  580.95".
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", _read("/proc/driver/nvidia/version"))
    return found[1] if found else None


if __name__ == "__main__":
    _main(sys.argv[1:])
