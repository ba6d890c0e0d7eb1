# SPDX-License-Identifier: Apache-2.0
"""`--sparse-method` and `--decode-attention` on the command line, `sparse_method=` and
`decode_attention=` in Python.

vLLM has no official hook for arguments. But its parsers look up `add_cli_args` on EngineArgs after
plugins were loaded, and every entry to vLLM makes an EngineArgs, so wrapping four of its methods
reaches all of them. The wrappers only fill in existing fields of vLLM; see settings.py and
attention.py.
"""

from __future__ import annotations

import functools
from typing import Any

from flashsparse_plugin.names import AUTO

from .attention import CHOICES, check_calibration, fold_attention
from .attention_default import choose
from .preflight import check_files
from .settings import NONE, SettingsError, check_loading, check_marked, fold, methods

_METHOD_HELP = (
    "Serve pruned weights from sparse storage. A format (%s; or a pattern: 2:4, 2:4-int8) packs "
    "the linear layers of a dense, pruned checkpoint while it loads; auto chooses for each layer "
    "the one that should be fastest at a batch of 8, or leaves it dense; none serves dense "
    "weights, and unpacks a packed checkpoint. Packed checkpoints need no option: auto serves them "
    "as they are. "
    'More settings: --additional-config \'{"flashsparse": {"batch": 32, "pruning": "magnitude", '
    '"sparsity": 0.5, "ignore": ["lm_head"]}}\'.'
)
_ATTENTION_HELP = (
    "Attention of the steps that generate one token a sequence. unified_max: FlashSparse's kernel, "
    "with phi if the model was calibrated (`flashsparse calibrate`), else with the online "
    "softmax; prompts go through vLLM's own attention. The same as --attention-backend CUSTOM. "
    "default: vLLM's own attention for everything. Without this option it is unified_max where "
    "that was measured (GPUs of compute capability 9.0, bfloat16, heads of 128 elements), which "
    "one line of the log says, and vLLM's own everywhere else."
)


def _fold_method(holder: Any, choice: str | None) -> None:
    holder.quantization, holder.additional_config = fold(
        holder.quantization, holder.additional_config, choice
    )


def _fold_attention(holder: Any, choice: str) -> None:
    holder.attention_backend = fold_attention(
        holder.attention_backend, getattr(holder, "attention_config", None), choice
    )


_FOLDS = {"sparse_method": _fold_method, "decode_attention": _fold_attention}


def _fold(holder: Any, name: str, choice: str | None) -> None:
    """Writes one of our arguments into vLLM's fields of a namespace or of EngineArgs."""
    if choice is not None:
        _FOLDS[name](holder, choice)


def install() -> None:
    """Wraps EngineArgs, once."""
    from vllm.engine import arg_utils

    engine_args = arg_utils.EngineArgs
    if getattr(engine_args.add_cli_args, "_flashsparse", False):
        return
    _wrap_parser(engine_args)
    _wrap_model_config(engine_args)
    _wrap_engine_config(engine_args)
    for cls in (engine_args, arg_utils.AsyncEngineArgs):
        _wrap_init(cls)


def _wrap_parser(cls: Any) -> None:
    inner = cls.add_cli_args

    @functools.wraps(inner)
    def add_cli_args(parser: Any) -> Any:
        parser = inner(parser)
        group = parser.add_argument_group(
            "FlashSparse", "Sparse weights of pruned models, and decode attention."
        )
        names = [name for name in methods() if name not in (AUTO, NONE)]
        group.add_argument(
            "--sparse-method",
            metavar="METHOD",
            default=None,
            help=(_METHOD_HELP % ", ".join(names)).replace("%", "%%"),
        )
        group.add_argument(
            "--decode-attention", choices=CHOICES, default=None, help=_ATTENTION_HELP
        )
        _fold_after_parsing(parser)
        return parser

    add_cli_args._flashsparse = True
    cls.add_cli_args = staticmethod(add_cli_args)


def _fold_after_parsing(parser: Any) -> None:
    """Folds after everything is parsed, so that the order of the arguments does not matter."""
    inner = parser.parse_known_args

    @functools.wraps(inner)
    def parse_known_args(*args: Any, **kwargs: Any) -> Any:
        namespace, rest = inner(*args, **kwargs)
        # These are not fields of vLLM, some of whose commands print all arguments.
        taken = {name: vars(namespace).pop(name, None) for name in _FOLDS}
        for name, choice in taken.items():
            try:
                _fold(namespace, name, choice)
            except SettingsError as error:
                parser.error(f"argument --{name.replace('_', '-')}: {error}")
        return namespace, rest

    parser.parse_known_args = parse_known_args


def _wrap_init(cls: Any) -> None:
    inner = cls.__init__

    @functools.wraps(inner)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        taken = {name: kwargs.pop(name, None) for name in _FOLDS}
        inner(self, *args, **kwargs)
        for name, choice in taken.items():
            _fold(self, name, choice)

    cls.__init__ = __init__


def _wrap_model_config(cls: Any) -> None:
    """Makes `additional_config={"flashsparse": {...}}` sufficient by itself, and chooses attention.

    A packed checkpoint that does not say what it is, is refused here: vLLM would end in a KeyError.
    """
    inner = cls.create_model_config

    @functools.wraps(inner)
    def create_model_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        _fold_method(self, None)
        config = inner(self, *args, **kwargs)
        check_marked(config)
        choose(self, config)
        return config

    cls.create_model_config = create_model_config


def _wrap_engine_config(cls: Any) -> None:
    """Refuses what cannot be served before any other process is started."""
    inner = cls.create_engine_config

    @functools.wraps(inner)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = inner(self, *args, **kwargs)
        check_calibration(config)
        check_loading(config)
        check_files(config)
        return config

    cls.create_engine_config = create_engine_config
