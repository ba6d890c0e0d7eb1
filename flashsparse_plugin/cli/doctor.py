# SPDX-License-Identifier: Apache-2.0
"""`flashsparse doctor`: what is installed, what works, and what to do about the rest."""

from __future__ import annotations

from typing import Any

import typer
from rich.text import Text

from .console import err, out, print_json, size, table
from .options import ReportAsJson

_GOOD, _BAD, _NONE = "[green]✓[/green]", "[red]✗[/red]", "[dim]–[/dim]"
_UNKNOWN = "[yellow]?[/yellow]"
_TITLES = {
    "versions": "Reading versions",
    "hardware": "Looking at the CPU",
    "torch": "Importing torch",
    "compiled": "Testing every op against its reference",
    "transformers": "Asking transformers",
    "attention": "Looking for running models",
}


def doctor(
    as_json: ReportAsJson = False,
) -> None:
    """Check the installation: versions, hardware, kernels, and every op against its reference.

    The exit code is 1 if something that should work does not.

    \b
    [bold]Examples[/bold]
      flashsparse doctor
      flashsparse doctor --json | jq .problems
    """
    from flashsparse_plugin import diagnostics

    with err.status("Looking around") as status:
        report = diagnostics.examine(
            lambda name: status.update(_TITLES.get(name, "Looking around"))
        )
    if as_json:
        print_json(report)
    else:
        _show(report)
    if report["problems"]:
        raise typer.Exit(1)


def _show(report: dict[str, Any]) -> None:
    _show_versions(report["versions"])
    _show_machine(report)
    _show_compiled(report["compiled"])
    _show_integrations(report)
    _show_attention(report["attention"])
    if report["environment"]:
        made = table("Environment", "", left=2)
        for name, value in report["environment"].items():
            made.add_row(name, Text(value))
        out.print(made, "")
    for hint in report["hints"]:
        out.print(Text.assemble(("Hint  ", "yellow"), hint))
    for problem in report["problems"]:
        out.print(Text.assemble(("Problem  ", "bold red"), problem))
    if not report["problems"]:
        out.print("[bold green]All checks passed.[/bold green]")


def _show_versions(versions: dict[str, Any]) -> None:
    made = table("Versions", "", left=2)
    distribution = versions.pop("vllm_distribution", None)
    for name, version in versions.items():
        if name == "vllm" and distribution not in (None, "vllm"):
            version = f"{version} ({distribution})"
        made.add_row(name, Text(version) if version else "[dim]not installed[/dim]")
    out.print(made, "")


def _show_machine(report: dict[str, Any]) -> None:
    hardware, torch, compiled = report["hardware"], report["torch"], report["compiled"]
    made = table("Machine", "", left=2)
    if "error" in hardware:
        made.add_row("cpu", _error(hardware))
    else:
        made.add_row("cpu", Text(f"{hardware['cpu']}, {hardware['cores']} cores"))
        made.add_row("instructions", " ".join(hardware["instruction_sets"]) or "none of note")
        made.add_row("NVIDIA driver", hardware["driver"] or "[dim]none[/dim]")
    made.add_row("CPU kernels", compiled.get("kernel_path") or "[dim]unknown[/dim]")
    if "error" in torch:
        made.add_row("torch", _error(torch))
    else:
        made.add_row("torch", f"{torch['build']} build, {torch['threads']} threads")
        for gpu in torch["gpus"]:
            text = f"{gpu['name']}, compute capability {gpu['capability']}, {size(gpu['memory'])}"
            made.add_row("GPU", Text(text))
        if not torch["gpus"]:
            made.add_row("GPU", "[dim]none[/dim]")
    out.print(made, "")


def _show_compiled(compiled: dict[str, Any]) -> None:
    if "error" in compiled:
        out.print("[dim]Kernels[/dim]")
        out.print(_error(compiled), "")
        return
    made = table("Objects", "", "", left=3)
    for name, status in compiled["objects"].items():
        made.add_row(_GOOD if status["loaded"] else _NONE, name, Text(status["reason"]))
    out.print(made, "")
    made = table("Kernels", "", "device", "passed", "max error", left=3)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in compiled["ops"]:
        groups.setdefault((result["about"], result["device"]), []).append(result)
    for (about, device), results in groups.items():
        statuses = [result["status"] for result in results]
        mark = _GOOD if {*statuses} == {"PASS"} else _BAD if "FAIL" in statuses else _UNKNOWN
        errors = [each["max_error"] for each in results if each["max_error"] is not None]
        worst = max(errors, default=None)
        text = "" if worst is None else "exact" if worst == 0 else f"{worst:.1e}"
        passed = f"{statuses.count('PASS')} of {len(results)} ops"
        made.add_row(mark, Text(about), device, passed, text)
    out.print(made)
    for result in compiled["ops"]:
        if result["status"] != "PASS":
            told = f"{result['op']} on {result['device']}: {result['status']} {result['detail']}"
            out.print(Text(told.strip(), style="red"), soft_wrap=True)
    shown = [r for r in compiled["ops"] if r["status"] == "PASS" and r["detail"]]
    for about, detail in dict.fromkeys((each["about"], each["detail"]) for each in shown):
        out.print(Text(f"{about}: {detail}", style="dim"), soft_wrap=True)
    out.print()


def _show_integrations(report: dict[str, Any]) -> None:
    made = table("Integrations", "", left=2)
    section = report["transformers"]
    if "error" in section:
        made.add_row(_BAD, _error(section))
    elif section["registered"] is None:
        made.add_row(_NONE, "transformers: not installed")
    else:
        known = section["registered"]
        text = "knows" if known else "does not know"
        made.add_row(_GOOD if known else _BAD, f"transformers {text} the method flashsparse")
    for group, present in report["entry_points"].items():
        text = "installed" if present else "not installed"
        made.add_row(_GOOD if present else _NONE, f"entry point {group}: {text}")
    out.print(made, "")


def _show_attention(section: dict[str, Any]) -> None:
    """Running models whose decode attention counts recomputed parts."""
    running = [process for process in section.get("running", []) if process.get("layers")]
    if not running:
        return
    columns = ("Computed again", "layers", "parts", "of sequences x heads", "most in", "counted")
    made = table(*columns, left=2)
    for process in running:
        layers = process["layers"]
        again, seen = (sum(column) for column in zip(*layers.values(), strict=True))
        most = max(layers, key=lambda name: layers[name][0])
        made.add_row(
            Text(f"{process['pid']}  {process['program']}"),
            f"{len(layers)}",
            f"{again:,}",
            f"{seen:,}",
            Text(most) if again else "[dim]none[/dim]",
            process["counted"][11:19],
        )
    out.print(made, "")


def _error(section: dict[str, Any]) -> Text:
    return Text(section["error"], style="red")
