# SPDX-License-Identifier: Apache-2.0
"""`--sparse-method` on the command line and `sparse_method=` in Python.

vLLM has no official hook for arguments. But its parsers are built by looking `add_cli_args` up on
EngineArgs after plugins were loaded, and every way in makes an EngineArgs: so wrapping three of its
methods reaches all of them. The wrappers only fill in fields that vLLM has anyway; see settings.py.
"""

from __future__ import annotations

import functools
from typing import Any

from .settings import SettingsError, fold, methods

_HELP = (
    "Serve pruned weights from sparse storage. A format (%s) packs the linear layers of a dense, "
    "pruned checkpoint while it loads; auto packs only those layers that become smaller; none "
    "serves dense weights, and unpacks a packed checkpoint. Packed checkpoints need no option. "
    'More settings: --additional-config \'{"flashsparse": {"pruning": "magnitude", '
    '"sparsity": 0.5, "ignore": ["lm_head"]}}\'.'
)


def install() -> None:
    """Wraps EngineArgs, once."""
    from vllm.engine import arg_utils

    engine_args = arg_utils.EngineArgs
    if getattr(engine_args.add_cli_args, "_flashsparse", False):
        return
    _wrap_parser(engine_args)
    _wrap_model_config(engine_args)
    for cls in (engine_args, arg_utils.AsyncEngineArgs):
        _wrap_init(cls)


def _wrap_parser(cls: Any) -> None:
    inner = cls.add_cli_args

    @functools.wraps(inner)
    def add_cli_args(parser: Any) -> Any:
        parser = inner(parser)
        group = parser.add_argument_group("FlashSparse", "Sparse weights of pruned models.")
        names = [name for name in methods() if name not in ("auto", "none")]
        group.add_argument(
            "--sparse-method",
            choices=methods(),
            default=None,
            help=(_HELP % ", ".join(names)).replace("%", "%%"),
        )
        _fold_after_parsing(parser)
        return parser

    add_cli_args._flashsparse = True
    cls.add_cli_args = staticmethod(add_cli_args)


def _fold_after_parsing(parser: Any) -> None:
    """Folds once everything is parsed, so that the order of the arguments does not matter."""
    inner = parser.parse_known_args

    @functools.wraps(inner)
    def parse_known_args(*args: Any, **kwargs: Any) -> Any:
        namespace, rest = inner(*args, **kwargs)
        method = getattr(namespace, "sparse_method", None)
        if hasattr(namespace, "sparse_method"):
            del namespace.sparse_method  # no field of vLLM's; some of its commands print them all
        if method is not None:
            try:
                namespace.quantization, namespace.additional_config = fold(
                    namespace.quantization, namespace.additional_config, method
                )
            except SettingsError as error:
                parser.error(f"argument --sparse-method: {error}")
        return namespace, rest

    parser.parse_known_args = parse_known_args


def _wrap_init(cls: Any) -> None:
    inner = cls.__init__

    @functools.wraps(inner)
    def __init__(self: Any, *args: Any, sparse_method: str | None = None, **kwargs: Any) -> None:
        inner(self, *args, **kwargs)
        if sparse_method is not None:
            self.quantization, self.additional_config = fold(
                self.quantization, self.additional_config, sparse_method
            )

    cls.__init__ = __init__


def _wrap_model_config(cls: Any) -> None:
    """Makes `additional_config={"flashsparse": {...}}` enough by itself."""
    inner = cls.create_model_config

    @functools.wraps(inner)
    def create_model_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.quantization, self.additional_config = fold(
            self.quantization, self.additional_config, None
        )
        return inner(self, *args, **kwargs)

    cls.create_model_config = create_model_config
