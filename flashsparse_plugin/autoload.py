# SPDX-License-Identifier: Apache-2.0
"""Makes transformers know the method `flashsparse`, whether or not the user imports us.

transformers finds no quantization method by entry point, and with an unknown one it warns and
loads random weights. So `install` is called from two places: from `import flashsparse_plugin`,
which is the documented way, and from torch's entry point group `torch.backends`, which runs at
`import torch`. The second must be cheap and must never raise: it imports neither torch nor
transformers, and only watches for `transformers.modeling_utils`, the module that owns
`from_pretrained`. TORCH_DEVICE_BACKEND_AUTOLOAD=0 or FLASHSPARSE_AUTOLOAD=0 switches it off.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import warnings

_WATCHED = "transformers.modeling_utils"


def install() -> None:
    """Registers with transformers now if it is there, or as soon as it is imported."""
    if os.environ.get("FLASHSPARSE_AUTOLOAD", "1") == "0":
        return
    module = sys.modules.get(_WATCHED)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _register()
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def _register() -> None:
    try:
        from .integrations import hf

        hf.register()
    except Exception as error:
        if os.environ.get("FLASHSPARSE_STRICT") == "1":
            raise
        warnings.warn(
            f"flashsparse could not register with transformers: {error!r}. Packed models will not "
            "load; `flashsparse doctor` tells more.",
            stacklevel=2,
        )


class _Watcher(importlib.abc.MetaPathFinder):
    """Calls `_register` after transformers.modeling_utils has been executed."""

    def find_spec(self, name, path=None, target=None):
        if name != _WATCHED:
            return None
        sys.meta_path.remove(self)  # once is enough, and find_spec below must not find us
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module):
            execute(module)
            _register()

        spec.loader.exec_module = execute_and_register
        return spec
