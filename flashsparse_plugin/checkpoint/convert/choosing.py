# SPDX-License-Identifier: Apache-2.0
"""`--format auto`: looks at every weight, and settles each layer's format before any is packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ...dataflow.choice import Choice, Pattern, choose, choose_experts, lines
from ...dataflow.expected import BATCH, HERE, Target
from ...formats import get_format
from ...formats.values.dtypes import packable_dtype
from ...names import AUTO, DEFAULT_FORMAT
from ...packed import Scheme
from ..read.directory import ModelDirectory
from ..read.linears import Linear, StoredModel
from ..read.shapes import experts_in, merged_names
from .decision import reason_not_to_pack
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
    experts = _choose_experts(settings, directory, stored, target)
    modules = {name: choice for name, (choice, _) in experts.items()}
    together = {**chosen, **modules}
    settled = config.settled({name: (x.scheme, x.why) for name, x in together.items()})
    # Whether packing a layer is worth it is decided: a part of a merged layer goes with the rest.
    made = replace(settings, config=settled, pack_all=True, is_settled=True)
    told = [(open_layers[name][0].kind, choice) for name, choice in chosen.items()]
    told += [(kind, choice) for choice, kinds in experts.values() for kind in kinds]
    return made, lines(told)


def _holds(scheme: Scheme, weight: Tensor) -> bool:
    """Whether a scheme is what its format would choose for a weight."""
    options = scheme.format.options_for(weight)
    return options is not None and scheme.format.scheme(scheme.dtype, options) == scheme


def _choose_experts(
    settings: Settings, directory: ModelDirectory, stored: StoredModel, target: Target
) -> dict[str, tuple[Choice, list[str]]]:
    """By module of experts whose format is open, what becomes of them, and the kind of each.

    The first expert says what their zeros are like; those of a layer that are chosen for are all
    looked at, since they are packed together.
    """
    found: dict[str, tuple[Choice, list[str]]] = {}
    modules: dict[str, list[Linear]] = {}
    for linear in stored.linears:
        if linear.expert is not None and settings.config.named(*linear.names) is None:
            modules.setdefault(linear.expert.module, []).append(linear)
    format = get_format(DEFAULT_FORMAT)
    for module, linears in modules.items():
        infos = [directory.tensors[f"{each.stored}.weight"] for each in linears]
        pairs = zip(linears, infos, strict=True)
        reasons = (reason_not_to_pack(each, settings.config) for each in linears)
        if (reason := next(filter(None, reasons), None)) or infos[0].dtype not in FLOATS:
            found[module] = Choice(None, reason or "of a dtype that is not packed"), []
            continue
        stacks = [x for x in stored.checkpoint.stacks.values() if x.module == module]
        experts = experts_in(stored.model.config, stacks)
        first = [info.read() for x, info in pairs if x.expert and x.expert.number == 0]
        dtype = packable_dtype(format, settings.dtype, infos[0].dtype)
        choice = choose_experts([Pattern.of(each) for each in first], experts, dtype, target)
        scheme = choice.scheme
        if scheme is not None and not all(_holds(scheme, info.read()) for info in infos):
            choice = Choice(None, f"experts: some have not the zeros of {choice.title}")
        found[module] = choice, [each.kind for each in linears]
    return found
