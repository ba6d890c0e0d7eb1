# SPDX-License-Identifier: Apache-2.0
"""What the user asked for, and how it travels.

`--sparse-method`, `LLM(sparse_method=...)` and `additional_config={"flashsparse": {...}}` all end
in vLLM's own field `additional_config`, which vLLM hands to every process, on every machine, and
counts into the key of its compile cache. No environment variable is involved.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashsparse_plugin.checkpoint.files.headers import CheckpointError, sealed_names, tensor_names
from flashsparse_plugin.checkpoint.files.unmarked import refuse_unmarked
from flashsparse_plugin.config import QUANT_METHOD, FlashSparseConfig
from flashsparse_plugin.formats import format_names, read_format
from flashsparse_plugin.messages import PrintableMessage
from flashsparse_plugin.names import AUTO, DEFAULT, EARLY
from flashsparse_plugin.packed import FormatError

KEY = QUANT_METHOD  # in additional_config
METHOD = "method"
NONE = "none"
DUMMY = "dummy"  # vLLM's load format of random weights
# Load formats that hold what a process held, and not what a checkpoint holds.
_OF_A_PROCESS = ("ipc_cache", "runai_streamer_sharded", "sharded_state", "tensorizer")
DECODE_KERNELS = "decode_kernels"
DECODE_SAMPLING = "decode_sampling"
GRAPH = "graph"
# What says nothing of weights, and its values.
_CHOICES = {DECODE_KERNELS: (EARLY, DEFAULT), DECODE_SAMPLING: (GRAPH, DEFAULT)}
_USER_KEYS = ("method", "batch", "dtype", "sparsity", "pruning", "ignore", "options", "head")
_USER_KEYS += (*_CHOICES, "experts")
_RETIRED = {"prompts"}  # FlashSparseConfig says that it is ignored


class SettingsError(PrintableMessage, RuntimeError):
    """An invalid setting.

    Not a ValueError: vLLM reads its settings inside pydantic, which would wrap a ValueError into a
    report of its own and bury the message.
    """


def methods() -> tuple[str, ...]:
    """What `--sparse-method` takes: the formats, and how to choose one or none."""
    return (AUTO, *format_names(), NONE)


def settings_of(additional_config: Any) -> dict[str, Any]:
    """Returns what `additional_config` says to us, checked.

    Raises:
        SettingsError: For an unknown key or method.
    """
    if not isinstance(additional_config, Mapping) or KEY not in additional_config:
        return {}
    settings = additional_config[KEY]
    if not isinstance(settings, Mapping):
        raise SettingsError(f'additional_config["{KEY}"] must be a dict, not {settings!r}')
    unknown = sorted(settings.keys() - {*_USER_KEYS, *_RETIRED})
    if unknown:
        raise SettingsError(
            f'additional_config["{KEY}"] has no setting {unknown[0]!r}; it takes '
            f"{', '.join(_USER_KEYS)}"
        )
    if settings.get(METHOD) is not None:
        _check_method(settings[METHOD])
    for name, (one, other) in _CHOICES.items():
        if settings.get(name, DEFAULT) not in (one, other):
            raise SettingsError(
                f'additional_config["{KEY}"]["{name}"] must be "{one}" or "{other}", not '
                f"{settings[name]!r}"
            )
    if settings.get("head") is not None and settings.get(METHOD) == NONE:
        raise SettingsError(
            f'"head" packs the output head, and --sparse-method {NONE} unpacks all layers: leave '
            "one of the two out"
        )
    return dict(settings)


def _check_method(method: Any) -> None:
    """Raises SettingsError for a method that there is not."""
    try:
        known = isinstance(method, str) and read_format(method)[0] in methods()
    except FormatError as error:
        raise SettingsError(str(error)) from None
    if not known:
        raise SettingsError(
            f"sparse method {method!r} is not one of {', '.join(methods())}, and no pattern in "
            "short, such as 2:4 or 2:4-int8"
        )


def fold(
    quantization: str | None, additional_config: Any, method: str | None
) -> tuple[str | None, Any]:
    """Writes a sparse method into the fields that vLLM hands around.

    Args:
        quantization: vLLM's field of this name.
        additional_config: vLLM's field of this name.
        method: One of `methods()`, a pattern in short, or None to leave what `additional_config`
            says.

    Returns:
        The new `(quantization, additional_config)`.

    Raises:
        SettingsError: For an unknown method, or one beside another quantization method.
    """
    if method is not None:
        _check_method(method)
        additional_config = dict(additional_config or {})
        additional_config[KEY] = {**settings_of(additional_config), METHOD: method}
    settings = settings_of(additional_config)
    if not settings.keys() - _CHOICES.keys() or settings.get(METHOD) == NONE:
        return quantization, additional_config
    if quantization not in (None, QUANT_METHOD):
        raise SettingsError(
            f"sparse method {settings.get(METHOD, AUTO)!r} and quantization {quantization!r} "
            "exclude each other: a layer has one kind of weight. Drop one of them"
        )
    return QUANT_METHOD, additional_config


def merge(stored: FlashSparseConfig | None, settings: Mapping[str, Any]) -> FlashSparseConfig:
    """Returns the configuration to load with.

    Args:
        stored: `quantization_config` of the checkpoint (or of `hf_overrides`), None where there is
            none: then the checkpoint is dense.
        settings: What the user asked for.

    Raises:
        SettingsError: Where the two contradict each other.
    """
    settings = dict(settings)
    for name in _CHOICES:
        settings.pop(name, None)
    method = settings.pop(METHOD, None)
    if settings.get("head") is not None and stored is None and method is None:
        method = AUTO  # a packed head packs nothing else
    named = method not in (None, AUTO, NONE)
    if "batch" in settings and method != AUTO:
        raise SettingsError(
            f'"batch" is what --sparse-method {AUTO} chooses formats by, and it is '
            f"{method or 'not asked for'}: leave it out, or ask for {AUTO}"
        )
    own, options = read_format(method) if named else (None, {})
    if named and stored is not None and not _is_packed_as(stored, own, options):
        raise SettingsError(
            f"this checkpoint is packed as {' and '.join(stored.formats)}, and --sparse-method "
            f"asks for {method}. "
            "Serve it as it is (--sparse-method auto, or none to unpack it), or convert the dense "
            f"model with `flashsparse convert --format {method}`"
        )
    data = {} if stored is None else stored.to_dict()
    data |= settings
    if stored is None and method not in (None, NONE):
        data["format"] = method
    try:
        config = FlashSparseConfig(**data)
        config.require_pattern()
    except ValueError as error:
        raise SettingsError(first_line(error)) from None
    config.dequantize = method == NONE
    return config


def _is_packed_as(
    stored: FlashSparseConfig, format: str | None, options: Mapping[str, Any]
) -> bool:
    """Whether a checkpoint is packed to one format, which has these options."""
    return [format] == stored.formats and all(
        stored.options.get(name) == value for name, value in options.items()
    )


def check_loading(vllm_config: Any) -> None:
    """Refuses load formats that cannot give packed weights, before any process is started.

    Raises:
        SettingsError: For such a format, and for made-up weights of unknown sparsity.
    """
    model, load_format = vllm_config.model_config, vllm_config.load_config.load_format
    if model is None or model.quantization != QUANT_METHOD:
        return
    if load_format in _OF_A_PROCESS:
        raise SettingsError(
            f"--load-format {load_format} reads the memory of a process, where packed layers are "
            "in a device-specific form. Serve the packed checkpoint itself"
        )
    stored = getattr(model.hf_config, "quantization_config", None) or {}
    sparsity = settings_of(vllm_config.additional_config).get("sparsity", stored.get("sparsity"))
    if load_format == DUMMY and sparsity is None:
        raise SettingsError(
            "--load-format dummy generates random weights, and the sparsity of packed ones is not "
            'known. Give it: --additional-config \'{"flashsparse": {"sparsity": 0.5}}\''
        )


def check_marked(model_config: Any) -> None:
    """Refuses a packed checkpoint whose config.json does not say that it is one.

    vLLM would fail in a worker, by the name of a tensor that it does not know. One from the Hub is
    refused there, too, by its first packed tensor (unpacking.py): to look at it here would mean to
    fetch every dense model early.

    Raises:
        SettingsError: For such a checkpoint in a local directory.
    """
    path = Path(model_config.model)
    in_front_end = multiprocessing.parent_process() is None
    if model_config.quantization == QUANT_METHOD or not in_front_end or not path.is_dir():
        return
    try:
        method = model_config.quantization
        quantization = None if method is None else {"quant_method": method}
        files = [*path.glob("*.safetensors")]
        refuse_unmarked(tensor_names(files), quantization, path, sealed_names(files))
    except CheckpointError as error:
        raise SettingsError(str(error)) from None


def first_line(error: ValueError) -> str:
    """Returns what a pydantic error says, in one line."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    parts = []
    for item in errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(map(str, item["loc"]))
        message = item["msg"].removeprefix("Value error, ")
        parts.append(f"{where}: {message}" if where else message)
    return "quantization_config: " + "; ".join(parts)
