# SPDX-License-Identifier: Apache-2.0
"""Makes transformers, peft and accelerate know us, whether or not the user imports us.

transformers has no entry point for quantization methods; for an unknown method it warns and loads
random weights. So `install` is called from two places: by `import flashsparse_plugin`, which is the
documented way, and by torch's entry point group `torch.backends`, which runs at `import torch`. The
entry point must be cheap and must never raise: it imports neither torch nor transformers, and only
watches for the modules that we register with. FLASHSPARSE_AUTOLOAD=0 switches off both
(`flashsparse_plugin.integrations.hf.register()` still works): all that is left is that transformers
refuses a packed checkpoint. TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches off only the entry point, and
then nothing of ours runs before it is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import warnings

# Modules and the integrations that register with each. The first module holds the tables of
# quantization methods. transformers.modeling_utils may be the module that imports torch, which
# would be too late for those tables but is early enough for attention. That of peft is its last one
# that we change.
_WATCHED: dict[str, tuple[str, ...]] = {
    "transformers.quantizers.auto": ("hf",),
    "transformers.modeling_utils": ("hf.attention", "hf.unmarked"),
    "peft.tuners.mixed.model": ("hf.peft",),
    "accelerate.hooks": ("hf.offload",),
}
_WATCHED_IF_OFF: dict[str, tuple[str, ...]] = {"transformers.modeling_utils": ("hf.unmarked",)}


def install() -> None:
    """Registers with modules that are imported already, and with others once they are."""
    watched = _watched()
    pending = {name for name in watched if not _is_ready(name)}
    for name in watched.keys() - pending:
        _register(name)
    if pending and not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(pending))


def _watched() -> dict[str, tuple[str, ...]]:
    return _WATCHED_IF_OFF if os.environ.get("FLASHSPARSE_AUTOLOAD") == "0" else _WATCHED


def _is_ready(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _register(name: str) -> None:
    try:
        for integration in _watched()[name]:
            importlib.import_module(f"flashsparse_plugin.integrations.{integration}").register()
    except Exception as error:
        if os.environ.get("FLASHSPARSE_STRICT") == "1":
            raise
        warnings.warn(
            f"flashsparse could not register with {name.partition('.')[0]}: {error!r}. It will "
            "not recognize packed layers; `flashsparse doctor` has details.",
            stacklevel=2,
        )


class _Watcher(importlib.abc.MetaPathFinder):
    """Calls `_register` for each pending module once the module has been executed."""

    def __init__(self, pending: set[str]):
        self.pending = pending
        self.searching = False

    def find_spec(self, name, path=None, target=None):
        # A module that was only partly imported at `install` (because it imported torch) can no
        # longer be wrapped; it is checked again whenever another module is imported.
        for other in [other for other in self.pending if other != name and _is_ready(other)]:
            self._done(other)
        if name not in self.pending or self.searching:
            return None
        self.searching = True  # so that the search below does not find this finder
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
