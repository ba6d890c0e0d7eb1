# SPDX-License-Identifier: Apache-2.0
"""vLLM: `vllm serve` on packed checkpoints, and on dense ones that are packed while they load;
decode attention with a unified maximum.

vLLM finds `register` by the entry point group `vllm.general_plugins` and calls it in the front
end, in the engine's process and in every worker. Importing this module imports no vLLM.
"""

import logging
import multiprocessing
import os
from importlib.metadata import version

logger = logging.getLogger(__name__)

_registered = False


def register() -> None:
    """Registers the quantization method `flashsparse`, the attention backend CUSTOM, and the
    arguments `--sparse-method` and `--decode-attention`.

    Calling it again changes nothing. vLLM would let an exception of a plugin stop every model,
    dense ones too, so a failure is logged with its cause and otherwise leaves vLLM as it was;
    FLASHSPARSE_STRICT=1 raises it.
    """
    global _registered
    if _registered:
        return
    _registered = True
    try:
        if multiprocessing.parent_process() is None:  # once, not by every process of an engine
            from .compat import about_release

            if told := about_release(version("vllm")):
                logger.warning("%s", told)

        from vllm.model_executor.layers.quantization import register_quantization_config

        from flashsparse_plugin.config import QUANT_METHOD

        from . import arguments, attention, unpacking
        from .quantization import FlashSparseQuantization

        register_quantization_config(QUANT_METHOD)(FlashSparseQuantization)
        attention.install()
        arguments.install()
        unpacking.install()
    except Exception:
        if os.environ.get("FLASHSPARSE_STRICT") == "1":
            _registered = False
            raise
        logger.exception(
            "flashsparse could not register with vLLM: dense models are served as before, packed "
            "ones are not. `flashsparse doctor` has details; FLASHSPARSE_STRICT=1 makes this an "
            "error."
        )
