# SPDX-License-Identifier: Apache-2.0
"""What a user should know about a conversion, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from ...formats import get_format
from ...formats.registry import as_option
from ...formats.values.dtypes import packable_dtype
from ..files.explanations import about_experts
from ..read.linears import StoredModel
from ..read.together import stored_whole
from ..write.report import ConversionReport, LayerReport, human, told
from .decision import NEGLIGIBLE


def warnings_about(
    report: ConversionReport, stored: StoredModel, rounded_unasked: bool
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
    grown = [x for x in report.packed if x.growth > NEGLIGIBLE * x.bytes_alike]
    if grown:
        yield f"{len(grown)} layers are larger packed than dense, as asked: {_sizes(grown)}."
    if rounded_unasked and report.packed and report.rounded_values:
        yield (
            f"float32 weights were rounded to {report.dtype} to be packed; that changed "
            f"{report.rounded_values:,} values. --dtype {report.dtype} (dtype=) says that this is "
            "meant, and rounds the other matrices too."
        )
    yield from _better_formats(report)
    dense = {layer.name: layer.reason for layer in report.layers if layer.reason is not None}
    yield from notes_on(stored, "packed", dense)


def notes_on(
    stored: StoredModel, done: str, dense: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yields what of a model stays dense because of what it is.

    Args:
        stored: The model.
        done: What cannot be done with it: "packed" or "pruned".
        dense: The layers that stay dense and why, where others may be packed; experts among them,
            by the name of their parameter where files have them in one tensor.
    """
    apart = {f"{x.stored}.weight": x.name for x in stored.linears if x.expert is not None}
    apart |= {key: parameter for parameter, (key, _) in stored_whole(stored).items()}
    experts = [
        info
        for info in stored.experts()
        if dense is None or info.name not in apart or apart[info.name] in dense
    ]
    if experts:
        nbytes = sum(info.nbytes for info in experts)
        why = (dense or {}).get(apart.get(experts[0].name, ""))
        count = f"{human(nbytes)}, {len(experts)} tensors"
        yield about_experts(count, experts[0].name, done, why)
    unfit = stored.unfit()
    if unfit:
        reasons = told((reason, name) for name, reason in unfit.items())
        yield f"Some layers cannot be {done} and stay as they are: {'; '.join(reasons)}."


def notes_on_pruning(stored: StoredModel, pruned: Set[str]) -> Iterator[str]:
    """Yields what of a model stays as it is where it is pruned, because of what it is.

    Args:
        stored: The model.
        pruned: Names of the layers that were pruned, experts among them.

    `convert` has no need of the sentence about routers: its report has a reason for every layer.
    """
    routers = stored.routers()
    if routers:
        yield f"Routers are not pruned: {'; '.join(told(('router', name) for name in routers))}."
    modules = {name.rsplit(".", 2)[0] for name in pruned}
    ignored = "they are left out"
    apart = {x.name: ignored for x in stored.linears if x.expert and x.expert.module not in modules}
    wholes = ((each, each.rpartition(".")[0]) for each in stored_whole(stored))
    apart |= {parameter: ignored for parameter, module in wholes if module not in modules}
    yield from notes_on(stored, "pruned", apart)


def nothing_packed(report: ConversionReport) -> str:
    """Says why a conversion packed no layer at all, and what to do."""
    if report.choices:
        return (
            f"packing pays for no layer of {report.source}: {'; '.join(report.choices)}. Remedy: "
            "keep it dense there, prune it to a share from which on packing pays (`flashsparse "
            "prune`), or name a format, which packs all the same, with --format (format=)"
        )
    larger = [x for x in report.layers if x.bytes_packed is not None]
    if not larger:
        reasons = told((x.reason, x.name) for x in report.layers if x.reason is not None)
        return (
            f"no layer of {report.source} was packed: all {len(report.layers)} linear layers stay "
            f"dense: {'; '.join(reasons)}. To pack those ignored by name, remove an --ignore "
            "(ignore=)"
        )
    best = max(larger, key=lambda x: x.known_sparsity)
    better = " ".join(_better_formats(report))
    return (
        f"no layer of {report.source} would be smaller packed to {report.format}: the sparsest, "
        f"{best.name} {list(best.shape)}, has {best.known_sparsity:.1%} zeros and takes "
        f"{_sizes([best])}. {f'{better} Else prune' if better else 'Prune'} the model first "
        "(`flashsparse prune`), or pack it all the same with --pack-all (pack_all=True)"
    )


def _better_formats(report: ConversionReport) -> Iterator[str]:
    """Yields the formats that would hold all layers that can be packed in fewer bytes."""
    layers = [x for x in report.layers if x.bytes_packed is not None]
    for name, options in (layers[0].others if layers else {}).items():
        if any(layer.others.get(name) != options for layer in layers):
            continue
        format = get_format(name)
        scheme = format.scheme(packable_dtype(format, report.dtype), options)
        sizes = [format.nbytes(scheme, layer.shape) for layer in layers]
        nbytes = sum(size or 0 for size in sizes)
        if None not in sizes and nbytes < sum(x.known_bytes_packed for x in layers):
            yield (
                f"All {len(layers)} layers that can be packed follow {scheme.title}: they take "
                f"{human(nbytes)} with {as_option(name, options)} (format=), and "
                f"{human(sum(x.known_bytes_packed for x in layers))} packed to {report.format}."
            )


def _sizes(layers: Sequence[LayerReport]) -> str:
    packed, dense = sum(x.known_bytes_packed for x in layers), sum(x.bytes_alike for x in layers)
    return f"{human(packed)} packed, {human(dense)} dense"
