# SPDX-License-Identifier: Apache-2.0
"""What a user should know about a conversion, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .linears import Linear, not_linear
from .reader import ModelDirectory
from .report import ConversionReport, LayerReport, human


def warnings_about(
    report: ConversionReport,
    directory: ModelDirectory,
    linears: Sequence[Linear],
    rounded_unasked: bool,
) -> Iterator[str]:
    """Yields one sentence for each thing that is not as a user would expect it."""
    larger = [x for x in report.layers if not x.is_packed and x.bytes_packed is not None]
    if larger:
        most = max(larger, key=lambda x: x.growth)
        yield (
            f"{len(larger)} of {len(report.layers)} linear layers were left dense because "
            f"{report.format} would make them larger: {_sizes(larger)} (most of all {most.name}: "
            f"{_sizes([most])}, at {1 - most.known_sparsity:.1%} density). --pack-all "
            "(pack_all=True) packs them all the same."
        )
    grown = [x for x in report.packed if x.growth > 0]
    if grown:
        yield f"{len(grown)} layers are larger packed than dense, as asked: {_sizes(grown)}."
    if rounded_unasked and report.packed:
        yield (
            f"float32 weights were rounded to {report.dtype} to be packed; that changed "
            f"{report.rounded_values:,} values. --dtype {report.dtype} (dtype=) says that this is "
            "meant, and rounds the other matrices too."
        )
    experts = [name for name in not_linear(directory, linears) if ".experts." in name]
    if experts:
        nbytes = sum(directory.tensors[name].nbytes for name in experts)
        yield (
            f"{len(experts)} expert weights ({human(nbytes)}, for example {experts[0]}) were left "
            "dense: transformers fuses them, and fused experts cannot be packed."
        )
    absent = [x for x in linears if x.stored is None and x.tied_to is None]
    if absent:
        yield (
            f"{len(absent)} linear layers of the model have no weight in this checkpoint, for "
            f"example {absent[0].name}."
        )


def nothing_packed(report: ConversionReport) -> str:
    """Says why a conversion packed no layer at all, and what to do."""
    larger = [x for x in report.layers if x.bytes_packed is not None]
    if not larger:
        return (
            f"no layer of {report.source} was packed: all {len(report.layers)} linear layers are "
            "tied or ignored. Remove an --ignore (ignore=)"
        )
    best = max(larger, key=lambda x: x.known_sparsity)
    return (
        f"no layer of {report.source} would be smaller packed to {report.format}: the sparsest, "
        f"{best.name} {list(best.shape)}, has {best.known_sparsity:.1%} zeros and takes "
        f"{_sizes([best])}. Prune the model first (`flashsparse prune`), or pack it all the same "
        "with --pack-all (pack_all=True)"
    )


def _sizes(layers: Sequence[LayerReport]) -> str:
    packed, dense = sum(x.known_bytes_packed for x in layers), sum(x.bytes_dense for x in layers)
    return f"{human(packed)} packed, {human(dense)} dense"
