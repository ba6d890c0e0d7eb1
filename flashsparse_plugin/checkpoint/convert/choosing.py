# SPDX-License-Identifier: Apache-2.0
"""`--format auto`: looks at every weight, and settles each layer's format before any is packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...config import LayerConfig
from ...dataflow.choice import Choice, Pattern, choose, lines
from ...dataflow.expected import BATCH, HERE, Target
from ...formats import get_format
from ...formats.values.dtypes import packable_dtype
from ...names import AUTO, DEFAULT_FORMAT, DENSE
from ..read.directory import ModelDirectory
from ..read.linears import StoredModel
from ..read.shapes import merged_names
from .decision import EXPERTS, reason_not_to_pack
from .packer import FLOATS
from .settings import Settings


def target_for(settings: Settings, device: str | None, batch: int | None) -> Target | None:
    """What formats are to be chosen for; None where the format is named.

    Args:
        settings: What is asked for.
        device: As `Target.named` takes it; None: this machine.
        batch: Sequences decoded at once; None: `BATCH`.

    Raises:
        ValueError: For a device or a batch that there is not, or beside a format that is named.
    """
    if settings.config.is_open:
        return Target.named(device or HERE, BATCH if batch is None else batch)
    if device is not None or batch is not None:
        raise ValueError(
            f"device= and batch= (--for, --batch) are what format {AUTO!r} chooses by, and "
            f"{settings.config.format} is chosen already: leave them out, or the format"
        )
    return None


def settle(
    settings: Settings,
    directory: ModelDirectory,
    stored: StoredModel,
    target: Target,
    on_progress: Callable[[int, int, str], None],
) -> tuple[Settings, list[str]]:
    """Chooses a format for each layer, the same one for layers that engines merge.

    Reads every weight once, one at a time.

    Args:
        settings: With a configuration whose format is open.
        directory: The model.
        stored: Its linear layers.
        target: The device and the batch to choose for.
        on_progress: Called with bytes done, bytes in all, and the layer.

    Returns:
        The settings with a configuration that names the format of each layer, and what was chosen
        for people, a line a kind of layer.
    """
    config = settings.config
    tensors = {x.name: directory.tensors.get(f"{x.stored}.weight") for x in stored.linears}
    open_layers = {
        x.name: (x, info)
        for x in stored.linears
        if (info := tensors[x.name]) is not None
        and info.dtype in FLOATS
        and x.name not in config.layers
        and x.expert is None
        and reason_not_to_pack(x, config) is None
    }
    total, done = sum(info.nbytes for _, info in open_layers.values()), 0
    patterns: dict[str, Pattern] = {}
    for name, (linear, info) in open_layers.items():
        patterns[name] = Pattern.of(linear.turned(info.read()))
        done += info.nbytes
        on_progress(done, total, f"looking at {name}")
    chosen: dict[str, Choice] = {}
    format = get_format(DEFAULT_FORMAT)
    for names in merged_names(list(patterns)):
        dtype = packable_dtype(format, settings.dtype, open_layers[names[0]][1].dtype)
        choice = choose(Pattern.joined([patterns[name] for name in names]), dtype, target)
        chosen |= dict.fromkeys(names, choice)
    settled = config.settled({name: (x.scheme, x.why) for name, x in chosen.items()})
    for linear in stored.linears:
        if linear.expert is not None and config.named(*linear.names) is None:
            settled.layers[linear.expert.module] = LayerConfig(format=DENSE, reason=EXPERTS)
    # Whether packing a layer is worth it is decided: a part of a merged layer goes with the rest.
    made = replace(settings, config=settled, pack_all=True, is_settled=True)
    return made, lines((open_layers[name][0].kind, choice) for name, choice in chosen.items())
