# SPDX-License-Identifier: Apache-2.0
"""Makes transformers and peft know us, whether or not the user imports us.

transformers finds no quantization method by entry point, and with an unknown one it warns and
loads random weights. So `install` is called from two places: from `import flashsparse_plugin`,
which is the documented way, and from torch's entry point group `torch.backends`, which runs at
`import torch`. The second must be cheap and must never raise: it imports neither torch nor
transformers, and only watches for the modules that we register with. FLASHSPARSE_AUTOLOAD=0
switches both off (`flashsparse_plugin.integrations.hf.register()` still works), and
TORCH_DEVICE_BACKEND_AUTOLOAD=0 the second.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import warnings

# Modules and the integration that registers with them. The first holds the tables of quantization
# methods; transformers.modeling_utils may be what imports torch, and would be too late for those.
# It is soon enough for attention, which a model asks for after another import or two.
_WATCHED = {
    "transformers.quantizers.auto": "hf",
    "transformers.modeling_utils": "hf.attention",
    "peft.tuners.lora.layer": "hf.peft",
}


def install() -> None:
    """Registers with what is imported already, and with the rest as soon as it is imported."""
    if os.environ.get("FLASHSPARSE_AUTOLOAD", "1") == "0":
        return
    pending = {name for name in _WATCHED if not _is_ready(name)}
    for name in _WATCHED.keys() - pending:
        _register(name)
    if pending and not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(pending))


def _is_ready(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _register(name: str) -> None:
    try:
        importlib.import_module(f"flashsparse_plugin.integrations.{_WATCHED[name]}").register()
    except Exception as error:
        if os.environ.get("FLASHSPARSE_STRICT") == "1":
            raise
        warnings.warn(
            f"flashsparse could not register with {name.partition('.')[0]}: {error!r}. It "
            "will not know packed layers; `flashsparse doctor` tells more.",
            stacklevel=2,
        )


class _Watcher(importlib.abc.MetaPathFinder):
    """Calls `_register` for each pending module once that has been executed."""

    def __init__(self, pending: set[str]):
        self.pending = pending
        self.searching = False

    def find_spec(self, name, path=None, target=None):
        # A module that was half imported when we came (it is what imported torch) cannot be
        # wrapped any more; it is looked at again whenever something else is imported.
        for other in [other for other in self.pending if other != name and _is_ready(other)]:
            self._done(other)
        if name not in self.pending or self.searching:
            return None
        self.searching = True  # so that the search below does not find us
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module):
            execute(module)
            self._done(name)

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec

    def _done(self, name: str) -> None:
        if name in self.pending:
            self.pending.discard(name)
            if not self.pending and self in sys.meta_path:
                sys.meta_path.remove(self)
            _register(name)
