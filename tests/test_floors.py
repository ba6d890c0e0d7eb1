# SPDX-License-Identifier: Apache-2.0
"""The floors of CONTRIBUTING.md: imports go down only, and never in a circle.

An import counts wherever it stands: in a function and for types alone, too.
"""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

HOME = Path(__file__).parent.parent
PACKAGE = "flashsparse_plugin"
GROUND = {
    "data_sheets",
    "formats",
    "gpu",
    "messages",
    "names",
    "ops",
    "packed",
    "plan",
    "rules",
}  # floor 2
ROOMS = {"files": 1, "foreign": 2, "read": 3, "write": 4}  # of checkpoint/
ROOMS |= {"card": 5, "prune": 5, "hub": 5, "convert": 6}
# Imports that go up, each with its reason.
UPWARD = {
    (f"{PACKAGE}.llm", f"{PACKAGE}.integrations.vllm"),  # fs.LLM starts vLLM, when it is called
}


def modules():
    """The files of the package and of what is installed in it, by the names of their modules."""
    for folder, name in ((PACKAGE, PACKAGE), ("integrations", f"{PACKAGE}.integrations")):
        for path in (HOME / folder).rglob("*.py"):
            parts = path.relative_to(HOME / folder).with_suffix("").parts
            yield ".".join((name, *parts)).removesuffix(".__init__"), path


def imports(name, path):
    """Names of modules that a file imports, and of what it imports from them."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            # The package by itself is imported for its version and its path.
            yield from (each.name for each in node.names if each.name != PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{each.name}" for each in node.names)


FILES = dict(modules())
ARROWS = {
    (name, known)
    for name, path in FILES.items()
    for found in imports(name, path)
    for known in (found, found.rpartition(".")[0])
    if known in FILES and (known == found or found not in FILES) and known != name
} - UPWARD


def floor(name):
    room = f"{name}.".split(".")[1]
    return {"cli": 5, "integrations": 4}.get(room, 2 if room in GROUND else 3)


def test_imports_go_down():
    assert [(a, b) for a, b in sorted(ARROWS) if floor(a) < floor(b)] == []


def test_imports_of_checkpoint_go_down():
    """Rooms on one step do not import each other."""
    home = f"{PACKAGE}.checkpoint."
    inside = [(a, b) for a, b in sorted(ARROWS) if a.startswith(home) and b.startswith(home)]
    rooms = [(a, b, a.split(".")[2], b.split(".")[2]) for a, b in inside]
    assert {own for _, _, own, _ in rooms} == ROOMS.keys()
    assert [(a, b) for a, b, own, of in rooms if own != of and ROOMS[own] <= ROOMS[of]] == []


def test_no_imports_go_in_a_circle():
    graph: dict[str, set[str]] = {}
    for a, b in ARROWS:
        graph.setdefault(a, set()).add(b)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_nobody_imports_the_roof():
    scripts = [p for each in ("demo", "benchmarks") for p in (HOME / each).rglob("*.py")]
    others = [(name, path) for name, path in FILES.items() if floor(name) != 5]
    others += [(path.stem, path) for path in scripts]
    roof = f"{PACKAGE}.cli"
    assert [p for name, p in others if any(x.startswith(roof) for x in imports(name, p))] == []


def test_torch_headers_stay_in_bindings():
    kernels = HOME / "kernels"
    files = [p for p in kernels.rglob("*") if p.suffix in (".h", ".cuh", ".cpp", ".cu")]
    torch = [p for p in files if re.search(r"#include <(torch|ATen|c10)/", p.read_text())]
    assert {p.relative_to(kernels).parts[0] for p in torch} == {"bindings"}
