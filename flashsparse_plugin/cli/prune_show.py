# SPDX-License-Identifier: Apache-2.0
"""What `flashsparse prune` prints of its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from .console import count, out, table

if TYPE_CHECKING:
    from flashsparse_plugin.pruning import PruneReport, Retained


def _kept(retained: Retained | None) -> list[str]:
    """Cells for what of the scores is left, and would be without a pattern."""
    shares = [] if retained is None else [retained.share, retained.unstructured]
    return [f"{share:.1%}" for share in shares if share is not None]


def show(report: PruneReport) -> None:
    from flashsparse_plugin.pruning.layers import mean_retained

    kinds: dict[str, list[Any]] = {}
    for layer in report.layers:
        kinds.setdefault(layer.kind, []).append(layer)
    # Of a layer with a few more zeros than another, as a rule that rounds leaves it.
    spread = max(x.sparsity for x in report.layers) - min(x.sparsity for x in report.layers)
    titles = ["least", "most"] if spread >= 0.001 else []
    if report.retained is not None:
        titles.append("score kept")
        if report.retained.unstructured is not None:
            titles.append("without pattern")
    made = table("Kind", "layers", "weights", "zeros", *titles)
    made.columns[0].no_wrap = True  # before headers of two words do

    def cells(layers: Sequence[Any], retained: Retained | None) -> list[str]:
        shares = [layer.sparsity for layer in layers]
        elements, zeros = (sum(getattr(x, name) for x in layers) for name in ("elements", "zeros"))
        range_of = [f"{min(shares):.1%}", f"{max(shares):.1%}"] if "least" in titles else []
        known = [f"{len(layers)}", count(elements), f"{zeros / elements:.1%}"]
        return [*known, *range_of, *_kept(retained)]

    for kind, layers in kinds.items():
        made.add_row(Text(kind), *cells(layers, mean_retained(layers)))
    made.add_section()
    made.add_row("all", *cells(report.layers, report.retained), style="bold")
    out.print(made)


def show_next(
    model: str,
    destination: Path,
    calibration: Path | None,
    how: str,
    report: PruneReport,
    rounds: bool,
) -> None:
    """The commands that follow: what is kept makes up for the rest, then it is packed.

    Args:
        how: Options of `convert`; none for the default, which is unstructured.
        rounds: Whether some layers are to have 4 bits.
    """
    text = calibration or "FILE.txt"
    experts = any(layer.kind.startswith("experts.") for layer in report.layers)
    method = "least-squares" if experts else "lora"  # which trains no experts
    recover = f"{model} RECOVERED --calibration {text} --method {method}"
    steps = [("Recover quality:", f"flashsparse recover {destination} {recover}")]
    if rounds:
        rounded = f"flashsparse round RECOVERED ROUNDED{how} --calibration {text}"
        steps.append(("Round to 4 bits:", rounded))
    last = "ROUNDED" if rounds else "RECOVERED"
    steps.append(("Then pack it:", f"flashsparse convert {last} PACKED{how}"))
    for title, command in steps:
        out.print(Text(f"{title:<18}{command}"), soft_wrap=True)
