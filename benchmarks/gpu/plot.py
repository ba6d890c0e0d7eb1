# SPDX-License-Identifier: Apache-2.0
"""Draws what spmm.py measured, dense time / time against tokens, beside the result that it reads.

python benchmarks/gpu/plot.py benchmarks/results/nvidia-h200/spmm.csv
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import _results


def mean(rows: list[dict[str, Any]], figure: str) -> float:
    return statistics.geometric_mean(row[figure] for row in rows if row.get(figure))


def draw(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10.4, 4.4), sharey=True)
    for axis, family in zip(axes, ("OPT", "Llama-3"), strict=True):
        rows = [row for row in result["rows"] if row["model"].startswith(family)]
        tokens = sorted({row["tokens"] for row in rows})
        for sparsity in sorted({row["sparsity"] for row in rows}):
            own = [row for row in rows if row["sparsity"] == sparsity]
            line = [mean([r for r in own if r["tokens"] == count], "ratio") for count in tokens]
            bound = mean(own, "ratio_bound")
            label = f"{sparsity}% zeros (at most {bound:.2f})"
            axis.plot(tokens, line, label=label, linewidth=2, marker="o")
        fp8 = [mean([r for r in rows if r["tokens"] == count], "fp8_ratio") for count in tokens]
        axis.plot(tokens, fp8, label="fp8, dense", linestyle="--", linewidth=1.3, color="0.45")
        axis.axhline(1, color="black", linestyle="--", linewidth=1.3)
        axis.set_xscale("log", base=2)
        axis.set_xticks(tokens)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.tick_params(axis="x", rotation=45, which="major")
        axis.set_xlabel("tokens")
        axis.set_title(f"{family}, {len({row['shape'] for row in rows})} layers, geometric mean")
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("time of cuBLAS / time")
    axes[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    about = result["about"]
    figure.suptitle(f"{about['gpu']}, {about['dtype']}, torch {about['torch']}")
    figure.tight_layout()
    figure.savefig(path, dpi=130, bbox_inches="tight")


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    path = Path(sys.argv[1])
    draw(_results.read(path), path.with_suffix(".png"))
    print(f"drawn to {path.with_suffix('.png')}")


if __name__ == "__main__":
    main()
